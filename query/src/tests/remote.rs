//! Cold files in a store where each request costs time and money: what queries ask of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use basalt_columnar::{ColdConfig, ColdStore};
use basalt_proto::Frame;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::Fixture;
use crate::QueryConfig;

/// Counts what is read.
#[derive(Debug, Clone, Default)]
struct Counting {
    objects: Arc<InMemory>,
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl Counting {
    /// Requests and bytes since the last call.
    fn read(&self) -> (u64, u64) {
        (
            self.requests.swap(0, Ordering::SeqCst),
            self.bytes.swap(0, Ordering::SeqCst),
        )
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counting")
    }
}

#[async_trait]
impl ObjectStore for Counting {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.objects.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let got = self.objects.get_opts(location, options).await?;
        self.requests.fetch_add(1, Ordering::SeqCst);
        let bytes = got.range.end - got.range.start;
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Ok(got)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn queries_read_ranges_of_a_remote_file_few_at_a_time_and_its_footer_once() {
    let store = Counting::default();
    let config = QueryConfig {
        target_partitions: 2,
        ..QueryConfig::default()
    };
    let cold = |config: ColdConfig| ColdConfig {
        row_group_bytes: 512 << 10,
        ..config
    };
    let remote = ColdStore::remote(Arc::new(store.clone()));
    let fixture = Fixture::with_store(config, Some(remote), cold).await;
    fixture.create("t", 1, 64 << 20).await;
    // SplitMix64: nothing that could be compressed.
    let mut seed = 1_u64;
    let mut noise = || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    let payloads: Vec<Vec<u8>> = (0..1000)
        .map(|_| (0..1024).flat_map(|_| noise().to_le_bytes()).collect())
        .collect();
    let frames: Vec<_> = payloads
        .iter()
        .map(|payload| Frame::record(7, b"", payload))
        .collect();
    fixture.append("t", 0, &frames).await;
    fixture.cool("t").await;
    let file_bytes = 8_000_000;
    store.read();

    let sql = |offset: u64| {
        format!("SELECT length(encode(_payload, 'hex')) FROM t WHERE _offset = {offset}")
    };
    assert_eq!(fixture.rows(&sql(777)).await, ["16384"]);
    let (requests, bytes) = store.read();
    assert!(requests <= 4, "{requests} requests for one record");
    assert!(bytes < file_bytes / 6, "{bytes} bytes for one record");

    assert_eq!(fixture.rows(&sql(111)).await, ["16384"]);
    let (requests, again) = store.read();
    assert!(
        requests <= 2 && again < bytes,
        "{requests} requests for {again} bytes, though the footer is known"
    );

    assert_eq!(
        fixture
            .rows("SELECT count(*), sum(_offset) FROM t WHERE _offset >= 0")
            .await,
        ["1000|499500"]
    );
    let (_, bytes) = store.read();
    assert!(
        bytes < file_bytes / 20,
        "{bytes} bytes, though no payload was asked for"
    );

    let lengths = "SELECT count(*), sum(length(encode(_payload, 'hex'))) FROM t";
    assert_eq!(fixture.rows(lengths).await, ["1000|16384000"]);
    let (requests, _) = store.read();
    let row_groups = 8_000_000 / (512 << 10) + 1;
    assert!(
        requests <= 2 * row_groups,
        "{requests} requests for {row_groups} row groups"
    );
}
