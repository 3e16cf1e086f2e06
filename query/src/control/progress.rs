//! How far a running plan is, read from its own metrics.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

/// What a plan has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Rows that its scans of topics gave.
    pub(crate) scanned_rows: u64,
    /// Bytes that they read: of Parquet files, and of frames.
    pub(crate) scanned_bytes: u64,
    /// Bytes that it wrote to spill files.
    pub(crate) spilled_bytes: u64,
}

impl Progress {
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut found = Self::default();
        found.add(plan);
        found
    }

    fn add(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        let children = plan.children();
        if let Some(metrics) = plan.metrics() {
            let sum = |name: &str| {
                let value = metrics.sum_by_name(name);
                value.map_or(0, |value| {
                    u64::try_from(value.as_usize()).unwrap_or(u64::MAX)
                })
            };
            self.scanned_bytes += sum("bytes_scanned");
            self.spilled_bytes +=
                u64::try_from(metrics.spilled_bytes().unwrap_or(0)).unwrap_or(u64::MAX);
            if children.is_empty() {
                self.scanned_rows +=
                    u64::try_from(metrics.output_rows().unwrap_or(0)).unwrap_or(u64::MAX);
            }
        }
        for child in children {
            self.add(child);
        }
    }
}
