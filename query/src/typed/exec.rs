//! The plan's node over a scan of stored columns.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties as _, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::derive::{Deriver, Plan};
use super::shown;

/// Computes the columns of a table from those of a scan.
#[derive(Debug)]
pub(super) struct TypedExec {
    plan: Plan,
    scan: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl TypedExec {
    pub(super) fn new(plan: Plan, scan: Arc<dyn ExecutionPlan>) -> Self {
        let partitions = scan.output_partitioning().partition_count();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&plan.schema)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Self {
            plan,
            scan,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn over(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(scan), true) => Ok(Arc::new(Self::new(self.plan.clone(), scan))),
            _ => Err(DataFusionError::Internal(
                "declared columns are computed from one scan".to_owned(),
            )),
        }
    }
}

impl DisplayAs for TypedExec {
    fn fmt_as(
        &self,
        _format: DisplayFormatType,
        f: &mut std::fmt::Formatter<'_>,
    ) -> std::fmt::Result {
        let columns: Vec<_> = self
            .plan
            .schema
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        write!(
            f,
            "TypedExec: format={}, columns={columns:?}",
            shown(&self.plan.typed)
        )
    }
}

impl ExecutionPlan for TypedExec {
    fn name(&self) -> &'static str {
        "TypedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.scan]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.over(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.over(children)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let scan = self.scan.execute(partition, Arc::clone(&context))?;
        let deriver = Deriver::new(self.plan.clone(), context.session_config().batch_size());
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let rows = stream::try_unfold(
            (scan, deriver, baseline),
            |(mut scan, mut deriver, baseline)| async move {
                loop {
                    let time = baseline.elapsed_compute().clone();
                    let made = {
                        let _timer = time.timer();
                        deriver.next()?
                    };
                    if let Some(batch) = made {
                        baseline.record_output(batch.num_rows());
                        return Ok(Some((batch, (scan, deriver, baseline))));
                    }
                    match scan.next().await.transpose()? {
                        Some(stored) => deriver.put(stored),
                        None => return Ok(None),
                    }
                }
            },
        );
        let schema = Arc::clone(&self.plan.schema);
        let rows = RecordBatchStreamAdapter::new(schema, rows.into_stream());
        Ok(make_cooperative(Box::pin(rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
