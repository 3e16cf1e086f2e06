//! Committed offsets of consumer groups: a journal of its own, one sync for all commits that wait.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use basalt_proto::{GroupName, Offset, PartitionId, TopicName};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::error::{CommitError, OpenError};
use crate::journal::{Journal, JournalError};

/// Commits that one journal entry holds at most.
const MAX_COMMITS_PER_ENTRY: usize = 4096;
/// The journal is rewritten when it is this much longer than what it tells.
const REWRITE_SLACK_BYTES: u64 = 4 << 20;

type Key = (GroupName, TopicName, PartitionId);
type Offsets = BTreeMap<GroupName, BTreeMap<(TopicName, PartitionId), Offset>>;

/// One journal entry: some commits, or the end of a topic's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    Commits(Vec<(String, String, u32, u64)>),
    TopicDeleted(String),
}

struct Waiting {
    key: Key,
    offset: Offset,
    done: oneshot::Sender<Result<(), CommitError>>,
}

/// The committed offsets of all groups.
#[derive(Debug)]
pub struct Groups {
    offsets: Arc<RwLock<Offsets>>,
    stored: Arc<Mutex<Stored>>,
    worker: Mutex<Option<(Sender<Waiting>, JoinHandle<()>)>>,
}

#[derive(Debug)]
struct Stored {
    disk: Arc<dyn Disk>,
    journal: Journal,
    /// The journal's length when it was last opened or rewritten.
    base_bytes: u64,
    /// What the journal tells. Readers share it and never wait for the disk; it is written under this struct's lock only.
    offsets: Arc<RwLock<Offsets>>,
}

impl Groups {
    /// Reads the journal at `path`. With `threaded`, waiting commits share a sync.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        path: &Path,
        threaded: bool,
    ) -> Result<Self, OpenError> {
        let mut offsets = Offsets::new();
        let journal = Journal::open(disk.as_ref(), path, |payloads| {
            let mut entries = 0_u64;
            for payload in payloads {
                entries += apply(&mut offsets, payload, path)?;
            }
            // Rewritten at the start when most of it is history.
            let worth_it = entries > 1000 && entries > 4 * count(&offsets);
            Ok(worth_it.then(|| encode_all(&offsets)))
        })?;
        let offsets = Arc::new(RwLock::new(offsets));
        let stored = Arc::new(Mutex::new(Stored {
            disk: Arc::clone(disk),
            base_bytes: journal.bytes(),
            journal,
            offsets: Arc::clone(&offsets),
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
            offsets,
            stored,
            worker: Mutex::new(worker),
        })
    }

    /// Stores that `group` has handled everything below `offset`. Durable on return.
    ///
    /// # Errors
    /// [`CommitError::StorageFull`]: the former offset stands, a later commit may succeed. [`CommitError::Failed`].
    pub async fn commit(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), CommitError> {
        let key = (group.clone(), topic.clone(), partition);
        let (done, wait) = oneshot::channel();
        let queued = match &*self.worker.lock() {
            Some((sender, _)) => sender.send(Waiting { key, offset, done }).is_ok(),
            None => return self.commit_now(group, topic, partition, offset),
        };
        let closed = || CommitError::Failed {
            reason: "the log is closed".to_owned(),
        };
        if !queued {
            return Err(closed());
        }
        wait.await.unwrap_or_else(|_| Err(closed()))
    }

    /// As [`Self::commit`], on this thread and with a sync of its own.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_now(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), CommitError> {
        self.stored
            .lock()
            .store(&[((group.clone(), topic.clone(), partition), offset)])
    }

    /// What a group has committed in a partition.
    #[must_use]
    pub fn committed(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Option<Offset> {
        let offsets = self.offsets.read();
        let of_group = offsets.get(group)?;
        of_group.get(&(topic.clone(), partition)).copied()
    }

    /// All that a group has committed, by topic and partition.
    #[must_use]
    pub fn of(&self, group: &GroupName) -> Vec<(TopicName, PartitionId, Offset)> {
        let offsets = self.offsets.read();
        let of_group = offsets.get(group).into_iter().flatten();
        of_group
            .map(|((topic, id), offset)| (topic.clone(), *id, *offset))
            .collect()
    }

    /// All committed offsets, by group, topic and partition.
    #[must_use]
    pub fn list(&self) -> Vec<(GroupName, TopicName, PartitionId, Offset)> {
        let offsets = self.offsets.read();
        each(&offsets)
            .map(|(group, topic, id, offset)| (group.clone(), topic.clone(), id, offset))
            .collect()
    }

    /// Forgets a deleted topic's offsets, so that a new topic of the name begins without any.
    pub(crate) fn delete_topic(&self, topic: &TopicName) -> Result<(), CommitError> {
        self.stored.lock().delete_topic(topic)
    }

    /// Stores what waits and ends the thread.
    pub(crate) fn close(&self) {
        if let Some((sender, thread)) = self.worker.lock().take() {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the thread that stores committed offsets panicked");
            }
        }
    }
}

fn spawn_worker(stored: &Arc<Mutex<Stored>>) -> std::io::Result<(Sender<Waiting>, JoinHandle<()>)> {
    let (sender, receiver) = channel::<Waiting>();
    let stored = Arc::clone(stored);
    let thread = std::thread::Builder::new()
        .name("basalt-groups".to_owned())
        .spawn(move || run(&stored, &receiver))?;
    Ok((sender, thread))
}

