//! The cold half of Basalt: sealed segments become Parquet files in an object store, and hot and cold are one log.
//!
//! A segment that leaves the hot window is rewritten as a Parquet file that any reader of Parquet opens, a manifest names it, and
//! the segment is deleted: the file is then the only copy. Consumers get the same frames back from it; SQL reads it as it is.
//! This crate is deliberately *not* aware of sockets or SQL, and the log below it not of this crate.
//!
//! Start with [`TieredLog`] (what servers and queries hold), [`TieredPartition`] (reads by offset and time, hot or cold) and
//! [`PartitionSnapshot`] (one cut through both, for queries). [`RowBuilder`] is how frames become rows, for cooling and for SQL over
//! hot segments alike; [`cold_schema`] lists the columns.
//!
//! Invariants COL-1 to COL-25 stand in the modules that keep them: durable objects in `store`, commits in `manifest`, exact replay in
//! `replay`, bounded conversion in `writer`, the cache in `cache`, the one cut in `partition`, the order of steps in `cool`, retention
//! in `expire`, recovery in `recover`, deletion in `delete`, merging of small files in `merge`, shredded payloads in [`shred`]; COL-30 to COL-36:
//! who may write to a store in `owner`, how much may be hot in `budget`, how fast uploads go in `pace`, what failures leave in `litter`.
#![forbid(unsafe_code)]

pub mod check;
mod config;
mod error;
mod file;
mod paths;
mod schema;
mod schemas;
pub mod shred;
mod steps;
mod store;

mod manifest;
mod owner;
mod replay;
mod rows;

mod hydrate;
mod object_reader;
mod properties;
mod sink;
mod writer;

mod budget;
mod cache;
mod litter;
mod pace;
mod shared;

mod partition;

mod commit;
mod compact;
mod cool;
mod delete;
mod expire;
mod maintenance;
mod merge;
mod recover;
mod schedule;
mod status;
mod tiered;
mod typed;

#[cfg(test)]
mod tests;

pub use compact::CompactionReport;
pub use config::{ColdConfig, ConfigError};
pub use cool::CoolReport;
pub use error::{CoolError, DeleteError, HydrateError, ReadError, ShutdownError, TierError};
pub use file::{ColdChunk, ColdFile};
pub use maintenance::MaintenanceReport;
pub use manifest::ManifestError;
pub use merge::MergeReport;
pub use owner::{OwnerError, recorded_store};
pub use partition::{PartitionSnapshot, TierBounds, TieredPartition};
pub use replay::ReplayError;
pub use rows::{RowBuilder, RowError};
pub use schedule::TierStatus;
pub use schema::{SQL_COLUMN_COUNT, cold_schema, sql_timestamp_ns};
pub use status::CoolingStatus;
pub use steps::{NoSteps, Step, Steps, Stopped};
pub use store::{ColdStore, LocationError, StoreConfig, StoreError, UnusableStore, holds_files};
pub use tiered::TieredLog;
pub use typed::TypedColumns;
