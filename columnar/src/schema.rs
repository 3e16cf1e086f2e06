//! The columns of cold files, and of hot frames once they are Arrow.
//!
//! | # | column | type | meaning |
//! |---|---|---|---|
//! | 0 | `_partition` | Int32 | the partition |
//! | 1 | `_offset` | Int64 | the record's offset; for a record frame that spans several, its first |
//! | 2 | `_timestamp` | Timestamp(ns, UTC), null | the record's stamp; NULL when it is not in `0..2^63 - 1` ns |
//! | 3 | `_key` | Binary, null | the key; NULL when absent |
//! | 4 | `_headers` | List<Struct<key: Utf8, value: Binary null>>, null | a batch record's headers in order, duplicates kept; NULL when it has none |
//! | 5 | `_payload` | Binary, null | the payload; NULL only for a batch record without value |
//! | 6 | `_record_count` | Int64 | offsets the row spans: 1 but for record frames sent with more |
//! | 7 | `_timestamp_ns` | UInt64 | the frame header's stamp, as sent |
//! | 8 | `_timestamp_ms` | Int64, null | a batch record's stamp, as sent; NULL for a record frame |
//! | 9 | `_batch_base_offset` | Int64, null | the batch's first offset; NULL for a record frame |
//! | 10 | `_batch_last_offset_delta` | Int32, null | the rest describes the batch, equal in all its rows |
//! | 11 | `_batch_attributes` | Int16, null | |
//! | 12 | `_batch_base_timestamp_ms` | Int64, null | |
//! | 13 | `_batch_max_timestamp_ms` | Int64, null | |
//! | 14 | `_producer_id` | Int64, null | |
//! | 15 | `_producer_epoch` | Int16, null | |
//! | 16 | `_base_sequence` | Int32, null | |
//! | 17 | `_leader_epoch` | Int32, null | |
//! | 18 | `_header_keys` | List<Binary>, null | the header keys' bytes, where one of them is not UTF-8 (`_headers.key` then shows U+FFFD in their place) |
//!
//! The first seven are what SQL shows. The others are what replay needs to give back exact frames. A file whose JSON payloads are
//! shredded has more behind them, and payloads left out ([`crate::shred`]). One of a topic with a schema has the declared columns
//! behind all others (`typed`).

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use crate::shred::{self, ShreddedColumn};
use crate::typed::TypedColumns;

/// Positions of the columns.
pub(crate) mod column {
    pub(crate) const PARTITION: usize = 0;
    pub(crate) const OFFSET: usize = 1;
    pub(crate) const TIMESTAMP: usize = 2;
    pub(crate) const KEY: usize = 3;
    pub(crate) const HEADERS: usize = 4;
    pub(crate) const PAYLOAD: usize = 5;
    pub(crate) const RECORD_COUNT: usize = 6;
    pub(crate) const TIMESTAMP_NS: usize = 7;
    pub(crate) const TIMESTAMP_MS: usize = 8;
    pub(crate) const BATCH_BASE_OFFSET: usize = 9;
    pub(crate) const BATCH_LAST_OFFSET_DELTA: usize = 10;
    pub(crate) const BATCH_ATTRIBUTES: usize = 11;
    pub(crate) const BATCH_BASE_TIMESTAMP_MS: usize = 12;
    pub(crate) const BATCH_MAX_TIMESTAMP_MS: usize = 13;
    pub(crate) const PRODUCER_ID: usize = 14;
    pub(crate) const PRODUCER_EPOCH: usize = 15;
    pub(crate) const BASE_SEQUENCE: usize = 16;
    pub(crate) const LEADER_EPOCH: usize = 17;
    pub(crate) const HEADER_KEYS: usize = 18;
    pub(crate) const COUNT: usize = 19;
}

/// How many of the columns SQL shows: the first ones.
pub const SQL_COLUMN_COUNT: usize = 7;

/// The time zone of `_timestamp`.
pub(crate) const TIME_ZONE: &str = "UTC";

/// The fields of a header.
pub(crate) fn header_fields() -> Fields {
    Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Binary, true),
    ])
}

/// The items of `_headers`.
pub(crate) fn header_item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Struct(header_fields()), false))
}

/// The items of `_header_keys`.
pub(crate) fn header_key_item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Binary, false))
}

