//! More segments than a process may have maps, on the real disk; and maps and reads that fail, on the simulated one.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use basalt_proto::{FrameLimits, FrameWalk, Offset, PartitionId};

use super::support::*;
use crate::disk::sim::{Operation, SimDisk};
use crate::{
    Durability, Isolation, Log, LogConfig, ManualClock, Partition, ReadError, RealDisk,
    TopicConfig, TopicDurability,
};

const MAPS: usize = 8;
const PARTITIONS: u32 = 100;

fn open_with_few(dir: &Path) -> Arc<Log> {
    let config = LogConfig {
        wal_bytes: 1 << 20,
        data_dir: dir.to_owned(),
        ..config()
    };
    let disk = Arc::new(RealDisk::with_limits(1000, MAPS));
    Log::open(config, disk, Arc::new(ManualClock::new(1_000))).unwrap()
}

/// Maps of this process that are of segments below a folder.
fn maps_below(dir: &Path) -> usize {
    let below = format!("{}/topics/", dir.display());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(&below)).count()
}

fn partitions(log: &Log) -> Vec<Arc<Partition>> {
    let topic = log.topic(&topic_name()).unwrap();
    let ids = (0..PARTITIONS).map(PartitionId);
    ids.map(|id| topic.partition(id).unwrap()).collect()
}

fn payload(partition: usize, round: usize) -> Vec<u8> {
    format!("{round} of {partition}").into_bytes()
}

fn append_all(log: &Log, round: usize) {
    for (number, partition) in partitions(log).iter().enumerate() {
        append_committed(partition, &record(&payload(number, round))).unwrap();
    }
}

/// Reads every partition from the start on.
fn check_all(log: &Log, rounds: usize) {
    for (number, partition) in partitions(log).iter().enumerate() {
        let expected: Vec<_> = (0..rounds).map(|round| payload(number, round)).collect();
        let found: Vec<_> = read_all(partition)
            .into_iter()
            .map(|found| found.1)
            .collect();
        assert_eq!(found, expected, "partition {number}");
    }
}

/// DISK-3.
#[test]
fn many_partitions_are_written_read_sealed_and_opened_again_with_few_maps() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let log = open_with_few(dir);
    log.create_topic(&topic_name(), PARTITIONS, TopicConfig::default())
        .unwrap();
    append_all(&log, 0);
    append_all(&log, 1);
    assert_eq!(maps_below(dir), 0, "whoever only writes maps nothing");
    check_all(&log, 2);
    assert_eq!(maps_below(dir), MAPS);
    let held: Vec<_> = partitions(&log)[..30]
        .iter()
        .map(|partition| partition.read(Offset(0), Offset::MAX, 1 << 20).unwrap())
        .collect();
    append_all(&log, 2);
    check_all(&log, 3);
    let maps = maps_below(dir);
    assert!((30..=30 + MAPS).contains(&maps), "{maps}");
    for (number, slice) in held.iter().enumerate() {
        let frames = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED);
        let found: Vec<_> = frames
            .map(|frame| frame.unwrap().payload.to_vec())
            .collect();
        assert_eq!(found, [payload(number, 0), payload(number, 1)]);
    }
    drop(held);
    for partition in partitions(&log) {
        partition.seal_active().unwrap();
    }
    append_all(&log, 3);
    for partition in partitions(&log) {
        for view in partition.snapshot(Isolation::Uncommitted).segments {
            for block in view.blocks() {
                view.verify_block(block).unwrap();
                assert!(!view.block_bytes(block).unwrap().is_empty());
            }
        }
        assert!(maps_below(dir) <= MAPS + 1, "{}", maps_below(dir));
    }
    check_all(&log, 4);
    drop(log);
    let log = open_with_few(dir);
    assert!(maps_below(dir) <= MAPS);
    check_all(&log, 4);
    assert!(maps_below(dir) <= MAPS);
    drop(log);
    assert_eq!(maps_below(dir), 0);
}

#[test]
fn a_file_that_cannot_be_mapped_or_read_is_an_error_of_the_read_and_the_next_one_succeeds() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    append(&partition, &record(b"first"), Durability::Fsync).unwrap();
    partition.seal_active().unwrap();
    append(&partition, &record(b"second"), Durability::Fsync).unwrap();
    for offset in [0, 1] {
        disk.fail(Operation::Map, ".seg", 0, ErrorKind::OutOfMemory);
        let failed = partition.read(Offset(offset), Offset::MAX, 100);
        assert!(matches!(failed, Err(ReadError::Disk(_))), "{failed:?}");
        partition.read(Offset(offset), Offset::MAX, 100).unwrap();
    }
    let view = &partition.snapshot(Isolation::Uncommitted).segments[0];
    disk.fail(Operation::Map, ".seg", 0, ErrorKind::OutOfMemory);
    assert!(matches!(
        view.block_bytes(&view.blocks()[0]),
        Err(ReadError::Disk(_))
    ));
    view.verify_block(&view.blocks()[0]).unwrap();
    assert_eq!(partition.poisoned(), None);
    drop(log);
    // Blocks of a sealed segment are compared by the first who reads them, not by the start.
    let log = open(&disk);
    let partition = super::support::partition(&log, TopicDurability::Fsync);
    disk.fail(Operation::Read, ".seg", 0, ErrorKind::Other);
    let failed = partition.read(Offset(0), Offset::MAX, 100);
    assert!(matches!(failed, Err(ReadError::Disk(_))), "{failed:?}");
    assert_eq!(read_all(&partition).len(), 2);
}

#[test]
fn frames_that_cannot_be_read_back_for_a_commit_are_synced_in_their_segment() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    append_committed(&partition, &record(b"first")).unwrap();
    disk.fail(Operation::Read, ".seg", 0, ErrorKind::OutOfMemory);
    append_committed(&partition, &record(b"second")).unwrap();
    assert!(disk.faults_are_used_up());
    assert_eq!(partition.synced_offset(), Offset(2));
    append_committed(&partition, &record(b"third")).unwrap();
    let log = open(&disk.power_loss(&mut crate::disk::sim::SimRng::new(1)));
    let partition = super::support::partition(&log, TopicDurability::Fsync);
    assert_eq!(read_all(&partition).len(), 3);
}

#[test]
fn a_snapshot_ends_before_a_record_that_cannot_be_read_and_the_next_one_has_it() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    append(&partition, &record(b"durable"), Durability::Fsync).unwrap();
    append(&partition, &record(b"not yet"), Durability::None).unwrap();
    disk.fail(Operation::Map, ".seg", 0, ErrorKind::OutOfMemory);
    let snapshot = partition.snapshot(Isolation::Uncommitted);
    assert_eq!(snapshot.high_watermark, Offset(0));
    assert!(snapshot.segments[0].blocks().is_empty());
    let snapshot = partition.snapshot(Isolation::Uncommitted);
    assert_eq!(snapshot.high_watermark, Offset(1));
    assert_eq!(snapshot.segments[0].blocks()[0].record_count, 1);
}
