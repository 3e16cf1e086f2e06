//! The engine over a real tiered log in a temporary folder.
#![allow(clippy::unwrap_used)]

mod arithmetic;
mod as_of;
mod boundary;
mod control;
mod ddl;
mod engine;
mod flight;
mod moments;
mod prepared;
mod pruning;
mod remote;
mod shredded;
mod sized;
mod statements;
mod sys_tables;
mod tiers;
mod transactions;
mod typed;

use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use basalt_columnar::{ColdConfig, ColdStore, TieredLog};
use basalt_log::{Durability, Log, LogConfig, RealDisk, SystemClock, TopicConfig};
use basalt_proto::{Frame, FrameBatch, FrameLimits, Offset, PartitionId, TopicName};
use futures::TryStreamExt;
use tempfile::TempDir;

use crate::{QueryConfig, QueryEngine, QueryError};

/// A tiered log with small segments, and an engine over it.
struct Fixture {
    tiered: Arc<TieredLog>,
    engine: Arc<QueryEngine>,
    _folder: TempDir,
}

/// Where a test's records lie when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Hot,
    Cold,
    /// The first half cold, the rest hot.
    Half,
}

const TIERS: [Tier; 3] = [Tier::Hot, Tier::Cold, Tier::Half];

impl Fixture {
    async fn new() -> Self {
        Self::with_config(QueryConfig {
            target_partitions: 2,
            ..QueryConfig::default()
        })
        .await
    }

    async fn with_config(config: QueryConfig) -> Self {
        Self::with_store(config, None, |cold| cold).await
    }

    /// With the settings of the cold tier that `cold` makes of the default ones.
    async fn with_configs(
        config: QueryConfig,
        cold: impl FnOnce(ColdConfig) -> ColdConfig,
    ) -> Self {
        Self::with_store(config, None, cold).await
    }

    /// With cold files in `store`, or in the folder.
    async fn with_store(
        config: QueryConfig,
        store: Option<ColdStore>,
        change: impl FnOnce(ColdConfig) -> ColdConfig,
    ) -> Self {
        Self::open(tempfile::tempdir().unwrap(), config, store, change).await
    }

    /// Stops, and starts over the same folder.
    async fn restarted(self) -> Self {
        let config = self.engine.config().clone();
        let Self {
            tiered,
            engine,
            _folder: folder,
        } = self;
        drop(engine);
        tiered.shutdown().await.unwrap();
        drop(tiered);
        Self::open(folder, config, None, |cold| cold).await
    }

    async fn open(
        folder: TempDir,
        config: QueryConfig,
        store: Option<ColdStore>,
        change: impl FnOnce(ColdConfig) -> ColdConfig,
    ) -> Self {
        let mut log_config = LogConfig::new(folder.path());
        log_config.block_bytes = 1 << 10;
        let log = Log::open(log_config, Arc::new(RealDisk::new()), Arc::new(SystemClock)).unwrap();
        let store = store.unwrap_or_else(|| ColdStore::local(folder.path().join("cold")).unwrap());
        let cold = change(ColdConfig::new(folder.path().join("cache")));
        let tiered = TieredLog::open(log, store, cold).await.unwrap();
        let engine = QueryEngine::new(Arc::clone(&tiered), config).unwrap();
        Self {
            tiered,
            engine,
            _folder: folder,
        }
    }

    async fn create(&self, topic: &str, partitions: u32, segment_bytes: u64) {
        let config = TopicConfig {
            segment_bytes: Some(segment_bytes),
            ..TopicConfig::default()
        };
        self.tiered
            .create_topic(&name(topic), partitions, config)
            .unwrap();
    }

    /// Appends frames as one batch; gives the offset of the first.
    async fn append(&self, topic: &str, partition: u32, frames: &[Frame<'_>]) -> Offset {
        let mut bytes = Vec::new();
        for frame in frames {
            frame.encode_into(&mut bytes);
        }
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
        let partition = self
            .tiered
            .partition(&name(topic), PartitionId(partition))
            .unwrap();
        partition
            .hot()
            .append_acknowledged(&batch, Durability::Fsync)
            .await
            .unwrap()
            .base_offset
    }

    async fn append_payloads(&self, topic: &str, partition: u32, payloads: &[&[u8]]) {
        for payload in payloads {
            self.append(topic, partition, &[Frame::record(1_000, b"", payload)])
                .await;
        }
    }

    /// Seals and cools everything that is hot.
    async fn cool(&self, topic: &str) {
        self.tiered.cool_topic(&name(topic), true).await.unwrap();
    }

    /// Appends `frames` one by one so that they end up in `tier`.
    async fn place(&self, topic: &str, tier: Tier, frames: &[Frame<'_>]) {
        for (index, frame) in frames.iter().enumerate() {
            if tier == Tier::Half && index == frames.len() / 2 {
                self.cool(topic).await;
            }
            self.append(topic, 0, std::slice::from_ref(frame)).await;
        }
        if tier == Tier::Cold {
            self.cool(topic).await;
        }
    }

    async fn batches(&self, sql: &str) -> Result<Vec<RecordBatch>, QueryError> {
        let rows = self.engine.query(sql).await?;
        let schema = rows.schema();
        let batches: Vec<RecordBatch> = rows.try_collect().await?;
        assert!(
            batches.iter().all(|batch| batch.schema() == schema),
            "QRY-2 for {sql}"
        );
        Ok(batches)
    }

    /// The rows of `sql`, each as its cells with `|` between them.
    async fn rows(&self, sql: &str) -> Vec<String> {
        let batches = self
            .batches(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows_of(&batches)
    }

    /// Why `sql` is not answered.
    async fn error(&self, sql: &str) -> QueryError {
        self.batches(sql)
            .await
            .map(|batches| rows_of(&batches))
            .expect_err(sql)
    }
}

fn rows_of(batches: &[RecordBatch]) -> Vec<String> {
    if batches.is_empty() {
        return Vec::new();
    }
    let table = pretty_format_batches(batches).unwrap().to_string();
    let lines: Vec<&str> = table.lines().collect();
    let cells = |line: &&str| {
        line.trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect::<Vec<_>>()
            .join("|")
    };
    lines
        .get(3..lines.len() - 1)
        .unwrap_or_default()
        .iter()
        .map(cells)
        .collect()
}

fn name(topic: &str) -> TopicName {
    TopicName::new(topic).unwrap()
}

/// Waits until `condition` holds; the test fails if it never does.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
