//! `basalt produce`: a record a line, streamed.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use basalt_client::{AckLevel, Delivery, Producer, ProducerConfig, RecordToSend};
use basalt_proto::{Offset, PartitionId, TopicName};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::ServerArg;
use crate::input::Source;
use crate::progress::{Progress, rate};
use crate::serve::Signals;
use crate::stopwatch::wall_clock_ns;

/// Arguments of `basalt produce`.
#[derive(Debug, Args)]
#[command(after_help = "\
A record is a line without its line feed; a carriage return is kept, an empty line is an empty
record, and a last line without line feed is a record too. The summary at the end goes to stderr;
stdout stays empty. Ctrl-C stops reading and waits for what was sent. If a connection is lost before
an acknowledgement, it stops with an error and says that some records may be stored or not.

Examples:
  basalt produce flights examples/flights.ndjson
  tail -f app.log | basalt produce app
  echo 'user-7:logged in' | basalt produce events --key-separator :
  basalt produce metrics --ack os metrics.ndjson    faster; survives a crash of the server only")]
pub(crate) struct ProduceArgs {
    /// Topic; created on first use unless the server forbids it.
    topic: TopicName,
    /// File with a record a line; standard input if it is left out or `-`.
    file: Option<PathBuf>,
    /// Partition.
    #[arg(long, value_name = "N", default_value_t = 0)]
    partition: u32,
    /// What stands before the first S of a line is the record's key; a line without S is an error.
    #[arg(long, value_name = "S", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key_separator: Option<String>,
    /// When a record counts as stored [default: what the topic says].
    #[arg(long, value_enum)]
    ack: Option<AckArg>,
    /// Show no progress and no summary.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    server: ServerArg,
}

/// `--ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AckArg {
    /// On disk.
    Fsync,
    /// In the page cache of the server.
    Os,
    /// Sent; nothing is reported back.
    None,
}

pub(crate) fn ack_level(ack: Option<AckArg>) -> AckLevel {
    match ack {
        None => AckLevel::TopicDefault,
        Some(AckArg::Fsync) => AckLevel::Fsync,
        Some(AckArg::Os) => AckLevel::Os,
        Some(AckArg::None) => AckLevel::None,
    }
}

pub(crate) async fn run(args: ProduceArgs) -> anyhow::Result<()> {
    let source = match args.file {
        Some(path) if path.as_os_str() != "-" => Source::File(path),
        _ => Source::Stdin,
    };
    let client = args.server.connect().await?;
    let config = ProducerConfig {
        ack: ack_level(args.ack),
        ..ProducerConfig::default()
    };
    let producer = client.producer(args.topic.clone(), PartitionId(args.partition), config);
    let mut progress = Progress::new("produce", source.total_bytes(), args.quiet);
    let produced = produce(
        producer,
        source,
        args.key_separator.as_deref(),
        &mut progress,
    )
    .await;
    progress.clear();
    let last = produced.with_context(|| {
        format!(
            "cannot produce to topic {}, partition {} at {}",
            args.topic, args.partition, args.server.server
        )
    })?;
    if !args.quiet {
        let summary = rate(progress.records(), progress.bytes(), progress.elapsed());
        match last {
            Some(offset) => eprintln!("produced {summary}, last offset {offset}"),
            None => eprintln!("produced {summary}"),
        }
    }
    Ok(())
}

/// Sends every line of `source` and waits until all are acknowledged; returns the offset of the last one.
pub(crate) async fn produce(
    producer: Producer,
    source: Source,
    key_separator: Option<&str>,
    progress: &mut Progress,
) -> anyhow::Result<Option<Offset>> {
    let name = source.name();
    let mut chunks = source.read()?;
    let mut signals = Signals::new()?;
    let mut last: Option<Delivery> = None;
    // The last record of each chunk: a refusal stops the reading before all of a long input is refused.
    let mut chunk_ends = FuturesUnordered::new();
    let mut line_count = 0_u64;
    // Input that cannot be used ends the reading; what came before it is still waited for.
    let mut read = async || -> anyhow::Result<()> {
        loop {
            let chunk = tokio::select! {
                chunk = chunks.recv() => chunk,
                Some(outcome) = chunk_ends.next(), if !chunk_ends.is_empty() => {
                    outcome?;
                    continue;
                }
                (signal, _) = signals.next() => {
                    eprintln!("{signal}: waiting for what was sent");
                    return Ok(());
                }
            };
            let Some(chunk) = chunk else { return Ok(()) };
            let chunk = chunk?;
            let timestamp_ns = wall_clock_ns();
            for line in chunk.lines() {
                line_count += 1;
                let Some((key, payload)) = split_key(&line, key_separator) else {
                    bail!(
                        "line {line_count} of {name} has no key separator {:?}; the {} lines before it are stored",
                        key_separator.unwrap_or_default(),
                        line_count - 1
                    );
                };
                last = Some(
                    producer
                        .send(RecordToSend {
                            timestamp_ns,
                            key,
                            payload,
                        })
                        .await?,
                );
            }
            chunk_ends.extend(last.clone());
            progress.add(chunk.line_count() as u64, chunk.read_bytes);
        }
    };
    let read = read().await;
    producer.close().await?;
    read?;
    match last {
        Some(delivery) => Ok(delivery.await?),
        None => Ok(None),
    }
}

/// `None` where a separator is asked for and missing. An empty key is an absent one: a record frame cannot tell them apart.
fn split_key(line: &Bytes, separator: Option<&str>) -> Option<(Option<Bytes>, Bytes)> {
    let Some(separator) = separator.map(str::as_bytes) else {
        return Some((None, line.clone()));
    };
    let at = line
        .windows(separator.len())
        .position(|window| window == separator)?;
    let key = line.slice(..at);
    Some((
        (!key.is_empty()).then_some(key),
        line.slice(at + separator.len()..),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &'static str, separator: Option<&str>) -> Option<(Option<String>, String)> {
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        split_key(&Bytes::from(line), separator)
            .map(|(key, payload)| (key.map(text), text(payload)))
    }

    #[test]
    fn a_key_ends_at_the_first_separator() {
        assert_eq!(
            split("a:b:c", Some(":")),
            Some((Some("a".into()), "b:c".into()))
        );
        assert_eq!(
            split("a::b", Some("::")),
            Some((Some("a".into()), "b".into()))
        );
        assert_eq!(split(":b", Some(":")), Some((None, "b".into())));
        assert_eq!(
            split("a:", Some(":")),
            Some((Some("a".into()), String::new()))
        );
        assert_eq!(split("ab", Some(":")), None);
        assert_eq!(split("", Some(":")), None);
        assert_eq!(split("a:b", None), Some((None, "a:b".into())));
    }
}
