//! Reading a cut again.
//!
//! A token ([`token`]) names, for each partition of each topic that a query read, the offsets that it saw. `FROM t AS OF
//! '<token>'` reads exactly those once more, whatever was appended, cooled or merged since.
//!
//! - **QRY-15**: two runs of a statement `AS OF` one token give the same bytes. Whatever depends on where records lie is kept
//!   from everything above the scan: rows come in the order of partitions and offsets ([`scan`]), filtered, in batches of
//!   exactly the size that the token says ([`in_order`]), on one thread, without spilling.
//! - **QRY-16**: a token is answered in full or refused: with the offsets that are gone, or the topic that is.

mod error;
mod in_order;
mod scan;
mod token;

pub use error::SnapshotError;
pub(crate) use in_order::UnionsInOrder;
pub(crate) use scan::plan;
pub(crate) use token::{Cut, Token, TopicCut};
