//! Where to start and stop reading, as the command line says it.

use std::str::FromStr;

use anyhow::Context as _;
use basalt_client::{Client, Start};
use basalt_proto::{Offset, PartitionId, TopicName};

/// `earliest`, `latest`, an offset, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct From(pub(crate) Start);

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let start = match text {
            "earliest" => Start::Earliest,
            "latest" => Start::Latest,
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() => {
                Start::Offset(offset(text)?)
            }
            _ => Start::Timestamp(time(text)?),
        };
        Ok(Self(start))
    }
}

/// `end`, or an offset that is not printed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The high watermark at the start.
    End,
    /// This offset.
    Offset(Offset),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "end" {
            Ok(Self::End)
        } else {
            offset(text).map(Self::Offset)
        }
    }
}

impl To {
    pub(crate) async fn resolve(
        self,
        client: &Client,
        topic: &TopicName,
        partition: PartitionId,
    ) -> anyhow::Result<Offset> {
        match self {
            Self::Offset(offset) => Ok(offset),
            Self::End => offset_of(client, topic, partition, Start::Latest).await,
        }
    }
}

/// The offset that `start` means now; the high watermark where no record is late enough.
pub(crate) async fn offset_of(
    client: &Client,
    topic: &TopicName,
    partition: PartitionId,
    start: Start,
) -> anyhow::Result<Offset> {
    if let Start::Offset(offset) = start {
        return Ok(offset);
    }
    let list = |start| async move {
        client
            .list_offsets(topic, partition, start)
            .await
            .with_context(|| {
                format!("cannot look up an offset of topic {topic}, partition {partition}")
            })
    };
    match list(start).await? {
        Some(found) => Ok(found.offset),
        None => Ok(list(Start::Latest)
            .await?
            .map_or(Offset::ZERO, |end| end.offset)),
    }
}

fn offset(text: &str) -> Result<Offset, String> {
    text.parse()
        .ok()
        .map(Offset)
        .filter(|offset| *offset <= Offset::MAX)
        .ok_or_else(|| {
            format!(
                "`{text}` is no offset: give a whole number up to {}",
                Offset::MAX
            )
        })
}

fn time(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "`{text}` is neither `earliest`, `latest`, an offset, nor a time such as 2026-01-31T09:00:00Z (RFC 3339, from \
             1970 to 2262)"
        )
    };
    let time = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| wrong())?;
    time.timestamp_nanos_opt()
        .and_then(|ns| u64::try_from(ns).ok())
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_word_an_offset_or_a_time() {
        let start = |text: &str| text.parse::<From>().map(|from| from.0);
        assert_eq!(start("earliest"), Ok(Start::Earliest));
        assert_eq!(start("latest"), Ok(Start::Latest));
        assert_eq!(start("42"), Ok(Start::Offset(Offset(42))));
        assert_eq!(
            start("1970-01-01T00:00:01Z"),
            Ok(Start::Timestamp(1_000_000_000))
        );
        assert_eq!(
            start("1970-01-01T01:00:00.5+01:00"),
            Ok(Start::Timestamp(500_000_000))
        );
    }

    #[test]
    fn what_is_neither_is_refused_with_what_would_do() {
        for text in [
            "",
            "end",
            "-1",
            "9223372036854775808",
            "18446744073709551616",
            "yesterday",
            "1969-12-31T00:00:00Z",
        ] {
            let error = text.parse::<From>().unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert_eq!("end".parse(), Ok(To::End));
        assert!("latest".parse::<To>().is_err());
    }
}
