//! What readers get: PUB-09, PUB-18, PUB-19 and snapshots.

use super::support::*;
use crate::disk::sim::SimDisk;
use crate::{Durability, Isolation, ReadError, TopicDurability};
use basalt_proto::{FrameBatch, FrameLimits, Offset};

fn log_with(
    frames: &[(u32, &[u8])],
) -> (
    SimDisk,
    std::sync::Arc<crate::Log>,
    std::sync::Arc<crate::Partition>,
) {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    for (records, payload) in frames {
        append(
            &partition,
            &record_of(5, *records, payload),
            Durability::Fsync,
        )
        .unwrap();
    }
    (disk, log, partition)
}

/// PUB-09: an offset inside a frame of several records starts with that whole frame.
#[test]
fn pub_09_a_read_inside_a_frame_begins_with_that_frame() {
    let (_disk, _log, partition) = log_with(&[(5, b"f0"), (1, b"f1"), (3, b"f2"), (1, b"f3")]);
    for (from, expected) in [(3, 0), (5, 5), (7, 6), (8, 6), (9, 9)] {
        let frames = read_from(&partition, Offset(from)).unwrap();
        assert_eq!(frames[0].0.offset, Offset(expected), "from {from}");
        assert_eq!(frames.last().unwrap().0.end_offset(), Offset(10));
    }
    assert!(
        partition
            .read(Offset(10), Offset(u64::MAX), 100)
            .unwrap()
            .is_empty()
    );
    let outside = partition.read(Offset(11), Offset(u64::MAX), 100);
    assert!(
        matches!(
            outside,
            Err(ReadError::OutOfRange {
                high_watermark: Offset(10),
                ..
            })
        ),
        "{outside:?}"
    );
}

/// PUB-18: a frame larger than what was asked for is given all the same.
#[test]
fn pub_18_a_read_gives_at_least_one_frame_whatever_its_size() {
    let large = vec![b'l'; 20_000];
    let (_disk, _log, partition) = log_with(&[(1, b"small"), (1, &large), (1, b"small")]);
    for offset in 0..3 {
        let slice = partition.read(Offset(offset), Offset(u64::MAX), 1).unwrap();
        assert_eq!(
            (slice.first_offset, slice.next_offset),
            (Offset(offset), Offset(offset + 1))
        );
    }
}

