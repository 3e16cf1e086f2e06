//! Transactions: who may write under a transactional id, and what is committed together (KIP-98).
//!
//! Each id has a state under a lock of its own, which is held through a whole request, so that requests of one id follow each other. A
//! state is written down before it counts ([`basalt_log::Groups::begin_transaction`]). To end a transaction is three steps: the
//! decision is written down, with the offsets that it commits for groups, in one entry; the partitions are told, by control batches; that
//! they all know is written down. What a crash or a disk leaves after the first is finished at the next start, or the next look.
//!
//! - **TXN-1**: a batch of a transaction is appended under its id's lock, only while the transaction is open, by its present producer, to a
//!   partition that was named before. So none comes after the control batch that ends its transaction.
//! - **TXN-2**: what was decided stays so: all partitions get the marker of the decision, and groups' offsets are there if, and only if, it
//!   was to commit.
//! - **TXN-3**: a producer that asked for an id later fences those before it, by its epoch, and their transaction is aborted.

mod ending;
mod state;
mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use basalt_columnar::TieredLog;
use basalt_log::{Change, Commit, TransactionChange};
use basalt_proto::batch::Marker;
use basalt_proto::{GroupName, PartitionId, TopicName};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};
use tokio::time::Instant;
use tracing::{error, warn};

use super::error::code;
use state::{Phase, Place, Transaction};

/// Transactions that are ended at a time.
const LOOKS: usize = 16;
/// Between two looks at transactions that are open.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// The same after one could not be ended.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);
/// Ids without an open transaction that nobody has used for so long are forgotten.
const ID_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Between two looks for those.
const ID_PAUSE: Duration = Duration::from_secs(3600);
/// Transactional ids at a time.
const MAX_IDS: usize = 1_000_000;
/// What one transaction may take: partitions, groups, offsets and texts.
const MAX_TRANSACTION_BYTES: usize = 4 << 20;
/// What all may, before no other is opened.
const MAX_BYTES: usize = 256 << 20;

/// How many open transactions have an offset of a partition.
type PendingOffsets = HashMap<(TopicName, PartitionId), usize>;

/// All transactional ids.
#[derive(Debug)]
pub(crate) struct Transactions {
    ids: Mutex<HashMap<String, Arc<Slot>>>,
    log: Arc<TieredLog>,
    /// Offsets of groups that depend on open transactions.
    pending: Mutex<HashMap<GroupName, PendingOffsets>>,
    /// Ids whose transaction is open or not ended everywhere.
    unsettled: Mutex<HashSet<String>>,
    /// There is one.
    wake: Notify,
    /// What all states take, about.
    bytes: AtomicUsize,
    max_timeout: Duration,
}

/// One transactional id.
#[derive(Debug)]
struct Slot {
    id: String,
    /// `None` until a producer was given it.
    state: tokio::sync::Mutex<Option<Transaction>>,
    used: Mutex<Instant>,
}

impl Slot {
    fn new(id: String, state: Option<Transaction>) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: tokio::sync::Mutex::new(state),
            used: Mutex::new(Instant::now()),
        })
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Producer {
    pub(super) id: String,
    pub(super) producer_id: i64,
    pub(super) epoch: i16,
    /// What it is told when another has taken over.
    pub(super) fenced: i16,
}

/// A transaction as it is described.
#[derive(Debug, Clone)]
pub(super) struct Described {
    pub(super) id: String,
    pub(super) state: &'static str,
    pub(super) producer_id: i64,
    pub(super) epoch: i16,
    pub(super) timeout: Duration,
    /// How long it has been open, if it is.
    pub(super) open_for: Option<Duration>,
    pub(super) places: BTreeMap<TopicName, Vec<PartitionId>>,
}

/// The right to append to an open transaction, until dropped.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    _state: MutexGuard<'a, Option<Transaction>>,
}

