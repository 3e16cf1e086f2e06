//! Values to Arrow arrays.

use std::sync::Arc;

use arrow::array::{
    ArrayBuilder as _, ArrayRef, BinaryBuilder, BooleanBuilder, Decimal128Builder, ListArray,
    NullBufferBuilder, PrimitiveBuilder, StringBuilder, StructArray,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::types::{ColumnType, item_field, struct_fields};
use crate::value::Value;

/// The values of one column. A value of another type than the column's is NULL: `convert` lets none come here.
#[derive(Debug)]
pub(crate) enum ColumnBuilder {
    Bool(BooleanBuilder),
    Int8(PrimitiveBuilder<Int8Type>),
    Int16(PrimitiveBuilder<Int16Type>),
    Int32(PrimitiveBuilder<Int32Type>),
    Int64(PrimitiveBuilder<Int64Type>),
    UInt8(PrimitiveBuilder<UInt8Type>),
    UInt16(PrimitiveBuilder<UInt16Type>),
    UInt32(PrimitiveBuilder<UInt32Type>),
    UInt64(PrimitiveBuilder<UInt64Type>),
    Float32(PrimitiveBuilder<Float32Type>),
    Float64(PrimitiveBuilder<Float64Type>),
    Decimal(Decimal128Builder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Timestamp(PrimitiveBuilder<Int64Type>, ColumnType),
    Date(PrimitiveBuilder<Date32Type>),
    List {
        ends: Vec<i32>,
        valid: NullBufferBuilder,
        item: ColumnType,
        items: Box<ColumnBuilder>,
    },
    Struct {
        valid: NullBufferBuilder,
        data_type: ColumnType,
        fields: Vec<ColumnBuilder>,
    },
}

impl ColumnBuilder {
    pub(crate) fn new(data_type: &ColumnType) -> Self {
        match data_type {
            ColumnType::Bool => Self::Bool(BooleanBuilder::new()),
            ColumnType::Int8 => Self::Int8(PrimitiveBuilder::new()),
            ColumnType::Int16 => Self::Int16(PrimitiveBuilder::new()),
            ColumnType::Int32 => Self::Int32(PrimitiveBuilder::new()),
            ColumnType::Int64 => Self::Int64(PrimitiveBuilder::new()),
            ColumnType::UInt8 => Self::UInt8(PrimitiveBuilder::new()),
            ColumnType::UInt16 => Self::UInt16(PrimitiveBuilder::new()),
            ColumnType::UInt32 => Self::UInt32(PrimitiveBuilder::new()),
            ColumnType::UInt64 => Self::UInt64(PrimitiveBuilder::new()),
            ColumnType::Float32 => Self::Float32(PrimitiveBuilder::new()),
            ColumnType::Float64 => Self::Float64(PrimitiveBuilder::new()),
            ColumnType::Decimal { .. } => {
                Self::Decimal(Decimal128Builder::new().with_data_type(data_type.arrow()))
            }
            ColumnType::String | ColumnType::Json => Self::Text(StringBuilder::new()),
            ColumnType::Binary => Self::Bytes(BinaryBuilder::new()),
            ColumnType::Timestamp(_) => Self::Timestamp(PrimitiveBuilder::new(), data_type.clone()),
            ColumnType::Date => Self::Date(PrimitiveBuilder::new()),
            ColumnType::List(item) => Self::List {
                ends: vec![0],
                valid: NullBufferBuilder::new(0),
                item: item.as_ref().clone(),
                items: Box::new(Self::new(item)),
            },
            ColumnType::Struct(fields) => Self::Struct {
                valid: NullBufferBuilder::new(0),
                data_type: data_type.clone(),
                fields: fields
                    .iter()
                    .map(|field| Self::new(&field.data_type))
                    .collect(),
            },
        }
    }

    pub(crate) fn append(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::Bool(builder), Value::Bool(value)) => builder.append_value(value),
            (Self::Int8(builder), Value::Int(value)) => {
                builder.append_option(value.try_into().ok())
            }
            (Self::Int16(builder), Value::Int(value)) => {
                builder.append_option(value.try_into().ok());
            }
            (Self::Int32(builder), Value::Int(value)) => {
                builder.append_option(value.try_into().ok());
            }
            (Self::Int64(builder) | Self::Timestamp(builder, _), Value::Int(value)) => {
                builder.append_value(value);
            }
            (Self::Date(builder), Value::Int(value)) => {
                builder.append_option(value.try_into().ok());
            }
            (Self::UInt8(builder), Value::UInt(value)) => {
                builder.append_option(value.try_into().ok());
            }
            (Self::UInt16(builder), Value::UInt(value)) => {
                builder.append_option(value.try_into().ok());
            }
            (Self::UInt32(builder), Value::UInt(value)) => {
                builder.append_option(value.try_into().ok());
            }
            (Self::UInt64(builder), Value::UInt(value)) => builder.append_value(value),
            (Self::Float32(builder), Value::Float32(value)) => builder.append_value(value),
            (Self::Float64(builder), Value::Float64(value)) => builder.append_value(value),
            (Self::Decimal(builder), Value::Decimal(value)) => builder.append_value(value),
            (Self::Text(builder), Value::Text(text)) => builder.append_value(text),
            (Self::Bytes(builder), Value::Bytes(bytes)) => builder.append_value(bytes),
            (
                Self::List {
                    ends, valid, items, ..
                },
                Value::List(values),
            ) => {
                let end = ends.last().copied().unwrap_or_default();
                let end = i32::try_from(values.len())
                    .ok()
                    .and_then(|added| end.checked_add(added));
                // SCH-5: it is full some thousand payloads earlier.
                assert!(end.is_some(), "rows are taken from a decoder that is full");
                ends.push(end.unwrap_or_default());
                valid.append_non_null();
                for value in values {
                    items.append(value);
                }
            }
            (Self::Struct { valid, fields, .. }, Value::Struct(values)) => {
                valid.append_non_null();
                for (field, value) in fields.iter_mut().zip(values) {
                    field.append(value);
                }
            }
            (builder, _) => builder.append_null(),
        }
    }

    pub(crate) fn append_null(&mut self) {
        match self {
            Self::Bool(builder) => builder.append_null(),
            Self::Int8(builder) => builder.append_null(),
            Self::Int16(builder) => builder.append_null(),
            Self::Int32(builder) => builder.append_null(),
            Self::Int64(builder) | Self::Timestamp(builder, _) => builder.append_null(),
            Self::UInt8(builder) => builder.append_null(),
            Self::UInt16(builder) => builder.append_null(),
            Self::UInt32(builder) => builder.append_null(),
            Self::UInt64(builder) => builder.append_null(),
            Self::Float32(builder) => builder.append_null(),
            Self::Float64(builder) => builder.append_null(),
            Self::Decimal(builder) => builder.append_null(),
            Self::Text(builder) => builder.append_null(),
            Self::Bytes(builder) => builder.append_null(),
            Self::Date(builder) => builder.append_null(),
            Self::List { ends, valid, .. } => {
                ends.push(ends.last().copied().unwrap_or_default());
                valid.append_null();
            }
            Self::Struct { valid, fields, .. } => {
                valid.append_null();
                fields.iter_mut().for_each(Self::append_null);
            }
        }
    }

    /// About how many bytes the values so far take.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Bool(builder) => builder.len(),
            Self::Int8(builder) => 2 * builder.len(),
            Self::UInt8(builder) => 2 * builder.len(),
            Self::Int16(builder) => 3 * builder.len(),
            Self::UInt16(builder) => 3 * builder.len(),
            Self::Int32(builder) => 5 * builder.len(),
            Self::UInt32(builder) => 5 * builder.len(),
            Self::Float32(builder) => 5 * builder.len(),
            Self::Date(builder) => 5 * builder.len(),
            Self::Int64(builder) | Self::Timestamp(builder, _) => 9 * builder.len(),
            Self::UInt64(builder) => 9 * builder.len(),
            Self::Float64(builder) => 9 * builder.len(),
            Self::Decimal(builder) => 17 * builder.len(),
            Self::Text(builder) => 5 * builder.len() + builder.values_slice().len(),
            Self::Bytes(builder) => 5 * builder.len() + builder.values_slice().len(),
            Self::List { ends, items, .. } => 5 * ends.len() + items.held_bytes(),
            Self::Struct { valid, fields, .. } => {
                valid.len() + fields.iter().map(Self::held_bytes).sum::<usize>()
            }
        }
    }

    /// The array of the values so far; the builder begins anew.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bool(builder) => Arc::new(builder.finish()),
            Self::Int8(builder) => finished(builder),
            Self::Int16(builder) => finished(builder),
            Self::Int32(builder) => finished(builder),
            Self::Int64(builder) => finished(builder),
            Self::UInt8(builder) => finished(builder),
            Self::UInt16(builder) => finished(builder),
            Self::UInt32(builder) => finished(builder),
            Self::UInt64(builder) => finished(builder),
            Self::Float32(builder) => finished(builder),
            Self::Float64(builder) => finished(builder),
            Self::Decimal(builder) => finished(builder),
            Self::Date(builder) => finished(builder),
            Self::Text(builder) => Arc::new(builder.finish()),
            Self::Bytes(builder) => Arc::new(builder.finish()),
            Self::Timestamp(builder, data_type) => {
                let numbers = finished(builder);
                // From 64-bit numbers to timestamps nothing is computed, so nothing can fail.
                cast(&numbers, &data_type.arrow()).unwrap_or(numbers)
            }
            Self::List {
                ends,
                valid,
                item,
                items,
            } => {
                let ends = std::mem::replace(ends, vec![0]);
                Arc::new(ListArray::new(
                    item_field(item),
                    OffsetBuffer::new(ScalarBuffer::from(ends)),
                    items.finish(),
                    valid.finish(),
                ))
            }
            Self::Struct {
                valid,
                data_type,
                fields,
            } => {
                let arrays: Vec<ArrayRef> = fields.iter_mut().map(Self::finish).collect();
                let kinds = match data_type {
                    ColumnType::Struct(kinds) => struct_fields(kinds),
                    _ => struct_fields(&[]),
                };
                Arc::new(StructArray::new(kinds, arrays, valid.finish()))
            }
        }
    }
}

fn finished<T: ArrowPrimitiveType>(builder: &mut PrimitiveBuilder<T>) -> ArrayRef {
    Arc::new(builder.finish())
}
