//! Kafka's error codes, and which of them a refusal is.

use basalt_log::SequenceError;
use basalt_proto::batch::BatchError;
use basalt_proto::{ErrorKind, FrameError};

use crate::error::Refusal;

/// Codes as they go over the wire.
pub(super) mod code {
    pub(in crate::kafka) const UNKNOWN: i16 = -1;
    pub(in crate::kafka) const NONE: i16 = 0;
    pub(in crate::kafka) const OFFSET_OUT_OF_RANGE: i16 = 1;
    pub(in crate::kafka) const CORRUPT_MESSAGE: i16 = 2;
    pub(in crate::kafka) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    pub(in crate::kafka) const REQUEST_TIMED_OUT: i16 = 7;
    pub(in crate::kafka) const MESSAGE_TOO_LARGE: i16 = 10;
    pub(in crate::kafka) const OFFSET_METADATA_TOO_LARGE: i16 = 12;
    pub(in crate::kafka) const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
    pub(in crate::kafka) const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    pub(in crate::kafka) const NOT_COORDINATOR: i16 = 16;
    pub(in crate::kafka) const INVALID_TOPIC: i16 = 17;
    pub(in crate::kafka) const INVALID_REQUIRED_ACKS: i16 = 21;
    pub(in crate::kafka) const ILLEGAL_GENERATION: i16 = 22;
    pub(in crate::kafka) const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
    pub(in crate::kafka) const INVALID_GROUP_ID: i16 = 24;
    pub(in crate::kafka) const UNKNOWN_MEMBER_ID: i16 = 25;
    pub(in crate::kafka) const INVALID_SESSION_TIMEOUT: i16 = 26;
    pub(in crate::kafka) const REBALANCE_IN_PROGRESS: i16 = 27;
    pub(in crate::kafka) const INVALID_TIMESTAMP: i16 = 32;
    pub(in crate::kafka) const UNSUPPORTED_SASL_MECHANISM: i16 = 33;
    pub(in crate::kafka) const ILLEGAL_SASL_STATE: i16 = 34;
    pub(in crate::kafka) const UNSUPPORTED_VERSION: i16 = 35;
    pub(in crate::kafka) const TOPIC_ALREADY_EXISTS: i16 = 36;
    pub(in crate::kafka) const INVALID_PARTITIONS: i16 = 37;
    pub(in crate::kafka) const INVALID_REPLICATION_FACTOR: i16 = 38;
    pub(in crate::kafka) const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
    pub(in crate::kafka) const INVALID_CONFIG: i16 = 40;
    pub(in crate::kafka) const INVALID_REQUEST: i16 = 42;
    pub(in crate::kafka) const POLICY_VIOLATION: i16 = 44;
    pub(in crate::kafka) const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
    pub(in crate::kafka) const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
    pub(in crate::kafka) const INVALID_PRODUCER_EPOCH: i16 = 47;
    pub(in crate::kafka) const INVALID_TXN_STATE: i16 = 48;
    pub(in crate::kafka) const INVALID_PRODUCER_ID_MAPPING: i16 = 49;
    pub(in crate::kafka) const INVALID_TRANSACTION_TIMEOUT: i16 = 50;
    pub(in crate::kafka) const CONCURRENT_TRANSACTIONS: i16 = 51;
    pub(in crate::kafka) const TRANSACTIONAL_ID_AUTHORIZATION_FAILED: i16 = 53;
    pub(in crate::kafka) const OPERATION_NOT_ATTEMPTED: i16 = 55;
    pub(in crate::kafka) const STORAGE_ERROR: i16 = 56;
    pub(in crate::kafka) const SASL_AUTHENTICATION_FAILED: i16 = 58;
    pub(in crate::kafka) const NON_EMPTY_GROUP: i16 = 68;
    pub(in crate::kafka) const GROUP_ID_NOT_FOUND: i16 = 69;
    pub(in crate::kafka) const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
    pub(in crate::kafka) const INVALID_FETCH_SESSION_EPOCH: i16 = 71;
    pub(in crate::kafka) const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;
    pub(in crate::kafka) const MEMBER_ID_REQUIRED: i16 = 79;
    pub(in crate::kafka) const GROUP_MAX_SIZE_REACHED: i16 = 81;
    pub(in crate::kafka) const FENCED_INSTANCE_ID: i16 = 82;
    pub(in crate::kafka) const GROUP_SUBSCRIBED_TO_TOPIC: i16 = 86;
    pub(in crate::kafka) const INVALID_RECORD: i16 = 87;
    pub(in crate::kafka) const UNSTABLE_OFFSET_COMMIT: i16 = 88;
    pub(in crate::kafka) const PRODUCER_FENCED: i16 = 90;
    pub(in crate::kafka) const UNKNOWN_TOPIC_ID: i16 = 100;
    pub(in crate::kafka) const TRANSACTIONAL_ID_NOT_FOUND: i16 = 105;
    pub(in crate::kafka) const FENCED_MEMBER_EPOCH: i16 = 110;
    pub(in crate::kafka) const UNRELEASED_INSTANCE_ID: i16 = 111;
    pub(in crate::kafka) const UNSUPPORTED_ASSIGNOR: i16 = 112;
    pub(in crate::kafka) const STALE_MEMBER_EPOCH: i16 = 113;
    pub(in crate::kafka) const INVALID_REGULAR_EXPRESSION: i16 = 128;
}

