//! Consumer groups: the offsets they have committed, and their members as whoever leads them to agreement writes them down; and
//! the transactions of producers, as whoever coordinates them does, since those commit offsets, too.
//! A journal of its own, one sync for all changes that wait.
//!
//! - **LOG-16**: changes are applied and durable in the order of [`Groups::begin`]; what is begun by one call is in one journal
//!   entry, so after a crash all of it is there or nothing.

mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use basalt_proto::{GroupName, Offset, PartitionId, TopicName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

pub use state::Committed;
use state::{Entry, State};

use crate::clock::Clock;
use crate::disk::Disk;
use crate::error::{CommitError, OpenError};
use crate::journal::{Journal, JournalError};
use crate::topic::Topic;

/// Commits and other changes that one journal entry holds at most, but for one change that has more.
const MAX_PER_ENTRY: usize = 4096;
/// So many bytes of members or texts count as one commit.
const BYTES_PER_WEIGHT: usize = 4096;
/// The journal is rewritten when it is this much longer than what it tells.
const REWRITE_SLACK_BYTES: u64 = 4 << 20;
const NS_PER_MS: u64 = 1_000_000;

/// An offset to be stored.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The topic: one that was deleted meanwhile has no offsets, be there another of its name or not.
    pub topic: Arc<Topic>,
    /// The partition, which must be one of the topic's.
    pub partition: PartitionId,
    /// Everything below it is handled.
    pub offset: Offset,
    /// What the consumer says with it.
    pub metadata: String,
}

/// What is to become of a group.
#[derive(Debug, Clone)]
pub enum Change {
    /// These offsets, all or none.
    Commit(Vec<Commit>),
    /// Its members are these, in a form of the caller's own; `None` when there are none any more.
    Members(Option<Vec<u8>>),
    /// Its offsets in these partitions are forgotten.
    Forget(Vec<(TopicName, PartitionId)>),
    /// It is forgotten, with all its offsets and members.
    Delete,
    /// The same, if it has no members, and was not used since that time, in milliseconds since the Unix epoch.
    Expire {
        /// Inclusive.
        before_ms: u64,
    },
}

impl Change {
    /// How much of an entry it takes, about.
    fn weight(&self) -> usize {
        match self {
            Self::Commit(commits) => {
                let metadata = commits.iter().map(|one| one.metadata.len());
                commits.len() + metadata.sum::<usize>() / BYTES_PER_WEIGHT
            }
            Self::Forget(partitions) => partitions.len(),
            Self::Members(members) => 1 + members.as_ref().map_or(0, Vec::len) / BYTES_PER_WEIGHT,
            Self::Delete | Self::Expire { .. } => 1,
        }
    }

    fn entry(self, group: &GroupName, at_ms: u64) -> Entry {
        let group_name = group.to_string();
        match self {
            Self::Commit(commits) => {
                let live = commits.into_iter().filter(|one| !one.topic.is_deleted());
                let offsets = live.map(|one| {
                    let topic = one.topic.name().to_string();
                    (topic, one.partition.0, one.offset.0, one.metadata)
                });
                Entry::Committed {
                    group: group_name,
                    at_ms,
                    offsets: offsets.collect(),
                }
            }
            Self::Members(members) => Entry::members(group, at_ms, members.as_deref()),
            Self::Forget(partitions) => {
                let partitions = partitions.into_iter();
                let offsets = partitions.map(|(topic, id)| (topic.to_string(), id.0));
                Entry::Forgotten {
                    group: group_name,
                    offsets: Some(offsets.collect()),
                }
            }
            Self::Delete => Entry::Forgotten {
                group: group_name,
                offsets: None,
            },
            Self::Expire { before_ms } => Entry::Expired {
                group: group_name,
                before_ms,
            },
        }
    }
}

/// The state of a producer's transactions, in a form of the caller's own, by its transactional id; `None` forgets it.
#[derive(Debug, Clone)]
pub struct TransactionChange {
    /// Whose.
    pub id: String,
    /// Its state from now on.
    pub state: Option<Vec<u8>>,
}

/// Changes that are made together.
#[derive(Debug)]
struct Together {
    groups: Vec<(GroupName, Change)>,
    transaction: Option<TransactionChange>,
}

