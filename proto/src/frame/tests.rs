#![allow(clippy::unwrap_used)]

use super::*;
use crate::batch::{BatchFields, BatchWriter, RecordBatch, RecordToWrite};

fn batch(attributes: i16) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields {
        attributes,
        ..BatchFields::default()
    })
    .unwrap();
    for value in [b"a", b"b"] {
        writer
            .push(&RecordToWrite {
                timestamp_ms: 1,
                key: None,
                value: Some(value),
                headers: &[],
            })
            .unwrap();
    }
    let mut out = Vec::new();
    writer.finish(&mut out).unwrap();
    out
}

fn encoded(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.iter().for_each(|frame| frame.encode_into(&mut out));
    out
}

fn parse(bytes: &[u8]) -> Result<FrameBatch<'_>, FrameError> {
    FrameBatch::parse(bytes, &FrameLimits::default())
}

#[test]
fn offsets_end_where_kafka_can_still_name_them() {
    let mut frame = Frame::record(0, b"", b"");
    frame.header.offset = Offset(i64::MAX as u64 - 5);
    frame.header.record_count = 5;
    assert_eq!(frame.header.end_offset(), Offset::MAX);
    assert!(parse(&encoded(&[frame])).is_ok());
    frame.header.record_count = 6;
    let error = FrameError::OffsetOverflow {
        offset: frame.header.offset,
        record_count: 6,
    };
    assert_eq!(parse(&encoded(&[frame])).unwrap_err(), error);
    frame.header.offset = Offset(u64::MAX);
    assert_eq!(frame.header.end_offset(), Offset(u64::MAX), "saturates");
    assert!(parse(&encoded(&[frame])).is_err());
}

#[test]
fn a_count_of_zero_counts_as_one() {
    let mut frame = Frame::record(0, b"", b"x");
    frame.header.record_count = 0;
    assert_eq!(frame.header.logical_count(), 1);
    assert_eq!(frame.header.end_offset(), Offset(1));
    assert_eq!(parse(&encoded(&[frame, frame])).unwrap().record_count(), 2);
}

#[test]
fn a_batch_frame_counts_its_batchs_records_and_no_other_number() {
    let batch = batch(0);
    let good = encoded(&[Frame::record(0, b"", b"x"), Frame::batch(0, &batch, 2)]);
    let parsed = parse(&good).unwrap();
    assert_eq!(
        (
            parsed.frame_count(),
            parsed.record_count(),
            parsed.has_batches()
        ),
        (2, 3, true)
    );
    for found in [0, 1, 3, u32::MAX] {
        let error = parse(&encoded(&[Frame::batch(0, &batch, found)])).unwrap_err();
        assert_eq!(error, FrameError::BatchCount { found, expected: 2 });
        assert_eq!(error.kind(), ErrorKind::InvalidFrame);
    }
}

#[test]
fn control_batches_are_a_brokers_own() {
    let batch = batch(1 << 5);
    let error = parse(&encoded(&[Frame::batch(0, &batch, 2)])).unwrap_err();
    assert_eq!(
        error,
        FrameError::Batch {
            source: BatchError::Control
        }
    );
}

#[test]
fn batches_of_transactions_are_for_one_who_knows_which_there_are() {
    let batch = batch(1 << 4);
    let bytes = encoded(&[Frame::batch(0, &batch, 2)]);
    let source = BatchError::Transactional;
    assert_eq!(parse(&bytes).unwrap_err(), FrameError::Batch { source });
    let check = FrameCheck::new(&bytes, FrameLimits::default()).with_transactions();
    assert!(check.finish(bytes.len()).into_whole().is_ok());
}

#[test]
fn where_each_record_needs_a_key_one_without_is_refused() {
    let with_keys = |bytes: &[u8]| {
        let check = FrameCheck::new(bytes, FrameLimits::default()).with_keys(true);
        let checked = check.finish(bytes.len()).into_whole();
        checked.map(|batch| batch.frame_count())
    };
    let keyed = Frame::record(0, b"k", b"x");
    let keyless = Frame::record(0, b"", b"x");
    assert_eq!(with_keys(&encoded(&[keyed, keyed])), Ok(2));
    assert_eq!(
        with_keys(&encoded(&[keyed, keyless])),
        Err(FrameError::NoKey)
    );
    assert!(parse(&encoded(&[keyed, keyless])).is_ok());
    let of_batch = |keys: &[Option<&[u8]>]| {
        let mut writer = BatchWriter::new(BatchFields::default()).unwrap();
        for key in keys {
            let record = RecordToWrite {
                timestamp_ms: 1,
                key: *key,
                value: None,
                headers: &[],
            };
            writer.push(&record).unwrap();
        }
        let (count, mut batch) = (writer.record_count(), Vec::new());
        writer.finish(&mut batch).unwrap();
        with_keys(&encoded(&[Frame::batch(0, &batch, count)]))
    };
    // An empty key is one.
    assert_eq!(of_batch(&[Some(b""), Some(b"k")]), Ok(1));
    let source = BatchError::NoKey { index: 1 };
    assert_eq!(
        of_batch(&[Some(b""), None]),
        Err(FrameError::Batch { source })
    );
}

