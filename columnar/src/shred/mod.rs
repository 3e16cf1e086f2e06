//! Lossless shredding: the fields of JSON payloads become Parquet columns, and the payload's bytes are rendered back from them.
//!
//! Machines write their JSON with one pen: key order, spacing, number and string forms repeat from record to record. When a segment
//! is cooled with [`crate::ColdConfig::shred_json`], a sample of its payloads decides which fields become columns, and of which
//! type ([`Form`]). Each payload is then read by a *template*: the text between the fields' values, with the columns that hold them.
//! Where the columns give back exactly the bytes that were produced, the row's `_payload` is left out, and its `_template` says by
//! which template to render it. All other rows keep their `_payload` as it is, and NULL in `_template`.
//!
//! # The file, for other programs
//!
//! Behind the columns of [`crate::cold_schema`] stand
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `_template` | Int32, null | the payload's template; NULL where the row has its payload in `_payload` (or has none) |
//! | `payload.<key>`, `payload.<key>.<key>` ... | by form | a field's value; NULL where the field is `null` or absent, or `_template` is NULL |
//!
//! Two fields whose names would be the same but for case get different ones by `#2`, `#3` ... at the end. The footer's key
//! `basalt.shredding` has one JSON object:
//!
//! ```text
//! {"version":1,
//!  "columns":[{"name":"payload.id","path":["id"],"form":"int"},{"name":"payload.user.name","path":["user","name"],"form":"string"}],
//!  "templates":[["{\"id\":",0,",\"user\":{\"name\":",1,"}}"],["{\"id\":",0,"}"]]}
//! ```
//!
//! A template is the payload in pieces: text stands for itself, a number for the value of the column at this place in `columns`,
//! rendered by its form; NULL is rendered as `null`:
//!
//! | form | type | rendered as |
//! |---|---|---|
//! | `bool` | Boolean | `true`, `false` |
//! | `int` | Int64 | decimal digits, `-` before them |
//! | `uint` | UInt64 | the same |
//! | `double` | Float64 | the fewest digits that give this value back, with a fraction or an exponent: `1.0`, `0.1`, `1e16` |
//! | `double_short` | Float64 | the same without an exponent, and without `.0`: `1`; never `-0` |
//! | `{"decimal":2}` | Decimal(18, 2) | always as many digits behind the point, 1 to 9: `12.50`, `-0.01` |
//! | `string` | Utf8 | in quotes; `"` and `\` behind `\`; `\b \f \n \r \t`; other control characters as `\u001f` |
//! | `ascii_string` | Utf8 | the same, and every character above `~` as `\u00e9`, beyond U+FFFF as a surrogate pair |
//! | `json` | Utf8 | as it is: the text of any JSON value, of arrays above all |
//!
//! So `payload.*` columns are the values of the rows that have a template, and only of these: a condition on a field is a condition on
//! its column or, where `_template IS NULL`, on the payload. Row groups have statistics on all of these columns (none on pages).
//! An object is a level of names where its keys are few and steady, `json` otherwise; so is a field whose values have several
//! forms. An absent field is an absent piece of the template, not a value.
//!
//! # Limits
//!
//! 256 columns a file, 8 levels of objects, keys of 128 bytes, payloads of 64 KiB, 256 templates or 256 KiB of them: what is beyond
//! keeps its payload, and so do halves of surrogate pairs, numbers of more than 4096 digits in a `json` value and values of more than
//! 200 levels, at which some readers stop, and a `-0` where a column holds numbers, which some read as 0 and some as -0.0. A field that
//! fewer than one in a hundred sampled payloads have gets no column. Memory is that of one slice of rows, three times (payloads,
//! columns, and payloads rendered for comparison), and the encoder's buffers for the columns.
//!
//! - **COL-24**: a row's payload is left out only after it was rendered from the very columns that are written, and was equal.
//! - **COL-25**: rendering is checked: a file whose templates, columns or types contradict each other is refused, never guessed at.

mod digits;
mod fields;
mod form;
mod infer;
mod render;
mod sample;
mod scan;
mod shredder;
mod strings;
mod template;
mod values;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use parquet::file::metadata::KeyValue;
use serde::{Deserialize, Serialize};

pub use form::Form;
pub(crate) use infer::{Inference, Inferred};
pub(crate) use render::Payloads;
pub(crate) use sample::{BYTES as SAMPLE_BYTES, PAYLOADS as SAMPLE_PAYLOADS, sample};
pub(crate) use shredder::Shredder;

use crate::schema::column;
use template::Template;

/// The name of the column that says by which template a row is rendered.
pub const TEMPLATE_COLUMN: &str = "_template";
/// What the names of shredded columns begin with.
pub(crate) const PREFIX: &str = "payload.";
/// The key of the footer's metadata.
pub(crate) const METADATA_KEY: &str = "basalt.shredding";
/// The version of the metadata that this build writes, and the only one it reads.
const VERSION: u32 = 1;

/// Columns of a file.
pub(crate) const MAX_COLUMNS: usize = 256;
/// Levels of objects whose fields are columns.
pub(crate) const MAX_DEPTH: usize = 8;
/// Bytes of a payload that is looked at.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// A field of JSON payloads that is a column of a cold file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShreddedColumn {
    /// The column's name.
    pub name: String,
    /// The keys that lead to the field, as they stand in the payload between their quotes.
    pub path: Vec<String>,
    /// How its values are stored and rendered.
    pub form: Form,
}

