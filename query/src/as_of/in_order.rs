//! Several inputs one after the other, in batches of one size.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, RecordBatch,
    RecordBatchOptions, downcast_primitive_array,
};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{Stream, StreamExt, TryStreamExt, stream};

/// Reads its inputs, and the partitions of each, one after the other, as one partition.
///
/// It says nothing of how many rows there are: plans must not depend on what is known of them in one place and not in the other.
#[derive(Debug)]
pub(crate) struct InOrderExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// Whether every batch but the last has exactly the rows that the session says.
    exact_batches: bool,
    properties: Arc<PlanProperties>,
}

impl InOrderExec {
    pub(super) fn new(
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        schema: SchemaRef,
        exact_batches: bool,
    ) -> Self {
        let bounded = inputs
            .iter()
            .all(|input| input.boundedness() == Boundedness::Bounded);
        let boundedness = match bounded {
            true => Boundedness::Bounded,
            false => Boundedness::Unbounded {
                requires_infinite_memory: false,
            },
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            boundedness,
        );
        Self {
            inputs,
            exact_batches,
            properties: Arc::new(properties),
        }
    }
}

impl DisplayAs for InOrderExec {
    fn fmt_as(
        &self,
        format: DisplayFormatType,
        f: &mut std::fmt::Formatter<'_>,
    ) -> std::fmt::Result {
        if format != DisplayFormatType::TreeRender {
            write!(f, "InOrderExec: ")?;
        }
        write!(
            f,
            "inputs={}, exact_batches={}",
            self.inputs.len(),
            self.exact_batches
        )
    }
}

impl ExecutionPlan for InOrderExec {
    fn name(&self) -> &'static str {
        "InOrderExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.inputs.len()]
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
        let schema = Arc::clone(self.properties.equivalence_properties().schema());
        Ok(Arc::new(Self::new(children, schema, self.exact_batches)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = Arc::clone(self.properties.equivalence_properties().schema());
        Ok(Arc::new(Self::new(children, schema, self.exact_batches)))
    }

    fn execute(
        &self,
        _partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let schema = Arc::clone(self.properties.equivalence_properties().schema());
        let batch_rows = context.session_config().batch_size();
        let parts: Vec<_> = self
            .inputs
            .iter()
            .flat_map(|input| {
                let count = input.output_partitioning().partition_count();
                (0..count).map(move |partition| (Arc::clone(input), partition))
            })
            .collect();
        // Each is started when the one before has ended.
        let rows = stream::iter(parts)
            .map(move |(input, partition)| input.execute(partition, Arc::clone(&context)))
            .try_flatten();
        Ok(match self.exact_batches {
            true => Box::pin(RecordBatchStreamAdapter::new(
                Arc::clone(&schema),
                exact(rows, schema, batch_rows),
            )),
            false => Box::pin(RecordBatchStreamAdapter::new(schema, rows)),
        })
    }
}

/// The rows of `batches` in batches of exactly `rows`, but the last.
fn exact(
    batches: impl Stream<Item = Result<RecordBatch>> + Send,
    schema: SchemaRef,
    rows: usize,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    let gathering = Gathering::new(schema, rows);
    let batches = Box::pin(batches.fuse());
    stream::try_unfold((batches, gathering), |(mut batches, mut gathering)| async {
        loop {
            if let Some(batch) = gathering.next() {
                return Ok(Some((batch, (batches, gathering))));
            }
            match batches.next().await {
                Some(batch) => gathering.push(batch?)?,
                None if gathering.finish()? => {}
                None => return Ok(None),
            }
        }
    })
}

/// The same rows with zeros in the place of NULLs: what stands there differs by where a row was read from, and is sent along.
fn blanked(batch: RecordBatch) -> Result<RecordBatch> {
    let (schema, columns, _) = batch.into_parts();
    let columns = columns.iter().map(blank).collect();
    Ok(RecordBatch::try_new(schema, columns)?)
}

fn blank(array: &ArrayRef) -> ArrayRef {
    if array.null_count() == 0 {
        return Arc::clone(array);
    }
    downcast_primitive_array!(
        array => Arc::new(blank_primitive(array)),
        DataType::Boolean => {
            let array = array.as_boolean();
            let valid = array.nulls().map_or_else(|| array.values().clone(), |nulls| nulls.inner() & array.values());
            Arc::new(BooleanArray::new(valid, array.nulls().cloned()))
        }
        _ => Arc::clone(array),
    )
}

fn blank_primitive<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>) -> PrimitiveArray<T> {
    let values = array.iter().map(Option::unwrap_or_default).collect();
    PrimitiveArray::new(values, array.nulls().cloned()).with_data_type(array.data_type().clone())
}

