//! The rows that stay, as rows of whole frames.
//!
//! A record frame is one row, and stays as it is. The rows of a batch are one frame together; where some of them go, each of the
//! others becomes a batch of one record, which begins and ends at its own offset and stamp and has the number that its producer gave it
//! within the batch. (Kafka leaves such a batch with holes in its offsets. Here a batch is read by counting.)

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int16Type, Int32Type, Int64Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use basalt_proto::Offset;

use super::RowSet;
use crate::file::ColdChunk;
use crate::replay::{FrameRebuilder, LOG_APPEND_TIME, ReplayError, mistyped};
use crate::rows::stamp_ns;
use crate::schema::column;

/// Takes the rows of one row group as they come.
pub(crate) struct Survivors<'a> {
    gone: &'a RowSet,
    /// Of the next row, in the file.
    next_row: usize,
    /// The last batch that was looked at, by its first offset, and whether it loses any of its rows.
    batch: Option<(i64, bool)>,
    rebuilder: FrameRebuilder,
    frames: Vec<u8>,
    /// What has stayed so far.
    stayed: Option<ColdChunk>,
    has_batches: bool,
}

impl<'a> Survivors<'a> {
    /// Of a row group whose first row is `first_row` of the file.
    pub(crate) fn new(gone: &'a RowSet, first_row: usize) -> Self {
        Self {
            gone,
            next_row: first_row,
            batch: None,
            rebuilder: FrameRebuilder::default(),
            frames: Vec::new(),
            stayed: None,
            has_batches: false,
        }
    }

    /// Those of `rows` that stay: the columns of [`crate::cold_schema`], with all payloads. None may.
    ///
    /// # Errors
    /// The rows are not what [`crate::RowBuilder`] made.
    pub(crate) fn push(&mut self, rows: &RecordBatch) -> Result<RecordBatch, ReplayError> {
        let first_row = self.next_row;
        self.next_row += rows.num_rows();
        let stays: BooleanArray = (first_row..self.next_row)
            .map(|row| Some(!self.gone.contains(row)))
            .collect();
        let columns = BatchColumns::of(rows)?;
        let mut alone = Vec::with_capacity(rows.num_rows());
        for at in 0..rows.num_rows() {
            let is_alone = self.is_of_broken_batch(&columns, at, first_row + at);
            if stays.value(at) {
                alone.push(is_alone);
            }
        }
        let staying = filter_record_batch(rows, &stays).map_err(|_| mistyped(column::OFFSET))?;
        let staying = match alone.contains(&true) {
            true => each_alone(&staying, &alone)?,
            false => staying,
        };
        self.frames.clear();
        self.rebuilder.push(&staying, None, &mut self.frames)?;
        self.count(&staying)?;
        Ok(staying)
    }

    /// The frames that end in the rows that stayed last.
    pub(crate) fn frames(&self) -> &[u8] {
        &self.frames
    }

    /// What stayed of the row group; `None` for nothing.
    ///
    /// # Errors
    /// [`ReplayError::BatchRows`] when the last batch is not whole.
    pub(crate) fn finish(self) -> Result<Option<(ColdChunk, bool)>, ReplayError> {
        self.rebuilder.finish()?;
        Ok(self.stayed.map(|stayed| (stayed, self.has_batches)))
    }

    fn is_of_broken_batch(&mut self, columns: &BatchColumns, at: usize, row: usize) -> bool {
        if columns.base_offset.is_null(at) {
            return false;
        }
        let base = columns.base_offset.value(at);
        if let Some((known, is_broken)) = self.batch
            && known == base
        {
            return is_broken;
        }
        // Its rows follow each other, and this is the first of them.
        let last = usize::try_from(columns.last_offset_delta.value(at)).unwrap_or_default();
        let is_broken = self
            .gone
            .meets(row..row.saturating_add(last).saturating_add(1));
        self.batch = Some((base, is_broken));
        is_broken
    }

    fn count(&mut self, staying: &RecordBatch) -> Result<(), ReplayError> {
        let offsets = primitive::<Int64Type>(staying, column::OFFSET)?;
        let counts = primitive::<Int64Type>(staying, column::RECORD_COUNT)?;
        let stamps = primitive::<UInt64Type>(staying, column::TIMESTAMP_NS)?;
        let stamps_ms = primitive::<Int64Type>(staying, column::TIMESTAMP_MS)?;
        for at in 0..staying.num_rows() {
            let offset = offsets.value(at).cast_unsigned();
            let stamp = match stamps_ms.is_valid(at) {
                true => stamp_ns(stamps_ms.value(at)),
                false => stamps.value(at),
            };
            self.has_batches |= stamps_ms.is_valid(at);
            let stayed = self.stayed.get_or_insert(ColdChunk {
                row_group: 0,
                base_offset: Offset(offset),
                end_offset: Offset(offset),
                frame_bytes: 0,
                rows: 0,
                min_timestamp_ns: u64::MAX,
                max_timestamp_ns: 0,
                frames_crc32c: None,
            });
            stayed.end_offset = Offset(offset.saturating_add(counts.value(at).cast_unsigned()));
            stayed.rows += 1;
            stayed.min_timestamp_ns = stayed.min_timestamp_ns.min(stamp);
            stayed.max_timestamp_ns = stayed.max_timestamp_ns.max(stamp);
        }
        if let Some(stayed) = &mut self.stayed {
            stayed.frame_bytes += self.frames.len() as u64;
        }
        Ok(())
    }
}

