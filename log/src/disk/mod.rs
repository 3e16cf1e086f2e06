//! The seam between the log and the disk: everything the log does to files goes through [`Disk`] and [`DiskFile`],
//! so that tests can lose, tear and fail it ([`sim::SimDisk`]).

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::mmap::Map;

mod real;
mod residency;
pub mod sim;

pub use real::RealDisk;

/// A tree of folders and files.
///
/// Creating, renaming and removing a name is durable once [`Disk::sync_dir`] of its folder has returned; a file's
/// bytes and length are durable once [`DiskFile::sync`] has.
pub trait Disk: Debug + Send + Sync {
    /// Creates a folder and those above it; fine if it is there. Their names are durable on return.
    ///
    /// # Errors
    /// The system's error.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder and those above it; fine if it is there. Their names are durable once [`Disk::sync_dir`] has
    /// returned for each folder above.
    ///
    /// # Errors
    /// The system's error.
    fn make_dir_all(&self, path: &Path) -> io::Result<()> {
        self.create_dir_all(path)
    }

    /// Bytes that are free on the disk of a folder that is there; as good as none bounds a disk that cannot tell.
    fn free_bytes(&self, path: &Path) -> u64 {
        let _ = path;
        u64::MAX
    }

    /// The names in a folder, in no order; none for a folder that is not there.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Whether a file or folder of this name is there.
    ///
    /// # Errors
    /// The system's error.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// The system's error; what was renamed or removed may or may not be so after a crash.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's error, `NotFound` among them.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with all that is in it; fine if it is not there.
    ///
    /// # Errors
    /// The system's error.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Renames a file over another, atomically.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Opens a file for reading and writing, empty: an older one of the name is cut to nothing.
    ///
    /// # Errors
    /// The system's error.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that is there for reading and writing.
    ///
    /// # Errors
    /// The system's error, `NotFound` among them.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Takes the lock on a file, creating it; `None` when another process or log holds it. Dropping the answer
    /// releases it.
    ///
    /// # Errors
    /// The system's error.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;

    /// A name that changes when the machine restarts, that is, when bytes in the page cache may have been lost.
    fn boot_id(&self) -> String;
}

/// An open file. A real one may be closed and opened again behind this: any method may fail for lack of descriptors, and
/// where its name is gone though it was not removed through the [`Disk`].
pub trait DiskFile: Debug + Send + Sync {
    /// Length in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn len(&self) -> io::Result<u64>;

    /// Whether the length is 0.
    ///
    /// # Errors
    /// The system's error.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Gives the file blocks for its first `bytes` bytes and at least that length; new bytes read as zero.
    ///
    /// # Errors
    /// `StorageFull` when the disk has no room: the file is as it was, or longer by part of it.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Gives the file blocks for its first `bytes` bytes and leaves its length alone, so that writing them later
    /// cannot find the disk full.
    ///
    /// # Errors
    /// `StorageFull` when the disk has no room.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Cuts or extends (with zeros) to `bytes`; blocks past the end are given back.
    ///
    /// # Errors
    /// The system's error.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes all bytes from `from` to the end of the file zero. The length stays, and so do blocks.
    ///
    /// # Errors
    /// The system's error; some of them may be zero.
    fn zero_from(&self, from: u64) -> io::Result<()>;

    /// Lends a map of the file for its first `readable` bytes, which are there and will neither change nor be cut off as
    /// long as the map is held. `expected` is how long the file may become while it is mapped.
    ///
    /// A process may have so many maps only: whoever is done with the bytes gives the map back by dropping it, and asks
    /// again later.
    ///
    /// # Errors
    /// The system's error, `OutOfMemory` when it has no more maps; `UnexpectedEof` when the file is shorter.
    fn map(&self, readable: usize, expected: usize) -> io::Result<Map>;

    /// Reads the bytes at `position`, as many as `bytes` holds.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` when the file ends before them.
    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<()> {
        let mut filled = 0;
        self.load(position, bytes.len() as u64, &mut |piece| {
            let end = filled + piece.len();
            bytes[filled..end].copy_from_slice(piece);
            filled = end;
        })
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// The system's error.
    fn read_all(&self) -> io::Result<Vec<u8>>;

    /// Writes `bytes` at `position`, all of them.
    ///
    /// # Errors
    /// The system's error; any part may have been written.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Has the bytes in `range` written to the disk, little by little, so that the sync that follows has little left to do and
    /// others get to the disk in between. It makes nothing durable.
    ///
    /// # Errors
    /// The system's error, as final as that of a sync: the sync that follows may not report it again.
    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        let _ = range;
        Ok(())
    }

    /// Makes the file's bytes and length durable. An error is final: a later success says nothing of the bytes
    /// written before it.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&self) -> io::Result<()>;

    /// Whether `bytes` bytes at `position` are in memory, so that reading them does not wait for the disk. Where there is
    /// no way to tell they are said to be.
    fn is_resident(&self, position: u64, bytes: u64) -> bool {
        let _ = (position, bytes);
        true
    }

    /// Reads `bytes` bytes at `position` so that they are in the system's page cache when it returns, and shows them to `see`
    /// piece by piece.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` when the file ends before them.
    fn load(&self, position: u64, bytes: u64, see: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let index = |at| usize::try_from(at).map_err(|_| io::ErrorKind::UnexpectedEof);
        let (start, end) = (index(position)?, index(position.saturating_add(bytes))?);
        see(self.map(end, end)?.bytes(start..end));
        Ok(())
    }

    /// Makes everything durable in the file system that holds the file: names, lengths and bytes of all files.
    ///
    /// # Errors
    /// The system's error, for a failure since the last call or since the file was opened: any file may have been the
    /// cause, and only its own [`Self::sync`] tells.
    fn sync_file_system(&self) -> io::Result<()>;

    /// Which file system a [`Self::sync_file_system`] must be of to cover this file; `None` when only its own sync does, since
    /// one of them has failed.
    fn file_system(&self) -> Option<u64> {
        Some(0)
    }

    /// The descriptor, for `sendfile(2)`; `None` on a simulated disk.
    ///
    /// # Errors
    /// The system's error where the file has to be opened for it.
    fn descriptor(&self) -> io::Result<Option<Descriptor>>;
}

/// A descriptor of a file, which is open as long as this lives.
#[derive(Debug, Clone)]
pub struct Descriptor(Arc<real::OpenFile>);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    path.with_file_name(name)
}

/// Replaces the file at `path` by `bytes` so that a crash leaves the old or the new one, whole.
///
/// # Errors
/// The system's error. Which of the two has the name is then not known to be durable.
pub fn replace_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
    let file = write_temporary(disk, path, bytes)?;
    put_in_place(disk, path)?;
    Ok(file)
}

/// The first half of [`replace_file`]: `bytes` are durable under a temporary name, the old file is untouched.
///
/// # Errors
/// The system's error; nothing is left behind if it can be helped.
pub(crate) fn write_temporary(
    disk: &dyn Disk,
    path: &Path,
    bytes: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let temporary = temporary_path(path);
    let written = disk.create(&temporary).and_then(|file| {
        file.write_at(bytes, 0)?;
        file.sync()?;
        Ok(file)
    });
    if written.is_err() {
        // The disk may be full: the half-written file must not keep it so. Its removal failing changes nothing.
        let _ = disk.remove_file(&temporary);
    }
    written
}

/// The second half of [`replace_file`].
///
/// # Errors
/// The system's error; the name may point to either file.
pub(crate) fn put_in_place(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.rename(&temporary_path(path), path)?;
    disk.sync_dir(path.parent().unwrap_or(Path::new(".")))
}
