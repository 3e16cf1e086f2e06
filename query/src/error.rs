//! Why a query was not answered, and what its caller can do.

use std::time::Duration;

use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use basalt_columnar::shred::ShredError;
use basalt_proto::ErrorKind;
use datafusion::common::DataFusionError;
use tonic::{Code, Status};

use crate::TopicChangeError;
use crate::as_of::SnapshotError;

/// Why a query was not answered.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The statement is not SQL, names what does not exist, or asks for what the data cannot give (a cast of bytes that
    /// are not text, a division by zero). Correct the statement.
    #[error("the statement cannot be answered: {}", reason(source))]
    Invalid {
        /// What is wrong with it.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The statement is larger than the server reads.
    #[error("the statement has {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLong {
        /// Length of the statement.
        found_bytes: usize,
        /// Longest statement that is read.
        limit_bytes: usize,
    },
    /// A topic was not made, changed or deleted.
    #[error("the topic was not changed: {source}")]
    Change {
        /// Why.
        #[from]
        source: TopicChangeError,
    },
    /// The statement would change what SQL does not: records are produced over the native protocol.
    #[error(
        "only statements that read, CREATE TABLE, ALTER TABLE and DROP TABLE are allowed: {}",
        reason(source)
    )]
    ReadOnly {
        /// Names the kind of statement.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The statement has another number of parameters than values were bound to it. Prepare it, and bind as many.
    #[error("the statement takes {expected} values for its parameters, {found} were bound")]
    Parameters {
        /// Values that it takes.
        expected: usize,
        /// Values that were bound.
        found: usize,
    },
    /// A column of the result has a type that has no place in what clients read. Cast it in the statement.
    #[error(
        "column {column:?} has type {data_type}, which clients cannot read: cast it to another type"
    )]
    ColumnType {
        /// The column.
        column: String,
        /// Its type.
        data_type: Box<DataType>,
    },
    /// Memory or spill space for queries ran out. Ask for less, or again later.
    #[error("the query needs more memory than is free: {}", reason(source))]
    Resources {
        /// Who wanted how much.
        #[source]
        source: Box<DataFusionError>,
    },
    /// Too many queries run and wait already. Send it again, a little later.
    #[error(
        "{running} queries run and {waiting} wait, none ended within {waited:?}: send the query again later"
    )]
    Busy {
        /// Queries that may run at a time, and do.
        running: usize,
        /// Queries that wait for one of them to end.
        waiting: usize,
        /// How long this one waited; not at all where too many did already.
        waited: Duration,
    },
    /// Somebody cancelled the query.
    #[error("the query was cancelled")]
    Cancelled,
    /// The snapshot that the statement is to read again is not one, or not all there any more.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The query ran longer than it may.
    #[error("the query did not finish within {timeout:?}")]
    Deadline {
        /// The limit.
        timeout: Duration,
    },
    /// A cold file or a segment could not be read. The operator must look at the store.
    #[error("stored records could not be read: {}", reason(source))]
    Storage {
        /// What failed.
        #[source]
        source: Box<DataFusionError>,
    },
    /// A fault of the server.
    #[error("the query failed: {}", reason(source))]
    Internal {
        /// What failed.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The query met a bug and was stopped; the server goes on.
    #[error("the query was stopped by a bug: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The server is stopping. Ask again later.
    #[error("the server is stopping")]
    Stopping,
    /// The engine could not be made.
    #[error("the query engine could not start")]
    Start {
        /// What failed.
        #[source]
        source: std::io::Error,
    },
}

impl QueryError {
    /// What the caller should do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. }
            | Self::ReadOnly { .. }
            | Self::Parameters { .. }
            | Self::ColumnType { .. } => ErrorKind::InvalidRequest,
            Self::Change { source } => source.kind,
            Self::TooLong { .. } => ErrorKind::TooLarge,
            Self::Resources { .. } | Self::Busy { .. } => ErrorKind::Busy,
            Self::Cancelled => ErrorKind::TimedOut,
            Self::Snapshot(error) => match error {
                SnapshotError::Expired { .. }
                | SnapshotError::Lost { .. }
                | SnapshotError::Compacted { .. } => ErrorKind::OffsetOutOfRange,
                SnapshotError::Remade { .. } => ErrorKind::UnknownTopic,
                SnapshotError::Token { .. }
                | SnapshotError::NotIncluded { .. }
                | SnapshotError::Uncommitted => ErrorKind::InvalidRequest,
            },
            Self::Deadline { .. } => ErrorKind::TimedOut,
            Self::Storage { .. } => ErrorKind::StorageFailed,
            Self::Internal { .. } | Self::Panicked { .. } | Self::Start { .. } => {
                ErrorKind::Internal
            }
            Self::Stopping => ErrorKind::ShuttingDown,
        }
    }

    /// The same as a gRPC status; its message carries the cause.
    #[must_use]
    pub fn status(&self) -> Status {
        let code = match self {
            Self::Invalid { .. }
            | Self::TooLong { .. }
            | Self::ReadOnly { .. }
            | Self::Parameters { .. }
            | Self::ColumnType { .. } => Code::InvalidArgument,
            Self::Change { source } => change_code(source.kind),
            Self::Resources { .. } => Code::ResourceExhausted,
            Self::Cancelled => Code::Cancelled,
            Self::Snapshot(error) => match error {
                SnapshotError::Expired { .. }
                | SnapshotError::Lost { .. }
                | SnapshotError::Compacted { .. } => Code::OutOfRange,
                SnapshotError::Remade { .. } => Code::NotFound,
                SnapshotError::Token { .. }
                | SnapshotError::NotIncluded { .. }
                | SnapshotError::Uncommitted => Code::InvalidArgument,
            },
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::Storage { .. }
            | Self::Internal { .. }
            | Self::Panicked { .. }
            | Self::Start { .. } => Code::Internal,
            Self::Busy { .. } | Self::Stopping => Code::Unavailable,
        };
        Status::new(code, self.to_string())
    }
}

