//! PUB-15: a length field is a promise, not a fact. Memory was reserved from unchecked lengths, sums of lengths wrapped,
//! and short packets made parsers panic.
//!
//! The only test of its process, so that the process's address space tells what was allocated.
#![allow(clippy::unwrap_used, missing_docs)]

use basalt_proto::batch::{
    BatchFields, BatchReader, BatchWriter, Compression, MAX_DECOMPRESSED_BYTES,
};
use basalt_proto::batch::{RecordBatch, RecordToWrite};
use basalt_proto::session::{GroupsResponse, MetadataResponse, Request, ResponseBody as _};
use basalt_proto::*;

/// The largest address space the process ever had, in KiB.
#[cfg(target_os = "linux")]
fn peak_address_space_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmPeak:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(not(target_os = "linux"))]
fn peak_address_space_kib() -> u64 {
    0
}

fn header(key_bytes: u32, payload_bytes: u32) -> [u8; FRAME_HEADER_BYTES] {
    let header = FrameHeader {
        kind: FrameKind::Record,
        timestamp_ns: 0,
        offset: Offset::ZERO,
        key_bytes,
        payload_bytes,
        record_count: 1,
    };
    header.encode()
}

fn stop(bytes: &[u8]) -> FrameStop {
    let prefix = FrameBatch::parse_prefix(bytes, &FrameLimits::default());
    assert!(prefix.batch.is_none());
    prefix.stop
}

fn refusal(bytes: &[u8]) -> FrameError {
    match stop(bytes) {
        FrameStop::Refused {
            error,
            skip_bytes: None,
        } => error,
        other => panic!("{other:?}"),
    }
}

fn frames() {
    let key_limit = DEFAULT_MAX_KEY_BYTES;
    let too_long_key = FrameError::KeyTooLarge {
        found_bytes: 0xFFFF_FFF0,
        limit_bytes: key_limit,
    };
    assert_eq!(refusal(&header(0xFFFF_FFF0, 0)), too_long_key);
    // The sum wraps to 48 in 32 bits.
    assert_eq!(refusal(&header(0xFFFF_FFF0, 0x40)), too_long_key);
    let too_large = |found_bytes| FrameError::PayloadTooLarge {
        found_bytes,
        limit_bytes: 52_428_800,
    };
    assert_eq!(refusal(&header(0, 0xFFFF_FFFF)), too_large(0xFFFF_FFFF));
    assert_eq!(refusal(&header(0, 52_428_801)), too_large(52_428_801));
    assert_eq!(
        FrameHeader::decode(&header(u32::MAX, u32::MAX))
            .unwrap()
            .frame_bytes(),
        8_589_934_619
    );

    for magic in [0x00, 0x03, 0xFF, b'G', 0x16] {
        let mut bytes = header(0, 0);
        bytes[0] = magic;
        assert_eq!(refusal(&bytes), FrameError::UnknownMagic { found: magic });
        // It is refused at its first byte: nobody waits for 28 more.
        assert_eq!(refusal(&[magic]), FrameError::UnknownMagic { found: magic });
    }
    // Magic 02 is a batch frame here; one without a batch is refused all the same.
    let mut bytes = header(0, 0);
    bytes[0] = 0x02;
    assert!(matches!(
        FrameBatch::parse(&bytes, &FrameLimits::default()),
        Err(FrameError::Batch { .. })
    ));
    let mut bytes = header(1, 0);
    bytes[0] = 0x02;
    assert_eq!(refusal(&bytes), FrameError::KeyOnBatch { found_bytes: 1 });

    let mut good = Vec::new();
    Frame::record(1000, b"k1", b"a").encode_into(&mut good);
    for cut in 1..good.len() {
        let needed_bytes = if cut < FRAME_HEADER_BYTES { 29 } else { 32 };
        assert_eq!(
            stop(&good[..cut]),
            FrameStop::Incomplete {
                needed_bytes,
                available_bytes: cut
            }
        );
    }
}

/// Lists that claim more than they hold, in session messages.
fn session() {
    assert!(MetadataResponse::decode(&[0xFF; 4]).is_err());
    assert!(GroupsResponse::decode(&[0xFF, 0xFF, 0xFF, 0xFF, 1, b'g']).is_err());
    assert!(Request::decode(4, &[0xFF, 0xFF]).is_err());
    assert!(Request::decode(7, &[1, b't', 0, 0, 0, 1, 0xFF, 0xFF]).is_err());
}

