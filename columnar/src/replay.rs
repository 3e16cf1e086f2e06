//! Rows become frames again.
//!
//! - **COL-6**: rows made of record frames give back the same bytes. Rows made of a batch frame give back a batch frame
//!   with the same records (offsets, stamps, null, empty and absent, headers in order) and the same header fields; only
//!   its compressed bytes may differ.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, ListArray, PrimitiveArray, StringArray,
};
use arrow::datatypes::{ArrowPrimitiveType, Int16Type, Int32Type, Int64Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::{
    BatchError, FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind, Offset, RecordHeader,
};

use crate::schema::{cold_schema, column};
use crate::shred::{Payloads, ShredError, Shredding};

/// A broker stamped the records: the bit in a batch's attributes.
pub(crate) const LOG_APPEND_TIME: i16 = 1 << 3;

/// The columns that frames are rebuilt from, when there are only record frames.
pub(crate) const RECORD_COLUMNS: [usize; 5] = [
    column::OFFSET,
    column::KEY,
    column::PAYLOAD,
    column::RECORD_COUNT,
    column::TIMESTAMP_NS,
];

/// The columns that frames are rebuilt from, when there are batch frames.
pub(crate) const ALL_COLUMNS: [usize; 17] = [
    column::OFFSET,
    column::KEY,
    column::HEADERS,
    column::PAYLOAD,
    column::RECORD_COUNT,
    column::TIMESTAMP_NS,
    column::TIMESTAMP_MS,
    column::BATCH_BASE_OFFSET,
    column::BATCH_LAST_OFFSET_DELTA,
    column::BATCH_ATTRIBUTES,
    column::BATCH_BASE_TIMESTAMP_MS,
    column::BATCH_MAX_TIMESTAMP_MS,
    column::PRODUCER_ID,
    column::PRODUCER_EPOCH,
    column::BASE_SEQUENCE,
    column::LEADER_EPOCH,
    column::HEADER_KEYS,
];

/// Why rows are not what [`crate::RowBuilder`] made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A column is missing or of another type.
    #[error("the column {name} is not as expected")]
    Column {
        /// The column.
        name: String,
    },
    /// A value is null, negative, too large or otherwise impossible.
    #[error("the row at offset {offset} has an impossible {name}")]
    Value {
        /// The row's offset.
        offset: i64,
        /// The column.
        name: String,
    },
    /// The rows of a batch do not follow each other.
    #[error("the batch at offset {base_offset} goes on with offset {found}, expected {expected}")]
    BatchRows {
        /// The batch's first offset.
        base_offset: i64,
        /// The offset that should follow.
        expected: i64,
        /// The offset that does; -1 for the end of the rows.
        found: i64,
    },
    /// Payloads that were shredded cannot be rendered.
    #[error("payloads cannot be rendered")]
    Payloads(#[from] ShredError),
    /// A batch cannot be written again.
    #[error("the batch at offset {base_offset} cannot be rebuilt")]
    Batch {
        /// The batch's first offset.
        base_offset: i64,
        /// Why.
        #[source]
        source: BatchError,
    },
}

/// Rebuilds frames from rows that come in order, in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct FrameRebuilder {
    open: Option<OpenBatch>,
    /// A payload that is rendered before it goes into a batch.
    payload: Vec<u8>,
}

/// A batch some of whose rows have come.
#[derive(Debug)]
struct OpenBatch {
    timestamp_ns: u64,
    base_offset: i64,
    last_offset_delta: i32,
    /// What replaces the records' stamps where a broker stamped the whole batch.
    stamp_ms: Option<i64>,
    writer: BatchWriter,
}

impl FrameRebuilder {
    /// Appends the frames of `rows` to `out`. A batch that is not complete yet is kept. With `shredding`, payloads are rendered
    /// by it; without, they are those of `_payload`.
    pub(crate) fn push(
        &mut self,
        rows: &RecordBatch,
        shredding: Option<&Shredding>,
        out: &mut Vec<u8>,
    ) -> Result<(), ReplayError> {
        let columns = RowColumns::of(rows, shredding)?;
        for row in 0..rows.num_rows() {
            let base = columns
                .batch
                .as_ref()
                .filter(|batch| batch.base_offset.is_valid(row));
            match (base, &self.open) {
                (Some(batch), _) => self.push_batch_row(&columns, batch, row, out)?,
                (None, None) => push_record_frame(&columns, row, out)?,
                (None, Some(open)) => return Err(open.broken(columns.offset.value(row))),
            }
        }
        Ok(())
    }

    /// The rows have ended.
    pub(crate) fn finish(self) -> Result<(), ReplayError> {
        self.open.map_or(Ok(()), |open| Err(open.broken(-1)))
    }

