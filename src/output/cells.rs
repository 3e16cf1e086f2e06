//! Values as the text that a format shows.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringBuilder, StructArray};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::SqlFormat;

/// Characters of one cell of a table. Nobody reads more in one, and laying out a wider one takes time with its square.
const CELL_CHARS: usize = 4_000;

/// How values become text for one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// As they are.
    Exact,
    /// Binary values as text.
    Text,
    /// Binary values as text, and control characters escaped: a payload must not steer the terminal.
    Terminal,
    /// Binary values as text, and nested values as one text.
    Flat,
}

impl Shown {
    pub(super) fn of(format: SqlFormat) -> Self {
        match format {
            SqlFormat::Table => Self::Terminal,
            SqlFormat::Json => Self::Text,
            SqlFormat::Csv => Self::Flat,
            SqlFormat::Arrow => Self::Exact,
        }
    }

    pub(super) fn schema(self, schema: &SchemaRef) -> SchemaRef {
        if self == Self::Exact {
            return Arc::clone(schema);
        }
        let fields = schema.fields().iter().map(|field| match field.data_type() {
            nested if self == Self::Flat && nested.is_nested() => {
                Arc::new(Field::new(field.name(), DataType::Utf8, true))
            }
            _ => shown_field(field),
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    pub(super) fn batch(
        self,
        shown: &SchemaRef,
        batch: &RecordBatch,
    ) -> Result<RecordBatch, ArrowError> {
        if self == Self::Exact {
            return Ok(batch.clone());
        }
        let columns = batch.columns().iter().map(|column| {
            let column = self.array(column)?;
            if self == Self::Flat && column.data_type().is_nested() {
                flat(&column)
            } else {
                Ok(column)
            }
        });
        let columns = columns.collect::<Result<_, ArrowError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(shown), columns, &options)
    }

    fn array(self, array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        Ok(match array.data_type() {
            DataType::Binary => self.text(array.as_binary::<i32>().iter()),
            DataType::LargeBinary => self.text(array.as_binary::<i64>().iter()),
            DataType::BinaryView => self.text(array.as_binary_view().iter()),
            DataType::FixedSizeBinary(_) => self.text(array.as_fixed_size_binary().iter()),
            DataType::Utf8 if self == Self::Terminal => self.text(
                array
                    .as_string::<i32>()
                    .iter()
                    .map(|value| value.map(str::as_bytes)),
            ),
            DataType::List(field) => {
                let list = array.as_list::<i32>();
                let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
                let values = self.array(list.values())?;
                Arc::new(ListArray::try_new(
                    shown_field(field),
                    offsets,
                    values,
                    nulls,
                )?)
            }
            DataType::Struct(fields) => {
                let columns = array
                    .as_struct()
                    .columns()
                    .iter()
                    .map(|column| self.array(column));
                let columns = columns.collect::<Result<_, _>>()?;
                let fields = fields.iter().map(shown_field).collect::<Fields>();
                Arc::new(StructArray::try_new(
                    fields,
                    columns,
                    array.nulls().cloned(),
                )?)
            }
            DataType::Utf8 if self == Self::Terminal => self.text(
                array
                    .as_string::<i32>()
                    .iter()
                    .map(|value| value.map(str::as_bytes)),
            ),
            _ => Arc::clone(array),
        })
    }

    fn text<'a>(self, values: impl Iterator<Item = Option<&'a [u8]>>) -> ArrayRef {
        let mut text = StringBuilder::new();
        for value in values {
            if self == Self::Terminal
                && let Some(cut) = value.and_then(cut_cell)
            {
                text.append_value(cut);
                continue;
            }
            match value.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
                None => text.append_null(),
                Some(Ok(valid)) if self == Self::Terminal && valid.contains(char::is_control) => {
                    text.append_value(escape_controls(valid));
                }
                Some(Ok(valid)) => text.append_value(valid),
                Some(Err(bytes)) => text.append_value(hex(bytes)),
            }
        }
        Arc::new(text.finish())
    }
}

/// The beginning of a value that is too long for a cell, and how long it is.
fn cut_cell(bytes: &[u8]) -> Option<String> {
    if bytes.len() <= CELL_CHARS {
        return None;
    }
    let shown = match std::str::from_utf8(bytes) {
        Ok(text) => {
            let end = text.char_indices().nth(CELL_CHARS)?.0;
            escape_controls(&text[..end])
        }
        Err(_) => hex(&bytes[..CELL_CHARS / 2]),
    };
    Some(format!("{shown}... ({} bytes)", bytes.len()))
}

fn shown_field(field: &FieldRef) -> FieldRef {
    let shown = match field.data_type() {
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => DataType::Utf8,
        DataType::List(item) => DataType::List(shown_field(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(shown_field).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(Field::new(field.name(), shown, field.is_nullable()))
}

/// Nested values as Arrow displays them: CSV knows no other way.
fn flat(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(array, &options)?;
    let mut text = StringBuilder::new();
    for row in 0..array.len() {
        if array.is_null(row) {
            text.append_null();
        } else {
            text.append_value(formatter.value(row).to_string());
        }
    }
    Ok(Arc::new(text.finish()))
}

fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(2 + 2 * bytes.len());
    hex.push_str("\\x");
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_table_cuts_a_cell_that_is_too_long_and_says_so() {
        let long = "ä".repeat(super::CELL_CHARS + 1);
        let cut = super::cut_cell(long.as_bytes()).unwrap();
        assert!(cut.ends_with(&format!("ä... ({} bytes)", long.len())));
        assert_eq!(cut.matches('ä').count(), super::CELL_CHARS);
        assert_eq!(super::cut_cell(&[b'x'; super::CELL_CHARS]), None);
        assert!(
            super::cut_cell(&[0xff; 10_000])
                .unwrap()
                .starts_with("\\xff")
        );
    }
}
