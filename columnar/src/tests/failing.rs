//! An object store that fails when it is told to.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};

use super::support::Setup;
use crate::ColdStore;

/// Fails the operation whose turn it is: before it is done, or after it was done, when the answer is lost.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) turn: Arc<Turn>,
}

#[derive(Debug)]
pub(super) struct Turn {
    /// Operations until the one that fails; never while it is `u64::MAX`.
    left: AtomicU64,
    fault: Fault,
}

#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// It is not done, nor is any after it.
    Before,
    /// It is done, but its answer is lost, as are all after it.
    After,
    /// Only counts what creates: it is tried once more after its answer was lost, and finds itself.
    TriedTwice,
    /// Only counts what is put: there is no room for it, nor for any after it.
    Full,
    /// Only counts what names a manifest: the file, below this folder, is moved out of the way after that.
    Vanishes(PathBuf),
}

impl Turn {
    pub(super) fn failing(after: bool) -> Arc<Self> {
        Self::with(if after { Fault::After } else { Fault::Before })
    }

    pub(super) fn with(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(u64::MAX),
            fault,
        })
    }

    pub(super) fn fail_nth(&self, nth: u64) {
        self.left.store(nth, Ordering::SeqCst);
    }

    pub(super) fn stop_failing(&self) {
        self.fail_nth(u64::MAX);
    }

    /// Whether this operation is the one.
    fn is_now(&self) -> bool {
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
                u64::MAX => None,
                left => Some(left.saturating_sub(1)),
            });
        // Once broken, it stays so: a store that is down fails everything.
        left.is_ok_and(|left| left == 0)
    }

    fn error() -> object_store::Error {
        object_store::Error::Generic {
            store: "failing",
            source: "it is down".into(),
        }
    }

    async fn around<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fault {
            Fault::Before if self.is_now() => Err(Self::error()),
            Fault::After if self.is_now() => operation.await.and(Err(Self::error())),
            _ => operation.await,
        }
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failing {}", self.inner)
    }
}

#[derive(Debug)]
struct FailingUpload {
    inner: Box<dyn MultipartUpload>,
    turn: Arc<Turn>,
}

#[async_trait::async_trait]
impl MultipartUpload for FailingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, turn) = (self.inner.put_part(data), Arc::clone(&self.turn));
        Box::pin(async move { turn.around(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.turn.around(self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.turn.around(self.inner.abort()).await
    }
}

#[async_trait::async_trait]
impl ObjectStore for Failing {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if self.turn.fault == Fault::Full && self.turn.is_now() {
            return Err(object_store::Error::Generic {
                store: "failing",
                source: Box::new(io::Error::from(io::ErrorKind::StorageFull)),
            });
        }
        let creates = matches!(options.mode, PutMode::Create);
        if creates && self.turn.fault == Fault::TriedTwice && self.turn.is_now() {
            let twice = options.clone();
            self.inner
                .put_opts(location, payload.clone(), options)
                .await?;
            return self.inner.put_opts(location, payload, twice).await;
        }
        self.turn
            .around(self.inner.put_opts(location, payload, options))
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self
            .turn
            .around(self.inner.put_multipart_opts(location, options))
            .await?;
        Ok(Box::new(FailingUpload {
            inner,
            turn: Arc::clone(&self.turn),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.turn
            .around(self.inner.get_opts(location, options))
            .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if matches!(self.turn.fault, Fault::Before | Fault::After) && self.turn.is_now() {
            return Box::pin(futures::stream::once(async { Err(Turn::error()) }));
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.turn
            .around(self.inner.list_with_delimiter(prefix))
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if let Fault::Vanishes(root) = &self.turn.fault
            && self.turn.is_now()
        {
            self.inner.copy_opts(from, to, options).await?;
            let file = root.join(to.as_ref());
            std::fs::rename(&file, file.with_extension("away")).unwrap();
            return Ok(());
        }
        self.turn
            .around(self.inner.copy_opts(from, to, options))
            .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.turn
            .around(self.inner.rename_opts(from, to, options))
            .await
    }
}

pub(super) fn failing_setup(turn: &Arc<Turn>) -> Setup {
    let mut setup = Setup::new();
    let store = ColdStore::local_through(setup.cold_dir(), |inner| {
        Arc::new(Failing {
            inner,
            turn: Arc::clone(turn),
        })
    });
    setup.store = Some(store.unwrap());
    setup
}