    fn push_batch_row(
        &mut self,
        columns: &RowColumns,
        batch: &BatchColumns,
        row: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ReplayError> {
        let offset = columns.offset.value(row);
        let mut open = match self.open.take() {
            Some(open) => open,
            None => batch.open(columns, row)?,
        };
        if batch.base_offset.value(row) != open.base_offset || offset != open.expected_offset() {
            return Err(open.broken(offset));
        }
        let stamp_ms = batch
            .timestamp_ms
            .is_valid(row)
            .then(|| batch.timestamp_ms.value(row));
        let stamp_ms = stamp_ms.ok_or_else(|| columns.bad(row, column::TIMESTAMP_MS))?;
        let headers = batch.headers(columns, row)?;
        let record = RecordToWrite {
            timestamp_ms: open.stamp_ms.unwrap_or(stamp_ms),
            key: columns.key(row),
            value: columns.payload.get(row, &mut self.payload)?,
            headers: &headers,
        };
        let unwritable = |source| ReplayError::Batch {
            base_offset: open.base_offset,
            source,
        };
        open.writer.push(&record).map_err(unwritable)?;
        if i64::from(open.writer.record_count()) <= i64::from(open.last_offset_delta) {
            self.open = Some(open);
            return Ok(());
        }
        open.write(columns, row, out)
    }
}

impl OpenBatch {
    fn expected_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(i64::from(self.writer.record_count()))
    }

    fn broken(&self, found: i64) -> ReplayError {
        ReplayError::BatchRows {
            base_offset: self.base_offset,
            expected: self.expected_offset(),
            found,
        }
    }

