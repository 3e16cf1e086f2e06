//! Files of the operating system.
//!
//! A log has more files than a process may have open. So a [`DiskFile`] keeps its descriptor only as long as the disk has no
//! better use for it ([`descriptors`]), and opens the file again by its name ([`held`], [`names`]).
//!
//! - **DISK-1**: a file with writes that no sync covers is not closed ([`file_system`]). The kernel tells a failure to write
//!   back to those who have the file open, and may forget it when nobody has.
//! - **DISK-2**: a file that loses its name is opened before that and not closed any more.
//! - **DISK-3**: maps are lent and given up in the same way ([`maps`]), but not while someone holds them.
//! - The limit of descriptors is exceeded where it cannot be kept so. Where it is by far, or the system has no more, the disk
//!   syncs the file systems itself.

mod descriptors;
mod file;
mod file_system;
mod held;
mod maps;
mod names;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::FlockOperation;

use self::descriptors::{Descriptors, is_lack};
use self::file::RealFile;
use self::file_system::{FileSystem, FileSystems};
pub(super) use self::held::OpenFile;
use self::held::{HeldFile, identity};
use self::maps::Maps;
use self::names::Names;
use super::{Disk, DiskFile};

/// The operating system's file tree. Clones share their descriptors.
///
/// What is open through it must be renamed and removed through it, too.
#[derive(Debug, Clone)]
pub struct RealDisk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    descriptors: Descriptors,
    maps: Maps,
    names: Names,
    file_systems: FileSystems,
    boot_id: OnceLock<String>,
}

impl Shared {
    /// Syncs a file system by `sync`, and closes files that are clean by that, if there are too many.
    fn sync_by(
        &self,
        file_system: &Arc<FileSystem>,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        file_system.sync(sync, || {
            for file in self.descriptors.open_files() {
                if Arc::ptr_eq(file.file_system(), file_system) {
                    file.suspect();
                }
            }
        })?;
        self.descriptors.cleaned_many();
        Ok(())
    }

    /// Syncs all file systems, so that dirty files may be closed; whether there were any.
    fn make_clean(&self) -> bool {
        let has_dirty = self.descriptors.has_dirty();
        if has_dirty {
            for file_system in self.file_systems.all() {
                // A failure is told to all who sync: here it only means that files stay open.
                if let Err(error) = self.sync_by(&file_system, sync_all) {
                    tracing::warn!(%error, "files stay open: a file system was not synced");
                }
            }
        }
        has_dirty
    }

    /// Makes dirty files clean where too many of them are open.
    fn thin_out(&self) {
        if self.descriptors.is_crowded() {
            self.make_clean();
        }
    }

    /// Opens something by `open`, and makes room for it where the system has no descriptor.
    fn open(&self, open: impl Fn() -> io::Result<File>) -> io::Result<File> {
        self.thin_out();
        match self.descriptors.retry(&open) {
            Err(error) if is_lack(&error) && self.make_clean() => self.descriptors.retry(open),
            opened => opened,
        }
    }
}

