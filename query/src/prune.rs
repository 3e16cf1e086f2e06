//! Which files, segments and blocks a filter can touch.
//!
//! Each of them is a range of offsets and stamps in one partition. DataFusion's own pruning predicate turns any filter
//! over `_partition`, `_offset` and `_timestamp` into a question about such ranges.
//!
//! **QRY-4**: pruning only leaves out what no row can match; the filter itself is still applied to every row.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int32Array, Int64Array, TimestampNanosecondArray};
use arrow::datatypes::SchemaRef;
use basalt_columnar::sql_timestamp_ns;
use basalt_proto::{Offset, PartitionId};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};

/// The columns whose range is known of every file, segment and block.
pub(crate) const RANGE_COLUMNS: [&str; 3] = ["_partition", "_offset", "_timestamp"];

/// What is known of some rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRange {
    pub(crate) partition: PartitionId,
    /// First offset.
    pub(crate) base_offset: Offset,
    /// First offset after them.
    pub(crate) end_offset: Offset,
    /// Smallest and largest raw stamp; `None` if not known.
    pub(crate) timestamps_ns: Option<(u64, u64)>,
}

/// Chooses the ranges that a filter can touch.
#[derive(Debug, Clone)]
pub(crate) struct Pruner {
    predicate: Option<Arc<PruningPredicate>>,
}

impl Pruner {
    /// `filter` is over the columns of `schema`; without one nothing is pruned.
    pub(crate) fn new(filter: Option<&Arc<dyn PhysicalExpr>>, schema: &SchemaRef) -> Self {
        // A filter that cannot be asked about ranges prunes nothing: that costs time, never rows.
        let builder = PruningPredicateBuilder::new().with_file_schema(Arc::clone(schema));
        let predicate = filter.and_then(|filter| builder.build(Arc::clone(filter)));
        Self { predicate }
    }

    /// For each range whether any of its rows may match.
    pub(crate) fn keep(&self, ranges: &[RowRange]) -> Result<Vec<bool>> {
        match &self.predicate {
            Some(predicate) if !ranges.is_empty() => predicate.prune(&Ranges(ranges)),
            _ => Ok(vec![true; ranges.len()]),
        }
    }
}

struct Ranges<'a>(&'a [RowRange]);

impl Ranges<'_> {
    fn partitions(&self) -> ArrayRef {
        // A partition that SQL's INT cannot hold is left unknown.
        Arc::new(
            self.0
                .iter()
                .map(|range| i32::try_from(range.partition.0).ok())
                .collect::<Int32Array>(),
        )
    }

    fn offsets(&self, of: impl Fn(&RowRange) -> u64) -> ArrayRef {
        Arc::new(
            self.0
                .iter()
                .map(|range| i64::try_from(of(range)).ok())
                .collect::<Int64Array>(),
        )
    }

    fn timestamps(&self, of: impl Fn((u64, u64)) -> Option<i64>) -> ArrayRef {
        let stamps = self.0.iter().map(|range| range.timestamps_ns.and_then(&of));
        Arc::new(
            stamps
                .collect::<TimestampNanosecondArray>()
                .with_timezone("UTC"),
        )
    }
}

impl PruningStatistics for Ranges<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        match column.name() {
            "_partition" => Some(self.partitions()),
            "_offset" => Some(self.offsets(|range| range.base_offset.0)),
            // No row of the range has a stamp that SQL shows if even the smallest is too large: left unknown.
            "_timestamp" => Some(self.timestamps(|(min, _)| sql_timestamp_ns(min))),
            _ => None,
        }
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        match column.name() {
            "_partition" => Some(self.partitions()),
            "_offset" => Some(self.offsets(|range| range.end_offset.0.saturating_sub(1))),
            // Stamps that SQL cannot show are NULL there, so the largest one it shows is a bound of the others.
            "_timestamp" => Some(
                self.timestamps(|(_, max)| Some(sql_timestamp_ns(max).unwrap_or(i64::MAX - 1))),
            ),
            _ => None,
        }
    }

    fn num_containers(&self) -> usize {
        self.0.len()
    }

    fn null_counts(&self, _column: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::DFSchema;
    use datafusion::logical_expr::Expr;
    use datafusion::prelude::{SessionContext, col, lit};

    use super::*;
    use crate::snapshot::topic_schema;

    fn kept(filter: &Expr) -> Vec<bool> {
        let range = |partition, base, end, stamps| RowRange {
            partition: PartitionId(partition),
            base_offset: Offset(base),
            end_offset: Offset(end),
            timestamps_ns: stamps,
        };
        let ranges = [
            range(0, 0, 100, Some((1_000, 2_000))),
            range(0, 100, 200, Some((2_000, u64::MAX))),
            range(1, 0, 50, Some((u64::MAX, u64::MAX))),
            range(2, 0, 50, None),
        ];
        let schema = DFSchema::try_from(topic_schema()).unwrap();
        let filter = SessionContext::new()
            .create_physical_expr(filter.clone(), &schema)
            .unwrap();
        Pruner::new(Some(&filter), &topic_schema())
            .keep(&ranges)
            .unwrap()
    }

    fn stamp(ns: i64) -> Expr {
        lit(ScalarValue::TimestampNanosecond(
            Some(ns),
            Some("UTC".into()),
        ))
    }

    #[test]
    fn offsets_and_partitions_leave_out_what_cannot_match() {
        assert_eq!(
            kept(&col("_offset").gt_eq(lit(100_i64))),
            [false, true, false, false]
        );
        assert_eq!(
            kept(&col("_offset").eq(lit(99_i64))),
            [true, false, false, false]
        );
        assert_eq!(
            kept(&col("_partition").eq(lit(1_i32))),
            [false, false, true, false]
        );
        assert_eq!(
            kept(
                &col("_offset")
                    .lt(lit(50_i64))
                    .and(col("_partition").not_eq(lit(0_i32)))
            ),
            [false, false, true, true]
        );
    }

    #[test]
    fn stamps_that_sql_cannot_show_never_leave_out_rows_that_it_can() {
        assert_eq!(
            kept(&col("_timestamp").lt(stamp(1_500)))[..2],
            [true, false]
        );
        assert!(kept(&col("_timestamp").gt(stamp(i64::MAX - 2)))[1]);
        assert!(kept(&col("_timestamp").gt(stamp(5_000)))[3]);
        assert_eq!(kept(&col("_timestamp").is_null()), [true; 4]);
    }

    #[test]
    fn a_filter_on_other_columns_leaves_out_nothing() {
        assert_eq!(
            kept(&col("_payload").eq(lit(ScalarValue::Binary(Some(vec![1]))))),
            [true; 4]
        );
    }
}
