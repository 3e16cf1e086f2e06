//! What can go wrong, one enum an operation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use basalt_log::{AppendError, CloseError, ReleaseError, TopicError};
use basalt_proto::{ErrorKind, Offset, PartitionId, TopicName};

use crate::config::ConfigError;
use crate::manifest::ManifestError;
use crate::owner::OwnerError;
use crate::replay::ReplayError;
use crate::rows::RowError;
use crate::steps::Stopped;
use crate::store::StoreError;

/// The tiered log could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cache folder cannot be used.
    #[error("the cache folder {} cannot be used", path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The threads of the cold tier could not be started.
    #[error("cannot start the threads of the cold tier")]
    Threads(#[source] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store is not for this data folder to write to.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A partition's newest manifest cannot be used.
    #[error("the cold part of {topic}/{partition} cannot be opened")]
    Manifest {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: PartitionId,
        /// Why.
        #[source]
        source: Box<ManifestError>,
    },
    /// The log ends before its cold part does: it is not the log that was cooled, or lost its end.
    #[error(
        "{topic}/{partition} is cold up to offset {cold_end_offset}, but its log ends at {log_end_offset}: \
         new records would take offsets that are used"
    )]
    LogBehindCold {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: PartitionId,
        /// Where the cold part ends.
        cold_end_offset: Offset,
        /// Where the log ends.
        log_end_offset: Offset,
    },
    /// Hot segments that are cold by now could not be released, for another reason than a full disk.
    #[error("hot segments of {topic}/{partition} that are cold cannot be released")]
    Release {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: PartitionId,
        /// Why.
        #[source]
        source: Box<CoolError>,
    },
}

/// Cold frames could not be rebuilt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HydrateError {
    /// The object cannot be read as Parquet, or not at all.
    #[error("row group {row_group} of {path} cannot be read")]
    Parquet {
        /// The object.
        path: String,
        /// The row group.
        row_group: u32,
        /// Why.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// The rows are not such as were written.
    #[error("row group {row_group} of {path} cannot be replayed")]
    Rows {
        /// The object.
        path: String,
        /// The row group.
        row_group: u32,
        /// Why.
        #[source]
        source: ReplayError,
    },
    /// The object or its frames are not what the manifest says.
    #[error(
        "row group {row_group} of {path} is damaged: its {what} is {found}, the manifest says {expected}"
    )]
    Damaged {
        /// The object.
        path: String,
        /// The row group.
        row_group: u32,
        /// What differs.
        what: &'static str,
        /// In the object.
        found: String,
        /// In the manifest.
        expected: String,
    },
    /// The cache folder failed.
    #[error("cannot write the hydrated frames to {}", path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The hydrated frames cannot be opened.
    #[error("the hydrated frames cannot be opened")]
    Open(#[source] basalt_log::ReadError),
    /// The tiered log was shut down.
    #[error("the log is shutting down")]
    ShutDown,
}

impl HydrateError {
    /// What the caller should do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Rows { .. } | Self::Damaged { .. } => ErrorKind::Corrupt,
            // It may be back in a moment: whoever reads waits for it.
            Self::Parquet { .. } if is_remote_store_away(self) => ErrorKind::Busy,
            Self::Parquet {
                source: parquet::errors::ParquetError::External(_),
                ..
            } => ErrorKind::StorageFailed,
            Self::Parquet { .. } => ErrorKind::Corrupt,
            Self::Cache { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                ErrorKind::StorageFull
            }
            Self::Cache { .. } => ErrorKind::StorageFailed,
            Self::Open(source) => source.kind(),
            Self::ShutDown => ErrorKind::ShuttingDown,
        }
    }
}

/// Whether a store behind a network did not answer, or asked for patience.
fn is_remote_store_away(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error)
        .filter_map(|error| error.downcast_ref::<object_store::Error>())
        .any(|error| matches!(error, object_store::Error::Generic { store, .. } if *store != "LocalFileSystem"))
}

/// Frames could not be read.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The offset is before the log's start or after the high watermark.
    #[error("offset {offset} is outside of {log_start_offset}..={high_watermark}")]
    OutOfRange {
        /// The offset asked for.
        offset: Offset,
        /// The first readable one.
        log_start_offset: Offset,
        /// The first that is not readable yet.
        high_watermark: Offset,
    },
    /// The hot part, or a hydrated chunk of the cold one, could not be read.
    #[error(transparent)]
    Hot(Arc<basalt_log::ReadError>),
    /// The cold part could not be read. Everyone who waited for the same row group gets the same error.
    #[error(transparent)]
    Cold(Arc<HydrateError>),
}

impl From<basalt_log::ReadError> for ReadError {
    fn from(source: basalt_log::ReadError) -> Self {
        match source {
            basalt_log::ReadError::OutOfRange {
                offset,
                log_start_offset,
                high_watermark,
            } => Self::OutOfRange {
                offset,
                log_start_offset,
                high_watermark,
            },
            source => Self::Hot(Arc::new(source)),
        }
    }
}

impl ReadError {
    /// What the caller should do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfRange { .. } => ErrorKind::OffsetOutOfRange,
            Self::Hot(source) => source.kind(),
            Self::Cold(source) => source.kind(),
        }
    }
}

