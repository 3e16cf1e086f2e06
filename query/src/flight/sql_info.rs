//! `GetSqlInfo`: what the server can do, told truly.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_flight::error::Result;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{
    SqlInfo, SqlNullOrdering, SqlSupportedCaseSensitivity, SqlSupportedTransaction,
    SqlSupportsConvert,
};
use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;

use crate::QueryEngine;

/// Version of the Arrow columnar format that is spoken.
const ARROW_FORMAT: &str = "1.5";

/// The schema of every answer.
pub(super) fn schema() -> SchemaRef {
    Arc::new(SqlInfoDataBuilder::schema().clone())
}

/// Everything that is told.
pub(super) fn rows(engine: &QueryEngine) -> Result<SqlInfoData> {
    let mut info = SqlInfoDataBuilder::new();
    server(&mut info, engine);
    names(&mut info, engine);
    functions(&mut info);
    language(&mut info);
    limits(&mut info);
    transactions(&mut info);
    info.build()
}

fn server(info: &mut SqlInfoDataBuilder, engine: &QueryEngine) {
    let timeout_ms = i32::try_from(engine.config().timeout.as_millis()).unwrap_or(i32::MAX);
    info.append(SqlInfo::FlightSqlServerName, "Basalt");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, ARROW_FORMAT);
    info.append(SqlInfo::FlightSqlServerReadOnly, !engine.allows_changes());
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    // Drivers read this one as an int32.
    info.append(
        SqlInfo::FlightSqlServerTransaction,
        SqlSupportedTransaction::None as i32,
    );
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, false);
    info.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, timeout_ms);
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0_i32);
}

fn names(info: &mut SqlInfoDataBuilder, engine: &QueryEngine) {
    info.append(SqlInfo::SqlDdlCatalog, false);
    info.append(SqlInfo::SqlDdlSchema, false);
    info.append(SqlInfo::SqlDdlTable, engine.allows_changes());
    info.append(
        SqlInfo::SqlIdentifierCase,
        SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32,
    );
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    // Quoted names are kept as they are, which none of the other values says.
    info.append(
        SqlInfo::SqlQuotedIdentifierCase,
        SqlSupportedCaseSensitivity::SqlCaseSensitivityUnknown as i32,
    );
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(
        SqlInfo::SqlNullOrdering,
        SqlNullOrdering::SqlNullsSortedHigh as i32,
    );
    info.append(SqlInfo::SqlKeywords, ALL_KEYWORDS);
    info.append(SqlInfo::SqlSearchStringEscape, "\\");
    info.append(SqlInfo::SqlExtraNameCharacters, "");
    info.append(SqlInfo::SqlSchemaTerm, "schema");
    info.append(SqlInfo::SqlProcedureTerm, "procedure");
    info.append(SqlInfo::SqlCatalogTerm, "catalog");
    info.append(SqlInfo::SqlCatalogAtStart, true);
}

fn functions(info: &mut SqlInfoDataBuilder) {
    let numeric = [
        "abs", "ceil", "exp", "floor", "ln", "log10", "power", "round", "sign", "sqrt", "trunc",
    ];
    let text = [
        "concat",
        "json_as_text",
        "json_contains",
        "json_get",
        "json_get_bool",
        "json_get_float",
        "json_get_int",
        "json_get_str",
        "json_length",
        "left",
        "length",
        "lower",
        "replace",
        "right",
        "substr",
        "trim",
        "upper",
    ];
    let time = [
        "current_date",
        "current_time",
        "date_part",
        "date_trunc",
        "extract",
        "now",
        "to_timestamp",
    ];
    info.append(SqlInfo::SqlNumericFunctions, &numeric[..]);
    info.append(SqlInfo::SqlStringFunctions, &text[..]);
    info.append(SqlInfo::SqlSystemFunctions, &["version"][..]);
    info.append(SqlInfo::SqlDatetimeFunctions, &time[..]);
}

/// Bit `n` stands for the value `n` of the enumeration that belongs to the question.
fn bits(values: &[u32]) -> i32 {
    values.iter().fold(0, |bits, value| bits | (1 << value))
}