/// Rows on their way to a batch.
enum Gathering {
    Columns(BatchCoalescer),
    /// Of rows without columns only the number counts.
    Counted {
        schema: SchemaRef,
        rows: usize,
        waiting: usize,
        ended: bool,
    },
}

impl Gathering {
    fn new(schema: SchemaRef, rows: usize) -> Self {
        match schema.fields().is_empty() {
            true => Self::Counted {
                schema,
                rows,
                waiting: 0,
                ended: false,
            },
            false => Self::Columns(BatchCoalescer::new(schema, rows)),
        }
    }

    fn push(&mut self, batch: RecordBatch) -> Result<()> {
        match self {
            Self::Columns(columns) => columns.push_batch(blanked(batch)?)?,
            Self::Counted { waiting, .. } => *waiting += batch.num_rows(),
        }
        Ok(())
    }

    /// No more rows will come; whether some still wait.
    fn finish(&mut self) -> Result<bool, DataFusionError> {
        match self {
            Self::Columns(columns) => {
                columns.finish_buffered_batch()?;
                Ok(columns.has_completed_batch())
            }
            Self::Counted { waiting, ended, .. } => {
                *ended = true;
                Ok(*waiting > 0)
            }
        }
    }

    fn next(&mut self) -> Option<RecordBatch> {
        match self {
            Self::Columns(columns) => columns.next_completed_batch(),
            Self::Counted {
                schema,
                rows,
                waiting,
                ended,
            } => {
                let count = (*waiting).min(*rows);
                if count == 0 || (count < *rows && !*ended) {
                    return None;
                }
                *waiting -= count;
                let options = RecordBatchOptions::new().with_row_count(Some(count));
                RecordBatch::try_new_with_options(Arc::clone(schema), Vec::new(), &options).ok()
            }
        }
    }
}

/// Where a query has one thread, unions are read in written order, so that no two of their inputs race.
#[derive(Debug)]
pub(crate) struct UnionsInOrder;

impl PhysicalOptimizerRule for UnionsInOrder {
    fn name(&self) -> &'static str {
        "UnionsInOrder"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if config.execution.target_partitions != 1 {
            return Ok(plan);
        }
        plan.transform_up(|node| match node.downcast_ref::<UnionExec>() {
            Some(union) => {
                let inputs = union.inputs().clone();
                let in_order = InOrderExec::new(inputs, union.schema(), false);
                Ok(Transformed::yes(Arc::new(in_order) as _))
            }
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    async fn sizes(found: &[usize], columns: bool) -> Vec<usize> {
        let batch = |rows: usize| {
            let values: ArrayRef = Arc::new(Int64Array::from(vec![7; rows]));
            let batch = RecordBatch::try_from_iter([("a", values)]).unwrap();
            match columns {
                true => batch,
                false => batch.project(&[]).unwrap(),
            }
        };
        let schema = batch(0).schema();
        let batches: Vec<_> = found.iter().map(|rows| Ok(batch(*rows))).collect();
        let exact = exact(stream::iter(batches), schema, 10);
        let exact: Vec<_> = exact.try_collect().await.unwrap();
        exact.iter().map(RecordBatch::num_rows).collect()
    }

    #[tokio::test]
    async fn batches_have_one_size_whatever_size_they_came_in() {
        for columns in [true, false] {
            for found in [
                &[][..],
                &[0],
                &[3],
                &[10],
                &[25],
                &[9, 1, 0, 14, 1],
                &[1; 25],
            ] {
                let total: usize = found.iter().sum();
                let mut expected = vec![10; total / 10];
                let rest = total % 10;
                expected.extend((rest > 0).then_some(rest));
                assert_eq!(sizes(found, columns).await, expected, "{found:?} {columns}");
            }
        }
    }
}
