//! How the columns of a cold file are encoded.

use std::sync::Arc;

use arrow::datatypes::DataType;
use basalt_schema::{Format, TopicSchema};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;

use crate::schema::{cold_schema, column};
use crate::shred::{Form, Inferred, TEMPLATE_COLUMN};

/// False positives of the key's bloom filter.
const BLOOM_FALSE_POSITIVES: f64 = 0.01;

/// How the columns are written. `keys` is how many keys a row group may have, if there are any.
/// `shredded` and `typed` are the columns behind those of [`cold_schema`].
pub(crate) fn properties(
    zstd_level: i32,
    keys: Option<u64>,
    shredded: Option<&Inferred>,
    typed: Option<&Arc<TopicSchema>>,
) -> Result<WriterProperties, ParquetError> {
    let schema = cold_schema();
    let path = |at: usize| ColumnPath::from(schema.field(at).name().as_str());
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("basalt ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(zstd_level)?))
        .set_max_row_group_row_count(None)
        .set_max_row_group_bytes(None)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_sorting_columns(Some(vec![SortingColumn {
            column_idx: i32::try_from(column::OFFSET).unwrap_or_default(),
            descending: false,
            nulls_first: false,
        }]))
        .set_column_statistics_enabled(path(column::PARTITION), EnabledStatistics::Chunk)
        .set_column_dictionary_enabled(path(column::PAYLOAD), false);
    for at in [
        column::OFFSET,
        column::TIMESTAMP,
        column::TIMESTAMP_NS,
        column::TIMESTAMP_MS,
    ] {
        builder = builder
            .set_column_statistics_enabled(path(at), EnabledStatistics::Page)
            .set_column_dictionary_enabled(path(at), false)
            .set_column_encoding(path(at), Encoding::DELTA_BINARY_PACKED);
    }
    if let Some(keys) = keys {
        builder = builder
            .set_column_bloom_filter_enabled(path(column::KEY), true)
            .set_column_bloom_filter_fpp(path(column::KEY), BLOOM_FALSE_POSITIVES)
            .set_column_bloom_filter_max_ndv(path(column::KEY), keys);
    }
    if let Some(shredded) = shredded {
        builder = with_shredded(builder, shredded);
    }
    if let Some(typed) = typed {
        builder = with_typed(builder, typed);
    }
    Ok(builder.build())
}

/// Declared columns have statistics of pages and row groups, as far as they are no lists or structs; `_error` says of which row groups
/// every record fits.
///
/// Floating-point columns have none where payloads can hold NaN: Parquet leaves it out of the largest value, while it is larger than all
/// in SQL, so a row group would be passed over that has what is asked for.
fn with_typed(
    mut builder: WriterPropertiesBuilder,
    typed: &TopicSchema,
) -> WriterPropertiesBuilder {
    let has_nan = matches!(typed.format(), Format::Avro | Format::Protobuf);
    let is_bounded = |data_type: &DataType| {
        let may_be_nan = has_nan && data_type.is_floating();
        !data_type.is_nested() && !may_be_nan
    };
    for field in typed
        .fields()
        .iter()
        .filter(|field| is_bounded(field.data_type()))
    {
        let path = ColumnPath::from(field.name().as_str());
        builder = builder.set_column_statistics_enabled(path, EnabledStatistics::Page);
    }
    builder
}

/// Shredded columns have statistics of row groups: their values are not sorted, so those of pages would hardly prune. The count of
/// NULLs in the column of templates says whether they are those of all rows.
fn with_shredded(
    mut builder: WriterPropertiesBuilder,
    shredded: &Inferred,
) -> WriterPropertiesBuilder {
    builder = builder
        .set_column_statistics_enabled(ColumnPath::from(TEMPLATE_COLUMN), EnabledStatistics::Chunk);
    for (column, distinct) in shredded.columns.iter().zip(&shredded.distinct) {
        let path = ColumnPath::from(column.name.as_str());
        builder = builder.set_column_statistics_enabled(path.clone(), EnabledStatistics::Chunk);
        // Also what is written once a dictionary is full.
        let encoding = match column.form {
            Form::Bool => continue,
            Form::Int | Form::Uint | Form::Decimal(_) => Encoding::DELTA_BINARY_PACKED,
            Form::Double | Form::DoubleShort => Encoding::PLAIN,
            Form::String | Form::AsciiString | Form::Json => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        };
        builder = builder
            .set_column_dictionary_enabled(path.clone(), !distinct)
            .set_column_encoding(path, encoding);
    }
    builder
}