impl Together {
    fn weight(&self) -> usize {
        let groups = self.groups.iter().map(|(_, change)| change.weight());
        let transaction = self.transaction.iter().map(|transaction| {
            1 + transaction.state.as_ref().map_or(0, Vec::len) / BYTES_PER_WEIGHT
        });
        groups.chain(transaction).sum()
    }

    fn entries(self, at_ms: u64) -> impl Iterator<Item = Entry> {
        let groups = self.groups.into_iter();
        let groups = groups.map(move |(group, change)| change.entry(&group, at_ms));
        let transaction = self.transaction.map(|transaction| {
            Entry::transaction(transaction.id, at_ms, transaction.state.as_deref())
        });
        groups.chain(transaction)
    }
}

struct Waiting {
    changes: Together,
    done: oneshot::Sender<Result<(), CommitError>>,
}

/// A change that has its place in the order and may not be durable yet.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Result<(), CommitError>>);

impl Pending {
    /// Returns when the change is durable. It takes place, or fails, whether anybody waits or not.
    ///
    /// # Errors
    /// [`CommitError::StorageFull`]: nothing has changed, a later change may succeed. [`CommitError::Failed`].
    pub async fn durable(self) -> Result<(), CommitError> {
        self.0.await.unwrap_or_else(|_| Err(closed()))
    }
}

fn closed() -> CommitError {
    CommitError::Failed {
        reason: "the log is closed".to_owned(),
    }
}

