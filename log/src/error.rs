//! What can go wrong, one enum an operation.

use std::io;
use std::path::{Path, PathBuf};

use basalt_proto::{ErrorKind, Offset, PartitionId, TopicName};
use rustix::io::Errno;
use thiserror::Error;

/// A file operation that failed, and on which file.
#[derive(Debug, Error)]
#[error("cannot {action} {path}")]
pub struct DiskError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// On which file or folder.
    pub path: PathBuf,
    /// The system's answer.
    #[source]
    pub source: io::Error,
}

impl DiskError {
    /// Whether the disk (or a quota) was full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }

    /// Whether the system was short of something that comes back by itself: descriptors or memory.
    pub(crate) fn is_passing(&self) -> bool {
        let errno = self.source.raw_os_error().map(Errno::from_raw_os_error);
        matches!(
            errno,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN)
        )
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Adds to a system error what was tried on which file.
pub(crate) trait OnDisk<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> OnDisk<T> for io::Result<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| DiskError {
            action,
            path: path.to_owned(),
            source,
        })
    }
}

/// The data folder could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "the data folder {path} is in use by another process; stop that one or choose another folder"
    )]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// A journal is damaged before its end, where no crash can have torn it.
    #[error("{path} is damaged at byte {position}: {what}; restore it from a copy")]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Where.
        position: u64,
        /// How it shows.
        what: String,
    },
    /// Partitions are there but the catalogue that names them is not.
    #[error("{path} is missing although there are topics beside it; restore it from a copy")]
    CatalogueMissing {
        /// Where the catalogue should be.
        path: PathBuf,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A topic could not be created, changed or deleted.
#[derive(Debug, Error)]
pub enum TopicError {
    /// The name is taken.
    #[error("topic `{topic}` exists already")]
    Exists {
        /// Its name.
        topic: TopicName,
    },
    /// There is no such topic, and it may not be created on first use.
    #[error("there is no topic `{topic}`; create it with `basalt topic create {topic}`")]
    Unknown {
        /// The name.
        topic: TopicName,
    },
    /// The number of partitions is out of bounds.
    #[error("the topic takes {min} to {max} partitions, not {partitions}")]
    BadPartitionCount {
        /// As asked.
        partitions: u32,
        /// The fewest: one, or one more than it has.
        min: u32,
        /// The most there may be.
        max: u32,
    },
    /// A setting that the log does not read itself is refused by those who do.
    #[error("{reason}")]
    BadSetting {
        /// Which one, and what is wrong with it.
        reason: String,
    },
    /// The log is closed or an earlier write of the catalogue failed.
    #[error("topics cannot be changed: {reason}; restart the server")]
    Closed {
        /// Which of the two.
        reason: String,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl TopicError {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } => ErrorKind::TopicExists,
            Self::Unknown { .. } => ErrorKind::UnknownTopic,
            Self::BadPartitionCount { .. } | Self::BadSetting { .. } => ErrorKind::InvalidConfig,
            Self::Closed { .. } => ErrorKind::ShuttingDown,
            Self::Disk(error) if error.is_full() => ErrorKind::StorageFull,
            Self::Disk(_) => ErrorKind::StorageFailed,
        }
    }
}

/// A numbered batch is neither the next one of its producer nor among those it sent last.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum SequenceError {
    /// Another producer has taken over the id.
    #[error("the producer's epoch is {epoch}, and there is one of epoch {current} by now")]
    Fenced {
        /// The batch's.
        epoch: i16,
        /// The newest.
        current: i16,
    },
    /// Batches between are missing.
    #[error("the batch begins with sequence {found}, expected {expected}")]
    OutOfOrder {
        /// What comes next.
        expected: u32,
        /// The batch's first.
        found: u32,
    },
    /// It was stored so long ago that it is not known where.
    #[error("the batch that begins with sequence {first} was stored long ago")]
    LongStored {
        /// The batch's first.
        first: u32,
    },
}

