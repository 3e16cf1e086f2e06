//! What goes wrong, and when: failing operations, the end of the process between any two of them, and other threads' work in the
//! middle of a sync. What an end leaves on the disk is in `loss`.

use std::io;
use std::path::Path;

use super::{Sim, SimDisk};

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `DiskFile::sync`.
    Sync,
    /// `Disk::sync_dir`.
    SyncDir,
    /// `DiskFile::sync_file_system`.
    SyncFileSystem,
    /// `DiskFile::allocate` and `DiskFile::reserve`.
    Allocate,
    /// `DiskFile::write_at`.
    Write,
    /// `DiskFile::set_len`.
    SetLen,
    /// `Disk::create`.
    Create,
    /// `Disk::rename`.
    Rename,
    /// `Disk::remove_file`.
    Remove,
    /// `DiskFile::map`. Reading is not counted among the operations, after any of which the process may end.
    Map,
    /// `DiskFile::read_at` and `DiskFile::load`.
    Read,
}

#[derive(Debug)]
pub(super) struct Fault {
    operation: Operation,
    suffix: String,
    skip: u64,
    kind: io::ErrorKind,
}

/// What another thread does while a sync is under way.
pub(super) struct DuringSync {
    skip: u64,
    /// Whether the sync covers what it writes.
    pub(super) covered: bool,
    pub(super) work: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for DuringSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DuringSync({}, {})", self.skip, self.covered)
    }
}

impl SimDisk {
    /// Lets the operation fail once, on a file whose name ends in `suffix`, after it went well `skip` times.
    pub fn fail(&self, operation: Operation, suffix: &str, skip: u64, kind: io::ErrorKind) {
        self.sim.lock().faults.push(Fault {
            operation,
            suffix: suffix.to_owned(),
            skip,
            kind,
        });
    }

    /// Whether every fault asked for has happened.
    #[must_use]
    pub fn faults_are_used_up(&self) -> bool {
        self.sim.lock().faults.is_empty()
    }

    /// Forgets the faults that did not happen.
    pub fn clear_faults(&self) {
        self.sim.lock().faults.clear();
    }

    /// Ends the process after `operations` more operations: a write that comes then is done in part at most, everything else
    /// and all that follows fails and changes nothing. Then take [`Self::process_loss`] or [`Self::power_loss`].
    pub fn stop_after(&self, operations: u64) {
        let mut sim = self.sim.lock();
        sim.stop_at = Some(sim.operations + operations);
    }

    /// Takes back an end that has not come.
    pub fn clear_stop(&self) {
        self.sim.lock().stop_at = None;
    }

    /// Whether the end that [`Self::stop_after`] set has come.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.sim.lock().stopped
    }

    /// Does `work` while the sync of a file is under way, after `skip` others: before the sync takes effect if it is `covered`,
    /// else after. The work runs on the syncing thread, so it must not wait for a lock held there.
    pub fn during_sync(&self, skip: u64, covered: bool, work: impl FnOnce() + Send + 'static) {
        self.sim.lock().during_sync.push(DuringSync {
            skip,
            covered,
            work: Box::new(work),
        });
    }

    /// Forgets the work that no sync was there for.
    pub fn clear_during_sync(&self) {
        let forgotten = std::mem::take(&mut self.sim.lock().during_sync);
        drop(forgotten);
    }
}

impl Sim {
    pub(super) fn step(&mut self, operation: Operation, path: &Path) -> io::Result<()> {
        self.stopped |= self.stop_at.is_some_and(|at| self.operations >= at);
        if self.stopped {
            self.nothing_more |= operation != Operation::Write;
            return Err(io::Error::other("the process has ended"));
        }
        self.operations += 1;
        self.fault(operation, path)
    }

    /// Lets the operation fail if it was asked for.
    pub(super) fn fault(&mut self, operation: Operation, path: &Path) -> io::Result<()> {
        let name = path.to_string_lossy();
        let hit = self.faults.iter_mut().position(|fault| {
            if fault.operation != operation || !name.ends_with(&fault.suffix) {
                return false;
            }
            let now = fault.skip == 0;
            fault.skip = fault.skip.saturating_sub(1);
            now
        });
        hit.map_or(Ok(()), |at| {
            Err(io::Error::from(self.faults.remove(at).kind))
        })
    }

    /// The work that is to be done during this sync.
    pub(super) fn take_during_sync(&mut self) -> Option<DuringSync> {
        let mut due = None;
        for (at, work) in self.during_sync.iter_mut().enumerate() {
            if work.skip == 0 {
                due.get_or_insert(at);
            }
            work.skip = work.skip.saturating_sub(1);
        }
        due.map(|at| self.during_sync.remove(at))
    }
}
