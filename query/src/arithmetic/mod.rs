//! Arithmetic that is right or says that it cannot be.
//!
//! DataFusion's `+`, `-`, `*`, negation and `sum` go round where a number does not fit. Here they end the query instead:
//!
//! - **QRY-12**: no integer, decimal or duration that leaves the engine went round. A result that does not fit its type is an
//!   error that names a type with more room.
//!
//! The operators become checked functions once types are settled ([`operators`], [`function`]), before constants are
//! folded; `sum` adds in a wider type and narrows its result ([`sum`], [`wide`]), so that neither the order of rows nor a
//! sum that only passes a bound on its way matters.

mod function;
mod operators;
mod sum;
mod wide;

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::AggregateUDF;

pub(crate) use operators::CheckedOperators;

/// Puts the checked `sum` in the place of the stock one.
pub(crate) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udaf(Arc::new(AggregateUDF::new_from_impl(
        sum::CheckedSum::default(),
    )))?;
    Ok(())
}

/// `cause` with what can be done about it.
fn out_of_range(cause: &str) -> DataFusionError {
    DataFusionError::Execution(format!(
        "{cause}: cast the numbers to DECIMAL(38, 0) or DOUBLE, which have more room"
    ))
}