/// Frames could not be appended, or not made durable.
#[derive(Debug, Error, Clone)]
pub enum AppendError {
    /// The disk is full. Nothing was appended; the partition takes appends again once there is room.
    #[error("the disk under {path} is full: {source}; free space or shorten retention")]
    StorageFull {
        /// The file that could not grow.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::sync::Arc<io::Error>,
    },
    /// As much is hot as may be. Nothing was appended; appends are taken again once segments have been cooled.
    #[error(
        "{hot_bytes} bytes wait to be cooled and the limit is {limit_bytes}: is the store of cold files away or slow (the \
         server's log says), or `cold.hot_limit_bytes` too low?"
    )]
    BudgetFull {
        /// Bytes of frames in hot segments.
        hot_bytes: u64,
        /// How many there may be.
        limit_bytes: u64,
    },
    /// The system refused for now: no free descriptor, no memory. Nothing was appended; a later append may succeed.
    #[error(
        "{path} could not be opened for now: {source}; raise the limit on open files or try again"
    )]
    Unavailable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::sync::Arc<io::Error>,
    },
    /// A write or fsync failed earlier: what is on the disk is not known until the log is opened anew.
    #[error("{topic}/{partition} takes no appends since {reason}; restart the server")]
    Poisoned {
        /// Whose partition.
        topic: TopicName,
        /// Which.
        partition: PartitionId,
        /// The failure.
        reason: String,
    },
    /// The topic was deleted or the log closed.
    #[error("{topic}/{partition} is closed")]
    Closed {
        /// Whose partition.
        topic: TopicName,
        /// Which.
        partition: PartitionId,
    },
    /// The offsets of the partition would pass 2^63 - 1.
    #[error("the partition has no offsets left")]
    OffsetsExhausted,
    /// A producer's numbers do not fit.
    #[error("the producer's numbers do not fit")]
    Sequence(#[from] SequenceError),
    /// The append is larger than a segment can be.
    #[error("an append of {bytes} bytes is larger than the largest segment of {max} bytes")]
    TooLarge {
        /// As given.
        bytes: u64,
        /// The most there may be.
        max: u64,
    },
}

impl AppendError {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::StorageFull { .. } | Self::BudgetFull { .. } => ErrorKind::StorageFull,
            Self::Unavailable { .. } => ErrorKind::Busy,
            Self::Poisoned { .. } | Self::OffsetsExhausted => ErrorKind::StorageFailed,
            Self::Closed { .. } => ErrorKind::ShuttingDown,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Sequence(_) => ErrorKind::InvalidRequest,
        }
    }
}

/// Frames could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The offset is before the first or after the last readable one.
    #[error(
        "offset {offset} is outside the log, which holds {log_start_offset} to {high_watermark} (exclusive)"
    )]
    OutOfRange {
        /// As asked.
        offset: Offset,
        /// First readable.
        log_start_offset: Offset,
        /// First not yet readable.
        high_watermark: Offset,
    },
    /// The bytes there do not match their checksum or are no frames.
    #[error(
        "{path} is damaged at byte {position}; records can be read again from offset {next_offset}"
    )]
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// Where the damaged block begins.
        position: u64,
        /// The first offset after the damage.
        next_offset: Offset,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl ReadError {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfRange { .. } => ErrorKind::OffsetOutOfRange,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Disk(_) => ErrorKind::StorageFailed,
        }
    }
}

/// Hot segments could not be removed.
#[derive(Debug, Error)]
pub enum ReleaseError {
    /// Removing the last one needs a new one that keeps the next offset, and that failed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A group's offset could not be stored.
#[derive(Debug, Error, Clone)]
pub enum CommitError {
    /// The disk is full; the former offset stands.
    #[error("the disk is full; the committed offset was not stored: {0}")]
    StorageFull(String),
    /// A write failed earlier.
    #[error("committed offsets cannot be stored: {reason}; restart the server")]
    Failed {
        /// The failure.
        reason: String,
    },
}

impl CommitError {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::StorageFull(_) => ErrorKind::StorageFull,
            Self::Failed { .. } => ErrorKind::StorageFailed,
        }
    }
}

/// Closing left something undone.
#[derive(Debug, Error)]
pub enum CloseError {
    /// Records acknowledged at a weak level, or the tail's tidying, could not be synced; the next start recovers.
    #[error("{failed} partitions could not be synced at the end, the first: {first}")]
    Partitions {
        /// How many.
        failed: usize,
        /// The first error.
        first: String,
    },
}