/// Writes back everything of the file system that holds `file`. Linux tells of failures here since 5.8.
fn sync_all(file: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

impl Default for RealDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl RealDisk {
    /// Keeps at most a quarter as many files open as the process may have open now, and at least 64; and a quarter as many
    /// maps as it may have.
    #[must_use]
    pub fn new() -> Self {
        Self::with_descriptors(descriptors::default_limit())
    }

    /// Keeps at most `limit` files open, and at least one; more where it must: files with writes that no sync covers, and
    /// removed ones that are still read. With half as many again it syncs the file systems to be able to close some.
    #[must_use]
    pub fn with_descriptors(limit: usize) -> Self {
        Self::with_limits(limit, maps::default_limit())
    }

    /// As [`Self::with_descriptors`], and keeps at most `maps` maps of files, and at least one; more where so many are held.
    #[must_use]
    pub fn with_limits(descriptors: usize, maps: usize) -> Self {
        let crowd = descriptors.saturating_add(descriptors / 2);
        Self::with_crowd(descriptors, crowd, maps)
    }

    /// Syncs all files rather than have `crowd` of them open.
    fn with_crowd(limit: usize, crowd: usize, maps: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                descriptors: Descriptors::new(limit, crowd),
                maps: Maps::new(maps),
                names: Names::default(),
                file_systems: FileSystems::default(),
                boot_id: OnceLock::new(),
            }),
        }
    }

    /// Opens a file whose name the caller has locked.
    fn open_with(&self, path: &Path, options: &OpenOptions) -> io::Result<Arc<dyn DiskFile>> {
        let disk = &self.shared;
        let mut file = disk.open(|| options.open(path))?;
        let known = disk.file_systems.known(identity(&file)?.0);
        let file_system = match known {
            Some(known) => known,
            None => {
                // Its failures are told to what is opened from now on.
                let file_system = disk.file_systems.of(path)?;
                file = disk.open(|| options.open(path))?;
                file_system
            }
        };
        let path: Arc<Path> = path.into();
        let held = HeldFile::new(file, &path, file_system, &disk.descriptors)?;
        let opened = Arc::new(RealFile::new(&held, disk));
        if disk.names.add(&path, &held) {
            held.pin(disk)?;
        }
        disk.descriptors.admit(&held);
        Ok(opened)
    }

    /// Keeps files open that are about to lose their name.
    fn pin(&self, files: &[Arc<HeldFile>]) -> io::Result<()> {
        files.iter().try_for_each(|file| file.pin(&self.shared))
    }

    /// `files` have lost their name.
    fn forget_name(&self, files: &[Arc<HeldFile>]) {
        for file in files {
            if let Some(path) = file.name().take() {
                self.shared.names.remove(&path, file.id());
            }
        }
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

    fn free_bytes(&self, path: &Path) -> u64 {
        rustix::fs::statvfs(path)
            .map_or(u64::MAX, |free| free.f_bavail.saturating_mul(free.f_frsize))
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
        self.shared.open(|| File::open(path))?.sync_all()
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let _locked = self.shared.names.lock(path);
        let files = self.shared.names.at(path);
        self.pin(&files)?;
        fs::remove_file(path)?;
        self.forget_name(&files);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let files = self.shared.names.begin_removal(path);
        let removed = self
            .pin(&files)
            .and_then(|()| match fs::remove_dir_all(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            });
        self.shared.names.end_removal(path);
        if removed.is_ok() {
            self.forget_name(&files);
        }
        removed
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if from == to {
            return fs::rename(from, to);
        }
        let names = &self.shared.names;
        let _locked = names.lock_both(from, to);
        let (moved, replaced) = (names.at(from), names.at(to));
        self.pin(&replaced)?;
        // Nobody opens one of them by its old name from here on.
        let mut old_names: Vec<_> = moved.iter().map(|file| file.name()).collect();
        fs::rename(from, to)?;
        let to: Arc<Path> = to.into();
        for (file, name) in moved.iter().zip(&mut old_names) {
            if let Some(old) = name.replace(Arc::clone(&to)) {
                names.remove(&old, file.id());
                names.add(&to, file);
            }
        }
        drop(old_names);
        self.forget_name(&replaced);
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _locked = self.shared.names.lock(path);
        self.open_with(
            path,
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true),
        )
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _locked = self.shared.names.lock(path);
        self.open_with(path, OpenOptions::new().read(true).write(true))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = self.shared.open(|| options.open(path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn boot_id(&self) -> String {
        // A system without the file gets a name of no boot, which no stored one equals: the careful answer.
        let read = || {
            fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .map(|id| id.trim().to_owned())
                .unwrap_or_default()
        };
        self.shared.boot_id.get_or_init(read).clone()
    }
}
