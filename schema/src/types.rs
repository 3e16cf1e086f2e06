//! The types of columns, and how they are written: `int64`, `decimal(10, 2)`, `list<struct<sku: string, n: int32>>`.

use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Fields, TimeUnit};

/// Lists and structs within each other.
const MAX_NESTING: usize = 16;
/// Fields of all structs of one column.
const MAX_FIELDS: usize = 1_000;
/// Longest name of a column or field, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// What a column holds. Any value may be NULL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// True or false.
    Bool,
    /// 8 bits, signed.
    Int8,
    /// 16 bits, signed.
    Int16,
    /// 32 bits, signed.
    Int32,
    /// 64 bits, signed.
    Int64,
    /// 8 bits.
    UInt8,
    /// 16 bits.
    UInt16,
    /// 32 bits.
    UInt32,
    /// 64 bits.
    UInt64,
    /// IEEE 754, 32 bits: the nearest to the number that is written.
    Float32,
    /// IEEE 754, 64 bits: the nearest to the number that is written.
    Float64,
    /// Exactly so many digits, so many of them behind the point.
    Decimal {
        /// Digits, 1 to 38.
        precision: u8,
        /// Digits behind the point, at most all of them.
        scale: u8,
    },
    /// Text.
    String,
    /// The text of any JSON value, as it stands in the payload.
    Json,
    /// Bytes; in JSON, base64.
    Binary,
    /// A moment, in UTC.
    Timestamp(TimeScale),
    /// A day.
    Date,
    /// Values of one type, in order.
    List(Box<ColumnType>),
    /// Named values.
    Struct(Vec<StructField>),
}

/// A named part of a [`ColumnType::Struct`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StructField {
    /// Its name, in the payload too.
    pub name: String,
    /// What it holds.
    pub data_type: ColumnType,
}

/// The unit of a timestamp that is written as a number, and how finely it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeScale {
    /// Seconds; kept in milliseconds, since Parquet has no seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds: 1677 to 2262.
    Nanos,
}

impl TimeScale {
    /// How the column keeps it.
    pub(crate) const fn unit(self) -> TimeUnit {
        match self {
            Self::Seconds | Self::Millis => TimeUnit::Millisecond,
            Self::Micros => TimeUnit::Microsecond,
            Self::Nanos => TimeUnit::Nanosecond,
        }
    }

    /// Nanoseconds in one of the column's units.
    pub(crate) const fn unit_ns(self) -> i64 {
        match self {
            Self::Seconds | Self::Millis => 1_000_000,
            Self::Micros => 1_000,
            Self::Nanos => 1,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Millis => "ms",
            Self::Micros => "us",
            Self::Nanos => "ns",
        }
    }
}

impl ColumnType {
    /// Reads a type as it is written. Names of types may be in any case, and those of SQL are known too.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser {
            rest: text,
            fields: 0,
        };
        let parsed = parser.column_type(0)?;
        match parser.peek() {
            None => Ok(parsed),
            Some(_) => Err(format!("`{}` is left over behind the type", parser.rest)),
        }
    }

    /// The column's type in Arrow.
    #[must_use]
    pub fn arrow(&self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt8 => DataType::UInt8,
            Self::UInt16 => DataType::UInt16,
            Self::UInt32 => DataType::UInt32,
            Self::UInt64 => DataType::UInt64,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
            Self::Decimal { precision, scale } => {
                DataType::Decimal128(*precision, scale.cast_signed())
            }
            Self::String | Self::Json => DataType::Utf8,
            Self::Binary => DataType::Binary,
            Self::Timestamp(scale) => DataType::Timestamp(scale.unit(), Some("UTC".into())),
            Self::Date => DataType::Date32,
            Self::List(item) => DataType::List(item_field(item)),
            Self::Struct(fields) => DataType::Struct(struct_fields(fields)),
        }
    }

    /// What a value counts as among a payload's list items: itself, and each field of its structs, there or NULL.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Struct(fields) => {
                let fields = fields.iter().map(|field| field.data_type.weight());
                1 + fields.sum::<usize>()
            }
            _ => 1,
        }
    }

    /// Whether the type or one inside it is JSON text.
    pub(crate) fn holds_json(&self) -> bool {
        match self {
            Self::Json => true,
            Self::List(item) => item.holds_json(),
            Self::Struct(fields) => fields.iter().any(|field| field.data_type.holds_json()),
            _ => false,
        }
    }
}

