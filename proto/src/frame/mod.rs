//! The 29-byte frame: a record's bytes, on the wire and on disk alike.
//!
//! Big-endian:
//!
//! | field | bytes | at | meaning |
//! |---|---|---|---|
//! | magic | 1 | 0 | `01` record frame, `02` batch frame |
//! | timestamp | 8 | 1 | ns since the Unix epoch, kept as sent |
//! | offset | 8 | 9 | 0 from producers; the broker writes the real one |
//! | key_size | 4 | 17 | bytes of the key |
//! | payload_size | 4 | 21 | bytes of the payload |
//! | record_count | 4 | 25 | logical records; 0 counts as 1 |
//!
//! then the key, then the payload. A record frame cannot say null: size 0 is an absent key and an empty payload. A batch
//! frame has no key, and its payload is one Kafka record batch v2 (see [`crate::batch`]) of `record_count` records.
//!
//! Invariants:
//! - **PROTO-6**: `key_size` and `payload_size` are checked against [`FrameLimits`] before they are used for anything.
//! - **PROTO-7**: a checked frame's end offset is at most 2^63 - 1, so that Kafka clients can name every offset.

mod append;
mod check;
mod copy;
mod walk;

pub use append::{FrameBatch, FramePrefix, FrameStop};
pub use check::FrameCheck;
pub use copy::copy_frames;
pub use walk::FrameWalk;

use crate::batch::BatchError;
use crate::{ErrorKind, Offset};

/// Bytes before the key.
pub const FRAME_HEADER_BYTES: usize = 29;
/// The default limit of a key: 1 MiB, inclusive.
pub const DEFAULT_MAX_KEY_BYTES: u32 = 1 << 20;
/// The default limit of a payload: 50 MiB, inclusive, as HermitMQ's.
pub const DEFAULT_MAX_PAYLOAD_BYTES: u32 = 50 << 20;

const _: () = assert!(1 + 8 + 8 + 4 + 4 + 4 == FRAME_HEADER_BYTES);
const _: () = assert!(DEFAULT_MAX_PAYLOAD_BYTES == 52_428_800);

const OFFSET_AT: usize = 9;
const RECORD_COUNT_AT: usize = 25;

/// What a frame's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// One record; sent with a count above 1 it is opaque and spans that many offsets.
    Record = 1,
    /// A Kafka record batch.
    Batch = 2,
}

/// The largest sizes that are let in. Both are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// Bytes of a key. Default [`DEFAULT_MAX_KEY_BYTES`].
    pub max_key_bytes: u32,
    /// Bytes of a payload, which is a whole batch in a batch frame. Default [`DEFAULT_MAX_PAYLOAD_BYTES`].
    pub max_payload_bytes: u32,
    /// Bytes of a batch's records when decompressed. Default [`DEFAULT_MAX_PAYLOAD_BYTES`].
    pub max_records_bytes: u32,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            max_key_bytes: DEFAULT_MAX_KEY_BYTES,
            max_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES,
            max_records_bytes: DEFAULT_MAX_PAYLOAD_BYTES,
        }
    }
}

impl FrameLimits {
    /// No limits but the format's own: for frames that were let in once, under limits that may have changed since.
    pub const UNLIMITED: Self = Self {
        max_key_bytes: u32::MAX,
        max_payload_bytes: u32::MAX,
        max_records_bytes: u32::MAX,
    };

    /// The bytes of the largest frame these limits let in.
    #[must_use]
    pub const fn max_frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + self.max_key_bytes as u64 + self.max_payload_bytes as u64
    }
}

