//! A topic's rows of a cut, the same wherever they lie.

use std::sync::Arc;

use arrow::datatypes::Schema;
use basalt_columnar::{ColdFile, PartitionSnapshot};
use basalt_proto::Offset;
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::prelude::{col, lit};

use super::in_order::InOrderExec;
use crate::prune::Pruner;
use crate::topic_table::{ScanRequest, cold_rows, hot_rows};
use crate::{cold_scan, hot_scan};

/// The rows of `cuts` that pass the request's filter, in the columns of `projection`.
///
/// The filter is applied here and not above: what it leaves out of files and segments without a look is not the same
/// hot and cold, what it leaves of their rows is.
pub(crate) fn plan(
    request: &ScanRequest<'_>,
    cuts: &[PartitionSnapshot],
    projection: &[usize],
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut pieces = Vec::new();
    for cut in cuts {
        pieces.extend(pieces_of(request, cut, projection)?);
    }
    let schema = Arc::new(request.columns.schema().project(projection)?);
    Ok(Arc::new(InOrderExec::new(pieces, schema, true)))
}

/// The cold rows of a partition, then its hot ones.
fn pieces_of(
    request: &ScanRequest<'_>,
    cut: &PartitionSnapshot,
    projection: &[usize],
) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
    let within = within(request, cut)?;
    let filter = match &request.filter {
        Some(asked) => {
            Arc::new(BinaryExpr::new(Arc::clone(asked), Operator::And, within)) as Arc<_>
        }
        None => within,
    };
    let schema = request.columns.schema();
    let request = ScanRequest {
        state: request.state,
        snapshots: request.snapshots,
        columns: request.columns,
        pruner: Pruner::new(Some(&filter), schema),
        // What a frame has is not what its lines have.
        filter: (!request.columns.has_lines()).then(|| Arc::clone(&filter)),
        limit: None,
    };
    let mut columns: Vec<usize> = projection.to_vec();
    columns.extend(collect_columns(&filter).iter().map(Column::index));
    columns.sort_unstable();
    columns.dedup();

    let cuts = std::slice::from_ref(cut);
    let cold = cold_scan::choose(&request, cuts)?;
    // What straddles the start comes before what does not.
    let files = cold.straddling.into_iter().map(|(_, file)| file);
    let files: Vec<_> = files.chain(cold.whole).collect();
    let hot = hot_scan::choose(&request, cuts)?;
    let runs = hot.straddling.into_iter().map(|(_, run)| run);
    let runs: Vec<_> = runs.chain(hot.whole).collect();
    let mut pieces = Vec::new();
    // Files that store the declared columns and files that do not are read in different ways, each in its turn.
    let alike = |left: &Arc<ColdFile>, right: &Arc<ColdFile>| {
        request.columns.are_stored_in(left) == request.columns.are_stored_in(right)
    };
    for files in files.chunk_by(alike) {
        pieces.push(cold_rows(&request, files, &columns, None)?);
    }
    if !runs.is_empty() {
        pieces.push(hot_rows(&request, runs, &columns, None)?);
    }
    let read = schema.project(&columns)?;
    pieces
        .into_iter()
        .map(|piece| chosen(piece, &filter, &read, schema, projection))
        .collect()
}

/// Rows that end after the cut's start and begin before its end, which is where one began.
fn within(request: &ScanRequest<'_>, cut: &PartitionSnapshot) -> Result<Arc<dyn PhysicalExpr>> {
    let bound = |offset: Offset| lit(i64::try_from(offset.0).unwrap_or(i64::MAX));
    let ends_after = (col("_offset") + col("_record_count")).gt(bound(cut.log_start_offset));
    let begins_before = col("_offset").lt(bound(cut.high_watermark));
    request.state.create_physical_expr(
        begins_before.and(ends_after),
        &DFSchema::try_from(Arc::clone(request.columns.schema()))?,
    )
}

/// The rows of `piece`, whose columns are `read`, that pass `filter`, in the columns of `projection`, which are positions in `table`.
fn chosen(
    piece: Arc<dyn ExecutionPlan>,
    filter: &Arc<dyn PhysicalExpr>,
    read: &Schema,
    table: &Schema,
    projection: &[usize],
) -> Result<Arc<dyn ExecutionPlan>> {
    let filter = reassign_expr_columns(Arc::clone(filter), read)?;
    let passing = Arc::new(FilterExec::try_new(filter, piece)?);
    let wanted = projection
        .iter()
        .map(|column| {
            let name = table.field(*column).name();
            let column = Column::new(name, read.index_of(name)?);
            Ok((Arc::new(column) as Arc<dyn PhysicalExpr>, name.clone()))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(wanted, passing)?))
}
