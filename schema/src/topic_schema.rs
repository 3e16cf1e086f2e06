//! A topic's schema: its text, its columns, and what to read payloads with.

use std::fmt::{Debug, Formatter};

use arrow::datatypes::{DataType, Field};
use serde::{Deserialize, Serialize};

use crate::SchemaError;
use crate::avro::Avro;
use crate::columns::{check_column_name, same_name};
use crate::framing::Framing;
use crate::path::Path;
use crate::protobuf::{self, Protobuf};
use crate::tree::Tree;
use crate::types::{ColumnType, fields_of_one_name};

pub use crate::columns::Column;

/// The column that says why a row's declared columns are NULL.
pub const ERROR_COLUMN: &str = "_error";
/// Columns of a schema, at most.
pub const MAX_COLUMNS: usize = 1_000;
/// Length of a schema's text, in bytes, at most: what the session protocol can carry.
pub const MAX_TEXT_BYTES: usize = 65_535;

/// What a topic's payloads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A JSON text each.
    Json,
    /// A JSON text a line: a frame of N records whose payload has N lines is N rows.
    Ndjson,
    /// An Avro datum each.
    Avro,
    /// A Protobuf message each.
    Protobuf,
    /// Anything: there are no columns.
    Raw,
}

impl Format {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Avro => "avro",
            Self::Protobuf => "protobuf",
            Self::Raw => "raw",
        }
    }
}

/// The schema of a topic. Two are equal if their texts are, spaces and defaults aside.
pub struct TopicSchema {
    text: SchemaText,
    columns: Vec<Column>,
    pub(crate) types: Vec<ColumnType>,
    pub(crate) tree: Tree,
    pub(crate) encoding: Encoding,
}

/// What payloads are read with.
#[derive(Debug)]
pub(crate) enum Encoding {
    Json,
    Avro(Box<Avro>),
    Protobuf(Box<Protobuf>),
    Raw,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SchemaText {
    format: Format,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    avro: Option<AvroText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protobuf: Option<ProtobufText>,
    /// Left out, those of the Avro record or of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    columns: Option<Vec<ColumnText>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnText {
    name: String,
    #[serde(rename = "type")]
    data_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AvroText {
    schema: serde_json::Value,
    #[serde(default, skip_serializing_if = "is_plain")]
    framing: Framing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtobufText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proto: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    descriptor_set: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "is_plain")]
    framing: Framing,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_plain(framing: &Framing) -> bool {
    *framing == Framing::Plain
}

impl TopicSchema {
    /// Reads the text of a schema and makes it ready to read payloads with.
    ///
    /// # Errors
    /// [`SchemaError`] names the field that is wrong.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        check_length(text.len())?;
        let text = serde_json::from_str(text).map_err(|error| SchemaError::Unreadable {
            reason: error.to_string(),
        })?;
        Self::from_text(text)
    }