/// Why bytes are no frame, or not one that may be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first byte is neither 01 nor 02.
    #[error("the frame has the magic {found:#04x}, expected 0x01 or 0x02")]
    UnknownMagic {
        /// The byte.
        found: u8,
    },
    /// The key's length is over the limit.
    #[error("the key is {found_bytes} bytes long, the limit is {limit_bytes}")]
    KeyTooLarge {
        /// What the header claims.
        found_bytes: u32,
        /// The limit, inclusive.
        limit_bytes: u32,
    },
    /// The payload's length is over the limit.
    #[error("the payload is {found_bytes} bytes long, the limit is {limit_bytes}")]
    PayloadTooLarge {
        /// What the header claims.
        found_bytes: u32,
        /// The limit, inclusive.
        limit_bytes: u32,
    },
    /// A batch frame with a key.
    #[error("the batch frame has a key of {found_bytes} bytes, expected none")]
    KeyOnBatch {
        /// What the header claims.
        found_bytes: u32,
    },
    /// The frame would end beyond the last offset.
    #[error("offset {offset} + {record_count} records pass the last offset 2^63 - 1")]
    OffsetOverflow {
        /// The frame's offset.
        offset: Offset,
        /// Its logical records.
        record_count: u32,
    },
    /// The bytes end inside a frame.
    #[error(
        "the frame at position {position} is {needed_bytes} bytes long, but only {available_bytes} are there"
    )]
    Incomplete {
        /// Where the frame starts.
        position: usize,
        /// Its length as far as is known: at least the header's.
        needed_bytes: u64,
        /// What is there of it.
        available_bytes: usize,
    },
    /// No frame at all.
    #[error("there is no frame")]
    Empty,
    /// A record frame without a key, where each has to have one.
    #[error("the frame has no key, which a compacted topic needs")]
    NoKey,
    /// A batch frame whose count is not its batch's.
    #[error("the batch frame counts {found} records, its batch {expected}")]
    BatchCount {
        /// In the frame's header.
        found: u32,
        /// In the batch.
        expected: u32,
    },
    /// A batch frame whose payload is not a sound record batch.
    #[error("the batch frame's record batch is refused: {source}")]
    Batch {
        /// What is wrong with it.
        #[from]
        source: BatchError,
    },
}

impl FrameError {
    /// What the producer should do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::KeyTooLarge { .. } | Self::PayloadTooLarge { .. } => ErrorKind::TooLarge,
            Self::Batch { source } => source.kind(),
            Self::UnknownMagic { .. }
            | Self::KeyOnBatch { .. }
            | Self::OffsetOverflow { .. }
            | Self::Incomplete { .. }
            | Self::Empty
            | Self::NoKey
            | Self::BatchCount { .. } => ErrorKind::InvalidFrame,
        }
    }
}

/// The 29 bytes before a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the payload is.
    pub kind: FrameKind,
    /// Nanoseconds since the Unix epoch, as the producer sent it. Any value is legal.
    pub timestamp_ns: u64,
    /// The offset of the first record.
    pub offset: Offset,
    /// Bytes of the key.
    pub key_bytes: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Logical records as sent; see [`FrameHeader::logical_count`].
    pub record_count: u32,
}

impl FrameHeader {
    /// Reads a header. Only the magic is checked: the lengths are claims until [`FrameHeader::check`] passed.
    ///
    /// # Errors
    /// [`FrameError::UnknownMagic`].
    #[inline]
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let kind = match bytes[0] {
            1 => FrameKind::Record,
            2 => FrameKind::Batch,
            found => return Err(FrameError::UnknownMagic { found }),
        };
        Ok(Self {
            kind,
            timestamp_ns: u64::from_be_bytes(field(bytes, 1)),
            offset: Offset(u64::from_be_bytes(field(bytes, OFFSET_AT))),
            key_bytes: u32::from_be_bytes(field(bytes, 17)),
            payload_bytes: u32::from_be_bytes(field(bytes, 21)),
            record_count: u32::from_be_bytes(field(bytes, RECORD_COUNT_AT)),
        })
    }

    /// The bytes on the wire.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[0] = self.kind as u8;
        out[1..9].copy_from_slice(&self.timestamp_ns.to_be_bytes());
        out[9..17].copy_from_slice(&self.offset.0.to_be_bytes());
        out[17..21].copy_from_slice(&self.key_bytes.to_be_bytes());
        out[21..25].copy_from_slice(&self.payload_bytes.to_be_bytes());
        out[25..29].copy_from_slice(&self.record_count.to_be_bytes());
        out
    }

    /// Checks the claims that can be checked without the bytes behind the header.
    ///
    /// # Errors
    /// [`FrameError::KeyTooLarge`], [`FrameError::PayloadTooLarge`], [`FrameError::KeyOnBatch`] or
    /// [`FrameError::OffsetOverflow`].
    #[inline]
    pub fn check(&self, limits: &FrameLimits) -> Result<(), FrameError> {
        if self.kind == FrameKind::Batch && self.key_bytes != 0 {
            return Err(FrameError::KeyOnBatch {
                found_bytes: self.key_bytes,
            });
        }
        if self.key_bytes > limits.max_key_bytes {
            return Err(FrameError::KeyTooLarge {
                found_bytes: self.key_bytes,
                limit_bytes: limits.max_key_bytes,
            });
        }
        if self.payload_bytes > limits.max_payload_bytes {
            return Err(FrameError::PayloadTooLarge {
                found_bytes: self.payload_bytes,
                limit_bytes: limits.max_payload_bytes,
            });
        }
        if self.end_offset() > Offset::MAX {
            return Err(FrameError::OffsetOverflow {
                offset: self.offset,
                record_count: self.logical_count(),
            });
        }
        Ok(())
    }

    /// The frame's length: header, key and payload. At most 29 + 2 * (2^32 - 1), so it never wraps.
    #[must_use]
    #[inline]
    pub const fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + self.key_bytes as u64 + self.payload_bytes as u64
    }

    /// How many offsets the frame spans: its record count, where 0 counts as 1.
    #[must_use]
    #[inline]
    pub const fn logical_count(&self) -> u32 {
        if self.record_count == 0 {
            1
        } else {
            self.record_count
        }
    }

    /// The offset behind the frame's last record (exclusive); saturates at `u64::MAX`.
    #[must_use]
    #[inline]
    pub const fn end_offset(&self) -> Offset {
        self.offset.saturating_add(self.logical_count() as u64)
    }
}

