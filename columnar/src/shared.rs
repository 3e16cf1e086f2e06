//! What all partitions of a tiered log share.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use basalt_log::{ChunkBlocks, Disk, Log, SegmentView};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::budget::Budget;
use crate::cache::{ChunkCache, Hydrated};
use crate::config::ColdConfig;
use crate::error::{CoolError, HydrateError};
use crate::file::ColdFile;
use crate::hydrate::read_chunk;
use crate::litter::{Litter, Unwanted};
use crate::manifest::PartitionKey;
use crate::object_reader::Footers;
use crate::owner::{Owner, OwnerError};
use crate::pace::Pace;
use crate::schemas::Schemas;
use crate::steps::Steps;
use crate::store::ColdStore;

/// Row groups that are hydrated at the same time; each takes a thread and the memory of a row group.
const HYDRATIONS: usize = 4;
/// How many of them may be ahead of any reader.
const PREFETCHES: usize = 2;
/// Segments that are cooled, and files that are merged, at the same time: on the server's own disk.
const LOCAL_COOLINGS: usize = 2;
/// The same where each waits for a network most of its time.
const REMOTE_COOLINGS: usize = 4;

/// Settings and services.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Arc<Log>,
    pub(crate) store: ColdStore,
    pub(crate) config: ColdConfig,
    pub(crate) schemas: Schemas,
    pub(crate) steps: Arc<dyn Steps>,
    /// Says in manifests who wrote them.
    pub(crate) writer: String,
    /// What the hashes of keys are made with.
    pub(crate) compaction_keys: (u64, u64),
    /// The cold tier's own threads: what it does never runs on those that serve connections.
    pub(crate) runtime: Handle,
    pub(crate) hydrator: Arc<Hydrator>,
    /// Our claim to the store, if others can reach it.
    pub(crate) owner: Option<Owner>,
    pub(crate) litter: Litter,
    pub(crate) budget: Budget,
    pub(crate) pace: Pace,
    /// Places for segments that are cooled, and for the file that is merged.
    pub(crate) places: usize,
    pub(crate) coolings: Semaphore,
    /// Held by the one who merges: one file at a time, so that cooling always finds a place beside it.
    pub(crate) merge_turn: tokio::sync::Mutex<()>,
    /// Wakes maintenance.
    pub(crate) wake: Notify,
    /// Wakes merging.
    pub(crate) wake_merging: Notify,
}

