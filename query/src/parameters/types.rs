//! Types of parameters.
//!
//! DataFusion plans a parameter that has no type as if it were NULL, which many functions refuse. It takes types only from
//! a PREPARE, and there only those that SQL can write. So a statement whose values are known is planned inside a PREPARE
//! whose types are stand-ins, and a [`TypePlanner`] turns these into the Arrow types of the values.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::expr::Placeholder;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::logical_expr::{Expr, LogicalPlan, Statement as PlanStatement};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    DataType as SqlType, Ident, ObjectName, Statement as SqlStatement,
};

use crate::edge::column_type;

/// Stands for the type of a parameter, whose number is its modifier. No other type can have this name: it is empty.
const STAND_IN: &str = "";

/// The names of the parameters that `plan` has left.
pub(crate) fn parameter_names(plan: &LogicalPlan) -> Result<HashSet<String>> {
    plan.get_parameter_names()
}

/// The types in which `count` parameters are announced, as far as their use in `plan` tells: text for all others.
pub(crate) fn inferred(plan: Option<&LogicalPlan>, count: usize) -> Result<Vec<DataType>> {
    let mut types = vec![None; count];
    if let Some(plan) = plan {
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::Limit(limit) = node {
                let counts = [&limit.skip, &limit.fetch];
                for count in counts.into_iter().flatten() {
                    learn(&mut types, count, Some(&DataType::Int64));
                }
            }
            node.apply_expressions(|expr| {
                expr.apply(|expr| {
                    match expr {
                        Expr::Cast(cast) => {
                            learn(&mut types, &cast.expr, Some(cast.field.data_type()));
                        }
                        Expr::TryCast(cast) => {
                            learn(&mut types, &cast.expr, Some(cast.field.data_type()));
                        }
                        other => learn(&mut types, other, None),
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
    }
    let plain = |found: Option<DataType>| found.as_ref().and_then(column_type);
    let announced = |found| match plain(found) {
        None | Some(DataType::Null) => DataType::Utf8,
        Some(data_type) => data_type,
    };
    Ok(types.into_iter().map(announced).collect())
}

/// Notes the type of `expr` if it is a parameter and the first use of it that tells one.
fn learn(types: &mut [Option<DataType>], expr: &Expr, used_as: Option<&DataType>) {
    let Expr::Placeholder(Placeholder { id, field }) = expr else {
        return;
    };
    let number = id.strip_prefix('$').and_then(|number| number.parse().ok());
    let Some(known) = number.and_then(|number: usize| types.get_mut(number.checked_sub(1)?)) else {
        return;
    };
    if known.is_none() {
        let told = field.as_ref().map(|field| field.data_type());
        *known = told.or(used_as).cloned();
    }
}

/// Plans `statement` with parameters of `types`.
pub(crate) async fn typed_plan(
    state: SessionState,
    statement: Statement,
    types: &[DataType],
) -> Result<LogicalPlan> {
    let state = SessionStateBuilder::new_from_existing(state)
        .with_type_planner(Arc::new(ParameterTypes(types.to_vec())))
        .build();
    let plan = state
        .statement_to_plan(prepared(statement, types.len()))
        .await?;
    Ok(match plan {
        LogicalPlan::Statement(PlanStatement::Prepare(prepare)) => {
            Arc::unwrap_or_clone(prepare.input)
        }
        other => other,
    })
}

/// A query inside a PREPARE that declares `count` parameters; any other statement (EXPLAIN) as it is.
fn prepared(statement: Statement, count: usize) -> Statement {
    match statement {
        Statement::Statement(query) if matches!(*query, SqlStatement::Query(_)) => {
            let stand_in = |number: usize| {
                let name = ObjectName::from(vec![Ident::new(STAND_IN)]);
                SqlType::Custom(name, vec![number.to_string()])
            };
            Statement::Statement(Box::new(SqlStatement::Prepare {
                name: Ident::new("query"),
                data_types: (0..count).map(stand_in).collect(),
                statement: query,
            }))
        }
        other => other,
    }
}

/// Gives the stand-ins their types.
#[derive(Debug)]
struct ParameterTypes(Vec<DataType>);

impl TypePlanner for ParameterTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        let SqlType::Custom(name, modifiers) = sql_type else {
            return Ok(None);
        };
        if name.to_string() != STAND_IN {
            return Ok(None);
        }
        let number = modifiers.first().and_then(|number| number.parse().ok());
        let data_type = number.and_then(|number: usize| self.0.get(number));
        match data_type {
            Some(data_type) => Ok(Some(Arc::new(Field::new("", data_type.clone(), true)))),
            None => Err(DataFusionError::Internal(format!(
                "no parameter for {sql_type}"
            ))),
        }
    }
}
