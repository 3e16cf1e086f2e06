//! The builders of a table's columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, Int16Builder, Int32Builder, Int64Builder, ListArray,
    NullBufferBuilder, StringBuilder, StructArray, TimestampNanosecondBuilder, UInt64Builder,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use basalt_proto::batch::BatchHeader;
use basalt_proto::{ExpandedRecord, Offset, RecordHeader};

use crate::schema::{
    TIME_ZONE, column, header_fields, header_item, header_key_item, sql_timestamp_ns,
};

/// The builders of the projected columns.
#[derive(Debug, Default)]
pub(super) struct Columns {
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
    pub(super) unbatched_rows: usize,
}

/// Calls a method on each builder of a batch column that is projected.
macro_rules! each_batch_column {
    ($columns:ident, $method:ident($count:expr $(, $field:ident = $value:expr)*)) => {
        $(if let Some(builder) = &mut $columns.$field { builder.$method($value, $count); })*
    };
}

impl Columns {
    pub(super) fn new(projection: &[usize]) -> Self {
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
    pub(super) fn put_record(&mut self, record: &ExpandedRecord<'_>, timestamp_ns: u64) -> u64 {
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
    pub(super) fn put_shape(&mut self, offset: Offset, record_count: u32, timestamp_ns: u64) {
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
    pub(super) fn put_batch(&mut self, base_offset: Offset, header: &BatchHeader) {
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
    pub(super) fn close_batch_columns(&mut self) {
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

    pub(super) fn finish(&mut self, at: usize) -> ArrayRef {
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
