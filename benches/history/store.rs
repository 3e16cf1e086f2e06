//! A tiered log and an engine in a temporary folder, without a server.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use basalt_columnar::{ColdConfig, ColdStore, TieredLog, TieredPartition};
use basalt_log::{Durability, Log, LogConfig, RealDisk, SystemClock, TopicConfig};
use basalt_proto::{Frame, FrameBatch, FrameLimits, PartitionId, TopicName};
use basalt_query::{QueryConfig, QueryEngine};
use futures::TryStreamExt as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Frames are appended in pieces of about this size.
const APPEND_BYTES: usize = 256 << 10;
/// The stamp of the first record, and the distance of two.
const FIRST_NS: u64 = 1_357_034_400_000_000_000;
const STEP_NS: u64 = 1_000_000;

pub(crate) struct Store {
    pub(crate) runtime: Runtime,
    pub(crate) tiered: Arc<TieredLog>,
    pub(crate) engine: Arc<QueryEngine>,
    folder: TempDir,
}

/// What was appended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Appended {
    pub(crate) records: u64,
    pub(crate) frame_bytes: u64,
}

impl Store {
    pub(crate) fn open() -> Self {
        let runtime = Runtime::new().expect("threads");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = LogConfig::new(folder.path());
        let log = Log::open(config, Arc::new(RealDisk::new()), Arc::new(SystemClock))
            .expect("an empty log");
        let store = ColdStore::local(folder.path().join("cold")).expect("a folder");
        let cold = ColdConfig::new(folder.path().join("cache"));
        let tiered = runtime
            .block_on(TieredLog::open(log, store, cold))
            .expect("an empty store");
        let engine =
            QueryEngine::new(Arc::clone(&tiered), QueryConfig::default()).expect("an engine");
        Self {
            runtime,
            tiered,
            engine,
            folder,
        }
    }

    pub(crate) fn create(&self, topic: &str, config: TopicConfig) {
        self.tiered
            .create_topic(&name(topic), 1, config)
            .expect("a new topic");
    }

    pub(crate) fn partition(&self, topic: &str) -> Arc<TieredPartition> {
        self.tiered
            .partition(&name(topic), PartitionId(0))
            .expect("its partition")
    }

    /// Appends a record for each payload; each tenth has a key.
    pub(crate) fn append<'a>(
        &self,
        topic: &str,
        payloads: impl Iterator<Item = &'a [u8]>,
    ) -> Appended {
        let partition = self.partition(topic);
        let mut appended = Appended::default();
        let mut frames = Vec::with_capacity(2 * APPEND_BYTES);
        let first = partition.bounds().log_end_offset.0;
        let flush = |frames: &mut Vec<u8>| {
            if !frames.is_empty() {
                let batch =
                    FrameBatch::parse(frames, &FrameLimits::default()).expect("sound frames");
                let outcome = partition.hot().append_acknowledged(&batch, Durability::Os);
                self.runtime.block_on(outcome).expect("an append");
            }
            let bytes = frames.len() as u64;
            frames.clear();
            bytes
        };
        for (number, payload) in (first..).zip(payloads) {
            let key = match number % 10 {
                0 => format!("key-{}", number / 10),
                _ => String::new(),
            };
            Frame::record(FIRST_NS + number * STEP_NS, key.as_bytes(), payload)
                .encode_into(&mut frames);
            appended.records += 1;
            if frames.len() >= APPEND_BYTES {
                appended.frame_bytes += flush(&mut frames);
            }
        }
        appended.frame_bytes += flush(&mut frames);
        appended
    }

    /// Seals what is hot and cools it all.
    pub(crate) fn cool(&self, topic: &str) {
        self.runtime
            .block_on(self.tiered.cool_topic(&name(topic), true))
            .expect("cooling");
    }

    /// Runs a statement to its end; how many rows it gave.
    pub(crate) fn rows(&self, sql: &str) -> usize {
        self.batches(sql).iter().map(RecordBatch::num_rows).sum()
    }

    /// A number of the plan that a statement ran by, summed over its nodes.
    pub(crate) fn metric(&self, sql: &str, name: &str) -> u64 {
        let plan = self.batches(&format!("EXPLAIN ANALYZE VERBOSE {sql}"));
        let text = arrow::util::pretty::pretty_format_batches(&plan).expect("a table");
        let (text, name) = (text.to_string(), format!("{name}="));
        let values = text.split(name.as_str()).skip(1).map(|rest| {
            let digits = rest.split(|digit: char| !digit.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse::<u64>().ok())
        });
        values.map(|value| value.expect("a number")).sum()
    }

    fn batches(&self, sql: &str) -> Vec<RecordBatch> {
        self.runtime.block_on(async {
            let rows = self
                .engine
                .query(sql)
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error}"));
            rows.try_collect()
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error}"))
        })
    }

    /// The Parquet files of a topic, in order.
    pub(crate) fn cold_files(&self, topic: &str) -> Vec<PathBuf> {
        let cold = self.folder.path().join("cold");
        let files = self.partition(topic).snapshot().cold;
        files
            .iter()
            .map(|file| cold.join(file.path.as_ref()))
            .collect()
    }
}

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName::new(topic).expect("a valid name")
}
