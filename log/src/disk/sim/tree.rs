//! The names on a simulated disk: changed at once, durable with the sync of their folder.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::file::{FileState, SimFile};
use super::{Operation, Sim, SimDisk};
use crate::disk::{Disk, DiskFile};

#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Put(PathBuf, Arc<SimFile>),
    Remove(PathBuf),
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<PathBuf, Arc<SimFile>>) {
        match self {
            Self::Put(path, file) => drop(names.insert(path.clone(), Arc::clone(file))),
            Self::Remove(path) => drop(names.remove(path)),
        }
    }
}

impl Sim {
    fn change_name(&mut self, path: &Path, change: NameChange) {
        change.apply(&mut self.live);
        self.pending
            .push((path.parent().unwrap_or(Path::new("")).to_owned(), change));
    }
}

impl SimDisk {
    fn enter(&self, operation: Operation, path: &Path) -> io::Result<MutexGuard<'_, Sim>> {
        let mut sim = self.sim.lock();
        sim.step(operation, path)?;
        Ok(sim)
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
