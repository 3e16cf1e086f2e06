//! A schema for payloads that have none.

use std::collections::{HashMap, HashSet};

use jiter::JsonValue as Json;

use crate::SchemaError;
use crate::columns::Proposal;
use crate::convert::{date, rfc3339_ns};
use crate::lines::{line_at, line_count};
use crate::topic_schema::{Format, MAX_COLUMNS, TopicSchema};
use crate::types::{ColumnType, StructField, TimeScale};

/// Lists and objects within each other that become lists and structs; deeper ones are JSON text.
const MAX_NESTING: usize = 4;
/// Fields of an object within a payload; one with more is JSON text.
const MAX_FIELDS: usize = 100;

/// A record to infer from.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// Its payload.
    pub payload: &'a [u8],
    /// How many records its frame stands for.
    pub record_count: u64,
}

/// Proposes a schema that all of `samples` fit which are JSON objects: `raw` if none is.
///
/// # Errors
/// [`SchemaError`] if the schema would be too large to be one.
pub fn infer<'a>(
    samples: impl IntoIterator<Item = Sample<'a>>,
) -> Result<TopicSchema, SchemaError> {
    let mut root = Shape::default();
    let (mut objects, mut has_lines) = (0_u64, false);
    for sample in samples {
        let rows = sample.record_count.max(1);
        if rows > 1 && line_count(sample.payload) != rows {
            continue;
        }
        let mut position = 0;
        for _ in 0..rows {
            let (row, next) = match rows {
                1 => (sample.payload, 0),
                _ => line_at(sample.payload, position),
            };
            position = next;
            if let Ok(object @ Json::Object(_)) = Json::parse(row, false) {
                root.see(&object, 0);
                objects += 1;
                has_lines |= rows > 1;
            }
        }
    }
    if objects == 0 || root.order.is_empty() {
        return TopicSchema::of_lines(Format::Raw, &[]);
    }
    let mut proposal = Proposal::default();
    for name in root.order.iter().take(MAX_COLUMNS) {
        if let Some(shape) = root.fields.get(name) {
            proposal.push(name, Some(shape.column_type(1)));
        }
    }
    let columns = proposal
        .finish()
        .map_err(|reason| SchemaError::Unreadable { reason })?;
    let format = if has_lines {
        Format::Ndjson
    } else {
        Format::Json
    };
    TopicSchema::of_lines(format, &columns)
}

/// What the values of one place in payloads were.
#[derive(Debug, Default)]
struct Shape {
    kinds: Kinds,
    fields: HashMap<String, Shape>,
    /// The fields' names, as they came up.
    order: Vec<String>,
    items: Option<Box<Shape>>,
}

/// Which kinds of values there were.
#[derive(Debug, Default, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "a set of kinds")]
struct Kinds {
    bool: bool,
    int: bool,
    uint: bool,
    /// Whole numbers of more than 64 bits.
    huge: bool,
    float: bool,
    date: bool,
    stamp: bool,
    text: bool,
    object: bool,
    list: bool,
}

impl Shape {
    fn see(&mut self, value: &Json<'_>, nesting: usize) {
        let kinds = &mut self.kinds;
        match value {
            Json::Null => {}
            Json::Bool(_) => kinds.bool = true,
            Json::Int(_) => kinds.int = true,
            Json::BigInt(number) if u64::try_from(number).is_ok() => kinds.uint = true,
            Json::BigInt(_) => kinds.huge = true,
            Json::Float(_) => kinds.float = true,
            Json::Str(text) if date(text.as_bytes()).is_some() => kinds.date = true,
            Json::Str(text) if is_stamp(text) => kinds.stamp = true,
            Json::Str(_) => kinds.text = true,
            Json::Object(fields) => {
                kinds.object = true;
                for (name, value) in fields.iter() {
                    if let Some(field) = self.field(name, nesting) {
                        field.see(value, nesting + 1);
                    }
                }
            }
            Json::Array(items) => {
                kinds.list = true;
                let shape = self.items.get_or_insert_default();
                if nesting < MAX_NESTING {
                    items.iter().for_each(|item| shape.see(item, nesting + 1));
                }
            }
        }
    }

    /// The shape of a field; `None` where there are too many to tell.
    fn field(&mut self, name: &str, nesting: usize) -> Option<&mut Shape> {
        let limit = if nesting == 0 {
            MAX_COLUMNS
        } else {
            MAX_FIELDS + 1
        };
        if nesting > MAX_NESTING {
            return None;
        }
        if !self.fields.contains_key(name) {
            if self.order.len() >= limit {
                return None;
            }
            self.order.push(name.to_owned());
        }
        Some(self.fields.entry(name.to_owned()).or_default())
    }

    fn column_type(&self, nesting: usize) -> ColumnType {
        let Kinds {
            bool,
            int,
            uint,
            huge,
            float,
            date,
            stamp,
            text,
            object,
            list,
        } = self.kinds;
        let number = int || uint || float;
        let string = date || stamp || text;
        match [bool, number, huge, string, object, list]
            .iter()
            .filter(|kind| **kind)
            .count()
        {
            1 => {}
            _ => return ColumnType::Json,
        }
        if bool {
            ColumnType::Bool
        } else if number {
            match (int, uint, float) {
                (_, _, true) => ColumnType::Float64,
                (_, false, _) => ColumnType::Int64,
                // Some may be negative, some are above 2^63.
                (true, true, _) => ColumnType::Decimal {
                    precision: 20,
                    scale: 0,
                },
                _ => ColumnType::UInt64,
            }
        } else if string {
            match (date, stamp, text) {
                (true, false, false) => ColumnType::Date,
                (false, true, false) => ColumnType::Timestamp(TimeScale::Nanos),
                _ => ColumnType::String,
            }
        } else if nesting > MAX_NESTING {
            ColumnType::Json
        } else if list {
            let item = self
                .items
                .as_deref()
                .map(|item| item.column_type(nesting + 1));
            ColumnType::List(Box::new(item.unwrap_or(ColumnType::Json)))
        } else {
            self.struct_type(nesting)
        }
    }

    fn struct_type(&self, nesting: usize) -> ColumnType {
        let is_named = |name: &String| crate::types::check_name(name).is_ok();
        let names: HashSet<_> = self.order.iter().map(|name| name.to_lowercase()).collect();
        if self.order.is_empty()
            || self.order.len() > MAX_FIELDS
            || !self.order.iter().all(is_named)
            || names.len() < self.order.len()
        {
            return ColumnType::Json;
        }
        let fields = self.order.iter().filter_map(|name| {
            Some(StructField {
                name: name.clone(),
                data_type: self.fields.get(name)?.column_type(nesting + 1),
            })
        });
        ColumnType::Struct(fields.collect())
    }
}

/// Whether a timestamp in ns can hold it.
fn is_stamp(text: &str) -> bool {
    rfc3339_ns(text).is_some_and(|ns| i64::try_from(ns).is_ok())
}
