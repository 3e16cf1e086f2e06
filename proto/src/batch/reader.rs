//! Reading the records of a batch.

use std::borrow::Cow;

use super::header::BATCH_HEADER_BYTES;
use super::{BatchError, BatchHeader, RecordBatch, varint};

/// A header of a record, as bytes: Kafka calls its key text, but nothing makes it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordHeader<'a> {
    /// Its name; may repeat within a record.
    pub key: &'a [u8],
    /// Its value; `None` is null.
    pub value: Option<&'a [u8]>,
}

/// One record of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    /// Its place in the batch, from 0.
    pub offset_delta: i32,
    /// Milliseconds since the Unix epoch; may be negative.
    pub timestamp_ms: i64,
    /// `None` is null.
    pub key: Option<&'a [u8]>,
    /// `None` is null, a tombstone.
    pub value: Option<&'a [u8]>,
    /// In the producer's order, repeated names kept.
    pub headers: Vec<RecordHeader<'a>>,
}

/// A batch whose records are decompressed and ready to be read.
#[derive(Debug)]
pub struct BatchReader<'a> {
    header: BatchHeader,
    records: Cow<'a, [u8]>,
}

impl<'a> BatchReader<'a> {
    /// Reads the header and decompresses the records, to at most `max_decompressed_bytes`. The checksum is
    /// [`RecordBatch::validate`]'s business.
    ///
    /// # Errors
    /// Those of [`RecordBatch::header`]; [`BatchError::TooLarge`] and [`BatchError::Codec`].
    pub fn open(batch: &'a [u8], max_decompressed_bytes: u64) -> Result<Self, BatchError> {
        let header = RecordBatch::header(batch)?;
        let records = header
            .compression
            .decompress(&batch[BATCH_HEADER_BYTES..], max_decompressed_bytes)?;
        Ok(Self { header, records })
    }

    /// The batch's header.
    #[must_use]
    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The records, in order. Ends after the first error.
    #[must_use]
    pub fn records(&self) -> BatchRecords<'_> {
        BatchRecords {
            walk: RecordWalk::new(&self.header, &self.records),
            failed: false,
        }
    }

    /// The records, without a `Vec` for each one's headers.
    pub(super) fn walk(&self) -> RecordWalk<'_> {
        RecordWalk::new(&self.header, &self.records)
    }

    /// Reads every record, and checks its stamp against the header's latest; and that it has a key, if each needs one.
    pub(crate) fn verify(&self, needs_keys: bool) -> Result<(), BatchError> {
        let mut walk = self.walk();
        let mut headers = Vec::new();
        while let Some(record) = walk.next(&mut headers)? {
            if record.timestamp_ms > self.header.max_timestamp_ms {
                return Err(BatchError::MaxTimestamp {
                    index: record.index,
                    found_ms: record.timestamp_ms,
                    max_ms: self.header.max_timestamp_ms,
                });
            }
            if needs_keys && record.key.is_none() {
                return Err(BatchError::NoKey {
                    index: record.index,
                });
            }
        }
        Ok(())
    }
}

/// Yields the records of a [`BatchReader`].
#[derive(Debug)]
pub struct BatchRecords<'a> {
    walk: RecordWalk<'a>,
    failed: bool,
}

impl<'a> Iterator for BatchRecords<'a> {
    type Item = Result<BatchRecord<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let mut headers = Vec::new();
        match self.walk.next(&mut headers) {
            Ok(record) => record.map(|record| {
                Ok(BatchRecord {
                    offset_delta: record.index.cast_signed(),
                    timestamp_ms: record.timestamp_ms,
                    key: record.key,
                    value: record.value,
                    headers,
                })
            }),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// A record but for its headers, which [`RecordWalk::next`] writes into the caller's list.
#[derive(Debug, Clone, Copy)]
pub(super) struct BareRecord<'a> {
    pub(super) index: u32,
    pub(super) timestamp_ms: i64,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
}

#[derive(Debug)]
pub(super) struct RecordWalk<'a> {
    rest: &'a [u8],
    next_index: u32,
    record_count: u32,
    base_timestamp_ms: i64,
    /// Of every record, whatever its delta says.
    append_time_ms: Option<i64>,
}

impl<'a> RecordWalk<'a> {
    fn new(header: &BatchHeader, records: &'a [u8]) -> Self {
        Self {
            rest: records,
            next_index: 0,
            record_count: header.record_count,
            base_timestamp_ms: header.base_timestamp_ms,
            append_time_ms: header
                .is_log_append_time()
                .then_some(header.max_timestamp_ms),
        }
    }

