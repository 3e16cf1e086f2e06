//! What all partitions of a tiered log share.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use basalt_log::{Disk, Log, SegmentView};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::cache::{ChunkCache, Hydrated};
use crate::config::ColdConfig;
use crate::error::HydrateError;
use crate::file::ColdFile;
use crate::hydrate::read_chunk;
use crate::manifest::PartitionKey;
use crate::schemas::Schemas;
use crate::steps::Steps;
use crate::store::ColdStore;

/// Row groups that are hydrated at the same time; each takes a thread and the memory of a row group.
const HYDRATIONS: usize = 3;
/// How many of them may be ahead of any reader.
const PREFETCHES: usize = 1;
/// Segments that are cooled, and files that are merged, at the same time.
pub(crate) const COOLINGS: usize = 2;

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
    /// The cold tier's own threads: what it does never runs on those that serve connections.
    pub(crate) runtime: Handle,
    pub(crate) hydrator: Arc<Hydrator>,
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
    ) -> Arc<Self> {
        let hydrator = Arc::new(Hydrator {
            store: store.clone(),
            runtime: runtime.clone(),
            cache,
            hydrations: Arc::new(Semaphore::new(HYDRATIONS)),
            prefetches: Arc::new(Semaphore::new(PREFETCHES)),
        });
        Arc::new(Self {
            log,
            store,
            config,
            schemas: Schemas::default(),
            steps,
            writer: crate::store::nonce(),
            runtime,
            hydrator,
            coolings: Semaphore::new(COOLINGS),
            merge_turn: tokio::sync::Mutex::new(()),
            wake: Notify::new(),
            wake_merging: Notify::new(),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.log.clock().now_ns()
    }
}

/// Rebuilds frames from cold files. It knows nothing of the log, so that what it does in the background keeps no log open.
#[derive(Debug)]
pub(crate) struct Hydrator {
    store: ColdStore,
    runtime: Handle,
    pub(crate) cache: Arc<ChunkCache>,
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
        let (store, runtime) = (self.store.clone(), self.runtime.clone());
        let (permits, file) = (Arc::clone(&self.hydrations), Arc::clone(file));
        let disk = Arc::clone(self.cache.disk());
        let load = move |unfinished: PathBuf, path: PathBuf| async move {
            let permit = permits
                .acquire_owned()
                .await
                .map_err(|_| HydrateError::ShutDown)?;
            let handle = runtime.clone();
            // Decoding takes a processor for long: it has a thread of its own.
            let hydrated = runtime.spawn_blocking(move || {
                let _permit = permit;
                write_chunk(
                    &handle,
                    &store,
                    &file,
                    chunk,
                    disk.as_ref(),
                    &unfinished,
                    &path,
                )
            });
            hydrated.await.unwrap_or(Err(HydrateError::ShutDown))
        };
        self.cache.get(&name, load).await
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

/// Rebuilds a row group's frames in `unfinished`, gives the file its name and opens it.
fn write_chunk(
    handle: &Handle,
    store: &ColdStore,
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
    let mut out = BufWriter::with_capacity(1 << 20, File::create(unfinished).map_err(cache)?);
    handle.block_on(read_chunk(store.object_store(), file, chunk, &mut out))?;
    // The cache is emptied at start, so nothing in it need be durable.
    out.flush().map_err(cache)?;
    drop(out);
    std::fs::rename(unfinished, path).map_err(cache)?;
    SegmentView::open_chunk(disk, path, chunk.base_offset, chunk.end_offset)
        .map_err(HydrateError::Open)
}