impl ShreddedColumn {
    /// The Arrow field of the column.
    #[must_use]
    pub fn field(&self) -> Field {
        Field::new(&self.name, self.form.data_type(), true)
    }
}

/// The field of [`TEMPLATE_COLUMN`].
pub(crate) fn template_field() -> Field {
    Field::new(TEMPLATE_COLUMN, DataType::Int32, true)
}

/// Why payloads cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShredError {
    /// The file does not say how, or not in a way that this build understands.
    #[error("the file's {METADATA_KEY} cannot be used: {what}")]
    Metadata {
        /// What is wrong.
        what: String,
    },
    /// A column is missing or of another type.
    #[error("the column {name} is not as expected")]
    Column {
        /// The column.
        name: String,
    },
    /// A row names a template that the file does not have.
    #[error("row {row} has template {found}, the file has {templates}")]
    Template {
        /// The row in the Arrow batch.
        row: usize,
        /// What it names.
        found: i32,
        /// How many there are.
        templates: usize,
    },
    /// The payloads of one Arrow batch pass 2 GiB: read fewer rows at a time.
    #[error("the payloads of {rows} rows pass the 2 GiB of an Arrow column")]
    Full {
        /// Rows in the Arrow batch.
        rows: usize,
    },
}

/// How the payloads of one cold file are rendered: its shredded columns and its templates.
///
/// ```text
/// let shredding = Shredding::from_metadata(footer.file_metadata().key_value_metadata())?;
/// match shredding {
///     // Read these columns with the others; then `_payload` is:
///     Some(shredding) => shredding.render(&rows)?,   // rows with `shredding.payload_columns()`
///     None => rows["_payload"],
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shredding {
    columns: Arc<[ShreddedColumn]>,
    templates: Vec<Template>,
}

#[derive(Serialize)]
struct MetadataOut<'a> {
    version: u32,
    columns: &'a [ShreddedColumn],
    templates: &'a [Template],
}

#[derive(Deserialize)]
struct MetadataIn {
    columns: Vec<ShreddedColumn>,
    templates: Vec<Template>,
}

impl Shredding {
    fn new(columns: Arc<[ShreddedColumn]>, templates: Vec<Template>) -> Self {
        Self { columns, templates }
    }

    /// Reads it from a footer's metadata; `None` for a file whose payloads are all in `_payload`.
    ///
    /// # Errors
    /// [`ShredError::Metadata`].
    pub fn from_metadata(pairs: Option<&Vec<KeyValue>>) -> Result<Option<Self>, ShredError> {
        let mut pairs = pairs.into_iter().flatten();
        pairs
            .find(|pair| pair.key == METADATA_KEY)
            .map(|pair| Self::parse(pair.value.as_deref().unwrap_or_default()))
            .transpose()
    }

    /// The same of the schema of a file that was opened: readers hand the footer's metadata on in it.
    ///
    /// # Errors
    /// [`ShredError::Metadata`].
    pub fn from_schema(schema: &Schema) -> Result<Option<Self>, ShredError> {
        let text = schema.metadata().get(METADATA_KEY);
        text.map(|text| Self::parse(text)).transpose()
    }

    fn parse(text: &str) -> Result<Self, ShredError> {
        let bad = |what: String| ShredError::Metadata { what };
        let json: serde_json::Value =
            serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        let version = json.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            return Err(bad(format!(
                "its version is {version:?}, this build reads {VERSION}"
            )));
        }
        let MetadataIn { columns, templates } =
            serde_json::from_value(json).map_err(|error| bad(error.to_string()))?;
        if let Some(column) = columns.iter().find(|column| !column.form.is_valid()) {
            return Err(bad(format!(
                "{} has the form {:?}",
                column.name, column.form
            )));
        }
        let highest = templates.iter().filter_map(Template::highest_column).max();
        if highest.is_some_and(|column| column as usize >= columns.len()) {
            return Err(bad(format!(
                "a template names column {}, there are {}",
                highest.unwrap_or_default(),
                columns.len()
            )));
        }
        Ok(Self::new(columns.into(), templates))
    }

    /// What [`Shredding::from_metadata`] reads.
    pub(crate) fn to_metadata(&self) -> KeyValue {
        let out = MetadataOut {
            version: VERSION,
            columns: &self.columns,
            templates: &self.templates,
        };
        // Strings and numbers only: this cannot fail. An empty value would be refused by every reader.
        let text = serde_json::to_string(&out).unwrap_or_default();
        KeyValue::new(METADATA_KEY.to_owned(), text)
    }

    /// The shredded columns, in the order in which they stand in the file behind [`TEMPLATE_COLUMN`].
    #[must_use]
    pub const fn columns(&self) -> &Arc<[ShreddedColumn]> {
        &self.columns
    }

    /// The positions in the file's schema of all that [`Shredding::render`] needs, ascending.
    #[must_use]
    pub fn payload_columns(&self) -> Vec<usize> {
        let shredded = column::COUNT..=column::COUNT + self.columns.len();
        std::iter::once(column::PAYLOAD).chain(shredded).collect()
    }
}
