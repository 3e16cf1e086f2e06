//! Values of a message, by path.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _,
    Value as Found,
};

use crate::convert::{Scalar, fit};
use crate::types::{ColumnType, StructField};
use crate::value::{ListItems, Misfit, Slot, Value};

/// The well-known type that is a timestamp.
pub(super) const TIMESTAMP: &str = "google.protobuf.Timestamp";

/// The one field of a well-known wrapper.
pub(super) fn wrapped(message: &MessageDescriptor) -> Option<FieldDescriptor> {
    let is_wrapper = matches!(
        message.full_name(),
        "google.protobuf.DoubleValue"
            | "google.protobuf.FloatValue"
            | "google.protobuf.Int64Value"
            | "google.protobuf.UInt64Value"
            | "google.protobuf.Int32Value"
            | "google.protobuf.UInt32Value"
            | "google.protobuf.BoolValue"
            | "google.protobuf.StringValue"
            | "google.protobuf.BytesValue"
    );
    is_wrapper.then(|| message.get_field(1)).flatten()
}

/// What `steps` lead to in `message`.
pub(super) fn at<'a>(
    message: &DynamicMessage,
    steps: &[String],
    wanted: &ColumnType,
    room: &mut ListItems,
) -> Slot<'a> {
    let Some((step, rest)) = steps.split_first() else {
        return message_value(message, wanted, room);
    };
    let Some(field) = message.descriptor().get_field_by_name(step) else {
        return Ok(Value::Null);
    };
    if field.supports_presence() && !message.has_field(&field) {
        return Ok(Value::Null);
    }
    let found = message.get_field(&field);
    below(&found, &field.kind(), rest, wanted, room)
}

fn below<'a>(
    found: &Found,
    kind: &Kind,
    steps: &[String],
    wanted: &ColumnType,
    room: &mut ListItems,
) -> Slot<'a> {
    let Some((step, rest)) = steps.split_first() else {
        return value(found, kind, wanted, room);
    };
    match found {
        Found::Message(message) => at(message, steps, wanted, room),
        Found::List(items) => {
            let item = step.parse().ok().and_then(|at: usize| items.get(at));
            item.map_or(Ok(Value::Null), |item| {
                below(item, kind, rest, wanted, room)
            })
        }
        Found::Map(entries) => {
            let entry = entries.iter().find(|(key, _)| key_text(key) == *step);
            entry.map_or(Ok(Value::Null), |(_, found)| {
                below(found, &entry_value_kind(kind), rest, wanted, room)
            })
        }
        _ => Ok(Value::Null),
    }
}

/// The kind of a map's values, from that of its entries.
fn entry_value_kind(kind: &Kind) -> Kind {
    match kind {
        Kind::Message(entry) if entry.is_map_entry() => entry.map_entry_value_field().kind(),
        other => other.clone(),
    }
}

