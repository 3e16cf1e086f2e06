//! Starts with many partitions, on the real disk and by several threads.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use basalt_proto::{Offset, PartitionId};

use super::support::*;
use crate::{Durability, Log, LogConfig, ManualClock, OpenError, Partition, RealDisk, TopicConfig};

const PARTITIONS: u32 = 500;

fn open_at(dir: &Path) -> Result<Arc<Log>, OpenError> {
    let config = LogConfig {
        data_dir: dir.to_owned(),
        sync_threads: 2,
        ..config()
    };
    let disk = Arc::new(RealDisk::with_descriptors(100));
    Log::open(config, disk, Arc::new(ManualClock::new(1_000)))
}

/// What a killed process leaves: the folder as it is.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if from.is_dir() {
            copy_folder(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn partitions(log: &Log) -> Vec<Arc<Partition>> {
    let topic = log.topic(&topic_name()).unwrap();
    let ids = (0..PARTITIONS).map(PartitionId);
    ids.map(|id| topic.partition(id).unwrap()).collect()
}

fn payload(number: usize, round: usize) -> Vec<u8> {
    format!("{round} of {number}").into_bytes()
}

/// Appends to every partition but each seventh.
fn append_all(log: &Log, round: usize) {
    for (number, partition) in partitions(log).iter().enumerate() {
        if number % 7 > 0 {
            let record = record(&payload(number, round));
            append(partition, &record, Durability::Fsync).unwrap();
        }
        if number % 5 == 0 {
            partition.seal_active().unwrap();
        }
    }
}

#[test]
fn many_partitions_are_recovered_at_once_and_one_that_cannot_be_opened_fails_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (first, killed) = (folder.path().join("first"), folder.path().join("killed"));
    let log = open_at(&first).unwrap();
    log.create_topic(&topic_name(), PARTITIONS, TopicConfig::default())
        .unwrap();
    append_all(&log, 0);
    log.checkpoint_now();
    append_all(&log, 1);
    copy_folder(&first, &killed);
    drop(log);
    for dir in [&first, &killed] {
        let log = open_at(dir).unwrap();
        append_all(&log, 2);
        for (number, partition) in partitions(&log).iter().enumerate() {
            let rounds = if number % 7 > 0 { 3 } else { 0 };
            let expected: Vec<_> = (0..rounds).map(|round| payload(number, round)).collect();
            let found: Vec<_> = read_all(partition)
                .into_iter()
                .map(|found| found.1)
                .collect();
            assert_eq!(found, expected, "partition {number} of {}", dir.display());
            assert_eq!(partition.bounds().log_end_offset, Offset(rounds as u64));
        }
    }
    fs::create_dir(killed.join("topics/t/333/reserved")).unwrap();
    assert!(matches!(open_at(&killed), Err(OpenError::Disk(_))));
    fs::remove_dir(killed.join("topics/t/333/reserved")).unwrap();
    assert_eq!(open_at(&killed).unwrap().topics().len(), 1);
}
