//! What is left of a disk: after the end of the process, after that of the machine, and after a hand from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{FileState, SimFile};
use super::tree::NameChange;
use super::{SimDisk, SimRng};

impl SimDisk {
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
}
