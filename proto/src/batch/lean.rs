//! Record frames as record batches: what a Kafka client is sent of what native producers wrote.
//!
//! Where one batch ends and the next begins is a matter of offsets and of how far the log is readable, never of where a
//! reader began, so that an offset is always found in the same batch:
//!
//! - a frame of more than [`SMALL_FRAME_BYTES`], or of more than one logical record, is a batch of its own;
//! - other frames share a batch with their neighbours in the same *span*: the 256 offsets from a multiple of 256 on, if all
//!   of them are readable; else the 16 from a multiple of 16 on, if those are; else the one offset.
//!
//! So the batch of a small frame begins at [`batch_start`] or later, and holds at most 256 records and 1 MiB of frames.
//! Near the end of the log batches are small, since a reader there wants what is new and not again what it has: a batch
//! of everything since the last multiple would be sent anew for every record. Batches grow once the log has gone on.
//!
//! Invariants:
//! - **PROTO-11**: every record frame is in exactly one batch, as one record with the frame's key (null if empty), payload
//!   (never null) and stamp in whole milliseconds (rounded down); the batch's last offset is the frame's last one.
//! - **PROTO-12**: which frames share a batch depends on their headers and the end offset alone.

use super::header::{BATCH_HEADER_BYTES, CHECKED_FROM, UNCOUNTED_BYTES};
use super::{BatchError, varint};
use crate::{Frame, FrameHeader, FrameKind, Offset};

/// Record frames beyond this are batches of their own: its header is less than 2% of them.
pub const SMALL_FRAME_BYTES: u64 = 4096;
/// Offsets that may share a batch, larger ones first. Powers of two.
const SPANS: [u64; 2] = [256, 16];
const NS_PER_MS: u64 = 1_000_000;
/// A record's bytes besides key and payload, at most: five numbers of up to five or ten bytes, and two single ones.
const RECORD_OVERHEAD_BYTES: usize = 40;
/// A power of two above that, so that a place in it needs no check.
const NUMBERS_BYTES: usize = 64;
/// The most offsets that one batch can span.
const MAX_BATCH_OFFSETS: u32 = 1 << 31;

/// Whether the record frame may share a batch with others.
#[must_use]
pub fn is_small(header: &FrameHeader) -> bool {
    header.kind == FrameKind::Record
        && header.logical_count() == 1
        && header.frame_bytes() <= SMALL_FRAME_BYTES
}

/// Where at the earliest the batch begins that holds the small frame at `offset`, when the log is readable up to `end`.
#[must_use]
pub fn batch_start(offset: Offset, end: Offset) -> Offset {
    span(offset, end).0
}

/// The offsets with which the one at `offset` may share a batch: from the first up to the second.
fn span(offset: Offset, end: Offset) -> (Offset, Offset) {
    for offsets in SPANS {
        let first = Offset(offset.0 & !(offsets - 1));
        let behind = first.saturating_add(offsets);
        if behind <= end {
            return (first, behind);
        }
    }
    (offset, offset.saturating_add(1))
}

/// A batch that is being written.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Where it begins in the bytes.
    start: usize,
    base_offset: Offset,
    /// The only offset that may come next.
    next_offset: Offset,
    /// Of its span.
    end_offset: Offset,
    base_ms: i64,
    latest_ms: i64,
    record_count: i32,
}

/// Writes record batches one behind the other: record frames made into batches, and batches as they are.
#[derive(Debug)]
pub struct LeanBatches {
    bytes: Vec<u8>,
    open: Option<Open>,
    end_offset: Offset,
}

impl LeanBatches {
    /// No batch yet, of a log that is readable up to `end_offset`.
    #[must_use]
    pub const fn new(end_offset: Offset) -> Self {
        Self {
            bytes: Vec::new(),
            open: None,
            end_offset,
        }
    }

