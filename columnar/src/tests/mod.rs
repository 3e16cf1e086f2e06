//! Tests that need a log, a store and all that is between them.

mod failing;
pub(crate) mod json;
pub(crate) mod support;

mod check;
mod compaction;
mod cooling;
mod crash;
mod faults;
mod full_disk;
mod merging;
mod one_cut;
mod outage;
mod owners;
mod reads;
mod remote;
mod replay;
mod retention;
mod shredding;
mod stamps;
mod topics;
mod typed;
mod weather;
