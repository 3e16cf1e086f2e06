//! Why a cut cannot be read again.

use std::ops::Range;

use basalt_proto::{Offset, PartitionId, TopicName};

/// Why a statement `AS OF` a snapshot is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The text is no token, or was altered. Use one as `sys.queries` or the query's metadata gave it.
    #[error("the snapshot cannot be read: {reason}")]
    Token {
        /// What is wrong with it.
        reason: String,
    },
    /// Records of the snapshot were deleted by retention. Take a new one.
    #[error(
        "offsets {} to {} of partition {partition} of topic {topic} are gone, which the snapshot has: take a new one",
        .gone.start, .gone.end.0.saturating_sub(1)
    )]
    Expired {
        /// The topic.
        topic: TopicName,
        /// Its partition.
        partition: PartitionId,
        /// The offsets that the snapshot has and the topic has no more.
        gone: Range<Offset>,
    },
    /// The topic is compacted: records of the snapshot may have gone. Take a new one.
    #[error(
        "partition {partition} of topic {topic} is compacted, so that records that the snapshot has may be gone: such a topic can only be \
         read as it is now"
    )]
    Compacted {
        /// The topic.
        topic: TopicName,
        /// Its partition.
        partition: PartitionId,
    },
    /// Records of the snapshot were lost with a crash.
    #[error(
        "offsets {} to {} of partition {partition} of topic {topic} were lost, which the snapshot has: take a new one",
        .lost.start, .lost.end.0.saturating_sub(1)
    )]
    Lost {
        /// The topic.
        topic: TopicName,
        /// Its partition.
        partition: PartitionId,
        /// The offsets that the snapshot has and the topic has not.
        lost: Range<Offset>,
    },
    /// The topic was deleted and made again since. Take a new snapshot.
    #[error(
        "topic {topic} of the snapshot was deleted and another of that name made since: take a new one"
    )]
    Remade {
        /// The topic.
        topic: TopicName,
    },
    /// A cut is of committed records: one that has others cannot be read again once they are void. Ask for committed ones.
    #[error("AS OF reads committed records only: set the isolation to read_committed")]
    Uncommitted,
    /// The query that the snapshot is of did not read this topic.
    #[error("the snapshot has no topic {topic}: take one with a query that reads it too")]
    NotIncluded {
        /// The topic.
        topic: TopicName,
    },
}
