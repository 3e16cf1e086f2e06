//! What leaves the engine: plain types, in batches of a bounded size.
//!
//! **QRY-2**: the schema a query announces is the schema of each of its batches, field by field, and has only types that
//! ADBC and JDBC drivers read: no views, dictionaries, runs or unions. A JSON union becomes its JSON text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::DataFusionError;
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use datafusion_functions_json::{JSON_UNION_DATA_TYPE, udfs};

use crate::QueryError;

/// `schema` with each type replaced by a plain one.
pub(crate) fn plain_schema(schema: &Schema) -> Result<SchemaRef, QueryError> {
    let fields = schema
        .fields()
        .iter()
        .map(|field| match column_type(field.data_type()) {
            Some(data_type) => Ok(Field::new(field.name(), data_type, field.is_nullable())),
            None => Err(QueryError::ColumnType {
                column: field.name().clone(),
                data_type: Box::new(field.data_type().clone()),
            }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// The plain type of a column; `None` where there is none.
pub(crate) fn column_type(data_type: &DataType) -> Option<DataType> {
    // Only at the top: inside another type nothing renders the union's text.
    if *data_type == *JSON_UNION_DATA_TYPE {
        return Some(DataType::Utf8);
    }
    plain_type(data_type)
}

fn plain_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => plain_type(value)?,
        DataType::RunEndEncoded(_, value) => plain_type(value.data_type())?,
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        // arrow-flight's encoder announces a LargeList as a List, so it must be one.
        DataType::List(item)
        | DataType::ListView(item)
        | DataType::LargeList(item)
        | DataType::LargeListView(item) => DataType::List(plain_field(item)?),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(plain_field(item)?, *size),
        DataType::Struct(fields) => DataType::Struct(
            fields
                .iter()
                .map(plain_field)
                .collect::<Option<Vec<_>>>()?
                .into(),
        ),
        DataType::Map(entries, sorted) => DataType::Map(plain_field(entries)?, *sorted),
        DataType::Union(..) => return None,
        other => other.clone(),
    })
}

fn plain_field(field: &FieldRef) -> Option<FieldRef> {
    let data_type = plain_type(field.data_type())?;
    Some(Arc::new(Field::new(
        field.name(),
        data_type,
        field.is_nullable(),
    )))
}

/// `batch` in the types of `schema`, which [`plain_schema`] made for it.
pub(crate) fn plain_batch(
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> Result<RecordBatch, DataFusionError> {
    let columns = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| plain_array(column, field.data_type()))
        .collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}

fn plain_array(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, DataFusionError> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let text;
    let array = if *array.data_type() == *JSON_UNION_DATA_TYPE {
        text = union_text(array)?;
        &text
    } else {
        array
    };
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    Ok(cast_with_options(array, data_type, &options)?)
}

fn union_text(array: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
    let udf = udfs::json_union_to_text_udf();
    let number_rows = array.len();
    udf.invoke_with_args(ScalarFunctionArgs {
        args: vec![ColumnarValue::Array(Arc::clone(array))],
        arg_fields: vec![Arc::new(Field::new(
            "json",
            array.data_type().clone(),
            true,
        ))],
        number_rows,
        return_field: Arc::new(Field::new("text", DataType::Utf8View, true)),
        config_options: Arc::new(ConfigOptions::default()),
    })?
    .into_array(number_rows)
}

/// Cuts `batch` by rows until each piece holds at most `max_bytes`, a single row apart.
pub(crate) fn split_by_bytes(batch: RecordBatch, max_bytes: usize, pieces: &mut Vec<RecordBatch>) {
    if batch.num_rows() <= 1 || slice_bytes(&batch) <= max_bytes {
        pieces.push(batch);
        return;
    }
    let half = batch.num_rows() / 2;
    split_by_bytes(batch.slice(0, half), max_bytes, pieces);
    split_by_bytes(
        batch.slice(half, batch.num_rows() - half),
        max_bytes,
        pieces,
    );
}

fn slice_bytes(batch: &RecordBatch) -> usize {
    batch
        .columns()
        .iter()
        .map(|column| {
            column
                .to_data()
                .get_slice_memory_size()
                .unwrap_or_else(|_| column.get_array_memory_size())
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, DictionaryArray, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn views_and_dictionaries_become_plain_and_nullability_stays() {
        let views: ArrayRef = Arc::new(StringViewArray::from(vec![Some("a"), None]));
        let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::from_iter(["x", "x"]));
        let schema = Schema::new(vec![
            Field::new("v", views.data_type().clone(), true),
            Field::new("d", dictionary.data_type().clone(), false),
        ]);
        let batch =
            RecordBatch::try_new(Arc::new(schema.clone()), vec![views, dictionary]).unwrap();
        let plain = plain_schema(&schema).unwrap();
        let expected = Schema::new(vec![
            Field::new("v", DataType::Utf8, true),
            Field::new("d", DataType::Utf8, false),
        ]);
        assert_eq!(*plain, expected);
        let batch = plain_batch(&batch, &plain).unwrap();
        assert_eq!(
            batch.column(0).as_ref(),
            &StringArray::from(vec![Some("a"), None])
        );
        assert_eq!(batch.column(1).as_ref(), &StringArray::from(vec!["x", "x"]));
    }

    #[test]
    fn a_union_inside_a_list_is_refused_by_name() {
        let item = Arc::new(Field::new_list_field(JSON_UNION_DATA_TYPE.clone(), true));
        let schema = Schema::new(vec![Field::new("all", DataType::List(item), true)]);
        assert!(
            matches!(plain_schema(&schema), Err(QueryError::ColumnType { column, .. }) if column == "all")
        );
    }

    #[test]
    fn a_batch_without_columns_keeps_its_rows() {
        let options = RecordBatchOptions::new().with_row_count(Some(5));
        let empty = Arc::new(Schema::empty());
        let batch =
            RecordBatch::try_new_with_options(Arc::clone(&empty), vec![], &options).unwrap();
        assert_eq!(plain_batch(&batch, &empty).unwrap().num_rows(), 5);
    }

    #[test]
    fn pieces_are_bounded_even_where_the_large_rows_lie_together() {
        let mut values = vec![vec![0_u8; 10]; 1000];
        values.extend([vec![1; 900], vec![2; 900], vec![3; 900], vec![4; 5000]]);
        let payload: ArrayRef = Arc::new(BinaryArray::from_iter_values(&values));
        let offset: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1004));
        let batch = RecordBatch::try_from_iter([("o", offset), ("p", payload)]).unwrap();
        let mut pieces = Vec::new();
        split_by_bytes(batch.clone(), 2000, &mut pieces);
        assert!(
            pieces
                .iter()
                .all(|piece| piece.num_rows() == 1 || slice_bytes(piece) <= 2000)
        );
        assert_eq!(
            arrow::compute::concat_batches(&batch.schema(), &pieces).unwrap(),
            batch
        );
    }
}
