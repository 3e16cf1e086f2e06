//! Whether what comes back is what was sent: every record, once, unchanged, in order.
//!
//! The sender's circles of frames ([`crate::ring`]) are known here, so a record is compared with the very bytes it must
//! have: magic, timestamp, lengths, count, key and payload, with the offset that must be next. That proves more than a
//! checksum of contents that both sides compute, and costs less: one comparison of memory a record, no decoding and no
//! table. Only a frame that is not the expected one is looked at field by field, to say what is wrong with it.

use std::sync::Arc;

use basalt_proto::{FRAME_HEADER_BYTES, FrameError, FrameHeader, FrameLimits};
use clap::ValueEnum;
use serde::Serialize;

use crate::ring::{Ring, claimed};

/// Where the offset stands in a frame.
const OFFSET_AT: std::ops::Range<usize> = 9..17;

/// How closely records are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The number of records, as the server counts them.
    Count,
    /// Every frame's header, and that offsets are dense.
    Headers,
    /// Every byte of every record, and the order.
    Full,
}

/// What a verifier has found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Records that came.
    pub(crate) seen: u64,
    /// Those of them with which nothing was wrong.
    pub(crate) verified: u64,
    /// Bytes of their frames.
    pub(crate) frame_bytes: u64,
    /// Offsets that were passed over.
    pub(crate) missing: u64,
    /// Records with an offset that came before.
    pub(crate) doubled: u64,
    /// Records whose bytes are not those of any record sent.
    pub(crate) changed: u64,
    /// Records that were sent, but not to this place.
    pub(crate) reordered: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.seen += other.seen;
        self.verified += other.verified;
        self.frame_bytes += other.frame_bytes;
        self.missing += other.missing;
        self.doubled += other.doubled;
        self.changed += other.changed;
        self.reordered += other.reordered;
    }
}

/// One sender's records, as far as they have come.
#[derive(Clone, Debug)]
struct Stream {
    ring: Arc<Ring>,
    place: usize,
    /// Records of it that have come.
    count: u64,
}

impl Stream {
    fn advance(&mut self) {
        self.place = (self.place + 1) % self.ring.len();
        self.count += 1;
    }
}

/// Checks the frames of one partition as they come.
#[derive(Clone, Debug)]
pub(crate) struct Verifier {
    level: Verify,
    streams: Vec<Stream>,
    /// The stream of the last record: requests are stored whole, so the next one is mostly of the same.
    current: usize,
    next_offset: u64,
    /// Frames before it are nobody's business: a stream that cannot be told where to start begins with them.
    first_offset: u64,
    end_offset: u64,
    pub(crate) tally: Tally,
}

