//! What the tests share: a seeded generator of frames, a tiered log in a temporary folder, and the two ways to look at all
//! records (replay and rows).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use basalt_log::{Disk, Durability, Log, LogConfig, ManualClock, RealDisk, TopicConfig};
use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::{
    Frame, FrameBatch, FrameKind, FrameLimits, FrameWalk, Offset, PartitionId, RecordHeader,
    TopicName, expand, patch_offset,
};
use futures::TryStreamExt;
use parquet::arrow::ParquetRecordBatchStreamBuilder;
use tokio::sync::watch;

use crate::object_reader::ObjectReader;
use crate::{
    ColdConfig, ColdFile, ColdStore, NoSteps, PartitionSnapshot, RowBuilder, Step, Steps, Stopped,
    TieredLog, TieredPartition,
};

/// SplitMix64: small, seeded, the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    /// Says which seed it is, so that a failure can be repeated with `BASALT_SEED=<seed>`.
    pub(crate) fn new(test: &str, seed: u64) -> Self {
        println!("{test}: seed {seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn bytes(&mut self, max: u64) -> Vec<u8> {
        let length = self.below(max + 1);
        // A few letters repeat, so that compression has something to do.
        let letters = b"aab\0\xff{\"x:1}";
        (0..length)
            .map(|_| letters[usize::try_from(self.below(11)).unwrap()])
            .collect()
    }

    fn maybe_bytes(&mut self, max: u64) -> Option<Vec<u8>> {
        (!self.one_in(4)).then(|| self.bytes(max))
    }

    pub(crate) fn stamp_ns(&mut self) -> u64 {
        match self.below(6) {
            0 => *[
                0,
                1,
                1_700_000_000_123_456_789,
                (1 << 63) - 1,
                1 << 63,
                u64::MAX,
            ]
            .get(usize::try_from(self.below(6)).unwrap())
            .unwrap(),
            1 => self.next(),
            _ => 1_700_000_000_000_000_000 + self.below(1 << 40),
        }
    }

    fn stamp_ms(&mut self) -> i64 {
        match self.below(8) {
            0 => -1,
            1 => self.next().cast_signed() >> 2,
            _ => 1_700_000_000_000 + self.below(1 << 30).cast_signed(),
        }
    }
}

/// The seeds of a test: some fixed ones, or the one in `BASALT_SEED`.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("BASALT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=count).collect(),
    }
}

/// A record frame of random content, offset 0.
pub(crate) fn random_record(random: &mut Random, out: &mut Vec<u8>) {
    let key = random.maybe_bytes(40).unwrap_or_default();
    let payload = if random.one_in(40) {
        random.bytes(20_000)
    } else {
        random.bytes(200)
    };
    let mut frame = Frame::record(random.stamp_ns(), &key, &payload);
    frame.header.record_count = if random.one_in(5) {
        1 + u32::try_from(random.below(9)).unwrap()
    } else {
        1
    };
    frame.encode_into(out);
}

pub(crate) type OwnedHeader = (Vec<u8>, Option<Vec<u8>>);

fn random_headers(random: &mut Random) -> Vec<OwnedHeader> {
    let count = if random.one_in(2) { 0 } else { random.below(4) };
    let keys: [&[u8]; 5] = [b"trace", b"trace", b"", b"\xff\xfe", "höhe".as_bytes()];
    let key = |random: &mut Random| keys[usize::try_from(random.below(5)).unwrap()].to_vec();
    (0..count)
        .map(|_| (key(random), random.maybe_bytes(20)))
        .collect()
}

