//! Kafka's record batch v2: the payload of a batch frame, kept as its producer made it.
//!
//! Big-endian:
//!
//! | field | bytes | at | meaning |
//! |---|---|---|---|
//! | base_offset | 8 | 0 | offset of the first record; patched by the broker, outside the CRC |
//! | batch_length | 4 | 8 | bytes from 12 on |
//! | partition_leader_epoch | 4 | 12 | patched by the broker, outside the CRC |
//! | magic | 1 | 16 | 2 |
//! | crc | 4 | 17 | CRC-32C of everything from 21 on |
//! | attributes | 2 | 21 | bits 0-2 compression, 3 log append time, 4 transactional, 5 control, 6 delete horizon |
//! | last_offset_delta | 4 | 23 | record count - 1 |
//! | base_timestamp | 8 | 27 | ms; what the records' deltas add to |
//! | max_timestamp | 8 | 35 | ms; of every record when bit 3 is set |
//! | producer_id | 8 | 43 | -1 = none |
//! | producer_epoch | 2 | 51 | -1 = none |
//! | base_sequence | 4 | 53 | -1 = none |
//! | record_count | 4 | 57 | at least 1 |
//! | records | | 61 | compressed as a whole |
//!
//! A record is `varint length`, then within that length: `i8 attributes, varlong timestamp_delta, varint offset_delta,
//! varint key length (-1 = null), key, varint value length (-1 = null), value, varint header count`, and for each header
//! `varint key length, key, varint value length (-1 = null), value`. Varints are zig-zag.
//!
//! Invariants:
//! - **PROTO-8**: a batch that [`RecordBatch::validate`] passes has the length, checksum and counts it says, and one that
//!   [`RecordBatch::verify_records`] passes can be read to its last record, with offset deltas 0 to n - 1.
//! - **PROTO-9**: decompression never yields more than the caller's limit, and memory grows with what arrived and what
//!   was yielded, not with what was claimed.
//! - **PROTO-10**: null, empty and absent stay three things, and repeated header keys stay in order.

mod compression;
mod control;
mod expand;
mod header;
mod lean;
mod reader;
mod varint;
mod writer;

pub use compression::{CodecError, Compression};
pub use control::{Marker, gap_end};
pub use expand::{ExpandedRecord, expand};
pub use header::{
    BATCH_HEADER_BYTES, BatchHeader, RecordBatch, patch_base_offset, patch_leader_epoch,
    patch_max_timestamp,
};
pub use lean::{LeanBatches, SMALL_FRAME_BYTES, batch_start, is_small};
pub use reader::{BatchReader, BatchRecord, BatchRecords, RecordHeader};
pub use writer::{BatchFields, BatchWriter, RecordToWrite};

use crate::ErrorKind;

/// What the records of one batch may measure when decompressed, at most: 256 MiB. Readers of stored batches use it as
/// their limit; what is let in is bounded more tightly, by [`crate::FrameLimits`].
pub const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;

/// Why bytes are no record batch, or records cannot be made into one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Shorter than a batch header.
    #[error("the batch is {found_bytes} bytes long, its header alone takes {BATCH_HEADER_BYTES}")]
    TooShort {
        /// What is there.
        found_bytes: usize,
    },
    /// The length field does not match the bytes.
    #[error(
        "the batch says it is {claimed_bytes} bytes long behind its length field, but {found_bytes} are there"
    )]
    Length {
        /// The field.
        claimed_bytes: i32,
        /// What is there.
        found_bytes: usize,
    },
    /// Not version 2.
    #[error("the batch has the magic {found}, expected 2")]
    Magic {
        /// The byte.
        found: u8,
    },
    /// Damaged on the way, or made wrongly.
    #[error("the batch has the CRC-32C {stored:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// In the header.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// A compression that Kafka does not define.
    #[error("the batch has the unknown compression {found}")]
    UnknownCompression {
        /// Its number.
        found: u8,
    },
    /// The counts contradict each other, or there is no record.
    #[error(
        "the batch has {record_count} records and the last offset delta {last_offset_delta}, expected one less"
    )]
    Count {
        /// In the header.
        record_count: i32,
        /// In the header.
        last_offset_delta: i32,
    },
    /// A control batch, which only a broker may write.
    #[error("the batch is a control batch, which producers may not send")]
    Control,
    /// A batch of a transaction, where there are none.
    #[error("the batch belongs to a transaction, which only Kafka's protocol has")]
    Transactional,
    /// A record's stamp is later than the header says any is.
    #[error(
        "record {index} has the timestamp {found_ms} ms, above the batch's maximum of {max_ms} ms"
    )]
    MaxTimestamp {
        /// Which record, from 0.
        index: u32,
        /// Its stamp.
        found_ms: i64,
        /// The header's.
        max_ms: i64,
    },
    /// A record's stamp leaves the signed 64-bit range.
    #[error(
        "record {index} has the timestamp {base_ms} + {delta_ms} ms, which 64 bits cannot hold"
    )]
    Timestamp {
        /// Which record, from 0.
        index: u32,
        /// The batch's base.
        base_ms: i64,
        /// The record's delta.
        delta_ms: i64,
    },
    /// Records do not follow each other by one.
    #[error("record {index} has the offset delta {found}")]
    OffsetDelta {
        /// Which record, from 0: the delta it should have.
        index: u32,
        /// The delta it has.
        found: i32,
    },
    /// A length inside a record reaches out of it, or is negative where null is not allowed.
    #[error(
        "the length {claimed} of the {part} of record {index} does not fit the {available_bytes} bytes behind it"
    )]
    RecordLength {
        /// Which record, from 0.
        index: u32,
        /// Of what the length is.
        part: &'static str,
        /// The length.
        claimed: i32,
        /// The bytes behind it.
        available_bytes: usize,
    },
    /// A number inside a record is cut off or too long.
    #[error("a number of record {index} is cut off or too long: its {part}")]
    RecordNumber {
        /// Which record, from 0.
        index: u32,
        /// What the number is.
        part: &'static str,
    },
    /// Bytes behind a record's last header, or behind the last record.
    #[error("{found_bytes} bytes are left behind record {index}")]
    TrailingBytes {
        /// Which record, from 0.
        index: u32,
        /// How many.
        found_bytes: usize,
    },
    /// The decompressed records pass the limit.
    #[error("the records pass the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The limit, inclusive.
        limit_bytes: u64,
    },
    /// The compressed bytes are no such stream, or the compressor failed.
    #[error("{compression} failed: {source}")]
    Codec {
        /// Which.
        compression: Compression,
        /// Its own message.
        source: CodecError,
    },
    /// A record without a key, where each has to have one.
    #[error("record {index} has no key, which a compacted topic needs")]
    NoKey {
        /// Which record, from 0.
        index: u32,
    },
    /// A batch without records cannot be written.
    #[error("the batch has no record")]
    Empty,
}

impl BatchError {
    /// What the producer should do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Timestamp { .. } | Self::MaxTimestamp { .. } => ErrorKind::InvalidTimestamp,
            _ => ErrorKind::InvalidFrame,
        }
    }
}

#[cfg(test)]
mod tests;