fn language(info: &mut SqlInfoDataBuilder) {
    for yes in [
        SqlInfo::SqlSupportsColumnAliasing,
        SqlInfo::SqlNullPlusNullIsNull,
        SqlInfo::SqlSupportsTableCorrelationNames,
        SqlInfo::SqlSupportsExpressionsInOrderBy,
        SqlInfo::SqlSupportsOrderByUnrelated,
        SqlInfo::SqlSupportsLikeEscapeClause,
        SqlInfo::SqlSupportsNonNullableColumns,
        SqlInfo::SqlCorrelatedSubqueriesSupported,
    ] {
        info.append(yes, true);
    }
    for no in [
        SqlInfo::SqlSupportsDifferentTableCorrelationNames,
        SqlInfo::SqlSupportsIntegrityEnhancementFacility,
        SqlInfo::SqlSelectForUpdateSupported,
        SqlInfo::SqlStoredProceduresSupported,
    ] {
        info.append(no, false);
    }
    // Unrelated and beyond select; minimum and core; entry level; limited and full; comparisons, EXISTS, IN; both unions.
    info.append(SqlInfo::SqlSupportedGroupBy, bits(&[0, 1]));
    info.append(SqlInfo::SqlSupportedGrammar, bits(&[0, 1]));
    info.append(SqlInfo::SqlAnsi92SupportedLevel, bits(&[0]));
    info.append(SqlInfo::SqlOuterJoinsSupportLevel, bits(&[1, 2]));
    info.append(SqlInfo::SqlSupportedSubqueries, bits(&[0, 1, 2]));
    info.append(SqlInfo::SqlSupportedUnions, bits(&[0, 1]));
    info.append(SqlInfo::SqlSchemasSupportedActions, 0_i32);
    info.append(SqlInfo::SqlCatalogsSupportedActions, 0_i32);
    info.append(SqlInfo::SqlSupportedPositionedCommands, 0_i32);
    info.append(SqlInfo::SqlSupportsConvert, conversions());
}

/// CAST between numbers and text, both ways.
fn conversions() -> BTreeMap<i32, Vec<i32>> {
    let types = [
        SqlSupportsConvert::SqlConvertBigint as i32,
        SqlSupportsConvert::SqlConvertDecimal as i32,
        SqlSupportsConvert::SqlConvertFloat as i32,
        SqlSupportsConvert::SqlConvertInteger as i32,
        SqlSupportsConvert::SqlConvertReal as i32,
        SqlSupportsConvert::SqlConvertVarchar as i32,
    ];
    let others = |from: i32| types.into_iter().filter(move |to| *to != from).collect();
    types.into_iter().map(|from| (from, others(from))).collect()
}

/// 0 says that there is no limit, or that it is not known.
fn limits(info: &mut SqlInfoDataBuilder) {
    for unlimited in [
        SqlInfo::SqlMaxBinaryLiteralLength,
        SqlInfo::SqlMaxCharLiteralLength,
        SqlInfo::SqlMaxColumnNameLength,
        SqlInfo::SqlMaxColumnsInGroupBy,
        SqlInfo::SqlMaxColumnsInIndex,
        SqlInfo::SqlMaxColumnsInOrderBy,
        SqlInfo::SqlMaxColumnsInSelect,
        SqlInfo::SqlMaxColumnsInTable,
        SqlInfo::SqlMaxConnections,
        SqlInfo::SqlMaxCursorNameLength,
        SqlInfo::SqlMaxIndexLength,
        SqlInfo::SqlDbSchemaNameLength,
        SqlInfo::SqlMaxProcedureNameLength,
        SqlInfo::SqlMaxCatalogNameLength,
        SqlInfo::SqlMaxRowSize,
        SqlInfo::SqlMaxStatements,
        SqlInfo::SqlMaxTablesInSelect,
        SqlInfo::SqlMaxUsernameLength,
    ] {
        info.append(unlimited, 0_i64);
    }
    info.append(SqlInfo::SqlMaxRowSizeIncludesBlobs, true);
    info.append(
        SqlInfo::SqlMaxStatementLength,
        i64::try_from(crate::planner::STATEMENT_BYTES).unwrap_or(i64::MAX),
    );
    info.append(SqlInfo::SqlMaxTableNameLength, 249_i64);
}

fn transactions(info: &mut SqlInfoDataBuilder) {
    for no in [
        SqlInfo::SqlTransactionsSupported,
        SqlInfo::SqlDataDefinitionCausesTransactionCommit,
        SqlInfo::SqlDataDefinitionsInTransactionsIgnored,
        SqlInfo::SqlBatchUpdatesSupported,
        SqlInfo::SqlSavepointsSupported,
        SqlInfo::SqlNamedParametersSupported,
        SqlInfo::SqlLocatorsUpdateCopy,
        SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported,
    ] {
        info.append(no, false);
    }
    // Isolation level "none", and no other; results are read forward only, and nothing is updated through them.
    info.append(SqlInfo::SqlDefaultTransactionIsolation, 0_i32);
    info.append(SqlInfo::SqlSupportedTransactionsIsolationLevels, bits(&[0]));
    info.append(SqlInfo::SqlSupportedResultSetTypes, bits(&[1]));
    info.append(
        SqlInfo::SqlSupportedConcurrenciesForResultSetUnspecified,
        0_i32,
    );
    info.append(
        SqlInfo::SqlSupportedConcurrenciesForResultSetForwardOnly,
        bits(&[1]),
    );
    info.append(
        SqlInfo::SqlSupportedConcurrenciesForResultSetScrollSensitive,
        0_i32,
    );
    info.append(
        SqlInfo::SqlSupportedConcurrenciesForResultSetScrollInsensitive,
        0_i32,
    );
}