    /// The next record; its headers replace those in `headers`. `None` behind the last.
    #[inline]
    pub(super) fn next(
        &mut self,
        headers: &mut Vec<RecordHeader<'a>>,
    ) -> Result<Option<BareRecord<'a>>, BatchError> {
        headers.clear();
        let index = self.next_index;
        if index == self.record_count {
            return match self.rest.len() {
                0 => Ok(None),
                found_bytes => Err(BatchError::TrailingBytes {
                    index: index.saturating_sub(1),
                    found_bytes,
                }),
            };
        }
        let mut outer = RecordCursor {
            bytes: self.rest,
            position: 0,
            index,
        };
        let record = outer.bytes("record")?.ok_or(BatchError::RecordLength {
            index,
            part: "record",
            claimed: -1,
            available_bytes: self.rest.len(),
        })?;
        self.rest = &self.rest[outer.position..];
        self.next_index += 1;

        let mut fields = RecordCursor {
            bytes: record,
            position: 0,
            index,
        };
        fields.skip_attributes()?;
        let delta_ms = fields.i64("timestamp delta")?;
        let offset_delta = fields.i32("offset delta")?;
        if i64::from(offset_delta) != i64::from(index) {
            return Err(BatchError::OffsetDelta {
                index,
                found: offset_delta,
            });
        }
        let key = fields.bytes("key")?;
        let value = fields.bytes("value")?;
        fields.headers(headers)?;
        if fields.position != record.len() {
            return Err(BatchError::TrailingBytes {
                index,
                found_bytes: record.len() - fields.position,
            });
        }
        let timestamp_ms = match self.append_time_ms {
            Some(stamp) => stamp,
            None => self
                .base_timestamp_ms
                .checked_add(delta_ms)
                .ok_or(BatchError::Timestamp {
                    index,
                    base_ms: self.base_timestamp_ms,
                    delta_ms,
                })?,
        };
        Ok(Some(BareRecord {
            index,
            timestamp_ms,
            key,
            value,
        }))
    }
}

/// Reads the parts of one record; errors name the record and the part.
struct RecordCursor<'a> {
    bytes: &'a [u8],
    position: usize,
    index: u32,
}

impl<'a> RecordCursor<'a> {
    #[inline]
    fn i32(&mut self, part: &'static str) -> Result<i32, BatchError> {
        varint::read_i32(self.bytes, &mut self.position).ok_or(BatchError::RecordNumber {
            index: self.index,
            part,
        })
    }

    #[inline]
    fn i64(&mut self, part: &'static str) -> Result<i64, BatchError> {
        varint::read_i64(self.bytes, &mut self.position).ok_or(BatchError::RecordNumber {
            index: self.index,
            part,
        })
    }

    /// A byte that no version gives a meaning to.
    #[inline]
    fn skip_attributes(&mut self) -> Result<(), BatchError> {
        if self.bytes.is_empty() {
            return Err(BatchError::RecordNumber {
                index: self.index,
                part: "attributes",
            });
        }
        self.position += 1;
        Ok(())
    }

    /// A length and that many bytes; -1 is null.
    #[inline]
    fn bytes(&mut self, part: &'static str) -> Result<Option<&'a [u8]>, BatchError> {
        let claimed = self.i32(part)?;
        if claimed == -1 {
            return Ok(None);
        }
        let rest = &self.bytes[self.position..];
        let taken = usize::try_from(claimed)
            .ok()
            .and_then(|length| rest.get(..length));
        let Some(taken) = taken else {
            return Err(BatchError::RecordLength {
                index: self.index,
                part,
                claimed,
                available_bytes: rest.len(),
            });
        };
        self.position += taken.len();
        Ok(Some(taken))
    }

    fn headers(&mut self, headers: &mut Vec<RecordHeader<'a>>) -> Result<(), BatchError> {
        let part = "header count";
        let claimed = self.i32(part)?;
        let available_bytes = self.bytes.len() - self.position;
        // A header takes at least two bytes, so a count beyond that is refused before any is read.
        if !usize::try_from(claimed).is_ok_and(|count| count <= available_bytes / 2) {
            return Err(BatchError::RecordLength {
                index: self.index,
                part,
                claimed,
                available_bytes,
            });
        }
        for _ in 0..claimed {
            let available_bytes = self.bytes.len() - self.position;
            let part = "header key";
            let key = self.bytes(part)?;
            let key = key.ok_or(BatchError::RecordLength {
                index: self.index,
                part,
                claimed: -1,
                available_bytes,
            })?;
            let value = self.bytes("header value")?;
            headers.push(RecordHeader { key, value });
        }
        Ok(())
    }
}