/// All groups of a log.
#[derive(Debug)]
pub struct Groups {
    clock: Arc<dyn Clock>,
    state: Arc<RwLock<State>>,
    stored: Arc<Mutex<Stored>>,
    worker: Mutex<Option<(Sender<Waiting>, JoinHandle<()>)>>,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Stored {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    journal: Journal,
    /// The journal's length when it was last opened or rewritten.
    base_bytes: u64,
    /// What the journal tells. Readers share it and never wait for the disk; it is written under this struct's lock only.
    state: Arc<RwLock<State>>,
}

impl Groups {
    /// Reads the journal at `path`. With `threaded`, changes that wait share a sync.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        path: &Path,
        threaded: bool,
    ) -> Result<Self, OpenError> {
        let mut state = State::default();
        let journal = Journal::open(disk.as_ref(), path, |payloads| {
            let mut told = 0_u64;
            for payload in payloads {
                let applied = Entry::decode(payload).and_then(|entry| state.apply(entry));
                told += applied.map_err(|error| OpenError::Damaged {
                    path: PathBuf::from(path),
                    position: 0,
                    what: error.to_string(),
                })?;
            }
            // What does not say when it was committed was used until now, for all that is known.
            state.date(clock.now_ns() / NS_PER_MS);
            // Rewritten at the start when most of it is history.
            let worth_it = told > 1000 && told > 4 * state.len();
            Ok(worth_it.then(|| encode_all(&state)))
        })?;
        let state = Arc::new(RwLock::new(state));
        let stored = Arc::new(Mutex::new(Stored {
            disk: Arc::clone(disk),
            clock: Arc::clone(clock),
            base_bytes: journal.bytes(),
            journal,
            state: Arc::clone(&state),
        }));
        let worker = threaded.then(|| spawn_worker(&stored)).transpose();
        let worker = worker.map_err(|source| {
            OpenError::Disk(crate::error::DiskError {
                action: "start a thread for",
                path: path.to_owned(),
                source,
            })
        })?;
        Ok(Self {
            clock: Arc::clone(clock),
            state,
            stored,
            worker: Mutex::new(worker),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Takes a change. Changes happen in the order of these calls.
    pub fn begin(&self, group: &GroupName, change: Change) -> Pending {
        self.begin_together(Together {
            groups: vec![(group.clone(), change)],
            transaction: None,
        })
    }

    /// As [`Self::begin`], of several changes that are made together, in this order.
    pub fn begin_all(&self, group: &GroupName, changes: Vec<Change>) -> Pending {
        let groups = changes.into_iter();
        self.begin_together(Together {
            groups: groups.map(|change| (group.clone(), change)).collect(),
            transaction: None,
        })
    }

    /// As [`Self::begin`], of a producer's transactions, and of what groups commit with them.
    pub fn begin_transaction(
        &self,
        transaction: TransactionChange,
        groups: Vec<(GroupName, Change)>,
    ) -> Pending {
        self.begin_together(Together {
            groups,
            transaction: Some(transaction),
        })
    }

    fn begin_together(&self, changes: Together) -> Pending {
        let (done, wait) = oneshot::channel();
        let worker = self.worker.lock();
        if self.is_closed.load(Ordering::Relaxed) {
            // The folder may be another process's by now.
            drop(done.send(Err(closed())));
            return Pending(wait);
        }
        match &*worker {
            // A thread that is gone drops what it is sent, which whoever waits takes for "closed".
            Some((sender, _)) => drop(sender.send(Waiting { changes, done })),
            None => drop(done.send(self.stored.lock().store(vec![changes]))),
        }
        Pending(wait)
    }

    /// Stores that `group` has handled everything below `offset`. Durable on return.
    ///
    /// # Errors
    /// As [`Pending::durable`].
    pub async fn commit(
        &self,
        group: &GroupName,
        topic: &Arc<Topic>,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), CommitError> {
        let change = one_commit(topic, partition, offset);
        self.begin(group, change).durable().await
    }

    /// As [`Self::commit`], on this thread and with a sync of its own.
    ///
    /// # Errors
    /// As [`Pending::durable`].
    pub fn commit_now(
        &self,
        group: &GroupName,
        topic: &Arc<Topic>,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), CommitError> {
        let change = one_commit(topic, partition, offset);
        self.stored.lock().store(vec![Together {
            groups: vec![(group.clone(), change)],
            transaction: None,
        }])
    }

    /// What a group has committed in a partition.
    #[must_use]
    pub fn committed(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Option<Committed> {
        let state = self.state.read();
        let of_group = &state.groups.get(group)?.offsets;
        of_group.get(&(topic.clone(), partition)).cloned()
    }

    /// All that a group has committed, by topic and partition.
    #[must_use]
    pub fn of(&self, group: &GroupName) -> Vec<(TopicName, PartitionId, Committed)> {
        let state = self.state.read();
        let of_group = state.groups.get(group).map(|group| &group.offsets);
        let of_group = of_group.into_iter().flatten();
        of_group
            .map(|((topic, id), committed)| (topic.clone(), *id, committed.clone()))
            .collect()
    }

    /// Whether there is such a group: it has committed something, or has members that were stored.
    #[must_use]
    pub fn contains(&self, group: &GroupName) -> bool {
        self.state.read().groups.contains_key(group)
    }

    /// All groups, by name.
    #[must_use]
    pub fn names(&self) -> Vec<GroupName> {
        self.state.read().groups.keys().cloned().collect()
    }

    /// The members that were stored last, of each group that has some.
    #[must_use]
    pub fn members(&self) -> Vec<(GroupName, Arc<[u8]>)> {
        let state = self.state.read();
        let groups = state.groups.iter();
        groups
            .filter_map(|(name, group)| Some((name.clone(), Arc::clone(group.members.as_ref()?))))
            .collect()
    }

    /// The states of producers' transactions that were stored last, by their transactional ids, and for how long they have stood.
    #[must_use]
    pub fn transactions(&self) -> Vec<(String, Arc<[u8]>, Duration)> {
        let now_ms = self.clock.now_ns() / NS_PER_MS;
        let state = self.state.read();
        let all = state.transactions.iter().map(|(id, (state, at_ms))| {
            let age = Duration::from_millis(now_ms.saturating_sub(*at_ms));
            (id.clone(), Arc::clone(state), age)
        });
        all.collect()
    }

    /// All committed offsets, by group, topic and partition.
    #[must_use]
    pub fn list(&self) -> Vec<(GroupName, TopicName, PartitionId, Offset)> {
        let state = self.state.read();
        let groups = state.groups.iter().flat_map(|(name, group)| {
            let offsets = group.offsets.iter();
            offsets.map(|((topic, id), one)| (name.clone(), topic.clone(), *id, one.offset))
        });
        groups.collect()
    }

    /// Groups without members that have neither committed nor had any for so long, each with the change that forgets it unless it
    /// is used before that.
    #[must_use]
    pub fn idle_for(&self, age: Duration) -> Vec<(GroupName, Change)> {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let before_ms = (self.clock.now_ns() / NS_PER_MS).saturating_sub(age_ms);
        let state = self.state.read();
        let groups = state.groups.iter();
        groups
            .filter(|(_, group)| group.is_idle_since(before_ms))
            .map(|(name, _)| (name.clone(), Change::Expire { before_ms }))
            .collect()
    }

    /// Forgets a deleted topic's offsets, so that a new topic of the name begins without any.
    pub(crate) fn delete_topic(&self, topic: &TopicName) -> Result<(), CommitError> {
        self.stored.lock().delete_topic(topic)
    }

    /// Stores what waits and ends the thread.
    pub(crate) fn close(&self) {
        let worker = {
            let mut worker = self.worker.lock();
            self.is_closed.store(true, Ordering::Relaxed);
            worker.take()
        };
        if let Some((sender, thread)) = worker {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the thread that stores committed offsets panicked");
            }
        }
    }
}

fn one_commit(topic: &Arc<Topic>, partition: PartitionId, offset: Offset) -> Change {
    Change::Commit(vec![Commit {
        topic: Arc::clone(topic),
        partition,
        offset,
        metadata: String::new(),
    }])
}

fn spawn_worker(stored: &Arc<Mutex<Stored>>) -> std::io::Result<(Sender<Waiting>, JoinHandle<()>)> {
    let (sender, receiver) = channel::<Waiting>();
    let stored = Arc::clone(stored);
    let thread = std::thread::Builder::new()
        .name("basalt-groups".to_owned())
        .spawn(move || run(&stored, &receiver))?;
    Ok((sender, thread))
}

/// Takes all changes that wait, stores them in one entry, and answers them.
fn run(stored: &Mutex<Stored>, receiver: &Receiver<Waiting>) {
    while let Ok(first) = receiver.recv() {
        let mut count = first.changes.weight();
        let mut changes = vec![first.changes];
        let mut done = vec![first.done];
        while count < MAX_PER_ENTRY
            && let Ok(next) = receiver.try_recv()
        {
            count += next.changes.weight();
            changes.push(next.changes);
            done.push(next.done);
        }
        let result = stored.lock().store(changes);
        for one in done {
            // Whoever asked may have gone away meanwhile.
            drop(one.send(result.clone()));
        }
    }
}

impl Stored {
    fn store(&mut self, changes: Vec<Together>) -> Result<(), CommitError> {
        let at_ms = self.clock.now_ns() / NS_PER_MS;
        let entries = changes.into_iter();
        let entries = entries.flat_map(|together| together.entries(at_ms));
        self.append(Entry::Many(entries.collect()))
    }

    fn delete_topic(&mut self, topic: &TopicName) -> Result<(), CommitError> {
        let has_offsets = |state: &State| {
            let mut offsets = state.groups.values().flat_map(|group| group.offsets.keys());
            offsets.any(|(of, _)| of == topic)
        };
        if !has_offsets(&self.state.read()) {
            return Ok(());
        }
        self.append(Entry::TopicDeleted(topic.to_string()))
    }

    /// Writes an entry down and applies it.
    fn append(&mut self, entry: Entry) -> Result<(), CommitError> {
        let failed = |reason: String| CommitError::Failed { reason };
        let payload = entry.encode().map_err(|error| failed(error.to_string()))?;
        self.journal.append(&payload).map_err(|error| match error {
            JournalError::Refused(error) if error.is_full() => {
                CommitError::StorageFull(error.to_string())
            }
            JournalError::Refused(error) => failed(format!("{error}: {}", error.source)),
            JournalError::Failed(reason) => failed(reason),
        })?;
        let applied = self.state.write().apply(entry);
        applied.map_err(|error| failed(error.to_string()))?;
        if self.journal.bytes() > 2 * self.base_bytes + REWRITE_SLACK_BYTES {
            self.shorten();
        }
        Ok(())
    }

    /// Rewrites the journal without its history.
    fn shorten(&mut self) {
        let payloads = encode_all(&self.state.read());
        if let Err(error) = self.journal.rewrite(self.disk.as_ref(), &payloads) {
            tracing::warn!(%error, "the journal of the groups was not made shorter");
        }
        // After a failure, too: it is tried again when the journal has grown as much once more.
        self.base_bytes = self.journal.bytes();
    }
}

fn encode_all(state: &State) -> Vec<Vec<u8>> {
    // Names and numbers always have a JSON form.
    let payloads = state.entries().map(|entry| entry.encode());
    payloads.filter_map(Result::ok).collect()
}