/// A batch frame of random content, offset 0, in any compression and with any attribute a producer may set.
pub(crate) fn random_batch(random: &mut Random, out: &mut Vec<u8>) {
    let log_append_time = random.one_in(6);
    let mut attributes = i16::try_from(random.below(5)).unwrap();
    attributes |= if log_append_time { 8 } else { 0 };
    attributes |= if random.one_in(9) { 64 } else { 0 };
    let idempotent = random.one_in(2);
    let extreme = log_append_time && random.one_in(2);
    let fields = BatchFields {
        base_offset: 0,
        partition_leader_epoch: if random.one_in(2) {
            -1
        } else {
            i32::from(random.next().to_be_bytes()[0])
        },
        attributes,
        base_timestamp_ms: if extreme {
            Some(i64::MIN)
        } else {
            random.one_in(3).then(|| random.stamp_ms())
        },
        max_timestamp_ms: extreme.then_some(i64::MAX),
        producer_id: if idempotent {
            random.below(1 << 40).cast_signed()
        } else {
            -1
        },
        producer_epoch: if idempotent { 7 } else { -1 },
        base_sequence: if idempotent { 1234 } else { -1 },
    };
    let mut writer = BatchWriter::new(fields).unwrap();
    for _ in 0..=random.below(12) {
        let stamp_ms = if extreme { i64::MIN } else { random.stamp_ms() };
        let (key, value) = (random.maybe_bytes(20), random.maybe_bytes(300));
        let headers = random_headers(random);
        let headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| RecordHeader {
                key,
                value: value.as_deref(),
            })
            .collect();
        let record = RecordToWrite {
            timestamp_ms: stamp_ms,
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
        };
        writer.push(&record).unwrap();
    }
    let record_count = writer.record_count();
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    Frame::batch(random.stamp_ns(), &batch, record_count).encode_into(out);
}

/// Between one and `max` frames, of which some are batches if `batches`.
pub(crate) fn random_frames(random: &mut Random, max: u64, batches: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..=random.below(max) {
        if batches && random.one_in(3) {
            random_batch(random, &mut out);
        } else {
            random_record(random, &mut out);
        }
    }
    out
}

/// Frames with the offsets that a log would give them, from `base` on; the end offset.
pub(crate) fn number(frames: &mut [u8], base: u64) -> u64 {
    let (mut at, mut offset) = (0, base);
    while at < frames.len() {
        let frame = FrameWalk::new(&frames[at..], FrameLimits::UNLIMITED)
            .next()
            .unwrap()
            .unwrap();
        let (bytes, count) = (
            usize::try_from(frame.header.frame_bytes()).unwrap(),
            frame.header.logical_count(),
        );
        patch_offset(&mut frames[at..at + bytes], Offset(offset));
        offset += u64::from(count);
        at += bytes;
    }
    offset
}

/// Base offset, attributes, last offset delta, base and latest stamp, producer id, epoch and sequence, leader epoch.
pub(crate) type SeenBatch = (i64, i16, i32, i64, i64, i64, i16, i32, i32);

/// A record as both kinds of frames have it, and what of its frame must survive. Two replays are the same when these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) offset: u64,
    kind: FrameKind,
    frame_stamp_ns: u64,
    frame_offset: u64,
    frame_count: u32,
    pub(crate) stamp_ms: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<OwnedHeader>,
    pub(crate) batch: Option<SeenBatch>,
}

/// All records of some frames.
pub(crate) fn records(frames: &[u8]) -> Vec<Seen> {
    let mut seen = Vec::new();
    for frame in FrameWalk::new(frames, FrameLimits::UNLIMITED) {
        let frame = frame.unwrap();
        let batch = (frame.header.kind == FrameKind::Batch).then(|| {
            let header = basalt_proto::batch::RecordBatch::validate(frame.payload).unwrap();
            (
                header.base_offset,
                header.attributes,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.partition_leader_epoch,
            )
        });
        let _ = expand(&frame, |record| {
            seen.push(Seen {
                offset: record.offset.0,
                kind: frame.header.kind,
                frame_stamp_ns: frame.header.timestamp_ns,
                frame_offset: frame.header.offset.0,
                frame_count: frame.header.logical_count(),
                stamp_ms: record.timestamp_ms,
                key: record.key.map(<[u8]>::to_vec),
                payload: record.payload.map(<[u8]>::to_vec),
                headers: record
                    .headers
                    .iter()
                    .map(|header| (header.key.to_vec(), header.value.map(<[u8]>::to_vec)))
                    .collect(),
                batch,
            });
            ControlFlow::<()>::Continue(())
        })
        .unwrap();
    }
    seen
}

