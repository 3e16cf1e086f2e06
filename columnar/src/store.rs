//! The object store, made durable.
//!
//! `object_store` has no notion of fsync, so a local store syncs what was written itself: the file, its folder, and
//! every folder up to the root. On real object stores a put that returned is durable.
//!
//! - **COL-1**: whatever [`ColdStore::sync`] or [`ColdStore::put_new`] returned for is there after a power cut.
//! - **COL-2**: [`ColdStore::put_new`] never replaces an object, and no reader ever sees a part of one.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

/// What a name ends in while its object is being written by [`ColdStore::put_new`] on a local store.
pub(crate) const UNCOMMITTED_SUFFIX: &str = ".uncommitted";

/// Where cold objects are kept. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ColdStore {
    object_store: Arc<dyn ObjectStore>,
    root: Option<PathBuf>,
}

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A local store's folder cannot be used.
    #[error("the folder {} cannot hold cold files", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// An object could not be written, read, listed or deleted.
    #[error("cannot {action} {path}")]
    Object {
        /// What was tried.
        action: &'static str,
        /// The object.
        path: String,
        /// The store's error.
        #[source]
        source: object_store::Error,
    },
    /// An object is there already.
    #[error("{path} is there already")]
    Exists {
        /// The object.
        path: String,
    },
    /// A file or folder of a local store could not be opened to be synced: nothing was tried, so trying again may succeed.
    #[error("cannot open {} to sync it", path.display())]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file or folder of a local store could not be made durable. Whether it is, nobody knows.
    #[error("cannot sync {}", path.display())]
    Sync {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl StoreError {
    pub(crate) fn object(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(object_store::Error) -> Self {
        let path = path.to_string();
        move |source| Self::Object {
            action,
            path,
            source,
        }
    }

    /// Whether the object was not there.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Object {
                source: object_store::Error::NotFound { .. },
                ..
            }
        )
    }
}

impl ColdStore {
    /// Objects as files below `root`, which is created.
    ///
    /// # Errors
    /// [`StoreError::Folder`].
    pub fn local(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::local_through(root, |store| store)
    }

    /// As [`ColdStore::local`], with every access going through `wrap`: for tests that fail or delay some.
    ///
    /// # Errors
    /// [`StoreError::Folder`].
    pub fn local_through(
        root: impl Into<PathBuf>,
        wrap: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
    ) -> Result<Self, StoreError> {
        let root = root.into();
        let folder = |source: io::Error| StoreError::Folder {
            path: root.clone(),
            source,
        };
        std::fs::create_dir_all(&root).map_err(folder)?;
        let root = root.canonicalize().map_err(folder)?;
        let local = LocalFileSystem::new_with_prefix(&root)
            .map_err(StoreError::object("open", &Path::default()))?;
        remove_staged(&root).map_err(|source| StoreError::Folder {
            path: root.clone(),
            source,
        })?;
        Ok(Self {
            object_store: wrap(Arc::new(local)),
            root: Some(root),
        })
    }

    /// Objects in any store whose puts are durable when they return.
    #[must_use]
    pub fn remote(object_store: Arc<dyn ObjectStore>) -> Self {
        Self {
            object_store,
            root: None,
        }
    }