    /// Makes room for so many bytes, so that what is written need not be moved as it grows.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// The batches so far. The last one is unfinished until [`Self::close`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many bytes of them are finished batches.
    #[must_use]
    pub fn closed_bytes(&self) -> usize {
        self.open.map_or(self.bytes.len(), |open| open.start)
    }

    /// The batches, all finished.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.close();
        self.bytes
    }

    /// Takes the batches, all finished, out of it.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.close();
        std::mem::take(&mut self.bytes)
    }

    /// Whether a batch is being written.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the record frame with this header would go into the batch that is being written.
    #[must_use]
    pub fn takes(&self, header: &FrameHeader) -> bool {
        self.open.is_some_and(|open| {
            is_small(header) && header.offset == open.next_offset && header.offset < open.end_offset
        })
    }

    /// Adds a record frame: to the batch that is being written, or to a new one.
    ///
    /// # Errors
    /// [`BatchError::TooLarge`] when no batch can hold it; nothing is added then.
    pub fn push(&mut self, frame: &Frame<'_>) -> Result<(), BatchError> {
        debug_assert_eq!(frame.header.kind, FrameKind::Record);
        let body_bytes = frame.key.len() as u64 + frame.payload.len() as u64;
        let limit_bytes = i32::MAX as u64 - (BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES) as u64;
        if body_bytes > limit_bytes {
            return Err(BatchError::TooLarge { limit_bytes });
        }
        // It fits 64 bits by far.
        let stamp_ms = (frame.header.timestamp_ns / NS_PER_MS).cast_signed();
        let small = is_small(&frame.header);
        let mut open = match self.open {
            Some(open) if self.takes(&frame.header) => open,
            _ => self.begin(&frame.header, small, stamp_ms),
        };
        put_record(
            &mut self.bytes,
            stamp_ms - open.base_ms,
            open.record_count,
            frame,
        );
        open.latest_ms = open.latest_ms.max(stamp_ms);
        open.record_count += 1;
        open.next_offset = frame.header.end_offset();
        self.open = Some(open);
        if !small {
            self.close_spanning(frame.header.logical_count());
        }
        Ok(())
    }

    /// Adds a whole batch as it is.
    pub fn push_batch(&mut self, batch: &[u8]) {
        self.close();
        self.bytes.extend_from_slice(batch);
    }

    /// Finishes the batch that is being written, if any.
    pub fn close(&mut self) {
        if let Some(open) = self.open.take() {
            finish(
                &mut self.bytes[open.start..],
                &open,
                open.record_count - 1,
                open.record_count,
            );
        }
    }

    /// Drops the batch that is being written, if any.
    pub fn abandon(&mut self) {
        if let Some(open) = self.open.take() {
            self.bytes.truncate(open.start);
        }
    }

    /// Drops all batches but the one that is being written.
    pub fn forget_closed(&mut self) {
        let closed_bytes = self.closed_bytes();
        self.bytes.drain(..closed_bytes);
        if let Some(open) = &mut self.open {
            open.start = 0;
        }
    }

    /// Drops all batches.
    pub fn forget(&mut self) {
        self.open = None;
        self.bytes.clear();
    }

    fn begin(&mut self, header: &FrameHeader, small: bool, stamp_ms: i64) -> Open {
        self.close();
        let start = self.put_empty_header();
        let end_offset = if small {
            span(header.offset, self.end_offset).1
        } else {
            header.offset
        };
        Open {
            start,
            base_offset: header.offset,
            next_offset: header.offset,
            end_offset,
            base_ms: stamp_ms,
            latest_ms: stamp_ms,
            record_count: 0,
        }
    }

    /// Makes room for a header; where that is.
    fn put_empty_header(&mut self) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + BATCH_HEADER_BYTES, 0);
        start
    }

    /// Finishes the batch of one record that stands for `offsets` of them. More than one batch can span are followed by a
    /// batch without records, so that a reader gets past them.
    fn close_spanning(&mut self, offsets: u32) {
        let Some(open) = self.open.take() else { return };
        let last_delta = |offsets: u32| i32::try_from(offsets - 1).unwrap_or(i32::MAX);
        let spanned = offsets.min(MAX_BATCH_OFFSETS);
        finish(
            &mut self.bytes[open.start..],
            &open,
            last_delta(spanned),
            open.record_count,
        );
        if offsets > spanned {
            let start = self.put_empty_header();
            let rest = Open {
                start,
                base_offset: open.base_offset.saturating_add(u64::from(spanned)),
                ..open
            };
            finish(
                &mut self.bytes[start..],
                &rest,
                last_delta(offsets - spanned),
                0,
            );
        }
    }
}

