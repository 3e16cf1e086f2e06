//! The order of the writes and syncs on one mounted file system.
//!
//! Every sync takes a number when it begins, and a write takes the number of the next sync once it is done. So a sync
//! covers the writes with its own number or a lower one: exactly those that were done when it began.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The number of a sync.
pub(super) type Tick = u64;

/// What is known of one mounted file system.
#[derive(Debug)]
pub(super) struct FileSystem {
    device: u64,
    next_sync: AtomicU64,
    /// The last sync of the whole file system that went well.
    covered: AtomicU64,
    failures: AtomicU64,
    /// The kernel tells of a failure by a descriptor that was open before it: this one is as old as the first file here,
    /// and never closed while there is any. It is of a folder, so that no removed file keeps its blocks for it.
    witness: Mutex<File>,
}

impl FileSystem {
    /// The number of its device.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// The number for a write that was just done.
    pub(super) fn after_write(&self) -> Tick {
        // The number must not be read before the write has reached the page cache.
        fence(Ordering::SeqCst);
        self.next_sync.load(Ordering::SeqCst)
    }

    /// The number of a sync that begins now.
    pub(super) fn begin_sync(&self) -> Tick {
        self.next_sync.fetch_add(1, Ordering::SeqCst)
    }

    /// Whether a sync of the whole file system that went well covers a write.
    pub(super) fn covers(&self, write: Tick) -> bool {
        write <= self.covered.load(Ordering::SeqCst)
    }

    /// Syncs that failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// Syncs the whole file system by `sync`, one at a time. After a failure `suspect` runs before any other sync: which
    /// files it is about, only their own syncs can tell.
    ///
    /// # Errors
    /// That of `sync`.
    pub(super) fn sync(
        &self,
        sync: impl FnOnce(&File) -> io::Result<()>,
        suspect: impl FnOnce(),
    ) -> io::Result<()> {
        let witness = self.witness.lock();
        let begun = self.begin_sync();
        let synced = sync(&witness);
        if synced.is_ok() {
            self.covered.store(begun, Ordering::SeqCst);
        } else {
            self.failures.fetch_add(1, Ordering::SeqCst);
            suspect();
        }
        synced
    }
}

/// The file systems that have files.
#[derive(Debug, Default)]
pub(super) struct FileSystems(Mutex<Vec<Weak<FileSystem>>>);

impl FileSystems {
    /// All that have files now.
    pub(super) fn all(&self) -> Vec<Arc<FileSystem>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// That of a device, if it has files.
    pub(super) fn known(&self, device: u64) -> Option<Arc<FileSystem>> {
        let known = self.0.lock();
        let mut living = known.iter().filter_map(Weak::upgrade);
        living.find(|known| known.device == device)
    }

    /// That of the folder in which `path` is.
    ///
    /// # Errors
    /// The system's error, `NotFound` when there is no such folder.
    pub(super) fn of(&self, path: &Path) -> io::Result<Arc<FileSystem>> {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let device = fs::metadata(parent)?.dev();
        if let Some(known) = self.known(device) {
            return Ok(known);
        }
        let witness = Mutex::new(File::open(parent)?);
        let mut known = self.0.lock();
        let mut living = known.iter().filter_map(Weak::upgrade);
        if let Some(found) = living.find(|known| known.device == device) {
            return Ok(found);
        }
        let file_system = Arc::new(FileSystem {
            device,
            next_sync: AtomicU64::new(1),
            covered: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            witness,
        });
        known.retain(|known| known.strong_count() > 0);
        known.push(Arc::downgrade(&file_system));
        Ok(file_system)
    }
}