/// Two fields of one struct that cannot be told apart by every reader of Parquet, anywhere in the type.
///
/// Types are not refused for it where they are read: cold files and manifests name such ones.
pub(crate) fn fields_of_one_name(data_type: &ColumnType) -> Option<(&str, &str)> {
    match data_type {
        ColumnType::List(item) => fields_of_one_name(item),
        ColumnType::Struct(fields) => {
            let mut names = HashMap::with_capacity(fields.len());
            fields.iter().find_map(|field| {
                let twin = names.insert(field.name.to_lowercase(), field.name.as_str());
                twin.map(|twin| (twin, field.name.as_str()))
                    .or_else(|| fields_of_one_name(&field.data_type))
            })
        }
        _ => None,
    }
}

/// The items of a list.
pub(crate) fn item_field(item: &ColumnType) -> FieldRef {
    Arc::new(Field::new("item", item.arrow(), true))
}

/// The fields of a struct.
pub(crate) fn struct_fields(fields: &[StructField]) -> Fields {
    let field = |field: &StructField| Field::new(&field.name, field.data_type.arrow(), true);
    fields.iter().map(field).collect()
}

impl Display for ColumnType {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Decimal { precision, scale } => {
                return write!(f, "decimal({precision}, {scale})");
            }
            Self::String => "string",
            Self::Json => "json",
            Self::Binary => "binary",
            Self::Timestamp(scale) => return write!(f, "timestamp({})", scale.name()),
            Self::Date => "date",
            Self::List(item) => return write!(f, "list<{item}>"),
            Self::Struct(fields) => {
                f.write_str("struct<")?;
                for (index, field) in fields.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{}: {}", quoted(&field.name), field.data_type)?;
                }
                return f.write_str(">");
            }
        };
        f.write_str(name)
    }
}

fn quoted(name: &str) -> String {
    match !name.is_empty() && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$' | '@')
}

