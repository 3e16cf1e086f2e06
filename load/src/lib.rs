//! The load generator behind `basalt bench`, and the limits of the machine it runs on.
//!
//! It measures a server from outside, through its sockets, and shares nothing with it but the definition of the wire
//! (`basalt-proto`). It is made to cost next to nothing, since it runs on the server's own cores: plain threads, blocking
//! sockets, large system calls, and no byte of a record touched on its way out.
//!
//! Start with [`run`], which takes parsed [`LoadArgs`] and gives a [`Report`], and [`limits::measure`].
//!
//! Invariants:
//! - **LOAD-1**: in an open loop the moments at which records are due are fixed before the run (`schedule.rs`), and
//!   latency counts from them.
//! - **LOAD-2**: a record is verified only if it has exactly the bytes that were sent, at the offset where it belongs
//!   (`verify.rs`); whatever is not counts against the run.
#![deny(unsafe_code)]

mod args;
mod clock;
mod consume;
mod drive;
mod error;
pub mod limits;
mod payload;
mod plot;
mod produce;
mod progress;
mod report;
mod ring;
mod run;
mod schedule;
mod session;
mod shared;
mod stats;
mod verify;

#[cfg(test)]
mod tests;

pub use args::{AckArg, ArgsError, DurabilityArg, LoadArgs, LoadCommand, Mode, Protocol};
pub use error::LoadError;
pub use payload::{MAX_PAYLOAD_BYTES, PayloadSize};
pub use progress::{PlainLines, Progress, Standing};
pub use report::{Line, Report, Run};
pub use run::run;
pub use stats::{Count, Latencies, LatencySummary};
pub use verify::Verify;