impl Shared {
    pub(crate) fn new(
        log: Arc<Log>,
        store: ColdStore,
        config: ColdConfig,
        steps: Arc<dyn Steps>,
        runtime: Handle,
        cache: Arc<ChunkCache>,
        owner: Option<Owner>,
    ) -> Arc<Self> {
        let places = match store.root() {
            Some(_) => LOCAL_COOLINGS,
            None => REMOTE_COOLINGS,
        };
        let hydrator = Arc::new(Hydrator {
            store: store.clone(),
            runtime: runtime.clone(),
            cache,
            footers: Arc::default(),
            hydrations: Arc::new(Semaphore::new(HYDRATIONS)),
            prefetches: Arc::new(Semaphore::new(PREFETCHES)),
        });
        Arc::new(Self {
            log,
            store,
            budget: Budget::new(config.hot_limit_bytes),
            config,
            schemas: Schemas::default(),
            steps,
            writer: crate::store::nonce(),
            compaction_keys: (crate::store::chance(), crate::store::chance()),
            runtime,
            hydrator,
            owner,
            litter: Litter::default(),
            pace: Pace::default(),
            places,
            coolings: Semaphore::new(places),
            merge_turn: tokio::sync::Mutex::new(()),
            wake: Notify::new(),
            wake_merging: Notify::new(),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.log.clock().now_ns()
    }

    /// Deletes an object that was not written as it should have been, or is of no use. What a test stops stays, as after a crash.
    pub(crate) async fn give_up(&self, object: Unwanted, error: &CoolError) {
        match error {
            CoolError::Stopped(_) => object.keep(),
            _ => self.discard(object).await,
        }
    }

    /// Deletes an object that nobody knows of, now or later.
    pub(crate) async fn discard(&self, object: Unwanted) {
        if self.store.delete(object.path()).await.is_ok() {
            object.keep();
        }
    }

    /// Whether the store did not fail a moment ago.
    pub(crate) fn store_is_up(&self) -> bool {
        self.pace.rests(self.now_ns()).is_none()
    }

    /// How long maintenance may sleep when nothing happens.
    pub(crate) fn time_to_next_pass(&self) -> Duration {
        let interval = self.config.maintenance_interval;
        let rest = self.pace.rests(self.now_ns());
        rest.map_or(interval, |rest| rest.min(interval))
    }

    /// Whether somebody else has claimed the store, looked up in it (COL-30).
    pub(crate) async fn check_owner(&self) -> Result<(), OwnerError> {
        match &self.owner {
            Some(owner) => owner.check().await,
            None => Ok(()),
        }
    }

    /// What an error means to the pace: a remote store that fails is left alone for a while.
    pub(crate) fn note_failure(&self, error: &CoolError) -> bool {
        let failing = self.store.root().is_none() && error.is_store_failing();
        if failing {
            self.pace.failed(self.now_ns(), crate::store::chance());
        }
        failing
    }
}

/// Rebuilds frames from cold files. It knows nothing of the log, so that what it does in the background keeps no log open.
#[derive(Debug)]
pub(crate) struct Hydrator {
    store: ColdStore,
    runtime: Handle,
    pub(crate) cache: Arc<ChunkCache>,
    footers: Arc<Footers>,
    hydrations: Arc<Semaphore>,
    prefetches: Arc<Semaphore>,
}

impl Hydrator {
    /// A row group's frames as a file.
    pub(crate) async fn hydrate(
        &self,
        key: &PartitionKey,
        file: &Arc<ColdFile>,
        chunk: usize,
    ) -> Hydrated {
        let name = chunk_name(key, file, chunk);
        let runtime = self.runtime.clone();
        let source = Source {
            handle: runtime.clone(),
            store: self.store.clone(),
            footers: Arc::clone(&self.footers),
        };
        let (permits, file) = (Arc::clone(&self.hydrations), Arc::clone(file));
        let disk = Arc::clone(self.cache.disk());
        let load = move |unfinished: PathBuf, path: PathBuf| async move {
            let permit = permits
                .acquire_owned()
                .await
                .map_err(|_| HydrateError::ShutDown)?;
            // Decoding takes a processor for long: it has a thread of its own.
            let hydrated = runtime.spawn_blocking(move || {
                let _permit = permit;
                source.write_chunk(&file, chunk, disk.as_ref(), &unfinished, &path)
            });
            hydrated.await.unwrap_or(Err(HydrateError::ShutDown))
        };
        self.cache.get(&name, load).await
    }

    /// Whether a row group is on its way into the cache.
    pub(crate) fn is_hydrating(&self, key: &PartitionKey, file: &ColdFile, chunk: usize) -> bool {
        self.cache.is_loading(&chunk_name(key, file, chunk))
    }

    /// Starts to hydrate what a reader will ask for next, unless that would push out what it reads now.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        key: &PartitionKey,
        next: Option<(Arc<ColdFile>, usize)>,
    ) {
        let Some((file, index)) = next else { return };
        let Some(chunk) = file.chunks.get(index) else {
            return;
        };
        if chunk.frame_bytes.saturating_mul(2) > self.cache.limit_bytes()
            || self.cache.has(&chunk_name(key, &file, index))
        {
            return;
        }
        let Ok(permit) = Arc::clone(&self.prefetches).try_acquire_owned() else {
            return;
        };
        let (hydrator, key) = (Arc::clone(self), key.clone());
        self.runtime.spawn(async move {
            let _permit = permit;
            // The reader that comes for it will meet the error itself.
            let _ = hydrator.hydrate(&key, &file, index).await;
        });
    }
}

fn chunk_name(key: &PartitionKey, file: &ColdFile, chunk: usize) -> String {
    let object = file.path.filename().unwrap_or_default();
    let stem = object.strip_suffix(".parquet").unwrap_or(object);
    format!("{:016x}-{}-{stem}-{chunk}", key.topic_id, key.partition)
}

/// What a thread reads cold files with.
struct Source {
    handle: Handle,
    store: ColdStore,
    footers: Arc<Footers>,
}

impl Source {
    /// Rebuilds a row group's frames in `unfinished`, gives the file its name and opens it.
    fn write_chunk(
        &self,
        file: &ColdFile,
        chunk: usize,
        disk: &dyn Disk,
        unfinished: &FsPath,
        path: &FsPath,
    ) -> Result<SegmentView, HydrateError> {
        let cache = |source| HydrateError::Cache {
            path: unfinished.to_owned(),
            source,
        };
        let Some(chunk) = file.chunks.get(chunk) else {
            return Err(HydrateError::Damaged {
                path: file.path.to_string(),
                row_group: u32::try_from(chunk).unwrap_or(u32::MAX),
                what: "row group",
                found: "missing".to_owned(),
                expected: "there".to_owned(),
            });
        };
        let mut out = ChunkFile {
            file: File::create(unfinished).map_err(cache)?,
            blocks: ChunkBlocks::default(),
        };
        let read = read_chunk(
            self.store.object_store(),
            &self.footers,
            file,
            chunk,
            &mut out,
        );
        self.handle.block_on(read)?;
        // The cache is emptied at start, so nothing in it need be durable.
        let ChunkFile { file: out, blocks } = out;
        drop(out);
        std::fs::rename(unfinished, path).map_err(cache)?;
        SegmentView::open_chunk(disk, path, chunk.base_offset, chunk.end_offset, &blocks)
            .map_err(HydrateError::Open)
    }
}

/// A hydrated file while it is written: each write is of whole frames.
struct ChunkFile {
    file: File,
    blocks: ChunkBlocks,
}

impl Write for ChunkFile {
    fn write(&mut self, frames: &[u8]) -> io::Result<usize> {
        self.file.write_all(frames)?;
        self.blocks.push(frames);
        Ok(frames.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
