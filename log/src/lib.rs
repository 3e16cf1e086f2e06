//! Partitions of memory-mapped segments: appended to under one short lock, durable by group commit, recoverable after any
//! crash, read without a copy.
//!
//! This is the hot half of Basalt. It is deliberately *not* aware of sockets, of Parquet or of SQL: it takes checked
//! frames, numbers them, keeps them, and hands out slices of whole frames. It is the only crate with `unsafe`, in one
//! module (`mmap`).
//!
//! Start with [`Log`] (a data folder), [`Partition`] (append, read, seal, release) and [`SegmentView`] (a pinned segment,
//! for cooling and SQL). File formats are described where they are written: the frame in `basalt_proto`, the index in
//! `index`, journals in `journal`, the reservation in `reserve`. Invariants LOG-1 to LOG-14 stand in the modules that
//! keep them.
#![deny(unsafe_code)]

mod block;
pub mod check;
mod cleanup;
mod clock;
mod config;
pub mod disk;
mod error;
mod groups;
mod index;
mod journal;
mod log;
mod mmap;
mod partition;
mod recovery;
mod reserve;
mod residency;
pub mod retention;
mod segment;
mod sync;
mod topic;
mod view;
mod wal;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod tests;

pub use block::{Block, crc32c};
pub use cleanup::{CleanupPolicy, Ratio};
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{
    Durability, LogConfig, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, TopicConfig, TopicConfigError,
    TopicDurability,
};
pub use disk::{Descriptor, Disk, DiskFile, RealDisk, replace_file};
pub use error::{
    AppendError, CloseError, CommitError, DiskError, OpenError, ReadError, ReleaseError,
    SequenceError, TopicError,
};
pub use groups::{Change, Commit, Committed, Groups, Pending, TransactionChange};
pub use log::{Log, MAX_PARTITIONS};
pub use mmap::{Map, MappedBytes, Memory};
pub use partition::{
    Aborted, AbortedTransactions, ActiveProducer, Appended, Bounds, HotSnapshot, Isolation,
    Partition, Sequence, Sequenced,
};
pub use recovery::Finding;
pub use residency::{Attempt, Mark, Stretch};
pub use topic::{Topic, TopicId};
pub use view::{ChunkBlocks, FrameSlice, SegmentView};
