//! Making a batch from records.

use super::header::{BATCH_HEADER_BYTES, CHECKED_FROM, UNCOUNTED_BYTES};
use super::reader::RecordHeader;
use super::{BatchError, Compression, varint};

/// The fields of a batch that its records do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchFields {
    /// Offset of the first record; producers leave it 0.
    pub base_offset: i64,
    /// The leader's epoch; producers leave it -1.
    pub partition_leader_epoch: i32,
    /// Raw bits; 0 to 2 say how [`BatchWriter::finish`] compresses.
    pub attributes: i16,
    /// What timestamp deltas are counted from; `None` takes the first record's stamp.
    pub base_timestamp_ms: Option<i64>,
    /// The latest stamp; `None` takes it from the records.
    pub max_timestamp_ms: Option<i64>,
    /// The idempotent producer, or -1.
    pub producer_id: i64,
    /// Its epoch, or -1.
    pub producer_epoch: i16,
    /// The sequence number of the first record, or -1.
    pub base_sequence: i32,
}

impl Default for BatchFields {
    /// A plain producer's: no compression, no producer id.
    fn default() -> Self {
        Self {
            base_offset: 0,
            partition_leader_epoch: -1,
            attributes: 0,
            base_timestamp_ms: None,
            max_timestamp_ms: None,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
        }
    }
}

impl BatchFields {
    /// A plain producer's, compressed.
    #[must_use]
    pub fn compressed(compression: Compression) -> Self {
        Self {
            attributes: i16::from(compression as u8),
            ..Self::default()
        }
    }
}

/// A record to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordToWrite<'a> {
    /// Milliseconds since the Unix epoch; may be negative.
    pub timestamp_ms: i64,
    /// `None` is null.
    pub key: Option<&'a [u8]>,
    /// `None` is null, a tombstone.
    pub value: Option<&'a [u8]>,
    /// In the order they shall keep.
    pub headers: &'a [RecordHeader<'a>],
}

/// Collects records and writes them as one batch. Can be used again after [`BatchWriter::finish`], keeping its memory.
#[derive(Debug)]
pub struct BatchWriter {
    fields: BatchFields,
    compression: Compression,
    records: Vec<u8>,
    record_count: i32,
    base_timestamp_ms: i64,
    latest_ms: i64,
}

impl BatchWriter {
    /// An empty batch with these fields.
    ///
    /// # Errors
    /// [`BatchError::UnknownCompression`] when the attributes name none.
    pub fn new(fields: BatchFields) -> Result<Self, BatchError> {
        let compression = Compression::from_attributes(fields.attributes)?;
        Ok(Self {
            fields,
            compression,
            records: Vec::new(),
            record_count: 0,
            base_timestamp_ms: 0,
            latest_ms: i64::MIN,
        })
    }

    /// How many records are in it.
    #[must_use]
    pub const fn record_count(&self) -> u32 {
        self.record_count.cast_unsigned()
    }

    /// What its records measure so far, uncompressed.
    #[must_use]
    pub const fn records_bytes(&self) -> usize {
        self.records.len()
    }

    /// Adds a record behind the others.
    ///
    /// # Errors
    /// [`BatchError::TooLarge`] when the batch cannot hold it, [`BatchError::Timestamp`] when its stamp is too far from
    /// the base; the batch is then as before.
    pub fn push(&mut self, record: &RecordToWrite<'_>) -> Result<(), BatchError> {
        let base_ms = match self.record_count {
            0 => self.fields.base_timestamp_ms.unwrap_or(record.timestamp_ms),
            _ => self.base_timestamp_ms,
        };
        let delta_ms = record
            .timestamp_ms
            .checked_sub(base_ms)
            .ok_or(BatchError::Timestamp {
                index: self.record_count(),
                base_ms,
                delta_ms: if record.timestamp_ms < base_ms {
                    i64::MIN
                } else {
                    i64::MAX
                },
            })?;
        let length = record_bytes(record, delta_ms, self.record_count);
        let limit = i32::MAX as usize - BATCH_HEADER_BYTES;
        let fits = |length: &usize| {
            self.record_count < i32::MAX
                && length.saturating_add(5).saturating_add(self.records.len()) <= limit
        };
        let length = length
            .filter(fits)
            .and_then(|length| i32::try_from(length).ok());
        let Some(length) = length else {
            return Err(BatchError::TooLarge {
                limit_bytes: limit as u64,
            });
        };

        let out = &mut self.records;
        varint::put_i32(out, length);
        out.push(0);
        varint::put_i64(out, delta_ms);
        varint::put_i32(out, self.record_count);
        put_bytes(out, record.key);
        put_bytes(out, record.value);
        varint::put_i32(out, i32_len(record.headers.len()));
        for header in record.headers {
            put_bytes(out, Some(header.key));
            put_bytes(out, header.value);
        }
        self.base_timestamp_ms = base_ms;
        self.latest_ms = self.latest_ms.max(record.timestamp_ms);
        self.record_count += 1;
        Ok(())
    }

