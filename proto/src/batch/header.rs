//! The 61 bytes before a batch's records.

use super::reader::BatchReader;
use super::{BatchError, Compression};
use crate::Offset;

/// Bytes before the records.
pub const BATCH_HEADER_BYTES: usize = 61;

const LENGTH_AT: usize = 8;
const LEADER_EPOCH_AT: usize = 12;
const CHECKSUM_AT: usize = 17;
const MAX_TIMESTAMP_AT: usize = 35;
/// Where the checksummed bytes start.
pub(super) const CHECKED_FROM: usize = 21;
/// What the length field does not count.
pub(super) const UNCOUNTED_BYTES: usize = 12;

const LOG_APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;
const DELETE_HORIZON: i16 = 1 << 6;

/// The fields of a batch's header, structurally sound: length, magic, counts and compression agree with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: i64,
    /// The length field: bytes behind it.
    pub batch_length: i32,
    /// The leader's epoch; patched by the broker.
    pub partition_leader_epoch: i32,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Raw bits; see the methods.
    pub attributes: i16,
    /// One less than the record count.
    pub last_offset_delta: i32,
    /// What timestamp deltas add to, in ms.
    pub base_timestamp_ms: i64,
    /// The latest stamp, in ms.
    pub max_timestamp_ms: i64,
    /// The idempotent producer, or -1.
    pub producer_id: i64,
    /// Its epoch, or -1.
    pub producer_epoch: i16,
    /// The sequence number of the first record, or -1.
    pub base_sequence: i32,
    /// How many records; at least 1.
    pub record_count: u32,
    /// How the records are compressed: bits 0 to 2 of the attributes.
    pub compression: Compression,
}

impl BatchHeader {
    /// Whether every record bears [`BatchHeader::max_timestamp_ms`], set by a broker.
    #[must_use]
    pub const fn is_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// Whether the records belong to a transaction.
    #[must_use]
    pub const fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether the records are a broker's markers.
    #[must_use]
    pub const fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Whether the base timestamp is a delete horizon.
    #[must_use]
    pub const fn has_delete_horizon(&self) -> bool {
        self.attributes & DELETE_HORIZON != 0
    }

    /// The latest stamp in nanoseconds, saturating at both ends: for indexes and frame headers, never for records.
    #[must_use]
    pub const fn max_timestamp_ns(&self) -> u64 {
        if self.max_timestamp_ms < 0 {
            0
        } else {
            (self.max_timestamp_ms as u64).saturating_mul(1_000_000)
        }
    }
}

/// What can be said of a batch's bytes as a whole.
#[derive(Debug, Clone, Copy)]
pub struct RecordBatch;

impl RecordBatch {
    /// Reads the header and checks all that can be checked without reading the rest: length, magic, counts, compression.
    ///
    /// # Errors
    /// [`BatchError::TooShort`], [`BatchError::Length`], [`BatchError::Magic`], [`BatchError::UnknownCompression`] or
    /// [`BatchError::Count`].
    pub fn header(batch: &[u8]) -> Result<BatchHeader, BatchError> {
        let Some(head) = batch.first_chunk::<BATCH_HEADER_BYTES>() else {
            return Err(BatchError::TooShort {
                found_bytes: batch.len(),
            });
        };
        let batch_length = i32::from_be_bytes(field(head, LENGTH_AT));
        let counted_bytes = batch.len() - UNCOUNTED_BYTES;
        if i64::from(batch_length) != i64::try_from(counted_bytes).unwrap_or(i64::MAX) {
            return Err(BatchError::Length {
                claimed_bytes: batch_length,
                found_bytes: counted_bytes,
            });
        }
        if head[16] != 2 {
            return Err(BatchError::Magic { found: head[16] });
        }
        let attributes = i16::from_be_bytes(field(head, 21));
        let compression = Compression::from_attributes(attributes)?;
        let last_offset_delta = i32::from_be_bytes(field(head, 23));
        let claimed_count = i32::from_be_bytes(field(head, 57));
        let counts_differ = i64::from(last_offset_delta) + 1 != i64::from(claimed_count);
        let record_count = match u32::try_from(claimed_count) {
            Ok(count) if count > 0 && !counts_differ => count,
            _ => {
                return Err(BatchError::Count {
                    record_count: claimed_count,
                    last_offset_delta,
                });
            }
        };
        Ok(BatchHeader {
            base_offset: i64::from_be_bytes(field(head, 0)),
            batch_length,
            partition_leader_epoch: i32::from_be_bytes(field(head, LEADER_EPOCH_AT)),
            crc: u32::from_be_bytes(field(head, CHECKSUM_AT)),
            attributes,
            last_offset_delta,
            base_timestamp_ms: i64::from_be_bytes(field(head, 27)),
            max_timestamp_ms: i64::from_be_bytes(field(head, 35)),
            producer_id: i64::from_be_bytes(field(head, 43)),
            producer_epoch: i16::from_be_bytes(field(head, 51)),
            base_sequence: i32::from_be_bytes(field(head, 53)),
            record_count,
            compression,
        })
    }

    /// Like [`RecordBatch::header`], and checks the CRC-32C over the bytes.
    ///
    /// # Errors
    /// Those of [`RecordBatch::header`], and [`BatchError::Checksum`].
    pub fn validate(batch: &[u8]) -> Result<BatchHeader, BatchError> {
        let header = Self::header(batch)?;
        let computed = crc_fast::crc32_iscsi(&batch[CHECKED_FROM..]);
        if header.crc != computed {
            return Err(BatchError::Checksum {
                stored: header.crc,
                computed,
            });
        }
        Ok(header)
    }

    /// Reads every record once, decompressing to at most `max_decompressed_bytes`, and checks that the records are what
    /// the header says. The checksum is [`RecordBatch::validate`]'s business.
    ///
    /// # Errors
    /// Those of [`RecordBatch::header`], and whatever is wrong with the first bad record.
    pub fn verify_records(batch: &[u8], max_decompressed_bytes: u64) -> Result<(), BatchError> {
        BatchReader::open(batch, max_decompressed_bytes)?.verify(false)
    }
}

/// Writes a batch's base offset, which lies outside its checksum.
///
/// # Panics
/// If `batch` is shorter than 8 bytes.
pub fn patch_base_offset(batch: &mut [u8], offset: Offset) {
    batch[..8].copy_from_slice(&offset.0.to_be_bytes());
}

/// Writes a batch's leader epoch, which lies outside its checksum.
///
/// # Panics
/// If `batch` is shorter than 16 bytes.
pub fn patch_leader_epoch(batch: &mut [u8], epoch: i32) {
    batch[LEADER_EPOCH_AT..LEADER_EPOCH_AT + 4].copy_from_slice(&epoch.to_be_bytes());
}

/// Writes how late a batch's latest record is, and its checksum, which covers that.
///
/// # Panics
/// If `batch` is shorter than a header.
pub fn patch_max_timestamp(batch: &mut [u8], timestamp_ms: i64) {
    batch[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&timestamp_ms.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[CHECKED_FROM..]);
    batch[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&crc.to_be_bytes());
}

/// The `N` bytes at `at`, which the callers' constants keep inside the header.
#[inline]
fn field<const N: usize>(head: &[u8; BATCH_HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&head[at..at + N]);
    out
}