/// Takes all commits that wait, stores them in one entry, and answers them.
fn run(stored: &Mutex<Stored>, receiver: &Receiver<Waiting>) {
    while let Ok(first) = receiver.recv() {
        let mut waiting = vec![first];
        waiting.extend(receiver.try_iter().take(MAX_COMMITS_PER_ENTRY - 1));
        let commits: Vec<(Key, Offset)> = waiting
            .iter()
            .map(|one| (one.key.clone(), one.offset))
            .collect();
        let result = stored.lock().store(&commits);
        for one in waiting {
            // Whoever asked may have gone away meanwhile.
            let _ = one.done.send(result.clone());
        }
    }
}

impl Stored {
    fn store(&mut self, commits: &[(Key, Offset)]) -> Result<(), CommitError> {
        let entry = Entry::Commits(
            commits
                .iter()
                .map(|((group, topic, id), offset)| {
                    (group.to_string(), topic.to_string(), id.0, offset.0)
                })
                .collect(),
        );
        self.append(&entry)?;
        let mut offsets = self.offsets.write();
        for (key, offset) in commits {
            put(&mut offsets, key.clone(), *offset);
        }
        Ok(())
    }

    fn delete_topic(&mut self, topic: &TopicName) -> Result<(), CommitError> {
        if !each(&self.offsets.read()).any(|(_, of, ..)| of == topic) {
            return Ok(());
        }
        self.append(&Entry::TopicDeleted(topic.to_string()))?;
        forget(&mut self.offsets.write(), topic.as_str());
        Ok(())
    }

    fn append(&mut self, entry: &Entry) -> Result<(), CommitError> {
        let payload = serde_json::to_vec(entry).map_err(|error| CommitError::Failed {
            reason: error.to_string(),
        })?;
        self.journal.append(&payload).map_err(|error| match error {
            JournalError::Refused(error) if error.is_full() => {
                CommitError::StorageFull(error.to_string())
            }
            JournalError::Refused(error) => CommitError::Failed {
                reason: format!("{error}: {}", error.source),
            },
            JournalError::Failed(reason) => CommitError::Failed { reason },
        })?;
        if self.journal.bytes() > 2 * self.base_bytes + REWRITE_SLACK_BYTES {
            self.shorten(&payload);
        }
        Ok(())
    }

    /// Rewrites the journal without its history. `payload` is its last entry, which the offsets do not have yet.
    fn shorten(&mut self, payload: &[u8]) {
        let mut offsets = self.offsets.read().clone();
        if apply(&mut offsets, payload, Path::new("")).is_err() {
            return;
        }
        let rewritten = self
            .journal
            .rewrite(self.disk.as_ref(), &encode_all(&offsets));
        if let Err(error) = rewritten {
            tracing::warn!(%error, "the journal of committed offsets was not made shorter");
        }
        // After a failure, too: it is tried again when the journal has grown as much once more.
        self.base_bytes = self.journal.bytes();
    }
}

/// Applies an entry; the number of commits in it.
fn apply(offsets: &mut Offsets, payload: &[u8], path: &Path) -> Result<u64, OpenError> {
    let damaged = |what: String| OpenError::Damaged {
        path: PathBuf::from(path),
        position: 0,
        what,
    };
    match serde_json::from_slice(payload).map_err(|error| damaged(error.to_string()))? {
        Entry::Commits(commits) => {
            let count = commits.len() as u64;
            for (group, topic, partition, offset) in commits {
                let group = GroupName::new(&group).map_err(|error| damaged(error.to_string()))?;
                let topic = TopicName::new(&topic).map_err(|error| damaged(error.to_string()))?;
                put(
                    offsets,
                    (group, topic, PartitionId(partition)),
                    Offset(offset),
                );
            }
            Ok(count)
        }
        Entry::TopicDeleted(topic) => {
            forget(offsets, &topic);
            Ok(1)
        }
    }
}

fn put(offsets: &mut Offsets, (group, topic, partition): Key, offset: Offset) {
    let of_group = offsets.entry(group).or_default();
    of_group.insert((topic, partition), offset);
}

/// Forgets a topic, and groups that have nothing else.
fn forget(offsets: &mut Offsets, topic: &str) {
    offsets.retain(|_, of_group| {
        of_group.retain(|(of, _), _| of.as_str() != topic);
        !of_group.is_empty()
    });
}

fn each(offsets: &Offsets) -> impl Iterator<Item = (&GroupName, &TopicName, PartitionId, Offset)> {
    offsets.iter().flat_map(|(group, of_group)| {
        let of_group = of_group.iter();
        of_group.map(move |((topic, id), offset)| (group, topic, *id, *offset))
    })
}

fn count(offsets: &Offsets) -> u64 {
    offsets.values().map(|of_group| of_group.len() as u64).sum()
}

fn encode_all(offsets: &Offsets) -> Vec<Vec<u8>> {
    let commits: Vec<_> = each(offsets)
        .map(|(group, topic, id, offset)| (group.to_string(), topic.to_string(), id.0, offset.0))
        .collect();
    let entries = commits
        .chunks(MAX_COMMITS_PER_ENTRY)
        .map(|chunk| Entry::Commits(chunk.to_vec()));
    // Names and numbers always have a JSON form.
    entries
        .map(|entry| serde_json::to_vec(&entry).unwrap_or_default())
        .collect()
}