    /// A JSON schema with these columns.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn json(columns: &[Column]) -> Result<Self, SchemaError> {
        Self::of_lines(Format::Json, columns)
    }

    /// A schema of `format`, which needs no more than its columns: [`Format::Json`], [`Format::Ndjson`] or [`Format::Raw`].
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of_lines(format: Format, columns: &[Column]) -> Result<Self, SchemaError> {
        let raw = format == Format::Raw && columns.is_empty();
        Self::from_text(SchemaText {
            format,
            avro: None,
            protobuf: None,
            columns: (!raw).then(|| columns.iter().map(ColumnText::of).collect()),
        })
    }

    /// This schema with other columns.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn with_columns(&self, columns: &[Column]) -> Result<Self, SchemaError> {
        Self::from_text(SchemaText {
            columns: Some(columns.iter().map(ColumnText::of).collect()),
            ..self.text.clone()
        })
    }

    fn from_text(mut text: SchemaText) -> Result<Self, SchemaError> {
        let encoding = encoding(&text)?;
        let columns = match (&text.columns, &encoding) {
            (Some(columns), _) => columns
                .iter()
                .enumerate()
                .map(|(index, column)| column.read(index))
                .collect::<Result<Vec<_>, _>>()?,
            (None, Encoding::Avro(avro)) => avro
                .columns()
                .map_err(|reason| SchemaError::field("avro.schema", reason))?,
            (None, Encoding::Protobuf(protobuf)) => protobuf
                .columns()
                .map_err(|reason| SchemaError::field("protobuf", reason))?,
            (None, Encoding::Raw) => Vec::new(),
            (None, Encoding::Json) => {
                return Err(SchemaError::field("columns", "there are none"));
            }
        };
        check_columns(&columns, &encoding)?;
        if let Encoding::Protobuf(protobuf) = &encoding
            && let Some(text) = &mut text.protobuf
        {
            text.message = Some(protobuf.message_name().to_owned());
        }
        text.columns = match encoding {
            Encoding::Raw => None,
            _ => Some(columns.iter().map(ColumnText::of).collect()),
        };
        let schema = Self {
            types: columns
                .iter()
                .map(|column| column.data_type.clone())
                .collect(),
            tree: Tree::new(columns.iter().map(|column| &column.path)),
            text,
            columns,
            encoding,
        };
        // With everything written out that was left to defaults.
        check_length(schema.text().len())?;
        Ok(schema)
    }

    /// What payloads are.
    #[must_use]
    pub fn format(&self) -> Format {
        self.text.format
    }

    /// The declared columns, in order.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Whether there is an `_error` column: there is one unless payloads are [`Format::Raw`].
    #[must_use]
    pub fn has_error_column(&self) -> bool {
        self.format() != Format::Raw
    }

    /// The declared columns as Arrow has them, and `_error` behind them.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let declared = self
            .columns
            .iter()
            .map(|column| Field::new(&column.name, column.data_type.arrow(), true));
        let error = Field::new(ERROR_COLUMN, DataType::Utf8, true);
        declared
            .chain(self.has_error_column().then_some(error))
            .collect()
    }

    /// Whether payloads are read in the same way, columns aside.
    pub(crate) fn reads_alike(&self, other: &Self) -> bool {
        let encoding = |text: &SchemaText| SchemaText {
            columns: None,
            ..text.clone()
        };
        encoding(&self.text) == encoding(&other.text)
    }

    /// The schema on one line, as settings hold it. Reading it gives an equal schema.
    #[must_use]
    pub fn text(&self) -> String {
        // Texts, numbers and lists always have a JSON form.
        serde_json::to_string(&self.text).unwrap_or_default()
    }

    /// The schema for people to read and change.
    #[must_use]
    pub fn pretty_text(&self) -> String {
        serde_json::to_string_pretty(&self.text).unwrap_or_default()
    }
}

impl PartialEq for TopicSchema {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Debug for TopicSchema {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TopicSchema").field(&self.text).finish()
    }
}

impl ColumnText {
    fn of(column: &Column) -> Self {
        Self {
            name: column.name.clone(),
            data_type: column.data_type.to_string(),
            path: (column.path != Path::key(&column.name)).then(|| column.path.to_string()),
        }
    }

    fn read(&self, index: usize) -> Result<Column, SchemaError> {
        let wrong = |field: &str, reason| {
            SchemaError::field(
                format!("columns[{index}].{field}"),
                match field {
                    "name" => reason,
                    _ => format!("{reason} (column `{}`)", self.name),
                },
            )
        };
        check_column_name(&self.name).map_err(|reason| wrong("name", reason))?;
        let path = match &self.path {
            None => Path::key(&self.name),
            Some(text) => Path::parse(text).map_err(|reason| wrong("path", reason))?,
        };
        let data_type =
            ColumnType::parse(&self.data_type).map_err(|reason| wrong("type", reason))?;
        Ok(Column {
            name: self.name.clone(),
            data_type,
            path,
        })
    }
}

