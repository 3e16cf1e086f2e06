//! Rows with columns become payloads again.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, Decimal128Array,
    Float64Array, Int32Array, Int64Array, NullBufferBuilder, StringViewArray, UInt64Array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, UInt64Type};
use arrow::record_batch::RecordBatch;

use super::form::{self, Form};
use super::template::{Part, Template};
use super::{ShredError, ShreddedColumn, Shredding, TEMPLATE_COLUMN, digits, strings};
use crate::schema::{cold_schema, column};

impl Shredding {
    /// The payloads of some rows of the file: what `_payload` would hold had they not been shredded. `rows` needs the columns of
    /// [`Shredding::payload_columns`], by name, in any order and with any others.
    ///
    /// # Errors
    /// [`ShredError::Column`], [`ShredError::Template`] for a damaged file; [`ShredError::Full`] for too many rows at a time.
    pub fn render(&self, rows: &RecordBatch) -> Result<BinaryArray, ShredError> {
        let full = |_| ShredError::Full {
            rows: rows.num_rows(),
        };
        let payloads = self.payloads(rows)?;
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(rows.num_rows() + 1);
        ends.push(0_i32);
        let mut valid = NullBufferBuilder::new(rows.num_rows());
        for row in 0..rows.num_rows() {
            valid.append(payloads.write(row, &mut bytes)?);
            ends.push(i32::try_from(bytes.len()).map_err(full)?);
        }
        Ok(BinaryArray::new(
            OffsetBuffer::new(ScalarBuffer::from(ends)),
            Buffer::from_vec(bytes),
            valid.finish(),
        ))
    }

    /// The same, to be rendered row by row to where they are wanted.
    ///
    /// # Errors
    /// [`ShredError::Column`].
    pub(crate) fn payloads(&self, rows: &RecordBatch) -> Result<Payloads<'_>, ShredError> {
        let payload_field = cold_schema();
        let raw = find(
            rows,
            payload_field.field(column::PAYLOAD).name(),
            &DataType::BinaryView,
        )?;
        let numbers = find(rows, TEMPLATE_COLUMN, &DataType::Int32)?;
        let columns = self.columns().iter();
        Ok(Payloads {
            templates: &self.templates,
            raw: raw.as_binary_view().clone(),
            numbers: numbers.as_primitive::<Int32Type>().clone(),
            columns: columns
                .map(|column| Rendered::of(column, rows))
                .collect::<Result<_, _>>()?,
        })
    }

    /// `rows` with [`Shredding::render`]'s result as `_payload`.
    ///
    /// # Errors
    /// As [`Shredding::render`].
    pub(crate) fn restore(&self, rows: &RecordBatch) -> Result<RecordBatch, ShredError> {
        let name = cold_schema().field(column::PAYLOAD).name().clone();
        let missing = |_| ShredError::Column { name: name.clone() };
        let payloads = self.render(rows)?;
        let at = rows.schema().index_of(&name).map_err(missing)?;
        let mut arrays = rows.columns().to_vec();
        arrays[at] = std::sync::Arc::new(payloads);
        RecordBatch::try_new(rows.schema(), arrays).map_err(missing)
    }
}

/// The payloads of some rows of a shredded file.
pub(crate) struct Payloads<'a> {
    templates: &'a [Template],
    raw: BinaryViewArray,
    /// Each row's template; NULL where the row has its payload in `raw`, or has none.
    numbers: Int32Array,
    columns: Vec<Rendered>,
}

impl Payloads<'_> {
    /// Appends a row's payload; `false` if it has none.
    ///
    /// # Errors
    /// [`ShredError::Template`].
    pub(crate) fn write(&self, row: usize, out: &mut Vec<u8>) -> Result<bool, ShredError> {
        if self.numbers.is_null(row) {
            let is_there = self.raw.is_valid(row);
            if is_there {
                out.extend_from_slice(self.raw.value(row));
            }
            return Ok(is_there);
        }
        let found = self.numbers.value(row);
        let template = usize::try_from(found)
            .ok()
            .and_then(|number| self.templates.get(number))
            .ok_or(ShredError::Template {
                row,
                found,
                templates: self.templates.len(),
            })?;
        for part in &template.0 {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                // Its number was checked when the templates were read.
                Part::Column(number) => self.columns[*number as usize].write(row, out),
            }
        }
        Ok(true)
    }
}