impl Transactions {
    /// Transactions as they were stored.
    pub(crate) fn new(log: Arc<TieredLog>, max_timeout: Duration) -> Arc<Self> {
        let now = Instant::now();
        let transactions = Arc::new(Self {
            ids: Mutex::default(),
            log,
            pending: Mutex::default(),
            unsettled: Mutex::default(),
            wake: Notify::new(),
            bytes: AtomicUsize::new(0),
            max_timeout,
        });
        for (id, stored, age) in transactions.log.log().groups().transactions() {
            let transaction = match Transaction::decode(&stored, now) {
                Ok(transaction) => transaction,
                Err(failure) => {
                    error!(id, %failure, "the transactions of an id cannot be read: its producer begins anew");
                    continue;
                }
            };
            if transaction.phase == Phase::Empty && age > ID_RETENTION {
                // Not waited for: a start that finds it again forgets it again.
                drop(
                    transactions
                        .log
                        .log()
                        .groups()
                        .begin_transaction(TransactionChange { id, state: None }, Vec::new()),
                );
                continue;
            }
            transactions.count(&id, None, Some(&transaction));
            let slot = Slot::new(id.clone(), Some(transaction));
            transactions.ids.lock().insert(id, slot);
        }
        transactions
    }

    fn slot(&self, id: &str) -> Option<Arc<Slot>> {
        let slot = self.ids.lock().get(id).cloned()?;
        *slot.used.lock() = Instant::now();
        Some(slot)
    }

    fn slot_or_new(&self, id: &str) -> Option<Arc<Slot>> {
        let mut ids = self.ids.lock();
        if let Some(slot) = ids.get(id) {
            return Some(Arc::clone(slot));
        }
        if ids.len() >= MAX_IDS {
            return None;
        }
        let slot = Slot::new(id.to_owned(), None);
        ids.insert(id.to_owned(), Arc::clone(&slot));
        Some(slot)
    }

    /// Keeps account when a state takes another's place.
    fn count(&self, id: &str, before: Option<&Transaction>, after: Option<&Transaction>) {
        if after.is_some_and(|state| state.phase != Phase::Empty) {
            self.unsettled.lock().insert(id.to_owned());
            self.wake.notify_one();
        } else {
            self.unsettled.lock().remove(id);
        }
        let bytes = |state: Option<&Transaction>| state.map_or(0, Transaction::bytes);
        self.bytes.fetch_add(bytes(after), Ordering::Relaxed);
        self.bytes.fetch_sub(bytes(before), Ordering::Relaxed);
        // Once it is decided they are what the decision made of them.
        let is_open = |state: &&Transaction| matches!(state.phase, Phase::Open { .. });
        let offsets = |state: Option<&Transaction>| {
            let groups = state
                .filter(is_open)
                .into_iter()
                .flat_map(|state| &state.offsets);
            let places = groups.flat_map(|(group, places)| {
                places
                    .keys()
                    .map(|place| (group.clone(), (place.topic.clone(), place.partition)))
            });
            places.collect::<Vec<_>>()
        };
        let mut pending = self.pending.lock();
        for (group, place) in offsets(after) {
            *pending.entry(group).or_default().entry(place).or_default() += 1;
        }
        for (group, place) in offsets(before) {
            let Some(places) = pending.get_mut(&group) else {
                continue;
            };
            if let Some(count) = places.get_mut(&place) {
                *count -= 1;
                if *count == 0 {
                    places.remove(&place);
                }
            }
            if places.is_empty() {
                pending.remove(&group);
            }
        }
    }

    /// Where a group's offsets depend on open transactions.
    pub(crate) fn pending(&self, group: &GroupName) -> HashSet<(TopicName, PartitionId)> {
        let pending = self.pending.lock();
        let places = pending.get(group).into_iter().flat_map(HashMap::keys);
        places.cloned().collect()
    }

    /// Writes a state down, with what groups commit with it; then it counts.
    async fn store(
        &self,
        id: &str,
        state: &mut Option<Transaction>,
        next: Transaction,
        groups: Vec<(GroupName, Change)>,
    ) -> Result<(), i16> {
        let change = TransactionChange {
            id: id.to_owned(),
            state: Some(next.encode()),
        };
        let stored = self.log.log().groups().begin_transaction(change, groups);
        stored.durable().await.map_err(|failure| {
            warn!(id, %failure, "the state of a transaction could not be stored");
            code::COORDINATOR_NOT_AVAILABLE
        })?;
        self.count(id, state.as_ref(), Some(&next));
        *state = Some(next);
        Ok(())
    }