/// The `N` bytes at `at`, which the callers' constants keep inside the header.
#[inline]
fn field<const N: usize>(header: &[u8; FRAME_HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&header[at..at + N]);
    out
}

/// A whole frame that lies somewhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The 29 bytes before the key.
    pub header: FrameHeader,
    /// The key; empty means absent.
    pub key: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A record frame as a producer sends it.
    ///
    /// # Panics
    /// If the key or the payload has 4 GiB or more, which no frame can say.
    #[must_use]
    pub fn record(timestamp_ns: u64, key: &'a [u8], payload: &'a [u8]) -> Self {
        Self::new(FrameKind::Record, timestamp_ns, key, payload, 1)
    }

    /// A batch frame as a producer sends it, around a record batch of `record_count` records.
    ///
    /// # Panics
    /// If the batch has 4 GiB or more, which no frame can say.
    #[must_use]
    pub fn batch(timestamp_ns: u64, batch: &'a [u8], record_count: u32) -> Self {
        Self::new(FrameKind::Batch, timestamp_ns, &[], batch, record_count)
    }

    fn new(
        kind: FrameKind,
        timestamp_ns: u64,
        key: &'a [u8],
        payload: &'a [u8],
        record_count: u32,
    ) -> Self {
        let claim = |bytes: &[u8]| {
            let length = u32::try_from(bytes.len());
            assert!(length.is_ok(), "a frame cannot hold {} bytes", bytes.len());
            length.unwrap_or(u32::MAX)
        };
        let header = FrameHeader {
            kind,
            timestamp_ns,
            offset: Offset::ZERO,
            key_bytes: claim(key),
            payload_bytes: claim(payload),
            record_count,
        };
        Self {
            header,
            key,
            payload,
        }
    }

    /// Appends header, key and payload.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.reserve(FRAME_HEADER_BYTES + self.key.len() + self.payload.len());
        out.extend_from_slice(&self.header.encode());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.payload);
    }
}

/// Writes `offset` into the header of the frame at the start of `frame`, and for a batch frame into its batch's base
/// offset too, which lies outside the batch's checksum.
///
/// # Panics
/// If `frame` is shorter than a header, or is a batch frame shorter than header and base offset: the caller walks whole
/// frames.
#[inline]
pub fn patch_offset(frame: &mut [u8], offset: Offset) {
    frame[OFFSET_AT..OFFSET_AT + 8].copy_from_slice(&offset.0.to_be_bytes());
    if frame[0] == FrameKind::Batch as u8 {
        frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + 8].copy_from_slice(&offset.0.to_be_bytes());
    }
}

/// Writes `record_count` into the header of the frame at the start of `frame`.
///
/// # Panics
/// If `frame` is shorter than a header.
#[inline]
pub fn patch_record_count(frame: &mut [u8], record_count: u32) {
    frame[RECORD_COUNT_AT..RECORD_COUNT_AT + 4].copy_from_slice(&record_count.to_be_bytes());
}

#[cfg(test)]
mod tests;
