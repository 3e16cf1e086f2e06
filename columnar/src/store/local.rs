//! What a store in a local folder needs beside `object_store`: syncs, and removing what a crash leaves.

use std::fs::File;
use std::io;
use std::path::{Path as FsPath, PathBuf};

use object_store::path::Path;

use super::{StoreError, UNCOMMITTED_SUFFIX};

pub(super) fn fs_path(root: &FsPath, path: &Path) -> PathBuf {
    let mut file = root.to_path_buf();
    file.extend(path.parts().map(|part| part.as_ref().to_owned()));
    file
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(stopped) => Err(StoreError::Sync {
            path: PathBuf::new(),
            source: io::Error::other(stopped),
        }),
    }
}

/// Syncs a file or a folder. Only a failed fsync leaves in doubt what is on the disk; a failed open (no descriptor free) does not.
pub(super) fn sync_one(path: &FsPath) -> Result<(), StoreError> {
    let opened = File::open(path).map_err(|source| StoreError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    opened.sync_all().map_err(|source| StoreError::Sync {
        path: path.to_path_buf(),
        source,
    })
}

pub(super) fn sync_file_and_folders(root: &FsPath, file: &FsPath) -> Result<(), StoreError> {
    sync_one(file)?;
    for folder in file
        .ancestors()
        .skip(1)
        .take_while(|folder| folder.starts_with(root))
    {
        sync_one(folder)?;
    }
    Ok(())
}

pub(super) fn remove_empty_below(folder: &FsPath) {
    if let Ok(entries) = std::fs::read_dir(folder) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_empty_below(&entry.path());
            }
        }
    }
    let _ = std::fs::remove_dir(folder);
}

/// Removes what `LocalFileSystem` leaves behind when it is stopped while it writes: files called `<name>#<number>`, which it
/// hides from its listings.
pub(super) fn remove_staged(folder: &FsPath) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_staged(&entry.path())?;
        } else if is_staged(&entry.file_name().to_string_lossy()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn is_staged(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(name, number)| {
        (name.ends_with(".parquet") || name.ends_with(UNCOMMITTED_SUFFIX) || name == "DELETED")
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Whether there is any file below a folder; none if there is no such folder.
///
/// # Errors
/// The system's error.
pub fn holds_files(folder: &FsPath) -> io::Result<bool> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || holds_files(&entry.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}
