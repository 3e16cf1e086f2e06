//! Maintenance: a task that sleeps until a segment was sealed, somebody asked, or the interval is over.

use std::collections::HashSet;
use std::sync::Arc;

use basalt_proto::{PartitionId, TopicName};
use futures::StreamExt;

use crate::compact::{CompactionReport, When};
use crate::cool::CoolReport;
use crate::error::{Chain, CoolError, DeleteError};
use crate::merge::MergeReport;
use crate::partition::TieredPartition;
use crate::tiered::Tier;

/// What one pass did.
#[derive(Debug, Default)]
pub struct MaintenanceReport {
    /// What was cooled.
    pub cooled: CoolReport,
    /// What was merged.
    pub merged: MergeReport,
    /// What was compacted.
    pub compacted: CompactionReport,
    /// Partitions whose start moved.
    pub expired_partitions: u32,
    /// Cold files that were deleted.
    pub deleted_files: u64,
    /// Objects that were deleted because no manifest will ever name them.
    pub deleted_litter: u64,
    /// What failed. It is tried again in the next pass.
    pub errors: Vec<(TopicName, PartitionId, CoolError)>,
    /// Deleted topics whose objects could not be deleted. They are tried again in the next pass.
    pub delete_errors: Vec<DeleteError>,
}

/// Runs until it is aborted. Merging has a loop of its own, in the same task: what is to be cooled never waits for it, nor does it
/// wait for cooling to have caught up, which under load it may not.
pub(crate) async fn run(tier: Arc<Tier>) {
    tokio::select! {
        () = run_passes(&tier) => {}
        () = run_merges(&tier) => {}
    }
}

async fn run_passes(tier: &Tier) {
    let mut seals = tier.shared.log.seals();
    loop {
        seals.mark_unchanged();
        let (report, is_finished) = tier.pass().await;
        report.log_errors();
        tier.shared.wake_merging.notify_one();
        if !is_finished {
            continue;
        }
        tokio::select! {
            sealed = seals.changed() => {
                if sealed.is_err() {
                    // The log is gone.
                    return;
                }
            }
            () = tier.shared.wake.notified() => {}
            () = tokio::time::sleep(tier.shared.time_to_next_pass()) => {}
        }
    }
}

async fn run_merges(tier: &Tier) {
    loop {
        tier.shared.wake_merging.notified().await;
        tier.merge().await.log_errors();
    }
}

impl MaintenanceReport {
    pub(crate) fn add(&mut self, other: Self) {
        self.cooled.add(other.cooled);
        self.merged.add(other.merged);
        self.compacted.add(other.compacted);
        self.expired_partitions += other.expired_partitions;
        self.deleted_files += other.deleted_files;
        self.deleted_litter += other.deleted_litter;
        self.errors.extend(other.errors);
        self.delete_errors.extend(other.delete_errors);
    }

    /// Notes what failed. Unless it is the store that fails, the partition then rests.
    pub(crate) fn fail(&mut self, partition: &TieredPartition, error: CoolError) {
        if !partition.shared.note_failure(&error) && !matches!(error, CoolError::Closed) {
            partition.rest();
        }
        self.note(partition, error);
    }

    fn note(&mut self, partition: &TieredPartition, error: CoolError) {
        // Deleted, or shut down, meanwhile.
        if !matches!(error, CoolError::Closed) {
            let id = (partition.topic().clone(), partition.id());
            self.errors.push((id.0, id.1, error));
        }
    }

    fn log_errors(&self) {
        for (topic, partition, error) in &self.errors {
            tracing::warn!(%topic, %partition, error = %Chain(error), "maintenance failed");
        }
        for error in &self.delete_errors {
            tracing::warn!(error = %Chain(error), "a deleted topic's objects are still there");
        }
    }
}

impl Tier {
    /// One pass over all partitions, some at a time, and then whatever is to be merged.
    pub(crate) async fn maintain(&self) -> MaintenanceReport {
        let mut report = MaintenanceReport::default();
        loop {
            let (passed, is_finished) = self.pass().await;
            report.add(passed);
            if is_finished {
                break;
            }
        }
        report.add(self.merge().await);
        report
    }

