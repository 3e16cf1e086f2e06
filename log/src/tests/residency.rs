//! Reads that do not wait for the disk.

use basalt_proto::Offset;

use super::support::*;
use crate::disk::sim::SimDisk;
use crate::{Attempt, Durability, FrameSlice, Isolation, Partition, ReadError, TopicDurability};

/// A disk with a sealed segment of twenty records that was closed in order.
fn sealed() -> SimDisk {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for number in 0..20_u8 {
        append(&first, &record(&[number; 100]), Durability::Fsync).unwrap();
    }
    assert!(first.seal_active().unwrap());
    log.close().unwrap();
    disk
}

/// Reads as a thread that serves sockets does, and counts how often it had to have something loaded.
fn read_beside(partition: &Partition, from: u64) -> Result<(FrameSlice, usize), ReadError> {
    for loads in 0..10 {
        match partition.try_read(Offset(from), Offset::MAX, 600)? {
            Attempt::Ready(slice) => return Ok((slice, loads)),
            Attempt::Absent(stretch) => {
                assert!(!stretch.is_empty() && !stretch.is_resident());
                stretch.pieces(300).try_for_each(|piece| piece.load())?;
            }
        }
    }
    panic!("never ready");
}

#[test]
fn blocks_nobody_has_compared_yet_are_absent_until_they_are_loaded() {
    let disk = sealed();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    let found = partition.snapshot(Isolation::Uncommitted).segments[0]
        .try_offset_for_timestamp(7, Offset(0))
        .unwrap();
    assert!(matches!(found, Attempt::Absent(_)), "{found:?}");
    let (slice, loads) = read_beside(&partition, 3).unwrap();
    assert_eq!((slice.first_offset, loads), (Offset(3), 1));
    let (again, loads) = read_beside(&partition, 3).unwrap();
    assert_eq!((again.bytes(), loads), (slice.bytes(), 0));
    let plain = partition.read(Offset(3), Offset::MAX, 600).unwrap();
    assert_eq!(plain.bytes(), slice.bytes());
    let found = partition.snapshot(Isolation::Uncommitted).segments[0]
        .try_offset_for_timestamp(7, Offset(0))
        .unwrap();
    assert!(
        matches!(found, Attempt::Ready(Some((Offset(0), 7)))),
        "{found:?}"
    );
}

#[test]
fn a_damaged_block_is_refused_after_it_was_loaded() {
    let disk = sealed();
    let segment = disk
        .paths()
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "seg"));
    disk.change(&segment.unwrap(), |bytes| bytes[50] ^= 1);
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    let refused = read_beside(&partition, 0);
    assert!(
        matches!(refused, Err(ReadError::Corrupt { position: 0, .. })),
        "{refused:?}"
    );
}

#[test]
fn pieces_cover_a_stretch_and_marks_know_their_file() {
    let disk = sealed();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    let whole = partition.read(Offset(0), Offset::MAX, 1 << 20).unwrap();
    let stretch = whole.stretch(10, 1000).unwrap();
    let pieces: Vec<_> = stretch
        .pieces(300)
        .map(|piece| (piece.position(), piece.len()))
        .collect();
    assert_eq!(pieces, [(10, 300), (310, 300), (610, 300), (910, 100)]);
    assert!(stretch.mark().is_beside(&stretch));
    assert_eq!(stretch.mark().position, 1010);
    let rest = stretch.elsewhere(1010, u64::MAX).unwrap();
    assert_eq!(rest.end_position(), whole.len());
    assert!(stretch.elsewhere(whole.len(), u64::MAX).is_none());
    assert!(whole.stretch(whole.len(), 1).is_none());
}
