//! LOG-15: a numbered batch is stored once, whatever stops in between.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

use basalt_proto::batch::{BatchFields, BatchWriter, RecordBatch, RecordToWrite};
use basalt_proto::{Frame, FrameBatch, FrameLimits, FrameWalk, Offset};

use super::support::*;
use crate::disk::sim::{Operation, SimDisk, SimRng};
use crate::{
    AppendError, Durability, Log, ManualClock, Partition, Sequence, SequenceError, Sequenced,
    TopicDurability,
};

const PRODUCER: i64 = 7 << 32;

/// A batch frame of `count` records that begins with sequence `first`.
fn numbered(epoch: i16, first: u32, count: u32) -> Vec<u8> {
    let fields = BatchFields {
        producer_id: PRODUCER,
        producer_epoch: epoch,
        base_sequence: first.cast_signed(),
        ..BatchFields::default()
    };
    let mut writer = BatchWriter::new(fields).unwrap();
    for number in 0..count {
        let value = [number.to_be_bytes()[3]; 40];
        let record = RecordToWrite {
            timestamp_ms: 5,
            key: None,
            value: Some(&value),
            headers: &[],
        };
        writer.push(&record).unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    let mut frame = Vec::new();
    Frame::batch(5_000_000, &batch, count).encode_into(&mut frame);
    frame
}

fn send(
    partition: &Arc<Partition>,
    epoch: i16,
    first: u32,
    count: u32,
    durability: Durability,
) -> Result<Sequenced, AppendError> {
    let frame = numbered(epoch, first, count);
    let batch = FrameBatch::parse(&frame, &FrameLimits::default()).unwrap();
    let header = RecordBatch::header(batch.frames().next().unwrap().unwrap().payload).unwrap();
    let sequence = Sequence::of(&header).unwrap();
    let sent = partition.append_sequenced(&batch, &sequence, durability)?;
    if durability == Durability::Fsync {
        // By either of the two ways to the disk.
        match first % 2 {
            0 => partition.sync_now()?,
            _ => partition.commit_now()?,
        }
    }
    Ok(sent)
}

/// First sequence, epoch and offset of each numbered batch in the log.
fn stored(partition: &Partition) -> Vec<(i16, u32, Offset)> {
    let mut all = Vec::new();
    let mut next = partition.bounds().log_start_offset;
    loop {
        let slice = partition.read(next, Offset(u64::MAX), 1 << 20).unwrap();
        for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
            let frame = frame.unwrap();
            let header = RecordBatch::header(frame.payload).unwrap();
            let first = header.base_sequence.cast_unsigned();
            all.push((header.producer_epoch, first, frame.header.offset));
        }
        if slice.next_offset == next {
            return all;
        }
        next = slice.next_offset;
    }
}

#[test]
fn what_does_not_come_next_is_refused_by_its_reason() {
    let log = open(&SimDisk::new());
    let partition = partition(&log, TopicDurability::Fsync);
    let refused = |epoch, first| match send(&partition, epoch, first, 1, Durability::Fsync) {
        Err(AppendError::Sequence(error)) => error,
        other => panic!("{other:?}"),
    };
    // Of one who is not known anything is taken.
    let new = |epoch, first| send(&partition, epoch, first, 1, Durability::Fsync).unwrap();
    assert!(matches!(new(1, 40), Sequenced::New(at) if at.base_offset == Offset(0)));
    assert_eq!(
        refused(1, 42),
        SequenceError::OutOfOrder {
            expected: 41,
            found: 42
        }
    );
    assert_eq!(
        refused(0, 41),
        SequenceError::Fenced {
            epoch: 0,
            current: 1
        }
    );
    assert_eq!(
        refused(2, 41),
        SequenceError::OutOfOrder {
            expected: 0,
            found: 41
        }
    );
    for first in 41..50 {
        assert!(matches!(new(1, first), Sequenced::New(_)));
    }
    for first in 45..50 {
        assert!(
            matches!(new(1, first), Sequenced::Stored(at) if at.base_offset == Offset(u64::from(first) - 40))
        );
    }
    assert_eq!(refused(1, 44), SequenceError::LongStored { first: 44 });
    // A new epoch begins anew, and the old one is over.
    assert!(matches!(new(2, 0), Sequenced::New(_)));
    assert!(matches!(refused(1, 50), SequenceError::Fenced { .. }));
    assert!(matches!(new(2, 0), Sequenced::Stored(_)));
}

