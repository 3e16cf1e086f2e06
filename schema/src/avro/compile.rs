//! An Avro schema without references.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::{InnerDecimalSchema, UuidSchema};

use crate::types::{ColumnType, StructField, TimeScale};

/// Types within each other.
const MAX_NESTING: usize = 64;
/// Types in one schema, those of a named type counted wherever it is used.
const MAX_TYPES: usize = 10_000;

/// What the bytes of a value are.
#[derive(Debug, Clone)]
pub(super) enum AvroType {
    Null,
    Bool,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Fixed(usize),
    /// Its symbols.
    Enum(Vec<String>),
    Array(Box<AvroType>),
    Map(Box<AvroType>),
    Union(Vec<AvroType>),
    Record(Vec<(String, AvroType)>),
    Date,
    /// Of so many ns a unit.
    Timestamp(i64),
    /// Of so many digits behind the point; `Some` for a fixed number of bytes.
    Decimal {
        precision: usize,
        scale: u32,
        fixed: Option<usize>,
    },
    /// 16 bytes, shown as text.
    Uuid,
}

/// Makes `schema` into a type.
pub(super) fn compile(schema: &Schema) -> Result<AvroType, String> {
    let mut compiler = Compiler {
        named: HashMap::new(),
        types: 0,
    };
    compiler.compile(schema, None, 0)
}

struct Compiler {
    /// Types whose definition has ended, by full name.
    named: HashMap<String, AvroType>,
    types: usize,
}

impl Compiler {
    fn count(&mut self, types: usize) -> Result<(), String> {
        self.types += types;
        match self.types > MAX_TYPES {
            true => Err(format!("it has more than {MAX_TYPES} types")),
            false => Ok(()),
        }
    }

    fn compile(
        &mut self,
        schema: &Schema,
        namespace: Option<&str>,
        nesting: usize,
    ) -> Result<AvroType, String> {
        if nesting > MAX_NESTING {
            return Err(format!("types nest deeper than {MAX_NESTING}"));
        }
        self.count(1)?;
        let decimal_scale =
            |scale: usize| u32::try_from(scale).map_err(|_| "a decimal's scale is too large");
        Ok(match schema {
            Schema::Null => AvroType::Null,
            Schema::Boolean => AvroType::Bool,
            Schema::Int | Schema::TimeMillis => AvroType::Int,
            Schema::Long | Schema::TimeMicros => AvroType::Long,
            Schema::Float => AvroType::Float,
            Schema::Double => AvroType::Double,
            Schema::Bytes | Schema::BigDecimal => AvroType::Bytes,
            Schema::String | Schema::Uuid(UuidSchema::String) => AvroType::String,
            Schema::Uuid(UuidSchema::Fixed(fixed)) => self.name(
                fixed.name.fully_qualified_name(namespace).to_string(),
                AvroType::Uuid,
            ),
            Schema::Uuid(UuidSchema::Bytes) => AvroType::Bytes,
            Schema::Date => AvroType::Date,
            Schema::TimestampMillis | Schema::LocalTimestampMillis => {
                AvroType::Timestamp(1_000_000)
            }
            Schema::TimestampMicros | Schema::LocalTimestampMicros => AvroType::Timestamp(1_000),
            Schema::TimestampNanos | Schema::LocalTimestampNanos => AvroType::Timestamp(1),
            Schema::Fixed(fixed) | Schema::Duration(fixed) => self.name(
                fixed.name.fully_qualified_name(namespace).to_string(),
                AvroType::Fixed(fixed.size),
            ),
            Schema::Decimal(decimal) => {
                let scale = decimal_scale(decimal.scale)?;
                let precision = decimal.precision;
                match &decimal.inner {
                    InnerDecimalSchema::Bytes => AvroType::Decimal {
                        precision,
                        scale,
                        fixed: None,
                    },
                    InnerDecimalSchema::Fixed(fixed) => self.name(
                        fixed.name.fully_qualified_name(namespace).to_string(),
                        AvroType::Decimal {
                            precision,
                            scale,
                            fixed: Some(fixed.size),
                        },
                    ),
                }
            }
            Schema::Enum(symbols) => self.name(
                symbols.name.fully_qualified_name(namespace).to_string(),
                AvroType::Enum(symbols.symbols.clone()),
            ),
            Schema::Array(array) => AvroType::Array(Box::new(self.compile(
                &array.items,
                namespace,
                nesting + 1,
            )?)),
            Schema::Map(map) => AvroType::Map(Box::new(self.compile(
                &map.types,
                namespace,
                nesting + 1,
            )?)),
            Schema::Union(union) => {
                let variants = union.variants().iter();
                AvroType::Union(
                    variants
                        .map(|variant| self.compile(variant, namespace, nesting + 1))
                        .collect::<Result<_, _>>()?,
                )
            }
            Schema::Record(record) => {
                let name = record.name.fully_qualified_name(namespace);
                let fields = record.fields.iter().map(|field| {
                    let compiled = self.compile(&field.schema, name.namespace(), nesting + 1)?;
                    Ok((field.name.clone(), compiled))
                });
                let record = AvroType::Record(fields.collect::<Result<_, String>>()?);
                self.name(name.to_string(), record)
            }
            Schema::Ref { name } => {
                let name = name.fully_qualified_name(namespace).to_string();
                let named = self.named.get(&name).cloned().ok_or_else(|| {
                    format!("{name} holds itself: values of it nest without an end, which columns cannot")
                })?;
                self.count(named.count())?;
                if nesting + named.nesting() > MAX_NESTING {
                    return Err(format!("types nest deeper than {MAX_NESTING}"));
                }
                named
            }
        })
    }