/// Longer texts are cut.
const MAX_MESSAGE_BYTES: usize = 1024;

/// A refusal in Kafka's words: a code, and a text where the version has room for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: i16,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: i16, message: impl Into<String>) -> Self {
        let mut message = message.into();
        // A peer's names stand in it, and an answer's texts have a limit.
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        Self { code, message }
    }
}

/// The code of a kind. Full disks and failed ones are both 56: clients ask for metadata and try again, for as long as they
/// were told to; 7 where waiting alone helps.
pub(super) const fn of_kind(kind: ErrorKind) -> i16 {
    match kind {
        ErrorKind::InvalidFrame => code::INVALID_RECORD,
        ErrorKind::TooLarge => code::MESSAGE_TOO_LARGE,
        ErrorKind::InvalidName => code::INVALID_TOPIC,
        ErrorKind::UnknownTopic | ErrorKind::UnknownPartition | ErrorKind::NotFound => {
            code::UNKNOWN_TOPIC_OR_PARTITION
        }
        ErrorKind::StorageFull | ErrorKind::StorageFailed => code::STORAGE_ERROR,
        ErrorKind::Busy | ErrorKind::ShuttingDown | ErrorKind::TimedOut => code::REQUEST_TIMED_OUT,
        ErrorKind::OffsetOutOfRange => code::OFFSET_OUT_OF_RANGE,
        ErrorKind::Corrupt => code::CORRUPT_MESSAGE,
        ErrorKind::InvalidRequest => code::INVALID_REQUEST,
        ErrorKind::TopicExists => code::TOPIC_ALREADY_EXISTS,
        ErrorKind::InvalidTimestamp => code::INVALID_TIMESTAMP,
        ErrorKind::UnsupportedVersion => code::UNSUPPORTED_VERSION,
        ErrorKind::InvalidConfig => code::INVALID_CONFIG,
        ErrorKind::Unauthenticated => code::SASL_AUTHENTICATION_FAILED,
        _ => code::UNKNOWN,
    }
}

/// What a fetch may answer: Java's consumer takes few codes and ends with any other. So one that waiting helps is 56.
pub(super) const fn of_fetch(kind: ErrorKind) -> i16 {
    match of_kind(kind) {
        code::REQUEST_TIMED_OUT => code::STORAGE_ERROR,
        code @ (code::OFFSET_OUT_OF_RANGE
        | code::CORRUPT_MESSAGE
        | code::UNKNOWN_TOPIC_OR_PARTITION
        | code::STORAGE_ERROR) => code,
        _ => code::UNKNOWN,
    }
}

/// What a commit may answer: Java's consumer tries again what says that the coordinator is away, and ends with a disk's trouble.
pub(super) const fn of_commit(kind: ErrorKind) -> i16 {
    match of_kind(kind) {
        code::STORAGE_ERROR | code::REQUEST_TIMED_OUT => code::COORDINATOR_NOT_AVAILABLE,
        code => code,
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(of_kind(refusal.kind), refusal.message)
    }
}

/// What is wrong with a batch, in finer words than its kind: bytes that are not what was sent (2), or sent wrongly (87).
impl From<&BatchError> for Failure {
    fn from(error: &BatchError) -> Self {
        let code = match error {
            BatchError::TooShort { .. }
            | BatchError::Length { .. }
            | BatchError::Checksum { .. }
            | BatchError::UnknownCompression { .. }
            | BatchError::Codec { .. } => code::CORRUPT_MESSAGE,
            error => of_kind(error.kind()),
        };
        Self::new(code, error.to_string())
    }
}

impl From<SequenceError> for Failure {
    fn from(error: SequenceError) -> Self {
        let code = match error {
            SequenceError::Fenced { .. } => code::INVALID_PRODUCER_EPOCH,
            SequenceError::OutOfOrder { .. } => code::OUT_OF_ORDER_SEQUENCE_NUMBER,
            // Clients take it for a success whose offset is not known.
            SequenceError::LongStored { .. } => code::DUPLICATE_SEQUENCE_NUMBER,
        };
        Self::new(code, error.to_string())
    }
}

impl From<&FrameError> for Failure {
    fn from(error: &FrameError) -> Self {
        match error {
            FrameError::Batch { source } => source.into(),
            error => Self::new(of_kind(error.kind()), error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_is_a_success() {
        for kind in ErrorKind::ALL {
            assert_ne!(of_kind(*kind), code::NONE, "{kind}");
        }
    }

    #[test]
    fn fetch_answers_nothing_that_ends_a_java_consumer() {
        // -1, 1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100 and 103 are what it takes.
        for kind in ErrorKind::ALL {
            assert!([-1, 1, 2, 3, 56].contains(&of_fetch(*kind)), "{kind}");
        }
    }
}