#[test]
fn markers_come_back_and_nothing_else_is_one() {
    use crate::batch::Marker;
    for marker in [Marker::Abort, Marker::Commit] {
        let bytes = marker.frame(7, 3, 1_700_000_000_000).unwrap();
        let parsed = FrameBatch::marker(&bytes).unwrap();
        assert_eq!((parsed.record_count(), parsed.has_batches()), (1, true));
        let frame = parsed.frames().next().unwrap().unwrap();
        assert_eq!(Marker::of(frame.payload), Some(marker));
        let header = RecordBatch::validate(frame.payload).unwrap();
        assert!(header.is_control() && header.is_transactional());
        assert_eq!((header.producer_id, header.producer_epoch), (7, 3));
        assert_eq!((header.base_sequence, header.record_count), (-1, 1));
        assert!(parse(&bytes).is_err(), "a producer may not send it");
    }
    let plain = encoded(&[Frame::batch(0, &batch(0), 2)]);
    assert!(FrameBatch::marker(&plain).is_err());
    assert!(FrameBatch::marker(&encoded(&[Frame::record(0, b"", b"x")])).is_err());
}

#[test]
fn a_damaged_batch_is_refused_and_the_frames_around_it_are_found() {
    let mut damaged = batch(0);
    *damaged.last_mut().unwrap() ^= 1;
    let first = Frame::record(0, b"", b"x");
    let bytes = encoded(&[first, Frame::batch(0, &damaged, 2), first]);
    let prefix = FrameBatch::parse_prefix(&bytes, &FrameLimits::default());
    assert_eq!(prefix.batch.unwrap().bytes(), &bytes[..30]);
    let FrameStop::Refused { error, skip_bytes } = prefix.stop else {
        panic!("{:?}", prefix.stop)
    };
    assert!(
        matches!(
            error,
            FrameError::Batch {
                source: BatchError::Checksum { .. }
            }
        ),
        "{error}"
    );
    assert_eq!(skip_bytes, Some(FRAME_HEADER_BYTES + damaged.len()));
}

#[test]
fn compression_does_not_get_around_the_payload_limit() {
    let limits = FrameLimits {
        max_records_bytes: 1000,
        ..FrameLimits::default()
    };
    let mut writer = BatchWriter::new(BatchFields {
        attributes: 4,
        ..BatchFields::default()
    })
    .unwrap();
    let zeros = [0; 1100];
    writer
        .push(&RecordToWrite {
            timestamp_ms: 0,
            key: None,
            value: Some(&zeros),
            headers: &[],
        })
        .unwrap();
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    assert!(batch.len() < 200);
    let bytes = encoded(&[Frame::batch(0, &batch, 1)]);
    let error = FrameBatch::parse(&bytes, &limits).unwrap_err();
    assert_eq!(
        error,
        FrameError::Batch {
            source: BatchError::TooLarge { limit_bytes: 1000 }
        }
    );
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(parse(&bytes).is_ok());
}

#[test]
fn a_patched_batch_frame_has_its_offset_in_the_batch_too_and_stays_sound() {
    let batch = batch(0);
    let mut bytes = encoded(&[Frame::batch(0, &batch, 2)]);
    patch_offset(&mut bytes, Offset(0x0102_0304_0506_0708));
    let frame = parse(&bytes).unwrap().frames().next().unwrap().unwrap();
    assert_eq!(frame.header.offset, Offset(0x0102_0304_0506_0708));
    let header = RecordBatch::validate(frame.payload).unwrap();
    assert_eq!(header.base_offset, 0x0102_0304_0506_0708);
    assert_eq!(frame.payload[8..], batch[8..]);
}

#[test]
fn no_bytes_are_no_batch() {
    assert_eq!(parse(&[]).unwrap_err(), FrameError::Empty);
    let prefix = FrameBatch::parse_prefix(&[], &FrameLimits::default());
    assert!(prefix.batch.is_none());
    assert_eq!(prefix.stop, FrameStop::End);
}

#[test]
fn a_walk_ends_after_its_first_error() {
    let mut bytes = encoded(&[Frame::record(0, b"", b"x")]);
    bytes.push(9);
    bytes.extend(encoded(&[Frame::record(0, b"", b"y")]));
    let mut walk = FrameWalk::new(&bytes, FrameLimits::default());
    assert!(matches!(walk.next(), Some(Ok(_))));
    assert_eq!(
        walk.next(),
        Some(Err(FrameError::UnknownMagic { found: 9 }))
    );
    assert_eq!(walk.next(), None);
    assert_eq!(walk.position(), 30);
}

