//! Declared columns, computed from payloads.
//!
//! A scan reads the stored columns that it needs, `_payload` among them, and [`TypedExec`] makes the table's columns of
//! them. It stands above hot and cold scans alike, so that a row is the same on both sides. A query that names no declared
//! column has none of this in its plan, unless payloads have lines (`ndjson`): then how many rows there are is in them.
//!
//! - **QRY-11**: a record is one row, or as many as its frame has lines, whatever its payload is; what does not fit the
//!   topic's schema has NULL in the declared columns, and `_error` says why. No payload ends a query.

mod derive;
mod exec;

use std::sync::Arc;

use basalt_columnar::SQL_COLUMN_COUNT;
use basalt_schema::TopicSchema;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;

use crate::columns::TopicColumns;
use derive::{Output, Plan};
use exec::TypedExec;

/// Where these stand in a topic's table.
const OFFSET: usize = 1;
const PAYLOAD: usize = 5;
const RECORD_COUNT: usize = 6;

/// Scans the stored columns that `projection` needs, and computes the others from them. `scan` is given positions of the
/// server's own columns.
pub(crate) fn scan_computed(
    columns: &TopicColumns,
    projection: &[usize],
    scan: impl FnOnce(&[usize]) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(typed) = columns.computed_by(projection) else {
        return scan(projection);
    };
    let has_lines = columns.has_lines();
    let stored = stored_columns(projection, has_lines);
    let plan = Plan {
        schema: Arc::new(columns.schema().project(projection)?),
        outputs: outputs(projection, &stored, has_lines),
        typed: Arc::clone(typed),
        payload: place(&stored, PAYLOAD),
        offset: has_lines.then(|| place(&stored, OFFSET)),
        record_count: has_lines.then(|| place(&stored, RECORD_COUNT)),
    };
    Ok(Arc::new(TypedExec::new(plan, scan(&stored)?)))
}

/// The server's own columns that are read, in order.
fn stored_columns(projection: &[usize], has_lines: bool) -> Vec<usize> {
    let asked = projection
        .iter()
        .copied()
        .filter(|column| *column < SQL_COLUMN_COUNT);
    let needed: &[usize] = match has_lines {
        true => &[OFFSET, PAYLOAD, RECORD_COUNT],
        false => &[PAYLOAD],
    };
    let mut stored: Vec<usize> = asked.chain(needed.iter().copied()).collect();
    stored.sort_unstable();
    stored.dedup();
    stored
}

fn place(stored: &[usize], column: usize) -> usize {
    stored
        .iter()
        .position(|stored| *stored == column)
        .unwrap_or_default()
}

/// Where each projected column comes from.
fn outputs(projection: &[usize], stored: &[usize], has_lines: bool) -> Vec<Output> {
    let output = |column: &usize| match *column {
        OFFSET if has_lines => Output::Offset,
        PAYLOAD if has_lines => Output::Payload,
        RECORD_COUNT if has_lines => Output::RecordCount,
        column if column < SQL_COLUMN_COUNT => Output::Stored(place(stored, column)),
        column => Output::Declared(column - SQL_COLUMN_COUNT),
    };
    projection.iter().map(output).collect()
}

/// A schema's name in plans.
fn shown(typed: &TopicSchema) -> &'static str {
    typed.format().name()
}