/// Counts how often a step was reached.
#[derive(Debug)]
pub(crate) struct Counted {
    step: Step,
    times: watch::Sender<u32>,
}

impl Counted {
    pub(crate) fn new(step: Step) -> (Arc<Self>, watch::Receiver<u32>) {
        let (times, receiver) = watch::channel(0);
        (Arc::new(Self { step, times }), receiver)
    }
}

impl Steps for Counted {
    fn reached(&self, step: Step) -> Result<(), Stopped> {
        if step == self.step {
            self.times.send_modify(|times| *times += 1);
        }
        Ok(())
    }
}

/// A tiered log in a folder of its own.
pub(crate) struct Fixture {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) tiered: Arc<TieredLog>,
    /// Deleted with the last of those who use it.
    _folder: Arc<tempfile::TempDir>,
}

/// How to open one. The folder outlives it, so that it can be opened again.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) folder: Arc<tempfile::TempDir>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) segment_bytes: u64,
    pub(crate) row_group_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) hot_limit_bytes: u64,
    pub(crate) shred_json: bool,
    /// 0, so that a test says when it wants merging.
    pub(crate) merge_bytes: u64,
    pub(crate) steps: Arc<dyn Steps>,
    pub(crate) store: Option<ColdStore>,
    pub(crate) disk: Arc<dyn Disk>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            clock: Arc::new(ManualClock::new(1_000_000_000)),
            segment_bytes: 8 << 10,
            row_group_bytes: 2 << 10,
            cache_bytes: 1 << 20,
            hot_limit_bytes: 0,
            shred_json: false,
            merge_bytes: 0,
            steps: Arc::new(NoSteps),
            store: None,
            disk: Arc::new(RealDisk::new()),
        }
    }

    pub(crate) fn cold_dir(&self) -> PathBuf {
        self.folder.path().join("cold")
    }

    pub(crate) fn log(&self) -> Arc<Log> {
        let config = LogConfig {
            segment_bytes: self.segment_bytes,
            block_bytes: 1024,
            ..LogConfig::new(self.folder.path().join("data"))
        };
        Log::open(config, Arc::clone(&self.disk), Arc::clone(&self.clock) as _).unwrap()
    }

    pub(crate) async fn try_open(&self) -> Result<Fixture, crate::TierError> {
        let store = self
            .store
            .clone()
            .unwrap_or_else(|| ColdStore::local(self.cold_dir()).unwrap());
        let config = ColdConfig {
            row_group_bytes: self.row_group_bytes,
            cache_bytes: self.cache_bytes,
            hot_limit_bytes: self.hot_limit_bytes,
            shred_json: self.shred_json,
            merge_bytes: self.merge_bytes,
            hot_age: Duration::MAX,
            ..ColdConfig::new(self.folder.path().join("cache"))
        };
        let tiered =
            TieredLog::open_with_steps(self.log(), store, config, Arc::clone(&self.steps)).await?;
        Ok(Fixture {
            clock: Arc::clone(&self.clock),
            tiered,
            _folder: Arc::clone(&self.folder),
        })
    }

    pub(crate) async fn open(&self) -> Fixture {
        self.try_open().await.unwrap()
    }
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

impl Fixture {
    /// Partition 0 of topic `t`, which is created if need be.
    pub(crate) fn partition(&self) -> Arc<TieredPartition> {
        if self.tiered.log().topic(&topic("t")).is_none() {
            self.tiered
                .create_topic(&topic("t"), 1, TopicConfig::default())
                .unwrap();
        }
        self.tiered.partition(&topic("t"), PartitionId(0)).unwrap()
    }

    pub(crate) fn configure(&self, change: impl FnOnce(&mut TopicConfig)) {
        let mut config = self.partition().hot().config();
        change(&mut config);
        self.tiered.log().alter_topic(&topic("t"), config).unwrap();
    }
}

