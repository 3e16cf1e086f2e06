//! Joins give their thread a turn to others.
//!
//! A join can make rows without end out of input that it has read whole, and whoever gathers them (a count, say) polls it
//! until it has the last one. DataFusion lets leaves and exchanges count against tokio's budget, but such a join asks no
//! leaf any more: its thread would be held until the end, past the query's deadline and its cancellation.
//!
//! - **QRY-8**: what multiplies rows counts against the budget, so that a query can be ended between any two batches.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;

/// The nodes that may give many batches for one of their input.
const MULTIPLYING: [&str; 8] = [
    "CrossJoinExec",
    "NestedLoopJoinExec",
    "HashJoinExec",
    "SortMergeJoinExec",
    "PiecewiseMergeJoinExec",
    "SymmetricHashJoinExec",
    "UnnestExec",
    "RecursiveQueryExec",
];

/// Wraps each of them.
#[derive(Debug)]
pub(crate) struct YieldingJoins;

impl PhysicalOptimizerRule for YieldingJoins {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let wrapped = plan.transform_up(|node| {
            if MULTIPLYING.contains(&node.name()) {
                return Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as _));
            }
            Ok(Transformed::no(node))
        });
        wrapped.map(|wrapped| wrapped.data)
    }

    fn name(&self) -> &'static str {
        "YieldingJoins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
