//! What the log's tests share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use basalt_proto::{
    Frame, FrameBatch, FrameHeader, FrameLimits, FrameWalk, Offset, PartitionId, TopicName,
};

use crate::disk::sim::SimDisk;
use crate::{
    AppendError, Appended, Disk, Durability, Log, LogConfig, ManualClock, Partition, ReadError,
    TopicConfig, TopicDurability,
};

pub(super) fn topic_name() -> TopicName {
    TopicName::new("t").unwrap()
}

pub(super) fn data_dir() -> PathBuf {
    PathBuf::from("/data")
}

pub(super) fn partition_path() -> PathBuf {
    data_dir().join("topics/t/0")
}

pub(super) fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 4096,
        block_bytes: 1024,
        sync_threads: 0,
        wal_bytes: 64 << 10,
        ..LogConfig::new(data_dir())
    }
}

pub(super) fn open(disk: &SimDisk) -> Arc<Log> {
    open_with(disk, config())
}

pub(super) fn open_with(disk: &SimDisk, config: LogConfig) -> Arc<Log> {
    Log::open(
        config,
        Arc::new(disk.clone()),
        Arc::new(ManualClock::new(1_000)),
    )
    .unwrap()
}

/// The partition 0 of topic `t`, created at the level if it is not there.
pub(super) fn partition(log: &Log, durability: TopicDurability) -> Arc<Partition> {
    let topic = log.topic(&topic_name()).unwrap_or_else(|| {
        log.create_topic(
            &topic_name(),
            1,
            TopicConfig {
                durability,
                ..TopicConfig::default()
            },
        )
        .unwrap()
    });
    topic.partition(PartitionId(0)).unwrap()
}

pub(super) fn record(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame::record(7, b"", payload).encode_into(&mut bytes);
    bytes
}

pub(super) fn record_of(timestamp_ns: u64, record_count: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Frame::record(timestamp_ns, b"", payload);
    frame.header.record_count = record_count;
    let mut bytes = Vec::new();
    frame.encode_into(&mut bytes);
    bytes
}

pub(super) fn append(
    partition: &Partition,
    bytes: &[u8],
    durability: Durability,
) -> Result<Appended, AppendError> {
    let batch = FrameBatch::parse(bytes, &FrameLimits::default()).unwrap();
    let appended = partition.append(&batch, durability)?;
    if durability == Durability::Fsync {
        partition.sync_now()?;
    }
    Ok(appended)
}

/// An append that is made durable by the write-ahead log.
pub(super) fn append_committed(
    partition: &Arc<Partition>,
    bytes: &[u8],
) -> Result<Appended, AppendError> {
    let batch = FrameBatch::parse(bytes, &FrameLimits::default()).unwrap();
    let appended = partition.append(&batch, Durability::Fsync)?;
    partition.commit_now()?;
    Ok(appended)
}

/// All frames from `from` to the high watermark, read slice by slice.
pub(super) fn read_from(
    partition: &Partition,
    from: Offset,
) -> Result<Vec<(FrameHeader, Vec<u8>)>, ReadError> {
    let mut frames = Vec::new();
    let mut next = from;
    loop {
        let slice = partition.read(next, Offset(u64::MAX), 1000)?;
        for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
            let frame = frame.unwrap();
            frames.push((frame.header, frame.payload.to_vec()));
        }
        if slice.next_offset == next {
            assert!(slice.is_empty());
            return Ok(frames);
        }
        assert!(slice.next_offset > next, "a read that gets nowhere");
        next = slice.next_offset;
    }
}

/// Offset and payload of every readable frame.
pub(super) fn read_all(partition: &Partition) -> Vec<(u64, Vec<u8>)> {
    let frames = read_from(partition, partition.bounds().log_start_offset).unwrap();
    frames
        .into_iter()
        .map(|(header, payload)| (header.offset.0, payload))
        .collect()
}

/// Paths of the partition's files that end in `suffix`, in order.
pub(super) fn files(disk: &SimDisk, suffix: &str) -> Vec<PathBuf> {
    let belongs = |path: &PathBuf| {
        path.starts_with(partition_path()) && path.to_string_lossy().ends_with(suffix)
    };
    disk.paths().into_iter().filter(belongs).collect()
}

pub(super) fn length(disk: &SimDisk, path: &Path) -> usize {
    usize::try_from(disk.open(path).unwrap().len().unwrap()).unwrap()
}