static COLD_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let must = |name: &str, kind: DataType| Field::new(name, kind, false);
    let may = |name: &str, kind: DataType| Field::new(name, kind, true);
    let fields = vec![
        must("_partition", DataType::Int32),
        must("_offset", DataType::Int64),
        may(
            "_timestamp",
            DataType::Timestamp(TimeUnit::Nanosecond, Some(TIME_ZONE.into())),
        ),
        may("_key", DataType::Binary),
        may("_headers", DataType::List(header_item())),
        may("_payload", DataType::Binary),
        must("_record_count", DataType::Int64),
        must("_timestamp_ns", DataType::UInt64),
        may("_timestamp_ms", DataType::Int64),
        may("_batch_base_offset", DataType::Int64),
        may("_batch_last_offset_delta", DataType::Int32),
        may("_batch_attributes", DataType::Int16),
        may("_batch_base_timestamp_ms", DataType::Int64),
        may("_batch_max_timestamp_ms", DataType::Int64),
        may("_producer_id", DataType::Int64),
        may("_producer_epoch", DataType::Int16),
        may("_base_sequence", DataType::Int32),
        may("_leader_epoch", DataType::Int32),
        may("_header_keys", DataType::List(header_key_item())),
    ];
    debug_assert_eq!(fields.len(), column::COUNT);
    Arc::new(Schema::new(fields))
});

/// The schema of cold files and of what [`crate::RowBuilder`] builds.
#[must_use]
pub fn cold_schema() -> SchemaRef {
    Arc::clone(&COLD_SCHEMA)
}

/// The schema of a cold file with these shredded and these declared columns; [`cold_schema`] for one without.
pub(crate) fn schema_with(
    shredded: Option<&Arc<[ShreddedColumn]>>,
    typed: Option<&TypedColumns>,
) -> SchemaRef {
    let shredded = shredded_schema(shredded);
    match typed {
        Some(typed) => {
            let fields = shredded.fields().iter().chain(typed.fields()).cloned();
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        }
        None => shredded,
    }
}

/// The schema of a cold file with these shredded columns and no declared ones.
pub(crate) fn shredded_schema(shredded: Option<&Arc<[ShreddedColumn]>>) -> SchemaRef {
    let Some(shredded) = shredded else {
        return cold_schema();
    };
    let mut fields = cold_schema().fields().to_vec();
    fields.push(Arc::new(shred::template_field()));
    fields.extend(shredded.iter().map(|column| Arc::new(column.field())));
    Arc::new(Schema::new(fields))
}

/// A stamp as SQL shows it: `None` when it is outside of `0..2^63 - 1` ns.
///
/// 2^63 - 1 itself is left out as well: readers of ns columns take it for infinity.
#[must_use]
pub fn sql_timestamp_ns(timestamp_ns: u64) -> Option<i64> {
    i64::try_from(timestamp_ns).ok().filter(|ns| *ns < i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_columns_come_first_and_in_order() {
        let schema = cold_schema();
        let names: Vec<_> = schema
            .fields()
            .iter()
            .take(SQL_COLUMN_COUNT)
            .map(|field| field.name().as_str())
            .collect();
        assert_eq!(
            names,
            [
                "_partition",
                "_offset",
                "_timestamp",
                "_key",
                "_headers",
                "_payload",
                "_record_count"
            ]
        );
        assert_eq!(schema.fields().len(), column::COUNT);
        assert_eq!(
            schema.index_of("_header_keys").unwrap(),
            column::HEADER_KEYS
        );
        assert_eq!(
            schema.index_of("_timestamp_ns").unwrap(),
            column::TIMESTAMP_NS
        );
        assert_eq!(
            schema.index_of("_leader_epoch").unwrap(),
            column::LEADER_EPOCH
        );
    }

    #[test]
    fn a_stamp_that_sql_cannot_show_is_null_and_never_wraps() {
        assert_eq!(sql_timestamp_ns(0), Some(0));
        assert_eq!(
            sql_timestamp_ns(1_700_000_000_123_456_789),
            Some(1_700_000_000_123_456_789)
        );
        assert_eq!(
            sql_timestamp_ns(i64::MAX.cast_unsigned() - 1),
            Some(i64::MAX - 1)
        );
        assert_eq!(sql_timestamp_ns(i64::MAX.cast_unsigned()), None);
        assert_eq!(sql_timestamp_ns(1 << 63), None);
        assert_eq!(sql_timestamp_ns(u64::MAX), None);
    }
}