    fn write(
        mut self,
        columns: &RowColumns,
        row: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ReplayError> {
        let record_count = self.writer.record_count();
        let mut payload = Vec::with_capacity(self.writer.records_bytes() / 2);
        self.writer
            .finish(&mut payload)
            .map_err(|source| ReplayError::Batch {
                base_offset: self.base_offset,
                source,
            })?;
        let header = FrameHeader {
            kind: FrameKind::Batch,
            timestamp_ns: self.timestamp_ns,
            offset: Offset(self.base_offset.cast_unsigned()),
            key_bytes: 0,
            payload_bytes: u32::try_from(payload.len())
                .map_err(|_| columns.bad(row, column::PAYLOAD))?,
            record_count,
        };
        Frame {
            header,
            key: &[],
            payload: &payload,
        }
        .encode_into(out);
        Ok(())
    }
}

fn push_record_frame(
    columns: &RowColumns,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<(), ReplayError> {
    let key = columns.key(row).unwrap_or_default();
    let number = |bytes: usize, at| u32::try_from(bytes).map_err(|_| columns.bad(row, at));
    // The payload is rendered where it is to stand, so its length is known when it stands there.
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    out.extend_from_slice(key);
    let payload_start = out.len();
    if !columns.payload.write(row, out)? {
        return Err(columns.bad(row, column::PAYLOAD));
    }
    let header = FrameHeader {
        kind: FrameKind::Record,
        timestamp_ns: columns.timestamp_ns.value(row),
        offset: u64::try_from(columns.offset.value(row))
            .map(Offset)
            .map_err(|_| columns.bad(row, column::OFFSET))?,
        key_bytes: number(key.len(), column::KEY)?,
        payload_bytes: number(out.len() - payload_start, column::PAYLOAD)?,
        record_count: u32::try_from(columns.record_count.value(row))
            .map_err(|_| columns.bad(row, column::RECORD_COUNT))?,
    };
    out[start..start + FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
    Ok(())
}

/// The columns of some rows, checked for their types.
struct RowColumns<'a> {
    offset: PrimitiveArray<Int64Type>,
    key: BinaryViewArray,
    payload: PayloadColumn<'a>,
    record_count: PrimitiveArray<Int64Type>,
    timestamp_ns: PrimitiveArray<UInt64Type>,
    batch: Option<BatchColumns>,
}

/// Where payloads come from.
enum PayloadColumn<'a> {
    Stored(BinaryViewArray),
    Shredded(Payloads<'a>),
}

impl PayloadColumn<'_> {
    /// Appends a row's payload; `false` if it is null.
    fn write(&self, row: usize, out: &mut Vec<u8>) -> Result<bool, ReplayError> {
        match self {
            Self::Stored(array) if array.is_null(row) => Ok(false),
            Self::Stored(array) => {
                out.extend_from_slice(array.value(row));
                Ok(true)
            }
            Self::Shredded(payloads) => Ok(payloads.write(row, out)?),
        }
    }

    /// A row's payload, for which `scratch` may be needed; `None` if it is null.
    fn get<'a>(
        &'a self,
        row: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, ReplayError> {
        if let Self::Stored(array) = self {
            return Ok(array.is_valid(row).then(|| array.value(row)));
        }
        scratch.clear();
        Ok(self.write(row, scratch)?.then_some(scratch.as_slice()))
    }
}

struct BatchColumns {
    base_offset: PrimitiveArray<Int64Type>,
    last_offset_delta: PrimitiveArray<Int32Type>,
    attributes: PrimitiveArray<Int16Type>,
    base_timestamp_ms: PrimitiveArray<Int64Type>,
    max_timestamp_ms: PrimitiveArray<Int64Type>,
    producer_id: PrimitiveArray<Int64Type>,
    producer_epoch: PrimitiveArray<Int16Type>,
    base_sequence: PrimitiveArray<Int32Type>,
    leader_epoch: PrimitiveArray<Int32Type>,
    timestamp_ms: PrimitiveArray<Int64Type>,
    headers: ListArray,
    header_texts: StringArray,
    header_values: BinaryArray,
    header_keys: ListArray,
    header_key_bytes: BinaryArray,
}

fn name(at: usize) -> String {
    cold_schema().field(at).name().clone()
}

pub(crate) fn mistyped(at: usize) -> ReplayError {
    ReplayError::Column { name: name(at) }
}

fn find(rows: &RecordBatch, at: usize) -> Result<&ArrayRef, ReplayError> {
    rows.column_by_name(cold_schema().field(at).name())
        .ok_or_else(|| mistyped(at))
}

fn primitive<T: ArrowPrimitiveType>(
    rows: &RecordBatch,
    at: usize,
) -> Result<PrimitiveArray<T>, ReplayError> {
    find(rows, at)?
        .as_primitive_opt()
        .cloned()
        .ok_or_else(|| mistyped(at))
}

fn required<T: ArrowPrimitiveType>(
    rows: &RecordBatch,
    at: usize,
) -> Result<PrimitiveArray<T>, ReplayError> {
    primitive(rows, at).and_then(|array| {
        if array.null_count() == 0 {
            Ok(array)
        } else {
            Err(mistyped(at))
        }
    })
}

/// Bytes as they were written, or as views that a reader asked for.
fn binary_view(rows: &RecordBatch, at: usize) -> Result<BinaryViewArray, ReplayError> {
    let array = find(rows, at)?;
    match array.as_binary_opt::<i32>() {
        Some(bytes) => Ok(BinaryViewArray::from(bytes)),
        None => array
            .as_binary_view_opt()
            .cloned()
            .ok_or_else(|| mistyped(at)),
    }
}

fn list(rows: &RecordBatch, at: usize) -> Result<ListArray, ReplayError> {
    find(rows, at)?
        .as_list_opt()
        .cloned()
        .ok_or_else(|| mistyped(at))
}

impl<'a> RowColumns<'a> {
    fn of(rows: &RecordBatch, shredding: Option<&'a Shredding>) -> Result<Self, ReplayError> {
        Ok(Self {
            offset: required(rows, column::OFFSET)?,
            key: binary_view(rows, column::KEY)?,
            payload: match shredding {
                Some(shredding) => PayloadColumn::Shredded(shredding.payloads(rows)?),
                None => PayloadColumn::Stored(binary_view(rows, column::PAYLOAD)?),
            },
            record_count: required(rows, column::RECORD_COUNT)?,
            timestamp_ns: required(rows, column::TIMESTAMP_NS)?,
            batch: match find(rows, column::BATCH_BASE_OFFSET) {
                Ok(_) => Some(BatchColumns::of(rows)?),
                Err(_) => None,
            },
        })
    }

    fn key(&self, row: usize) -> Option<&[u8]> {
        self.key.is_valid(row).then(|| self.key.value(row))
    }

