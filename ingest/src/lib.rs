//! Sockets: one port for the native protocol, sessions, Kafka and HTTP; sendfile and back-pressure.
//!
//! This crate turns connections into calls on a [`basalt_columnar::TieredLog`] and its answers into bytes on sockets. It
//! deliberately knows nothing of SQL, of files' names, or of HTTP beyond its first byte: whoever speaks HTTP is handed
//! the socket through [`HttpHandler`].
//!
//! Start with [`Server::bind`], [`ServerConfig`] and [`ShutdownTrigger`].
//!
//! Invariants:
//! - **ING-1**: an acknowledgement is written only after the partition said that what it acknowledges is as durable as
//!   its level promises; acknowledgements of one connection leave in the order of its frames.
//! - **ING-2**: what a connection holds in memory is bounded by bytes that arrived and by its limits, never by a length
//!   that a peer claimed.
//! - **ING-3**: a consumer is sent whole frames, in order of offset, each at most once a connection; frames without
//!   batches go from file to socket and never through this process.
//! - **ING-4**: every wait for a peer that owes something has an end; a wait for data at the tail has none.
//! - **ING-5**: all that a connection started ends with it, except what must not be cut in the middle (cooling, deletion).
//! - **ING-7**: no thread that serves sockets waits for a disk to read: what is not in memory is loaded by others, few at a
//!   time (`read_ahead`).
#![forbid(unsafe_code)]

mod alarm;
mod buffers;
mod commit;
mod commit_wait;
mod config;
mod connection;
mod consume;
mod counters;
mod error;
mod input;
mod kafka;
mod output;
mod produce;
mod read_ahead;
mod server;
mod session;
mod shared;
mod shutdown;
mod sniff;
mod topics;
mod verify;

pub use config::{Advertised, ConfigError, GroupLimits, ServerConfig};
pub use counters::{Counters, CountersSnapshot};
pub use error::Refusal;
pub use server::{BindError, HttpHandler, Server};
pub use shutdown::{ShutdownSignal, ShutdownTrigger};
pub use topics::Topics;

#[cfg(test)]
mod tests;
