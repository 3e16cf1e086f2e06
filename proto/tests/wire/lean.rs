//! Record frames as record batches: each record once, in batches that depend on offsets and on nothing else.

use basalt_proto::batch::{
    BatchReader, LeanBatches, MAX_DECOMPRESSED_BYTES, Marker, RecordBatch, SMALL_FRAME_BYTES,
    batch_start, gap_end, is_small,
};
use basalt_proto::{
    FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind, FrameLimits, FrameWalk, Offset,
    patch_offset, patch_record_count,
};
use proptest::prelude::*;

use crate::support::check;

/// A frame before it has an offset: its stamp, key, payload, record count, and how many offsets before it hold nothing.
type Wanted = (u64, Vec<u8>, Vec<u8>, u32, u64);

fn wanted() -> impl Strategy<Value = Vec<Wanted>> {
    let size = prop_oneof![
        8 => 0..200_usize,
        1 => 3900..4200_usize,
        1 => 5000..9000_usize,
    ];
    let count = prop_oneof![12 => Just(1_u32), 1 => 2..40_u32];
    let gap = prop_oneof![20 => Just(0_u64), 1 => 1..700_u64];
    let frame = (any::<u64>(), 0..9_usize, size, count, gap).prop_map(
        |(stamp, key_bytes, payload_bytes, record_count, gap)| {
            let byte = stamp.to_be_bytes()[0];
            let (key, payload) = (vec![byte; key_bytes], vec![byte ^ 0xFF; payload_bytes]);
            (stamp, key, payload, record_count, gap)
        },
    );
    proptest::collection::vec(frame, 1..700)
}

/// The frames as they are stored from `first` on, and where they end.
fn stored(wanted: &[Wanted], first: u64) -> (Vec<u8>, Offset) {
    let (mut bytes, mut offset) = (Vec::new(), first);
    for (stamp, key, payload, record_count, gap) in wanted {
        offset += gap;
        let at = bytes.len();
        Frame::record(*stamp, key, payload).encode_into(&mut bytes);
        patch_record_count(&mut bytes[at..], *record_count);
        patch_offset(&mut bytes[at..], Offset(offset));
        offset += u64::from(*record_count);
    }
    (bytes, Offset(offset))
}

fn frames(bytes: &[u8]) -> Vec<Frame<'_>> {
    FrameWalk::new(bytes, FrameLimits::UNLIMITED)
        .map(Result::unwrap)
        .collect()
}

fn encoded(frames: &[Frame<'_>], end: Offset) -> Vec<u8> {
    let mut batches = LeanBatches::new(end);
    for frame in frames {
        batches.push(frame).unwrap();
    }
    batches.into_bytes()
}

/// The batches, one after the other.
fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut batches = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let (batch, rest) = bytes.split_at(12 + length);
        batches.push(batch);
        bytes = rest;
    }
    batches
}

fn offsets(batch: &[u8]) -> std::ops::Range<u64> {
    let base = u64::from_be_bytes(batch[..8].try_into().unwrap());
    let last_delta = u32::from_be_bytes(batch[23..27].try_into().unwrap());
    base..base + u64::from(last_delta) + 1
}

/// What a batch's own header says of it if its one record stands for many offsets: that it has as many records.
fn as_one_record(batch: &[u8]) -> Vec<u8> {
    let mut batch = batch.to_vec();
    batch[23..27].fill(0);
    let crc = crc_of(&batch);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

fn crc_of(batch: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&batch[21..])
}

#[test]
fn every_frame_is_one_record_of_one_batch() {
    check((wanted(), 0..1000_u64), |(wanted, first)| {
        let (bytes, end) = stored(&wanted, first);
        let frames = frames(&bytes);
        let encoded = encoded(&frames, end);
        let mut left = frames.iter();
        for batch in split(&encoded) {
            let spanned = offsets(batch);
            let crc = u32::from_be_bytes(batch[17..21].try_into().unwrap());
            prop_assert_eq!(crc, crc_of(batch));
            let whole = if batch[57..61] == [0, 0, 0, 1] {
                as_one_record(batch)
            } else {
                batch.to_vec()
            };
            prop_assert!(RecordBatch::validate(&whole).is_ok());
            prop_assert!(RecordBatch::verify_records(&whole, MAX_DECOMPRESSED_BYTES).is_ok());
            let reader = BatchReader::open(&whole, MAX_DECOMPRESSED_BYTES).unwrap();
            let mut last = spanned.start;
            for record in reader.records() {
                let record = record.unwrap();
                let frame = left.next().unwrap();
                let offset = spanned.start + u64::try_from(record.offset_delta).unwrap();
                prop_assert_eq!(offset, frame.header.offset.0);
                prop_assert_eq!(record.key, (!frame.key.is_empty()).then_some(frame.key));
                prop_assert_eq!(record.value, Some(frame.payload));
                prop_assert_eq!(
                    record.timestamp_ms.cast_unsigned(),
                    frame.header.timestamp_ns / 1_000_000
                );
                prop_assert!(record.headers.is_empty());
                last = frame.header.end_offset().0;
            }
            prop_assert_eq!(last, spanned.end);
        }
        prop_assert!(left.next().is_none());
        Ok(())
    });
}

