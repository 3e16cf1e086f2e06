//! Starts, deletions and journals where something fails or is lost at the wrong moment.

use std::io::ErrorKind;

use super::support::*;
use crate::check::CheckedFolder;
use crate::disk::sim::{Operation, SimDisk, SimRng};
use crate::{Disk, Durability, OpenError, TopicConfig, TopicDurability, TopicError};
use basalt_proto::{GroupName, Offset, PartitionId};

/// A log whose records are all released: one empty segment tells the next offset.
fn released() -> SimDisk {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    append(&first, &record(b"a"), Durability::Fsync).unwrap();
    append(&first, &record(b"b"), Durability::Fsync).unwrap();
    first.seal_active().unwrap();
    first.release(Offset(2)).unwrap();
    drop(first);
    log.close().unwrap();
    disk
}

/// The file that alone tells the next offset was made anew at a start, and taken away when that failed.
#[test]
fn a_start_that_fails_never_costs_the_next_offset() {
    let operations = [
        Operation::Create,
        Operation::Write,
        Operation::Sync,
        Operation::SyncDir,
        Operation::Rename,
        Operation::SetLen,
    ];
    for with_index in [true, false] {
        for operation in operations {
            for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
                for skip in 0..6 {
                    let disk = released().process_loss();
                    if !with_index {
                        disk.delete(&files(&disk, ".new").pop().unwrap());
                    }
                    // Twice: at the start, and again at what makes up for it.
                    disk.fail(operation, "", skip, kind);
                    disk.fail(operation, "", skip, kind);
                    let opened = crate::Log::open(
                        config(),
                        std::sync::Arc::new(disk.clone()),
                        std::sync::Arc::new(crate::ManualClock::new(1)),
                    );
                    if let Ok(log) = opened {
                        let again = partition(&log, TopicDurability::Fsync);
                        if let Ok(appended) = append(&again, &record(b"c"), Durability::Fsync) {
                            assert_eq!(appended.base_offset, Offset(2));
                        }
                    }
                    let log = open(&disk.process_loss());
                    let end = partition(&log, TopicDurability::Fsync)
                        .bounds()
                        .log_end_offset;
                    assert!(end >= Offset(2), "{operation:?} {kind:?} {skip}: {end}");
                }
            }
        }
    }
}

/// A full disk must not keep the segments that would free it.
#[test]
fn a_full_disk_lets_go_of_all_but_the_last_segment() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for _ in 0..40 {
        append(&first, &record(&[1; 300]), Durability::Fsync).unwrap();
    }
    first.seal_active().unwrap();
    let before = files(&disk, ".seg").len();
    assert!(before > 2);
    disk.set_full(true);
    first.release(Offset(40)).unwrap();
    assert_eq!(files(&disk, ".seg").len(), 1);
    disk.set_full(false);
    first.release(Offset(40)).unwrap();
    assert_eq!(first.bounds().log_start_offset, Offset(40));
    let log = open(&disk.process_loss());
    assert_eq!(
        partition(&log, TopicDurability::Fsync)
            .bounds()
            .log_end_offset,
        Offset(40)
    );
}

/// A topic read from the page cache after a kill was relied on before it was on the disk.
#[test]
fn what_a_journal_reads_at_a_start_is_durable_before_it_is_used() {
    let disk = SimDisk::new();
    let log = open(&disk);
    // The name under which the simulated disk knows the file is the one it was made with.
    disk.fail(Operation::Sync, "catalogue.tmp", 0, ErrorKind::Other);
    assert!(
        log.create_topic(&topic_name(), 1, TopicConfig::default())
            .is_err()
    );
    let killed = disk.process_loss();
    let log = open(&killed);
    assert!(
        log.topic(&topic_name()).is_some(),
        "the page cache has the entry"
    );
    let first = partition(&log, TopicDurability::Fsync);
    append(&first, &record(b"acknowledged"), Durability::Fsync).unwrap();
    for seed in 0..30 {
        let after = open(&killed.power_loss(&mut SimRng::new(seed)));
        let again = partition(&after, TopicDurability::Fsync);
        assert_eq!(read_all(&again).len(), 1, "seed {seed}");
    }
}

