//! Frames become rows: the one way, for cooling and for SQL over hot segments alike.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, Int16Builder, Int32Array, Int32Builder, Int64Builder, ListArray,
    NullBufferBuilder, StringBuilder, StructArray, TimestampNanosecondBuilder, UInt64Builder,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use basalt_proto::batch::{self, BatchHeader, MAX_DECOMPRESSED_BYTES};
use basalt_proto::{
    BatchError, ExpandedRecord, Frame, FrameKind, Offset, PartitionId, RecordHeader, expand,
};

use crate::schema::{
    TIME_ZONE, cold_schema, column, header_fields, header_item, header_key_item, sql_timestamp_ns,
};

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
pub(crate) fn saturated_timestamp_ns(record: &ExpandedRecord<'_>) -> u64 {
    let beyond = record
        .timestamp_ms
        .map_or(0, |ms| if ms < 0 { 0 } else { u64::MAX });
    record.timestamp_ns.unwrap_or(beyond)
}

/// The builders of the projected columns.
#[derive(Debug, Default)]
struct Columns {
    offset: Option<Int64Builder>,
    timestamp: Option<TimestampNanosecondBuilder>,
    key: Option<BinaryBuilder>,
    headers: Option<HeadersBuilder>,
    payload: Option<BinaryBuilder>,
    record_count: Option<Int64Builder>,
    timestamp_ns: Option<UInt64Builder>,
    timestamp_ms: Option<Int64Builder>,
    base_offset: Option<Int64Builder>,
    last_offset_delta: Option<Int32Builder>,
    attributes: Option<Int16Builder>,
    base_timestamp_ms: Option<Int64Builder>,
    max_timestamp_ms: Option<Int64Builder>,
    producer_id: Option<Int64Builder>,
    producer_epoch: Option<Int16Builder>,
    base_sequence: Option<Int32Builder>,
    leader_epoch: Option<Int32Builder>,
    header_keys: Option<HeaderKeysBuilder>,
    /// Rows of record frames that the columns of batches do not have as nulls yet: they are added many at a time.
    unbatched_rows: usize,
}

/// Calls a method on each builder of a batch column that is projected.
macro_rules! each_batch_column {
    ($columns:ident, $method:ident($count:expr $(, $field:ident = $value:expr)*)) => {
        $(if let Some(builder) = &mut $columns.$field { builder.$method($value, $count); })*
    };
}

impl Columns {
    fn new(projection: &[usize]) -> Self {
        let mut columns = Self::default();
        for at in projection {
            match *at {
                column::OFFSET => columns.offset = Some(Int64Builder::new()),
                column::TIMESTAMP => {
                    columns.timestamp =
                        Some(TimestampNanosecondBuilder::new().with_timezone(TIME_ZONE));
                }
                column::KEY => columns.key = Some(BinaryBuilder::new()),
                column::HEADERS => columns.headers = Some(HeadersBuilder::default()),
                column::PAYLOAD => columns.payload = Some(BinaryBuilder::new()),
                column::RECORD_COUNT => columns.record_count = Some(Int64Builder::new()),
                column::TIMESTAMP_NS => columns.timestamp_ns = Some(UInt64Builder::new()),
                column::TIMESTAMP_MS => columns.timestamp_ms = Some(Int64Builder::new()),
                column::BATCH_BASE_OFFSET => columns.base_offset = Some(Int64Builder::new()),
                column::BATCH_LAST_OFFSET_DELTA => {
                    columns.last_offset_delta = Some(Int32Builder::new())
                }
                column::BATCH_ATTRIBUTES => columns.attributes = Some(Int16Builder::new()),
                column::BATCH_BASE_TIMESTAMP_MS => {
                    columns.base_timestamp_ms = Some(Int64Builder::new())
                }
                column::BATCH_MAX_TIMESTAMP_MS => {
                    columns.max_timestamp_ms = Some(Int64Builder::new())
                }
                column::PRODUCER_ID => columns.producer_id = Some(Int64Builder::new()),
                column::PRODUCER_EPOCH => columns.producer_epoch = Some(Int16Builder::new()),
                column::BASE_SEQUENCE => columns.base_sequence = Some(Int32Builder::new()),
                column::LEADER_EPOCH => columns.leader_epoch = Some(Int32Builder::new()),
                column::HEADER_KEYS => columns.header_keys = Some(HeaderKeysBuilder::default()),
                _ => {}
            }
        }
        columns
    }

