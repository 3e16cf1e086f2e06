//! A disk in memory that loses, tears and fails writes as told, from a seed.
//!
//! Each file has three images: what the process wrote (live), what the kernel believes to be on the disk (clean), and what
//! is there (durable). A sync that succeeds copies the sectors that differ from the clean image to the durable one. A sync
//! that fails marks them clean all the same, as Linux does: a later sync does not write them.
//!
//! Must be survived, and is made here: [`SimDisk::power_loss`] (any subset of unsynced sectors is lost, in whatever order they
//! were written, a sector may be torn at any byte, unsynced names come or go in their order within a folder and in any order
//! across folders), [`SimDisk::process_loss`] (the page cache stays), either of them between any two operations
//! ([`SimDisk::stop_after`]; the write it falls into is done in part), failing syncs, allocations, writes (done in part, too),
//! renames and creations, a full disk, and work of other threads while a sync is under way ([`SimDisk::during_sync`]).
//! Reordering ends at a sync: what was written before it is there whenever anything written after it is.
//!
//! Out of scope: sectors that rot while nobody looks (tests flip bits by [`SimDisk::change`]), a disk that lies about a sync,
//! and folders that come or go by themselves (a folder that was made is there).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

mod faults;
mod file;
mod loss;
mod rng;
mod tree;

pub use faults::Operation;
use faults::{DuringSync, Fault};
use file::SimFile;
pub use rng::SimRng;
use tree::NameChange;

/// The simulated disk. Clones share it.
#[derive(Debug, Clone)]
pub struct SimDisk {
    sim: Arc<Mutex<Sim>>,
    locked: Arc<Mutex<bool>>,
}

#[derive(Debug, Default)]
struct Sim {
    live: BTreeMap<PathBuf, Arc<SimFile>>,
    durable: BTreeMap<PathBuf, Arc<SimFile>>,
    folders: BTreeSet<PathBuf>,
    /// Changes of names that no folder sync covered yet, in order.
    pending: Vec<(PathBuf, NameChange)>,
    faults: Vec<Fault>,
    full: bool,
    boot: u64,
    operations: u64,
    /// The process ends after so many operations.
    stop_at: Option<u64>,
    stopped: bool,
    /// The write that the end fell into is done as far as it is.
    nothing_more: bool,
    during_sync: Vec<DuringSync>,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sim: Arc::new(Mutex::new(Sim::default())),
            locked: Arc::default(),
        }
    }

    /// The same disk, for one who looks at it while a log has its lock.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self {
            sim: Arc::clone(&self.sim),
            locked: Arc::default(),
        }
    }

    /// Whether the disk has no free block.
    pub fn set_full(&self, full: bool) {
        self.sim.lock().full = full;
    }

    /// How many operations there were so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.sim.lock().operations
    }

    /// The paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.sim.lock().live.keys().cloned().collect()
    }
}
