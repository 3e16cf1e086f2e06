//! A topic as a table.
//!
//! A scan is the union of the topic's cold files, read by DataFusion's Parquet source, and its hot segments, read from
//! their maps. Both come from one snapshot, which says where they meet.
//!
//! **QRY-5**: of a partition the rows that end after `log_start_offset` are shown: `_offset + _record_count >
//! log_start_offset`. A frame that spans several offsets and straddles the log's start is shown, as a consumer gets it; where
//! its lines are rows of their own ([`crate::typed`]), those are that are not before the start.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use basalt_columnar::{ColdFile, PartitionSnapshot};
use basalt_proto::{Offset, TopicName};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::prelude::{col, lit};

use crate::as_of::{self, SnapshotError};
use crate::columns::TopicColumns;
use crate::hot_scan::HotRun;
use crate::prune::{Pruner, RANGE_COLUMNS};
use crate::snapshot::{QuerySnapshots, topic_schema};
use crate::typed::scan_computed;
use crate::{cold_scan, hot_scan};

/// Where `_offset` and `_record_count` stand in a topic's table.
const OFFSET_COLUMNS: [usize; 2] = [1, 6];

/// A topic as one query sees it.
#[derive(Debug)]
pub(crate) struct TopicTable {
    name: TopicName,
    columns: TopicColumns,
    snapshots: Arc<QuerySnapshots>,
}

/// What a scan was asked for.
pub(crate) struct ScanRequest<'a> {
    pub(crate) state: &'a dyn Session,
    pub(crate) snapshots: &'a QuerySnapshots,
    pub(crate) columns: &'a TopicColumns,
    /// Over the whole table's columns, and true of stored rows whenever it is of rows made of them.
    pub(crate) filter: Option<Arc<dyn PhysicalExpr>>,
    pub(crate) pruner: Pruner,
    /// No more rows than this are needed.
    pub(crate) limit: Option<usize>,
}

/// What a scan has to read after pruning.
pub(crate) struct Chosen<T> {
    /// Every row of these is visible.
    pub(crate) whole: Vec<T>,
    /// These begin before the log start that stands beside them.
    pub(crate) straddling: Vec<(Offset, T)>,
}

impl<T> Chosen<T> {
    fn all(&self) -> impl Iterator<Item = &T> {
        let straddling = self.straddling.iter().map(|(_, item)| item);
        straddling.chain(&self.whole)
    }
}

fn external(error: SnapshotError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl TopicTable {
    pub(crate) fn new(
        name: TopicName,
        columns: TopicColumns,
        snapshots: Arc<QuerySnapshots>,
    ) -> Self {
        Self {
            name,
            columns,
            snapshots,
        }
    }

    pub(crate) fn name(&self) -> &TopicName {
        &self.name
    }

    /// Bytes of a row where the topic's rows are widest, averaged over a row group or a block.
    pub(crate) fn widest_row_bytes(&self) -> u64 {
        let snapshots = self.snapshots.topic(&self.name);
        let cold = snapshots.iter().flat_map(|partition| &partition.cold);
        let cold = cold
            .flat_map(|file| &file.chunks)
            .map(|chunk| chunk.frame_bytes / chunk.rows.max(1));
        let hot = snapshots.iter().flat_map(|partition| &partition.hot);
        let hot = hot
            .flat_map(|view| view.blocks())
            .map(|block| block.bytes / u64::from(block.frame_count.max(1)));
        cold.chain(hot).max().unwrap_or(0)
    }
}

#[async_trait]
impl TableProvider for TopicTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.columns.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// Filters on offset, stamp and partition choose files, segments and blocks; DataFusion filters the rows.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let on_ranges = |filter: &&Expr| {
            let columns = filter.column_refs();
            !columns.is_empty()
                && columns
                    .iter()
                    .all(|column| RANGE_COLUMNS.contains(&column.name.as_str()))
        };
        let pushed = |filter: &&Expr| match on_ranges(filter) {
            // A cut that is read again is filtered at the scan (QRY-15).
            true if self.snapshots.as_of().is_some() => TableProviderFilterPushDown::Exact,
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(pushed).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.schema();
        let projection = projection
            .cloned()
            .unwrap_or_else(|| (0..schema.fields().len()).collect());
        let physical = |filters: &mut dyn Iterator<Item = &Expr>| {
            conjunction(filters.cloned())
                .map(|filter| {
                    state.create_physical_expr(filter, &DFSchema::try_from(Arc::clone(&schema))?)
                })
                .transpose()
        };
        // A frame's first offset is not that of its lines. A cut that is read again is filtered where they are known.
        let is_cut = self.snapshots.as_of().is_some();
        let holds_stored = |filter: &&Expr| {
            let mut columns = filter.column_refs().into_iter();
            is_cut || !self.columns.has_lines() || columns.all(|column| column.name != "_offset")
        };
        let request = ScanRequest {
            state,
            snapshots: &self.snapshots,
            columns: &self.columns,
            pruner: Pruner::new(physical(&mut filters.iter())?.as_ref(), &schema),
            filter: physical(&mut filters.iter().filter(holds_stored))?,
            limit,
        };
        let cut = self.snapshots.cut(&self.name).map_err(external)?;
        if is_cut {
            return as_of::plan(&request, &cut, &projection);
        }
        let plans = plans(&request, &cut, &projection)?;
        match plans.is_empty() {
            true => Ok(Arc::new(EmptyExec::new(Arc::new(
                schema.project(&projection)?,
            )))),
            false => UnionExec::try_new(plans),
        }
    }
}