/// PROTO-12: whoever begins at the batch's start finds the same batch, wherever that is.
#[test]
fn batches_do_not_depend_on_where_a_reader_begins() {
    check(
        (wanted(), 0..1000_u64, any::<proptest::sample::Index>()),
        |(wanted, first, chosen)| {
            let (bytes, end) = stored(&wanted, first);
            let frames = frames(&bytes);
            let encoded_from_start = encoded(&frames, end);
            let all = split(&encoded_from_start);
            let at = chosen.index(frames.len());
            let begin = match frames[at].header {
                header if is_small(&header) => {
                    let start = batch_start(header.offset, end);
                    frames.partition_point(|frame| frame.header.end_offset() <= start)
                }
                _ => at,
            };
            let encoded_from_there = encoded(&frames[begin..], end);
            let mut some = split(&encoded_from_there);
            let wanted_offset = frames[at].header.offset.0;
            some.retain(|batch| offsets(batch).end > wanted_offset);
            let first = some[0];
            prop_assert!(offsets(first).contains(&wanted_offset));
            prop_assert_eq!(&all[all.len() - some.len()..], &some[..]);
            Ok(())
        },
    );
}

fn header(offset: u64, record_count: u32, payload_bytes: u32) -> FrameHeader {
    FrameHeader {
        kind: FrameKind::Record,
        timestamp_ns: 0,
        offset: Offset(offset),
        key_bytes: 0,
        payload_bytes,
        record_count,
    }
}

#[test]
fn batches_grow_as_the_log_goes_on() {
    for (offset, end, start) in [
        (300, 512, 256),
        (300, 511, 288),
        (300, 304, 288),
        (300, 303, 300),
        (255, 256, 0),
        (15, 16, 0),
        (3, 15, 3),
    ] {
        assert_eq!(
            batch_start(Offset(offset), Offset(end)),
            Offset(start),
            "{offset} of {end}"
        );
    }
    let limit = u32::try_from(SMALL_FRAME_BYTES - FRAME_HEADER_BYTES as u64).unwrap();
    assert!(is_small(&header(0, 1, limit)) && is_small(&header(0, 0, 0)));
    assert!(!is_small(&header(0, 1, limit + 1)) && !is_small(&header(0, 2, 0)));
}

/// Its last offset delta does not fit the field of one batch.
#[test]
fn frame_of_more_offsets_than_a_batch_has_is_got_past() {
    let header = header(7, u32::MAX, 1);
    let frame = Frame {
        header,
        key: b"",
        payload: b"x",
    };
    let encoded = encoded(&[frame], header.end_offset());
    let batches = split(&encoded);
    assert_eq!(batches.len(), 2);
    let (first, second) = (offsets(batches[0]), offsets(batches[1]));
    assert_eq!((first.start, first.end), (7, second.start));
    assert_eq!(second.end, header.end_offset().0);
    let counts = batches.iter().map(|batch| batch[60]).collect::<Vec<_>>();
    assert_eq!(counts, [1, 0]);
}

#[test]
fn the_end_of_a_gap_is_a_control_batch_at_its_last_offset() {
    for end in [1_u64, 1000, 1 << 63] {
        let batch = gap_end(Offset(end)).unwrap();
        assert_eq!(offsets(&batch), end - 1..end);
        let header = RecordBatch::validate(&batch).unwrap();
        assert!(header.is_control() && header.is_transactional());
        assert_eq!((header.producer_id, header.producer_epoch), (-1, -1));
        assert_eq!(Marker::of(&batch), Some(Marker::Commit));
    }
}
