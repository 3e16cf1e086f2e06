//! Parsed statements to changes of topics.

use basalt_proto::TopicName;
use basalt_schema::{Column, Format, Path, TopicSchema};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    AlterTable, AlterTableOperation, ColumnDef, ColumnOption, CreateTable, CreateTableOptions,
    Expr, Ident, ObjectName, ObjectType, SqlOption, Statement as Sql, Value,
};

use super::types::column_type;
use super::{Change, ColumnEdit, TopicChangeError};
use crate::catalog::{CATALOG, TOPICS_SCHEMA};

/// What `statement` changes; `None` for one that is none of ours.
///
/// # Errors
/// It is one of ours, but says what cannot be.
pub(crate) fn read(statement: &Statement) -> Result<Option<Change>, TopicChangeError> {
    let Statement::Statement(statement) = statement else {
        return Ok(None);
    };
    match statement.as_ref() {
        Sql::CreateTable(create) => create_table(create).map(Some),
        Sql::AlterTable(alter) => alter_table(alter).map(Some),
        Sql::Drop {
            object_type: ObjectType::Table,
            if_exists,
            names,
            table: None,
            ..
        } => Ok(Some(Change::Drop {
            topics: names.iter().map(topic).collect::<Result<_, _>>()?,
            if_exists: *if_exists,
        })),
        _ => Ok(None),
    }
}

fn invalid(message: impl Into<String>) -> TopicChangeError {
    TopicChangeError::invalid(message)
}

/// The topic of a table's name.
fn topic(name: &ObjectName) -> Result<TopicName, TopicChangeError> {
    let parts: Option<Vec<String>> = name
        .0
        .iter()
        .map(|part| part.as_ident().map(folded))
        .collect();
    let parts = parts.unwrap_or_default();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let table = match parts.as_slice() {
        [table] | [TOPICS_SCHEMA, table] | [CATALOG, TOPICS_SCHEMA, table] => *table,
        _ => {
            return Err(invalid(format!(
                "{name}: only tables of schema {TOPICS_SCHEMA} can be made, changed and dropped"
            )));
        }
    };
    TopicName::new(table)
        .map_err(|error| invalid(format!("{table:?} is no name of a topic: {error}")))
}

/// A name as queries find it: without quotes it is in lower case.
fn folded(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    }
}

fn create_table(create: &CreateTable) -> Result<Change, TopicChangeError> {
    let refused = [
        (create.or_replace, "OR REPLACE"),
        (create.temporary, "TEMPORARY"),
        (create.external, "EXTERNAL"),
        (create.query.is_some(), "AS"),
        (create.like.is_some() || create.clone.is_some(), "LIKE"),
        (!create.constraints.is_empty(), "constraints"),
        (create.partition_by.is_some(), "PARTITION BY"),
    ];
    if let Some((_, what)) = refused.into_iter().find(|(is_there, _)| *is_there) {
        return Err(invalid(format!("CREATE TABLE takes no {what}")));
    }
    let columns = create.columns.iter().map(column);
    let columns: Vec<Column> = columns.collect::<Result<_, _>>()?;
    let options = options(&create.table_options)?;
    let mut partitions = None;
    let mut format = None;
    let mut settings = Vec::new();
    for (key, value) in options {
        match key.as_str() {
            "partitions" => {
                let count = value.parse();
                partitions = Some(count.map_err(|_| {
                    invalid(format!("partitions = {value}: it takes a whole number"))
                })?);
            }
            "format" => format = Some(format_named(&value)?),
            _ => settings.push((key, value)),
        }
    }
    let has_schema = settings.iter().any(|(key, _)| key == "schema");
    if has_schema && (format.is_some() || !columns.is_empty()) {
        return Err(invalid(
            "a schema says the format and the columns itself: leave out one or the other",
        ));
    }
    if format.is_some() || !columns.is_empty() {
        let format = format.unwrap_or(Format::Json);
        let schema = TopicSchema::of_lines(format, &columns);
        let schema = schema.map_err(|error| invalid(error.to_string()))?;
        settings.push(("schema".to_owned(), schema.text()));
    }
    Ok(Change::Create {
        topic: topic(&create.name)?,
        partitions,
        settings,
        if_not_exists: create.if_not_exists,
    })
}

fn format_named(name: &str) -> Result<Format, TopicChangeError> {
    match name {
        "json" => Ok(Format::Json),
        "ndjson" => Ok(Format::Ndjson),
        "raw" => Ok(Format::Raw),
        "avro" | "protobuf" => Err(invalid(format!(
            "format = '{name}' needs a schema of its own: give the whole of it as schema = '...'"
        ))),
        _ => Err(invalid(format!(
            "format = '{name}': it is json, ndjson or raw"
        ))),
    }
}

/// The options of `WITH (...)`, with names in lower case.
fn options(options: &CreateTableOptions) -> Result<Vec<(String, String)>, TopicChangeError> {
    let options = match options {
        CreateTableOptions::None => return Ok(Vec::new()),
        CreateTableOptions::With(options) => options,
        other => {
            return Err(invalid(format!(
                "{other}: options are given as WITH (name = value)"
            )));
        }
    };
    let pair = |option: &SqlOption| match option {
        SqlOption::KeyValue { key, value } => {
            let text = literal(value)
                .ok_or_else(|| invalid(format!("{option}: the value is a number or a text")))?;
            Ok((key.value.to_lowercase(), text))
        }
        other => Err(invalid(format!(
            "{other}: options are given as name = value"
        ))),
    };
    options.iter().map(pair).collect()
}

fn literal(value: &Expr) -> Option<String> {
    match value {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some(text.clone()),
            Value::SingleQuotedString(text) => Some(text.clone()),
            Value::Boolean(value) => Some(value.to_string()),
            _ => None,
        },
        Expr::Identifier(name) => Some(name.value.clone()),
        _ => None,
    }
}

fn column(definition: &ColumnDef) -> Result<Column, TopicChangeError> {
    let name = folded(&definition.name);
    let about = |reason: String| invalid(format!("column {name}: {reason}"));
    for option in &definition.options {
        match option.option {
            ColumnOption::Null => {}
            // A record that does not fit has NULL in every column.
            ColumnOption::NotNull => {
                return Err(about("a column cannot be NOT NULL".to_owned()));
            }
            _ => return Err(about(format!("it takes no {option}"))),
        }
    }
    let data_type = column_type(&definition.data_type).map_err(about)?;
    let path = Path::parse(&pointer(&name)).map_err(about)?;
    Ok(Column {
        name: name.clone(),
        data_type,
        path,
    })
}

/// The field that is called as its column.
fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn alter_table(alter: &AlterTable) -> Result<Change, TopicChangeError> {
    let mut edits = Vec::new();
    for operation in &alter.operations {
        match operation {
            AlterTableOperation::AddColumn {
                if_not_exists,
                column_def,
                column_position: None,
                ..
            } => edits.push(ColumnEdit::Add {
                column: column(column_def)?,
                if_not_exists: *if_not_exists,
            }),
            AlterTableOperation::DropColumn {
                column_names,
                if_exists,
                ..
            } => edits.extend(column_names.iter().map(|name| ColumnEdit::Drop {
                name: folded(name),
                if_exists: *if_exists,
            })),
            other => {
                return Err(invalid(format!(
                    "ALTER TABLE {other}: only ADD COLUMN and DROP COLUMN change a table"
                )));
            }
        }
    }
    Ok(Change::Alter {
        topic: topic(&alter.name)?,
        if_exists: alter.if_exists,
        edits,
    })
}
