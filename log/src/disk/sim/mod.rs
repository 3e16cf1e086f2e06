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

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile};

mod file;
mod rng;

use file::{FileState, SimFile};
pub use rng::SimRng;

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// [`DiskFile::sync`].
    Sync,
    /// [`Disk::sync_dir`].
    SyncDir,
    /// [`DiskFile::sync_file_system`].
    SyncFileSystem,
    /// [`DiskFile::allocate`] and [`DiskFile::reserve`].
    Allocate,
    /// [`DiskFile::write_at`].
    Write,
    /// [`DiskFile::set_len`].
    SetLen,
    /// [`Disk::create`].
    Create,
    /// [`Disk::rename`].
    Rename,
    /// [`Disk::remove_file`].
    Remove,
    /// [`DiskFile::map`]. Reading is not counted among the operations, after any of which the process may end.
    Map,
    /// [`DiskFile::read_at`] and [`DiskFile::load`].
    Read,
}

#[derive(Debug)]
struct Fault {
    operation: Operation,
    suffix: String,
    skip: u64,
    kind: io::ErrorKind,
}

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

/// What another thread does while a sync is under way.
struct DuringSync {
    skip: u64,
    /// Whether the sync covers what it writes.
    covered: bool,
    work: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for DuringSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DuringSync({}, {})", self.skip, self.covered)
    }
}

#[derive(Debug, Clone)]
enum NameChange {
    Put(PathBuf, Arc<SimFile>),
    Remove(PathBuf),
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

    /// Forgets the faults that did not happen.
    pub fn clear_faults(&self) {
        self.sim.lock().faults.clear();
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

    /// The disk as a new process finds it after this one was killed: all that was written is in the page cache.
    #[must_use]
    pub fn process_loss(&self) -> Self {
        let sim = self.sim.lock();
        let next = Self::new();
        {
            let mut copy = next.sim.lock();
            copy.boot = sim.boot;
            copy.full = sim.full;
            copy.folders = sim.folders.clone();
            let mut copied: BTreeMap<*const SimFile, Arc<SimFile>> = BTreeMap::new();
            let mut duplicate = |file: &Arc<SimFile>| {
                Arc::clone(
                    copied
                        .entry(Arc::as_ptr(file))
                        .or_insert_with(|| file.duplicate(&next.sim)),
                )
            };
            copy.live = sim
                .live
                .iter()
                .map(|(path, file)| (path.clone(), duplicate(file)))
                .collect();
            copy.durable = sim
                .durable
                .iter()
                .map(|(path, file)| (path.clone(), duplicate(file)))
                .collect();
            copy.pending = sim
                .pending
                .iter()
                .map(|(dir, change)| {
                    let change = match change {
                        NameChange::Put(path, file) => {
                            NameChange::Put(path.clone(), duplicate(file))
                        }
                        NameChange::Remove(path) => NameChange::Remove(path.clone()),
                    };
                    (dir.clone(), change)
                })
                .collect();
        }
        next
    }

    /// The disk as the machine finds it after the power went: of what was not synced, `rng` says what is there.
    #[must_use]
    pub fn power_loss(&self, rng: &mut SimRng) -> Self {
        let sim = self.sim.lock();
        let mut names = sim.durable.clone();
        let dirs: BTreeSet<&PathBuf> = sim.pending.iter().map(|(dir, _)| dir).collect();
        for dir in dirs {
            let changes: Vec<_> = sim
                .pending
                .iter()
                .filter(|(of, _)| of == dir)
                .map(|(_, change)| change)
                .collect();
            let reached = rng.below(changes.len() + 1);
            changes[..reached]
                .iter()
                .for_each(|change| change.apply(&mut names));
        }
        let next = Self::new();
        {
            let mut after = next.sim.lock();
            after.boot = sim.boot + 1;
            after.full = sim.full;
            after.folders = sim.folders.clone();
            for (path, file) in names {
                let survivor = file.after_power_loss(&path, &next.sim, rng);
                after.live.insert(path.clone(), Arc::clone(&survivor));
                after.durable.insert(path, survivor);
            }
        }
        next
    }

    /// Changes a file's bytes from outside, on all its images, as bit rot or a careless hand does.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut sim = self.sim.lock();
        let old = sim
            .live
            .get(path)
            .map(|file| (file.live_bytes(), file.state.lock().reserved));
        let Some((mut bytes, reserved)) = old else {
            panic!("no file {}", path.display())
        };
        change(&mut bytes);
        let state = FileState {
            len: bytes.len(),
            reserved: reserved.min(bytes.len()),
            clean: bytes.clone(),
            durable: bytes.clone(),
            dirtied: BTreeSet::new(),
        };
        let file = SimFile::new(path, &self.sim, &bytes, state);
        sim.live.insert(path.to_owned(), Arc::clone(&file));
        sim.durable.insert(path.to_owned(), file);
    }