/// Writes the header of the batch that `batch` is from there on, whose records stand behind it.
fn finish(batch: &mut [u8], open: &Open, last_offset_delta: i32, record_count: i32) {
    // Bounded by the span, or checked with the one frame.
    let length = i32::try_from(batch.len() - UNCOUNTED_BYTES).unwrap_or(i32::MAX);
    batch[0..8].copy_from_slice(&open.base_offset.0.to_be_bytes());
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    // No leader's epoch: there is one server.
    batch[12..16].copy_from_slice(&(-1_i32).to_be_bytes());
    batch[16] = 2;
    batch[21..23].copy_from_slice(&0_i16.to_be_bytes());
    batch[23..27].copy_from_slice(&last_offset_delta.to_be_bytes());
    batch[27..35].copy_from_slice(&open.base_ms.to_be_bytes());
    batch[35..43].copy_from_slice(&open.latest_ms.to_be_bytes());
    // No producer: id, epoch and sequence are -1.
    batch[43..57].fill(0xFF);
    batch[57..61].copy_from_slice(&record_count.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[CHECKED_FROM..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// Numbers on their way out: a record's are put together, so that they are one copy.
struct Numbers {
    bytes: [u8; NUMBERS_BYTES],
    length: usize,
}

impl Numbers {
    const fn new() -> Self {
        Self {
            bytes: [0; NUMBERS_BYTES],
            length: 0,
        }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        // At most 33 bytes are put: the remainder is there for the compiler.
        self.bytes[self.length % NUMBERS_BYTES] = byte;
        self.length += 1;
    }

    #[inline]
    fn raw(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte((value & 0x7F) as u8 | 0x80);
            value >>= 7;
        }
        self.byte((value & 0x7F) as u8);
    }

    /// A number that is not negative, in zig-zag.
    #[inline]
    fn count(&mut self, value: usize) {
        self.raw((value as u64) << 1);
    }

    #[inline]
    fn signed(&mut self, value: i64) {
        self.raw(varint::zigzag(value));
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[..self.length.min(NUMBERS_BYTES)]);
    }
}

#[inline]
fn put_record(out: &mut Vec<u8>, delta_ms: i64, offset_delta: i32, frame: &Frame<'_>) {
    let (key, payload) = (frame.key, frame.payload);
    let key_bytes = match key.len() {
        0 => 1,
        length => varint::len_count(length) + length,
    };
    // Attributes before, and the count of headers, 0, behind.
    let record_bytes = 2
        + varint::len_i64(delta_ms)
        + varint::len_i32(offset_delta)
        + key_bytes
        + varint::len_count(payload.len())
        + payload.len();
    out.reserve(key.len() + payload.len() + RECORD_OVERHEAD_BYTES);
    let mut head = Numbers::new();
    head.count(record_bytes);
    head.byte(0);
    head.signed(delta_ms);
    head.signed(i64::from(offset_delta));
    if key.is_empty() {
        // Null.
        head.byte(1);
    } else {
        head.count(key.len());
        head.put(out);
        out.extend_from_slice(key);
        head = Numbers::new();
    }
    head.count(payload.len());
    head.put(out);
    out.extend_from_slice(payload);
    out.push(0);
}
