//! Maintenance: a task that sleeps until a segment was sealed, somebody asked, or the interval is over.

use std::sync::Arc;

use basalt_proto::{PartitionId, TopicName};
use futures::StreamExt;

use crate::cool::{CoolReport, CoolWhat};
use crate::error::{Chain, CoolError, DeleteError};
use crate::partition::TieredPartition;
use crate::shared::COOLINGS;
use crate::tiered::Tier;

/// What one pass did.
#[derive(Debug, Default)]
pub struct MaintenanceReport {
    /// What was cooled.
    pub cooled: CoolReport,
    /// Partitions whose start moved.
    pub expired_partitions: u32,
    /// Cold files that were deleted.
    pub deleted_files: u64,
    /// What failed. It is tried again in the next pass.
    pub errors: Vec<(TopicName, PartitionId, CoolError)>,
    /// Deleted topics whose objects could not be deleted. They are tried again in the next pass.
    pub delete_errors: Vec<DeleteError>,
}

/// Runs until it is aborted.
pub(crate) async fn run(tier: Arc<Tier>) {
    let mut seals = tier.shared.log.seals();
    loop {
        seals.mark_unchanged();
        let report = tier.maintain().await;
        for (topic, partition, error) in &report.errors {
            tracing::warn!(%topic, %partition, error = %Chain(error), "maintenance failed");
        }
        for error in &report.delete_errors {
            tracing::warn!(error = %Chain(error), "a deleted topic's objects are still there");
        }
        tokio::select! {
            sealed = seals.changed() => {
                if sealed.is_err() {
                    // The log is gone.
                    return;
                }
            }
            () = tier.shared.wake.notified() => {}
            () = tokio::time::sleep(tier.shared.config.maintenance_interval) => {}
        }
    }
}

impl Tier {
    /// One pass over all partitions, some at a time.
    pub(crate) async fn maintain(&self) -> MaintenanceReport {
        let partitions = futures::stream::iter(self.all_partitions());
        let mut reports = partitions
            .map(maintain_partition)
            .buffer_unordered(COOLINGS);
        let mut report = MaintenanceReport::default();
        while let Some(one) = reports.next().await {
            report.cooled.add(one.cooled);
            report.expired_partitions += one.expired_partitions;
            report.deleted_files += one.deleted_files;
            report.errors.extend(one.errors);
        }
        self.delete_topics(&mut report).await;
        report
    }

    async fn delete_topics(&self, report: &mut MaintenanceReport) {
        let (unread, read) = {
            let mut deleted = self.deleted.lock();
            let (unread, read): (Vec<_>, Vec<_>) =
                deleted.drain(..).partition(|topic| topic.is_unread());
            (unread, read)
        };
        self.deleted.lock().extend(read);
        for topic in unread {
            if let Err(error) = topic.delete_objects(&self.shared).await {
                report.delete_errors.push(error);
                self.deleted.lock().push(topic);
            }
        }
    }
}

async fn maintain_partition(partition: Arc<TieredPartition>) -> MaintenanceReport {
    let mut report = MaintenanceReport::default();
    if partition.rests() || partition.state.lock().closed {
        return report;
    }
    match partition.maintain(&mut report).await {
        // Deleted, or shut down, meanwhile.
        Ok(()) | Err(CoolError::Closed) => {}
        Err(error) => {
            partition.rest();
            report
                .errors
                .push((partition.topic().clone(), partition.id(), error));
        }
    }
    report
}

impl TieredPartition {
    /// What has expired need not be cooled, so that comes first.
    async fn maintain(&self, report: &mut MaintenanceReport) -> Result<(), CoolError> {
        if self.expire().await? {
            report.expired_partitions += 1;
        }
        report.cooled.add(self.cool(CoolWhat::Due).await?);
        report.deleted_files += self.delete_dropped().await?;
        Ok(())
    }

    /// Leaves the partition alone for an interval: each segment that is sealed elsewhere would try again what has just failed.
    fn rest(&self) {
        let until_ns = self.shared.now_ns().saturating_add(self.rest_ns());
        self.state.lock().rest_until_ns = until_ns;
    }

    fn rests(&self) -> bool {
        let left_ns = self
            .state
            .lock()
            .rest_until_ns
            .saturating_sub(self.shared.now_ns());
        // More than an interval is left only if the clock was set back.
        left_ns > 0 && left_ns <= self.rest_ns()
    }

    fn rest_ns(&self) -> u64 {
        // A little less than the interval, so that the pass after it comes through.
        let interval_ns = self.shared.config.maintenance_interval.as_nanos() / 10 * 9;
        u64::try_from(interval_ns).unwrap_or(u64::MAX)
    }
}