/// Sequences are 31 bits wide and go round.
#[test]
fn sequences_go_round() {
    let log = open(&SimDisk::new());
    let partition = partition(&log, TopicDurability::Fsync);
    let send = |first, count| send(&partition, 0, first, count, Durability::Fsync).unwrap();
    let top = (1 << 31) - 3;
    assert!(matches!(send(top, 2), Sequenced::New(_)));
    assert!(matches!(send(top + 2, 3), Sequenced::New(_)));
    assert!(matches!(send(2, 1), Sequenced::New(_)));
    assert!(
        matches!(send(top + 2, 3), Sequenced::Stored(at) if (at.base_offset, at.end_offset) == (Offset(2), Offset(5)))
    );
}

#[test]
fn sequence_behind_the_last_number_is_zero() {
    let log = open(&SimDisk::new());
    let partition = partition(&log, TopicDurability::Fsync);
    let send = |first, count| send(&partition, 0, first, count, Durability::Fsync);
    assert!(matches!(send((1 << 31) - 2, 2), Ok(Sequenced::New(_))));
    assert!(matches!(send(0, 1), Ok(Sequenced::New(_))));
    assert!(matches!(send((1 << 31) - 2, 2), Ok(Sequenced::Stored(_))));
}

/// Batches are sent, sent again, and the process or the machine stops at any time.
#[test]
fn every_batch_is_in_the_log_once_and_found_where_it_is() {
    for seed in 0..150_u64 {
        let mut rng = SimRng::new(seed);
        let level = match seed % 3 {
            0 => TopicDurability::Os,
            _ => TopicDurability::Fsync,
        };
        let durability = match level {
            TopicDurability::Os => Durability::Os,
            TopicDurability::Fsync => Durability::Fsync,
        };
        let mut disk = SimDisk::new();
        let mut log = open(&disk);
        let mut partition = partition(&log, level);
        // By their first sequence: records and offset of what was acknowledged.
        let mut sent: BTreeMap<u32, (u32, Offset)> = BTreeMap::new();
        let mut next = 0_u32;
        for step in 0..60 {
            let what = format!("seed {seed}, step {step}");
            match rng.below(12) {
                0..=4 => {
                    let count = 1 + u32::try_from(rng.below(5)).unwrap();
                    match send(&partition, 0, next, count, durability) {
                        Ok(Sequenced::New(at)) => {
                            assert!(!sent.contains_key(&next), "{what}");
                            sent.insert(next, (count, at.base_offset));
                            next += count;
                        }
                        other => panic!("{what}: {other:?}"),
                    }
                }
                5..=7 => {
                    let back = rng.below(5);
                    if let Some((first, (count, offset))) = sent.iter().nth_back(back) {
                        let again = send(&partition, 0, *first, *count, durability).unwrap();
                        assert!(
                            matches!(again, Sequenced::Stored(at) if at.base_offset == *offset),
                            "{what}: {again:?} at {first}"
                        );
                    }
                }
                8 => drop(partition.seal_active().unwrap()),
                9 => {
                    partition.seal_active().unwrap();
                    let end = partition.bounds().log_end_offset;
                    partition.release(Offset(end.0 / 2 + end.0 / 4)).unwrap();
                }
                10 => {
                    // What is not acknowledged by a sync may go with the machine: then nothing of it may be known.
                    let lost = level == TopicDurability::Os;
                    drop((partition, log));
                    disk = match lost {
                        true => disk.process_loss(),
                        false => disk.power_loss(&mut rng),
                    };
                    log = open(&disk);
                    partition = self::partition(&log, level);
                }
                _ => {
                    drop(partition);
                    log.close().unwrap();
                    drop(log);
                    log = open(&disk);
                    partition = self::partition(&log, level);
                }
            }
        }
        let start = partition.bounds().log_start_offset;
        let left = sent.iter().filter(|(_, (_, offset))| *offset >= start);
        let left: Vec<_> = left
            .map(|(first, (_, offset))| (0, *first, *offset))
            .collect();
        let found = stored(&partition);
        assert!(found.ends_with(&left), "seed {seed}: {found:?}, {left:?}");
        assert!(files(&disk, ".producers").len() <= 2, "old snapshots go");
    }
}

/// At level `os` a machine that stops takes batches with it: they are not taken for stored.
#[test]
fn what_a_power_loss_took_is_not_taken_for_stored() {
    for seed in 0..100 {
        let mut rng = SimRng::new(seed);
        let disk = SimDisk::new();
        let log = open(&disk);
        let first = partition(&log, TopicDurability::Os);
        for sequence in 0..u32::try_from(5 + rng.below(40)).unwrap() {
            send(&first, 0, sequence, 1, Durability::Os).unwrap();
            if rng.below(15) == 0 {
                first.seal_active().unwrap();
            }
        }
        drop((first, log));
        let log = open(&disk.power_loss(&mut rng));
        let again = partition(&log, TopicDurability::Os);
        let there = stored(&again);
        let last = there.last().map_or(0, |(_, sequence, _)| sequence + 1);
        for (_, sequence, offset) in there.iter().rev().take(5) {
            let sent = send(&again, 0, *sequence, 1, Durability::Os).unwrap();
            assert!(
                matches!(sent, Sequenced::Stored(at) if at.base_offset == *offset),
                "seed {seed}"
            );
        }
        let sent = send(&again, 0, last, 1, Durability::Os).unwrap();
        assert!(matches!(sent, Sequenced::New(_)), "seed {seed}: {sent:?}");
    }
}

