//! A file whose descriptor may be closed while nobody uses it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{
    MappedRwLockReadGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use super::Shared;
use super::descriptors::{Descriptors, is_lack};
use super::file_system::{FileSystem, Tick};

/// An open file, counted.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    open_count: Arc<AtomicUsize>,
}

impl OpenFile {
    fn new(file: File, open_count: &Arc<AtomicUsize>) -> Arc<Self> {
        open_count.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            file,
            open_count: Arc::clone(open_count),
        })
    }
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.open_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps the file open as long as it lives.
pub(super) type InUse<'a> = MappedRwLockReadGuard<'a, Arc<OpenFile>>;

/// What became of a file that was to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    Closed,
    /// It was used since it was last looked at, or is in use.
    Used,
    /// It may be closed once a sync has covered its writes.
    Dirty,
    Never,
}

/// A file that is opened again when it is used.
///
/// Locks are taken in the order slot, name; a name's lock is held over its change, and over opening by it.
#[derive(Debug)]
pub(super) struct HeldFile {
    id: u64,
    /// Device and inode: what is opened again must be the same.
    identity: (u64, u64),
    file_system: Arc<FileSystem>,
    /// `None` once the file has lost its name.
    name: Mutex<Option<Arc<Path>>>,
    slot: RwLock<Slot>,
    /// Set by every use, taken away by whoever looks for a file to close.
    used: AtomicBool,
    /// Never closed again.
    pinned: AtomicBool,
    /// Whether it is out of the round because it was dirty.
    parked: AtomicBool,
    /// Where it is in the round.
    pub(super) place: AtomicUsize,
    /// The last write.
    written: AtomicU64,
    /// The last sync of its own that went well.
    synced: AtomicU64,
    /// A sync of the file system failed while it was dirty: only a sync of its own with a higher number makes it clean.
    suspect: AtomicU64,
}

#[derive(Debug, Default)]
struct Slot {
    file: Option<Arc<OpenFile>>,
    /// Nobody has the file any more.
    is_gone: bool,
}

impl HeldFile {
    /// A file that was just opened, which is counted from now on.
    pub(super) fn new(
        file: File,
        path: &Arc<Path>,
        file_system: Arc<FileSystem>,
        descriptors: &Descriptors,
    ) -> io::Result<Arc<Self>> {
        let identity = identity(&file)?;
        Ok(Arc::new(Self {
            id: descriptors.next_id(),
            identity,
            file_system,
            name: Mutex::new(Some(Arc::clone(path))),
            slot: RwLock::new(Slot {
                file: Some(OpenFile::new(file, descriptors.open_count())),
                is_gone: false,
            }),
            used: AtomicBool::new(true),
            pinned: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            place: AtomicUsize::new(usize::MAX),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            suspect: AtomicU64::new(0),
        }))
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    /// Its name, which stays as it is while the answer lives.
    pub(super) fn name(&self) -> MutexGuard<'_, Option<Arc<Path>>> {
        self.name.lock()
    }

    /// The open file.
    ///
    /// # Errors
    /// The system's error where it was closed and cannot be opened again, `NotFound` among them.
    pub(super) fn open(self: &Arc<Self>, disk: &Shared) -> io::Result<InUse<'_>> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        let mut slot = self.slot.read();
        loop {
            match RwLockReadGuard::try_map(slot, |slot| slot.file.as_ref()) {
                Ok(open) => return Ok(open),
                Err(closed) => {
                    drop(closed);
                    slot = self.open_with_room(disk)?;
                }
            }
        }
    }

    /// No slot is held while others are made clean: that looks at all slots.
    fn open_with_room(self: &Arc<Self>, disk: &Shared) -> io::Result<RwLockReadGuard<'_, Slot>> {
        disk.thin_out();
        match self.open_again(&disk.descriptors) {
            Err(error) if is_lack(&error) && disk.make_clean() => {
                self.open_again(&disk.descriptors)
            }
            opened => opened,
        }
    }

    fn open_again(
        self: &Arc<Self>,
        descriptors: &Descriptors,
    ) -> io::Result<RwLockReadGuard<'_, Slot>> {
        let mut slot = self.slot.write();
        if slot.is_gone {
            return Err(io::ErrorKind::NotFound.into());
        }
        if slot.file.is_none() {
            let file = self.open_by_name(descriptors)?;
            slot.file = Some(OpenFile::new(file, descriptors.open_count()));
            descriptors.admit(self);
        }
        Ok(RwLockWriteGuard::downgrade(slot))
    }

    fn open_by_name(&self, descriptors: &Descriptors) -> io::Result<File> {
        let name = self.name.lock();
        let path = name.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let file = descriptors.retry(|| OpenOptions::new().read(true).write(true).open(path))?;
        if identity(&file)? != self.identity {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name is another file's by now",
            ));
        }
        Ok(file)
    }

    /// Opens it if need be, and keeps it open for good: it is about to lose its name.
    ///
    /// # Errors
    /// As [`Self::open`]; `NotFound` is none, since there is nothing left to keep.
    pub(super) fn pin(self: &Arc<Self>, disk: &Shared) -> io::Result<()> {
        match self.open(disk) {
            Ok(_in_use) => {
                self.pinned.store(true, Ordering::Release);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes it if nobody uses it and nothing can be lost by that.
    pub(super) fn try_close(&self) -> Closing {
        // Whoever works with the file holds the slot: a write that is not done yet is in nobody's way here.
        let Some(mut slot) = self.slot.try_write() else {
            return Closing::Used;
        };
        if self.pinned.load(Ordering::Acquire) {
            return Closing::Never;
        }
        if !self.is_clean() {
            self.parked.store(true, Ordering::Release);
            return Closing::Dirty;
        }
        let is_lent = slot
            .file
            .as_ref()
            .is_some_and(|file| Arc::strong_count(file) > 1);
        if self.used.swap(false, Ordering::Relaxed) || is_lent {
            return Closing::Used;
        }
        slot.file = None;
        Closing::Closed
    }

    /// Closes it for good.
    pub(super) fn close(&self) {
        let mut slot = self.slot.write();
        slot.file = None;
        slot.is_gone = true;
    }

    /// Notes a write, whole or not, while the file is held open by the writer.
    pub(super) fn note_write(&self) {
        let tick = self.file_system.after_write();
        self.written.fetch_max(tick, Ordering::AcqRel);
    }

    /// Notes that a sync of its own went well, which began with this number.
    pub(super) fn note_sync(&self, begun: Tick) {
        self.synced.fetch_max(begun, Ordering::AcqRel);
    }

    /// A sync of the file system failed: unless the file is clean, the failure may be about it.
    pub(super) fn suspect(&self) {
        // Writes under way are waited for: they may be what failed.
        let _slot = self.slot.write();
        if !self.is_clean() {
            self.suspect
                .store(self.file_system.begin_sync(), Ordering::Release);
        }
    }

    /// Whether a sync that went well covers every write that is done. The kernel may forget an error of writing back once a
    /// file is closed; of a clean file there is none to come.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Acquire) > self.synced.load(Ordering::Acquire)
    }

    pub(super) fn is_clean(&self) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let synced = self.synced.load(Ordering::Acquire);
        let is_suspect = self.suspect.load(Ordering::Acquire) > synced;
        written <= synced || (!is_suspect && self.file_system.covers(written))
    }

    /// Takes the mark of a file that is out of the round; whether it had it.
    pub(super) fn take_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire) && self.parked.swap(false, Ordering::AcqRel)
    }

    /// Whether it is out of the round because it was dirty.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire)
    }
}

/// Device and inode.
pub(super) fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
