//! What can go wrong, by what the caller was doing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use basalt_auth::ServerUnproved;
use basalt_proto::session::{ErrorResponse, SessionError};
use basalt_proto::{BatchError, ErrorKind, Offset};

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address has no server, or does not exist.
    #[error("cannot connect to {address}")]
    Unreachable {
        /// As configured.
        address: String,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// Nobody answered in time.
    #[error("no answer from {address} within {timeout:?}")]
    TimedOut {
        /// As configured.
        address: String,
        /// As configured.
        timeout: Duration,
    },
    /// The server does not speak this client's version.
    #[error("the server at {address} does not speak version {version} of the session protocol")]
    VersionRefused {
        /// As configured.
        address: String,
        /// This client's.
        version: u8,
    },
    /// Whoever answered does not speak the session protocol.
    #[error(
        "whatever listens at {address} answered the greeting with {found:#04x}: is it a Basalt server?"
    )]
    NotBasalt {
        /// As configured.
        address: String,
        /// The first byte of the answer.
        found: u8,
    },
    /// The server does not take this client for the user, or asks nobody who they are.
    #[error("cannot log in at {address}: {}", response.message)]
    NotLoggedIn {
        /// As configured.
        address: String,
        /// What the server said.
        response: ErrorResponse,
    },
    /// The server did not prove that it knows the user, which it does before anything is sent to it.
    #[error("whatever listens at {address} is not to be trusted")]
    ServerUnproved {
        /// As configured.
        address: String,
        /// What it did not do.
        #[source]
        source: ServerUnproved,
    },
}

impl ConnectError {
    /// What the server says should be done, if it was the server that said no.
    #[must_use]
    pub const fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::NotLoggedIn { response, .. } => Some(response.kind),
            _ => None,
        }
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionLost {
    /// The server closed it.
    #[error("the server closed the connection")]
    Closed,
    /// The system reported a failure.
    #[error("the connection failed")]
    Io {
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server sent what makes no sense.
    #[error("the server sent a response that cannot be understood")]
    Garbled {
        /// What was wrong with it.
        #[source]
        source: SessionError,
    },
    /// The server answered what was not asked.
    #[error("the server answered the request {correlation_id}, which is not open")]
    UnknownRequest {
        /// The id in the response.
        correlation_id: u32,
    },
    /// The server did not answer in time, so the connection was given up.
    #[error("no answer within {timeout:?}")]
    TimedOut {
        /// As configured.
        timeout: Duration,
    },
    /// This side is done with it.
    #[error("the connection was closed by this client")]
    Abandoned,
}

/// Why a call, or a consumer, failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no connection, and there could not be another one. Nothing was done.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was lost before the answer. Whether the request was done is not known.
    #[error(
        "the connection was lost before the answer, so whether the request was done is not known: {source}"
    )]
    OutcomeUnknown {
        /// How it was lost.
        source: ConnectionLost,
    },
    /// The server answered no.
    #[error("{}: {}", response.kind, response.message)]
    Refused {
        /// All that it said.
        response: ErrorResponse,
    },
    /// The server answered what makes no sense.
    #[error("the server sent a response that cannot be understood")]
    Garbled {
        /// What was wrong with it.
        #[source]
        source: SessionError,
    },
    /// The server sent frames but no way past them.
    #[error("the server sent frames for offset {asked} and said to go on at {next}")]
    NoProgress {
        /// The offset that was asked for.
        asked: Offset,
        /// The offset to go on at.
        next: Offset,
    },
}

impl ClientError {
    /// What the server says should be done, if it was the server that said no.
    #[must_use]
    pub const fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused { response } => Some(response.kind),
            Self::Connect(error) => error.kind(),
            _ => None,
        }
    }
}

/// Why a record was not stored, or may not have been.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The record does not fit into the queue. It was not sent.
    #[error("the record takes {found_bytes} bytes, the queue holds {limit_bytes}")]
    TooLarge {
        /// Of its frame.
        found_bytes: u64,
        /// [`crate::ProducerConfig::queue_bytes`].
        limit_bytes: u32,
    },
    /// The queue is full, and [`crate::WhenFull::Fail`] was chosen. The record was not sent.
    #[error("the queue of {queue_bytes} bytes is full")]
    QueueFull {
        /// [`crate::ProducerConfig::queue_bytes`].
        queue_bytes: u32,
    },
    /// The record batch is not sound. It was not sent.
    #[error("the record batch is refused: {source}")]
    Batch {
        /// What is wrong with it.
        source: BatchError,
    },
    /// The producer is closed. The record was not sent.
    #[error("the producer is closed")]
    Closed,
    /// The server answered no. The record is not stored.
    #[error("{}: {}", response.kind, response.message)]
    Refused {
        /// All that it said.
        response: ErrorResponse,
    },
    /// The connection was lost before the answer. The record may be stored or not.
    #[error(
        "the connection was lost before the acknowledgement, so whether the record is stored is not known: {source}"
    )]
    OutcomeUnknown {
        /// How it was lost.
        source: ConnectionLost,
    },
    /// Connections were made and lost, until it was time to give up. The record was not sent.
    #[error("the record was not sent: {source}")]
    NotSent {
        /// How the last connection was lost.
        source: ConnectionLost,
    },
    /// There is no connection, and there could not be another one. The record was not sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl SendError {
    /// What the server says should be done, if it was the server that said no.
    #[must_use]
    pub const fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused { response } => Some(response.kind),
            _ => None,
        }
    }
}