    fn bad(&self, row: usize, at: usize) -> ReplayError {
        ReplayError::Value {
            offset: self.offset.value(row),
            name: name(at),
        }
    }
}

impl BatchColumns {
    fn of(rows: &RecordBatch) -> Result<Self, ReplayError> {
        let headers = list(rows, column::HEADERS)?;
        let header_keys = list(rows, column::HEADER_KEYS)?;
        let mistyped_headers = || mistyped(column::HEADERS);
        let items = Arc::clone(headers.values());
        let items = items
            .as_struct_opt()
            .filter(|items| items.num_columns() == 2)
            .ok_or_else(mistyped_headers)?;
        Ok(Self {
            base_offset: primitive(rows, column::BATCH_BASE_OFFSET)?,
            last_offset_delta: primitive(rows, column::BATCH_LAST_OFFSET_DELTA)?,
            attributes: primitive(rows, column::BATCH_ATTRIBUTES)?,
            base_timestamp_ms: primitive(rows, column::BATCH_BASE_TIMESTAMP_MS)?,
            max_timestamp_ms: primitive(rows, column::BATCH_MAX_TIMESTAMP_MS)?,
            producer_id: primitive(rows, column::PRODUCER_ID)?,
            producer_epoch: primitive(rows, column::PRODUCER_EPOCH)?,
            base_sequence: primitive(rows, column::BASE_SEQUENCE)?,
            leader_epoch: primitive(rows, column::LEADER_EPOCH)?,
            timestamp_ms: primitive(rows, column::TIMESTAMP_MS)?,
            header_texts: items
                .column(0)
                .as_string_opt()
                .cloned()
                .ok_or_else(mistyped_headers)?,
            header_values: items
                .column(1)
                .as_binary_opt()
                .cloned()
                .ok_or_else(mistyped_headers)?,
            header_key_bytes: header_keys
                .values()
                .as_binary_opt()
                .cloned()
                .ok_or_else(|| mistyped(column::HEADER_KEYS))?,
            headers,
            header_keys,
        })
    }

    fn open(&self, columns: &RowColumns, row: usize) -> Result<OpenBatch, ReplayError> {
        fn value<T: ArrowPrimitiveType>(
            array: &PrimitiveArray<T>,
            columns: &RowColumns,
            row: usize,
            at: usize,
        ) -> Result<T::Native, ReplayError> {
            array
                .is_valid(row)
                .then(|| array.value(row))
                .ok_or_else(|| columns.bad(row, at))
        }
        let base_offset = self.base_offset.value(row);
        let attributes = value(&self.attributes, columns, row, column::BATCH_ATTRIBUTES)?;
        let base_timestamp_ms = value(
            &self.base_timestamp_ms,
            columns,
            row,
            column::BATCH_BASE_TIMESTAMP_MS,
        )?;
        let last_offset_delta = value(
            &self.last_offset_delta,
            columns,
            row,
            column::BATCH_LAST_OFFSET_DELTA,
        )?;
        if base_offset < 0 {
            return Err(columns.bad(row, column::BATCH_BASE_OFFSET));
        }
        let fields = BatchFields {
            base_offset,
            partition_leader_epoch: value(&self.leader_epoch, columns, row, column::LEADER_EPOCH)?,
            attributes,
            base_timestamp_ms: Some(base_timestamp_ms),
            max_timestamp_ms: Some(value(
                &self.max_timestamp_ms,
                columns,
                row,
                column::BATCH_MAX_TIMESTAMP_MS,
            )?),
            producer_id: value(&self.producer_id, columns, row, column::PRODUCER_ID)?,
            producer_epoch: value(&self.producer_epoch, columns, row, column::PRODUCER_EPOCH)?,
            base_sequence: value(&self.base_sequence, columns, row, column::BASE_SEQUENCE)?,
        };
        Ok(OpenBatch {
            timestamp_ns: columns.timestamp_ns.value(row),
            base_offset,
            last_offset_delta,
            stamp_ms: (attributes & LOG_APPEND_TIME != 0).then_some(base_timestamp_ms),
            writer: BatchWriter::new(fields).map_err(|source| ReplayError::Batch {
                base_offset,
                source,
            })?,
        })
    }

    fn headers<'a>(
        &'a self,
        columns: &RowColumns,
        row: usize,
    ) -> Result<Vec<RecordHeader<'a>>, ReplayError> {
        if self.headers.is_null(row) {
            return Ok(Vec::new());
        }
        let bounds = |list: &ListArray, at| {
            let (from, to) = (list.value_offsets()[row], list.value_offsets()[row + 1]);
            usize::try_from(from)
                .ok()
                .zip(usize::try_from(to).ok())
                .ok_or_else(|| columns.bad(row, at))
        };
        let (from, to) = bounds(&self.headers, column::HEADERS)?;
        let raw_from = if self.header_keys.is_valid(row) {
            let (raw_from, raw_to) = bounds(&self.header_keys, column::HEADER_KEYS)?;
            if raw_to.saturating_sub(raw_from) != to.saturating_sub(from) {
                return Err(columns.bad(row, column::HEADER_KEYS));
            }
            Some(raw_from)
        } else {
            None
        };
        let header = |at: usize| RecordHeader {
            key: match raw_from {
                Some(raw_from) => self.header_key_bytes.value(raw_from + (at - from)),
                None => self.header_texts.value(at).as_bytes(),
            },
            value: self
                .header_values
                .is_valid(at)
                .then(|| self.header_values.value(at)),
        };
        Ok((from..to).map(header).collect())
    }
}