    /// Adds a record to the columns of records, and returns how many bytes of values it took.
    fn put_record(&mut self, record: &ExpandedRecord<'_>, timestamp_ns: u64) -> u64 {
        self.put_shape(record.offset, record.record_count, timestamp_ns);
        let mut value_bytes = 0;
        if let Some(timestamp) = &mut self.timestamp {
            timestamp.append_option(record.timestamp_ns.and_then(sql_timestamp_ns));
        }
        if let Some(key) = &mut self.key {
            key.append_option(record.key);
            value_bytes += record.key.map_or(0, <[u8]>::len);
        }
        if let Some(payload) = &mut self.payload {
            payload.append_option(record.payload);
            value_bytes += record.payload.map_or(0, <[u8]>::len);
        }
        if let Some(timestamp_ms) = &mut self.timestamp_ms {
            timestamp_ms.append_option(record.timestamp_ms);
        }
        if let Some(headers) = &mut self.headers {
            value_bytes += headers.push(record.headers);
        }
        if let Some(header_keys) = &mut self.header_keys {
            value_bytes += header_keys.push(record.headers);
        }
        value_bytes as u64
    }

    /// Adds to the columns of records that can be filled without reading the record.
    fn put_shape(&mut self, offset: Offset, record_count: u32, timestamp_ns: u64) {
        if let Some(offsets) = &mut self.offset {
            // Checked for the whole frame against 2^63 - 1.
            offsets.append_value(offset.0.cast_signed());
        }
        if let Some(counts) = &mut self.record_count {
            counts.append_value(i64::from(record_count));
        }
        if let Some(stamps) = &mut self.timestamp_ns {
            stamps.append_value(timestamp_ns);
        }
    }

    /// Adds the columns of batches for all rows of one.
    fn put_batch(&mut self, base_offset: Offset, header: &BatchHeader) {
        self.close_batch_columns();
        let rows = header.record_count as usize;
        each_batch_column!(
            self,
            append_value_n(
                rows,
                base_offset = base_offset.0.cast_signed(),
                last_offset_delta = header.last_offset_delta,
                attributes = header.attributes,
                base_timestamp_ms = header.base_timestamp_ms,
                max_timestamp_ms = header.max_timestamp_ms,
                producer_id = header.producer_id,
                producer_epoch = header.producer_epoch,
                base_sequence = header.base_sequence,
                leader_epoch = header.partition_leader_epoch
            )
        );
    }

    /// Gives the columns of batches the nulls of the record frames since the last batch.
    fn close_batch_columns(&mut self) {
        let rows = std::mem::take(&mut self.unbatched_rows);
        let wide = [
            &mut self.base_offset,
            &mut self.base_timestamp_ms,
            &mut self.max_timestamp_ms,
            &mut self.producer_id,
        ];
        for builder in wide.into_iter().flatten() {
            builder.append_nulls(rows);
        }
        let middle = [
            &mut self.last_offset_delta,
            &mut self.base_sequence,
            &mut self.leader_epoch,
        ];
        for builder in middle.into_iter().flatten() {
            builder.append_nulls(rows);
        }
        for builder in [&mut self.attributes, &mut self.producer_epoch]
            .into_iter()
            .flatten()
        {
            builder.append_nulls(rows);
        }
    }