    /// Gives a transactional id to a producer: its producer id and epoch. `current` is what it had, if it says so; `new_id` makes an id
    /// that nobody has.
    pub(super) async fn init(
        &self,
        id: &str,
        timeout: Duration,
        current: Option<(i64, i16)>,
        new_id: impl Fn() -> BoxFuture<'static, Result<i64, i16>>,
    ) -> Result<(i64, i16), i16> {
        if timeout.is_zero() || timeout > self.max_timeout {
            return Err(code::INVALID_TRANSACTION_TIMEOUT);
        }
        let slot = self
            .slot_or_new(id)
            .ok_or(code::COORDINATOR_NOT_AVAILABLE)?;
        let mut state = slot.state.lock().await;
        if let (Some(transaction), Some((producer_id, epoch))) = (&*state, current) {
            if producer_id != transaction.producer_id {
                return Err(code::PRODUCER_FENCED);
            }
            if transaction.last_epoch == Some(epoch) {
                // It asks again, since it never heard of the one that it was given.
                return Ok((transaction.producer_id, transaction.epoch));
            }
            if epoch != transaction.epoch {
                return Err(code::PRODUCER_FENCED);
            }
        }
        match state.as_ref().map(|transaction| transaction.phase) {
            Some(Phase::Ending(_)) => self.finish(id, &mut state).await,
            Some(Phase::Open { .. }) => self.fence(id, &mut state).await,
            _ => Ok(()),
        }
        .map_err(|_| code::CONCURRENT_TRANSACTIONS)?;
        let next = match state.as_ref().and_then(Transaction::with_next_epoch) {
            Some(next) => Transaction { timeout, ..next },
            // The first, or one whose id has no epochs left.
            None => Transaction::new(new_id().await?, timeout),
        };
        let given = (next.producer_id, next.epoch);
        let next = Transaction {
            last_end: None,
            last_epoch: current.map(|(_, epoch)| epoch),
            ..next
        };
        self.store(id, &mut state, next, Vec::new()).await?;
        Ok(given)
    }

    /// Runs `change` on the state of a producer that may go on, with no transaction half ended.
    async fn change(
        &self,
        producer: &Producer,
        change: impl FnOnce(&Transaction) -> Result<Option<Transaction>, i16>,
    ) -> Result<(), i16> {
        let slot = self
            .slot(&producer.id)
            .ok_or(code::INVALID_PRODUCER_ID_MAPPING)?;
        let mut state = slot.state.lock().await;
        let transaction = state.as_ref().ok_or(code::INVALID_PRODUCER_ID_MAPPING)?;
        transaction.check(producer.producer_id, producer.epoch, producer.fenced)?;
        if let Phase::Ending(_) = transaction.phase {
            let finished = self.finish(&producer.id, &mut state).await;
            finished.map_err(|_| code::CONCURRENT_TRANSACTIONS)?;
        }
        let Some(transaction) = &*state else {
            return Ok(());
        };
        let Some(next) = change(transaction)? else {
            return Ok(());
        };
        if next.bytes() > MAX_TRANSACTION_BYTES {
            return Err(code::INVALID_REQUEST);
        }
        let grown = next.bytes().saturating_sub(transaction.bytes());
        if self.bytes.load(Ordering::Relaxed) + grown > MAX_BYTES {
            return Err(code::COORDINATOR_NOT_AVAILABLE);
        }
        self.store(&producer.id, &mut state, next, Vec::new()).await
    }

    /// Partitions are to be written to.
    pub(super) async fn add_places(
        &self,
        producer: &Producer,
        places: Vec<(TopicName, PartitionId)>,
    ) -> Result<(), i16> {
        let mut found = Vec::with_capacity(places.len());
        for (topic, partition) in places {
            let known = self.log.log().topic(&topic);
            let known = known.filter(|known| partition.0 < known.partition_count());
            let known = known.ok_or(code::UNKNOWN_TOPIC_OR_PARTITION)?;
            found.push(Place {
                topic,
                topic_id: known.id().0,
                partition,
            });
        }
        self.change(producer, |transaction| {
            let mut next = transaction.opened(Instant::now());
            next.places.extend(found);
            let is_known =
                transaction.phase == next.phase && transaction.places.len() == next.places.len();
            Ok((!is_known).then_some(next))
        })
        .await
    }

    /// A group is going to commit with the transaction.
    pub(super) async fn add_group(&self, producer: &Producer, group: GroupName) -> Result<(), i16> {
        self.change(producer, |transaction| {
            let mut next = transaction.opened(Instant::now());
            let is_known = transaction.phase == next.phase && next.offsets.contains_key(&group);
            next.offsets.entry(group).or_default();
            Ok((!is_known).then_some(next))
        })
        .await
    }