struct Parser<'a> {
    rest: &'a str,
    /// Of structs, so far.
    fields: usize,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        found
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        match self.take(wanted) {
            true => Ok(()),
            false => Err(match self.peek() {
                Some(found) => format!("`{wanted}` is expected where `{found}` stands"),
                None => format!("`{wanted}` is missing at the end"),
            }),
        }
    }

    fn word(&mut self) -> &'a str {
        self.peek();
        let end = self.rest.find(|c| !is_plain(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        if !self.take('"') {
            name.push_str(self.word());
        } else {
            loop {
                let end = self
                    .rest
                    .find('"')
                    .ok_or("the quotes of a name do not end")?;
                name.push_str(&self.rest[..end]);
                self.rest = &self.rest[end + 1..];
                if !self.rest.starts_with('"') {
                    break;
                }
                name.push('"');
                self.rest = &self.rest[1..];
            }
        }
        check_name(&name)?;
        Ok(name)
    }

    fn number(&mut self) -> Result<u8, String> {
        let word = self.word();
        word.parse()
            .map_err(|_| format!("`{word}` is no number of digits"))
    }

    fn column_type(&mut self, nesting: usize) -> Result<ColumnType, String> {
        if nesting > MAX_NESTING {
            return Err(format!("types nest deeper than {MAX_NESTING}"));
        }
        let word = self.word();
        Ok(match word.to_ascii_lowercase().as_str() {
            "bool" | "boolean" => ColumnType::Bool,
            "int8" | "tinyint" => ColumnType::Int8,
            "int16" | "smallint" => ColumnType::Int16,
            "int32" | "int" | "integer" => ColumnType::Int32,
            "int64" | "bigint" | "long" => ColumnType::Int64,
            "uint8" => ColumnType::UInt8,
            "uint16" => ColumnType::UInt16,
            "uint32" => ColumnType::UInt32,
            "uint64" => ColumnType::UInt64,
            "float32" | "real" | "float" => ColumnType::Float32,
            "float64" | "double" => ColumnType::Float64,
            "decimal" | "numeric" => self.decimal()?,
            "string" | "text" | "varchar" => ColumnType::String,
            "json" => ColumnType::Json,
            "binary" | "bytes" | "bytea" => ColumnType::Binary,
            "timestamp" => ColumnType::Timestamp(self.time_scale()?),
            "date" => ColumnType::Date,
            "list" | "array" => {
                self.expect('<')?;
                let item = self.column_type(nesting + 1)?;
                self.expect('>')?;
                ColumnType::List(Box::new(item))
            }
            "struct" => ColumnType::Struct(self.struct_fields(nesting)?),
            "" => return Err("a type is missing".to_owned()),
            _ => {
                return Err(format!(
                    "`{word}` is no type; there are bool, int8 to int64, uint8 to uint64, float32, float64, decimal(precision, scale), string, json, binary, timestamp(s | ms | us | ns), date, list<type> and struct<name: type, ...>"
                ));
            }
        })
    }

    fn decimal(&mut self) -> Result<ColumnType, String> {
        self.expect('(')?;
        let precision = self.number()?;
        let scale = match self.take(',') {
            true => self.number()?,
            false => 0,
        };
        self.expect(')')?;
        if !(1..=DECIMAL128_MAX_PRECISION).contains(&precision) || scale > precision {
            return Err(format!(
                "decimal({precision}, {scale}): a decimal has 1 to {DECIMAL128_MAX_PRECISION} digits, and no more of them behind the point"
            ));
        }
        Ok(ColumnType::Decimal { precision, scale })
    }

    fn time_scale(&mut self) -> Result<TimeScale, String> {
        if !self.take('(') {
            return Ok(TimeScale::Nanos);
        }
        let word = self.word();
        let scale = match word {
            "s" => TimeScale::Seconds,
            "ms" => TimeScale::Millis,
            "us" => TimeScale::Micros,
            "ns" => TimeScale::Nanos,
            _ => return Err(format!("timestamp({word}): the unit is s, ms, us or ns")),
        };
        self.expect(')')?;
        Ok(scale)
    }

    fn struct_fields(&mut self, nesting: usize) -> Result<Vec<StructField>, String> {
        self.expect('<')?;
        let mut fields: Vec<StructField> = Vec::new();
        loop {
            let name = self.name()?;
            self.expect(':')?;
            let data_type = self.column_type(nesting + 1)?;
            if fields.iter().any(|field| field.name == name) {
                return Err(format!("the struct has two fields `{name}`"));
            }
            fields.push(StructField { name, data_type });
            self.fields += 1;
            if self.fields > MAX_FIELDS {
                return Err(format!("a column has at most {MAX_FIELDS} fields"));
            }
            if !self.take(',') {
                break;
            }
        }
        self.expect('>')?;
        Ok(fields)
    }
}

/// What a column or a field may be called.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a name is missing".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("a name has at most {MAX_NAME_BYTES} bytes"));
    }
    match name.chars().any(char::is_control) {
        true => Err("a name has no control characters".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_and_written_alike() {
        for (text, canonical) in [
            ("BIGINT", "int64"),
            ("decimal(10,2)", "decimal(10, 2)"),
            ("numeric(5)", "decimal(5, 0)"),
            ("timestamp", "timestamp(ns)"),
            ("timestamp(s)", "timestamp(s)"),
            ("array<text>", "list<string>"),
            (
                "struct< a : int , \"b c\"\"d\": list<struct<x: date>> >",
                "struct<a: int32, \"b c\"\"d\": list<struct<x: date>>>",
            ),
        ] {
            let parsed = ColumnType::parse(text).unwrap();
            assert_eq!(parsed.to_string(), canonical);
            assert_eq!(ColumnType::parse(canonical), Ok(parsed));
        }
    }

    #[test]
    fn what_is_no_type_is_said() {
        for (text, reason) in [
            ("", "missing"),
            ("int65", "no type"),
            ("decimal", "`(`"),
            ("decimal(39, 0)", "1 to 38"),
            ("decimal(3, 4)", "behind the point"),
            ("timestamp(h)", "unit"),
            ("list<int32", "`>`"),
            ("int32>", "left over"),
            ("struct<>", "name"),
            ("struct<a: int8, a: int8>", "two fields"),
            ("struct<\"a: int8>", "quotes"),
        ] {
            let error = ColumnType::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let deep = format!("{}int8{}", "list<".repeat(40), ">".repeat(40));
        assert!(ColumnType::parse(&deep).unwrap_err().contains("deeper"));
    }
}
