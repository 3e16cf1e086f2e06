//! Hydrated row groups: files of frames in a folder of bounded size.
//!
//! - **COL-10**: a row group is hydrated once at a time, however many readers wait for it; all get the same answer.
//! - **COL-11**: files beyond the budget are unlinked, least recently used first. A reader that holds one keeps its bytes
//!   until it lets go.
//!   A full disk empties the cache.
//! - **COL-12**: a file appears under its name only when it is whole. The folder is emptied at start.

use std::collections::HashMap;
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use basalt_log::{Disk, SegmentView};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::error::HydrateError;

/// What a hydrated file's name ends in.
const SUFFIX: &str = ".frames";
/// What it ends in while it is being written.
const UNFINISHED_SUFFIX: &str = ".frames.unfinished";

/// A hydrated row group.
pub(crate) type Hydrated = Result<Arc<SegmentView>, Arc<HydrateError>>;

/// The folder and what is in it. One for a tiered log.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    folder: PathBuf,
    limit_bytes: u64,
    /// Through which its files are read: so they must be removed through it, too.
    disk: Arc<dyn Disk>,
    runtime: Handle,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    chunks: HashMap<String, Entry>,
    ready_bytes: u64,
    /// Counts uses: the smallest is the least recent.
    clock: u64,
}

#[derive(Debug)]
enum Entry {
    Loading(Shared<BoxFuture<'static, Hydrated>>),
    Ready {
        view: Arc<SegmentView>,
        bytes: u64,
        last_used: u64,
    },
}

impl ChunkCache {
    /// An empty cache in `folder`, whose leftovers are removed.
    pub(crate) fn open(
        folder: &FsPath,
        limit_bytes: u64,
        disk: Arc<dyn Disk>,
        runtime: Handle,
    ) -> io::Result<Arc<Self>> {
        std::fs::create_dir_all(folder)?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(SUFFIX) || name.ends_with(UNFINISHED_SUFFIX) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let entries = Mutex::new(Entries::default());
        Ok(Arc::new(Self {
            folder: folder.to_owned(),
            limit_bytes,
            disk,
            runtime,
            entries,
        }))
    }

    /// The disk through which its files are opened.
    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Where the file called `name` goes, and where it is written until it is whole.
    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        (
            self.folder.join(format!("{name}{SUFFIX}")),
            self.folder.join(format!("{name}{UNFINISHED_SUFFIX}")),
        )
    }

    /// Whether `name` is there or on its way.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.lock().chunks.contains_key(name)
    }

    /// Whether `name` is on its way.
    pub(crate) fn is_loading(&self, name: &str) -> bool {
        let entries = self.entries.lock();
        matches!(entries.chunks.get(name), Some(Entry::Loading(_)))
    }

    /// The row group called `name`, hydrated by `load` if it is not there (COL-10). `load` gets the path to write to and the
    /// path to rename the file to. It goes on when the caller stops waiting.
    pub(crate) async fn get<F>(
        self: &Arc<Self>,
        name: &str,
        load: impl FnOnce(PathBuf, PathBuf) -> F,
    ) -> Hydrated
    where
        F: Future<Output = Result<SegmentView, HydrateError>> + Send + 'static,
    {
        let loading = {
            let mut entries = self.entries.lock();
            entries.clock += 1;
            let now = entries.clock;
            match entries.chunks.get_mut(name) {
                Some(Entry::Ready {
                    view, last_used, ..
                }) => {
                    *last_used = now;
                    return Ok(Arc::clone(view));
                }
                Some(Entry::Loading(loading)) => loading.clone(),
                None => {
                    let (file, unfinished) = self.paths(name);
                    let loading =
                        self.start(name.to_owned(), unfinished.clone(), load(unfinished, file));
                    entries
                        .chunks
                        .insert(name.to_owned(), Entry::Loading(loading.clone()));
                    loading
                }
            }
        };
        loading.await
    }

    fn start<F>(
        self: &Arc<Self>,
        name: String,
        unfinished: PathBuf,
        load: F,
    ) -> Shared<BoxFuture<'static, Hydrated>>
    where
        F: Future<Output = Result<SegmentView, HydrateError>> + Send + 'static,
    {
        let cache = Arc::clone(self);
        let task = self.runtime.spawn(async move {
            let loaded = load.await.map(Arc::new).map_err(Arc::new);
            if loaded.is_err() {
                // What there is of it would be overwritten by the next try anyway.
                let _ = std::fs::remove_file(unfinished);
            }
            cache.settle(&name, &loaded);
            loaded
        });
        let ended = async move {
            task.await
                .unwrap_or_else(|_| Err(Arc::new(HydrateError::ShutDown)))
        };
        ended.boxed().shared()
    }

    /// Puts what was loaded in the place of its loading, and makes room.
    fn settle(&self, name: &str, loaded: &Hydrated) {
        let mut evicted = Vec::new();
        let mut entries = self.entries.lock();
        match loaded {
            Ok(view) => {
                entries.clock += 1;
                let ready = Entry::Ready {
                    view: Arc::clone(view),
                    bytes: view.frame_bytes(),
                    last_used: entries.clock,
                };
                entries.ready_bytes += view.frame_bytes();
                entries.chunks.insert(name.to_owned(), ready);
            }
            Err(_) => {
                entries.chunks.remove(name);
            }
        }
        let mut limit_bytes = self.limit_bytes;
        if let Err(error) = loaded
            && is_full(error.as_ref())
        {
            // The cache itself may be what fills the disk: it gives all of it back, so that the reader's next try finds room.
            tracing::warn!(%error, cached_bytes = entries.ready_bytes, "no room to hydrate a row group, the cache is emptied");
            limit_bytes = 0;
        }
        while entries.ready_bytes > limit_bytes {
            let Some(oldest) = entries.oldest_but(name) else {
                break;
            };
            if let Some(Entry::Ready { view, bytes, .. }) = entries.chunks.remove(&oldest) {
                entries.ready_bytes -= bytes;
                // Unlinked under the lock: a new hydration of the same name must not find its file removed.
                if let Err(error) = self.disk.remove_file(view.path()) {
                    tracing::warn!(path = %view.path().display(), %error, "cannot remove a hydrated file");
                }
                evicted.push(view);
            }
        }
        drop(entries);
        // Unmapping takes a moment and needs no lock.
        drop(evicted);
    }

    /// Bytes of hydrated files, of those that are not evicted.
    #[cfg(test)]
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.entries.lock().ready_bytes
    }
}

/// Whether a full disk is among the causes.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::StorageFull) {
            return true;
        }
        cause = error.source();
    }
    false
}

impl Entries {
    fn oldest_but(&self, name: &str) -> Option<String> {
        let ready = self.chunks.iter().filter_map(|(other, entry)| match entry {
            Entry::Ready { last_used, .. } if other != name => Some((*last_used, other)),
            _ => None,
        });
        ready.min().map(|(_, other)| other.clone())
    }
}

#[cfg(test)]
mod tests;
