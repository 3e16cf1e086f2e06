//! `cancel_query(id)`, which `CANCEL 'id'` stands for.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::{CANCEL_FUNCTION, Registry};

/// The function over the queries of `registry`.
pub(crate) fn cancel_function(registry: Arc<Registry>) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(CancelQuery {
        registry,
        // Volatile: planning must not cancel anything.
        signature: Signature::string(1, Volatility::Volatile),
    }))
}

/// True for the id of a query that was running or waiting, and is told to stop by this call.
#[derive(Debug)]
struct CancelQuery {
    registry: Arc<Registry>,
    signature: Signature,
}

impl PartialEq for CancelQuery {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.registry, &other.registry)
    }
}

impl Eq for CancelQuery {}

impl Hash for CancelQuery {
    fn hash<H: Hasher>(&self, state: &mut H) {
        CANCEL_FUNCTION.hash(state);
    }
}

impl ScalarUDFImpl for CancelQuery {
    fn name(&self) -> &str {
        CANCEL_FUNCTION
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let ids = ColumnarValue::values_to_arrays(&args.args)?;
        let mut cancelled = BooleanArray::from(Vec::<bool>::new());
        if let [ids] = ids.as_slice() {
            let ids = cast(ids, &DataType::Utf8)?;
            cancelled = ids
                .as_string::<i32>()
                .iter()
                .map(|id| {
                    let id = id?.trim().parse();
                    Some(id.is_ok_and(|id| self.registry.cancel(id)))
                })
                .collect();
        }
        Ok(ColumnarValue::Array(Arc::new(cancelled) as ArrayRef))
    }
}