/// A batch of one record whose bytes are replaced, with everything else made right again.
fn forged(compression: Compression, record_count: i32, records: &[u8]) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields::compressed(compression)).unwrap();
    writer
        .push(&RecordToWrite {
            timestamp_ms: 0,
            key: None,
            value: None,
            headers: &[],
        })
        .unwrap();
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    batch.truncate(61);
    batch.extend_from_slice(records);
    let length = i32::try_from(batch.len() - 12).unwrap();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[23..27].copy_from_slice(&(record_count - 1).to_be_bytes());
    batch[57..61].copy_from_slice(&record_count.to_be_bytes());
    batch
}

fn batches() {
    let limit = 1 << 20;
    let open = |batch: &[u8]| RecordBatch::verify_records(batch, limit).unwrap_err();
    // 2^31 - 1 records in no bytes; a record, a key, a value and headers of 2^31 - 1.
    open(&forged(Compression::None, i32::MAX, &[]));
    open(&forged(
        Compression::None,
        1,
        &[0xFE, 0xFF, 0xFF, 0xFF, 0x0F],
    ));
    open(&forged(
        Compression::None,
        1,
        &[18, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 1],
    ));
    open(&forged(
        Compression::None,
        1,
        &[18, 0, 0, 0, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F],
    ));
    open(&forged(
        Compression::None,
        1,
        &[20, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F],
    ));
    // A snappy block that claims 4 GiB - 1 with and without the framing, and one that claims less than the limit but
    // more than it can hold; a framing whose block claims 2^31 - 1 bytes.
    open(&forged(
        Compression::Snappy,
        1,
        &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0],
    ));
    let claim = forged(Compression::Snappy, 1, &[0x80, 0x80, 0x80, 0x64, 0]);
    let error = RecordBatch::verify_records(&claim, MAX_DECOMPRESSED_BYTES).unwrap_err();
    assert!(matches!(error, BatchError::Codec { .. }), "{error}");
    let framed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\x7F\xFF\xFF\xFF\x01";
    open(&forged(Compression::Snappy, 1, framed));
    // A zstd frame with a window of 2^41 and a content of 2^63; an lz4 frame that ends after its header.
    open(&forged(
        Compression::Zstd,
        1,
        &[
            0x28, 0xB5, 0x2F, 0xFD, 0xC0, 0xF8, 0, 0, 0, 0, 0, 0, 0, 0x80,
        ],
    ));
    open(&forged(
        Compression::Lz4,
        1,
        &[0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82],
    ));

    // Bombs: much in little, each stopped at the limit.
    for compression in [
        Compression::Gzip,
        Compression::Lz4,
        Compression::Zstd,
        Compression::Snappy,
    ] {
        let bomb = bomb(compression);
        let error = BatchReader::open(&bomb, limit).unwrap_err();
        assert_eq!(
            error,
            BatchError::TooLarge { limit_bytes: limit },
            "{compression}"
        );
    }
}

/// Many records' worth of zeros: 16 MiB, far over the limit that the test opens them with.
fn bomb(compression: Compression) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields::compressed(compression)).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..16 {
        writer
            .push(&RecordToWrite {
                timestamp_ms: 0,
                key: None,
                value: Some(&zeros),
                headers: &[],
            })
            .unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    batch
}

#[test]
fn nothing_is_allocated_from_an_unchecked_length() {
    // What the test itself needs comes first: the largest payload passes, and one byte more would not.
    let payload = vec![7; 52_428_800];
    let mut bytes = Vec::new();
    Frame::record(0, b"", &payload).encode_into(&mut bytes);
    assert_eq!(
        FrameBatch::parse(&bytes, &FrameLimits::default())
            .unwrap()
            .frame_count(),
        1
    );
    drop((payload, bytes));

    let before = peak_address_space_kib();
    for _ in 0..200 {
        frames();
        session();
    }
    batches();
    let grown = peak_address_space_kib() - before;
    assert!(grown < 64 << 10, "the address space grew by {grown} KiB");
}
