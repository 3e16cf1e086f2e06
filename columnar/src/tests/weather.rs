//! A remote store in memory, behind a network that is told how to behave, and that counts what passes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

use super::support::{Fixture, Setup};
use crate::{ColdStore, TieredPartition};

pub(super) const MINUTE_NS: u64 = 60_000_000_000;

/// How the network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    Fair,
    /// Nothing comes through.
    Away,
    /// One request in so many is refused (503), another one in so many is carried out and its answer is lost.
    Throttling(u64),
    /// Each request takes that long.
    Slow(Duration),
    /// Nothing is answered before the weather changes.
    Still,
    /// Parts of uploads are refused, all else is as ever.
    NoParts,
    /// Conditions of puts are not looked at.
    Unconditional,
}

/// Cheap to clone: all see the same objects.
#[derive(Debug, Clone)]
pub(super) struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    objects: InMemory,
    weather: Mutex<Weather>,
    chance: AtomicU64,
    requests: AtomicU64,
    gets: AtomicU64,
    open_uploads: AtomicI64,
    written: Mutex<Vec<Path>>,
}

impl Network {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            objects: InMemory::new(),
            weather: Mutex::new(Weather::Fair),
            chance: AtomicU64::new(1),
            requests: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            open_uploads: AtomicI64::new(0),
            written: Mutex::new(Vec::new()),
        }))
    }

    pub(super) fn becomes(&self, weather: Weather) {
        *self.0.weather.lock() = weather;
    }

    pub(super) fn store(&self) -> ColdStore {
        ColdStore::remote(Arc::new(self.clone()))
    }

    /// Requests that were made so far, answered or not.
    pub(super) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::SeqCst)
    }

    /// Those that read.
    pub(super) fn gets(&self) -> u64 {
        self.0.gets.load(Ordering::SeqCst)
    }

    pub(super) fn open_uploads(&self) -> i64 {
        self.0.open_uploads.load(Ordering::SeqCst)
    }

    /// The names of Parquet objects in the order in which they were written.
    pub(super) fn written(&self) -> Vec<Path> {
        self.0.written.lock().clone()
    }

    /// The names of Parquet objects that are there.
    pub(super) async fn objects(&self) -> Vec<Path> {
        let found = self.0.objects.list(None).map_ok(|meta| meta.location);
        let mut found: Vec<_> = found.try_collect().await.unwrap();
        found.retain(|path: &Path| path.as_ref().ends_with(".parquet"));
        found.sort();
        found
    }

    fn error(what: &'static str) -> object_store::Error {
        object_store::Error::Generic {
            store: "S3",
            source: what.into(),
        }
    }

    fn next_chance(&self) -> u64 {
        let next = |seed: u64| Some(seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        let ordering = Ordering::SeqCst;
        let drawn = self.0.chance.fetch_update(ordering, ordering, next);
        drawn.unwrap_or_default() >> 33
    }

    async fn pass<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        let weather = *self.0.weather.lock();
        match weather {
            Weather::Away => Err(Self::error("connection refused")),
            Weather::Throttling(one_in) => match self.next_chance() % one_in {
                0 => Err(Self::error("503 Slow Down")),
                1 => request.await.and(Err(Self::error("the answer was lost"))),
                _ => request.await,
            },
            Weather::Slow(time) => {
                tokio::time::sleep(time).await;
                request.await
            }
            Weather::Still => {
                while *self.0.weather.lock() == Weather::Still {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                request.await
            }
            Weather::Fair | Weather::NoParts | Weather::Unconditional => request.await,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("network")
    }
}

#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    network: Network,
    path: Path,
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, network) = (self.inner.put_part(data), self.network.clone());
        Box::pin(async move {
            if *network.0.weather.lock() == Weather::NoParts {
                return Err(Network::error("503 Slow Down"));
            }
            network.pass(part).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let network = self.network.clone();
        let complete = async {
            let done = self.inner.complete().await?;
            self.network.0.open_uploads.fetch_sub(1, Ordering::SeqCst);
            self.network.0.written.lock().push(self.path.clone());
            Ok(done)
        };
        network.pass(complete).await
    }

    async fn abort(&mut self) -> Result<()> {
        let network = self.network.clone();
        let abort = async {
            self.inner.abort().await?;
            self.network.0.open_uploads.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        };
        network.pass(abort).await
    }
}

#[async_trait::async_trait]
impl ObjectStore for Network {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if *self.0.weather.lock() == Weather::Unconditional {
            options.mode = PutMode::Overwrite;
        }
        let put = async {
            let done = self.0.objects.put_opts(location, payload, options).await?;
            if location.as_ref().ends_with(".parquet") {
                self.0.written.lock().push(location.clone());
            }
            Ok(done)
        };
        self.pass(put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self
            .pass(self.0.objects.put_multipart_opts(location, options))
            .await?;
        self.0.open_uploads.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Upload {
            inner,
            network: self.clone(),
            path: location.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.gets.fetch_add(1, Ordering::SeqCst);
        self.pass(self.0.objects.get_opts(location, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let network = self.clone();
        let deleted = locations.and_then(move |path| {
            let network = network.clone();
            async move {
                let one = futures::stream::once(std::future::ready(Ok(path.clone()))).boxed();
                let delete = network.0.objects.delete_stream(one).try_collect::<Vec<_>>();
                network.pass(delete).await.map(|_| path)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (network, found) = (self.clone(), self.0.objects.list(prefix));
        let listed = async move {
            let all = network.pass(found.try_collect::<Vec<_>>()).await?;
            Ok::<_, object_store::Error>(futures::stream::iter(all.into_iter().map(Ok)))
        };
        futures::stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.pass(self.0.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.pass(self.0.objects.copy_opts(from, to, options)).await
    }
}

/// A tiered log whose cold files are behind the network.
pub(super) fn setup(network: &Network) -> Setup {
    Setup {
        store: Some(network.store()),
        ..Setup::new()
    }
}

/// Cools whatever is sealed, at once.
pub(super) fn without_hot_window(fixture: &Fixture) -> Arc<TieredPartition> {
    let partition = fixture.partition();
    fixture.configure(|config| config.hot_bytes = Some(0));
    partition
}

/// Every object that is there is one that the partition's manifest names, and the other way round.
pub(super) async fn assert_no_orphans(network: &Network, partition: &TieredPartition) {
    let cold = partition.snapshot().cold;
    let mut named: Vec<Path> = cold.iter().map(|file| file.path.clone()).collect();
    named.sort();
    assert_eq!(network.objects().await, named);
    assert_eq!(network.open_uploads(), 0);
}
