//! Seeds and strategies that the tests share.

use basalt_proto::batch::Compression;
use basalt_proto::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, GroupName, Offset, PartitionId, TopicName,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// Cases of each property.
const CASE_COUNT: u32 = 256;

/// Checks a property. The seed is a new one each time, or `BASALT_TEST_SEED`, and a failure names it.
pub(crate) fn check<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> TestCaseResult) {
    let seed = match std::env::var("BASALT_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fresh_seed(),
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_be_bytes(seed));
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config {
        cases: CASE_COUNT,
        failure_persistence: None,
        ..Config::default()
    };
    if let Err(error) = TestRunner::new_with_rng(config, rng).run(&strategy, test) {
        panic!("with BASALT_TEST_SEED={seed}: {error}");
    }
}

/// The standard library seeds its hash maps from the system: as good a source as any.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

pub(crate) fn topics() -> impl Strategy<Value = TopicName> {
    names().prop_map(|name| TopicName::new(&name).unwrap())
}

pub(crate) fn groups() -> impl Strategy<Value = GroupName> {
    names().prop_map(|name| GroupName::new(&name).unwrap())
}

fn names() -> impl Strategy<Value = String> {
    let letters: Vec<char> = ('a'..='z')
        .chain('A'..='Z')
        .chain('0'..='9')
        .chain(['.', '_', '-'])
        .collect();
    let text = |length| {
        prop::collection::vec(prop::sample::select(letters.clone()), length)
            .prop_map(|letters| letters.into_iter().collect::<String>())
    };
    prop_oneof![8 => text(1..20), 1 => text(249..250)]
        .prop_filter("no name", |name: &String| name != "." && name != "..")
}

pub(crate) fn partitions() -> impl Strategy<Value = PartitionId> {
    any::<u32>().prop_map(PartitionId)
}

pub(crate) fn offsets() -> impl Strategy<Value = Offset> {
    prop_oneof![any::<u64>(), Just(u64::MAX), 0..100_u64].prop_map(Offset)
}

pub(crate) fn payloads() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// Any header that a frame of these lengths may have.
pub(crate) fn headers() -> impl Strategy<Value = FrameHeader> {
    (
        any::<bool>(),
        any::<u64>(),
        offsets(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(
            |(batch, timestamp_ns, offset, key_bytes, payload_bytes, record_count)| FrameHeader {
                kind: if batch {
                    FrameKind::Batch
                } else {
                    FrameKind::Record
                },
                timestamp_ns,
                offset,
                key_bytes,
                payload_bytes,
                record_count,
            },
        )
}

/// Record frames, one after the other, and where each ends.
pub(crate) fn frames() -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    let frame = (
        any::<u64>(),
        0..1_u64 << 40,
        payloads(),
        payloads(),
        0..1000_u32,
    );
    prop::collection::vec(frame, 1..6).prop_map(|frames| {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for (timestamp_ns, offset, key, payload, record_count) in frames {
            let mut frame = basalt_proto::Frame::record(timestamp_ns, &key, &payload);
            frame.header.offset = Offset(offset);
            frame.header.record_count = record_count;
            frame.encode_into(&mut bytes);
            ends.push(bytes.len());
        }
        assert!(bytes.len() >= FRAME_HEADER_BYTES);
        (bytes, ends)
    })
}

/// A record that owns its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedRecord {
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

pub(crate) const COMPRESSIONS: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

/// Records whose stamps go up and down, negative ones among them, with null, empty and repeated header keys.
pub(crate) fn records() -> impl Strategy<Value = Vec<OwnedRecord>> {
    let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..60));
    let key = prop_oneof![
        Just(b"".to_vec()),
        Just(b"a".to_vec()),
        Just(vec![0xFF]),
        Just(b"trace".to_vec())
    ];
    let headers = prop::collection::vec((key, bytes()), 0..5);
    let stamp = prop_oneof![
        -1..2000_i64,
        Just(-1),
        -1_000_000_000_000..2_000_000_000_000_i64
    ];
    let record =
        (stamp, bytes(), bytes(), headers).prop_map(|(timestamp_ms, key, value, headers)| {
            OwnedRecord {
                timestamp_ms,
                key,
                value,
                headers,
            }
        });
    prop::collection::vec(record, 1..30)
}
