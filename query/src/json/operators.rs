//! The operators `->`, `->>`, `?`, `#>` and `#>>`.

use std::sync::Arc;

use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Alias, ScalarFunction};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::sqlparser::ast::BinaryOperator;
use datafusion::logical_expr::{Expr, ScalarUDF};

use super::JsonFunctions;

/// Plans JSON operators as calls of the wrapped functions.
#[derive(Debug)]
pub(super) struct JsonOperators {
    functions: JsonFunctions,
}

impl JsonOperators {
    pub(super) fn new(functions: JsonFunctions) -> Self {
        Self { functions }
    }

    /// The path operators are their single-key counterparts with the whole path as one list.
    fn function(&self, op: &BinaryOperator) -> Option<&Arc<ScalarUDF>> {
        match op {
            BinaryOperator::Arrow | BinaryOperator::HashArrow => Some(&self.functions.get),
            BinaryOperator::LongArrow | BinaryOperator::HashLongArrow => {
                Some(&self.functions.as_text)
            }
            BinaryOperator::Question => Some(&self.functions.contains),
            _ => None,
        }
    }
}

impl ExprPlanner for JsonOperators {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        _schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let Some(function) = self.function(&expr.op) else {
            return Ok(PlannerResult::Original(expr));
        };
        // Named as it was written, so that a column's title is `_payload ->> 'x'` and not `json_as_text(..)`.
        let name = format!(
            "{} {} {}",
            written(&expr.left),
            expr.op,
            written(&expr.right)
        );
        // An operand's name serves no more, and must go: finding the type of an alias of an alias of ... takes DataFusion
        // twice as long with each.
        let call = Expr::ScalarFunction(ScalarFunction {
            func: Arc::clone(function),
            args: vec![expr.left.unalias(), expr.right.unalias()],
        });
        Ok(PlannerResult::Planned(Expr::Alias(Alias::new(
            call,
            None::<&str>,
            name,
        ))))
    }
}

/// `expr` about as a person would write it.
fn written(expr: &Expr) -> String {
    match expr {
        Expr::Column(column) => column.name.clone(),
        Expr::Alias(alias) => alias.name.clone(),
        Expr::Cast(cast) => written(&cast.expr),
        Expr::Literal(scalar, _) => match scalar {
            ScalarValue::Utf8(Some(text))
            | ScalarValue::Utf8View(Some(text))
            | ScalarValue::LargeUtf8(Some(text)) => {
                format!("'{text}'")
            }
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}