/// A damaged snapshot is told of, and what the segments say counts.
#[test]
fn damaged_snapshot_is_none() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for sequence in 0..5 {
        send(&first, 0, sequence, 1, Durability::Fsync).unwrap();
    }
    first.seal_active().unwrap();
    drop(first);
    log.close().unwrap();
    drop(log);
    let path = files(&disk, ".producers").pop().unwrap();
    for at in 0..length(&disk, &path) {
        let damaged = disk.process_loss();
        damaged.change(&path, |bytes| bytes[at] ^= 1);
        let log = open(&damaged);
        let again = partition(&log, TopicDurability::Fsync);
        let sent = send(&again, 0, 4, 1, Durability::Fsync).unwrap();
        assert!(matches!(sent, Sequenced::Stored(at) if at.base_offset == Offset(4)));
        let sent = send(&again, 0, 5, 1, Durability::Fsync).unwrap();
        assert!(matches!(sent, Sequenced::New(_)));
    }
}

/// A start that cannot read what it must know fails: it does not go on without.
#[test]
fn start_that_cannot_read_knows_of_all_or_fails() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for sequence in 0..4 {
        send(&first, 0, sequence, 1, Durability::Fsync).unwrap();
        if sequence == 1 {
            first.seal_active().unwrap();
        }
    }
    drop((first, log));
    let mut failed = 0;
    for with_snapshot in [true, false] {
        for (operation, suffix) in [
            (Operation::Map, ".seg"),
            (Operation::Read, ".seg"),
            (Operation::Read, ".producers"),
        ] {
            for skip in 0..8 {
                let disk = disk.process_loss();
                if !with_snapshot {
                    disk.delete(&files(&disk, ".producers")[0]);
                }
                disk.fail(operation, suffix, skip, ErrorKind::Other);
                let clock = Arc::new(ManualClock::new(1_000));
                let Ok(log) = Log::open(config(), Arc::new(disk.clone()), clock) else {
                    failed += 1;
                    continue;
                };
                disk.clear_faults();
                let again = partition(&log, TopicDurability::Fsync);
                for sequence in 0..4 {
                    let sent = send(&again, 0, sequence, 1, Durability::Fsync).unwrap();
                    assert!(
                        matches!(sent, Sequenced::Stored(_)),
                        "{operation:?} {suffix} {skip}: {sequence}"
                    );
                }
            }
        }
    }
    assert!(failed > 3, "{failed} starts failed");
}

/// A disk that has lost what it said was durable: what is gone is not taken for stored.
#[test]
fn snapshot_of_records_that_are_gone_is_none() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for sequence in 0..4 {
        send(&first, 0, sequence, 1, Durability::Fsync).unwrap();
        if sequence % 2 == 1 {
            first.seal_active().unwrap();
        }
    }
    drop((first, log));
    for suffix in [".seg", ".idx"] {
        let gone = files(&disk, suffix);
        gone.iter().skip(1).for_each(|path| disk.delete(path));
    }
    let log = open(&disk.process_loss());
    let again = partition(&log, TopicDurability::Fsync);
    assert_eq!(again.bounds().log_end_offset, Offset(2));
    let send = |sequence| send(&again, 0, sequence, 1, Durability::Fsync).unwrap();
    assert!(matches!(send(1), Sequenced::Stored(at) if at.base_offset == Offset(1)));
    assert!(matches!(send(2), Sequenced::New(at) if at.base_offset == Offset(2)));
}

/// Ids are never given twice.
#[test]
fn ids_are_new_after_every_stop() {
    let mut disk = SimDisk::new();
    let mut given = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let log = open(&disk);
        for _ in 0..3 {
            for id in log.reserve_producer_ids(10).unwrap() {
                assert!(id >= 0 && given.insert(id), "{id} again");
            }
        }
        drop(log);
        disk = disk.power_loss(&mut SimRng::new(seed));
    }
    let span = given.last().unwrap() - given.first().unwrap();
    assert_eq!(span, 20 * 30 - 1, "one after the other");
    let other = open(&SimDisk::new()).reserve_producer_ids(1).unwrap();
    assert!(!given.contains(&other.start), "another folder has others");
    let _: Arc<Log> = open(&disk);
}
