//! Declared columns in cold files.
//!
//! A file that is written while its topic has a schema holds the declared columns and `_error` as they are computed from payloads,
//! behind all others: real columns for every reader of Parquet, with statistics. They hold what the schema said at that time. A
//! query reads them where that is what the topic's schema says now, and computes them from payloads elsewhere:
//!
//! - **COL-26**: a file names the schema that its declared columns were computed by, and the version of the computation. Both have to
//!   be those of the query, or the columns are as good as not there. One column alone cannot be told to be the same: a record that
//!   does not fit another column has NULL in it.
//!
//! Replay and merging never read them. A merged file has them anew, by the schema of its own time. Where a frame may be several rows
//! (`ndjson`) they are not stored.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, BinaryArray};
use arrow::datatypes::{Field, FieldRef, SchemaRef};
use arrow::record_batch::RecordBatch;
use basalt_schema::{ColumnType, DECODING, Decoder, ERROR_COLUMN, Format, TopicSchema};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use serde::{Deserialize, Serialize};

use crate::schema::{cold_schema, column, schema_with};
use crate::shred::{Inferred, ShreddedColumn, Shredder};

/// Under this name the footer holds the schema.
const METADATA_KEY: &str = "basalt.schema";

/// The declared columns of a cold file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedColumns {
    text: TypedText,
    fields: Vec<FieldRef>,
}

/// The same in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TypedText {
    /// [`DECODING`] at that time.
    decoding: u32,
    /// The text of the schema.
    schema: String,
    /// Name and type of each column, so that the file can be read whatever becomes of schemas.
    columns: Vec<(String, String)>,
}

impl TypedColumns {
    /// What `schema` makes of payloads; `None` where nothing is stored.
    fn of(schema: &TopicSchema) -> Option<Self> {
        if matches!(schema.format(), Format::Ndjson | Format::Raw) {
            return None;
        }
        let column =
            |column: &basalt_schema::Column| (column.name.clone(), column.data_type.to_string());
        Some(Self {
            text: TypedText {
                decoding: DECODING,
                schema: schema.text(),
                columns: schema.columns().iter().map(column).collect(),
            },
            fields: schema.fields().into_iter().map(Arc::new).collect(),
        })
    }

    /// The columns that a manifest names.
    ///
    /// # Errors
    /// A type is none, in words.
    pub(crate) fn from_text(text: TypedText) -> Result<Self, String> {
        let mut fields = Vec::with_capacity(text.columns.len() + 1);
        for (name, data_type) in &text.columns {
            let data_type = ColumnType::parse(data_type)?.arrow();
            fields.push(Arc::new(Field::new(name, data_type, true)));
        }
        let error = Field::new(ERROR_COLUMN, arrow::datatypes::DataType::Utf8, true);
        fields.push(Arc::new(error));
        Ok(Self { text, fields })
    }

    pub(crate) const fn text(&self) -> &TypedText {
        &self.text
    }

    /// Their fields, in order; the last one is `_error`.
    #[must_use]
    pub fn fields(&self) -> &[FieldRef] {
        &self.fields
    }

    /// Whether they hold what `schema` makes of payloads (COL-26).
    #[must_use]
    pub fn are_of(&self, schema: &TopicSchema) -> bool {
        self.text.decoding == DECODING && self.text.schema == schema.text()
    }
}

/// Makes the columns that a file has beside those of [`cold_schema`], slice by slice.
#[derive(Debug)]
pub(crate) struct MoreColumns {
    shredder: Option<Shredder>,
    typed: Option<(Arc<TypedColumns>, Decoder)>,
    schema: SchemaRef,
}

impl MoreColumns {
    pub(crate) fn new(inferred: Option<Inferred>, typed: Option<&Arc<TopicSchema>>) -> Self {
        let shredder = inferred.map(Shredder::new);
        let typed = typed.and_then(|schema| {
            let columns = TypedColumns::of(schema)?;
            let wanted = (0..columns.fields.len()).collect();
            Some((Arc::new(columns), Decoder::new(Arc::clone(schema), wanted)))
        });
        Self {
            schema: schema_with(
                shredder.as_ref().map(Shredder::columns),
                typed.as_ref().map(|(columns, _)| columns.as_ref()),
            ),
            shredder,
            typed,
        }
    }

    /// The file's schema.
    pub(crate) const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The shredded columns, and how many rows have no payload as it is.
    pub(crate) fn shredded(&self) -> (Option<Arc<[ShreddedColumn]>>, u64) {
        let columns = self.shredder.as_ref().map(Shredder::columns);
        let rows = self.shredder.as_ref().map_or(0, Shredder::shredded_rows);
        (columns.cloned(), rows)
    }

    /// The declared columns.
    pub(crate) fn typed(&self) -> Option<Arc<TypedColumns>> {
        self.typed.as_ref().map(|(columns, _)| Arc::clone(columns))
    }

    /// What the footer says of them.
    pub(crate) fn metadata(&self) -> Vec<KeyValue> {
        let shredding = self.shredder.as_ref().map(|s| s.shredding().to_metadata());
        let schema = self.typed.as_ref().map(|(columns, _)| {
            KeyValue::new(METADATA_KEY.to_owned(), columns.text.schema.clone())
        });
        shredding.into_iter().chain(schema).collect()
    }

    /// Hands `rows`, which have the schema of [`cold_schema`], to `write` with all columns of the file: in several pieces where the
    /// declared columns are much larger than the payloads (SCH-5).
    ///
    /// # Errors
    /// Those of `write`; [`ParquetError::ArrowError`] never, since arrays are made for their schema.
    pub(crate) fn extend(
        &mut self,
        rows: RecordBatch,
        mut write: impl FnMut(&RecordBatch) -> Result<(), ParquetError>,
    ) -> Result<(), ParquetError> {
        debug_assert_eq!(rows.schema(), cold_schema());
        let payloads = Arc::clone(rows.column(column::PAYLOAD));
        let rows = match &mut self.shredder {
            Some(shredder) => shredder.shred(&rows),
            None => rows,
        };
        let Some((_, decoder)) = &mut self.typed else {
            return write(&rows);
        };
        let mut from = 0;
        while from < rows.num_rows() {
            let (declared, to) = declared(decoder, payloads.as_binary(), from);
            let stored = rows.slice(from, to - from);
            let arrays = stored.columns().iter().cloned().chain(declared).collect();
            let piece = RecordBatch::try_new(Arc::clone(&self.schema), arrays)
                .map_err(|error| ParquetError::ArrowError(error.to_string()))?;
            write(&piece)?;
            from = to;
        }
        Ok(())
    }
}

/// The declared columns of the rows from `from` on, up to where they are enough for one batch.
fn declared(decoder: &mut Decoder, payloads: &BinaryArray, from: usize) -> (Vec<ArrayRef>, usize) {
    let mut row = from;
    while row < payloads.len() && !decoder.is_full() {
        decoder.push(payloads.is_valid(row).then(|| payloads.value(row)));
        row += 1;
    }
    (decoder.finish(), row)
}