    /// Retention everywhere, then cooling for an interval at most. Whether there was nothing left to cool.
    async fn pass(&self) -> (MaintenanceReport, bool) {
        let shared = &self.shared;
        let interval = shared.config.maintenance_interval.as_nanos();
        let until_ns = shared
            .now_ns()
            .saturating_add(u64::try_from(interval).unwrap_or(u64::MAX));
        self.recount();
        let topics = shared.log.topics();
        let there: HashSet<u64> = topics.iter().map(|topic| topic.id().0).collect();
        self.turns.lock().keep(|topic_id| there.contains(&topic_id));
        let mut report = MaintenanceReport::default();
        let partitions = futures::stream::iter(self.all_partitions());
        let mut tidied = partitions.map(tidy).buffer_unordered(shared.places);
        while let Some(one) = tidied.next().await {
            report.add(one);
        }
        let is_finished = self.cool_what_is_due(until_ns, &mut report).await;
        if shared.store_is_up() {
            self.sweep(&mut report).await;
            self.delete_topics(&mut report).await;
        }
        (report, is_finished)
    }

    async fn sweep(&self, report: &mut MaintenanceReport) {
        match self.shared.litter.sweep(&self.shared.store).await {
            Ok(swept) => report.deleted_litter += swept,
            Err(error) => {
                let error = CoolError::from(error);
                self.shared.note_failure(&error);
                tracing::warn!(error = %Chain(&error), "what failed uploads have left is still there");
            }
        }
    }

    /// Compacts what is to be compacted and merges what is to be merged, one file after the other.
    async fn merge(&self) -> MaintenanceReport {
        let mut report = MaintenanceReport::default();
        let _turn = self.shared.merge_turn.lock().await;
        for partition in self.all_partitions() {
            if !self.shared.store_is_up() {
                break;
            }
            // Compacted ones are smaller, so that comes first. What it fails at does not keep others from being merged.
            if let Err(error) = partition.compact(When::Due, &mut report).await {
                report.note(&partition, error);
            }
            if self.shared.config.merge_bytes > 0
                && let Err(error) = partition.merge_due(&mut report).await
            {
                report.note(&partition, error);
            }
        }
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

/// What has expired need not be cooled, so that comes first.
async fn tidy(partition: Arc<TieredPartition>) -> MaintenanceReport {
    let mut report = MaintenanceReport::default();
    if partition.rests() || partition.state.lock().closed {
        return report;
    }
    if let Err(error) = partition.tidy(&mut report).await {
        report.fail(&partition, error);
    }
    report
}

impl TieredPartition {
    async fn tidy(&self, report: &mut MaintenanceReport) -> Result<(), CoolError> {
        if !self.shared.store_is_up() {
            // Where nothing is cold, retention does not need the store.
            let all_hot = self.state.lock().manifest.files.is_empty();
            if all_hot && self.expire().await? {
                report.expired_partitions += 1;
            }
            return Ok(());
        }
        self.release_what_is_cold().await?;
        self.expire_and_delete(report).await
    }

    pub(crate) async fn expire_and_delete(
        &self,
        report: &mut MaintenanceReport,
    ) -> Result<(), CoolError> {
        if self.expire().await? {
            report.expired_partitions += 1;
        }
        report.deleted_files += self.delete_dropped().await?;
        Ok(())
    }

    /// Leaves the partition alone for an interval: each segment that is sealed elsewhere would try again what has just failed.
    fn rest(&self) {
        let until_ns = self.shared.now_ns().saturating_add(self.rest_ns());
        self.state.lock().rest_until_ns = until_ns;
    }

    pub(crate) fn rests(&self) -> bool {
        let until_ns = self.state.lock().rest_until_ns;
        self.is_resting(until_ns)
    }

    pub(crate) fn is_resting(&self, until_ns: u64) -> bool {
        let left_ns = until_ns.saturating_sub(self.shared.now_ns());
        // More than an interval is left only if the clock was set back.
        left_ns > 0 && left_ns <= self.rest_ns()
    }

    pub(crate) fn rest_ns(&self) -> u64 {
        // A little less than the interval, so that the pass after it comes through.
        let interval_ns = self.shared.config.maintenance_interval.as_nanos() / 10 * 9;
        u64::try_from(interval_ns).unwrap_or(u64::MAX)
    }
}
