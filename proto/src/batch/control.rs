//! Control batches: how a broker says in the log that a transaction has ended.
//!
//! One record, whose key is `i16 version (0), i16 type (0 abort, 1 commit)` and whose value is `i16 version (0), i32 coordinator
//! epoch`, in a batch with the producer's id and epoch, no sequence, and the transactional and control bits (KIP-98).

use super::{
    BatchError, BatchFields, BatchReader, BatchWriter, MAX_DECOMPRESSED_BYTES, RecordBatch,
    RecordToWrite,
};
use crate::{Frame, FrameError, Offset};

const ATTRIBUTES: i16 = (1 << 4) | (1 << 5);
const ABORT: i16 = 0;
const COMMIT: i16 = 1;
const NS_PER_MS: u64 = 1_000_000;
const NO_TIMESTAMP_MS: i64 = -1;

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Marker {
    /// Its records are void.
    Abort,
    /// They count.
    Commit,
}

impl Marker {
    /// The marker in a batch; `None` for any other batch, and for control records of another kind.
    #[must_use]
    pub fn of(batch: &[u8]) -> Option<Self> {
        let header = RecordBatch::header(batch).ok()?;
        if !header.is_control() {
            return None;
        }
        let reader = BatchReader::open(batch, MAX_DECOMPRESSED_BYTES).ok()?;
        let record = reader.records().next()?.ok()?;
        let [_, _, a, b] = *record.key?.first_chunk()?;
        match i16::from_be_bytes([a, b]) {
            ABORT => Some(Self::Abort),
            COMMIT => Some(Self::Commit),
            _ => None,
        }
    }

    /// The frame of such a batch, of one record.
    ///
    /// # Errors
    /// None in practice: a record of ten bytes always fits.
    pub fn frame(
        self,
        producer_id: i64,
        producer_epoch: i16,
        timestamp_ms: i64,
    ) -> Result<Vec<u8>, FrameError> {
        let fields = BatchFields {
            producer_id,
            producer_epoch,
            ..BatchFields::default()
        };
        let batch = self.batch(fields, timestamp_ms)?;
        let timestamp_ns = u64::try_from(timestamp_ms)
            .unwrap_or(0)
            .saturating_mul(NS_PER_MS);
        let mut frame = Vec::new();
        Frame::batch(timestamp_ns, &batch, 1).encode_into(&mut frame);
        Ok(frame)
    }

    fn batch(self, fields: BatchFields, timestamp_ms: i64) -> Result<Vec<u8>, BatchError> {
        let [high, low] = match self {
            Self::Abort => ABORT,
            Self::Commit => COMMIT,
        }
        .to_be_bytes();
        let mut writer = BatchWriter::new(BatchFields {
            attributes: ATTRIBUTES,
            ..fields
        })?;
        writer.push(&RecordToWrite {
            timestamp_ms,
            key: Some(&[0, 0, high, low]),
            value: Some(&[0; 6]),
            headers: &[],
        })?;
        let mut batch = Vec::new();
        writer.finish(&mut batch)?;
        Ok(batch)
    }
}

/// What takes a reader past offsets up to `end` that no record has, and that none follows: a control batch at the last of them, of no
/// producer. A batch without records would do for the client, but not for who asks it where it is: librdkafka moves that place for
/// records and control records only.
///
/// # Errors
/// None in practice, as of [`Marker::frame`].
pub fn gap_end(end: Offset) -> Result<Vec<u8>, BatchError> {
    let last = end.0.saturating_sub(1);
    let fields = BatchFields {
        base_offset: i64::try_from(last).unwrap_or(i64::MAX),
        ..BatchFields::default()
    };
    Marker::Commit.batch(fields, NO_TIMESTAMP_MS)
}