    fn name(&mut self, name: String, named: AvroType) -> AvroType {
        self.named.insert(name, named.clone());
        named
    }
}

impl AvroType {
    fn inner(&self) -> Vec<&Self> {
        match self {
            Self::Array(inner) | Self::Map(inner) => vec![inner.as_ref()],
            Self::Union(variants) => variants.iter().collect(),
            Self::Record(fields) => fields.iter().map(|(_, field)| field).collect(),
            _ => Vec::new(),
        }
    }

    fn count(&self) -> usize {
        1 + self.inner().into_iter().map(Self::count).sum::<usize>()
    }

    fn nesting(&self) -> usize {
        let inner = self.inner().into_iter().map(Self::nesting).max();
        inner.map_or(0, |inner| inner + 1)
    }

    /// Whether values of it take no bytes.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Null | Self::Fixed(0) => true,
            Self::Decimal { fixed, .. } => *fixed == Some(0),
            Self::Record(fields) => fields.iter().all(|(_, field)| field.is_empty()),
            _ => false,
        }
    }

    /// The column that holds its values as they are.
    pub(super) fn column_type(&self) -> Option<ColumnType> {
        Some(match self {
            Self::Null => return None,
            Self::Bool => ColumnType::Bool,
            Self::Int => ColumnType::Int32,
            Self::Long => ColumnType::Int64,
            Self::Float => ColumnType::Float32,
            Self::Double => ColumnType::Float64,
            Self::Bytes | Self::Fixed(_) => ColumnType::Binary,
            Self::String | Self::Enum(_) | Self::Uuid => ColumnType::String,
            Self::Array(items) => ColumnType::List(Box::new(items.column_type()?)),
            Self::Map(values) => ColumnType::List(Box::new(ColumnType::Struct(vec![
                field("key", ColumnType::String),
                field("value", values.column_type()?),
            ]))),
            Self::Union(variants) => {
                let mut values = variants.iter().filter(|value| !matches!(value, Self::Null));
                match (values.next(), values.next()) {
                    (Some(only), None) => only.column_type()?,
                    _ => return None,
                }
            }
            Self::Record(fields) => ColumnType::Struct(
                fields
                    .iter()
                    .map(|(name, inner)| Some(field(name, inner.column_type()?)))
                    .collect::<Option<_>>()?,
            ),
            Self::Date => ColumnType::Date,
            Self::Timestamp(1_000_000) => ColumnType::Timestamp(TimeScale::Millis),
            Self::Timestamp(1_000) => ColumnType::Timestamp(TimeScale::Micros),
            Self::Timestamp(_) => ColumnType::Timestamp(TimeScale::Nanos),
            Self::Decimal {
                precision, scale, ..
            } => {
                let precision = u8::try_from(*precision)
                    .ok()
                    .filter(|digits| *digits <= 38)?;
                let scale = u8::try_from(*scale).ok()?;
                ColumnType::Decimal { precision, scale }
            }
        })
    }
}

fn field(name: &str, data_type: ColumnType) -> StructField {
    StructField {
        name: name.to_owned(),
        data_type,
    }
}
