//! Group commits of many partitions.

use super::support::*;
use crate::disk::sim::{SimDisk, SimRng};
use crate::{Durability, Partition, TopicConfig};
use basalt_proto::{FrameBatch, FrameLimits, Offset, PartitionId};
use std::sync::Arc;

const PARTITIONS: u32 = 50;

fn append_to_all(partitions: &[Arc<Partition>], round: u8) {
    let bytes = record(&[round; 20]);
    let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
    for partition in partitions {
        partition.append(&batch, Durability::Fsync).unwrap();
    }
}

/// The number of syncs must not grow with the number of partitions.
#[test]
fn one_write_and_one_sync_make_all_partitions_durable() {
    let disk = SimDisk::new();
    let mut config = config();
    config.wal_bytes = 1 << 20;
    let log = open_with(&disk, config.clone());
    let topic = log
        .create_topic(&topic_name(), PARTITIONS, TopicConfig::default())
        .unwrap();
    let partitions: Vec<_> = (0..PARTITIONS)
        .map(|id| topic.partition(PartitionId(id)).unwrap())
        .collect();
    // The first commit makes the file.
    append_to_all(&partitions, 0);
    log.commit_now(&partitions);
    for round in 1..4 {
        append_to_all(&partitions, round);
        let before = disk.operations();
        log.commit_now(&partitions);
        assert_eq!(disk.operations() - before, 2, "a write and a sync");
    }
    for partition in &partitions {
        assert_eq!(partition.bounds().high_watermark, Offset(4));
    }
    // Nothing but the write-ahead log was synced: with the power gone it alone brings all of it back.
    for seed in 0..5 {
        let after = disk.power_loss(&mut SimRng::new(seed));
        let log = open_with(&after, config.clone());
        let topic = log.topic(&topic_name()).unwrap();
        for id in 0..PARTITIONS {
            let found = read_all(&topic.partition(PartitionId(id)).unwrap());
            let payloads: Vec<_> = found.iter().map(|(_, payload)| payload[0]).collect();
            assert_eq!(payloads, [0, 1, 2, 3], "seed {seed}, partition {id}");
        }
    }
}

#[test]
fn a_checkpoint_frees_the_write_ahead_log_and_keeps_every_record() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let topic = log
        .create_topic(&topic_name(), 12, TopicConfig::default())
        .unwrap();
    let partitions: Vec<_> = (0..12)
        .map(|id| topic.partition(PartitionId(id)).unwrap())
        .collect();
    for round in 0..20 {
        append_to_all(&partitions, round);
        log.commit_now(&partitions);
        if round % 4 == 3 {
            log.turn_wal();
            log.checkpoint_now();
        }
    }
    let wal_bytes: usize = disk
        .paths()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .map(|path| length(&disk, path))
        .sum();
    assert!(
        wal_bytes <= 64 << 10,
        "{wal_bytes} bytes: no more than it may have"
    );
    for seed in 0..20 {
        let log = open(&disk.power_loss(&mut SimRng::new(seed)));
        let topic = log.topic(&topic_name()).unwrap();
        for id in 0..12 {
            assert_eq!(
                read_all(&topic.partition(PartitionId(id)).unwrap()).len(),
                20
            );
        }
    }
}
