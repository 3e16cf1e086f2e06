//! Rewrites that read a typed value out of JSON directly.
//!
//! `json_get` gives a union of every JSON type. Where a cast says which type is wanted, the accessor of that type reads
//! it without building the union; where one call feeds another, one call with the longer path does both. These are
//! the rewrites of `datafusion-functions-json` for the wrapped functions, which its own do not recognise.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Cast, ScalarFunction, TryCast};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{Expr, ExprSchemable, ScalarUDF};

use super::JsonFunctions;
use super::function::JsonFunction;

/// Folds casts and nested calls into the accessor that does it all.
#[derive(Debug)]
pub(super) struct JsonRewrite {
    functions: JsonFunctions,
}

/// The accessor that replaces a `json_get` under a cast, and whether the cast is still needed.
enum Folded {
    /// It gives the type asked for: the cast goes.
    Exact(Expr),
    /// It gives another type: the cast stays, so that neither type nor range checks change.
    Other(Expr),
}

impl JsonRewrite {
    pub(super) fn new(functions: JsonFunctions) -> Self {
        Self { functions }
    }

    fn accessor(&self, cast_to: &DataType) -> Option<&Arc<ScalarUDF>> {
        match cast_to {
            DataType::Boolean => Some(&self.functions.get_bool),
            DataType::Float64
            | DataType::Float32
            | DataType::Decimal128(..)
            | DataType::Decimal256(..) => Some(&self.functions.get_float),
            DataType::Int64 | DataType::Int32 => Some(&self.functions.get_int),
            DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 => {
                Some(&self.functions.as_text)
            }
            _ => None,
        }
    }

    fn fold(&self, cast_to: &DataType, inner: &Expr, schema: &DFSchema) -> Option<Folded> {
        let call = json_get_call(inner)?;
        let accessor = Expr::ScalarFunction(ScalarFunction {
            func: Arc::clone(self.accessor(cast_to)?),
            args: call.args.clone(),
        });
        Some(match accessor.get_type(schema) {
            Ok(returned) if returned == *cast_to => Folded::Exact(accessor),
            _ => Folded::Other(accessor),
        })
    }

    /// `arrow_cast(json_get(..), 'Int64')` is still a call when rewrites run.
    fn fold_arrow_cast(&self, call: &ScalarFunction, schema: &DFSchema) -> Option<Expr> {
        if !matches!(call.func.name(), "arrow_cast" | "arrow_try_cast") {
            return None;
        }
        let [
            inner,
            type_name @ Expr::Literal(ScalarValue::Utf8(Some(cast_to)), _),
        ] = call.args.as_slice()
        else {
            return None;
        };
        let cast_to = cast_to.parse::<DataType>().ok()?;
        let (Folded::Exact(accessor) | Folded::Other(accessor)) =
            self.fold(&cast_to, inner, schema)?;
        Some(Expr::ScalarFunction(ScalarFunction {
            func: Arc::clone(&call.func),
            args: vec![accessor, type_name.clone()],
        }))
    }
}

impl FunctionRewrite for JsonRewrite {
    fn name(&self) -> &'static str {
        "basalt_json"
    }

    fn rewrite(
        &self,
        expr: Expr,
        schema: &DFSchema,
        _config: &ConfigOptions,
    ) -> Result<Transformed<Expr>> {
        let rewritten = match &expr {
            Expr::Cast(cast) => {
                self.fold(cast.field.data_type(), &cast.expr, schema)
                    .map(|folded| match folded {
                        Folded::Exact(accessor) => accessor,
                        Folded::Other(accessor) => Expr::Cast(Cast {
                            expr: Box::new(accessor),
                            field: Arc::clone(&cast.field),
                        }),
                    })
            }
            Expr::TryCast(cast) => {
                self.fold(cast.field.data_type(), &cast.expr, schema)
                    .map(|folded| match folded {
                        Folded::Exact(accessor) => accessor,
                        Folded::Other(accessor) => Expr::TryCast(TryCast {
                            expr: Box::new(accessor),
                            field: Arc::clone(&cast.field),
                        }),
                    })
            }
            Expr::ScalarFunction(call) => {
                self.fold_arrow_cast(call, schema).or_else(|| unnest(call))
            }
            _ => None,
        };
        Ok(rewritten.map_or_else(|| Transformed::no(expr), Transformed::yes))
    }
}

/// `json_get_str(json_get(p, 'a'), 'b')` as `json_get_str(p, 'a', 'b')`.
///
/// Only through `json_get`: `json_as_text` gives SQL text, and JSON inside a JSON string is not a path further. Only
/// where the whole path is literal, since a path with a column in it must be that column alone.
fn unnest(call: &ScalarFunction) -> Option<Expr> {
    let reads_a_path = matches!(
        call.func.name(),
        "json_get"
            | "json_get_bool"
            | "json_get_float"
            | "json_get_int"
            | "json_get_json"
            | "json_get_str"
            | "json_as_text"
    );
    if !reads_a_path || !call.func.inner().is::<JsonFunction>() {
        return None;
    }
    let (first, rest) = call.args.split_first()?;
    let mut args = json_get_call(first)?.args.clone();
    args.extend(rest.iter().cloned());
    args.iter()
        .skip(1)
        .all(|arg| matches!(arg, Expr::Literal(..)))
        .then(|| {
            Expr::ScalarFunction(ScalarFunction {
                func: Arc::clone(&call.func),
                args,
            })
        })
}

fn json_get_call(expr: &Expr) -> Option<&ScalarFunction> {
    match expr {
        Expr::ScalarFunction(call) => (call.func.name() == "json_get"
            && call.func.inner().is::<JsonFunction>())
        .then_some(call),
        Expr::Alias(alias) => json_get_call(&alias.expr),
        _ => None,
    }
}
