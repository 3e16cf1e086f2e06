//! Comparisons that would fail where an answer is known.
//!
//! Sides of a comparison take one type before they are compared, and a value that does not fit it fails the query. Two cases
//! are common with bound values, and have an answer:
//!
//! - a moment beyond what nanoseconds in 64 bits can say (the years 1 and 9999 of many programs) is later, or earlier, than
//!   every stamp;
//! - text compared with a decimal is read with all its digits, not in the decimal's own few; text that is no number is unknown
//!   (NULL), as a pattern on bytes that are no text is.

use arrow::datatypes::{DECIMAL256_MAX_PRECISION, DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, Cast, TryCast};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

/// As many digits behind the point as before it.
const DECIMAL: DataType = DataType::Decimal256(DECIMAL256_MAX_PRECISION, 38);

const DAY_NS: i128 = 86_400_000_000_000;

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
            Expr::Between(between) => range(between, schema),
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
    if let Some(clamped) = clamped(&right, &left_type) {
        return sides(*left, clamped);
    }
    if let Some(clamped) = clamped(&left, &right_type) {
        return sides(clamped, *right);
    }
    Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }))
}

fn range(between: Between, schema: &DFSchema) -> Transformed<Expr> {
    let Ok(data_type) = between.expr.get_type(schema) else {
        return Transformed::no(Expr::Between(between));
    };
    let low = clamped(&between.low, &data_type);
    let high = clamped(&between.high, &data_type);
    if low.is_none() && high.is_none() {
        return Transformed::no(Expr::Between(between));
    }
    Transformed::yes(Expr::Between(Between {
        low: low.map_or(between.low, Box::new),
        high: high.map_or(between.high, Box::new),
        ..between
    }))
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

/// `moment`, compared with stamps of `stamps`, as the nearest stamp, if it is not one itself.
fn clamped(moment: &Expr, stamps: &DataType) -> Option<Expr> {
    let DataType::Timestamp(TimeUnit::Nanosecond, zone) = stamps else {
        return None;
    };
    let Expr::Literal(value, _) = moment else {
        return None;
    };
    let ns = match value {
        ScalarValue::TimestampSecond(Some(value), _) => i128::from(*value) * 1_000_000_000,
        ScalarValue::TimestampMillisecond(Some(value), _) => i128::from(*value) * 1_000_000,
        ScalarValue::TimestampMicrosecond(Some(value), _) => i128::from(*value) * 1_000,
        ScalarValue::Date32(Some(days)) => i128::from(*days) * DAY_NS,
        ScalarValue::Date64(Some(ms)) => i128::from(*ms) * 1_000_000,
        _ => return None,
    };
    // No record has either of these stamps: those that would are NULL.
    let nearest = match i64::try_from(ns) {
        Ok(_) => return None,
        Err(_) if ns > 0 => i64::MAX,
        Err(_) => i64::MIN,
    };
    let nearest = ScalarValue::TimestampNanosecond(Some(nearest), zone.clone());
    Some(Expr::Literal(nearest, None))
}
