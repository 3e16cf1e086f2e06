//! Comparisons that would fail, or be wrong, where an answer is known.
//!
//! Sides of a comparison take one type before they are compared, and a value that does not fit it fails the query, or is cut to it.
//! These have an answer:
//!
//! - a moment and stamps of a coarser unit, or of nanoseconds that cannot say it ([`moments`]);
//! - text compared with a decimal is read with all its digits, not in the decimal's own few; text that is no number is unknown
//!   (NULL), as a pattern on bytes that are no text is.

mod moments;

use arrow::datatypes::{DECIMAL256_MAX_PRECISION, DataType};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

/// As many digits behind the point as before it.
const DECIMAL: DataType = DataType::Decimal256(DECIMAL256_MAX_PRECISION, 38);

/// Gives the sides of such comparisons a type in which both have a value.
#[derive(Debug)]
pub(crate) struct ComparisonRewrite;

impl FunctionRewrite for ComparisonRewrite {
    fn name(&self) -> &'static str {
        "basalt_comparison"
    }

    fn rewrite(
        &self,
        expr: Expr,
        schema: &DFSchema,
        _config: &ConfigOptions,
    ) -> Result<Transformed<Expr>> {
        Ok(match expr {
            Expr::BinaryExpr(comparison) if is_comparison(comparison.op) => {
                binary(comparison, schema)
            }
            Expr::Between(between) => match moments::range(&between, schema) {
                Some(rewritten) => Transformed::yes(rewritten),
                None => Transformed::no(Expr::Between(between)),
            },
            Expr::InList(list) => match moments::list(&list, schema) {
                Some(rewritten) => Transformed::yes(rewritten),
                None => Transformed::no(Expr::InList(list)),
            },
            other => Transformed::no(other),
        })
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
            | Operator::IsDistinctFrom
            | Operator::IsNotDistinctFrom
    )
}

fn binary(comparison: BinaryExpr, schema: &DFSchema) -> Transformed<Expr> {
    let BinaryExpr { left, op, right } = comparison;
    let (Ok(left_type), Ok(right_type)) = (left.get_type(schema), right.get_type(schema)) else {
        return Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }));
    };
    let sides = |left, right| {
        Transformed::yes(Expr::BinaryExpr(BinaryExpr {
            left: Box::new(left),
            op,
            right: Box::new(right),
        }))
    };
    if is_text(&left_type) && is_decimal(&right_type) {
        return sides(text_as_decimal(*left), as_decimal(*right));
    }
    if is_decimal(&left_type) && is_text(&right_type) {
        return sides(as_decimal(*left), text_as_decimal(*right));
    }
    let comparison = BinaryExpr { left, op, right };
    match moments::binary(&comparison, &left_type, &right_type) {
        Some(rewritten) => Transformed::yes(rewritten),
        None => Transformed::no(Expr::BinaryExpr(comparison)),
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..)
    )
}

fn text_as_decimal(text: Expr) -> Expr {
    Expr::TryCast(TryCast::new(Box::new(text), DECIMAL))
}

fn as_decimal(number: Expr) -> Expr {
    Expr::Cast(Cast::new(Box::new(number), DECIMAL))
}