/// Appends frames, and waits until they are readable.
pub(crate) async fn append(partition: &TieredPartition, frames: &[u8]) -> Offset {
    let batch = FrameBatch::parse(frames, &FrameLimits::default()).unwrap();
    let appended = partition.hot().append(&batch, Durability::Fsync).unwrap();
    partition
        .hot()
        .wait_durable(appended.end_offset)
        .await
        .unwrap();
    appended.base_offset
}

/// Appends `count` record frames with the payloads `<offset>`, stamped with ten times their offset.
pub(crate) async fn append_numbered(partition: &TieredPartition, count: u64) {
    let base = partition.bounds().log_end_offset.0;
    let mut frames = Vec::new();
    for offset in base..base + count {
        Frame::record(offset * 10, b"k", offset.to_string().as_bytes()).encode_into(&mut frames);
    }
    append(partition, &frames).await;
}

/// All frames from `from` on, as a consumer gets them.
pub(crate) async fn replay(partition: &TieredPartition, from: Offset) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut at = from;
    loop {
        let slice = partition.read(at, Offset::MAX, 3000).await.unwrap();
        if slice.is_empty() {
            return frames;
        }
        assert!(slice.next_offset > at, "a read makes progress");
        frames.extend_from_slice(slice.bytes());
        at = slice.next_offset;
    }
}

/// The offsets of all rows of a snapshot, with the offsets each spans: from cold files as any Parquet reader sees them, from hot
/// segments by [`RowBuilder`].
pub(crate) async fn rows(tiered: &TieredLog, snapshot: &PartitionSnapshot) -> Vec<(u64, u64)> {
    let mut rows = Vec::new();
    let mut take = |batch: &RecordBatch| {
        let number = |name: &str| {
            batch
                .column_by_name(name)
                .unwrap()
                .as_primitive::<Int64Type>()
                .clone()
        };
        let (offsets, counts) = (number("_offset"), number("_record_count"));
        rows.extend(
            offsets
                .values()
                .iter()
                .zip(counts.values())
                .map(|(offset, count)| (offset.cast_unsigned(), count.cast_unsigned())),
        );
    };
    for file in &snapshot.cold {
        for batch in cold_rows(tiered.store(), file).await {
            take(&batch);
        }
    }
    for view in &snapshot.hot {
        let mut builder = RowBuilder::with_projection(snapshot.partition, Some(&[1, 6]));
        for frame in FrameWalk::new(&view.bytes().unwrap(), FrameLimits::UNLIMITED) {
            let frame = frame.unwrap();
            let start = snapshot.log_start_offset;
            if frame.header.end_offset() <= start {
                // The start was moved into the midst of a segment.
                continue;
            }
            assert!(frame.header.offset >= snapshot.cold_end_offset);
            builder.push(&frame).unwrap();
        }
        take(&builder.finish());
    }
    // As whoever scans does it.
    rows.retain(|(offset, count)| offset + count > snapshot.log_start_offset.0);
    rows
}

/// All rows of a cold file.
pub(crate) async fn cold_rows(store: &ColdStore, file: &ColdFile) -> Vec<RecordBatch> {
    let reader = ObjectReader {
        object_store: Arc::clone(store.object_store()),
        path: file.path.clone(),
        file_bytes: file.file_bytes,
    };
    let stream = ParquetRecordBatchStreamBuilder::new(reader)
        .await
        .unwrap()
        .build()
        .unwrap();
    stream.try_collect().await.unwrap()
}

/// Asserts that rows cover `[from, to)` without a hole or an overlap.
pub(crate) fn assert_dense(rows: &[(u64, u64)], from: u64, to: u64) {
    let mut next = from;
    for (offset, count) in rows {
        assert_eq!(*offset, next, "every record once, in order");
        next += count;
    }
    assert_eq!(next, to, "every record up to the high watermark");
}

/// All files below a folder, by their path in it, with their length.
pub(crate) fn files_below(folder: &Path) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&at) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path
                    .strip_prefix(folder)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                files.insert(name, entry.metadata().unwrap().len());
            }
        }
    }
    files
}
