//! Damage from outside and torn tails: the public cases PUB-01 and PUB-02, and flipped bits.

use super::support::*;
use crate::check::CheckedFolder;
use crate::disk::sim::SimDisk;
use crate::{Durability, Isolation, ReadError, TopicDurability};
use basalt_proto::Offset;

const FRAME_BYTES: usize = 129;

fn payload(number: u64) -> Vec<u8> {
    let mut payload = vec![b'.'; 100];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    payload
}

/// `count` records, each an append of its own or all in one, then a stop in order.
fn stopped_log(count: u64, one_by_one: bool) -> SimDisk {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition = partition(&log, TopicDurability::Fsync);
    let frames: Vec<Vec<u8>> = (0..count).map(|number| record(&payload(number))).collect();
    if one_by_one {
        for frame in &frames {
            append(&partition, frame, Durability::Fsync).unwrap();
        }
    } else {
        append(&partition, &frames.concat(), Durability::Fsync).unwrap();
    }
    log.close().unwrap();
    disk
}

fn expect(numbers: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>)> {
    numbers.map(|number| (number, payload(number))).collect()
}

/// PUB-01: after a hard kill the log ended in half a batch while its index passed its check; repair was skipped.
#[test]
fn pub_01_a_log_cut_at_every_byte_serves_its_whole_frames_and_goes_on() {
    for one_by_one in [true, false] {
        let stopped = stopped_log(10, one_by_one);
        let segment = files(&stopped, ".seg").pop().unwrap();
        assert_eq!(length(&stopped, &segment), 10 * FRAME_BYTES);
        for cut in 1..=3 * FRAME_BYTES {
            let disk = stopped.process_loss();
            disk.change(&segment, |bytes| bytes.truncate(10 * FRAME_BYTES - cut));
            let whole = (10 * FRAME_BYTES - cut) / FRAME_BYTES;
            let log = open(&disk);
            let partition = partition(&log, TopicDurability::Fsync);
            assert_eq!(read_all(&partition), expect(0..whole as u64), "cut {cut}");
            assert_eq!(length(&disk, &segment), whole * FRAME_BYTES);
            let next = append(&partition, &record(&payload(99)), Durability::Fsync).unwrap();
            assert_eq!(next.base_offset, Offset(whole as u64));
            log.close().unwrap();
            assert_eq!(length(&disk, &segment), (whole + 1) * FRAME_BYTES);
        }
    }
}

type Damage<'a> = Box<dyn Fn(&mut Vec<u8>) + 'a>;

/// Every way PUB-02 damages an index.
fn index_damages(other: &[u8]) -> Vec<(&'static str, Damage<'_>)> {
    vec![
        ("cut to 7 bytes", Box::new(|bytes| bytes.truncate(7))),
        ("emptied", Box::new(Vec::clear)),
        (
            "second half zeros",
            Box::new(|bytes| {
                let half = bytes.len() / 2;
                bytes[half..].fill(0);
            }),
        ),
        ("all zeros", Box::new(|bytes| bytes.fill(0))),
        (
            "a middle entry of ones",
            Box::new(|bytes| {
                let entry = bytes.len() / 128 * 64;
                bytes[entry..entry + 64].fill(0xff);
            }),
        ),
        (
            "another segment's",
            Box::new(|bytes| *bytes = other.to_vec()),
        ),
    ]
}

fn check_thousand(disk: &SimDisk, what: &str) {
    let log = open(disk);
    let partition = partition(&log, TopicDurability::Fsync);
    assert_eq!(read_all(&partition), expect(0..1000), "{what}");
    for offset in [0, 1, 499, 500, 998, 999] {
        let first = partition
            .read(Offset(offset), Offset(offset + 1), 1)
            .unwrap();
        assert_eq!(
            (first.first_offset, first.next_offset),
            (Offset(offset), Offset(offset + 1)),
            "{what}"
        );
    }
    for segment in partition.snapshot(Isolation::Uncommitted).segments {
        let found = segment
            .offset_for_timestamp(7, segment.base_offset)
            .unwrap();
        assert_eq!(found, Some((segment.base_offset, 7)), "{what}");
        assert_eq!(
            segment
                .offset_for_timestamp(8, segment.base_offset)
                .unwrap(),
            None,
            "{what}"
        );
    }
    drop(log);
}

/// PUB-02: damage to an index stopped the start or sent readers to the wrong place.
#[test]
fn pub_02_any_index_can_be_damaged_or_deleted_and_is_rebuilt() {
    let stopped = stopped_log(1000, true);
    let indexes = files(&stopped, ".idx");
    assert!(indexes.len() >= 3, "{} segments", indexes.len());
    let (first, last) = (
        indexes.first().unwrap().clone(),
        indexes.last().unwrap().clone(),
    );
    let read = |path: &std::path::Path| {
        crate::Disk::open(&stopped, path)
            .unwrap()
            .read_all()
            .unwrap()
    };
    for (target, other) in [(&first, read(&last)), (&last, read(&first))] {
        for (what, damage) in index_damages(&other) {
            let disk = stopped.process_loss();
            disk.change(target, &damage);
            // The first start is killed at once, in whatever state the rebuild is.
            let killed = {
                let log = open(&disk);
                let killed = disk.process_loss();
                drop(log);
                killed
            };
            check_thousand(&killed, what);
            check_thousand(&disk, what);
        }
        let disk = stopped.process_loss();
        disk.delete(target);
        check_thousand(&disk, "deleted");
    }
}