    /// Removes a file from outside.
    pub fn delete(&self, path: &Path) {
        let mut sim = self.sim.lock();
        sim.live.remove(path);
        sim.durable.remove(path);
    }

    /// The paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.sim.lock().live.keys().cloned().collect()
    }

    fn enter(
        &self,
        operation: Operation,
        path: &Path,
    ) -> io::Result<parking_lot::MutexGuard<'_, Sim>> {
        let mut sim = self.sim.lock();
        sim.step(operation, path)?;
        Ok(sim)
    }
}

impl Sim {
    fn step(&mut self, operation: Operation, path: &Path) -> io::Result<()> {
        self.stopped |= self.stop_at.is_some_and(|at| self.operations >= at);
        if self.stopped {
            self.nothing_more |= operation != Operation::Write;
            return Err(io::Error::other("the process has ended"));
        }
        self.operations += 1;
        self.fault(operation, path)
    }

    /// Lets the operation fail if it was asked for.
    fn fault(&mut self, operation: Operation, path: &Path) -> io::Result<()> {
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
    fn take_during_sync(&mut self) -> Option<DuringSync> {
        let mut due = None;
        for (at, work) in self.during_sync.iter_mut().enumerate() {
            if work.skip == 0 {
                due.get_or_insert(at);
            }
            work.skip = work.skip.saturating_sub(1);
        }
        due.map(|at| self.during_sync.remove(at))
    }

    fn change_name(&mut self, path: &Path, change: NameChange) {
        change.apply(&mut self.live);
        self.pending
            .push((path.parent().unwrap_or(Path::new("")).to_owned(), change));
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Arc<SimFile>>) {
        match self {
            Self::Put(path, file) => drop(names.insert(path.clone(), Arc::clone(file))),
            Self::Remove(path) => drop(names.remove(path)),
        }
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Disk for SimDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut sim = self.sim.lock();
        if !sim.stopped {
            let folders = path.ancestors().map(Path::to_owned);
            sim.folders.extend(folders);
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let sim = self.sim.lock();
        let names: BTreeSet<String> = sim
            .live
            .keys()
            .chain(&sim.folders)
            .filter_map(|file| file.strip_prefix(path).ok()?.components().next())
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .collect();
        Ok(names.into_iter().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let sim = self.sim.lock();
        Ok(sim.folders.contains(path) || sim.live.keys().any(|file| file.starts_with(path)))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut sim = self.enter(Operation::SyncDir, path)?;
        let pending = std::mem::take(&mut sim.pending);
        let (synced, rest): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|(dir, _)| dir == path);
        sim.pending = rest;
        synced
            .iter()
            .for_each(|(_, change)| change.apply(&mut sim.durable));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut sim = self.enter(Operation::Remove, path)?;
        if !sim.live.contains_key(path) {
            return Err(not_found());
        }
        sim.change_name(path, NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let inside: Vec<PathBuf> = self
            .paths()
            .into_iter()
            .filter(|file| file.starts_with(path))
            .collect();
        for file in &inside {
            self.remove_file(file)?;
        }
        // What became of the names in the folder is durable with the folder's own name being gone.
        let mut sim = self.sim.lock();
        let parent = path.parent().unwrap_or(Path::new(""));
        sim.folders.retain(|folder| !folder.starts_with(path));
        for (dir, _) in sim
            .pending
            .iter_mut()
            .filter(|(dir, _)| dir.starts_with(path))
        {
            parent.clone_into(dir);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut sim = self.enter(Operation::Rename, to)?;
        let file = sim.live.get(from).cloned().ok_or_else(not_found)?;
        // One change of names: a crash leaves both undone or both done, as within one folder it does.
        sim.change_name(to, NameChange::Put(to.to_owned(), file));
        sim.change_name(from, NameChange::Remove(from.to_owned()));
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut sim = self.enter(Operation::Create, path)?;
        let file = SimFile::new(path, &self.sim, &[], FileState::default());
        sim.change_name(path, NameChange::Put(path.to_owned(), Arc::clone(&file)));
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self
            .sim
            .lock()
            .live
            .get(path)
            .cloned()
            .ok_or_else(not_found)?;
        Ok(file)
    }

    fn lock(&self, _path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        struct Held(Arc<Mutex<bool>>);
        impl Drop for Held {
            fn drop(&mut self) {
                *self.0.lock() = false;
            }
        }
        let locked = Arc::clone(&self.locked);
        let was_locked = std::mem::replace(&mut *locked.lock(), true);
        Ok((!was_locked).then(|| Box::new(Held(locked)) as Box<dyn Any + Send + Sync>))
    }

    fn boot_id(&self) -> String {
        format!("boot {}", self.sim.lock().boot)
    }
}
