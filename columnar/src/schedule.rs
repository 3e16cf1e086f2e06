//! What is cooled next, and how much of it at a time.

use std::collections::HashSet;
use std::sync::Arc;

use basalt_proto::PartitionId;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::cool::CoolReport;
use crate::error::CoolError;
use crate::maintenance::MaintenanceReport;
use crate::pace::{Candidate, places};
use crate::partition::TieredPartition;
use crate::tiered::{Tier, TieredLog};

/// A list of candidates is made anew after so long: until then segments that were sealed meanwhile wait.
const ROUND_NS: u64 = 1_000_000_000;

/// What is due, as it was a moment ago.
#[derive(Debug, Default)]
struct Round {
    /// Partitions that are not being cooled, and have not failed in this pass.
    candidates: Vec<Candidate<Arc<TieredPartition>>>,
    /// Those that are, or have.
    apart: HashSet<(u64, PartitionId)>,
    backlog_bytes: u64,
    listed_at_ns: Option<u64>,
}

impl Round {
    fn list(&mut self, tier: &Tier, now_ns: u64) {
        self.candidates.clear();
        self.backlog_bytes = 0;
        self.listed_at_ns = Some(now_ns);
        for partition in tier.all_partitions() {
            let backlog_bytes = self.add(partition);
            self.backlog_bytes = self.backlog_bytes.saturating_add(backlog_bytes);
        }
    }

    fn is_old(&self, now_ns: u64) -> bool {
        self.listed_at_ns
            .is_none_or(|listed_at_ns| now_ns.abs_diff(listed_at_ns) >= ROUND_NS)
    }

    /// Adds a partition if it has something to do: bytes of frames.
    fn add(&mut self, partition: Arc<TieredPartition>) -> u64 {
        if partition.rests() {
            return 0;
        }
        let Some(backlog) = partition.backlog() else {
            return 0;
        };
        if !self.apart.contains(&id(&partition)) {
            self.candidates.push(Candidate {
                topic_id: partition.topic_id().0,
                oldest_ns: backlog.oldest_ns,
                partition,
            });
        }
        backlog.bytes
    }
}

fn id(partition: &TieredPartition) -> (u64, PartitionId) {
    (partition.topic_id().0, partition.id())
}

impl Tier {
    /// Cools what is due, segment by segment, until nothing is, the store fails, or it is `until_ns`. Whether nothing is due any more.
    pub(crate) async fn cool_what_is_due(
        &self,
        until_ns: u64,
        report: &mut MaintenanceReport,
    ) -> bool {
        let mut round = Round::default();
        let mut running = FuturesUnordered::new();
        let mut sealed_more = false;
        loop {
            let in_time = self.shared.now_ns() < until_ns;
            while in_time && self.shared.store_is_up() {
                let Some(partition) = self.next_to_cool(&mut round, running.len()) else {
                    break;
                };
                round.apart.insert(id(&partition));
                running.push(async move {
                    let cooled = partition.cool_and_expire().await;
                    (partition, cooled)
                });
            }
            let Some((partition, cooled)) = running.next().await else {
                if in_time && !sealed_more && self.seal_under_pressure(report).await {
                    sealed_more = true;
                    continue;
                }
                return in_time || !self.shared.store_is_up();
            };
            match cooled {
                Ok(cooled) => {
                    if cooled.cooled.segments > 0 {
                        self.shared.pace.succeeded();
                    }
                    report.add(cooled);
                    round.apart.remove(&id(&partition));
                    round.add(partition);
                }
                // It stays apart for this pass.
                Err(error) => report.fail(&partition, error),
            }
        }
    }

    /// The partition whose turn it is, unless as many are `running` as what there is to do asks for.
    fn next_to_cool(&self, round: &mut Round, running: usize) -> Option<Arc<TieredPartition>> {
        let now_ns = self.shared.now_ns();
        if round.candidates.is_empty() || round.is_old(now_ns) {
            round.list(self, now_ns);
        }
        let places = places(
            round.backlog_bytes,
            self.shared.log.config().segment_bytes,
            self.shared.budget.is_pressed(),
            self.shared.places,
        );
        if running >= places {
            return None;
        }
        self.turns.lock().next(&mut round.candidates)
    }

    /// Seals active segments, when there is too much hot and nothing else to cool. Whether there were any.
    async fn seal_under_pressure(&self, report: &mut MaintenanceReport) -> bool {
        if !self.shared.budget.is_pressed() || !self.shared.store_is_up() {
            return false;
        }
        let partitions = self.all_partitions();
        let from_bytes = self.shared.budget.seal_from_bytes(partitions.len());
        let mut sealed = false;
        for partition in partitions {
            if partition.hot.active_bytes() < from_bytes || partition.rests() {
                continue;
            }
            match partition.seal().await {
                Ok(_) => sealed = true,
                Err(error) => report.fail(&partition, error),
            }
        }
        sealed
    }
}

/// How the cold tier gets along.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStatus {
    /// Bytes of frames in hot segments of all partitions.
    pub hot_bytes: u64,
    /// How many there may be; 0 for as many as the disk holds.
    pub hot_limit_bytes: u64,
    /// Bytes of frames in sealed segments that are due to be cooled, and those behind them.
    pub backlog_bytes: u64,
    /// How often a remote store has failed since the start, after its client had tried a few times.
    pub store_failures: u64,
    /// Whether it is left alone for now because of that.
    pub store_rests: bool,
}

impl TieredLog {
    /// How the cold tier gets along now.
    #[must_use]
    pub fn status(&self) -> TierStatus {
        let mut status = TierStatus {
            hot_limit_bytes: self.config().hot_limit_bytes,
            store_failures: self.tier.shared.pace.failures_total(),
            store_rests: !self.tier.shared.store_is_up(),
            ..TierStatus::default()
        };
        for partition in self.all_partitions() {
            status.hot_bytes += partition.hot.hot_bytes();
            status.backlog_bytes += partition.backlog().map_or(0, |backlog| backlog.bytes);
        }
        status
    }
}

impl TieredPartition {
    /// Retention does not wait for the end of all cooling, and what has expired is not cooled.
    async fn cool_and_expire(&self) -> Result<MaintenanceReport, CoolError> {
        let cooled = self.cool_due().await?;
        let mut report = MaintenanceReport {
            cooled: cooled.unwrap_or_else(CoolReport::default),
            ..MaintenanceReport::default()
        };
        self.expire_and_delete(&mut report).await?;
        Ok(report)
    }
}
