//! The hot side of a scan: mapped segments, block by block, through the row builder that cooling uses too.

mod error;

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use basalt_columnar::{PartitionSnapshot, RowBuilder};
use basalt_log::{AbortedTransactions, Block, SegmentView};
use basalt_proto::{FrameLimits, FrameWalk, Offset, PartitionId};
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, conjunction};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};

pub(crate) use error::HotScanError;

use crate::prune::RowRange;
use crate::snapshot::topic_schema;
use crate::topic_table::{Chosen, ScanRequest};

/// Frame bytes after which a batch is handed on, however few its rows are.
const BATCH_BYTES: u64 = 8 << 20;

/// Blocks of one segment to be read.
#[derive(Debug, Clone)]
pub(crate) struct HotRun {
    partition: PartitionId,
    view: Arc<SegmentView>,
    blocks: Vec<Block>,
    aborted: Arc<AbortedTransactions>,
}

impl HotRun {
    /// Frames in it.
    pub(crate) fn frame_count(&self) -> u64 {
        self.blocks
            .iter()
            .map(|block| u64::from(block.frame_count))
            .sum()
    }
}

/// The blocks that the request's filter can touch.
pub(crate) fn choose(
    request: &ScanRequest<'_>,
    snapshots: &[PartitionSnapshot],
) -> Result<Chosen<HotRun>> {
    let mut chosen = Chosen {
        whole: Vec::new(),
        straddling: Vec::new(),
    };
    for snapshot in snapshots {
        // Views begin at the cold end already; a block below it would be a row shown twice.
        let floor = snapshot.log_start_offset.max(snapshot.cold_end_offset);
        let segments: Vec<RowRange> = snapshot
            .hot
            .iter()
            .map(|view| segment_range(snapshot.partition, view))
            .collect();
        for (view, keep) in snapshot.hot.iter().zip(request.pruner.keep(&segments)?) {
            if keep && view.end_offset > floor {
                choose_blocks(request, snapshot, view, floor, &mut chosen)?;
            }
        }
    }
    Ok(chosen)
}

fn choose_blocks(
    request: &ScanRequest<'_>,
    snapshot: &PartitionSnapshot,
    view: &Arc<SegmentView>,
    floor: Offset,
    chosen: &mut Chosen<HotRun>,
) -> Result<()> {
    let run = |blocks| HotRun {
        partition: snapshot.partition,
        view: Arc::clone(view),
        blocks,
        aborted: Arc::clone(&snapshot.aborted),
    };
    let ranges: Vec<RowRange> = view
        .blocks()
        .iter()
        .map(|block| block_range(snapshot.partition, block))
        .collect();
    let mut whole = Vec::new();
    for (block, keep) in view.blocks().iter().zip(request.pruner.keep(&ranges)?) {
        if !keep || block.end_offset() <= floor {
            continue;
        }
        match block.base_offset < floor {
            true => chosen.straddling.push((floor, run(vec![*block]))),
            false => whole.push(*block),
        }
    }
    if !whole.is_empty() {
        chosen.whole.push(run(whole));
    }
    Ok(())
}

fn segment_range(partition: PartitionId, view: &SegmentView) -> RowRange {
    RowRange {
        partition,
        base_offset: view.base_offset,
        end_offset: view.end_offset,
        timestamps_ns: view
            .blocks()
            .iter()
            .map(|block| (block.min_timestamp_ns, block.max_timestamp_ns))
            .reduce(|(min, max), (block_min, block_max)| (min.min(block_min), max.max(block_max))),
    }
}

fn block_range(partition: PartitionId, block: &Block) -> RowRange {
    RowRange {
        partition,
        base_offset: block.base_offset,
        end_offset: block.end_offset(),
        timestamps_ns: Some((block.min_timestamp_ns, block.max_timestamp_ns)),
    }
}

/// Reads `runs` in the columns of `projection`.
pub(crate) fn plan(
    request: &ScanRequest<'_>,
    runs: Vec<HotRun>,
    projection: &[usize],
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let streams = spread(runs, request.state.config().target_partitions());
    Ok(Arc::new(HotScanExec::new(streams, projection, limit)?))
}

