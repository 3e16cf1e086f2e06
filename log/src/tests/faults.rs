//! Disks that refuse: PUB-03 to PUB-05, and every other operation failing once.

use std::io::ErrorKind;
use std::sync::Arc;

use super::support::*;
use crate::disk::sim::{Operation, SimDisk, SimRng};
use crate::{AppendError, Durability, Log, TopicDurability};
use basalt_proto::Offset;

/// PUB-03: the file was grown sparsely and mapped; a full disk killed the process, and some could not start again.
#[test]
fn pub_03_a_full_disk_refuses_appends_and_nothing_else() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    let mut acked = Vec::new();
    for number in 0..10_u64 {
        append(&first, &record(&number.to_be_bytes()), Durability::Fsync).unwrap();
        acked.push((number, number.to_be_bytes().to_vec()));
    }
    disk.set_full(true);
    let refused =
        (0..10_000).find_map(|_| append(&first, &record(&[b'x'; 500]), Durability::Fsync).err());
    assert!(
        matches!(refused, Some(AppendError::StorageFull { .. })),
        "{refused:?}"
    );
    let end = first.bounds().log_end_offset;
    assert_eq!(read_all(&first)[..10], acked);
    // Killed and started again on the full disk: reading works, appending is refused again, and resumes by itself.
    let killed = disk.process_loss();
    let log = open(&killed);
    let again = partition(&log, TopicDurability::Fsync);
    assert_eq!(read_all(&again)[..10], acked);
    assert_eq!(again.bounds().high_watermark, end);
    let refused = append(&again, &record(&[b'x'; 3000]), Durability::Fsync);
    assert!(
        matches!(refused, Err(AppendError::StorageFull { .. })),
        "{refused:?}"
    );
    killed.set_full(false);
    let resumed = append(&again, &record(&[b'x'; 3000]), Durability::Fsync).unwrap();
    assert_eq!(resumed.base_offset, end);
}

/// PUB-04: a sync failed once and "succeeded" when repeated, although the pages were already gone.
#[test]
fn pub_04_a_record_whose_sync_failed_is_never_acknowledged_by_a_later_one() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    let mut acked = Vec::new();
    let mut failed = 0;
    for number in 0..10_u64 {
        if number == 4 {
            disk.fail(Operation::Sync, ".seg", 0, ErrorKind::Other);
        }
        match append(&first, &record(&number.to_be_bytes()), Durability::Fsync) {
            Ok(appended) => acked.push((appended.base_offset.0, number.to_be_bytes().to_vec())),
            Err(error) => {
                assert!(matches!(error, AppendError::Poisoned { .. }), "{error}");
                failed += 1;
            }
        }
    }
    assert_eq!((acked.len(), failed), (4, 6));
    assert_eq!(read_all(&first), acked, "reads of what is durable go on");
    assert!(log.close().is_err(), "closing does not pretend");
    for seed in 0..50 {
        let after = disk.power_loss(&mut SimRng::new(seed));
        let log = open(&after);
        let again = partition(&log, TopicDurability::Fsync);
        assert_eq!(read_all(&again)[..4], acked, "seed {seed}");
        let next = append(&again, &record(b"next"), Durability::Fsync).unwrap();
        assert!(next.base_offset >= Offset(4));
    }
    // Opened anew on the same boot, what is served has been written again and synced.
    let reopened = disk.process_loss();
    let log = open(&reopened);
    let served = read_all(&partition(&log, TopicDurability::Fsync));
    for seed in 0..50 {
        let after = reopened.power_loss(&mut SimRng::new(seed));
        let log = open(&after);
        assert_eq!(
            read_all(&partition(&log, TopicDurability::Fsync)),
            served,
            "seed {seed}"
        );
    }
}

/// PUB-04, the other half: the sync of a folder after a segment was created in it.
#[test]
fn pub_04_a_failed_folder_sync_after_a_new_segment_is_not_acknowledged_over() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    append(&first, &record(b"zero"), Durability::Fsync).unwrap();
    disk.fail(Operation::SyncDir, "topics/t/0", 0, ErrorKind::Other);
    let error = (0..100)
        .find_map(|_| append(&first, &record(&[b'x'; 500]), Durability::Fsync).err())
        .unwrap();
    assert!(matches!(error, AppendError::Poisoned { .. }), "{error}");
    assert!(append(&first, &record(b"x"), Durability::Fsync).is_err());
    assert!(disk.faults_are_used_up());
    let acked = read_all(&first);
    for seed in 0..50 {
        let after = disk.power_loss(&mut SimRng::new(seed));
        let log = open(&after);
        assert_eq!(
            read_all(&partition(&log, TopicDurability::Fsync))[..acked.len()],
            acked,
            "seed {seed}"
        );
    }
}