fn value<'a>(found: &Found, kind: &Kind, wanted: &ColumnType, room: &mut ListItems) -> Slot<'a> {
    let scalar = match found {
        Found::Message(message) => return message_value(message, wanted, room),
        Found::List(items) => {
            let ColumnType::List(item) = wanted else {
                return Err(Misfit::not(wanted, "a list"));
            };
            room.add(items.len(), item.weight())?;
            let items = items.iter().map(|found| value(found, kind, item, room));
            return items.collect::<Result<_, _>>().map(Value::List);
        }
        Found::Map(entries) => {
            let ColumnType::List(item) = wanted else {
                return Err(Misfit::not(wanted, "a map"));
            };
            let ColumnType::Struct(fields) = item.as_ref() else {
                return Err(Misfit::not(item, "an entry of a map"));
            };
            room.add(entries.len(), item.weight())?;
            let kind = entry_value_kind(kind);
            // A map has no order of its own, rows have one.
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries
                .into_iter()
                .map(|(key, found)| map_entry(key, found, &kind, fields, room));
            return entries.collect::<Result<_, _>>().map(Value::List);
        }
        Found::Bool(value) => Scalar::Bool(*value),
        Found::I32(value) => Scalar::Int((*value).into()),
        Found::I64(value) => Scalar::Int(*value),
        Found::U32(value) => Scalar::UInt((*value).into()),
        Found::U64(value) => Scalar::UInt(*value),
        Found::F32(value) => Scalar::Float32(*value),
        Found::F64(value) => Scalar::Float64(*value),
        Found::String(text) => Scalar::Text(text.clone().into()),
        Found::Bytes(bytes) => Scalar::Bytes(bytes.to_vec().into()),
        Found::EnumNumber(number) => match (wanted, kind) {
            (ColumnType::String, Kind::Enum(symbols)) => {
                let symbol = symbols.get_value(*number);
                // Symbols may be added: an unknown one is its number.
                let text = symbol.map_or_else(|| number.to_string(), |s| s.name().to_owned());
                room.add_symbol(&text)?;
                Scalar::Text(text.into())
            }
            _ => Scalar::Int((*number).into()),
        },
    };
    fit(wanted, scalar)
}

fn message_value<'a>(
    message: &DynamicMessage,
    wanted: &ColumnType,
    room: &mut ListItems,
) -> Slot<'a> {
    let descriptor = message.descriptor();
    if let Some(field) = wrapped(&descriptor) {
        return value(&message.get_field(&field), &field.kind(), wanted, room);
    }
    match wanted {
        ColumnType::Struct(fields) => {
            let values = fields.iter().map(|field| {
                let step = std::slice::from_ref(&field.name);
                at(message, step, &field.data_type, room)
            });
            values.collect::<Result<_, _>>().map(Value::Struct)
        }
        ColumnType::Timestamp(_) if descriptor.full_name() == TIMESTAMP => {
            timestamp(message, wanted)
        }
        _ => Err(Misfit::not(wanted, descriptor.full_name())),
    }
}

fn timestamp<'a>(message: &DynamicMessage, wanted: &ColumnType) -> Slot<'a> {
    let number = |number| message.get_field_by_number(number);
    let seconds = number(1).and_then(|value| value.as_i64()).unwrap_or(0);
    let nanos = number(2).and_then(|value| value.as_i32()).unwrap_or(0);
    let too_large = || Misfit::not(wanted, &format!("{seconds} s and {nanos} ns"));
    // In ns it may not fit 64 bits where the column has a larger unit.
    let scalar = match nanos {
        0 => Scalar::Timestamp {
            units: seconds,
            unit_ns: 1_000_000_000,
        },
        _ => Scalar::Timestamp {
            units: seconds
                .checked_mul(1_000_000_000)
                .and_then(|ns| ns.checked_add(nanos.into()))
                .ok_or_else(too_large)?,
            unit_ns: 1,
        },
    };
    fit(wanted, scalar)
}

fn map_entry<'a>(
    key: &MapKey,
    found: &Found,
    kind: &Kind,
    fields: &[StructField],
    room: &mut ListItems,
) -> Slot<'a> {
    let values = fields.iter().map(|field| match field.name.as_str() {
        "key" => fit(&field.data_type, key_scalar(key)),
        "value" => value(found, kind, &field.data_type, room),
        _ => Ok(Value::Null),
    });
    values.collect::<Result<_, _>>().map(Value::Struct)
}

fn key_scalar(key: &MapKey) -> Scalar<'static> {
    match key {
        MapKey::Bool(value) => Scalar::Bool(*value),
        MapKey::I32(value) => Scalar::Int((*value).into()),
        MapKey::I64(value) => Scalar::Int(*value),
        MapKey::U32(value) => Scalar::UInt((*value).into()),
        MapKey::U64(value) => Scalar::UInt(*value),
        MapKey::String(text) => Scalar::Text(text.clone().into()),
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(text) => text.clone(),
    }
}