fn check_length(found_bytes: usize) -> Result<(), SchemaError> {
    match found_bytes > MAX_TEXT_BYTES {
        true => Err(SchemaError::TooLong {
            found_bytes,
            limit_bytes: MAX_TEXT_BYTES,
        }),
        false => Ok(()),
    }
}

fn encoding(text: &SchemaText) -> Result<Encoding, SchemaError> {
    let only_for = |field: &str, format: Format| {
        SchemaError::field(
            field,
            format!("it goes with format `{}` only", format.name()),
        )
    };
    if text.avro.is_some() && text.format != Format::Avro {
        return Err(only_for("avro", Format::Avro));
    }
    if text.protobuf.is_some() && text.format != Format::Protobuf {
        return Err(only_for("protobuf", Format::Protobuf));
    }
    match (text.format, &text.avro, &text.protobuf) {
        (Format::Json | Format::Ndjson, ..) => Ok(Encoding::Json),
        (Format::Raw, ..) => match text.columns.as_deref().unwrap_or_default() {
            [] => Ok(Encoding::Raw),
            _ => Err(SchemaError::field("columns", "format `raw` has none")),
        },
        (Format::Avro, Some(avro), _) => {
            // The schema as it is, or as a text that holds it.
            let schema = match &avro.schema {
                serde_json::Value::String(text) if text.contains(['{', '[', '"']) => text.clone(),
                schema => schema.to_string(),
            };
            Avro::new(&schema, avro.framing)
                .map(|avro| Encoding::Avro(Box::new(avro)))
                .map_err(|reason| SchemaError::field("avro.schema", reason))
        }
        (Format::Protobuf, _, Some(text)) => {
            let pool = match (&text.proto, &text.descriptor_set) {
                (Some(proto), None) => protobuf::compile(proto)
                    .map_err(|reason| SchemaError::field("protobuf.proto", reason))?,
                (None, Some(set)) => protobuf::descriptor_set(set)
                    .map_err(|reason| SchemaError::field("protobuf.descriptor_set", reason))?,
                _ => {
                    let reason = "it needs either `proto` or `descriptor_set`";
                    return Err(SchemaError::field("protobuf", reason));
                }
            };
            Protobuf::new(&pool, text.message.as_deref(), text.framing)
                .map(|protobuf| Encoding::Protobuf(Box::new(protobuf)))
                .map_err(|reason| SchemaError::field("protobuf.message", reason))
        }
        (Format::Avro, None, _) => Err(SchemaError::field("avro", "it is missing")),
        (Format::Protobuf, _, None) => Err(SchemaError::field("protobuf", "it is missing")),
    }
}

fn check_columns(columns: &[Column], encoding: &Encoding) -> Result<(), SchemaError> {
    if columns.len() > MAX_COLUMNS {
        let reason = format!("there are {}, the limit is {MAX_COLUMNS}", columns.len());
        return Err(SchemaError::field("columns", reason));
    }
    let is_json = matches!(encoding, Encoding::Json);
    for (index, column) in columns.iter().enumerate() {
        let twin = columns[..index]
            .iter()
            .position(|earlier| same_name(&earlier.name, &column.name));
        if let Some(twin) = twin {
            return Err(SchemaError::field(
                format!("columns[{index}].name"),
                format!(
                    "`{}` is the name of columns[{twin}] too (case aside)",
                    column.name
                ),
            ));
        }
        if let Some((first, second)) = fields_of_one_name(&column.data_type) {
            return Err(SchemaError::field(
                format!("columns[{index}].type"),
                format!(
                    "the fields `{first}` and `{second}` of a struct have one name, case aside (column `{}`)",
                    column.name
                ),
            ));
        }
        if column.data_type.holds_json() && !is_json {
            return Err(SchemaError::field(
                format!("columns[{index}].type"),
                "json is the text of a JSON payload's value".to_owned(),
            ));
        }
    }
    Ok(())
}