/// A flipped bit in a length made everything after it look like a torn tail.
#[test]
fn a_damaged_length_in_a_journal_is_reported_and_cuts_nothing() {
    let disk = SimDisk::new();
    let log = open(&disk);
    for name in ["a", "b", "c"] {
        let name = basalt_proto::TopicName::new(name).unwrap();
        log.create_topic(&name, 1, TopicConfig::default()).unwrap();
    }
    log.close().unwrap();
    let path = data_dir().join("catalogue");
    for bit in 0..32 {
        let damaged = disk.process_loss();
        damaged.change(&path, |bytes| bytes[8 + bit / 8] ^= 1 << (bit % 8));
        let before = length(&damaged, &path);
        let opened = crate::Log::open(
            config(),
            std::sync::Arc::new(damaged.clone()),
            std::sync::Arc::new(crate::ManualClock::new(1)),
        );
        assert!(
            matches!(opened, Err(OpenError::Damaged { position: 8, .. })),
            "bit {bit}: {opened:?}"
        );
        assert_eq!(length(&damaged, &path), before);
    }
}

/// A partition of a deleted topic finished its sealing in the folder of the next topic of the name.
#[test]
fn a_deleted_topic_never_touches_the_files_of_the_next_one() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let old = partition(&log, TopicDurability::Fsync);
    for _ in 0..40 {
        append(&old, &record(&[1; 300]), Durability::Fsync).unwrap();
    }
    let group = GroupName::new("g").unwrap();
    let old_id = old.topic_id();
    let old_topic = log.topic(&topic_name()).unwrap();
    log.groups()
        .commit_now(&group, &old_topic, PartitionId(0), Offset(30))
        .unwrap();
    log.delete_topic(&topic_name(), old_id).unwrap();
    let new = partition(&log, TopicDurability::Fsync);
    // A commit that was under way.
    log.groups()
        .commit_now(&group, &old_topic, PartitionId(0), Offset(30))
        .unwrap();
    assert_eq!(
        log.groups()
            .committed(&group, &topic_name(), PartitionId(0)),
        None
    );
    append(&new, &record(b"new"), Durability::Fsync).unwrap();
    let operations = disk.operations();
    assert!(old.seal_active().is_err());
    old.finish_sealing().unwrap();
    old.release(Offset(1000)).unwrap();
    assert!(old.sync_now().is_err());
    assert_eq!(
        disk.operations(),
        operations,
        "nothing was done to the disk"
    );
    // A second deletion of the old topic is not one of the new.
    let again = log.delete_topic(&topic_name(), old_id);
    assert!(
        matches!(again, Err(TopicError::Unknown { .. })),
        "{again:?}"
    );
    assert_eq!(read_all(&new).len(), 1);
    drop(log);
    let reopened = open(&disk.process_loss());
    assert_eq!(
        read_all(&partition(&reopened, TopicDurability::Fsync)).len(),
        1
    );
}

/// The level was changed while a sync ran: the record was acknowledged and never shown.
#[test]
fn a_change_of_the_level_hides_nothing_that_was_synced() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    append(&first, &record(b"a"), Durability::None).unwrap();
    let os = TopicConfig {
        durability: TopicDurability::Os,
        ..TopicConfig::default()
    };
    log.alter_topic(&topic_name(), os).unwrap();
    first.sync_now().unwrap();
    assert_eq!(read_all(&first).len(), 1);
}

/// A middle entry overwritten and the segment cut before the next run ended the process at its start.
#[test]
fn a_damaged_index_over_a_cut_segment_starts() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for number in 0..10_u8 {
        append(&first, &record(&[number; 100]), Durability::Fsync).unwrap();
    }
    drop(first);
    log.close().unwrap();
    let (segment, index) = (
        files(&disk, ".seg").pop().unwrap(),
        files(&disk, ".idx").pop().unwrap(),
    );
    for entry in 0..10 {
        for kept in 0..10 {
            let damaged = disk.process_loss();
            damaged.change(&index, |bytes| {
                bytes[64 + entry * 64..128 + entry * 64].fill(0xff);
            });
            damaged.change(&segment, |bytes| bytes.truncate(kept * 129 + 50));
            let log = open(&damaged);
            let served = read_all(&partition(&log, TopicDurability::Fsync));
            assert_eq!(served.len(), kept, "entry {entry}");
        }
    }
}

/// A last entry that was whole once looks like a torn one: it is cut, but never without a trace.
#[test]
fn a_last_entry_that_does_not_read_is_found_and_put_aside() {
    let disk = SimDisk::new();
    let log = open(&disk);
    for name in ["a", "b"] {
        let name = basalt_proto::TopicName::new(name).unwrap();
        log.create_topic(&name, 1, TopicConfig::default()).unwrap();
    }
    log.close().unwrap();
    drop(log);
    let path = data_dir().join("catalogue");
    let last = length(&disk, &path) - 1;
    disk.change(&path, |bytes| bytes[last] ^= 1);
    let report = CheckedFolder::lock(&disk, &data_dir())
        .unwrap()
        .check(|_| ())
        .unwrap();
    let found = report.findings.iter().any(|finding| finding.path == path);
    assert!(found, "{:?}", report.findings);
    let log = open(&disk);
    assert_eq!(log.topics().len(), 1);
    let aside = Disk::open(&disk, &data_dir().join("catalogue.cut")).unwrap();
    let kept = String::from_utf8_lossy(&aside.read_all().unwrap()).into_owned();
    assert!(kept.contains("\"b\""), "{kept}");
}