/// The scans whose union is the topic.
fn plans(
    request: &ScanRequest<'_>,
    snapshots: &[PartitionSnapshot],
    projection: &[usize],
) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
    let cold = cold_scan::choose(request, snapshots)?;
    let hot = hot_scan::choose(request, snapshots)?;
    let chunks = cold.all().flat_map(|file| &file.chunks);
    let rows = chunks.map(|chunk| chunk.rows).sum::<u64>()
        + hot.all().map(HotRun::frame_count).sum::<u64>();
    request
        .snapshots
        .add_rows_to_scan(rows, request.limit.is_some());
    let mut plans = Vec::new();
    for (start, file) in cold.straddling {
        plans.push(rows_after(request, start, projection, |columns| {
            cold_rows(request, &[file], columns, None)
        })?);
    }
    if !cold.whole.is_empty() {
        plans.push(cold_rows(request, &cold.whole, projection, request.limit)?);
    }
    for (start, run) in hot.straddling {
        plans.push(rows_after(request, start, projection, |columns| {
            hot_rows(request, vec![run], columns, None)
        })?);
    }
    if !hot.whole.is_empty() {
        plans.push(hot_rows(request, hot.whole, projection, request.limit)?);
    }
    Ok(plans)
}

/// The rows of `files`, in the columns of `projection`: read where they are stored, computed where they are not.
pub(crate) fn cold_rows(
    request: &ScanRequest<'_>,
    files: &[Arc<ColdFile>],
    projection: &[usize],
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let computed = |files: &[Arc<ColdFile>]| {
        scan_computed(request.columns, projection, |stored| {
            cold_scan::plan(request, &topic_schema(), files, stored, limit)
        })
    };
    if request.columns.computed_by(projection).is_none() {
        return computed(files);
    }
    let (stored, others): (Vec<_>, Vec<_>) = files
        .iter()
        .cloned()
        .partition(|file| request.columns.are_stored_in(file));
    if stored.is_empty() {
        return computed(files);
    }
    let table = request.columns.schema();
    let stored = cold_scan::plan(request, table, &stored, projection, limit)?;
    match others.is_empty() {
        true => Ok(stored),
        false => UnionExec::try_new(vec![stored, computed(&others)?]),
    }
}

/// The rows of `runs`, in the columns of `projection`.
pub(crate) fn hot_rows(
    request: &ScanRequest<'_>,
    runs: Vec<HotRun>,
    projection: &[usize],
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    scan_computed(request.columns, projection, |stored| {
        hot_scan::plan(request, runs, stored, limit)
    })
}

/// The rows of `scan` that end after `start`, in the columns of `projection`.
fn rows_after(
    request: &ScanRequest<'_>,
    start: Offset,
    projection: &[usize],
    scan: impl FnOnce(&[usize]) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    // Each column once: a scan gives none twice.
    let missing = OFFSET_COLUMNS
        .into_iter()
        .filter(|column| !projection.contains(column));
    let columns: Vec<usize> = projection.iter().copied().chain(missing).collect();
    let scanned = scan(&columns)?;
    let schema = request.columns.schema();
    let ends_after =
        (col("_offset") + col("_record_count")).gt(lit(i64::try_from(start.0).unwrap_or(i64::MAX)));
    let offset_schema = DFSchema::try_from(schema.project(&columns)?)?;
    let ends_after = request
        .state
        .create_physical_expr(ends_after, &offset_schema)?;
    let visible = Arc::new(FilterExec::try_new(ends_after, scanned)?);
    let wanted = projection.iter().enumerate().map(|(index, column)| {
        let name = schema.field(*column).name().clone();
        (
            Arc::new(Column::new(&name, index)) as Arc<dyn PhysicalExpr>,
            name,
        )
    });
    Ok(Arc::new(ProjectionExec::try_new(
        wanted.collect::<Vec<_>>(),
        visible,
    )?))
}
