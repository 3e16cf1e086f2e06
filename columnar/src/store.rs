//! The object store, made durable.
//!
//! `object_store` has no notion of fsync, so a local store syncs what was written itself: the file, its folder, and
//! every folder up to the root. On real object stores a put that returned is durable.
//!
//! - **COL-1**: whatever [`ColdStore::sync`] or [`ColdStore::put_new`] returned for is there after a power cut.
//! - **COL-2**: [`ColdStore::put_new`] never replaces an object, and no reader ever sees a part of one.

mod explain;
mod local;
mod location;
mod open;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use local::{
    blocking, fs_path, remove_empty_below, remove_staged, sync_file_and_folders, sync_one,
};

pub(crate) use explain::{NEEDS_CONDITIONAL_PUTS, explained};
pub use local::holds_files;
pub use location::{LocationError, StoreConfig};

/// What a name ends in while its object is being written by [`ColdStore::put_new`] on a local store.
pub(crate) const UNCOMMITTED_SUFFIX: &str = ".uncommitted";

/// Where cold objects are kept. Cheap to clone.
#[derive(Clone)]
pub struct ColdStore {
    object_store: Arc<dyn ObjectStore>,
    root: Option<PathBuf>,
    /// What people call it.
    name: Arc<str>,
    /// Whether other servers may reach it, so that who may write must be settled ([`crate::owner`]).
    shared: bool,
}

/// Leaves out the store's client, which knows secrets.
impl fmt::Debug for ColdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColdStore")
            .field("name", &self.name)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
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
    /// The settings name no store that can be used.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// The store cannot be used as it is: it is not there, lets nobody in, or cannot do what is needed.
    #[error(transparent)]
    Unusable(Box<UnusableStore>),
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

/// What is wrong with a store, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{store} {problem}: {remedy}")]
pub struct UnusableStore {
    /// The store.
    pub store: String,
    /// What is wrong with it.
    pub problem: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
    /// The store's error, if that is how it shows.
    #[source]
    pub source: Option<object_store::Error>,
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
        let store = Self::in_folder(&root.into(), wrap)?;
        store.remove_staged()?;
        Ok(store)
    }

    fn in_folder(
        root: &FsPath,
        wrap: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
    ) -> Result<Self, StoreError> {
        let folder = |source: io::Error| StoreError::Folder {
            path: root.to_owned(),
            source,
        };
        std::fs::create_dir_all(root).map_err(folder)?;
        let root = root.canonicalize().map_err(folder)?;
        let local = LocalFileSystem::new_with_prefix(&root)
            .map_err(StoreError::object("open", &Path::default()))?;
        Ok(Self {
            object_store: wrap(Arc::new(local)),
            name: root.display().to_string().into(),
            root: Some(root),
            shared: false,
        })
    }

    /// Objects in any store whose puts are durable when they return.
    #[must_use]
    pub fn remote(object_store: Arc<dyn ObjectStore>) -> Self {
        Self {
            name: object_store.to_string().into(),
            object_store,
            root: None,
            shared: false,
        }
    }

    /// The same as one that other servers may reach: it is claimed before it is used ([`crate::TieredLog::open`]).
    #[must_use]
    pub fn shared(self) -> Self {
        Self {
            shared: true,
            ..self
        }
    }

    /// Whether other servers may reach it.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.shared
    }

    /// What people call it: a URL without secrets, or a folder.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes what a stopped upload left in a local store's folder. Whoever calls it is the only one who uploads.
    ///
    /// # Errors
    /// [`StoreError::Folder`].
    pub(crate) fn remove_staged(&self) -> Result<(), StoreError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        remove_staged(root).map_err(|source| StoreError::Folder {
            path: root.clone(),
            source,
        })
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
        let below = (!prefix.as_ref().is_empty()).then_some(prefix);
        self.object_store
            .list(below)
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
    format!("{:016x}", chance())
}

/// Any number.
pub(crate) fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
