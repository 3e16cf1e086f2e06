//! The records that are sent: made once, before the run, and then sent in a circle.
//!
//! A client that made each record when it sends it would cost more than the server that stores it. So each stream of
//! records is a circle of ready frames, small enough to stay in a core's cache, of which a request is one or two slices:
//! sending touches none of their bytes in user space. Record number *n* of a stream is frame `(phase + n) % len`; whoever
//! knows this knows every byte that must come back, which is what [`crate::verify`] compares.
//!
//! A frame's timestamp says its stream and its place in the circle, so that a record found where it should not be can be
//! recognised. It is no time: what takes a client no work to send cannot be stamped with the moment of sending.

use basalt_proto::Frame;

use crate::payload::PayloadSize;

/// Frames of a circle take about as much: half of a small second-level cache.
const RING_BYTES: usize = 512 << 10;
/// No circle has fewer frames, however large they are.
const MIN_RECORDS: usize = 4;
/// Stamps begin here.
const FIRST_TIMESTAMP_NS: u64 = 1_700_000_000_000_000_000;
/// They are a microsecond apart in a stream, and streams so many of those.
const PLACES_PER_STREAM: u64 = 1 << 20;
const SEED: u64 = 0x0b5a_1700_2013_0001;

/// What records look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordShape {
    pub(crate) payload: PayloadSize,
    pub(crate) key_bytes: u32,
    /// The part of each payload that repeats, 0 to 1.
    pub(crate) compressibility: f64,
}

/// Repeatable random numbers (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[0, 1)`.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_be_bytes()[..part.len()]);
        }
    }
}

/// A circle of frames.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: Vec<u8>,
    /// Where each frame starts, and where the last one ends.
    starts: Vec<usize>,
}

impl Ring {
    /// Makes the circle of a stream; always the same for the same arguments.
    pub(crate) fn new(shape: &RecordShape, stream: u32) -> Self {
        let mut random = Random::new(SEED ^ (u64::from(stream) << 32));
        let mut bytes = Vec::with_capacity(RING_BYTES * 2);
        let mut starts = vec![0];
        let mut key = vec![0; shape.key_bytes as usize];
        while bytes.len() < RING_BYTES || starts.len() <= MIN_RECORDS {
            let place = starts.len() - 1;
            let payload_bytes = shape.payload.draw(|| random.fraction()) as usize;
            let mut payload = vec![b'.'; payload_bytes];
            let varied = varied_bytes(payload_bytes, shape.compressibility);
            random.fill(&mut payload[..varied]);
            random.fill(&mut key);
            Frame::record(timestamp_ns(stream, place), &key, &payload).encode_into(&mut bytes);
            starts.push(bytes.len());
        }
        Self { bytes, starts }
    }

    /// A circle of given frames.
    #[cfg(test)]
    pub(crate) fn of(frames: &[Frame<'_>]) -> Self {
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for frame in frames {
            frame.encode_into(&mut bytes);
            starts.push(bytes.len());
        }
        Self { bytes, starts }
    }

    /// Frames in the circle.
    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The frame at a place below [`Ring::len`].
    #[inline]
    pub(crate) fn frame(&self, place: usize) -> &[u8] {
        &self.bytes[self.starts[place]..self.starts[place + 1]]
    }

    /// The frame of a place that somebody else claims.
    pub(crate) fn get(&self, place: usize) -> Option<&[u8]> {
        self.bytes
            .get(*self.starts.get(place)?..*self.starts.get(place + 1)?)
    }

    /// Calls `each` with the bounds in [`Ring::slice`] of `count` frames from `place` on, and returns their bytes in all.
    pub(crate) fn run(
        &self,
        place: usize,
        count: usize,
        mut each: impl FnMut(usize, usize),
    ) -> usize {
        let (mut place, mut left, mut total) = (place, count, 0);
        while left > 0 {
            let taken = left.min(self.len() - place);
            let (from, to) = (self.starts[place], self.starts[place + taken]);
            each(from, to);
            total += to - from;
            left -= taken;
            place = (place + taken) % self.len();
        }
        total
    }

    pub(crate) fn slice(&self, from: usize, to: usize) -> &[u8] {
        &self.bytes[from..to]
    }

    /// Bytes of a frame on average.
    pub(crate) fn mean_frame_bytes(&self) -> f64 {
        self.bytes.len() as f64 / self.len() as f64
    }

    /// Where a partition's stream begins, so that records that went to the wrong partition are not at home there.
    pub(crate) fn phase(&self, partition: u32) -> usize {
        (partition as usize).wrapping_mul(97) % self.len()
    }
}

/// Bytes at the head of a payload that are random.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a length; `as` saturates"
)]
fn varied_bytes(payload_bytes: usize, compressibility: f64) -> usize {
    let varied = (payload_bytes as f64 * (1.0 - compressibility)).round() as usize;
    varied.min(payload_bytes)
}

