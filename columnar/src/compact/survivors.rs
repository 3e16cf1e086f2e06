//! The rows that stay, as rows of whole frames.
//!
//! A record frame is one row, and stays as it is. The rows of a batch are one frame together; where some of them go, those that are left
//! side by side become a batch: it begins and ends at their offsets and stamps, and has the numbers that the producer gave them within
//! the batch. (Kafka leaves one batch with holes in its offsets. Here a batch is read by counting.)

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{Int16Type, Int32Type, Int64Type, UInt64Type};
use arrow::error::ArrowError;
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
    /// Of the next row to be looked at, in the file.
    next_row: usize,
    /// The first rows of a batch whose last ones have not come yet. At most one batch.
    begun: Option<RecordBatch>,
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
            begun: None,
            rebuilder: FrameRebuilder::default(),
            frames: Vec::new(),
            stayed: None,
            has_batches: false,
        }
    }

    /// Those that stay of the rows that came before, as far as they were kept back, and of `rows`: the columns of
    /// [`crate::cold_schema`], with all payloads. None may.
    ///
    /// # Errors
    /// The rows are not what [`crate::RowBuilder`] made.
    pub(crate) fn push(&mut self, rows: &RecordBatch) -> Result<RecordBatch, ReplayError> {
        let all = match self.begun.take() {
            Some(begun) => concat_batches(&rows.schema(), [&begun, rows]).map_err(unexpected)?,
            None => rows.clone(),
        };
        let columns = BatchColumns::of(&all)?;
        let frames = columns.frames();
        let whole = frames
            .last()
            .map_or(0, |last| match last.end > all.num_rows() {
                true => last.start,
                false => last.end,
            });
        if whole < all.num_rows() {
            self.begun = Some(all.slice(whole, all.num_rows() - whole));
        }
        let first_row = self.next_row;
        self.next_row += whole;
        let stays = |row: usize| !self.gone.contains(first_row + row);
        // Of each batch that loses some of its rows the runs that stay, as places among all that stay.
        let (mut runs, mut place) = (Vec::new(), 0);
        for frame in frames.into_iter().filter(|frame| frame.end <= whole) {
            let is_broken = frame.len() > 1 && !frame.clone().all(stays);
            let mut run = place;
            for row in frame {
                if stays(row) {
                    place += 1;
                    continue;
                }
                runs.extend((is_broken && run < place).then_some(run..place));
                run = place;
            }
            runs.extend((is_broken && run < place).then_some(run..place));
        }
        let mask: BooleanArray = (0..whole).map(|row| Some(stays(row))).collect();
        let staying = filter_record_batch(&all.slice(0, whole), &mask).map_err(unexpected)?;
        let staying = match runs.is_empty() {
            true => staying,
            false => as_batches(&staying, &runs)?,
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
    /// [`ReplayError`] when the last batch is not whole.
    pub(crate) fn finish(self) -> Result<Option<(ColdChunk, bool)>, ReplayError> {
        if let Some(begun) = self.begun {
            // Its last rows are missing: the rebuilder says so.
            let mut rebuilder = FrameRebuilder::default();
            rebuilder.push(&begun, None, &mut Vec::new())?;
            rebuilder.finish()?;
        }
        self.rebuilder.finish()?;
        Ok(self.stayed.map(|stayed| (stayed, self.has_batches)))
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

    /// The rows of each frame, in order. The last one may end behind the rows that there are.
    fn frames(&self) -> Vec<Range<usize>> {
        let (mut frames, mut row) = (Vec::new(), 0);
        while row < self.offset.len() {
            let rows = match self.base_offset.is_valid(row) {
                true => i64::from(self.last_offset_delta.value(row)) + 1,
                false => 1,
            };
            let end = row.saturating_add(usize::try_from(rows).unwrap_or(1).max(1));
            frames.push(row..end);
            row = end;
        }
        frames
    }
}

fn unexpected(_: ArrowError) -> ReplayError {
    mistyped(column::OFFSET)
}

fn primitive<T: ArrowPrimitiveType>(
    rows: &RecordBatch,
    at: usize,
) -> Result<PrimitiveArray<T>, ReplayError> {
    let column = rows.columns().get(at);
    let column = column.and_then(|column| column.as_primitive_opt().cloned());
    column.ok_or_else(|| mistyped(at))
}

/// `rows`, where each of `runs` is a batch.
fn as_batches(rows: &RecordBatch, runs: &[Range<usize>]) -> Result<RecordBatch, ReplayError> {
    let old = BatchColumns::of(rows)?;
    let sequence = |first: usize| match old.base_sequence.value(first) {
        none @ ..0 => none,
        base => {
            let offset = old.offset.value(first);
            let delta = offset.wrapping_sub(old.base_offset.value(first));
            // Behind the last number comes 0.
            let sequence = i64::from(base).wrapping_add(delta) & i64::from(i32::MAX);
            i32::try_from(sequence).unwrap_or_default()
        }
    };
    // A batch that a broker stamped as a whole has that stamp as its latest, and records whose own do not count.
    let restamped: Vec<_> = runs
        .iter()
        .filter(|run| old.attributes.value(run.start) & LOG_APPEND_TIME == 0)
        .cloned()
        .collect();
    let first_stamp = |run: &Range<usize>| old.timestamp_ms.value(run.start);
    let latest_stamp = |run: &Range<usize>| {
        let stamps = run.clone().map(|row| old.timestamp_ms.value(row));
        stamps.max().unwrap_or_default()
    };
    let last_delta = |run: &Range<usize>| i32::try_from(run.len() - 1).unwrap_or(i32::MAX);
    let mut columns = rows.columns().to_vec();
    columns[column::BATCH_BASE_OFFSET] =
        changed(&old.base_offset, runs, |run| old.offset.value(run.start));
    columns[column::BATCH_LAST_OFFSET_DELTA] = changed(&old.last_offset_delta, runs, last_delta);
    columns[column::BASE_SEQUENCE] = changed(&old.base_sequence, runs, |run| sequence(run.start));
    columns[column::BATCH_BASE_TIMESTAMP_MS] =
        changed(&old.base_timestamp_ms, &restamped, first_stamp);
    columns[column::BATCH_MAX_TIMESTAMP_MS] =
        changed(&old.max_timestamp_ms, &restamped, latest_stamp);
    columns[column::TIMESTAMP_NS] = changed(&old.timestamp_ns, &restamped, |run| {
        stamp_ns(latest_stamp(run))
    });
    RecordBatch::try_new(rows.schema(), columns).map_err(unexpected)
}

/// `array` with one value in all rows of each run. Runs are in order.
fn changed<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    runs: &[Range<usize>],
    value: impl Fn(&Range<usize>) -> T::Native,
) -> ArrayRef {
    let mut values: Vec<Option<T::Native>> = array.iter().collect();
    for run in runs {
        let value = value(run);
        if let Some(rows) = values.get_mut(run.clone()) {
            rows.fill(Some(value));
        }
    }
    Arc::new(PrimitiveArray::<T>::from_iter(values))
}