    /// What a group has handled when the transaction is committed.
    pub(super) async fn add_offsets(
        &self,
        producer: &Producer,
        group: &GroupName,
        commits: Vec<Commit>,
    ) -> Result<(), i16> {
        self.change(producer, |transaction| {
            let is_open = matches!(transaction.phase, Phase::Open { .. });
            if !is_open || !transaction.offsets.contains_key(group) {
                return Err(code::INVALID_TXN_STATE);
            }
            let mut next = transaction.clone();
            let offsets = next.offsets.entry(group.clone()).or_default();
            for commit in commits {
                let place = Place {
                    topic: commit.topic.name().clone(),
                    topic_id: commit.topic.id().0,
                    partition: commit.partition,
                };
                offsets.insert(place, (commit.offset, commit.metadata));
            }
            Ok(Some(next))
        })
        .await
    }

    /// Ends a transaction; all partitions know on return.
    pub(super) async fn end(&self, producer: &Producer, marker: Marker) -> Result<(), i16> {
        let slot = self
            .slot(&producer.id)
            .ok_or(code::INVALID_PRODUCER_ID_MAPPING)?;
        let mut state = slot.state.lock().await;
        let transaction = state.as_ref().ok_or(code::INVALID_PRODUCER_ID_MAPPING)?;
        transaction.check(producer.producer_id, producer.epoch, producer.fenced)?;
        match (transaction.phase, transaction.last_end) {
            (Phase::Open { .. }, _) => {
                let decided = transaction.decided(marker);
                self.end_open(&producer.id, &mut state, decided, marker)
                    .await
            }
            (Phase::Ending(decided), _) if decided == marker => {
                self.finish(&producer.id, &mut state).await
            }
            // Its answer was lost.
            (Phase::Empty, Some(last)) if last == marker => Ok(()),
            _ => Err(code::INVALID_TXN_STATE),
        }
    }

    /// Whoever writes under an id.
    pub(super) fn writer(&self, id: &str) -> Result<Writer, i16> {
        self.slot(id)
            .map(Writer)
            .ok_or(code::INVALID_PRODUCER_ID_MAPPING)
    }

    /// An id's transactions as they are; `None` if nobody was given it.
    pub(super) async fn describe(&self, id: &str) -> Option<Described> {
        let slot = self.slot(id)?;
        let state = slot.state.lock().await;
        let transaction = state.as_ref()?;
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for place in &transaction.places {
            places
                .entry(place.topic.clone())
                .or_default()
                .push(place.partition);
        }
        Some(Described {
            id: id.to_owned(),
            state: transaction.state_name(),
            producer_id: transaction.producer_id,
            epoch: transaction.epoch,
            timeout: transaction.timeout,
            open_for: match transaction.phase {
                Phase::Open { since } => Some(since.elapsed()),
                _ => None,
            },
            places,
        })
    }

    /// All ids.
    pub(super) fn ids(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.ids.lock().keys().cloned().collect();
        ids.sort();
        ids
    }
}

fn failed(place: &Place, failure: &dyn std::fmt::Display) -> i16 {
    warn!(topic = %place.topic, partition = %place.partition, %failure, "a transaction cannot be ended in a partition");
    code::COORDINATOR_NOT_AVAILABLE
}

/// A transactional id that batches are written under.
#[derive(Debug)]
pub(super) struct Writer(Arc<Slot>);

impl Writer {
    /// The right of a producer, by its id and epoch, to append a batch of its transaction to a partition (TXN-1).
    pub(super) async fn write(
        &self,
        (producer_id, epoch): (i64, i16),
        topic: &TopicName,
        topic_id: u64,
        partition: PartitionId,
    ) -> Result<Writing<'_>, i16> {
        let state = self.0.state.lock().await;
        let transaction = state.as_ref().ok_or(code::INVALID_PRODUCER_ID_MAPPING)?;
        transaction.check(producer_id, epoch, code::INVALID_PRODUCER_EPOCH)?;
        let place = Place {
            topic: topic.clone(),
            topic_id,
            partition,
        };
        let is_open = matches!(transaction.phase, Phase::Open { .. });
        if !is_open || !transaction.places.contains(&place) {
            return Err(code::INVALID_TXN_STATE);
        }
        Ok(Writing { _state: state })
    }
}
