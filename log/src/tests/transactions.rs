//! LOG-17: what is committed, whatever stops in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use basalt_proto::batch::{BatchFields, BatchWriter, Marker, RecordToWrite};
use basalt_proto::{Frame, FrameBatch, FrameCheck, FrameLimits, FrameWalk, Offset};

use super::support::*;
use crate::disk::sim::{SimDisk, SimRng};
use crate::{Durability, Isolation, Partition, TopicDurability};

const TRANSACTIONAL: i16 = 1 << 4;

fn batch(producer_id: i64, sequence: i32, count: u32) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields {
        attributes: TRANSACTIONAL,
        producer_id,
        producer_epoch: 0,
        base_sequence: sequence,
        ..BatchFields::default()
    })
    .unwrap();
    for _ in 0..count {
        let record = RecordToWrite {
            timestamp_ms: 5,
            key: None,
            value: Some(&[7; 100]),
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

fn send(partition: &Arc<Partition>, frames: &[u8]) -> Offset {
    let check = FrameCheck::new(frames, FrameLimits::default()).with_transactions();
    let batch = check.finish(frames.len()).into_whole().unwrap();
    let appended = partition.append(&batch, Durability::Fsync).unwrap();
    partition.sync_now().unwrap();
    appended.base_offset
}

fn end(partition: &Arc<Partition>, producer_id: i64, epoch: i16, marker: Marker) {
    let frame = marker.frame(producer_id, epoch, 6).unwrap();
    let batch = FrameBatch::marker(&frame).unwrap();
    partition
        .end_transaction(producer_id, &batch, Durability::Fsync)
        .unwrap();
    partition.sync_now().unwrap();
}

/// Offsets of the records that are shown to whoever reads what is committed.
fn shown(partition: &Partition) -> Vec<Offset> {
    let snapshot = partition.snapshot(Isolation::Committed);
    let mut shown = Vec::new();
    for segment in &snapshot.segments {
        for block in segment.blocks() {
            let bytes = segment.block_bytes(block).unwrap();
            for frame in FrameWalk::new(&bytes, FrameLimits::UNLIMITED) {
                let frame = frame.unwrap();
                let offset = frame.header.offset;
                if snapshot.aborted.shows(&frame) {
                    let count = u64::from(frame.header.logical_count());
                    shown.extend((0..count).map(|at| Offset(offset.0 + at)));
                }
            }
        }
    }
    shown
}

#[test]
fn what_is_committed_is_shown_and_nothing_else() {
    for seed in 0..150 {
        let mut rng = SimRng::new(seed);
        let mut disk = SimDisk::new();
        let mut log = open(&disk);
        let mut partition = partition(&log, TopicDurability::Fsync);
        let mut sequences = [0_i32; 3];
        // Of each producer's open transaction, the offsets of its records.
        let mut unsettled: BTreeMap<i64, Vec<Offset>> = BTreeMap::new();
        let mut committed: Vec<Offset> = Vec::new();
        for step in 0..80 {
            let what = format!("seed {seed}, step {step}");
            let producer = rng.below(3);
            let id = i64::try_from(producer).unwrap();
            match rng.below(12) {
                0..=4 => {
                    let count = 1 + u32::try_from(rng.below(4)).unwrap();
                    let base = send(&partition, &batch(id, sequences[producer], count));
                    sequences[producer] += i32::try_from(count).unwrap();
                    let offsets = (0..u64::from(count)).map(|at| Offset(base.0 + at));
                    unsettled.entry(id).or_default().extend(offsets);
                }
                5 => committed.push(send(&partition, &record(&[1; 80]))),
                6 | 7 => {
                    // Again where none is open, as after a crash: nothing happens.
                    let marker = [Marker::Commit, Marker::Abort][rng.below(2)];
                    end(&partition, id, 0, marker);
                    let offsets = unsettled.remove(&id).unwrap_or_default();
                    if marker == Marker::Commit {
                        committed.extend(offsets);
                    }
                }
                8 => drop(partition.seal_active().unwrap()),
                9 => {
                    // As cooling does: not beyond what is committed.
                    let stable = partition.bounds().stable_offset;
                    partition.release(stable).unwrap();
                    let start = partition.bounds().log_start_offset;
                    committed.retain(|offset| *offset >= start);
                }
                _ => {
                    drop((partition, log));
                    disk = match rng.below(2) {
                        0 => disk.process_loss(),
                        _ => disk.power_loss(&mut rng),
                    };
                    log = open(&disk);
                    partition = super::support::partition(&log, TopicDurability::Fsync);
                }
            }
            let bounds = partition.bounds();
            let first_open = unsettled.values().map(|offsets| offsets[0]).min();
            let stable = first_open.unwrap_or(bounds.high_watermark);
            assert_eq!(bounds.stable_offset, stable, "{what}");
            let mut expected: Vec<_> = committed
                .iter()
                .filter(|offset| **offset < stable)
                .copied()
                .collect();
            expected.sort_unstable();
            assert_eq!(shown(&partition), expected, "{what}");
        }
    }
}

/// A marker of a later epoch ends what earlier ones may send.
#[test]
fn a_marker_fences_earlier_epochs() {
    let log = open(&SimDisk::new());
    let partition = partition(&log, TopicDurability::Fsync);
    send(&partition, &batch(1, 0, 2));
    end(&partition, 1, 1, Marker::Abort);
    let sequence = |epoch, first| crate::Sequence {
        producer_id: 1,
        epoch,
        first,
        record_count: 1,
    };
    assert!(matches!(
        partition.find_sequence(&sequence(0, 2)),
        Err(crate::AppendError::Sequence(crate::SequenceError::Fenced {
            epoch: 0,
            current: 1
        }))
    ));
    assert!(matches!(partition.find_sequence(&sequence(1, 0)), Ok(None)));
}
