//! The fields of shredded payloads as columns of a topic's table.
//!
//! Cold files differ in the fields that became columns, and hot records have none, but a table has one schema, and `SELECT *` should
//! not change with each file that is cooled. So a topic's table has the columns of its payloads that the statement *names*:
//! `SELECT "payload.carrier" FROM flights`. They are the table's own columns and expressions over `_payload`, and nothing else: what
//! [`crate::cold_scan`] does for JSON functions holds for them, and hot rows have them too.
//!
//! Which there are is said by the manifests of the topic's files, without opening one. A column has the narrowest type that all of its
//! files' forms share: BOOLEAN, BIGINT, DOUBLE, else text. A value that is of another type is NULL (text has a text for all). A read
//! `AS OF` a token has none of them, since files change while a token stays (QRY-15).

use std::sync::Arc;

use basalt_columnar::ColdFile;
use basalt_columnar::shred::{Form, ShreddedColumn};
use basalt_proto::TopicName;
use datafusion::catalog::TableProvider;
use datafusion::catalog::view::ViewTable;
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, ScalarUDF};
use datafusion::prelude::{ident, lit};

use crate::json::FieldFunctions;
use crate::snapshot::QuerySnapshots;

/// What the names of these columns begin with.
pub(crate) const PREFIX: &str = "payload.";

/// A column of payloads, as all files of a topic have it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inferred {
    name: String,
    path: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Float,
    Text,
}

impl Kind {
    const fn of(form: Form) -> Self {
        match form {
            Form::Bool => Self::Bool,
            Form::Int => Self::Int,
            Form::Double | Form::DoubleShort | Form::Decimal(_) => Self::Float,
            // Whole numbers beyond BIGINT are no DOUBLE without a loss.
            _ => Self::Text,
        }
    }

    const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Bool, Self::Bool) => Self::Bool,
            (Self::Int, Self::Int) => Self::Int,
            (Self::Int | Self::Float, Self::Int | Self::Float) => Self::Float,
            _ => Self::Text,
        }
    }
}

/// The columns of payloads that a statement names.
#[derive(Debug, Clone)]
pub(crate) struct PayloadColumns {
    pub(crate) names: Arc<[String]>,
    pub(crate) functions: FieldFunctions,
}

impl PayloadColumns {
    /// `table` with those of them that the topic's files have.
    ///
    /// # Errors
    /// What DataFusion refuses to plan.
    pub(crate) fn add_to(
        &self,
        table: Arc<dyn TableProvider>,
        topic: &TopicName,
        snapshots: &QuerySnapshots,
    ) -> Result<Arc<dyn TableProvider>> {
        if self.names.is_empty() {
            return Ok(table);
        }
        let columns = named(&snapshots.cold_files(topic), &self.names);
        if columns.is_empty() {
            return Ok(table);
        }
        if snapshots.as_of().is_some() {
            return Err(unrepeatable(&columns[0], &self.functions));
        }
        let own = table.schema();
        let own = own.fields().iter().map(|field| ident(field.name()));
        let inferred = columns.iter().map(|column| column.expr(&self.functions));
        let source = provider_as_source(Arc::clone(&table));
        let plan = LogicalPlanBuilder::scan(TableReference::bare(topic.as_str()), source, None)?
            .project(own.chain(inferred).collect::<Vec<_>>())?
            .build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

/// The columns of these names, in the order of the names. A name that is that of different fields in different files is none's.
fn named(files: &[Arc<ColdFile>], names: &[String]) -> Vec<Inferred> {
    let columns: Vec<&ShreddedColumn> = files
        .iter()
        .filter_map(|file| file.shredded.as_deref())
        .flatten()
        .collect();
    let of_name = |name: &String| {
        let mut same = columns.iter().filter(|column| column.name == *name);
        let first = same.next()?;
        let mut kind = Kind::of(first.form);
        for column in same {
            if column.path != first.path {
                return None;
            }
            kind = kind.or(Kind::of(column.form));
        }
        Some(Inferred {
            name: name.clone(),
            path: first.path.clone(),
            kind,
        })
    };
    names.iter().filter_map(of_name).collect()
}

/// Files come and go while a token stays, and a column's type with them.
fn unrepeatable(column: &Inferred, functions: &FieldFunctions) -> DataFusionError {
    let path: Vec<_> = column.path.iter().map(|key| format!("'{key}'")).collect();
    DataFusionError::Plan(format!(
        "\"{}\" is no column of a table AS OF a token, since its type follows the files that there are at the time: say {}(_payload, \
         {}) instead, or give the topic a schema",
        column.name,
        column.function(functions).name(),
        path.join(", "),
    ))
}

impl Inferred {
    fn function<'a>(&self, functions: &'a FieldFunctions) -> &'a Arc<ScalarUDF> {
        match self.kind {
            Kind::Bool => &functions.get_bool,
            Kind::Int => &functions.get_int,
            Kind::Float => &functions.get_float,
            Kind::Text => &functions.as_text,
        }
    }

    fn expr(&self, functions: &FieldFunctions) -> Expr {
        let path = self.path.iter().map(|key| lit(key.as_str()));
        self.function(functions)
            .call(std::iter::once(ident("_payload")).chain(path).collect())
            .alias(&self.name)
    }
}
