//! What all connections of a server share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use basalt_auth::Authenticator;
use basalt_columnar::{TieredLog, TieredPartition};
use basalt_log::{AppendError, Topic, TopicConfig};
use basalt_proto::{ErrorKind, FrameCheck, FrameLimits, PartitionId, TopicName};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::buffers::Buffers;
use crate::commit_wait::CommitWaits;
use crate::error::Refusal;
use crate::kafka::coordinator::Coordinator;
use crate::kafka::producers::ProducerIds;
use crate::kafka::transactions::Transactions;
use crate::read_ahead::ReadAhead;
use crate::topics::Topics;
use crate::verify::Verifier;
use crate::{Counters, ServerConfig};

const ANSWERS_BYTES: u64 = 256 << 20;
const COPIES_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) log: Arc<TieredLog>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) large_frames: MemoryBudget,
    /// For Kafka's answers of many parts, while they are put together.
    pub(crate) answers: MemoryBudget,
    /// For what Kafka's fetches copy of the log, until it is sent.
    pub(crate) copies: MemoryBudget,
    pub(crate) buffers: Buffers,
    pub(crate) verifier: Verifier,
    pub(crate) commits: Arc<CommitWaits>,
    pub(crate) read_ahead: Arc<ReadAhead>,
    pub(crate) silent: Arc<SilentPeers>,
    pub(crate) topics: Topics,
    pub(crate) producer_ids: Arc<ProducerIds>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) transactions: Arc<Transactions>,
    /// Who may come in; everybody where there is none.
    pub(crate) authenticator: Option<Authenticator>,
}

impl Shared {
    /// The sizes that a topic with these settings takes.
    pub(crate) fn limits_of(&self, topic: &TopicConfig) -> FrameLimits {
        let limits = self.config.limits;
        let own = topic.max_message_bytes.unwrap_or(u32::MAX);
        FrameLimits {
            max_payload_bytes: limits.max_payload_bytes.min(own),
            ..limits
        }
    }

    /// A check of frames that are to be appended to a topic with these settings.
    pub(crate) fn check_for<'a>(&self, frames: &'a [u8], topic: &TopicConfig) -> FrameCheck<'a> {
        FrameCheck::new(frames, self.limits_of(topic)).with_keys(topic.cleanup_policy.compacts())
    }

    /// To be called within a runtime.
    pub(crate) fn new(
        config: ServerConfig,
        log: Arc<TieredLog>,
        authenticator: Option<Authenticator>,
    ) -> Self {
        let counters = Arc::default();
        Self {
            large_frames: MemoryBudget::new(config.large_frame_memory_bytes),
            answers: MemoryBudget::new(ANSWERS_BYTES),
            copies: MemoryBudget::new(COPIES_BYTES),
            buffers: Buffers::new(),
            verifier: Verifier::new(),
            commits: Arc::default(),
            read_ahead: ReadAhead::new(config.cold_reads, Arc::clone(&counters)),
            producer_ids: ProducerIds::new(Arc::clone(&log)),
            transactions: Transactions::new(Arc::clone(&log), config.max_transaction),
            coordinator: Coordinator::new(Arc::clone(&log), config.groups),
            config,
            topics: Topics::new(Arc::clone(&log)),
            log,
            counters,
            silent: Arc::default(),
            authenticator,
        }
    }

    /// The partition a producer or consumer names; its topic is made if it does not exist and may be.
    ///
    /// # Errors
    /// A [`Refusal`] for the peer: unknown topic or partition, or a topic that could not be made.
    pub(crate) async fn partition_or_create(
        &self,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Result<Arc<TieredPartition>, Refusal> {
        if let Some(found) = self.log.partition(topic, partition) {
            return Ok(found);
        }
        if self.log.log().topic(topic).is_none() {
            // Making a topic writes and syncs the catalogue: not on a thread that serves sockets.
            let (log, name) = (Arc::clone(&self.log), topic.clone());
            let made =
                tokio::task::spawn_blocking(move || log.topic_or_create(&name).map(drop)).await;
            made.map_err(|_| {
                Refusal::new(ErrorKind::Internal, format!("making topic {topic} failed"))
            })??;
        }
        self.existing_partition(topic, partition)
    }

    /// [`Self::partition_or_create`] for whoever is going to wait on the partition, with the news of deletions from before
    /// it was looked up: a deletion that finishes at any time after that is not missed.
    ///
    /// # Errors
    /// As [`Self::partition_or_create`].
    pub(crate) async fn watched_partition(
        &self,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Result<(Arc<TieredPartition>, watch::Receiver<u64>), Refusal> {
        let deletions = self.topics.deletions().subscribe();
        let found = self.partition_or_create(topic, partition).await?;
        Ok((found, deletions))
    }

    /// The partition a request names, if it exists.
    ///
    /// # Errors
    /// A [`Refusal`]: unknown topic or partition.
    pub(crate) fn existing_partition(
        &self,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Result<Arc<TieredPartition>, Refusal> {
        let known = self.topic(topic)?;
        self.log
            .partition(topic, partition)
            .ok_or_else(|| Refusal::unknown_partition(topic, partition, known.partition_count()))
    }

    /// Refuses if the topic of `partition` was deleted, be there another of its name or not.
    ///
    /// # Errors
    /// A [`Refusal`]: unknown topic.
    pub(crate) fn still_there(&self, partition: &TieredPartition) -> Result<(), Refusal> {
        let name = partition.hot().topic();
        match self.log.log().topic(name) {
            Some(topic) if topic.id() == partition.hot().topic_id() => Ok(()),
            _ => Err(Refusal::new(
                ErrorKind::UnknownTopic,
                format!("topic {name} was deleted"),
            )),
        }
    }

    /// The refusal of an append that failed: one to a deleted topic says so.
    pub(crate) fn append_refusal(
        &self,
        partition: &TieredPartition,
        error: AppendError,
    ) -> Refusal {
        match (&error, self.still_there(partition)) {
            (AppendError::Closed { .. }, Err(deleted)) => deleted,
            _ => error.into(),
        }
    }

    /// The topic of that name.
    ///
    /// # Errors
    /// A [`Refusal`]: unknown topic.
    pub(crate) fn topic(&self, topic: &TopicName) -> Result<Arc<Topic>, Refusal> {
        self.log
            .log()
            .topic(topic)
            .ok_or_else(|| Refusal::unknown_topic(topic))
    }
}

/// Memory that large items of all connections draw on, in KiB. A share is claimed whole before the item's bytes are
/// read, so that two half-read items never wait for each other.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes: usize,
    kibibytes: Arc<Semaphore>,
}

impl MemoryBudget {
    pub(crate) fn new(bytes: u64) -> Self {
        let kibibytes = usize::try_from(bytes >> 10)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self {
            bytes: kibibytes.saturating_mul(1 << 10),
            kibibytes: Arc::new(Semaphore::new(kibibytes)),
        }
    }

    /// All there is.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A share of `bytes` if there is so much.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let share = u32::try_from(bytes.div_ceil(1 << 10)).ok()?;
        Arc::clone(&self.kibibytes)
            .try_acquire_many_owned(share)
            .ok()
    }

    /// Waits for a share of `bytes`; `None` only if that can never be had.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let share = u32::try_from(bytes.div_ceil(1 << 10)).ok()?;
        Arc::clone(&self.kibibytes)
            .acquire_many_owned(share)
            .await
            .ok()
    }
}

