//! `GetXdbcTypeInfo`: the types that columns of topics and results have.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_flight::error::Result;
use arrow_flight::sql::metadata::{XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder};
use arrow_flight::sql::{Nullable, Searchable, XdbcDataType, XdbcDatetimeSubcode};

/// The schema of every answer.
pub(super) fn empty_schema() -> SchemaRef {
    Arc::clone(&XdbcTypeInfoDataBuilder::new().schema())
}

/// Every type.
pub(super) fn rows() -> Result<XdbcTypeInfoData> {
    let mut types = XdbcTypeInfoDataBuilder::new();
    types.append(number("BOOLEAN", XdbcDataType::XdbcBit, 1));
    types.append(number("TINYINT", XdbcDataType::XdbcTinyint, 8));
    types.append(number("SMALLINT", XdbcDataType::XdbcSmallint, 16));
    types.append(number("INTEGER", XdbcDataType::XdbcInteger, 32));
    types.append(number("BIGINT", XdbcDataType::XdbcBigint, 64));
    types.append(number("REAL", XdbcDataType::XdbcReal, 24));
    types.append(number("DOUBLE", XdbcDataType::XdbcDouble, 53));
    types.append(XdbcTypeInfo {
        create_params: Some(vec!["precision".to_owned(), "scale".to_owned()]),
        minimum_scale: Some(0),
        maximum_scale: Some(38),
        num_prec_radix: Some(10),
        fixed_prec_scale: false,
        ..number("DECIMAL", XdbcDataType::XdbcDecimal, 38)
    });
    types.append(quoted("VARCHAR", XdbcDataType::XdbcVarchar, "'"));
    types.append(quoted("VARBINARY", XdbcDataType::XdbcVarbinary, "X'"));
    types.append(XdbcTypeInfo {
        column_size: Some(10),
        ..quoted("DATE", XdbcDataType::XdbcDate, "DATE '")
    });
    types.append(XdbcTypeInfo {
        column_size: Some(18),
        ..quoted("TIME", XdbcDataType::XdbcTime, "TIME '")
    });
    types.append(XdbcTypeInfo {
        column_size: Some(35),
        datetime_subcode: Some(XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
        ..quoted("TIMESTAMP", XdbcDataType::XdbcTimestamp, "TIMESTAMP '")
    });
    types.build()
}

fn number(name: &str, data_type: XdbcDataType, bits: i32) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.to_owned(),
        local_type_name: Some(name.to_owned()),
        data_type,
        sql_data_type: data_type,
        column_size: Some(bits),
        nullable: Nullable::NullabilityNullable,
        searchable: Searchable::Basic,
        unsigned_attribute: Some(false),
        auto_increment: Some(false),
        num_prec_radix: Some(2),
        ..XdbcTypeInfo::default()
    }
}

fn quoted(name: &str, data_type: XdbcDataType, prefix: &str) -> XdbcTypeInfo {
    XdbcTypeInfo {
        literal_prefix: Some(prefix.to_owned()),
        literal_suffix: Some("'".to_owned()),
        case_sensitive: true,
        searchable: Searchable::Full,
        unsigned_attribute: None,
        column_size: None,
        num_prec_radix: None,
        ..number(name, data_type, 0)
    }
}
