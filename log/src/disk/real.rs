//! Files of the operating system.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation};

use super::residency::Residency;
use super::{Disk, DiskFile};
use crate::mmap::{self, Map, Publisher};

/// Bytes written at a time where the file system has no `fallocate`.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// The operating system's file tree.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile(File, Residency);

impl From<File> for RealFile {
    fn from(file: File) -> Self {
        Self(file, Residency::default())
    }
}

impl Disk for RealDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            self.create_dir_all(parent)?;
        }
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
                return Ok(());
            }
            other => other?,
        }
        match path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            Some(parent) => self.sync_dir(parent),
            None => self.sync_dir(Path::new(".")),
        }
    }

    fn make_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        entries
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        Ok(Arc::new(RealFile::from(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(RealFile::from(file)))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn boot_id(&self) -> String {
        // A system without the file gets a name of no boot, which no stored one equals: the careful answer.
        fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_default()
    }
}

impl RealFile {
    fn fallocate(&self, flags: FallocateFlags, bytes: u64) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.0, flags, 0, bytes))
            .map_err(io::Error::from)
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match self.fallocate(FallocateFlags::empty(), bytes) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let mut end = self.len()?;
                while end < bytes {
                    let step = (bytes - end).min(ZEROS.len() as u64);
                    self.0.write_all_at(
                        &ZEROS[..usize::try_from(step).unwrap_or(ZEROS.len())],
                        end,
                    )?;
                    end += step;
                }
                Ok(())
            }
            other => other,
        }
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        match self.fallocate(FallocateFlags::KEEP_SIZE, bytes) {
            // Where it cannot be done ahead, the write itself reports the full disk.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other,
        }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn map(&self, capacity: usize, published: usize) -> io::Result<(Map, Publisher)> {
        mmap::map_file(&self.0, capacity, published)
    }

    fn map_read_only(&self, bytes: usize) -> io::Result<Map> {
        if self.len()? < bytes as u64 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file is shorter than the bytes to be mapped",
            ));
        }
        mmap::map_file_read_only(&self.0, bytes)
    }

    fn read_all(&self) -> io::Result<Vec<u8>> {
        let bytes = usize::try_from(self.len()?)
            .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut out = vec![0; bytes];
        self.0.read_exact_at(&mut out, 0)?;
        Ok(out)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn is_resident(&self, position: u64, bytes: u64) -> bool {
        self.1.holds(&self.0, position, bytes)
    }

    fn load(&self, position: u64, bytes: u64, see: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.1.load(&self.0, position, bytes, see)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        // Linux tells of failures here since 5.8.
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