/// What gRPC calls it that a topic was not changed.
fn change_code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::TopicExists => Code::AlreadyExists,
        ErrorKind::UnknownTopic => Code::NotFound,
        ErrorKind::StorageFull | ErrorKind::Busy => Code::ResourceExhausted,
        ErrorKind::ShuttingDown => Code::Unavailable,
        ErrorKind::InvalidConfig | ErrorKind::InvalidName | ErrorKind::InvalidRequest => {
            Code::InvalidArgument
        }
        _ => Code::Internal,
    }
}

impl From<DataFusionError> for QueryError {
    fn from(error: DataFusionError) -> Self {
        if let DataFusionError::External(source) = error.find_root()
            && let Some(snapshot) = source.downcast_ref::<SnapshotError>()
        {
            return Self::Snapshot(snapshot.clone());
        }
        let kind = kind_of(&error);
        let source = Box::new(error);
        match kind {
            Kind::Invalid => Self::Invalid { source },
            Kind::Resources => Self::Resources { source },
            Kind::Storage => Self::Storage { source },
            Kind::Internal => Self::Internal { source },
        }
    }
}

/// How DataFusion says that spill files have reached their limit, and which setting it names.
const SPILL_LIMIT: &str = "used disk space during the spilling process";
const SPILL_SETTING: &str = "datafusion.runtime.max_temp_directory_size";

enum Kind {
    Invalid,
    Resources,
    Storage,
    Internal,
}

fn kind_of(error: &DataFusionError) -> Kind {
    match error.find_root() {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::NotImplemented(_)
        | DataFusionError::Configuration(_)
        // Functions refuse their arguments with this one; what fails in the engine itself has its own variants.
        | DataFusionError::Execution(_) => Kind::Invalid,
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::IoError(text, _) if text.contains(SPILL_LIMIT) => Kind::Resources,
            ArrowError::IoError(..) | ArrowError::IpcError(_) | ArrowError::ParquetError(_) => Kind::Storage,
            ArrowError::MemoryError(_) | ArrowError::OffsetOverflowError(_) => Kind::Resources,
            ArrowError::ExternalError(_) => Kind::Internal,
            _ => Kind::Invalid,
        },
        DataFusionError::ResourcesExhausted(_) => Kind::Resources,
        DataFusionError::ObjectStore(_) | DataFusionError::ParquetError(_) | DataFusionError::IoError(_) => Kind::Storage,
        DataFusionError::External(source) if source.is::<crate::hot_scan::HotScanError>() || source.is::<ShredError>() => Kind::Storage,
        DataFusionError::External(_) | DataFusionError::Internal(_) if is_regex(error) => Kind::Invalid,
        _ => Kind::Internal,
    }
}

/// A pattern that does not compile: some functions hand on the compiler's error as it is, others take it for their own fault.
/// Its type is not known here.
fn is_regex(error: &DataFusionError) -> bool {
    let text = error.to_string();
    ["regex parse error", "Regular expression did not compile"]
        .iter()
        .any(|known| text.contains(known))
}

/// The message without the backtrace that DataFusion can append.
fn reason(error: &DataFusionError) -> String {
    let text = error
        .strip_backtrace()
        .replace(SPILL_SETTING, "query.spill_bytes");
    // The engine asks its own users for bug reports; ours made a mistake in a statement, most likely.
    match text.split_once("This issue was likely caused by a bug in DataFusion") {
        Some((cause, _)) => cause.trim_end_matches(['.', '\n', ' ']).to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_code() {
        let code = |error: DataFusionError| QueryError::from(error).status().code();
        assert_eq!(
            code(DataFusionError::Plan("no".into())),
            Code::InvalidArgument
        );
        assert_eq!(
            code(DataFusionError::ResourcesExhausted("full".into())),
            Code::ResourceExhausted
        );
        assert_eq!(
            code(DataFusionError::from(ArrowError::DivideByZero)),
            Code::InvalidArgument
        );
        assert_eq!(
            code(DataFusionError::Internal("bug".into()).context("while planning")),
            Code::Internal
        );
        assert_eq!(
            code(DataFusionError::from(std::io::Error::other("disk"))),
            Code::Internal
        );
        let deadline = QueryError::Deadline {
            timeout: Duration::from_secs(1),
        };
        assert_eq!(deadline.status().code(), Code::DeadlineExceeded);
    }
}
