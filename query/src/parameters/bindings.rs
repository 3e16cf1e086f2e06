//! Values for parameters: a column a parameter, a row a run of the statement.

use std::panic::catch_unwind;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::buffer::Buffer;
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{DataFusionError, ParamValues, ScalarValue};

use crate::QueryError;
use crate::edge::{plain_batch, plain_schema};

/// Rows of values that are bound at a time.
const ROW_LIMIT: usize = 1_000;
/// Bytes of values that are bound at a time: they travel in each call that uses them.
const BYTES_LIMIT: usize = 1 << 20;

/// Why values were not bound. All are the caller's to correct.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindingsError {
    #[error("the values to be bound have {found_bytes} bytes, the limit is {BYTES_LIMIT}")]
    TooLarge { found_bytes: usize },
    #[error("{found} rows of values are to be bound, the limit is {ROW_LIMIT}")]
    TooMany { found: usize },
    #[error("the values to be bound cannot be read: {source}")]
    Malformed {
        #[from]
        source: ArrowError,
    },
    #[error("the values to be bound are damaged")]
    Damaged,
    #[error("the values to be bound: {source}")]
    Type {
        #[source]
        source: QueryError,
    },
}

/// Values for the parameters of a statement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bindings(RecordBatch);

impl Bindings {
    /// The rows of `batches`, all of `schema`, in order.
    pub(crate) fn new(schema: &Schema, batches: &[RecordBatch]) -> Result<Self, BindingsError> {
        let found = batches
            .iter()
            .map(RecordBatch::num_rows)
            .fold(0, usize::saturating_add);
        if found > ROW_LIMIT {
            return Err(BindingsError::TooMany { found });
        }
        let plain = plain_schema(schema).map_err(|source| BindingsError::Type { source })?;
        // The names are the driver's, and may be missing: values count by their place.
        let plain = nullable(&plain);
        let batches = batches
            .iter()
            .map(|batch| plain_batch(batch, &plain))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| BindingsError::Type {
                source: source.into(),
            })?;
        Ok(Self(concat_batches(&plain, &batches)?))
    }

    /// As an Arrow IPC stream.
    pub(crate) fn to_ipc(&self) -> Result<Vec<u8>, BindingsError> {
        let mut writer = StreamWriter::try_new(Vec::new(), self.0.schema_ref())?;
        writer.write(&self.0)?;
        let bytes = writer.into_inner()?;
        within_limit(bytes.len())?;
        Ok(bytes)
    }

    /// From an Arrow IPC stream, which may have been made by anyone.
    pub(crate) fn from_ipc(bytes: &[u8]) -> Result<Self, BindingsError> {
        within_limit(bytes.len())?;
        // Arrow checks what it reads, but by panics too.
        catch_unwind(|| Self::decode(bytes)).unwrap_or(Err(BindingsError::Damaged))
    }

    fn decode(bytes: &[u8]) -> Result<Self, BindingsError> {
        // Unlike a reader this allocates for bytes that are there, and not for those that a length claims.
        let mut decoder = StreamDecoder::new();
        let mut rest = Buffer::from(bytes);
        let mut batches = Vec::new();
        while let Some(batch) = decoder.decode(&mut rest)? {
            batches.push(batch);
        }
        let schema = decoder.schema().ok_or(BindingsError::Damaged)?;
        decoder.finish()?;
        Self::new(&schema, &batches)
    }

    /// Parameters that have a value.
    pub(crate) fn column_count(&self) -> usize {
        self.0.num_columns()
    }

    /// Runs of the statement.
    pub(crate) fn row_count(&self) -> usize {
        self.0.num_rows()
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    /// The same values, where columns of no type but NULL have the type of `types`.
    pub(crate) fn with_null_types(&self, types: &[DataType]) -> Result<Self, DataFusionError> {
        let typed = |(column, data_type): (&ArrayRef, &DataType)| match column.data_type() {
            DataType::Null => cast(column, data_type),
            _ => Ok(Arc::clone(column)),
        };
        let columns: Vec<ArrayRef> = self
            .0
            .columns()
            .iter()
            .zip(types)
            .map(typed)
            .collect::<Result<_, _>>()?;
        let fields: Vec<_> = self
            .0
            .schema_ref()
            .fields()
            .iter()
            .zip(&columns)
            .map(|(field, column)| {
                field
                    .as_ref()
                    .clone()
                    .with_data_type(column.data_type().clone())
            })
            .collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.row_count()));
        Ok(Self(RecordBatch::try_new_with_options(
            Arc::new(Schema::new(fields)),
            columns,
            &options,
        )?))
    }

    /// The values of one run.
    pub(crate) fn row(&self, row: usize) -> Result<ParamValues, DataFusionError> {
        let values = self
            .0
            .columns()
            .iter()
            .map(|column| ScalarValue::try_from_array(column, row))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(values.into())
    }
}

fn within_limit(found_bytes: usize) -> Result<(), BindingsError> {
    if found_bytes > BYTES_LIMIT {
        return Err(BindingsError::TooLarge { found_bytes });
    }
    Ok(())
}

/// `schema` where every field may be NULL.
pub(crate) fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields: Vec<_> = fields
        .map(|field| field.as_ref().clone().with_nullable(true))
        .collect();
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, NullArray, StringArray};

    use super::*;

    fn bindings() -> Bindings {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "5' OR '1'='1"]));
        let nulls: ArrayRef = Arc::new(NullArray::new(2));
        let batch =
            RecordBatch::try_from_iter([("0", numbers), ("1", texts), ("2", nulls)]).unwrap();
        Bindings::new(&batch.schema(), &[batch]).unwrap()
    }

    #[test]
    fn values_survive_the_way_through_ipc() {
        let bindings = bindings();
        let bytes = bindings.to_ipc().unwrap();
        assert_eq!(Bindings::from_ipc(&bytes).unwrap(), bindings);
        // Not at every byte: a stream may end behind any whole message, and then has fewer rows.
        for end in 0..bytes.len() {
            if let Ok(read) = Bindings::from_ipc(&bytes[..end]) {
                assert!(read.row_count() == 0 || read == bindings, "cut at {end}");
            }
        }
    }

    #[test]
    fn too_many_rows_and_too_many_bytes_are_refused() {
        let rows: ArrayRef = Arc::new(NullArray::new(1_001));
        let batch = RecordBatch::try_from_iter([("0", rows)]).unwrap();
        assert!(matches!(
            Bindings::new(&batch.schema(), &[batch]),
            Err(BindingsError::TooMany { found: 1_001 })
        ));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(1 << 20)]));
        let batch = RecordBatch::try_from_iter([("0", text)]).unwrap();
        let large = Bindings::new(&batch.schema(), &[batch]).unwrap();
        assert!(matches!(
            large.to_ipc(),
            Err(BindingsError::TooLarge { .. })
        ));
    }

    #[test]
    fn only_a_column_without_a_type_takes_the_inferred_one() {
        let types = [DataType::Utf8, DataType::Int32, DataType::Int32];
        let typed = bindings().with_null_types(&types).unwrap();
        let found: Vec<_> = typed
            .schema()
            .fields()
            .iter()
            .map(|field| field.data_type().clone())
            .collect();
        assert_eq!(found, [DataType::Int64, DataType::Utf8, DataType::Int32]);
    }
}
