//! What a plan reads, and what follows from that.

use basalt_proto::TopicName;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;

use crate::control::Lane;
use crate::sys_tables::SysTable;
use crate::topic_table::TopicTable;

/// No batch of a query should pass this: Arrow's columns end at 2 GiB.
const BATCH_BYTES: u64 = 1 << 30;

/// The topics that `plan` reads.
pub(crate) fn topics(plan: &LogicalPlan) -> Result<Vec<TopicName>, DataFusionError> {
    let mut names = Vec::new();
    for_each_topic(plan, |topic| names.push(topic.name().clone()))?;
    Ok(names)
}

fn for_each_topic(
    plan: &LogicalPlan,
    mut visit: impl FnMut(&TopicTable),
) -> Result<(), DataFusionError> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(topic) = provider.downcast_ref::<TopicTable>()
        {
            visit(topic);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// The system's lane for what reads nothing but the server's own tables, and multiplies nothing.
pub(crate) fn lane(plan: &LogicalPlan) -> Result<Lane, DataFusionError> {
    let mut lane = Lane::System;
    plan.apply_with_subqueries(|node| {
        let light = match node {
            LogicalPlan::TableScan(scan) => source_as_provider(&scan.source)
                .is_ok_and(|provider| provider.downcast_ref::<SysTable>().is_some()),
            LogicalPlan::Join(_) | LogicalPlan::RecursiveQuery(_) | LogicalPlan::Unnest(_) => false,
            _ => true,
        };
        if !light {
            lane = Lane::Records;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(lane)
}

/// Rows in a batch: as configured, fewer where a topic's rows are so wide that an Arrow column could not hold them.
pub(crate) fn batch_rows(plan: &LogicalPlan, configured: usize) -> Result<usize, DataFusionError> {
    let mut widest_bytes = 1;
    for_each_topic(plan, |topic| {
        widest_bytes = widest_bytes.max(topic.widest_row_bytes())
    })?;
    let fitting = usize::try_from(BATCH_BYTES / widest_bytes).unwrap_or(usize::MAX);
    Ok(configured.min(fitting.max(1)))
}
