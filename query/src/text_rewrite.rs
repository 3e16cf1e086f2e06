//! Text predicates over bytes.
//!
//! **QRY-6**: a pattern matches a payload or a key as text; where the bytes are not UTF-8 the answer is NULL, so that one
//! odd record does not fail the query for all others. Comparisons (`=`, `<`, `IN` ...) need no such rule: there the text
//! becomes bytes, and every record compares. An explicit CAST is left as it is and fails on such a record; TRY_CAST gives
//! NULL.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Like, TryCast};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

/// Reads the bytes that a pattern is matched against as text, NULL where they are none.
#[derive(Debug)]
pub(crate) struct TextRewrite;

impl FunctionRewrite for TextRewrite {
    fn name(&self) -> &'static str {
        "basalt_text"
    }

    fn rewrite(
        &self,
        expr: Expr,
        schema: &DFSchema,
        _config: &ConfigOptions,
    ) -> Result<Transformed<Expr>> {
        let like = |like: Like| Like {
            expr: Box::new(as_text(*like.expr)),
            ..like
        };
        Ok(match expr {
            Expr::Like(inner) if is_bytes(&inner.expr, schema) => {
                Transformed::yes(Expr::Like(like(inner)))
            }
            Expr::SimilarTo(inner) if is_bytes(&inner.expr, schema) => {
                Transformed::yes(Expr::SimilarTo(like(inner)))
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right })
                if is_pattern(op) && is_bytes(&left, schema) =>
            {
                Transformed::yes(Expr::BinaryExpr(BinaryExpr {
                    left: Box::new(as_text(*left)),
                    op,
                    right,
                }))
            }
            other => Transformed::no(other),
        })
    }
}

fn is_pattern(op: Operator) -> bool {
    matches!(
        op,
        Operator::RegexMatch
            | Operator::RegexIMatch
            | Operator::RegexNotMatch
            | Operator::RegexNotIMatch
            | Operator::LikeMatch
            | Operator::ILikeMatch
            | Operator::NotLikeMatch
            | Operator::NotILikeMatch
    )
}

fn is_bytes(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(
        expr.get_type(schema),
        Ok(DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
    )
}

fn as_text(expr: Expr) -> Expr {
    Expr::TryCast(TryCast::new(Box::new(expr), DataType::Utf8))
}