/// Peers that have not finished their opening, oldest first: those that make room when there is none.
#[derive(Debug, Default)]
pub(crate) struct SilentPeers {
    next: AtomicU64,
    peers: Mutex<BTreeMap<u64, (Instant, Arc<Notify>)>>,
}

/// A peer's place among the silent ones, given up when dropped.
#[derive(Debug)]
pub(crate) struct SilentPeer {
    id: u64,
    evicted: Arc<Notify>,
    peers: Arc<SilentPeers>,
}

impl SilentPeers {
    /// A place behind all that are silent now.
    pub(crate) fn enter(self: &Arc<Self>) -> SilentPeer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let evicted = Arc::new(Notify::new());
        self.peers
            .lock()
            .insert(id, (Instant::now(), Arc::clone(&evicted)));
        SilentPeer {
            id,
            evicted,
            peers: Arc::clone(self),
        }
    }

    /// How long until the peer that has been silent longest has been so for `age`; `None` when nobody is silent.
    pub(crate) fn until_oldest_is(&self, age: Duration) -> Option<Duration> {
        let peers = self.peers.lock();
        let (since, _) = peers.values().next()?;
        Some(age.saturating_sub(since.elapsed()))
    }

    /// Tells the peer that has been silent longest to go, if that is at least `min_age`. Returns whether there was one.
    pub(crate) fn evict_oldest(&self, min_age: Duration) -> bool {
        let mut peers = self.peers.lock();
        let Some(oldest) = peers
            .first_entry()
            .filter(|peer| peer.get().0.elapsed() >= min_age)
        else {
            return false;
        };
        let (_, evicted) = oldest.remove();
        evicted.notify_one();
        true
    }
}

impl SilentPeer {
    /// Returns when this peer has to go.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for SilentPeer {
    fn drop(&mut self) {
        self.peers.peers.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_silent_peer_goes_first_and_no_young_one() {
        let silent = Arc::new(SilentPeers::default());
        let (first, second) = (silent.enter(), silent.enter());
        assert!(
            !silent.evict_oldest(Duration::from_secs(3600)),
            "both are young"
        );
        assert!(silent.evict_oldest(Duration::ZERO));
        first.evicted().await;
        assert!(silent.evict_oldest(Duration::ZERO));
        second.evicted().await;
        assert!(!silent.evict_oldest(Duration::ZERO));
        assert_eq!(silent.until_oldest_is(Duration::ZERO), None);
        let third = silent.enter();
        drop((first, second, third));
        assert!(silent.peers.lock().is_empty());
    }

    #[tokio::test]
    async fn memory_budget_is_given_back() {
        let budget = MemoryBudget::new(4 << 10);
        let share = budget.take(3 << 10).await.unwrap();
        assert_eq!(budget.kibibytes.available_permits(), 1);
        drop(share);
        assert!(budget.take(4 << 10).await.is_some());
    }
}