#[test]
fn a_check_in_two_steps_says_where_the_first_whole_batch_frame_ends() {
    let batch = batch(0);
    let record = encoded(&[Frame::record(7, b"key", &[0x02; 100])]);
    let whole = encoded(&[Frame::batch(0, &batch, 2)]);
    let limits = FrameLimits::default();
    let first_batch_end = |bytes: &[u8]| FrameCheck::new(bytes, limits).records();
    assert_eq!(first_batch_end(&record.repeat(3)), None);
    let mixed = [record.repeat(3), whole.clone(), record.clone()].concat();
    let end = 3 * record.len() + whole.len();
    assert_eq!(first_batch_end(&mixed), Some(end));
    assert_eq!(first_batch_end(&mixed[..end - 1]), None);
    assert_eq!(first_batch_end(&[0xff; 64]), None);
    assert_eq!(first_batch_end(&[]), None);

    let mut check = FrameCheck::new(&mixed, limits);
    check.records();
    let prefix = check.clone().finish(end);
    let good = prefix.batch.unwrap();
    assert_eq!((good.bytes(), prefix.stop), (&mixed[..end], FrameStop::End));
    assert_eq!(
        (good.frame_count(), good.record_count(), good.has_batches()),
        (4, 5, true)
    );
    // An end before what is checked already takes nothing back.
    let prefix = check.clone().finish(1);
    let good = prefix.batch.unwrap();
    assert_eq!((good.frame_count(), good.has_batches()), (3, false));
    assert_eq!(check.finish(usize::MAX).batch.unwrap().bytes(), mixed);
}

#[test]
fn frames_are_checked_one_by_one_wherever_the_bytes_end() {
    let mut odd = Frame::record(0, b"", b"opaque");
    odd.header.record_count = 0;
    let mut far = Frame::record(1, b"k", b"offset of another log");
    far.header.offset = Offset(1 << 62);
    let frames = [
        Frame::record(0, b"", b""),
        odd,
        far,
        Frame::record(2, b"key", b"payload"),
    ];
    let bytes = encoded(&frames);
    let ends: Vec<usize> = frames
        .iter()
        .scan(0, |end, frame| {
            *end += FRAME_HEADER_BYTES + frame.key.len() + frame.payload.len();
            Some(*end)
        })
        .collect();
    for cut in 0..=bytes.len() {
        let prefix = FrameBatch::parse_prefix(&bytes[..cut], &FrameLimits::default());
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let good = prefix.batch.map_or(0, |batch| batch.frame_count());
        assert_eq!(good, whole, "cut at {cut}");
        assert_eq!(
            prefix.batch.map_or(0, |batch| batch.record_count()),
            whole as u64,
            "cut at {cut}"
        );
        let start = if whole == 0 { 0 } else { ends[whole - 1] };
        match prefix.stop {
            FrameStop::End => assert_eq!(start, cut),
            FrameStop::Incomplete {
                needed_bytes,
                available_bytes,
            } => {
                assert_eq!(available_bytes, cut - start);
                let header_there = available_bytes >= FRAME_HEADER_BYTES;
                let frame_bytes = (ends[whole] - start) as u64;
                let needed = if header_there { frame_bytes } else { 29 };
                assert_eq!(needed_bytes, needed, "cut at {cut}");
            }
            FrameStop::Refused { error, .. } => panic!("cut at {cut}: {error}"),
        }
    }
}

#[test]
fn sizes_are_good_up_to_their_limits_and_refused_above() {
    let limits = FrameLimits {
        max_key_bytes: 3,
        max_payload_bytes: 5,
        ..FrameLimits::default()
    };
    let check = |key: &[u8], payload: &[u8]| {
        let bytes = encoded(&[Frame::record(0, key, payload)]);
        FrameBatch::parse(&bytes, &limits).map(|batch| batch.bytes().len())
    };
    assert_eq!(check(b"abc", b"12345"), Ok(37));
    let key = FrameError::KeyTooLarge {
        found_bytes: 4,
        limit_bytes: 3,
    };
    assert_eq!(check(b"abcd", b""), Err(key));
    let payload = FrameError::PayloadTooLarge {
        found_bytes: 6,
        limit_bytes: 5,
    };
    assert_eq!(check(b"", b"123456"), Err(payload));
}

#[test]
fn a_copy_is_what_patching_makes_of_it() {
    let batch = batch(0);
    let mut opaque = Frame::record(3, b"", b"opaque");
    opaque.header.record_count = 5;
    let mut uncounted = Frame::record(4, b"key", b"");
    uncounted.header.record_count = 0;
    uncounted.header.offset = Offset(99);
    let frames = [opaque, Frame::batch(0, &batch, 2), uncounted];
    let bytes = encoded(&frames);
    let mut expected = bytes.clone();
    let (mut at, mut offset) = (0, 40);
    for frame in &frames {
        patch_offset(&mut expected[at..], Offset(offset));
        patch_record_count(&mut expected[at..], frame.header.logical_count());
        offset += u64::from(frame.header.logical_count());
        at += FRAME_HEADER_BYTES + frame.key.len() + frame.payload.len();
    }
    let (mut copy, mut placed) = (vec![0xee; bytes.len()], Vec::new());
    let end = copy_frames(&bytes, &mut copy, Offset(40), |header| placed.push(*header));
    assert_eq!((end, copy), (Offset(48), expected));
    let seen: Vec<_> = placed
        .iter()
        .map(|header| (header.offset.0, header.record_count, header.timestamp_ns))
        .collect();
    assert_eq!(seen, [(40, 5, 3), (45, 2, 0), (47, 1, 4)]);
}