    /// Appends the batch to `out`, and empties the writer.
    ///
    /// # Errors
    /// [`BatchError::Empty`] without records; [`BatchError::Codec`] or [`BatchError::TooLarge`] from compression. `out` is
    /// then as before.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BatchError> {
        if self.record_count == 0 {
            return Err(BatchError::Empty);
        }
        let start = out.len();
        self.put_header(out);
        let packed = self.compression.compress(&self.records, out);
        let length =
            i32::try_from(out.len() - start - UNCOUNTED_BYTES).map_err(|_| BatchError::TooLarge {
                limit_bytes: i32::MAX as u64,
            });
        let length = match packed.and(length) {
            Ok(length) => length,
            Err(error) => {
                out.truncate(start);
                return Err(error);
            }
        };
        out[start + 8..start + 12].copy_from_slice(&length.to_be_bytes());
        let crc = crc_fast::crc32_iscsi(&out[start + CHECKED_FROM..]);
        out[start + 17..start + 21].copy_from_slice(&crc.to_be_bytes());
        self.records.clear();
        self.record_count = 0;
        self.latest_ms = i64::MIN;
        Ok(())
    }

    /// The 61 bytes, with the length and the checksum left zero.
    fn put_header(&self, out: &mut Vec<u8>) {
        let fields = &self.fields;
        out.extend_from_slice(&fields.base_offset.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&fields.partition_leader_epoch.to_be_bytes());
        out.push(2);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&fields.attributes.to_be_bytes());
        out.extend_from_slice(&(self.record_count - 1).to_be_bytes());
        out.extend_from_slice(&self.base_timestamp_ms.to_be_bytes());
        out.extend_from_slice(
            &fields
                .max_timestamp_ms
                .unwrap_or(self.latest_ms)
                .to_be_bytes(),
        );
        out.extend_from_slice(&fields.producer_id.to_be_bytes());
        out.extend_from_slice(&fields.producer_epoch.to_be_bytes());
        out.extend_from_slice(&fields.base_sequence.to_be_bytes());
        out.extend_from_slice(&self.record_count.to_be_bytes());
    }
}

/// The record's length behind its length field; `None` when a part is too long for its own length field.
fn record_bytes(record: &RecordToWrite<'_>, delta_ms: i64, offset_delta: i32) -> Option<usize> {
    let mut total = 1 + varint::len_i64(delta_ms) + varint::len_i32(offset_delta);
    total = total
        .checked_add(field_bytes(record.key)?)?
        .checked_add(field_bytes(record.value)?)?;
    total = total.checked_add(varint::len_i32(i32::try_from(record.headers.len()).ok()?))?;
    for header in record.headers {
        total = total
            .checked_add(field_bytes(Some(header.key))?)?
            .checked_add(field_bytes(header.value)?)?;
    }
    Some(total)
}

fn field_bytes(field: Option<&[u8]>) -> Option<usize> {
    match field {
        None => Some(varint::len_i32(-1)),
        Some(bytes) => varint::len_i32(i32::try_from(bytes.len()).ok()?).checked_add(bytes.len()),
    }
}

fn put_bytes(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => varint::put_i32(out, -1),
        Some(bytes) => {
            varint::put_i32(out, i32_len(bytes.len()));
            out.extend_from_slice(bytes);
        }
    }
}

/// A length that [`record_bytes`] has checked.
fn i32_len(length: usize) -> i32 {
    debug_assert!(i32::try_from(length).is_ok());
    i32::try_from(length).unwrap_or(i32::MAX)
}