    fn finish(&mut self, at: usize) -> ArrayRef {
        /// The array of a builder, which is there for every projected column.
        macro_rules! array {
            ($field:ident) => {
                Arc::new(self.$field.get_or_insert_default().finish()) as ArrayRef
            };
        }
        match at {
            column::OFFSET => array!(offset),
            column::TIMESTAMP => array!(timestamp),
            column::KEY => array!(key),
            column::HEADERS => array!(headers),
            column::PAYLOAD => array!(payload),
            column::RECORD_COUNT => array!(record_count),
            column::TIMESTAMP_NS => array!(timestamp_ns),
            column::TIMESTAMP_MS => array!(timestamp_ms),
            column::BATCH_BASE_OFFSET => array!(base_offset),
            column::BATCH_LAST_OFFSET_DELTA => array!(last_offset_delta),
            column::BATCH_ATTRIBUTES => array!(attributes),
            column::BATCH_BASE_TIMESTAMP_MS => array!(base_timestamp_ms),
            column::BATCH_MAX_TIMESTAMP_MS => array!(max_timestamp_ms),
            column::PRODUCER_ID => array!(producer_id),
            column::PRODUCER_EPOCH => array!(producer_epoch),
            column::BASE_SEQUENCE => array!(base_sequence),
            column::LEADER_EPOCH => array!(leader_epoch),
            _ => array!(header_keys),
        }
    }
}

/// List lengths and nulls, as Arrow wants them.
#[derive(Debug)]
struct ListShape {
    ends: Vec<i32>,
    valid: NullBufferBuilder,
}

impl Default for ListShape {
    fn default() -> Self {
        Self {
            ends: vec![0],
            valid: NullBufferBuilder::new(0),
        }
    }
}

impl ListShape {
    fn push(&mut self, items: Option<usize>) {
        let end = self.ends.last().copied().unwrap_or_default();
        // `value_bytes` counts at least one for each item, and is kept below 2 GiB.
        let items_added = i32::try_from(items.unwrap_or_default()).unwrap_or_default();
        self.ends.push(end.saturating_add(items_added));
        self.valid.append(items.is_some());
    }

    fn finish(&mut self, item: Arc<arrow::datatypes::Field>, items: ArrayRef) -> ListArray {
        let ends = std::mem::replace(&mut self.ends, vec![0]);
        ListArray::new(
            item,
            OffsetBuffer::new(ScalarBuffer::from(ends)),
            items,
            self.valid.finish(),
        )
    }
}

#[derive(Debug, Default)]
struct HeadersBuilder {
    shape: ListShape,
    keys: StringBuilder,
    values: BinaryBuilder,
}

impl HeadersBuilder {
    fn push(&mut self, headers: &[RecordHeader<'_>]) -> usize {
        self.shape
            .push((!headers.is_empty()).then_some(headers.len()));
        let mut bytes = 0;
        for header in headers {
            let key = String::from_utf8_lossy(header.key);
            // One more for each, so that empty ones count too: their number is bounded by these bytes.
            bytes += 1 + key.len() + header.value.map_or(0, <[u8]>::len);
            self.keys.append_value(key);
            self.values.append_option(header.value);
        }
        bytes
    }

    fn finish(&mut self) -> ListArray {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(self.keys.finish()), Arc::new(self.values.finish())];
        let items = StructArray::new(header_fields(), columns, None);
        self.shape.finish(header_item(), Arc::new(items))
    }
}

#[derive(Debug, Default)]
struct HeaderKeysBuilder {
    shape: ListShape,
    keys: BinaryBuilder,
}

impl HeaderKeysBuilder {
    fn push(&mut self, headers: &[RecordHeader<'_>]) -> usize {
        if headers
            .iter()
            .all(|header| std::str::from_utf8(header.key).is_ok())
        {
            self.shape.push(None);
            return 0;
        }
        self.shape.push(Some(headers.len()));
        for header in headers {
            self.keys.append_value(header.key);
        }
        headers.iter().map(|header| header.key.len()).sum()
    }

    fn finish(&mut self) -> ListArray {
        let keys: ArrayRef = Arc::new(self.keys.finish());
        self.shape.finish(header_key_item(), keys)
    }
}

#[cfg(test)]
mod tests;