    /// The store itself, for readers.
    #[must_use]
    pub const fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.object_store
    }

    /// The folder of a local store.
    #[must_use]
    pub fn root(&self) -> Option<&FsPath> {
        self.root.as_deref()
    }

    /// Makes an object that was written durable, with the folders that lead to it.
    ///
    /// # Errors
    /// [`StoreError::Sync`]: it may be gone after a power cut, and asking again proves nothing. [`StoreError::Open`]: it was not
    /// tried.
    pub async fn sync(&self, path: &Path) -> Result<(), StoreError> {
        let Some(root) = self.root.clone() else {
            return Ok(());
        };
        let file = fs_path(&root, path);
        blocking(move || sync_file_and_folders(&root, &file)).await
    }

    /// Writes an object, durably, replacing an older one.
    ///
    /// # Errors
    /// [`StoreError::Object`], [`StoreError::Open`] or [`StoreError::Sync`]: it may be there or not.
    pub async fn put_durable(&self, path: &Path, bytes: Bytes) -> Result<(), StoreError> {
        self.object_store
            .put(path, PutPayload::from_bytes(bytes))
            .await
            .map_err(StoreError::object("write", path))?;
        self.sync(path).await
    }

    /// Writes a new object, durably and in one piece, unless there is one.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when there is one; after any other error the object may be there or not.
    pub async fn put_new(&self, path: &Path, bytes: Bytes) -> Result<(), StoreError> {
        let payload = PutPayload::from_bytes(bytes);
        let exists_or = |action, source| match source {
            object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. } => StoreError::Exists {
                path: path.to_string(),
            },
            source => StoreError::Object {
                action,
                path: path.to_string(),
                source,
            },
        };
        if self.root.is_none() {
            let options = PutOptions {
                mode: PutMode::Create,
                ..PutOptions::default()
            };
            return match self.object_store.put_opts(path, payload, options).await {
                Ok(_) => Ok(()),
                Err(source) => Err(exists_or("create", source)),
            };
        }
        // A local put syncs nothing before it links the name, so the bytes are made durable under another name first.
        let uncommitted = Path::from(format!("{path}.{}{UNCOMMITTED_SUFFIX}", nonce()));
        self.object_store
            .put(&uncommitted, payload)
            .await
            .map_err(StoreError::object("write", &uncommitted))?;
        self.sync(&uncommitted).await?;
        let named = self
            .object_store
            .copy_if_not_exists(&uncommitted, path)
            .await;
        // A leftover is collected at the next start.
        let _ = self.object_store.delete(&uncommitted).await;
        named.map_err(|source| exists_or("create", source))?;
        self.sync(path).await
    }

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`StoreError::Object`].
    pub async fn get(&self, path: &Path) -> Result<Bytes, StoreError> {
        let read = async { self.object_store.get(path).await?.bytes().await };
        read.await.map_err(StoreError::object("read", path))
    }

    /// Whether an object is there.
    ///
    /// # Errors
    /// [`StoreError::Object`].
    pub async fn exists(&self, path: &Path) -> Result<bool, StoreError> {
        match self.object_store.head(path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(source) => Err(StoreError::Object {
                action: "look for",
                path: path.to_string(),
                source,
            }),
        }
    }

    /// Deletes an object; fine if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Object`].
    pub async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        match self.object_store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(StoreError::Object {
                action: "delete",
                path: path.to_string(),
                source,
            }),
        }
    }

    /// Deletes an object so that no power cut brings it back; fine if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Object`], [`StoreError::Open`] or [`StoreError::Sync`]: it may be there or not.
    pub(crate) async fn delete_durable(&self, path: &Path) -> Result<(), StoreError> {
        self.delete(path).await?;
        let Some(root) = self.root.clone() else {
            return Ok(());
        };
        let file = fs_path(&root, path);
        blocking(move || match file.parent() {
            // A folder that is not there was never made, or is gone with what was in it.
            Some(folder) if folder.exists() => sync_one(folder),
            _ => Ok(()),
        })
        .await
    }

    /// Everything below a prefix.
    ///
    /// # Errors
    /// [`StoreError::Object`].
    pub async fn list(&self, prefix: &Path) -> Result<Vec<Path>, StoreError> {
        self.object_store
            .list(Some(prefix))
            .map_ok(|found| found.location)
            .try_collect()
            .await
            .map_err(StoreError::object("list", prefix))
    }

    /// The folders right below a prefix.
    ///
    /// # Errors
    /// [`StoreError::Object`].
    pub async fn list_folders(&self, prefix: Option<&Path>) -> Result<Vec<Path>, StoreError> {
        let shown = prefix.cloned().unwrap_or_default();
        let found = self.object_store.list_with_delimiter(prefix).await;
        Ok(found
            .map_err(StoreError::object("list", &shown))?
            .common_prefixes)
    }

    /// Removes the folders of a local store that were left empty at and below `prefix`, and those above that become so.
    pub(crate) async fn remove_empty_folders(&self, prefix: &Path) {
        let Some(root) = self.root.clone() else {
            return;
        };
        let folder = fs_path(&root, prefix);
        let removed = tokio::task::spawn_blocking(move || {
            remove_empty_below(&folder);
            let mut above = folder.parent();
            while let Some(folder) =
                above.filter(|folder| folder.starts_with(&root) && *folder != root)
            {
                // Fails while something is in it, which is the point.
                if std::fs::remove_dir(folder).is_err() {
                    break;
                }
                above = folder.parent();
            }
        });
        // Empty folders cost nothing: a failure is of no concern.
        let _ = removed.await;
    }
}

