//! Operators on integers become checked functions.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF};
use datafusion::optimizer::AnalyzerRule;

use super::function::{CheckedFunction, Operation};

/// Replaces `+`, `-`, `*` and negation where they are of integers. It has to come after the rule that settles types, and
/// stands before all that fold constants.
#[derive(Debug)]
pub(crate) struct CheckedOperators {
    functions: [Arc<ScalarUDF>; 4],
}

impl CheckedOperators {
    pub(crate) fn new() -> Self {
        Self {
            functions: Operation::ALL
                .map(|operation| Arc::new(CheckedFunction::new(operation).into())),
        }
    }

    fn call(&self, operation: Operation, args: Vec<Expr>) -> Expr {
        let func = Arc::clone(&self.functions[operation as usize]);
        Expr::ScalarFunction(ScalarFunction { func, args })
    }

    fn rewrite_node(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let mut schema = merge_schema(&plan.inputs());
        if let LogicalPlan::TableScan(scan) = &plan {
            let columns = scan.source.schema();
            schema.merge(&DFSchema::try_from_qualified_schema(
                scan.table_name.clone(),
                &columns,
            )?);
        }
        let names = NamePreserver::new(&plan);
        let rewritten = plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let rewritten = expr.transform_up(|expr| Ok(self.rewrite(expr, &schema)))?;
            Ok(rewritten.update_data(|expr| name.restore(expr)))
        })?;
        match rewritten.transformed {
            true => rewritten.map_data(LogicalPlan::recompute_schema),
            false => Ok(rewritten),
        }
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match Operation::of(op) {
                Some(operation) if are_integers(&left, &right, schema) => {
                    Transformed::yes(self.call(operation, vec![*left, *right]))
                }
                None if is_comparison(op) => {
                    match moved(&left, op, &right).or_else(|| moved(&right, op.swap()?, &left)) {
                        Some(comparison) => Transformed::yes(comparison),
                        None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
                    }
                }
                _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
            },
            Expr::Negative(inner) if is_integer(&inner, schema) => {
                Transformed::yes(self.call(Operation::Negate, vec![*inner]))
            }
            other => Transformed::no(other),
        }
    }
}

impl AnalyzerRule for CheckedOperators {
    fn name(&self) -> &str {
        "basalt_checked_operators"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| self.rewrite_node(plan))
            .data()
    }
}

fn is_integer(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(found) if found.is_integer())
}

fn are_integers(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    match (left.get_type(schema), right.get_type(schema)) {
        (Ok(left), Ok(right)) => left == right && left.is_integer(),
        _ => false,
    }
}

fn is_comparison(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq
    )
}

/// `x + 1 > 5` as `x > 4`, which can choose files and blocks, and is right for every `x`.
fn moved(sum: &Expr, op: Operator, bound: &Expr) -> Option<Expr> {
    let Expr::ScalarFunction(call) = sum else {
        return None;
    };
    let operation = call
        .func
        .inner()
        .downcast_ref::<CheckedFunction>()?
        .operation;
    let [kept, Expr::Literal(moved, _)] = call.args.as_slice() else {
        return None;
    };
    let Expr::Literal(bound, _) = bound else {
        return None;
    };
    let (ScalarValue::Int64(Some(moved)), ScalarValue::Int64(Some(bound))) = (moved, bound) else {
        return None;
    };
    let bound = match operation {
        Operation::Add => bound.checked_sub(*moved)?,
        Operation::Subtract => bound.checked_add(*moved)?,
        Operation::Multiply | Operation::Negate => return None,
    };
    Some(Expr::BinaryExpr(BinaryExpr {
        left: Box::new(kept.clone()),
        op,
        right: Box::new(Expr::Literal(ScalarValue::Int64(Some(bound)), None)),
    }))
}