/// PUB-05: offsets acknowledged from memory were handed out again after a kill, for other records.
#[test]
fn pub_05_an_acknowledged_offset_never_names_another_record() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Os);
    for number in 0..10_u64 {
        let appended = append(&first, &record(&number.to_be_bytes()), Durability::Os).unwrap();
        assert_eq!(appended.base_offset, Offset(number));
    }
    assert_eq!(
        first.bounds().high_watermark,
        Offset(10),
        "visible at level os without a sync"
    );
    // The process alone is gone: the page cache has everything, and no offset is skipped.
    let killed = disk.process_loss();
    let log = open(&killed);
    let again = partition(&log, TopicDurability::Os);
    assert_eq!(read_all(&again).len(), 10);
    assert_eq!(
        append(&again, &record(b"n0"), Durability::Os)
            .unwrap()
            .base_offset,
        Offset(10)
    );
    // The machine is gone: records may be, their offsets are not given again, and a reader at 10 gets what comes.
    for seed in 0..100 {
        let after = disk.power_loss(&mut SimRng::new(seed));
        let log = open(&after);
        let again = partition(&log, TopicDurability::Os);
        let survivors = read_all(&again);
        for (offset, payload) in &survivors {
            assert_eq!(payload, &offset.to_be_bytes(), "seed {seed}");
        }
        let n0 = append(&again, &record(b"n0"), Durability::Os).unwrap();
        assert!(n0.base_offset >= Offset(10), "seed {seed}: {n0:?}");
        // A consumer that committed 10 is moved to the log start where everything before it is lost.
        let seen = read_from(&again, Offset(10).max(again.bounds().log_start_offset)).unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].1, b"n0");
        drop(log);
        let reopened = open(&after.process_loss());
        assert_eq!(
            read_all(&partition(&reopened, TopicDurability::Os)).len(),
            survivors.len() + 1
        );
    }
}

/// Whatever fails, once, at whatever moment: no acknowledged record is lost or changed, and the next start works.
#[test]
fn any_single_failure_at_any_moment_loses_nothing_acknowledged() {
    let operations = [
        Operation::Sync,
        Operation::SyncDir,
        Operation::Allocate,
        Operation::Write,
        Operation::SetLen,
        Operation::Create,
        Operation::Rename,
        Operation::Remove,
    ];
    for operation in operations {
        for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
            for skip in 0..60 {
                one_failure(operation, kind, skip, false);
                one_failure(operation, kind, skip, true);
            }
        }
    }
}

fn one_failure(operation: Operation, kind: ErrorKind, skip: u64, committed: bool) {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    disk.fail(operation, "", skip, kind);
    let mut acked = Vec::new();
    for number in 0..30_u64 {
        let payload = [&number.to_be_bytes()[..], &[b'.'; 300]].concat();
        let appended = if committed {
            append_committed(&first, &record(&payload))
        } else {
            append(&first, &record(&payload), Durability::Fsync)
        };
        if let Ok(appended) = appended {
            acked.push((appended.base_offset.0, payload));
        }
        if number % 7 == 5 {
            // What is not made ahead is made when it is needed.
            let _ = first.prepare_next();
        }
        if number % 10 == 9 {
            log.turn_wal();
            log.checkpoint_now();
        }
        if number == 15 {
            // Sealing may be refused; it is tried again by the next.
            let _ = first.seal_active();
        }
        if number == 25 {
            let _ = first.release(Offset(5));
        }
    }
    let start = first.bounds().log_start_offset.0;
    let _ = log.close();
    drop(log);
    for after in [disk.process_loss(), disk.power_loss(&mut SimRng::new(skip))] {
        let log = open(&after);
        let found = read_all(&partition(&log, TopicDurability::Fsync));
        for (offset, payload) in acked.iter().filter(|(offset, _)| *offset >= start) {
            let there = found
                .iter()
                .any(|(at, bytes)| at == offset && bytes == payload);
            assert!(
                there,
                "{operation:?} {kind:?} after {skip}: offset {offset} is gone"
            );
        }
        let mut offsets: Vec<u64> = found.iter().map(|(offset, _)| *offset).collect();
        offsets.dedup();
        assert_eq!(
            offsets.len(),
            found.len(),
            "{operation:?} {kind:?} after {skip}: a record is there twice"
        );
    }
}