/// Records in order, all as expected: of which stream, from which number on, how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) stream: usize,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Verifier {
    /// A verifier of the offsets `[first, end)` of a partition to which each of `rings` was sent by one sender, from
    /// `phase` on.
    pub(crate) fn new(
        level: Verify,
        rings: &[Arc<Ring>],
        partition: u32,
        first: u64,
        end: u64,
    ) -> Self {
        let stream = |ring: &Arc<Ring>| Stream {
            ring: Arc::clone(ring),
            place: ring.phase(partition),
            count: 0,
        };
        Self {
            level,
            streams: rings.iter().map(stream).collect(),
            current: 0,
            next_offset: first,
            first_offset: first,
            end_offset: end,
            tally: Tally::default(),
        }
    }

    /// The offset that must come next.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next_offset
    }

    pub(crate) fn end_offset(&self) -> u64 {
        self.end_offset
    }

    pub(crate) fn set_end_offset(&mut self, end: u64) {
        self.end_offset = end;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next_offset >= self.end_offset
    }

    /// Offsets that are behind it, from the first one on.
    pub(crate) fn covered(&self) -> u64 {
        self.next_offset - self.first_offset
    }

    /// Takes note of bytes that are not looked at.
    pub(crate) fn count_bytes(&mut self, frame_bytes: u64) {
        self.tally.frame_bytes += frame_bytes;
    }

    /// Goes on to the offset that the server names as the next: records before it have been counted, or are missing.
    pub(crate) fn pass_to(&mut self, next_offset: u64, level: Verify) {
        let count = next_offset
            .min(self.end_offset)
            .saturating_sub(self.next_offset);
        if level == Verify::Count {
            self.tally.seen += count;
            self.tally.verified += count;
        } else {
            self.tally.missing += count;
        }
        self.next_offset += count;
    }

    /// Checks the whole frames at the start of `bytes` up to the end offset, and returns how many bytes they are.
    ///
    /// # Errors
    /// [`FrameError`] when bytes are no frame: nothing behind them can be understood.
    pub(crate) fn check(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(Run),
    ) -> Result<usize, FrameError> {
        let mut position = 0;
        while self.next_offset < self.end_offset {
            if self.level == Verify::Full && !self.streams.is_empty() {
                position += self.check_run(&bytes[position..], &mut each);
                if self.is_done() {
                    break;
                }
            }
            match self.check_one(&bytes[position..], &mut each)? {
                0 => break,
                checked => position += checked,
            }
        }
        Ok(position)
    }

    /// The fast path: as many frames as are just what they must be.
    fn check_run(&mut self, bytes: &[u8], each: &mut impl FnMut(Run)) -> usize {
        let current = &mut self.streams[self.current];
        let first = current.count;
        let (ring, mut place) = (&current.ring, current.place);
        let (mut position, mut offset) = (0, self.next_offset);
        while offset < self.end_offset {
            let expected = ring.frame(place);
            let Some(found) = bytes[position..].get(..expected.len()) else {
                break;
            };
            if !is_frame_at(found, expected, offset) {
                break;
            }
            position += expected.len();
            offset += 1;
            place += 1;
            if place == ring.len() {
                place = 0;
            }
        }
        let count = offset - self.next_offset;
        current.place = place;
        current.count += count;
        self.next_offset = offset;
        self.tally.seen += count;
        self.tally.verified += count;
        self.tally.frame_bytes += position as u64;
        if count > 0 {
            let stream = self.current;
            each(Run {
                stream,
                first,
                count,
            });
        }
        position
    }

    /// One frame, field by field. 0 when it is not wholly there.
    fn check_one(&mut self, bytes: &[u8], each: &mut impl FnMut(Run)) -> Result<usize, FrameError> {
        let Some(head) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(0);
        };
        let header = FrameHeader::decode(head)?;
        header.check(&FrameLimits::UNLIMITED)?;
        let Some(frame) = usize::try_from(header.frame_bytes())
            .ok()
            .and_then(|length| bytes.get(..length))
        else {
            return Ok(0);
        };
        let (offset, count) = (header.offset.0, u64::from(header.logical_count()));
        if offset < self.first_offset {
            return Ok(frame.len());
        }
        self.tally.seen += count;
        self.tally.frame_bytes += frame.len() as u64;
        let in_order = offset == self.next_offset;
        if offset < self.next_offset {
            self.tally.doubled += count;
            return Ok(frame.len());
        }
        self.tally.missing += offset - self.next_offset;
        self.next_offset = header.end_offset().0;
        let right = if self.level == Verify::Full && !self.streams.is_empty() {
            self.is_expected(frame, &header, each)
        } else {
            // Unseen, records can be told apart only by their offsets, and those of several senders not at all.
            if self.streams.len() == 1 {
                let first = offset - self.first_offset;
                each(Run {
                    stream: 0,
                    first,
                    count,
                });
            }
            true
        };
        if in_order && right {
            self.tally.verified += count;
        }
        Ok(frame.len())
    }

    /// Whether the bytes are those of the next record of a stream; if not, says what they are instead.
    fn is_expected(
        &mut self,
        frame: &[u8],
        header: &FrameHeader,
        each: &mut impl FnMut(Run),
    ) -> bool {
        let claim = claimed(header.timestamp_ns).filter(|(stream, place)| {
            let ring = self.streams.get(*stream).map(|stream| &stream.ring);
            ring.and_then(|ring| ring.get(*place))
                .is_some_and(|sent| is_same(frame, sent))
        });
        let Some((stream, place)) = claim else {
            self.tally.changed += 1;
            // Its place in the stream it should have come from is taken.
            self.streams[self.current].advance();
            return false;
        };
        self.current = stream;
        let current = &mut self.streams[stream];
        let right = current.place == place;
        if right {
            each(Run {
                stream,
                first: current.count,
                count: 1,
            });
        } else {
            self.tally.reordered += 1;
            let ahead = (place + current.ring.len() - current.place) % current.ring.len();
            current.count += ahead as u64;
            current.place = place;
        }
        current.advance();
        right
    }
}

/// Whether a received frame is the sent one but for the offset.
#[inline]
fn is_same(found: &[u8], sent: &[u8]) -> bool {
    found.len() == sent.len()
        && found[..OFFSET_AT.start] == sent[..OFFSET_AT.start]
        && found[OFFSET_AT.end..] == sent[OFFSET_AT.end..]
}

#[inline]
fn is_frame_at(found: &[u8], sent: &[u8], offset: u64) -> bool {
    found[OFFSET_AT] == offset.to_be_bytes() && is_same(found, sent)
}

#[cfg(test)]
mod tests;
