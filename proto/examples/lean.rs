//! How fast record frames become record batches, on one core, in GB of frames a second.
//!
//! `cargo run --release -p basalt-proto --example lean [PAYLOAD_BYTES]...`
#![expect(clippy::disallowed_methods, reason = "it measures, and nothing else")]

use std::hint::black_box;
use std::time::Instant;

use basalt_proto::batch::LeanBatches;
use basalt_proto::{Frame, FrameLimits, FrameWalk, Offset, patch_offset};

/// What one answer to a fetch holds, about.
const ROUND_BYTES: usize = 1 << 20;
/// How many of them are made of each size.
const ROUNDS: u32 = 1 << 10;

fn main() {
    let given = std::env::args().skip(1).flat_map(|bytes| bytes.parse());
    let mut sizes: Vec<usize> = given.collect();
    if sizes.is_empty() {
        sizes = vec![10, 100, 200, 1000, 10_000, 100_000];
    }
    for payload_bytes in sizes {
        let frames = frames(payload_bytes);
        let end = Offset(u64::MAX);
        let (mut bytes, mut records) = (0_u64, 0_u64);
        let began = Instant::now();
        for _ in 0..ROUNDS {
            let mut batches = LeanBatches::new(end);
            batches.reserve(frames.len());
            for frame in FrameWalk::new(black_box(&frames), FrameLimits::UNLIMITED).flatten() {
                let pushed = batches.push(&frame);
                assert!(pushed.is_ok(), "no frame here is too large");
                records += 1;
            }
            bytes += frames.len() as u64;
            black_box(batches.into_bytes());
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{payload_bytes} B: {:.2} GB/s, {:.1} ns a record",
            bytes as f64 / seconds / 1e9,
            seconds * 1e9 / records as f64,
        );
    }
}

fn frames(payload_bytes: usize) -> Vec<u8> {
    let payload = vec![b'x'; payload_bytes];
    let mut bytes = Vec::new();
    for offset in 0.. {
        let at = bytes.len();
        if at >= ROUND_BYTES {
            break;
        }
        Frame::record(1_700_000_000_000_000_000 + offset * 1000, b"", &payload)
            .encode_into(&mut bytes);
        patch_offset(&mut bytes[at..], Offset(offset));
    }
    bytes
}
