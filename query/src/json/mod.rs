//! JSON path functions and operators that take `_payload` as it is.
//!
//! The functions are those of `datafusion-functions-json`, which read text. A payload is bytes, so each is wrapped
//! ([`function`]): planned as if its first argument were text, run on the text those bytes spell ([`text`]). The
//! operators `->`, `->>`, `?`, `#>` and `#>>` plan the wrapped functions ([`operators`]), and the rewrites that keep a
//! typed read from building a JSON union first are repeated here because the crate's own only know its own functions
//! ([`rewrite`]).
//!
//! **QRY-1**: bytes that are not UTF-8, text that is not JSON and paths that lead nowhere give NULL, never an error.

mod function;
mod operators;
mod rewrite;
pub(crate) mod text;

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::ScalarUDF;
use datafusion_functions_json::udfs;

pub(crate) use function::JsonFunction;

/// The wrapped functions that operators and rewrites plan.
#[derive(Debug, Clone)]
struct JsonFunctions {
    get: Arc<ScalarUDF>,
    get_bool: Arc<ScalarUDF>,
    get_float: Arc<ScalarUDF>,
    get_int: Arc<ScalarUDF>,
    as_text: Arc<ScalarUDF>,
    contains: Arc<ScalarUDF>,
}

/// Functions that read one field of a document, by its type.
#[derive(Debug, Clone)]
pub(crate) struct FieldFunctions {
    pub(crate) as_text: Arc<ScalarUDF>,
    pub(crate) get_bool: Arc<ScalarUDF>,
    pub(crate) get_float: Arc<ScalarUDF>,
    pub(crate) get_int: Arc<ScalarUDF>,
}

impl FieldFunctions {
    /// Those that were registered.
    pub(crate) fn of(registry: &dyn FunctionRegistry) -> Result<Self> {
        Ok(Self {
            as_text: registry.udf("json_as_text")?,
            get_bool: registry.udf("json_get_bool")?,
            get_float: registry.udf("json_get_float")?,
            get_int: registry.udf("json_get_int")?,
        })
    }
}

/// Registers every function, operator and rewrite.
pub(crate) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    let functions = JsonFunctions {
        get: JsonFunction::wrap(udfs::json_get_udf()),
        get_bool: JsonFunction::wrap(udfs::json_get_bool_udf()),
        get_float: JsonFunction::wrap(udfs::json_get_float_udf()),
        get_int: JsonFunction::wrap(udfs::json_get_int_udf()),
        as_text: JsonFunction::wrap(udfs::json_as_text_udf()),
        contains: JsonFunction::wrap(udfs::json_contains_udf()),
    };
    let named = [
        Arc::clone(&functions.get),
        Arc::clone(&functions.get_bool),
        Arc::clone(&functions.get_float),
        Arc::clone(&functions.get_int),
        Arc::clone(&functions.as_text),
        Arc::clone(&functions.contains),
        JsonFunction::wrap(udfs::json_get_str_udf()),
        JsonFunction::wrap(udfs::json_get_json_udf()),
        JsonFunction::wrap(udfs::json_get_array_udf()),
        JsonFunction::wrap(udfs::json_length_udf()),
        JsonFunction::wrap(udfs::json_object_keys_udf()),
        JsonFunction::wrap(udfs::json_from_scalar_udf()),
        udfs::json_union_to_text_udf(),
    ];
    for udf in named {
        registry.register_udf(udf)?;
    }
    registry.register_function_rewrite(Arc::new(rewrite::JsonRewrite::new(functions.clone())))?;
    registry.register_expr_planner(Arc::new(operators::JsonOperators::new(functions)))
}

#[cfg(test)]
mod tests;
