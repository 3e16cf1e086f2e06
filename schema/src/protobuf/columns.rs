//! Columns for the fields of a message type.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use super::values::{TIMESTAMP, wrapped};
use crate::columns::{Column, Proposal};
use crate::types::{ColumnType, StructField, TimeScale};

/// Messages within messages, in columns that nobody has named.
const MAX_NESTING: usize = 8;
/// Fields of messages, in all of those columns.
const MAX_FIELDS: usize = 1_000;

pub(super) fn of_message(message: &MessageDescriptor) -> Result<Vec<Column>, String> {
    let mut proposal = Proposal::default();
    let mut fields = 0;
    for field in by_number(message) {
        proposal.push(field.name(), field_type(&field, 0, &mut fields));
    }
    proposal.finish()
}

fn by_number(message: &MessageDescriptor) -> Vec<FieldDescriptor> {
    let mut fields: Vec<_> = message.fields().collect();
    fields.sort_by_key(FieldDescriptor::number);
    fields
}

fn field_type(field: &FieldDescriptor, nesting: usize, fields: &mut usize) -> Option<ColumnType> {
    *fields += 1;
    if *fields > MAX_FIELDS {
        return None;
    }
    let value = kind_type(&field.kind(), nesting, fields)?;
    // A map's entries are a message of key and value.
    Some(match field.is_list() || field.is_map() {
        true => ColumnType::List(Box::new(value)),
        false => value,
    })
}

fn kind_type(kind: &Kind, nesting: usize, fields: &mut usize) -> Option<ColumnType> {
    Some(match kind {
        Kind::Double => ColumnType::Float64,
        Kind::Float => ColumnType::Float32,
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => ColumnType::Int32,
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => ColumnType::Int64,
        Kind::Uint32 | Kind::Fixed32 => ColumnType::UInt32,
        Kind::Uint64 | Kind::Fixed64 => ColumnType::UInt64,
        Kind::Bool => ColumnType::Bool,
        Kind::String | Kind::Enum(_) => ColumnType::String,
        Kind::Bytes => ColumnType::Binary,
        Kind::Message(message) if message.full_name() == TIMESTAMP => {
            ColumnType::Timestamp(TimeScale::Nanos)
        }
        Kind::Message(message) => {
            if let Some(value) = wrapped(message) {
                return kind_type(&value.kind(), nesting, fields);
            }
            if nesting == MAX_NESTING {
                return None;
            }
            let inner = by_number(message).into_iter().map(|field| {
                Some(StructField {
                    name: field.name().to_owned(),
                    data_type: field_type(&field, nesting + 1, fields)?,
                })
            });
            let inner: Vec<_> = inner.collect::<Option<_>>()?;
            // Arrow has no struct without fields that Parquet can hold.
            (!inner.is_empty()).then_some(ColumnType::Struct(inner))?
        }
    })
}
