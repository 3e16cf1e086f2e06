//! More partitions than the process may have files open, on the real disk.

use std::path::Path;
use std::sync::Arc;

use basalt_proto::{FrameBatch, FrameLimits, Offset, PartitionId};

use super::support::{append_committed, config, read_from, record, topic_name};
use crate::{Durability, Log, LogConfig, ManualClock, Partition, RealDisk, TopicConfig};

const LIMIT: usize = 16;
const PARTITIONS: u32 = 200;

fn open(dir: &Path) -> Arc<Log> {
    let config = LogConfig {
        wal_bytes: 1 << 20,
        data_dir: dir.to_owned(),
        ..config()
    };
    let disk = Arc::new(RealDisk::with_descriptors(LIMIT));
    Log::open(config, disk, Arc::new(ManualClock::new(1_000))).unwrap()
}

/// Descriptors of segments and their indexes.
fn open_segments(dir: &Path) -> usize {
    let topics = dir.join("topics");
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.starts_with(&topics) && target.extension().is_some())
        .count()
}

fn partitions(log: &Log) -> Vec<Arc<Partition>> {
    let topic = log.topic(&topic_name()).unwrap();
    (0..PARTITIONS)
        .map(|id| topic.partition(PartitionId(id)).unwrap())
        .collect()
}

fn payload(partition: usize, round: usize) -> Vec<u8> {
    format!("{round} of {partition}").into_bytes()
}

fn append_all(log: &Log, round: usize) {
    for (number, partition) in partitions(log).iter().enumerate() {
        let record = record(&payload(number, round));
        if number % 3 == 0 {
            let batch = FrameBatch::parse(&record, &FrameLimits::default()).unwrap();
            partition.append(&batch, Durability::Os).unwrap();
        } else {
            append_committed(partition, &record).unwrap();
        }
    }
}

fn check_all(log: &Log, rounds: usize) {
    for (number, partition) in partitions(log).iter().enumerate() {
        partition.sync_now().unwrap();
        let read = read_from(partition, Offset(0)).unwrap();
        let expected: Vec<_> = (0..rounds).map(|round| payload(number, round)).collect();
        let found: Vec<_> = read.into_iter().map(|(_, payload)| payload).collect();
        assert_eq!(found, expected, "partition {number}");
    }
}

#[test]
fn many_partitions_are_written_settled_sealed_read_and_opened_again_with_few_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let log = open(dir);
    log.create_topic(&topic_name(), PARTITIONS, TopicConfig::default())
        .unwrap();
    for round in 0..3 {
        append_all(&log, round);
        let open = open_segments(dir);
        assert!(open <= 2 * LIMIT, "{open} are open");
        log.turn_wal();
        log.checkpoint_now();
        let open = open_segments(dir);
        assert!(open <= LIMIT, "{open} are open though all is settled");
    }
    check_all(&log, 3);
    for partition in partitions(&log) {
        partition.seal_active().unwrap();
    }
    append_all(&log, 3);
    check_all(&log, 4);
    let readers: Vec<_> = partitions(&log)[..20]
        .iter()
        .map(|partition| partition.read(Offset(0), Offset::MAX, 1 << 20).unwrap())
        .collect();
    for partition in &partitions(&log)[..20] {
        partition.release(Offset(3)).unwrap();
        assert_eq!(read_from(partition, Offset(3)).unwrap().len(), 1);
    }
    for slice in &readers {
        let descriptor = slice.descriptor().unwrap().unwrap();
        let mut bytes = vec![0; slice.bytes().len()];
        rustix::io::pread(&descriptor, &mut bytes, slice.position()).unwrap();
        assert_eq!(bytes, slice.bytes(), "a removed segment is still read");
    }
    drop(readers);
    log.close().unwrap();
    drop(log);
    let log = open(dir);
    let open = open_segments(dir);
    assert!(open <= 2 * LIMIT, "{open} are open after recovery");
    for partition in &partitions(&log)[20..] {
        assert_eq!(read_from(partition, Offset(0)).unwrap().len(), 4);
    }
    log.delete_topic(&topic_name(), log.topic(&topic_name()).unwrap().id())
        .unwrap();
    assert_eq!(open_segments(dir), 0);
}
