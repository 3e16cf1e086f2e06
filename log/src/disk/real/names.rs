//! Which files are open under which names, so that a closed descriptor can be opened again after its file was renamed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::held::HeldFile;

/// Locks that the names share.
const LOCKS: usize = 64;

/// The names of a disk's files.
#[derive(Debug)]
pub(super) struct Names {
    /// Held by whoever makes, opens, renames or removes a name, while it does.
    locks: [Mutex<()>; LOCKS],
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By path, which is compared as bytes: much cheaper than part by part. Several may be open under one.
    files: HashMap<Name, Vec<Arc<HeldFile>>>,
    /// Folders that are being removed with all that is in them.
    removing: Vec<PathBuf>,
}

/// A path as its bytes.
#[derive(Debug, Clone)]
struct Name(Arc<Path>);

impl Name {
    fn bytes(&self) -> &[u8] {
        self.0.as_os_str().as_encoded_bytes()
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl Default for Names {
    fn default() -> Self {
        Self {
            locks: [const { Mutex::new(()) }; LOCKS],
            known: Mutex::default(),
        }
    }
}

impl Names {
    /// Keeps others from the name.
    pub(super) fn lock(&self, path: &Path) -> MutexGuard<'_, ()> {
        self.locks[lock_number(path)].lock()
    }

    /// Keeps others from both names.
    pub(super) fn lock_both(
        &self,
        one: &Path,
        other: &Path,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (one, other) = (lock_number(one), lock_number(other));
        // In the order of their numbers, so that no two wait for each other.
        let first = self.locks[one.min(other)].lock();
        let second = (one != other).then(|| self.locks[one.max(other)].lock());
        (first, second)
    }

    /// Adds a file; whether its folder is being removed.
    pub(super) fn add(&self, path: &Arc<Path>, file: &Arc<HeldFile>) -> bool {
        let mut known = self.known.lock();
        let name = Name(Arc::clone(path));
        known.files.entry(name).or_default().push(Arc::clone(file));
        known.removing.iter().any(|dir| path.starts_with(dir))
    }

    /// Drops a file; fine if it is not there.
    pub(super) fn remove(&self, path: &Arc<Path>, id: u64) {
        let mut known = self.known.lock();
        if let Entry::Occupied(mut files) = known.files.entry(Name(Arc::clone(path))) {
            files.get_mut().retain(|file| file.id() != id);
            if files.get().is_empty() {
                files.remove();
            }
        }
    }

    /// The files open under a name.
    pub(super) fn at(&self, path: &Path) -> Vec<Arc<HeldFile>> {
        let name = Name(path.into());
        let known = self.known.lock();
        known.files.get(&name).cloned().unwrap_or_default()
    }

    /// From now on files that appear below `dir` are kept open, too; those that are there already are answered.
    pub(super) fn begin_removal(&self, dir: &Path) -> Vec<Arc<HeldFile>> {
        let mut known = self.known.lock();
        known.removing.push(dir.to_owned());
        let below = |(name, _): &(&Name, &Vec<_>)| name.0.starts_with(dir);
        let files = known.files.iter().filter(below);
        files.flat_map(|(_, files)| files).map(Arc::clone).collect()
    }

    /// The removal that began is over.
    pub(super) fn end_removal(&self, dir: &Path) {
        let mut known = self.known.lock();
        if let Some(index) = known.removing.iter().position(|removing| removing == dir) {
            known.removing.swap_remove(index);
        }
    }
}

fn lock_number(path: &Path) -> usize {
    let bytes = path.as_os_str().as_encoded_bytes();
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes);
    usize::try_from(hash % LOCKS as u64).unwrap_or(0)
}
