//! Why a run ended early.

use std::io;

use basalt_proto::session::{ErrorResponse, SessionError};
use basalt_proto::{AckError, ErrorKind, FrameError, NameError};

use crate::args::ArgsError;

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Arguments that do not go together.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// Nobody answers at the server's address.
    #[error(
        "cannot reach a server at {address} (start one with `basalt serve`, or name another with --server HOST:PORT)"
    )]
    Connect {
        /// The address.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A connection, a file or a thread failed.
    #[error("cannot {what}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The server closed a connection that was in use.
    #[error("the server closed the connection {when}")]
    Closed {
        /// What was being done.
        when: &'static str,
    },
    /// The server refused.
    #[error("cannot {what}: {kind}: {message}")]
    Refused {
        /// What was to be done.
        what: &'static str,
        /// What to do about it.
        kind: ErrorKind,
        /// The server's words.
        message: String,
    },
    /// The server answered with bytes that mean nothing.
    #[error("the server's answer is not understood")]
    Session(#[from] SessionError),
    /// The server acknowledged with bytes that mean nothing.
    #[error("the server's acknowledgement is not understood")]
    Ack(#[from] AckError),
    /// The server sent bytes that are no frame.
    #[error("the server sent what is no frame")]
    Frame(#[from] FrameError),
    /// An answer to a request that is not waiting for one.
    #[error("the server answered request {found}, which is not waiting for an answer")]
    UnknownRequest {
        /// Its correlation id.
        found: u32,
    },
    /// The server does not speak the protocol.
    #[error(
        "the server does not speak the session protocol: it answered with the byte {found:#04x}"
    )]
    NoSession {
        /// Its answer to the opening.
        found: u8,
    },
    /// The topic has too few partitions.
    #[error("the topic has {found} partitions, {expected} are needed (see --partitions)")]
    Partitions {
        /// How many there are.
        found: usize,
        /// How many the run uses.
        expected: u32,
    },
    /// A name that was made up for the run.
    #[error("the bench made up a name that is none")]
    Name(#[from] NameError),
    /// Nothing to read.
    #[error("the topic has no records to read")]
    NothingToRead,
    /// The server said nothing for too long.
    #[error("nothing came from the server for {seconds:.1} s {when} (see --timeout)")]
    Silent {
        /// How long.
        seconds: f64,
        /// What was being done.
        when: &'static str,
    },
    /// There is nothing to measure.
    #[error("the run ended within its warm-up: give more --records or less --warmup")]
    WithinWarmup,
    /// Somebody asked the run to stop.
    #[error("the bench was stopped")]
    Stopped,
}

impl LoadError {
    /// What the server refused with, if it was the server that said no.
    #[must_use]
    pub const fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    pub(crate) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    pub(crate) fn refused(what: &'static str, error: ErrorResponse) -> Self {
        Self::Refused {
            what,
            kind: error.kind,
            message: error.message,
        }
    }
}