/// What says which batch a row is of, and what changes when it becomes one by itself.
struct BatchColumns {
    offset: PrimitiveArray<Int64Type>,
    timestamp_ns: PrimitiveArray<UInt64Type>,
    timestamp_ms: PrimitiveArray<Int64Type>,
    base_offset: PrimitiveArray<Int64Type>,
    last_offset_delta: PrimitiveArray<Int32Type>,
    attributes: PrimitiveArray<Int16Type>,
    base_timestamp_ms: PrimitiveArray<Int64Type>,
    max_timestamp_ms: PrimitiveArray<Int64Type>,
    base_sequence: PrimitiveArray<Int32Type>,
}

impl BatchColumns {
    fn of(rows: &RecordBatch) -> Result<Self, ReplayError> {
        Ok(Self {
            offset: primitive(rows, column::OFFSET)?,
            timestamp_ns: primitive(rows, column::TIMESTAMP_NS)?,
            timestamp_ms: primitive(rows, column::TIMESTAMP_MS)?,
            base_offset: primitive(rows, column::BATCH_BASE_OFFSET)?,
            last_offset_delta: primitive(rows, column::BATCH_LAST_OFFSET_DELTA)?,
            attributes: primitive(rows, column::BATCH_ATTRIBUTES)?,
            base_timestamp_ms: primitive(rows, column::BATCH_BASE_TIMESTAMP_MS)?,
            max_timestamp_ms: primitive(rows, column::BATCH_MAX_TIMESTAMP_MS)?,
            base_sequence: primitive(rows, column::BASE_SEQUENCE)?,
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(
    rows: &RecordBatch,
    at: usize,
) -> Result<PrimitiveArray<T>, ReplayError> {
    let column = rows.columns().get(at);
    let column = column.and_then(|column| column.as_primitive_opt().cloned());
    column.ok_or_else(|| mistyped(at))
}

/// `rows`, where those that `alone` says are batches of one record.
fn each_alone(rows: &RecordBatch, alone: &[bool]) -> Result<RecordBatch, ReplayError> {
    let old = BatchColumns::of(rows)?;
    // A batch that a broker stamped as a whole has that stamp as its latest, and records whose own do not count.
    let is_restamped = |at: usize| alone[at] && old.attributes.value(at) & LOG_APPEND_TIME == 0;
    let sequence = |at: usize| match old.base_sequence.value(at) {
        none @ ..0 => none,
        base => {
            let delta = old.offset.value(at).wrapping_sub(old.base_offset.value(at));
            // Behind the last number comes 0.
            let sequence = i64::from(base).wrapping_add(delta) & i64::from(i32::MAX);
            i32::try_from(sequence).unwrap_or_default()
        }
    };
    let mut columns = rows.columns().to_vec();
    columns[column::BATCH_BASE_OFFSET] =
        changed(&old.base_offset, alone, |at| old.offset.value(at));
    columns[column::BATCH_LAST_OFFSET_DELTA] = changed(&old.last_offset_delta, alone, |_| 0);
    columns[column::BASE_SEQUENCE] = changed(&old.base_sequence, alone, sequence);
    let restamped: Vec<bool> = (0..alone.len()).map(is_restamped).collect();
    let stamp = |at: usize| old.timestamp_ms.value(at);
    columns[column::BATCH_BASE_TIMESTAMP_MS] = changed(&old.base_timestamp_ms, &restamped, stamp);
    columns[column::BATCH_MAX_TIMESTAMP_MS] = changed(&old.max_timestamp_ms, &restamped, stamp);
    columns[column::TIMESTAMP_NS] =
        changed(&old.timestamp_ns, &restamped, |at| stamp_ns(stamp(at)));
    RecordBatch::try_new(rows.schema(), columns).map_err(|_| mistyped(column::BATCH_BASE_OFFSET))
}

/// `array` with new values in some places.
fn changed<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    places: &[bool],
    value: impl Fn(usize) -> T::Native,
) -> ArrayRef {
    let values = array.iter().zip(places).enumerate();
    let values = values.map(|(at, (old, is_changed))| match is_changed {
        true => Some(value(at)),
        false => old,
    });
    Arc::new(PrimitiveArray::<T>::from_iter(values))
}
