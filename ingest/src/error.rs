//! Refusals that a peer is told of, and ends of connections that only the log is told of.

use std::io;
use std::time::Duration;

use basalt_proto::{
    ErrorKind, FrameError, NameError, Offset, OpeningError, PartitionId, TopicName,
};

/// Something the peer asked for and does not get, in the words it is told. Made once from each lower error (see the
/// `From` impls), so that the same fault has the same kind in an ack, in a response and in a counter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Refusal {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The partition's log start and high watermark, where they help the peer to choose again; else 0.
    pub(crate) log_start_offset: Offset,
    pub(crate) high_watermark: Offset,
    /// Advice of its own on when to try again, where something was measured; 0 for the kind's.
    retry_after_ms: u32,
}

/// The least and the most that a producer is told to wait after it was refused for waiting.
const MIN_RETRY_MS: u32 = 10;
const MAX_RETRY_MS: u32 = 1000;

impl Refusal {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            log_start_offset: Offset::ZERO,
            high_watermark: Offset::ZERO,
            retry_after_ms: 0,
        }
    }

    pub(crate) fn unknown_topic(topic: &TopicName) -> Self {
        Self::new(
            ErrorKind::UnknownTopic,
            format!("there is no topic {topic}"),
        )
    }

    pub(crate) fn unknown_partition(topic: &TopicName, partition: PartitionId, count: u32) -> Self {
        let message = format!("topic {topic} has no partition {partition}, it has {count}");
        Self::new(ErrorKind::UnknownPartition, message)
    }

    /// A request that would wait longer than its producer wants to, as others `waited`: it takes as long again at least.
    pub(crate) fn queue_wait(limit: Duration, waited: Duration) -> Self {
        let message =
            format!("{waited:?} of waiting for the disk, the producer's limit is {limit:?}");
        let retry_after_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
        Self {
            retry_after_ms: retry_after_ms.clamp(MIN_RETRY_MS, MAX_RETRY_MS),
            ..Self::new(ErrorKind::Busy, message)
        }
    }

    pub(crate) fn out_of_range(
        asked: Offset,
        log_start_offset: Offset,
        high_watermark: Offset,
    ) -> Self {
        let message = format!("offset {asked} is outside [{log_start_offset}, {high_watermark}]");
        Self {
            log_start_offset,
            high_watermark,
            ..Self::new(ErrorKind::OffsetOutOfRange, message)
        }
    }

    /// What whoever asked should do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was refused, and why.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// When the peer should try again, in milliseconds; 0 where waiting alone does not help.
    pub(crate) const fn retry_after_ms(&self) -> u32 {
        match self.kind {
            _ if self.retry_after_ms > 0 => self.retry_after_ms,
            // Space comes back when somebody deletes something: no sooner than a person or a retention pass acts.
            ErrorKind::StorageFull | ErrorKind::ShuttingDown => 1000,
            ErrorKind::TimedOut => 100,
            ErrorKind::Busy => 50,
            _ => 0,
        }
    }
}

/// An error of the layer below with everything its sources say.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many messages already end with their source's.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

macro_rules! refusal_from {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Refusal {
            fn from(error: $error) -> Self {
                Self::new(error.kind(), chain(&error))
            }
        })*
    };
}

refusal_from!(
    FrameError,
    OpeningError,
    basalt_log::AppendError,
    basalt_log::ReadError,
    basalt_log::TopicError,
    basalt_log::CommitError,
    basalt_columnar::CoolError,
    basalt_columnar::DeleteError,
);

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        Self::new(ErrorKind::InvalidName, chain(&error))
    }
}

impl From<basalt_columnar::ReadError> for Refusal {
    fn from(error: basalt_columnar::ReadError) -> Self {
        let mut refusal = Self::new(error.kind(), chain(&error));
        if let basalt_columnar::ReadError::OutOfRange {
            log_start_offset,
            high_watermark,
            ..
        } = error
        {
            refusal.log_start_offset = log_start_offset;
            refusal.high_watermark = high_watermark;
        }
        refusal
    }
}

/// Why a connection ended before its peer closed it in good order. Each is one log line, and nothing else is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the opening was not finished within {limit:?} ({received_bytes} bytes came)")]
    HandshakeTimeout {
        limit: Duration,
        received_bytes: usize,
    },
    #[error("the client did not prove who it is within {limit:?}")]
    Unproved { limit: Duration },
    #[error("closed before its opening was finished, to make room for others")]
    Evicted,
    #[error("nobody here speaks a protocol that begins with {first_byte:#04x}{hint}")]
    UnknownProtocol { first_byte: u8, hint: &'static str },
    #[error(
        "a frame or request was begun and not finished: no further MiB within {limit:?} ({received_bytes} of {needed_bytes} bytes came)"
    )]
    FrameTimeout {
        limit: Duration,
        received_bytes: usize,
        needed_bytes: usize,
    },
    #[error("the peer took no data for {limit:?}")]
    SendTimeout { limit: Duration },
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    #[error(
        "the peer closed in the middle of a frame or request ({received_bytes} of {needed_bytes} bytes came)"
    )]
    Truncated {
        received_bytes: usize,
        needed_bytes: usize,
    },
    #[error("the file ended {missing_bytes} bytes before its frames did")]
    FileTooShort { missing_bytes: u64 },
    #[error("the socket failed")]
    Io(#[from] io::Error),
}

impl ConnectionError {
    /// Whether an operator should hear of it by default: not of peers that merely went away.
    pub(crate) fn is_ordinary(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Truncated { .. })
    }

    /// The error and all its sources, for the log.
    pub(crate) fn describe(&self) -> String {
        chain(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_advice_is_given_where_waiting_helps_and_only_there() {
        for kind in ErrorKind::ALL {
            let advice = Refusal::new(*kind, "").retry_after_ms();
            assert_eq!(advice > 0, kind.is_retryable(), "{kind}");
        }
    }

    #[test]
    fn sources_are_told_once() {
        let inner = io::Error::other("no such thing");
        assert_eq!(
            ConnectionError::Io(inner).describe(),
            "the socket failed: no such thing"
        );
    }
}