/// Recovery cut the tail off before what it kept was on the disk. When the power went in between, the file ended with its
/// frames as after a stop in order, and a frame with lost sectors was served.
#[test]
fn a_recovery_that_a_power_loss_cuts_off_leaves_nothing_altered_behind() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Os);
    append(&first, &record(&[7; 1500]), Durability::Os).unwrap();
    for operations in 0..40 {
        for seed in 0..20 {
            let killed = disk.process_loss();
            killed.stop_after(operations);
            let _ = Log::open(
                config(),
                Arc::new(killed.clone()),
                Arc::new(crate::ManualClock::new(1)),
            );
            let log = open(&killed.power_loss(&mut SimRng::new(seed)));
            for (_, payload) in read_all(&partition(&log, TopicDurability::Os)) {
                assert!(payload == [7; 1500], "after {operations}, seed {seed}");
            }
        }
    }
}

/// A topic went from level `fsync` to `os`: the next append showed records in a full segment that had no published mark, and
/// the end of the process cost them.
#[test]
fn records_that_a_change_of_the_level_shows_survive_the_process() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for _ in 0..10 {
        append(&first, &record(&[1; 900]), Durability::None).unwrap();
    }
    let os = crate::TopicConfig {
        durability: TopicDurability::Os,
        ..crate::TopicConfig::default()
    };
    log.alter_topic(&topic_name(), os).unwrap();
    append(&first, &record(&[2; 900]), Durability::None).unwrap();
    assert_eq!(read_all(&first).len(), 11, "they are shown");
    let log = open(&disk.process_loss());
    let again = partition(&log, TopicDurability::Os);
    assert_eq!(read_all(&again).len(), 11);
}

/// A file of the write-ahead log whose maker was killed before its name was durable was used by the next process, and gone
/// after a power loss, with all that was acknowledged by it.
#[test]
fn a_write_ahead_log_found_at_the_start_has_a_durable_name_before_it_is_used() {
    for operations in 0..40 {
        let disk = SimDisk::new();
        let first = partition(&open(&disk), TopicDurability::Fsync);
        disk.stop_after(operations);
        let _ = append_committed(&first, &record(b"a"));
        let killed = disk.process_loss();
        let log = open(&killed);
        let again = partition(&log, TopicDurability::Fsync);
        let appended = append_committed(&again, &record(b"b")).unwrap();
        for seed in 0..10 {
            let log = open(&killed.power_loss(&mut SimRng::new(seed)));
            let found = read_all(&partition(&log, TopicDurability::Fsync));
            let expected = (appended.base_offset.0, b"b".to_vec());
            assert!(
                found.contains(&expected),
                "after {operations}, seed {seed}: {found:?}"
            );
        }
    }
}

/// The last entries of an index were read from the page cache alone, relied on, and lost with the machine.
#[test]
fn index_entries_that_recovery_reads_are_durable_before_their_frames_are_shown() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    // So many that the last entry is not in the header's sector.
    for number in 0..20_u8 {
        append(&first, &record(&[number]), Durability::Fsync).unwrap();
    }
    disk.fail(Operation::Sync, ".new", 0, ErrorKind::Other);
    append(&first, &record(&[20]), Durability::Fsync).unwrap_err();
    assert!(disk.faults_are_used_up());
    let killed = disk.process_loss();
    let again = open(&killed);
    let shown = read_all(&partition(&again, TopicDurability::Fsync));
    assert_eq!(shown.len(), 21);
    for seed in 0..8 {
        let lost = killed.power_loss(&mut SimRng::new(seed));
        let again = read_all(&partition(&open(&lost), TopicDurability::Fsync));
        assert_eq!(again, shown, "seed {seed}");
    }
}