/// Deals runs out to at most `count` streams of about equal bytes, each in order.
fn spread(runs: Vec<HotRun>, count: usize) -> Vec<Vec<HotRun>> {
    let total: u64 = runs
        .iter()
        .flat_map(|run| &run.blocks)
        .map(|block| block.bytes)
        .sum();
    let share = total
        .div_ceil(u64::try_from(count.max(1)).unwrap_or(1))
        .max(1);
    let mut streams: Vec<Vec<HotRun>> = Vec::new();
    let mut filled = share;
    for run in runs {
        let mut blocks = Vec::new();
        for block in &run.blocks {
            if filled >= share {
                if !blocks.is_empty()
                    && let Some(stream) = streams.last_mut()
                {
                    stream.push(HotRun {
                        blocks: std::mem::take(&mut blocks),
                        ..run.clone()
                    });
                }
                streams.push(Vec::new());
                filled = 0;
            }
            filled += block.bytes;
            blocks.push(*block);
        }
        if let Some(stream) = streams.last_mut()
            && !blocks.is_empty()
        {
            stream.push(HotRun { blocks, ..run });
        }
    }
    streams
}

/// Scans runs of blocks, one stream of rows a partition of the plan.
#[derive(Debug)]
struct HotScanExec {
    streams: Vec<Vec<HotRun>>,
    projection: Vec<usize>,
    limit: Option<usize>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl HotScanExec {
    fn new(streams: Vec<Vec<HotRun>>, projection: &[usize], limit: Option<usize>) -> Result<Self> {
        let schema = Arc::new(topic_schema().project(projection)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(streams.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            streams,
            projection: projection.to_vec(),
            limit,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

impl DisplayAs for HotScanExec {
    fn fmt_as(
        &self,
        format: DisplayFormatType,
        f: &mut std::fmt::Formatter<'_>,
    ) -> std::fmt::Result {
        let runs = || self.streams.iter().flatten();
        let blocks: usize = runs().map(|run| run.blocks.len()).sum();
        let schema = self.properties.equivalence_properties().schema();
        let columns: Vec<_> = schema
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        if format != DisplayFormatType::TreeRender {
            write!(f, "HotScanExec: ")?;
        }
        write!(
            f,
            "runs={}, blocks={blocks}, projection={columns:?}",
            runs().count()
        )?;
        self.limit
            .map_or(Ok(()), |limit| write!(f, ", limit={limit}"))
    }
}

impl ExecutionPlan for HotScanExec {
    fn name(&self) -> &'static str {
        "HotScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    /// Takes every filter itself: above a projection that computes JSON functions they would come too late.
    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let filters: Vec<_> = result
            .parent_filters
            .iter()
            .map(|pushed| Arc::clone(&pushed.filter))
            .collect();
        // A limit counts the rows that come out.
        if phase != FilterPushdownPhase::Pre || filters.is_empty() || self.limit.is_some() {
            return Ok(FilterPushdownPropagation::if_all(result));
        }
        let pushed = vec![PushedDown::Yes; filters.len()];
        let scan = Arc::new(Self::new(self.streams.clone(), &self.projection, None)?);
        let filtered = FilterExec::try_new(conjunction(filters), scan)?;
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(pushed);
        Ok(propagation.with_updated_node(Arc::new(filtered)))
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(runs) = self.streams.get(partition) else {
            return Err(DataFusionError::Internal(format!(
                "no stream {partition} of {}",
                self.streams.len()
            )));
        };
        let schema = Arc::clone(self.properties.equivalence_properties().schema());
        let rows = HotRows {
            runs: runs.iter().cloned().collect(),
            block: 0,
            position: 0,
            pending: VecDeque::new(),
            schema: Arc::clone(&schema),
            projection: self.projection.clone(),
            batch_rows: context.session_config().batch_size(),
            rows_left: self.limit.unwrap_or(usize::MAX),
            blocks_read: MetricBuilder::new(&self.metrics).counter("blocks_read", partition),
            bytes_scanned: MetricBuilder::new(&self.metrics).counter("bytes_scanned", partition),
            baseline: BaselineMetrics::new(&self.metrics, partition),
        };
        let stream = RecordBatchStreamAdapter::new(schema, futures::stream::iter(rows));
        Ok(make_cooperative(Box::pin(stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn fetch(&self) -> Option<usize> {
        self.limit
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let scan = Self::new(self.streams.clone(), &self.projection, limit).ok()?;
        Some(Arc::new(scan))
    }
}

/// Where a block is read.
struct Current {
    view: Arc<SegmentView>,
    aborted: Arc<AbortedTransactions>,
}

/// The batches of one stream, each built when it is asked for.
struct HotRows {
    runs: VecDeque<HotRun>,
    /// The next block of the first run, and how far into it the rows got.
    block: usize,
    position: usize,
    pending: VecDeque<RecordBatch>,
    schema: SchemaRef,
    projection: Vec<usize>,
    batch_rows: usize,
    rows_left: usize,
    blocks_read: Count,
    bytes_scanned: Count,
    baseline: BaselineMetrics,
}

impl Iterator for HotRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending.is_empty() {
            let time = self.baseline.elapsed_compute().clone();
            let _timer = time.timer();
            let partition = self.runs.front()?.partition;
            if let Err(error) = self.build(partition) {
                self.runs.clear();
                return Some(Err(error));
            }
        }
        let batch = self.pending.pop_front()?;
        self.baseline.record_output(batch.num_rows());
        Some(Ok(batch))
    }
}

impl HotRows {
    /// Reads frames of `partition` until they make a batch, and queues it.
    fn build(&mut self, partition: PartitionId) -> Result<()> {
        let mut builder = RowBuilder::with_projection(partition, Some(&self.projection));
        let mut counted_rows = 0;
        let wanted = self.batch_rows.min(self.rows_left);
        while builder.row_count() < wanted && builder.value_bytes() < BATCH_BYTES {
            let Some((run, block)) = self.current(partition)? else {
                break;
            };
            if self.projection.is_empty() && !block.has_batches {
                // `count(*)` asks for no column, and the index knows how many record frames a block has.
                counted_rows += usize::try_from(block.frame_count).unwrap_or(usize::MAX);
                self.next_block();
            } else {
                self.push_frames(&run, &block, wanted, &mut builder)?;
            }
        }
        if counted_rows > 0 {
            let options = RecordBatchOptions::new().with_row_count(Some(counted_rows));
            self.queue(&RecordBatch::try_new_with_options(
                Arc::clone(&self.schema),
                Vec::new(),
                &options,
            )?);
        }
        if builder.row_count() > 0 {
            self.queue(&builder.finish());
        }
        Ok(())
    }

    /// The block to be read next, if it is one of `partition`.
    fn current(&mut self, partition: PartitionId) -> Result<Option<(Current, Block)>> {
        while let Some(run) = self.runs.front().filter(|run| run.partition == partition) {
            let Some(block) = run.blocks.get(self.block) else {
                self.runs.pop_front();
                self.block = 0;
                continue;
            };
            let damaged = run.view.is_damaged(block);
            if damaged.map_err(|source| HotScanError::frame(&run.view, block, source))? {
                return Err(HotScanError::damaged(&run.view, block).into());
            }
            let current = Current {
                view: Arc::clone(&run.view),
                aborted: Arc::clone(&run.aborted),
            };
            return Ok(Some((current, *block)));
        }
        Ok(None)
    }

    fn next_block(&mut self) {
        self.block += 1;
        self.position = 0;
    }

    /// Pushes the rest of `block`'s frames until the batch is full.
    fn push_frames(
        &mut self,
        Current { view, aborted }: &Current,
        block: &Block,
        wanted: usize,
        builder: &mut RowBuilder,
    ) -> Result<()> {
        if self.position == 0 {
            self.blocks_read.add(1);
            self.bytes_scanned
                .add(usize::try_from(block.bytes).unwrap_or(usize::MAX));
        }
        let bytes = view
            .block_bytes(block)
            .map_err(|source| HotScanError::frame(view, block, source))?;
        let mut walk = FrameWalk::new(&bytes[self.position..], FrameLimits::UNLIMITED);
        while builder.row_count() < wanted && builder.value_bytes() < BATCH_BYTES {
            match walk.next() {
                Some(Ok(frame)) if !aborted.shows(&frame) => {}
                Some(Ok(frame)) => builder
                    .push(&frame)
                    .map_err(|source| HotScanError::frame(view, block, source))?,
                Some(Err(source)) => return Err(HotScanError::frame(view, block, source).into()),
                None if self.position + walk.position() == bytes.len() => break,
                None => return Err(HotScanError::damaged(view, block).into()),
            }
        }
        self.position += walk.position();
        if self.position == bytes.len() {
            self.next_block();
        }
        Ok(())
    }

    /// Hands `batch` on in pieces of the wanted size, up to the limit.
    fn queue(&mut self, batch: &RecordBatch) {
        let rows = batch.num_rows().min(self.rows_left);
        self.rows_left -= rows;
        let mut at = 0;
        while at < rows {
            let length = self.batch_rows.max(1).min(rows - at);
            self.pending.push_back(batch.slice(at, length));
            at += length;
        }
        if self.rows_left == 0 {
            self.runs.clear();
        }
    }
}