/// With no room for a write-ahead log a group commit computed a size below zero.
#[test]
fn a_write_ahead_log_of_any_size_makes_commits_durable() {
    for wal_bytes in (0..2000).step_by(50) {
        let disk = SimDisk::new();
        let config = crate::LogConfig {
            wal_bytes,
            ..config()
        };
        let log = open_with(&disk, config.clone());
        let first = partition(&log, TopicDurability::Fsync);
        for _ in 0..5 {
            append_committed(&first, &record(b"a")).unwrap();
        }
        drop(first);
        let after = open_with(&disk.power_loss(&mut SimRng::new(wal_bytes)), config);
        let again = partition(&after, TopicDurability::Fsync);
        assert_eq!(read_all(&again).len(), 5, "{wal_bytes} bytes");
    }
}

/// The folder was removed, the sync of that failed, and the next topic of the name was made without another one: after a
/// power loss it had the old topic's records.
#[test]
fn a_deletion_that_was_not_synced_brings_nothing_back_under_the_next_topic() {
    for seed in 0..30 {
        let disk = SimDisk::new();
        let log = open(&disk);
        let old = partition(&log, TopicDurability::Fsync);
        append(&old, &record(b"old"), Durability::Fsync).unwrap();
        disk.fail(Operation::SyncDir, "/topics", 0, ErrorKind::Other);
        assert!(log.delete_topic(&topic_name(), old.topic_id()).is_err());
        let new = partition(&log, TopicDurability::Fsync);
        append(&new, &record(b"new"), Durability::Fsync).unwrap();
        let after = open(&disk.power_loss(&mut SimRng::new(seed)));
        let again = partition(&after, TopicDurability::Fsync);
        assert_eq!(read_all(&again), [(0, b"new".to_vec())], "seed {seed}");
    }
}

/// An index written with small blocks was not believed behind entries of larger ones.
#[test]
fn another_block_size_costs_no_settled_record() {
    for (before, after) in [(256, 4096), (4096, 256)] {
        let sized = |block_bytes| crate::LogConfig {
            block_bytes,
            segment_bytes: 1 << 20,
            ..config()
        };
        let disk = SimDisk::new();
        let log = open_with(&disk, sized(before));
        let first = partition(&log, TopicDurability::Fsync);
        for _ in 0..10 {
            append(&first, &record(&[1; 100]), Durability::Fsync).unwrap();
        }
        log.close().unwrap();
        let disk = disk.process_loss();
        let log = open_with(&disk, sized(after));
        let again = partition(&log, TopicDurability::Fsync);
        for _ in 0..20 {
            append(&again, &record(&[2; 100]), Durability::Fsync).unwrap();
        }
        for crashed in [disk.process_loss(), disk.power_loss(&mut SimRng::new(1))] {
            let log = open_with(&crashed, sized(after));
            let found = read_all(&partition(&log, TopicDurability::Fsync));
            assert_eq!(found.len(), 30, "blocks of {before}, then of {after}");
        }
    }
}

/// What was added is there after a loss of power, and takes records; there are never fewer.
#[test]
fn partitions_that_were_added_are_there_after_a_loss() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    append(&first, &record(b"a"), Durability::Fsync).unwrap();
    for (partitions, min) in [(1, 2), (0, 2), (u32::MAX, 2)] {
        let refused = log.add_partitions(&topic_name(), partitions);
        assert!(
            matches!(refused, Err(TopicError::BadPartitionCount { min: found, .. }) if found == min),
            "{refused:?}"
        );
    }
    log.add_partitions(&topic_name(), 3).unwrap();
    let last = log.topic(&topic_name()).unwrap();
    let last = last.partition(PartitionId(2)).unwrap();
    append(&last, &record(b"b"), Durability::Fsync).unwrap();
    drop((first, last, log));
    let log = open(&disk.power_loss(&mut SimRng::new(1)));
    let topic = log.topic(&topic_name()).unwrap();
    assert_eq!(topic.partition_count(), 3);
    let used: Vec<_> = topic
        .used_partitions()
        .iter()
        .map(|one| one.id().0)
        .collect();
    assert_eq!(used, [0, 2]);
    assert!(topic.partition(PartitionId(3)).is_none());
}