#[test]
fn an_index_lost_after_a_kill_is_rebuilt_without_losing_a_record() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let partition_before = partition(&log, TopicDurability::Fsync);
    for number in 0..50 {
        append(
            &partition_before,
            &record(&payload(number)),
            Durability::Fsync,
        )
        .unwrap();
    }
    let killed = disk.process_loss();
    let index = files(&killed, ".idx").pop().unwrap();
    killed.delete(&index);
    let log = open(&killed);
    assert_eq!(
        read_all(&partition(&log, TopicDurability::Fsync)),
        expect(0..50)
    );
}

/// A flipped bit anywhere is reported by the check, and no reader of a restarted log gets altered bytes for good ones.
#[test]
fn flipped_bits_are_reported_and_never_served() {
    let stopped = stopped_log(20, true);
    let segment = files(&stopped, ".seg").pop().unwrap();
    for bit in (0..20 * FRAME_BYTES * 8).step_by(37) {
        let disk = stopped.process_loss();
        disk.change(&segment, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        let findings = CheckedFolder::lock(&disk, &data_dir())
            .unwrap()
            .check(|_| ())
            .unwrap()
            .findings;
        assert!(
            findings.iter().any(|finding| finding.path == segment),
            "bit {bit}: {findings:?}"
        );
        let log = open(&disk);
        let partition = partition(&log, TopicDurability::Fsync);
        assert_eq!(
            partition.bounds().log_end_offset,
            Offset(20),
            "bit {bit}: damage is kept, not cut"
        );
        let mut from = Offset::ZERO;
        let mut served = Vec::new();
        while from < Offset(20) {
            match partition.read(from, Offset(20), 1) {
                Ok(slice) => {
                    served.push(slice.first_offset.0);
                    let bytes = slice.bytes();
                    let number = slice.first_offset.0;
                    assert_eq!(&bytes[29..], payload(number), "bit {bit}");
                    from = slice.next_offset;
                }
                Err(ReadError::Corrupt {
                    path, next_offset, ..
                }) => {
                    assert_eq!(path, segment);
                    assert!(
                        next_offset > from,
                        "the records after the damage can be reached"
                    );
                    from = next_offset;
                }
                Err(error) => panic!("{error}"),
            }
        }
        // A block has one checksum: of 1024 bytes, closed by the record that passes them.
        let block_records = 1024_u64.div_ceil(FRAME_BYTES as u64);
        let damaged_block = (bit / 8 / FRAME_BYTES) as u64 / block_records;
        let rest: Vec<u64> = (0..20)
            .filter(|number| number / block_records != damaged_block)
            .collect();
        assert_eq!(served, rest, "bit {bit}: only the damaged block is lost");
    }
}

#[test]
fn a_sound_folder_passes_the_check_and_a_lost_segment_index_is_named() {
    let stopped = stopped_log(200, true);
    let report = CheckedFolder::lock(&stopped, &data_dir())
        .unwrap()
        .check(|_| ())
        .unwrap();
    assert_eq!((report.records, report.findings), (200, Vec::new()));
    let index = files(&stopped, ".idx").remove(0);
    stopped.delete(&index);
    let report = CheckedFolder::lock(&stopped, &data_dir())
        .unwrap()
        .check(|_| ())
        .unwrap();
    assert!(
        report.findings.iter().any(|finding| finding.path == index),
        "{:?}",
        report.findings
    );
}

#[test]
fn a_folder_in_use_is_not_opened_twice() {
    let disk = SimDisk::new();
    let log = open(&disk);
    assert!(matches!(
        CheckedFolder::lock(&disk, &data_dir()),
        Err(crate::OpenError::Locked { .. })
    ));
    drop(log);
    assert!(CheckedFolder::lock(&disk, &data_dir()).is_ok());
}

/// A bit that flipped in a sealed segment while the server was down was served until the segment was cooled.
#[test]
fn a_sealed_segment_is_compared_with_its_checksums_before_it_is_read() {
    let stopped = stopped_log(200, true);
    let segment = files(&stopped, ".seg").remove(0);
    let sealed_records = u64::try_from(length(&stopped, &segment) / FRAME_BYTES).unwrap();
    for at in (0..length(&stopped, &segment)).step_by(97) {
        let disk = stopped.process_loss();
        disk.change(&segment, |bytes| bytes[at] ^= 4);
        let log = open(&disk);
        let partition = partition(&log, TopicDurability::Fsync);
        let mut from = Offset::ZERO;
        let mut refused = 0;
        while from < Offset(200) {
            match partition.read(from, Offset(200), 700) {
                Ok(slice) => {
                    for (number, frame) in
                        (slice.first_offset.0..).zip(slice.bytes().chunks(FRAME_BYTES))
                    {
                        assert_eq!(&frame[29..], payload(number), "byte {at}");
                    }
                    from = slice.next_offset;
                }
                Err(ReadError::Corrupt { next_offset, .. }) => {
                    refused += next_offset.0 - from.0;
                    from = next_offset;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(
            refused > 0 && refused < sealed_records,
            "byte {at}: {refused}"
        );
        let view = &partition.snapshot(Isolation::Uncommitted).segments[0];
        let damaged = view
            .blocks()
            .iter()
            .filter(|block| view.is_damaged(block).unwrap())
            .count();
        assert_eq!(damaged, 1, "byte {at}");
    }
}
