//! Who runs, who waits, who is told to stop.
//!
//! Each query has an id ([`id`]), a line in the registry from its arrival until it was the last but so many to end
//! ([`registry`], shown as `sys.queries`), a place among those that run or wait ([`admission`]), and its own account of the memory
//! that all share ([`memory`]).
//!
//! - **QRY-13**: at most so many queries run at a time, and at most so many wait; any other is refused at once with what to do
//!   about it. Whoever wants to look at the server, or to cancel, never waits behind those that read topics.

mod admission;
mod cancel;
mod id;
mod memory;
mod progress;
mod registry;

pub(crate) use admission::{Admission, Lane};
pub(crate) use cancel::cancel_function;
pub(crate) use id::QueryId;
pub(crate) use memory::QueryPool;
pub(crate) use registry::{Entry, Line, Registry, State};

/// The function that `CANCEL 'id'` stands for.
pub(crate) const CANCEL_FUNCTION: &str = "cancel_query";
