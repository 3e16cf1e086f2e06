//! Frames become rows: the one way, for cooling and for SQL over hot segments alike.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use basalt_proto::batch::{self, BatchHeader, MAX_DECOMPRESSED_BYTES};
use basalt_proto::{BatchError, ExpandedRecord, Frame, FrameKind, Offset, PartitionId, expand};

use crate::schema::{cold_schema, column};

mod columns;

use columns::Columns;

/// Why a frame could not be made into rows. The builder holds a part of the frame's rows then, and must be dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// A batch frame's batch cannot be read.
    #[error("the batch frame at offset {offset} cannot be read")]
    Batch {
        /// The frame's offset.
        offset: Offset,
        /// What is wrong with it.
        #[source]
        source: BatchError,
    },
    /// An offset is beyond 2^63 - 1.
    #[error("offset {offset} does not fit a signed 64-bit column")]
    Offset {
        /// The offset.
        offset: Offset,
    },
    /// The rows' keys, payloads or headers would pass 2 GiB: [`RowBuilder::finish`] more often.
    #[error(
        "{value_bytes} bytes of values and {frame_bytes} more pass the 2 GiB of an Arrow column"
    )]
    Full {
        /// In the builder.
        value_bytes: u64,
        /// What the frame may add.
        frame_bytes: u64,
    },
}

/// What one frame added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameRows {
    pub(crate) rows: u64,
    /// The smallest and the largest stamp of its records, saturated to u64 ns.
    pub(crate) min_timestamp_ns: u64,
    pub(crate) max_timestamp_ns: u64,
}

/// Collects frames and makes them into an Arrow batch of [`cold_schema`], or of some of its columns.
///
/// A record frame is one row, a batch frame a row for each of its records. Memory is that of the rows: finish when
/// [`RowBuilder::value_bytes`] is large. Can be used again after [`RowBuilder::finish`].
#[derive(Debug)]
pub struct RowBuilder {
    schema: SchemaRef,
    projection: Vec<usize>,
    partition: i32,
    columns: Columns,
    /// Whether the records of batches must be read, or their number is enough.
    reads_records: bool,
    rows: usize,
    value_bytes: u64,
}

impl RowBuilder {
    /// All columns, of one partition's frames.
    #[must_use]
    pub fn new(partition: PartitionId) -> Self {
        Self::with_projection(partition, None)
    }

    /// The columns of [`cold_schema`] at these positions, in this order; all of them for `None`. Others cost nothing.
    ///
    /// # Panics
    /// If a position is not one of the schema's.
    #[must_use]
    pub fn with_projection(partition: PartitionId, projection: Option<&[usize]>) -> Self {
        let projection = projection.map_or_else(|| (0..column::COUNT).collect(), <[usize]>::to_vec);
        let fields: Vec<_> = projection
            .iter()
            .map(|at| Arc::clone(&cold_schema().fields()[*at]))
            .collect();
        let of_records = [
            column::TIMESTAMP,
            column::KEY,
            column::HEADERS,
            column::PAYLOAD,
            column::TIMESTAMP_MS,
            column::HEADER_KEYS,
        ];
        Self {
            schema: Arc::new(arrow::datatypes::Schema::new(fields)),
            columns: Columns::new(&projection),
            reads_records: projection.iter().any(|at| of_records.contains(at)),
            projection,
            // Partitions are numbered from 0 and limited far below 2^31.
            partition: i32::try_from(partition.0).unwrap_or(i32::MAX),
            rows: 0,
            value_bytes: 0,
        }
    }

    /// The schema of what [`RowBuilder::finish`] returns.
    #[must_use]
    pub const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows collected.
    #[must_use]
    pub const fn row_count(&self) -> usize {
        self.rows
    }

    /// Bytes of keys, payloads and headers collected in the projected columns.
    #[must_use]
    pub const fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// Adds a frame's rows.
    ///
    /// # Errors
    /// [`RowError`]; the builder must then be dropped, but for [`RowError::Full`], which leaves it as it was.
    pub fn push(&mut self, frame: &Frame<'_>) -> Result<(), RowError> {
        self.push_measured(frame).map(|_| ())
    }