/// A segment could not be cooled, cold files not be merged, or retention not be carried out. Nothing is lost: what was hot stays hot until a later try
/// succeeds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoolError {
    /// There is no such topic.
    #[error("there is no topic {topic}")]
    UnknownTopic {
        /// The topic.
        topic: TopicName,
    },
    /// The active segment could not be sealed.
    #[error("the active segment cannot be sealed")]
    Seal(#[source] AppendError),
    /// A block's bytes do not match their checksum, or are not whole frames in order. The segment and all later ones stay
    /// hot.
    #[error("{} is damaged at position {position}: {what}", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        position: u64,
        /// What is wrong.
        what: String,
    },
    /// A segment cannot be read now, though nothing says that it is damaged.
    #[error("a segment cannot be read")]
    Read(#[source] basalt_log::ReadError),
    /// A frame cannot be made into rows.
    #[error("the frame at offset {offset} of {} cannot be made into rows", path.display())]
    Rows {
        /// The segment.
        path: PathBuf,
        /// The frame's offset.
        offset: Offset,
        /// Why.
        #[source]
        source: RowError,
    },
    /// The rows cannot be written as Parquet.
    #[error("cannot write {path}")]
    Parquet {
        /// The object.
        path: String,
        /// Why.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was written reads back otherwise.
    #[error("{path} reads back wrong: its {what} is {found}, expected {expected}")]
    Verify {
        /// The object.
        path: String,
        /// What differs.
        what: &'static str,
        /// As read back.
        found: String,
        /// As written.
        expected: String,
    },
    /// What was written cannot be read back.
    #[error("{path} cannot be read back")]
    ReadBack {
        /// The object.
        path: String,
        /// Why.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// What was written cannot be replayed.
    #[error("the object that was just written cannot be replayed")]
    Replay(#[source] HydrateError),
    /// A cold file that was to be merged cannot be read. It stays as it is.
    #[error("a cold file cannot be merged")]
    Merge(#[source] HydrateError),
    /// The manifest could not be committed.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Another server owns the store, or nobody knows.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// An earlier failure left it unknown what the store holds; the partition must be opened again.
    #[error("the cold part of {prefix} is not written to since: {reason}")]
    Fenced {
        /// The partition's folder.
        prefix: String,
        /// The earlier failure.
        reason: String,
    },
    /// Hot segments could not be released. They are hidden behind the cold part, and only take room.
    #[error("hot segments cannot be released")]
    Release(#[source] ReleaseError),
    /// The topic was deleted, or the tiered log shut down.
    #[error("the partition is closed")]
    Closed,
    /// A test stopped it.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl CoolError {
    /// What the caller should do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownTopic { .. } => ErrorKind::UnknownTopic,
            Self::Seal(source) => source.kind(),
            Self::Damaged { .. } | Self::Rows { .. } => ErrorKind::Corrupt,
            Self::Merge(source) => source.kind(),
            Self::Read(source) => source.kind(),
            Self::Closed => ErrorKind::ShuttingDown,
            Self::Stopped(_) => ErrorKind::Internal,
            Self::Parquet { .. }
            | Self::Store(_)
            | Self::Verify { .. }
            | Self::ReadBack { .. }
            | Self::Replay(_)
            | Self::Manifest(_)
            | Self::Owner(_)
            | Self::Fenced { .. }
            | Self::Release(_) => ErrorKind::StorageFailed,
        }
    }
}

impl CoolError {
    /// The object whose bytes are not what was once written, if that is it.
    pub(crate) fn damaged_object(&self) -> Option<&str> {
        match self {
            Self::Verify { path, .. } => Some(path),
            Self::Merge(
                source @ (HydrateError::Parquet { path, .. }
                | HydrateError::Rows { path, .. }
                | HydrateError::Damaged { path, .. }),
            ) if source.kind() == ErrorKind::Corrupt => Some(path),
            _ => None,
        }
    }

    /// Whether the store did not do what it was asked, for a reason that may pass without anybody changing anything here.
    pub(crate) fn is_store_failing(&self) -> bool {
        use object_store::Error;
        causes(self)
            .filter_map(|error| error.downcast_ref::<Error>())
            .any(|error| {
                !matches!(
                    error,
                    Error::NotFound { .. }
                        | Error::AlreadyExists { .. }
                        | Error::Precondition { .. }
                        | Error::InvalidPath { .. }
                )
            })
    }

    /// Whether it is the disk that is full: what was not done then is done once there is room.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Release(ReleaseError::Append(source)) | Self::Seal(source) => {
                source.kind() == ErrorKind::StorageFull
            }
            Self::Release(ReleaseError::Disk(source)) => source.is_full(),
            other => is_caused_by_full_disk(other),
        }
    }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn is_caused_by_full_disk(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        })
}

/// A topic could not be deleted. Unless the log has no such topic any more, it is as if nobody had tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeleteError {
    /// The log refused: no such topic, or its disk failed.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The store failed. If the topic is gone from the log, its objects go at the next start.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another server owns the store, or nobody knows.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A test stopped it.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl DeleteError {
    /// What the caller should do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Topic(source) => source.kind(),
            Self::Store(_) | Self::Owner(_) => ErrorKind::StorageFailed,
            Self::Stopped(_) => ErrorKind::Internal,
        }
    }
}

/// Shutting down left something undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The log could not be closed.
    #[error(transparent)]
    Log(#[from] CloseError),
}

/// An error with its causes, in one line.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
