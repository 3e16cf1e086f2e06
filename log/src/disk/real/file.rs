//! A file of the operating system.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;

use super::held::{HeldFile, InUse};
use super::maps::MapSlot;
use super::{Shared, sync_all};
use crate::disk::residency::Residency;
use crate::disk::{Descriptor, DiskFile};
use crate::mmap::{self, Map};

/// So much is written to the disk at a time when there is no hurry: on a disk of 500 MB/s others wait for half a
/// millisecond.
const WRITE_BACK_BYTES: usize = 256 << 10;
/// Bytes written at a time where the file system has no `fallocate`.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// A file as its user has it. Dropping it closes it.
#[derive(Debug)]
pub(super) struct RealFile {
    pub(super) held: Arc<HeldFile>,
    disk: Arc<Shared>,
    /// Failed syncs of the file system that this file's user knows of.
    known_failures: AtomicU64,
    residency: Residency,
    map: Arc<MapSlot>,
}

impl RealFile {
    /// A file that was just opened and has no writes yet.
    pub(super) fn new(held: &Arc<HeldFile>, disk: &Arc<Shared>) -> Self {
        Self {
            held: Arc::clone(held),
            disk: Arc::clone(disk),
            known_failures: AtomicU64::new(held.file_system().failures()),
            residency: Residency::default(),
            map: Arc::default(),
        }
    }

    fn open(&self) -> io::Result<InUse<'_>> {
        self.held.open(&self.disk)
    }

    /// Writes by `write`.
    fn write_by(&self, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let file = self.open()?;
        let written = write(&file);
        // Also where it failed: a part may have been written. And before the file may be closed.
        self.held.note_write();
        written
    }

    /// Syncs the file system by `sync`.
    pub(super) fn sync_file_system_by(
        &self,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let file_system = self.held.file_system();
        let synced = self.disk.sync_by(file_system, sync);
        let failures = file_system.failures();
        let known = self.known_failures.swap(failures, Ordering::AcqRel);
        // The kernel told whoever asked first, about files of others, too.
        synced.and_then(|()| {
            if known == failures {
                Ok(())
            } else {
                Err(io::Error::other("a sync of the file system has failed"))
            }
        })
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        self.disk.maps.forget(&self.map);
        self.held.close();
        self.disk.descriptors.forget(&self.held);
        if let Some(path) = self.held.name().take() {
            self.disk.names.remove(&path, self.held.id());
        }
    }
}

fn fallocate(file: &File, flags: FallocateFlags, range: Range<u64>) -> io::Result<()> {
    let bytes = range.end - range.start;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, range.start, bytes))
        .map_err(io::Error::from)
}

/// What `fallocate` does, where there is none.
fn fill_with_zeros(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let mut end = from;
    while end < bytes {
        let step = usize::try_from(bytes - end).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        file.write_all_at(&ZEROS[..step], end)?;
        end += step as u64;
    }
    Ok(())
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.open()?.metadata()?.len())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.write_by(
            |file| match fallocate(file, FallocateFlags::empty(), 0..bytes) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    fill_with_zeros(file, file.metadata()?.len(), bytes)
                }
                other => other,
            },
        )
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.write_by(
            |file| match fallocate(file, FallocateFlags::KEEP_SIZE, 0..bytes) {
                // Where it cannot be done ahead, the write itself reports the full disk.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
                other => other,
            },
        )
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.write_by(|file| file.set_len(bytes))
    }

    fn zero_from(&self, from: u64) -> io::Result<()> {
        self.write_by(|file| {
            let end = file.metadata()?.len();
            if from >= end {
                return Ok(());
            }
            // Whatever keeps it from being done at once, writing tells.
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, from..end).or_else(|_| fill_with_zeros(file, from, end))
        })
    }

    fn map(&self, readable: usize, expected: usize) -> io::Result<Map> {
        let make = || {
            let file = self.open()?;
            if file.metadata()?.len() < readable as u64 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file is shorter than the bytes to be mapped",
                ));
            }
            mmap::map_file(&file, readable.max(expected), self.disk.maps.live_count())
        };
        self.disk.maps.lend(&self.map, readable, make)
    }

    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<()> {
        self.open()?.read_exact_at(bytes, position)
    }

    fn read_all(&self) -> io::Result<Vec<u8>> {
        let file = self.open()?;
        let bytes = usize::try_from(file.metadata()?.len())
            .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut out = vec![0; bytes];
        file.read_exact_at(&mut out, 0)?;
        Ok(out)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_by(|file| file.write_all_at(bytes, position))
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        let file = self.open()?;
        range
            .clone()
            .step_by(WRITE_BACK_BYTES)
            .try_for_each(|from| {
                let to = range.end.min(from + WRITE_BACK_BYTES as u64);
                mmap::write_back(&file, from..to)
            })
    }

    fn sync(&self) -> io::Result<()> {
        {
            let file = self.open()?;
            let begun = self.held.file_system().begin_sync();
            file.sync_data()?;
            self.held.note_sync(begun);
        }
        self.disk.descriptors.cleaned(&self.held);
        Ok(())
    }

    fn is_resident(&self, position: u64, bytes: u64) -> bool {
        // One that was closed is opened here: its name was in memory not long ago. What fails is for the read to report.
        self.open()
            .is_ok_and(|file| self.residency.holds(&file, position, bytes))
    }

    fn load(&self, position: u64, bytes: u64, see: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.residency.load(&*self.open()?, position, bytes, see)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.sync_file_system_by(sync_all)
    }

    fn file_system(&self) -> Option<u64> {
        (!self.held.is_suspect()).then(|| self.held.file_system().device())
    }

    fn descriptor(&self) -> io::Result<Option<Descriptor>> {
        Ok(Some(Descriptor(Arc::clone(&*self.open()?))))
    }
}