    pub(crate) fn push_measured(&mut self, frame: &Frame<'_>) -> Result<FrameRows, RowError> {
        if frame.header.end_offset() > Offset::MAX {
            return Err(RowError::Offset {
                offset: frame.header.offset,
            });
        }
        match frame.header.kind {
            FrameKind::Record => {
                self.check_room(frame.header.frame_bytes())?;
                Ok(self.push_record_frame(frame))
            }
            FrameKind::Batch => {
                let unreadable = |source| RowError::Batch {
                    offset: frame.header.offset,
                    source,
                };
                let header = batch::RecordBatch::header(frame.payload).map_err(unreadable)?;
                if !self.reads_records {
                    return Ok(self.push_batch_shape(frame, &header));
                }
                let records_bytes = match header.compression {
                    batch::Compression::None => frame.header.frame_bytes(),
                    _ => MAX_DECOMPRESSED_BYTES,
                };
                // A byte of a header key that is not UTF-8 becomes three.
                self.check_room(records_bytes.saturating_mul(3))?;
                self.push_batch_frame(frame, &header).map_err(unreadable)
            }
        }
    }

    fn check_room(&self, frame_bytes: u64) -> Result<(), RowError> {
        if self.value_bytes.saturating_add(frame_bytes) > i32::MAX.cast_unsigned().into() {
            return Err(RowError::Full {
                value_bytes: self.value_bytes,
                frame_bytes,
            });
        }
        Ok(())
    }

    fn push_record_frame(&mut self, frame: &Frame<'_>) -> FrameRows {
        let stamp = frame.header.timestamp_ns;
        self.columns.unbatched_rows += 1;
        let _ = expand(frame, |record| {
            self.value_bytes += self.columns.put_record(&record, stamp);
            ControlFlow::<Infallible>::Continue(())
        });
        self.rows += 1;
        FrameRows {
            rows: 1,
            min_timestamp_ns: stamp,
            max_timestamp_ns: stamp,
        }
    }

    fn push_batch_frame(
        &mut self,
        frame: &Frame<'_>,
        header: &BatchHeader,
    ) -> Result<FrameRows, BatchError> {
        let mut added = FrameRows {
            rows: 0,
            min_timestamp_ns: u64::MAX,
            max_timestamp_ns: 0,
        };
        let _ = expand(frame, |record| {
            let stamp = saturated_timestamp_ns(&record);
            added.min_timestamp_ns = added.min_timestamp_ns.min(stamp);
            added.max_timestamp_ns = added.max_timestamp_ns.max(stamp);
            added.rows += 1;
            self.rows += 1;
            self.value_bytes += self.columns.put_record(&record, frame.header.timestamp_ns);
            ControlFlow::<Infallible>::Continue(())
        })?;
        self.columns.put_batch(frame.header.offset, header);
        Ok(added)
    }

    /// A batch's rows where no column needs its records: they are counted, not read.
    fn push_batch_shape(&mut self, frame: &Frame<'_>, header: &BatchHeader) -> FrameRows {
        for index in 0..header.record_count {
            let offset = frame.header.offset.saturating_add(u64::from(index));
            self.columns.put_shape(offset, 1, frame.header.timestamp_ns);
        }
        self.columns.put_batch(frame.header.offset, header);
        self.rows += header.record_count as usize;
        FrameRows {
            rows: u64::from(header.record_count),
            min_timestamp_ns: 0,
            max_timestamp_ns: header.max_timestamp_ns(),
        }
    }

    /// The rows collected since the last call; none is fine.
    #[must_use]
    #[expect(
        clippy::missing_panics_doc,
        reason = "it cannot panic: the arrays are the schema's by construction"
    )]
    pub fn finish(&mut self) -> RecordBatch {
        let rows = std::mem::take(&mut self.rows);
        self.value_bytes = 0;
        self.columns.close_batch_columns();
        let arrays = self.projection.iter().map(|at| match *at {
            column::PARTITION => Arc::new(Int32Array::from_value(self.partition, rows)) as ArrayRef,
            at => self.columns.finish(at),
        });
        let arrays: Vec<ArrayRef> = arrays.collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
            .expect("the arrays have the schema's types and the same length")
    }
}

/// A record's stamp for indexes: what does not fit u64 ns counts as the nearest that does.
fn saturated_timestamp_ns(record: &ExpandedRecord<'_>) -> u64 {
    let beyond = record.timestamp_ms.map_or(0, stamp_ns);
    record.timestamp_ns.unwrap_or(beyond)
}

/// Milliseconds in nanoseconds, or the nearest that 64 bits can say.
pub(crate) fn stamp_ns(ms: i64) -> u64 {
    u64::try_from(ms).map_or(0, |ms| ms.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests;