/// A column by its name as an array of `expected`, if it has such values: readers ask for them in several layouts.
fn find(rows: &RecordBatch, name: &str, expected: &DataType) -> Result<ArrayRef, ShredError> {
    let array = rows
        .column_by_name(name)
        .ok_or_else(|| ShredError::Column {
            name: name.to_owned(),
        })?;
    typed(array, name, expected)
}

/// The values of a column as an array of `expected`. Views of plain values point into these.
fn typed(array: &ArrayRef, name: &str, expected: &DataType) -> Result<ArrayRef, ShredError> {
    let missing = || ShredError::Column {
        name: name.to_owned(),
    };
    if array.data_type() == expected {
        return Ok(std::sync::Arc::clone(array));
    }
    if !is_layout_of(array.data_type(), expected) {
        return Err(missing());
    }
    cast(array, expected).map_err(|_| missing())
}

/// Whether an array of type `found` holds the same values as one of type `expected`, one for one.
fn is_layout_of(found: &DataType, expected: &DataType) -> bool {
    match (found, expected) {
        (DataType::Utf8 | DataType::LargeUtf8, DataType::Utf8View)
        | (DataType::Binary | DataType::LargeBinary, DataType::BinaryView) => true,
        (DataType::Dictionary(_, values), _) => {
            **values == *expected || is_layout_of(values, expected)
        }
        _ => false,
    }
}

/// The layout in which values of a form are rendered.
fn layout(form: Form) -> DataType {
    match form.data_type() {
        DataType::Utf8 => DataType::Utf8View,
        data_type => data_type,
    }
}

/// A column from which values are rendered.
pub(super) struct Rendered {
    nulls: Option<NullBuffer>,
    values: Values,
}

enum Values {
    Bool(BooleanArray),
    Int(Int64Array),
    Uint(UInt64Array),
    Double(Float64Array, Form),
    Decimal(Decimal128Array, u8),
    String { texts: StringViewArray, ascii: bool },
    Json(StringViewArray),
}

impl Rendered {
    fn of(column: &ShreddedColumn, rows: &RecordBatch) -> Result<Self, ShredError> {
        let array = find(rows, &column.name, &layout(column.form))?;
        Ok(Self::of_typed(column, &array))
    }

    /// The same of its values.
    pub(super) fn of_values(
        column: &ShreddedColumn,
        values: &ArrayRef,
    ) -> Result<Self, ShredError> {
        let array = typed(values, &column.name, &layout(column.form))?;
        Ok(Self::of_typed(column, &array))
    }

    fn of_typed(column: &ShreddedColumn, array: &ArrayRef) -> Self {
        let values = match column.form {
            Form::Bool => Values::Bool(array.as_boolean().clone()),
            Form::Int => Values::Int(array.as_primitive::<Int64Type>().clone()),
            Form::Uint => Values::Uint(array.as_primitive::<UInt64Type>().clone()),
            Form::Double | Form::DoubleShort => {
                Values::Double(array.as_primitive::<Float64Type>().clone(), column.form)
            }
            Form::Decimal(scale) => {
                Values::Decimal(array.as_primitive::<Decimal128Type>().clone(), scale)
            }
            Form::String | Form::AsciiString => Values::String {
                texts: array.as_string_view().clone(),
                ascii: column.form == Form::AsciiString,
            },
            Form::Json => Values::Json(array.as_string_view().clone()),
        };
        Self {
            nulls: array.nulls().cloned(),
            values,
        }
    }

    pub(super) fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    #[inline]
    pub(super) fn write(&self, row: usize, out: &mut Vec<u8>) {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return;
        }
        match &self.values {
            Values::Bool(array) => {
                let text: &[u8] = if array.value(row) { b"true" } else { b"false" };
                out.extend_from_slice(text);
            }
            Values::Int(array) => digits::write_int(array.value(row), out),
            Values::Uint(array) => digits::write_uint(array.value(row), out),
            // Writing to memory does not fail.
            Values::Double(array, form) => drop(form.write_double(array.value(row), out)),
            Values::Decimal(array, scale) => {
                drop(form::write_decimal(array.value(row), *scale, out));
            }
            Values::String { texts, ascii } => {
                if !strings::write_inline(texts.views()[row], out, *ascii) {
                    strings::write(texts.value(row), out, *ascii);
                }
            }
            Values::Json(texts) => out.extend_from_slice(texts.value(row).as_bytes()),
        }
    }
}