/// 16 hex digits that nobody else has.
pub(crate) fn nonce() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

fn fs_path(root: &FsPath, path: &Path) -> PathBuf {
    let mut file = root.to_path_buf();
    file.extend(path.parts().map(|part| part.as_ref().to_owned()));
    file
}

async fn blocking<T: Send + 'static>(
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
fn sync_one(path: &FsPath) -> Result<(), StoreError> {
    let opened = File::open(path).map_err(|source| StoreError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    opened.sync_all().map_err(|source| StoreError::Sync {
        path: path.to_path_buf(),
        source,
    })
}

fn sync_file_and_folders(root: &FsPath, file: &FsPath) -> Result<(), StoreError> {
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

fn remove_empty_below(folder: &FsPath) {
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
fn remove_staged(folder: &FsPath) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn put_new_creates_once_and_never_replaces() {
        let folder = tempfile::tempdir().unwrap();
        for store in [
            ColdStore::local(folder.path()).unwrap(),
            ColdStore::remote(Arc::new(InMemory::new())),
        ] {
            let path = Path::from("a/b/1.json");
            store
                .put_new(&path, Bytes::from_static(b"one"))
                .await
                .unwrap();
            let again = store.put_new(&path, Bytes::from_static(b"two")).await;
            assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
            assert_eq!(store.get(&path).await.unwrap(), "one");
            assert_eq!(
                store.list(&Path::from("a")).await.unwrap(),
                [path],
                "nothing else is left"
            );
        }
    }

    #[tokio::test]
    async fn only_one_of_many_concurrent_creators_wins() {
        let folder = tempfile::tempdir().unwrap();
        let store = ColdStore::local(folder.path()).unwrap();
        let path = Path::from("manifest/1.json");
        let tries = (0..16).map(|n| store.put_new(&path, Bytes::from(n.to_string())));
        let won = futures::future::join_all(tries)
            .await
            .into_iter()
            .filter(Result::is_ok)
            .count();
        assert_eq!(won, 1);
    }

    #[tokio::test]
    async fn leftovers_of_a_stopped_upload_are_removed_at_open_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("t/1");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("x.parquet#1"), b"part").unwrap();
        std::fs::write(inner.join("x.parquet"), b"whole").unwrap();
        std::fs::write(inner.join("notes#1"), b"mine").unwrap();
        drop(ColdStore::local(folder.path()).unwrap());
        let mut names: Vec<_> = std::fs::read_dir(&inner)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["notes#1", "x.parquet"]);
    }

    #[tokio::test]
    async fn a_sync_that_could_not_even_open_the_file_is_not_a_failed_sync() {
        let folder = tempfile::tempdir().unwrap();
        let store = ColdStore::local(folder.path()).unwrap();
        let failed = store.sync(&Path::from("t/1/0/gone.parquet")).await;
        assert!(matches!(failed, Err(StoreError::Open { .. })), "{failed:?}");
    }

    #[tokio::test]
    async fn deleting_what_is_not_there_is_fine_and_empty_folders_go() {
        let folder = tempfile::tempdir().unwrap();
        let store = ColdStore::local(folder.path()).unwrap();
        let path = Path::from("t/1/0/a.parquet");
        store
            .put_durable(&path, Bytes::from_static(b"x"))
            .await
            .unwrap();
        store.delete(&path).await.unwrap();
        store.delete(&path).await.unwrap();
        store.delete_durable(&path).await.unwrap();
        store.remove_empty_folders(&Path::from("t/1")).await;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
