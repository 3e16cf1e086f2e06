//! Types of SQL to types of columns, as PostgreSQL names them.

use basalt_schema::{ColumnType, TimeScale};
use datafusion::sql::sqlparser::ast::{ArrayElemTypeDef, DataType, ExactNumberInfo, TimezoneInfo};

/// Digits of a `DECIMAL` that does not say, and how many of them are behind the point.
const DECIMAL: (u64, i64) = (38, 10);

/// The type of a column that is declared as `data_type`.
///
/// # Errors
/// That there is none, in words.
pub(super) fn column_type(data_type: &DataType) -> Result<ColumnType, String> {
    Ok(match data_type {
        DataType::Bool | DataType::Boolean => ColumnType::Bool,
        DataType::TinyInt(_) => ColumnType::Int8,
        DataType::SmallInt(_) | DataType::Int2(_) => ColumnType::Int16,
        DataType::Int(_) | DataType::Integer(_) | DataType::Int4(_) => ColumnType::Int32,
        // 8 bytes in PostgreSQL, not 8 bits.
        DataType::BigInt(_) | DataType::Int8(_) => ColumnType::Int64,
        DataType::TinyIntUnsigned(_) => ColumnType::UInt8,
        DataType::SmallIntUnsigned(_) | DataType::Int2Unsigned(_) => ColumnType::UInt16,
        DataType::IntUnsigned(_) | DataType::IntegerUnsigned(_) | DataType::Int4Unsigned(_) => {
            ColumnType::UInt32
        }
        DataType::BigIntUnsigned(_) | DataType::Int8Unsigned(_) => ColumnType::UInt64,
        DataType::Real | DataType::Float4 => ColumnType::Float32,
        DataType::Float(info) => float(info),
        DataType::Float8 | DataType::Double(_) | DataType::DoublePrecision => ColumnType::Float64,
        DataType::Decimal(info) | DataType::Numeric(info) | DataType::Dec(info) => decimal(info)?,
        DataType::Varchar(None)
        | DataType::CharacterVarying(None)
        | DataType::CharVarying(None)
        | DataType::Text
        | DataType::String(None) => ColumnType::String,
        DataType::JSON | DataType::JSONB => ColumnType::Json,
        DataType::Bytea | DataType::Varbinary(None) | DataType::Binary(None) => ColumnType::Binary,
        DataType::Date => ColumnType::Date,
        // Stamps are in UTC, whether it is said or not.
        DataType::Timestamp(
            digits,
            TimezoneInfo::None | TimezoneInfo::WithTimeZone | TimezoneInfo::Tz,
        ) => ColumnType::Timestamp(time_scale(*digits)?),
        DataType::Array(
            ArrayElemTypeDef::SquareBracket(item, None) | ArrayElemTypeDef::AngleBracket(item),
        ) => ColumnType::List(Box::new(column_type(item)?)),
        other => named(other)?,
    })
}

/// A type that SQL has no name of its own for: `uint8` to `uint64`.
fn named(other: &DataType) -> Result<ColumnType, String> {
    let unknown = || {
        format!(
            "{other} is no type of a column; there are BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, the same UNSIGNED, REAL, DOUBLE, DECIMAL(p, s), VARCHAR, JSON, BYTEA, TIMESTAMP(0 | 3 | 6 | 9), DATE and lists of them (BIGINT[]); a schema file can say structs"
        )
    };
    match other {
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => {
            ColumnType::parse(&other.to_string()).map_err(|_| unknown())
        }
        _ => Err(unknown()),
    }
}

fn float(info: &ExactNumberInfo) -> ColumnType {
    match info {
        // Bits of the mantissa, in SQL.
        ExactNumberInfo::Precision(25..) => ColumnType::Float64,
        _ => ColumnType::Float32,
    }
}

fn decimal(info: &ExactNumberInfo) -> Result<ColumnType, String> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => DECIMAL,
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    ColumnType::parse(&format!("decimal({precision}, {scale})"))
}

fn time_scale(digits: Option<u64>) -> Result<TimeScale, String> {
    match digits {
        Some(0) => Ok(TimeScale::Seconds),
        Some(3) => Ok(TimeScale::Millis),
        Some(6) => Ok(TimeScale::Micros),
        None | Some(9) => Ok(TimeScale::Nanos),
        Some(digits) => Err(format!(
            "TIMESTAMP({digits}): it has 0, 3, 6 or 9 digits of a second"
        )),
    }
}
