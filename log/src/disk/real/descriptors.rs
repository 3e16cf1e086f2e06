//! How many files are open, and which one is closed for another.
//!
//! Files that may be closed stand in a round. Whoever needs a descriptor goes on from where the last one stopped, closes the
//! first file that was not used since it was last passed, and takes the mark of use away from those that were: about the
//! least recently used one is closed, and a use costs a bit. Files with writes that no sync has covered leave the round
//! when they are met, until one has, so that they are not met again and again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::held::{Closing, HeldFile};

/// The least limit that is taken from the system's.
const MIN_DESCRIPTORS: usize = 64;
/// The most that are asked for where the system has no limit.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// The descriptors of a disk.
#[derive(Debug)]
pub(super) struct Descriptors {
    limit: usize,
    /// With so many open, dirty ones are made clean to be closed.
    crowd: usize,
    /// Files opened since that was last done.
    opened_since: AtomicUsize,
    open_count: Arc<AtomicUsize>,
    next_id: AtomicU64,
    round: Mutex<Round>,
}

#[derive(Debug, Default)]
struct Round {
    files: Vec<Arc<HeldFile>>,
    /// Where to go on.
    hand: usize,
    /// Open files that are not in the round: they were dirty when they were met.
    parked: HashMap<u64, Arc<HeldFile>>,
}

/// A quarter of what the process may open now; at least [`MIN_DESCRIPTORS`].
pub(super) fn default_limit() -> usize {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .and_then(|limit| usize::try_from(limit / 4).ok())
        .map_or(MAX_DESCRIPTORS, |quarter| {
            quarter.clamp(MIN_DESCRIPTORS, MAX_DESCRIPTORS)
        })
}

impl Descriptors {
    pub(super) fn new(limit: usize, crowd: usize) -> Self {
        Self {
            limit: limit.max(1),
            crowd,
            opened_since: AtomicUsize::new(0),
            open_count: Arc::default(),
            next_id: AtomicU64::new(0),
            round: Mutex::default(),
        }
    }

    pub(super) fn open_count(&self) -> &Arc<AtomicUsize> {
        &self.open_count
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether so many are open, nearly all of them dirty, that a sync of all is worth its while. At most once for every half
    /// a limit of files opened.
    pub(super) fn is_crowded(&self) -> bool {
        self.open_count.load(Ordering::Relaxed) >= self.crowd
            && self.opened_since.load(Ordering::Relaxed) > self.limit / 2
            && self.opened_since.swap(0, Ordering::Relaxed) > self.limit / 2
    }

    /// Whether there are open files that a sync could make clean.
    pub(super) fn has_dirty(&self) -> bool {
        !self.round.lock().parked.is_empty()
    }

    fn is_over(&self) -> bool {
        self.open_count.load(Ordering::Relaxed) > self.limit
    }

    /// Takes a file that was just opened into the round, and closes others where there are too many.
    pub(super) fn admit(&self, file: &Arc<HeldFile>) {
        self.opened_since.fetch_add(1, Ordering::Relaxed);
        let mut round = self.round.lock();
        round.add(file);
        self.trim(&mut round);
    }

    /// Closes files while there are too many. Where none can be closed there will be more than the limit.
    fn trim(&self, round: &mut Round) {
        while self.is_over() && round.close_one() {}
    }

    /// Forgets a file.
    pub(super) fn forget(&self, file: &HeldFile) {
        let mut round = self.round.lock();
        round.parked.remove(&file.id());
        round.remove(file.place.load(Ordering::Relaxed), file.id());
    }

    /// A file was synced: if it is clean by that it may be closed again.
    pub(super) fn cleaned(&self, file: &Arc<HeldFile>) {
        let may_return = file.is_parked() && file.is_clean();
        if may_return || self.is_over() {
            let mut round = self.round.lock();
            if may_return {
                round.unpark(file);
            }
            self.trim(&mut round);
        }
    }

    /// A file system was synced: what is clean by that may be closed again.
    pub(super) fn cleaned_many(&self) {
        let mut round = self.round.lock();
        let clean: Vec<_> = round
            .parked
            .values()
            .filter(|file| file.is_clean())
            .map(Arc::clone)
            .collect();
        for file in &clean {
            round.unpark(file);
        }
        self.trim(&mut round);
    }

    /// The files that are open and may be closed some time.
    pub(super) fn open_files(&self) -> Vec<Arc<HeldFile>> {
        let round = self.round.lock();
        let files = round.files.iter().chain(round.parked.values());
        files.map(Arc::clone).collect()
    }

    /// Opens something, and closes files for it as long as the system has no descriptor.
    ///
    /// # Errors
    /// The last error of `open`.
    pub(super) fn retry<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match open() {
                Err(error) if is_lack(&error) && self.round.lock().close_one() => {}
                opened => return opened,
            }
        }
    }
}

/// Whether the process, or the system, has no descriptor left.
pub(super) fn is_lack(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

impl Round {
    fn add(&mut self, file: &Arc<HeldFile>) {
        file.place.store(self.files.len(), Ordering::Relaxed);
        self.files.push(Arc::clone(file));
    }

    /// Takes out the file at `place`, if it is the one of this number.
    fn remove(&mut self, place: usize, id: u64) -> Option<Arc<HeldFile>> {
        self.files.get(place).filter(|file| file.id() == id)?;
        let removed = self.files.swap_remove(place);
        if let Some(moved) = self.files.get(place) {
            moved.place.store(place, Ordering::Relaxed);
        }
        Some(removed)
    }

    fn unpark(&mut self, file: &Arc<HeldFile>) {
        if file.take_parked() && self.parked.remove(&file.id()).is_some() {
            self.add(file);
        }
    }

    /// Closes one file; whether there was one to close.
    fn close_one(&mut self) -> bool {
        // Twice round: the first time may only have taken marks away.
        for _ in 0..2 * self.files.len() {
            if self.hand >= self.files.len() {
                self.hand = 0;
            }
            let Some(file) = self.files.get(self.hand).map(Arc::clone) else {
                return false;
            };
            let closing = file.try_close();
            if closing == Closing::Used {
                self.hand += 1;
                continue;
            }
            self.remove(self.hand, file.id());
            match closing {
                Closing::Closed => return true,
                Closing::Dirty => {
                    self.parked.insert(file.id(), file);
                }
                Closing::Used | Closing::Never => {}
            }
        }
        false
    }
}