#[test]
fn a_bounded_read_stops_at_its_end() {
    let (_disk, _log, partition) = log_with(&[(1, b"a"), (1, b"b"), (4, b"c"), (1, b"d")]);
    for (end, expected_next) in [(1, 1), (2, 2), (3, 6), (6, 6), (7, 7), (100, 7)] {
        let slice = partition.read(Offset(0), Offset(end), 1 << 20).unwrap();
        assert_eq!(slice.next_offset, Offset(expected_next), "end {end}");
    }
    assert!(
        partition
            .read(Offset(3), Offset(3), 100)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn every_offset_and_size_gives_the_frames_that_a_scan_gives() {
    let payloads: Vec<Vec<u8>> = (0..200_usize)
        .map(|number| vec![b'p'; (number * 37) % 400])
        .collect();
    let frames: Vec<(u32, &[u8])> = payloads
        .iter()
        .map(|payload| (1, payload.as_slice()))
        .collect();
    let (_disk, _log, partition) = log_with(&frames);
    for from in 0..200 {
        for max_bytes in [1, 100, 1024, 5000, u64::MAX] {
            let slice = partition
                .read(Offset(from), Offset(u64::MAX), max_bytes)
                .unwrap();
            assert_eq!(slice.first_offset, Offset(from));
            let count = usize::try_from(slice.next_offset.0 - from).unwrap();
            assert!(
                count >= 1 && (slice.len() <= max_bytes || count == 1),
                "{from} {max_bytes} {}",
                slice.len()
            );
            let from = usize::try_from(from).unwrap();
            let expected: usize = payloads[from..from + count]
                .iter()
                .map(|payload| payload.len() + 29)
                .sum();
            assert_eq!(slice.len(), expected as u64);
        }
    }
}

/// PUB-19: a segment was removed while somebody read it.
#[test]
fn pub_19_what_is_released_stays_readable_to_who_holds_it() {
    let payloads: Vec<Vec<u8>> = (0..60_u8).map(|number| vec![number; 200]).collect();
    let frames: Vec<(u32, &[u8])> = payloads
        .iter()
        .map(|payload| (1, payload.as_slice()))
        .collect();
    let (disk, _log, partition) = log_with(&frames);
    let held = partition.read(Offset(0), Offset(u64::MAX), 4000).unwrap();
    let snapshot = partition.snapshot(Isolation::Uncommitted);
    let before = held.bytes().to_vec();
    partition.seal_active().unwrap();
    partition.release(Offset(60)).unwrap();
    for number in 0..60_u8 {
        append(&partition, &record(&[!number; 200]), Durability::Fsync).unwrap();
    }
    assert_eq!(held.bytes(), before);
    assert_eq!(
        snapshot
            .segments
            .iter()
            .map(|segment| segment.end_offset.0 - segment.base_offset.0)
            .sum::<u64>(),
        60
    );
    assert_eq!(snapshot.segments[0].bytes().unwrap()[29..229], payloads[0]);
    assert_eq!(partition.bounds().log_start_offset, Offset(60));
    let gone = partition.read(Offset(0), Offset(u64::MAX), 100);
    assert!(matches!(
        gone,
        Err(ReadError::OutOfRange {
            log_start_offset: Offset(60),
            ..
        })
    ));
    let first_kept = partition_path().join("00000000000000000060.seg");
    assert!(files(&disk, ".seg").iter().all(|path| *path >= first_kept));
}

/// The last segment that tells the next offset goes only after another one does.
#[test]
fn releasing_everything_keeps_the_next_offset() {
    let (disk, log, partition_before) = log_with(&[(1, b"a"), (1, b"b")]);
    partition_before.seal_active().unwrap();
    partition_before.release(Offset(2)).unwrap();
    assert_eq!(files(&disk, ".seg").len(), 1);
    let killed = disk.process_loss();
    drop(log);
    for disk in [killed, disk] {
        let log = open(&disk);
        let again = partition(&log, TopicDurability::Fsync);
        assert_eq!(again.bounds().log_start_offset, Offset(2));
        assert_eq!(
            append(&again, &record(b"c"), Durability::Fsync)
                .unwrap()
                .base_offset,
            Offset(2)
        );
    }
}

#[test]
fn nothing_is_visible_before_the_high_watermark_and_everything_below_it_is() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    append(&partition, &record(b"durable"), Durability::Fsync).unwrap();
    append(&partition, &record(b"not yet"), Durability::None).unwrap();
    append(&partition, &record_of(1, 3, b"nor this"), Durability::Os).unwrap();
    assert_eq!(read_all(&partition).len(), 1);
    let snapshot = partition.snapshot(Isolation::Uncommitted);
    assert_eq!(
        (snapshot.high_watermark, snapshot.log_end_offset),
        (Offset(1), Offset(5))
    );
    assert_eq!(
        *snapshot.segments[0].bytes().unwrap(),
        *partition.read(Offset(0), Offset(9), 999).unwrap().bytes()
    );
    snapshot.segments[0]
        .verify_block(&snapshot.segments[0].blocks()[0])
        .unwrap();
    partition.sync_now().unwrap();
    assert_eq!(read_all(&partition).len(), 3);
}

#[test]
fn an_append_larger_than_a_segment_is_spread_over_several_or_widens_one() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition_before = partition(&log, TopicDurability::Fsync);
    let many: Vec<u8> = (0..100_u8)
        .flat_map(|number| record(&[number; 200]))
        .collect();
    append(&partition_before, &many, Durability::Fsync).unwrap();
    append(
        &partition_before,
        &record(&vec![b'h'; 50_000]),
        Durability::Fsync,
    )
    .unwrap();
    append(&partition_before, &record(b"after"), Durability::Fsync).unwrap();
    let all = read_all(&partition_before);
    assert_eq!(all.len(), 102);
    assert!(
        partition_before
            .snapshot(Isolation::Uncommitted)
            .segments
            .len()
            > 5
    );
    let log = open(&disk.process_loss());
    assert_eq!(read_all(&partition(&log, TopicDurability::Fsync)), all);
}

/// `count(*)` adds up what blocks say they have.
#[test]
fn a_block_that_is_cut_counts_what_is_left_of_it() {
    let log = open(&SimDisk::new());
    let partition = partition(&log, TopicDurability::Fsync);
    for _ in 0..3 {
        append(&partition, &record(b"durable"), Durability::Fsync).unwrap();
    }
    let late = record(b"late");
    let late = FrameBatch::parse(&late, &FrameLimits::default()).unwrap();
    partition.append(&late, Durability::Fsync).unwrap();
    let snapshot = partition.snapshot(Isolation::Uncommitted);
    let blocks = snapshot
        .segments
        .iter()
        .flat_map(|segment| segment.blocks());
    assert_eq!(blocks.map(|block| block.frame_count).sum::<u32>(), 3);
}
