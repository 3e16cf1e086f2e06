#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use super::*;
use crate::{Frame, Offset};

fn write(fields: BatchFields, stamps: &[i64]) -> Vec<u8> {
    let mut writer = BatchWriter::new(fields).unwrap();
    for timestamp_ms in stamps {
        let record = RecordToWrite {
            timestamp_ms: *timestamp_ms,
            key: Some(b"k"),
            value: Some(b"v"),
            headers: &[],
        };
        writer.push(&record).unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    batch
}

/// Replaces what is behind the header, and makes length and checksum right again.
fn with_records(mut batch: Vec<u8>, records: &[u8]) -> Vec<u8> {
    batch.truncate(BATCH_HEADER_BYTES);
    batch.extend_from_slice(records);
    let length = i32::try_from(batch.len() - 12).unwrap();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

fn stamps(batch: &[u8]) -> Vec<i64> {
    let reader = BatchReader::open(batch, 1 << 20).unwrap();
    reader
        .records()
        .map(|record| record.unwrap().timestamp_ms)
        .collect()
}

#[test]
fn under_log_append_time_every_record_bears_the_latest_stamp() {
    let fields = BatchFields {
        attributes: 1 << 3,
        max_timestamp_ms: Some(900),
        ..BatchFields::default()
    };
    let batch = write(fields, &[5, 3, 7]);
    assert!(RecordBatch::validate(&batch).unwrap().is_log_append_time());
    assert_eq!(stamps(&batch), [900; 3]);
}

#[test]
fn a_stamp_above_the_headers_latest_is_not_verified() {
    let fields = BatchFields {
        max_timestamp_ms: Some(6),
        ..BatchFields::default()
    };
    let batch = write(fields, &[5, 3, 7]);
    RecordBatch::validate(&batch).unwrap();
    let error = RecordBatch::verify_records(&batch, 1 << 20).unwrap_err();
    assert_eq!(
        error,
        BatchError::MaxTimestamp {
            index: 2,
            found_ms: 7,
            max_ms: 6
        }
    );
    assert_eq!(error.kind(), ErrorKind::InvalidTimestamp);
}

#[test]
fn stamps_that_leave_64_bits_are_refused_both_ways() {
    let fields = BatchFields {
        base_timestamp_ms: Some(i64::MAX),
        ..BatchFields::default()
    };
    let mut writer = BatchWriter::new(fields).unwrap();
    let record = |timestamp_ms| RecordToWrite {
        timestamp_ms,
        key: None,
        value: None,
        headers: &[],
    };
    let error = writer.push(&record(-2)).unwrap_err();
    assert!(
        matches!(error, BatchError::Timestamp { index: 0, .. }),
        "{error}"
    );
    assert_eq!((writer.record_count(), writer.records_bytes()), (0, 0));
    writer.push(&record(0)).unwrap();

    // A delta of 1 on the largest base.
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    let batch = with_records(batch, &[12, 0, 2, 0, 1, 1, 0]);
    let error = RecordBatch::verify_records(&batch, 1 << 20).unwrap_err();
    assert_eq!(
        error,
        BatchError::Timestamp {
            index: 0,
            base_ms: i64::MAX,
            delta_ms: 1
        }
    );
}

#[test]
fn offset_deltas_must_count_from_zero_by_one() {
    let batch = write(BatchFields::default(), &[0, 0]);
    for (second, found) in [(0, 0), (4, 2), (1, -1)] {
        let records = [12, 0, 0, 0, 1, 1, 0, 12, 0, 0, second, 1, 1, 0];
        let error = RecordBatch::verify_records(&with_records(batch.clone(), &records), 1 << 20)
            .unwrap_err();
        assert_eq!(error, BatchError::OffsetDelta { index: 1, found });
    }
    let good = with_records(batch, &[12, 0, 0, 0, 1, 1, 0, 12, 0, 0, 2, 1, 1, 0]);
    RecordBatch::verify_records(&good, 1 << 20).unwrap();
}

#[test]
fn bytes_behind_a_record_or_behind_the_last_are_refused() {
    let batch = write(BatchFields::default(), &[0]);
    let refused = |records: &[u8]| {
        RecordBatch::verify_records(&with_records(batch.clone(), records), 1 << 20).unwrap_err()
    };
    let trailing = BatchError::TrailingBytes {
        index: 0,
        found_bytes: 1,
    };
    assert_eq!(refused(&[14, 0, 0, 0, 1, 1, 0, 9]), trailing);
    assert_eq!(refused(&[12, 0, 0, 0, 1, 1, 0, 9]), trailing);
    let length = |part, claimed, available_bytes| BatchError::RecordLength {
        index: 0,
        part,
        claimed,
        available_bytes,
    };
    assert_eq!(refused(&[12, 0, 0, 0, 3, 1, 0]), length("key", -2, 2));
    assert_eq!(refused(&[12, 0, 0, 0, 1, 6, 0]), length("value", 3, 1));
    assert_eq!(
        refused(&[14, 0, 0, 0, 1, 1, 2, 1]),
        length("header count", 1, 1)
    );
    assert_eq!(
        refused(&[16, 0, 0, 0, 1, 1, 2, 1, 1]),
        length("header key", -1, 2)
    );
    assert_eq!(refused(&[1]), length("record", -1, 1));
    assert_eq!(
        refused(&[0]),
        BatchError::RecordNumber {
            index: 0,
            part: "attributes"
        }
    );
}

#[test]
fn header_fields_that_contradict_each_other_are_refused() {
    let batch = write(BatchFields::default(), &[0, 0]);
    let refused = |at: usize, bytes: &[u8]| {
        let mut batch = batch.clone();
        batch[at..at + bytes.len()].copy_from_slice(bytes);
        RecordBatch::header(&batch).unwrap_err()
    };
    assert_eq!(refused(16, &[1]), BatchError::Magic { found: 1 });
    assert_eq!(
        refused(21, &[0, 5]),
        BatchError::UnknownCompression { found: 5 }
    );
    for (delta, count) in [
        (0, 2),
        (1, 1),
        (-1, 0),
        (-2, -1),
        (i32::MAX, i32::MIN),
        (1, i32::MAX),
    ] {
        let fields = [
            &i32::to_be_bytes(delta)[..],
            &batch[27..57],
            &i32::to_be_bytes(count)[..],
        ]
        .concat();
        assert_eq!(
            refused(23, &fields),
            BatchError::Count {
                record_count: count,
                last_offset_delta: delta
            }
        );
    }
    for length in [0, -1, i32::MAX, i32::MIN] {
        assert!(matches!(
            refused(8, &length.to_be_bytes()),
            BatchError::Length { .. }
        ));
    }
    assert_eq!(
        RecordBatch::header(&batch[..60]).unwrap_err(),
        BatchError::TooShort { found_bytes: 60 }
    );
}

// librdkafka writes Snappy without snappy-java's framing; Kafka's own clients read both.
#[test]
fn snappy_is_read_with_and_without_the_framing() {
    let framed = write(BatchFields::compressed(Compression::Snappy), &[1, 2, 3]);
    assert_eq!(framed[BATCH_HEADER_BYTES..][..8], *b"\x82SNAPPY\0");
    let plain = write(BatchFields::default(), &[1, 2, 3]);
    let raw = snap::raw::Encoder::new()
        .compress_vec(&plain[BATCH_HEADER_BYTES..])
        .unwrap();
    let raw = with_records(framed.clone(), &raw);
    assert_eq!(stamps(&raw), stamps(&framed));
}

#[test]
fn the_limit_of_decompression_is_exact() {
    for compression in [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let mut writer = BatchWriter::new(BatchFields::compressed(compression)).unwrap();
        let value = vec![b'x'; 100_000];
        let record = RecordToWrite {
            timestamp_ms: 0,
            key: None,
            value: Some(&value),
            headers: &[],
        };
        writer.push(&record).unwrap();
        let size = writer.records_bytes() as u64;
        let mut batch = Vec::new();
        writer.finish(&mut batch).unwrap();
        assert!(BatchReader::open(&batch, size).is_ok(), "{compression}");
        let error = BatchReader::open(&batch, size - 1).unwrap_err();
        assert_eq!(
            error,
            BatchError::TooLarge {
                limit_bytes: size - 1
            },
            "{compression}"
        );
    }
}

#[test]
fn a_stream_that_ends_early_is_refused_whatever_the_compression() {
    for compression in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let batch = write(BatchFields::compressed(compression), &[1; 50]);
        // Without the four bytes that end it, an LZ4 frame still has all its blocks.
        let end_bytes = if compression == Compression::Lz4 {
            4
        } else {
            0
        };
        for cut in BATCH_HEADER_BYTES..batch.len() - end_bytes {
            let cut = with_records(batch.clone(), &batch[BATCH_HEADER_BYTES..cut]);
            assert!(
                RecordBatch::verify_records(&cut, 1 << 20).is_err(),
                "{compression} cut to {}",
                cut.len()
            );
        }
    }
}

#[test]
fn a_writer_without_records_writes_nothing() {
    let mut out = vec![1];
    let mut writer = BatchWriter::new(BatchFields::default()).unwrap();
    assert_eq!(writer.finish(&mut out), Err(BatchError::Empty));
    assert_eq!(out, [1]);
}

#[test]
fn a_record_frame_expands_to_itself_and_never_to_null() {
    let mut frame = Frame::record(u64::MAX, b"", b"");
    frame.header.offset = Offset(4);
    frame.header.record_count = 3;
    let flow = expand(&frame, |record| {
        ControlFlow::Break((record.offset, record.record_count, record.timestamp_ns))
    });
    assert_eq!(flow, Ok(ControlFlow::Break((Offset(4), 3, Some(u64::MAX)))));
    let null = expand(&frame, |record| {
        ControlFlow::Break((record.key.is_none(), record.payload.is_none()))
    });
    assert_eq!(null, Ok(ControlFlow::Break((true, false))));
}

#[test]
fn expanding_can_stop_early_and_stamps_never_wrap() {
    // PUB-07: 1755933141855875 ms is more nanoseconds than 64 bits hold.
    let batch = write(BatchFields::default(), &[1000, -1, 1_755_933_141_855_875]);
    let frame = Frame::batch(0, &batch, 3);
    let mut seen = Vec::new();
    let flow = expand(&frame, |record| {
        seen.push((record.timestamp_ms, record.timestamp_ns));
        if seen.len() == 3 {
            ControlFlow::Break("third")
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(flow, Ok(ControlFlow::Break("third")));
    let expected = [
        (Some(1000), Some(1_000_000_000)),
        (Some(-1), None),
        (Some(1_755_933_141_855_875), None),
    ];
    assert_eq!(seen, expected);
}