fn timestamp_ns(stream: u32, place: usize) -> u64 {
    FIRST_TIMESTAMP_NS + 1_000 * (u64::from(stream) * PLACES_PER_STREAM + place as u64)
}

/// The stream and the place that a timestamp claims; `None` if it is none of ours.
pub(crate) fn claimed(timestamp_ns: u64) -> Option<(usize, usize)> {
    let number = timestamp_ns.checked_sub(FIRST_TIMESTAMP_NS)? / 1_000;
    let stream = usize::try_from(number / PLACES_PER_STREAM).ok()?;
    let place = usize::try_from(number % PLACES_PER_STREAM).ok()?;
    Some((stream, place))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use basalt_proto::{FrameLimits, FrameWalk};

    use super::*;

    fn shape(payload: &str, compressibility: f64) -> RecordShape {
        RecordShape {
            payload: payload.parse().unwrap(),
            key_bytes: 9,
            compressibility,
        }
    }

    #[test]
    fn a_circle_is_whole_frames_each_different_and_the_same_every_time() {
        let ring = Ring::new(&shape("uniform:8-200", 0.0), 3);
        let walk = FrameWalk::new(&ring.bytes, FrameLimits::default());
        let frames: Vec<_> = walk.map(Result::unwrap).collect();
        assert_eq!(frames.len(), ring.len());
        let payloads: HashSet<_> = frames.iter().map(|frame| frame.payload).collect();
        assert_eq!(payloads.len(), ring.len());
        for (place, frame) in frames.iter().enumerate() {
            assert_eq!(claimed(frame.header.timestamp_ns), Some((3, place)));
        }
        assert_eq!(ring.bytes, Ring::new(&shape("uniform:8-200", 0.0), 3).bytes);
        assert_ne!(ring.bytes, Ring::new(&shape("uniform:8-200", 0.0), 4).bytes);
    }

    #[test]
    fn a_run_goes_round_the_circle_as_often_as_it_must() {
        let ring = Ring::new(&shape("100000", 0.0), 0);
        let mut sent = Vec::new();
        let total = ring.run(2, 2 * ring.len() + 1, |from, to| {
            sent.extend_from_slice(ring.slice(from, to))
        });
        let expected: Vec<u8> = (2..2 * ring.len() + 3)
            .flat_map(|place| ring.frame(place % ring.len()).to_vec())
            .collect();
        assert_eq!(total, sent.len());
        assert_eq!(sent, expected);
    }

    #[test]
    fn compressibility_is_the_part_of_a_payload_that_repeats() {
        for (compressibility, expected) in [(0.0, 0), (0.25, 250), (1.0, 1000)] {
            let ring = Ring::new(&shape("1000", compressibility), 0);
            let payload = &ring.frame(1)[29 + 9..];
            let repeated = payload
                .iter()
                .rev()
                .take_while(|byte| **byte == b'.')
                .count();
            assert!(
                repeated.abs_diff(expected) < 8,
                "{repeated}, expected {expected}"
            );
        }
    }
}
