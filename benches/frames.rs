//! The loops that records go through: walking frames, checksums, making record batches of them, appending to a segment; and finding an
//! offset again.
//!
//! One workload: frames with a payload of 100 bytes and no key, made from a fixed seed, in batches of 64 KiB. Run
//! `cargo bench --bench frames`; compare two runs on one machine, never figures of two machines.

use std::hint::black_box;
use std::sync::Arc;

use basalt_log::{Durability, Log, LogConfig, RealDisk, SystemClock, TopicConfig, crc32c};
use basalt_proto::batch::LeanBatches;
use basalt_proto::{
    Frame, FrameBatch, FrameLimits, FrameWalk, Offset, PartitionId, TopicName, patch_offset,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const SEED: u64 = 0x0b5a_1700_2013_0001;
const PAYLOAD_BYTES: usize = 100;
const BATCH_BYTES: usize = 64 << 10;
/// Old segments go after so many appends, so that a long run does not fill the disk.
const APPENDS_PER_TOPIC: u64 = 4096;
/// Appends before offsets are looked up: 256 MiB, in several segments.
const LOOKUP_APPENDS: u64 = 4096;
/// What a lookup reads.
const READ_BYTES: u64 = 4096;

/// Numbers that look random, the same in every run (xorshift).
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn workload() -> Vec<u8> {
    let mut random = Random(SEED);
    let mut frames = Vec::with_capacity(BATCH_BYTES);
    let mut timestamp_ns = 1_357_034_400_000_000_000;
    loop {
        let mut payload = [0; PAYLOAD_BYTES];
        for part in payload.chunks_mut(8) {
            part.copy_from_slice(&random.next().to_be_bytes()[..part.len()]);
        }
        timestamp_ns += 1_000;
        let before = frames.len();
        Frame::record(timestamp_ns, b"", &payload).encode_into(&mut frames);
        if frames.len() > BATCH_BYTES {
            frames.truncate(before);
            return frames;
        }
    }
}

fn walk(criterion: &mut Criterion) {
    let frames = workload();
    let mut group = criterion.benchmark_group("frames");
    group.throughput(Throughput::Bytes(frames.len() as u64));
    group.bench_function("walk", |bencher| {
        bencher.iter(|| FrameWalk::new(black_box(&frames), FrameLimits::UNLIMITED).count());
    });
    group.bench_function("parse", |bencher| {
        bencher.iter(|| {
            FrameBatch::parse(black_box(&frames), &FrameLimits::default())
                .map(|batch| batch.record_count())
        });
    });
    group.bench_function("crc32c", |bencher| {
        bencher.iter(|| crc32c(black_box(&frames)))
    });
    group.finish();
}

/// What a Kafka client is sent of records that were produced natively: frames made into record batches, with their checksums.
#[expect(
    clippy::expect_used,
    reason = "a bench that cannot set up has nothing to measure"
)]
fn lean_batches(criterion: &mut Criterion) {
    let mut bytes = workload();
    let count = FrameWalk::new(&bytes, FrameLimits::UNLIMITED).count();
    let frame_bytes = bytes.len() / count;
    for (offset, frame) in (0..).zip(bytes.chunks_exact_mut(frame_bytes)) {
        patch_offset(frame, Offset(offset));
    }
    let end = Offset(u64::MAX);
    let mut group = criterion.benchmark_group("frames");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("lean batches", |bencher| {
        let mut batches = LeanBatches::new(end);
        bencher.iter(|| {
            batches.forget();
            for frame in FrameWalk::new(black_box(&bytes), FrameLimits::UNLIMITED) {
                let frame = frame.expect("a sound frame");
                batches.push(&frame).expect("room for it");
            }
            batches.close();
            batches.bytes().len()
        });
    });
    group.finish();
}

#[expect(
    clippy::expect_used,
    reason = "a bench that cannot set up has nothing to measure"
)]
fn append(criterion: &mut Criterion) {
    let frames = workload();
    let batch = FrameBatch::parse(&frames, &FrameLimits::default()).expect("sound frames");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = LogConfig::new(folder.path());
    let log =
        Log::open(config, Arc::new(RealDisk::new()), Arc::new(SystemClock)).expect("an empty log");
    let topic = TopicName::new("bench").expect("a valid name");
    let make = || {
        let made = log
            .create_topic(&topic, 1, TopicConfig::default())
            .expect("a topic");
        made.partition(PartitionId(0)).expect("its partition")
    };
    let mut partition = make();
    let mut append_count = 0;
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Bytes(frames.len() as u64));
    group.bench_function("64 KiB to the page cache", |bencher| {
        bencher.iter(|| {
            append_count += 1;
            if append_count % APPENDS_PER_TOPIC == 0 {
                log.delete_topic(&topic, partition.topic_id())
                    .expect("the topic goes");
                partition = make();
            }
            partition.append(&batch, Durability::Os).expect("an append")
        });
    });
    group.finish();
}

#[expect(
    clippy::expect_used,
    reason = "a bench that cannot set up has nothing to measure"
)]
fn lookup(criterion: &mut Criterion) {
    let frames = workload();
    let batch = FrameBatch::parse(&frames, &FrameLimits::default()).expect("sound frames");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = LogConfig::new(folder.path());
    let log =
        Log::open(config, Arc::new(RealDisk::new()), Arc::new(SystemClock)).expect("an empty log");
    let topic = TopicName::new("bench").expect("a valid name");
    let config = TopicConfig {
        segment_bytes: Some(64 << 20),
        ..TopicConfig::default()
    };
    let made = log.create_topic(&topic, 1, config);
    let partition = made.expect("a topic").partition(PartitionId(0));
    let partition = partition.expect("its partition");
    for _ in 0..LOOKUP_APPENDS {
        partition.append(&batch, Durability::Os).expect("an append");
    }
    let end = partition.bounds().high_watermark;
    let mut random = Random(SEED);
    // Before blocks of sealed segments are compared with their checksums for the first time.
    let mut from = Offset(0);
    while from < end {
        let read = partition.read(from, end, u64::MAX).expect("frames");
        from = read.next_offset;
    }
    criterion.bench_function("lookup of an offset, 4 KiB from there", |bencher| {
        bencher.iter(|| {
            let from = Offset(random.next() % end.0);
            partition.read(from, end, READ_BYTES).expect("frames").len()
        });
    });
}

criterion_group!(benches, walk, lean_batches, append, lookup);
criterion_main!(benches);
