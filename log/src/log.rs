//! The data folder: its lock, its catalogue of topics, its threads.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use basalt_proto::{PartitionId, TopicName};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::{LogConfig, TopicConfig};
use crate::disk::{Disk, DiskFile};
use crate::error::{CloseError, DiskError, OnDisk, OpenError, TopicError};
use crate::groups::Groups;
use crate::index::boot_field;
use crate::journal::{Journal, JournalError};
use crate::partition::Partition;
use crate::sync::{self, Shared};
use crate::topic::{Topic, TopicId};
use crate::wal::{Replay, Wal};

/// With fewer partitions to open a thread is not worth its start.
const LEAST_FOR_A_THREAD: usize = 64;

/// The most partitions one topic may have.
pub const MAX_PARTITIONS: u32 = 1_000_000;

/// One entry of the catalogue's journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    Create {
        id: TopicId,
        name: String,
        partitions: u32,
        config: TopicConfig,
    },
    Alter {
        id: TopicId,
        config: TopicConfig,
    },
    Delete {
        id: TopicId,
    },
    /// Ids below this were given, also to topics that are gone.
    NextId(TopicId),
}

/// An open data folder.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    topics: RwLock<BTreeMap<TopicName, Arc<Topic>>>,
    catalogue: Mutex<Catalogue>,
    groups: Groups,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<Box<dyn Any + Send + Sync>>>,
    /// A file on the disk of the data folder, open all the time, to sync the file system by.
    on_disk: Arc<dyn DiskFile>,
}

#[derive(Debug)]
struct Catalogue {
    journal: Journal,
    next_id: TopicId,
    deleted: BTreeSet<TopicName>,
    closed: bool,
}

/// A topic as the catalogue knows it.
#[derive(Debug, Clone)]
pub(crate) struct CatalogueTopic {
    pub(crate) id: TopicId,
    pub(crate) name: TopicName,
    pub(crate) partitions: u32,
    pub(crate) config: TopicConfig,
}

/// What a catalogue's entries leave.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) topics: BTreeMap<TopicId, CatalogueTopic>,
    next_id: TopicId,
    /// Names of deleted topics whose folder may still be there.
    deleted: BTreeSet<TopicName>,
}

/// Where a partition's files are.
pub(crate) fn partition_dir(data_dir: &Path, topic: &TopicName, partition: PartitionId) -> PathBuf {
    data_dir
        .join("topics")
        .join(topic.as_str())
        .join(partition.0.to_string())
}

pub(crate) fn catalogue_path(data_dir: &Path) -> PathBuf {
    data_dir.join("catalogue")
}

pub(crate) fn groups_path(data_dir: &Path) -> PathBuf {
    data_dir.join("groups")
}

/// Takes the lock of a data folder.
pub(crate) fn lock_data_dir(
    disk: &dyn Disk,
    data_dir: &Path,
) -> Result<Box<dyn Any + Send + Sync>, OpenError> {
    let path = data_dir.join("LOCK");
    disk.lock(&path)
        .on("lock", &path)?
        .ok_or_else(|| OpenError::Locked {
            path: data_dir.to_owned(),
        })
}

/// Applies a catalogue's entries, in order.
pub(crate) fn replay_catalogue(path: &Path, payloads: &[&[u8]]) -> Result<Replayed, OpenError> {
    let damaged = |what: String| OpenError::Damaged {
        path: path.to_owned(),
        position: 0,
        what,
    };
    let mut replayed = Replayed {
        topics: BTreeMap::new(),
        next_id: TopicId(1),
        deleted: BTreeSet::new(),
    };
    for payload in payloads {
        match serde_json::from_slice(payload).map_err(|error| damaged(error.to_string()))? {
            Entry::Create {
                id,
                name,
                partitions,
                config,
            } => {
                let name = TopicName::new(&name).map_err(|error| damaged(error.to_string()))?;
                replayed.next_id = replayed.next_id.max(TopicId(id.0.saturating_add(1)));
                replayed.deleted.remove(&name);
                replayed.topics.insert(
                    id,
                    CatalogueTopic {
                        id,
                        name,
                        partitions,
                        config,
                    },
                );
            }
            Entry::Alter { id, config } => {
                if let Some(topic) = replayed.topics.get_mut(&id) {
                    topic.config = config;
                }
            }
            Entry::Delete { id } => replayed
                .deleted
                .extend(replayed.topics.remove(&id).map(|topic| topic.name)),
            Entry::NextId(id) => replayed.next_id = replayed.next_id.max(id),
        }
    }
    Ok(replayed)
}

fn encode(entry: &Entry) -> Vec<u8> {
    // Names, numbers and durations always have a JSON form.
    serde_json::to_vec(entry).unwrap_or_default()
}

impl Log {
    /// Opens a data folder, creating it if it is not there, and recovers every partition in it.
    ///
    /// # Errors
    /// [`OpenError::Locked`] while another process has it; [`OpenError::Damaged`] for a catalogue that cannot be believed;
    /// [`OpenError::Disk`]. Damage in a segment is no error: it is logged, kept and refused to readers.
    pub fn open(
        config: LogConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, OpenError> {
        let data_dir = config.data_dir.clone();
        disk.create_dir_all(&data_dir).on("create", &data_dir)?;
        let lock = lock_data_dir(disk.as_ref(), &data_dir)?;
        let (
            journal,
            Replayed {
                topics,
                next_id,
                deleted,
            },
        ) = open_catalogue(disk.as_ref(), &data_dir)?;
        let threads = config.sync_threads;
        let groups = Groups::open(&disk, &groups_path(&data_dir), threads > 0)?;
        // As for a partition's folder: names that an earlier process could not sync are synced before they are relied on.
        disk.sync_dir(&data_dir).on("sync", &data_dir)?;
        let (wal, replay) = Wal::open(&disk, &data_dir, config.wal_bytes)?;
        let shared = Arc::new(Shared {
            boot: boot_field(&disk.boot_id()),
            disk,
            clock,
            config,
            queue: sync::SyncQueue::default(),
            wal,
            checkpointing: Mutex::new(()),
            seals: watch::Sender::new(0),
        });
        // A deletion that was cut off after the catalogue forgot the topic.
        for name in &deleted {
            let dir = data_dir.join("topics").join(name.as_str());
            shared.disk.remove_dir_all(&dir).on("remove", &dir)?;
        }
        let topics_dir = data_dir.join("topics");
        if shared
            .disk
            .exists(&topics_dir)
            .on("look for", &topics_dir)?
        {
            shared.disk.sync_dir(&topics_dir).on("sync", &topics_dir)?;
        }
        let known: BTreeSet<&str> = topics.values().map(|topic| topic.name.as_str()).collect();
        for name in shared.disk.list(&topics_dir).on("list", &topics_dir)? {
            if !known.contains(name.as_str()) {
                let folder = topics_dir.join(&name);
                tracing::error!(folder = %folder.display(), "the catalogue knows no topic of this name: its records are kept and not served; restore the catalogue from a copy");
            }
        }
        let topics: Vec<Topic> = topics
            .into_values()
            .map(|topic| topic.open(&shared))
            .collect();
        recover_partitions(&shared, &topics, &replay)?;
        drop(replay);
        let opened: BTreeMap<_, _> = topics
            .into_iter()
            .map(|topic| (topic.name().clone(), Arc::new(topic)))
            .collect();
        let path = catalogue_path(&data_dir);
        let on_disk = shared.disk.open(&path).on("open", &path)?;
        settle_recovered(&shared, opened.values(), on_disk.as_ref())?;
        let log = Arc::new(Self {
            shared,
            topics: RwLock::new(opened),
            catalogue: Mutex::new(Catalogue {
                journal,
                next_id,
                deleted,
                closed: false,
            }),
            groups,
            threads: Mutex::new(Vec::new()),
            lock: Mutex::new(Some(lock)),
            on_disk,
        });
        log.start_threads(threads)?;
        Ok(log)
    }

    fn start_threads(&self, count: usize) -> Result<(), OpenError> {
        let mut threads = self.threads.lock();
        if count > 0 {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("basalt-commit".to_owned());
            let started = thread.spawn(move || sync::run_commits(&shared));
            threads.push(started.on("start a thread for", &self.shared.config.data_dir)?);
        }
        for number in 0..count {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(format!("basalt-sync-{number}"));
            let started = thread.spawn(move || sync::run(&shared));
            threads.push(started.on("start a thread for", &self.shared.config.data_dir)?);
        }
        Ok(())
    }

    /// What it was opened with.
    #[must_use]
    pub fn config(&self) -> &LogConfig {
        &self.shared.config
    }

    /// Settles what full files of the write-ahead log know of, and gives them free: what a sync thread does when one is
    /// full. For logs without threads.
    pub fn checkpoint_now(&self) {
        sync::checkpoint(&self.shared);
    }

    /// Has the write-ahead log go on in another file.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn turn_wal(&self) {
        self.shared.wal.turn();
    }

    /// A group commit of these partitions, on this thread; those that are too much for it are settled.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn commit_now(&self, partitions: &[Arc<Partition>]) {
        self.commit_unsettled(partitions);
        for partition in partitions {
            // What fails has poisoned the partition.
            let _ = partition.settle_if_asked();
        }
    }

    /// As [`Self::commit_now`], without the settling.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn commit_unsettled(&self, partitions: &[Arc<Partition>]) {
        crate::partition::commit_group(&self.shared, partitions.to_vec());
    }

    /// Whether a thread is at the write-ahead log's list of files.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn wal_is_locked(&self) -> bool {
        self.shared.wal.is_locked()
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.shared.disk
    }

    /// Committed offsets of consumer groups.
    #[must_use]
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Counts the segments sealed since the log was opened, to be watched.
    #[must_use]
    pub fn seals(&self) -> watch::Receiver<u64> {
        self.shared.seals.subscribe()
    }

    /// A topic by name.
    #[must_use]
    pub fn topic(&self, name: &TopicName) -> Option<Arc<Topic>> {
        self.topics.read().get(name).cloned()
    }

    /// All topics, by name.
    #[must_use]
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        self.topics.read().values().cloned().collect()
    }

    /// A topic by name, created with the defaults if that is allowed.
    ///
    /// # Errors
    /// [`TopicError::Unknown`] when it is not, else as [`Self::create_topic`].
    pub fn topic_or_create(&self, name: &TopicName) -> Result<Arc<Topic>, TopicError> {
        if let Some(topic) = self.topic(name) {
            return Ok(topic);
        }
        let config = &self.shared.config;
        if !config.auto_create_topics {
            return Err(TopicError::Unknown {
                topic: name.clone(),
            });
        }
        match self.create_topic(
            name,
            config.default_partitions,
            config.topic_defaults.clone(),
        ) {
            // Another connection was quicker.
            Err(TopicError::Exists { topic }) => {
                self.topic(name).ok_or(TopicError::Unknown { topic })
            }
            other => other,
        }
    }

    /// Creates a topic. It is in the catalogue on the disk on return; its partitions cost nothing until they are used.
    ///
    /// # Errors
    /// See [`TopicError`].
    pub fn create_topic(
        &self,
        name: &TopicName,
        partitions: u32,
        config: TopicConfig,
    ) -> Result<Arc<Topic>, TopicError> {
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Err(TopicError::BadPartitionCount {
                partitions,
                max: MAX_PARTITIONS,
            });
        }
        let mut catalogue = self.catalogue.lock();
        if self.topics.read().contains_key(name) {
            return Err(TopicError::Exists {
                topic: name.clone(),
            });
        }
        let dir = self.topic_dir(name);
        if self.shared.disk.exists(&dir).on("look for", &dir)? {
            // Left by a deletion whose last step failed, or not ours: then it is not ours to remove.
            if !catalogue.deleted.contains(name) {
                return Err(TopicError::Disk(DiskError {
                    action: "create the topic in",
                    path: dir,
                    source: std::io::Error::from(std::io::ErrorKind::AlreadyExists),
                }));
            }
            self.shared.disk.remove_dir_all(&dir).on("clear", &dir)?;
        }
        if catalogue.deleted.contains(name) {
            // Also where the folder is gone: the sync after its removal may have failed.
            self.sync_topics_dir()?;
        }
        // Commits that were under way while an earlier topic of the name was deleted.
        self.forget_commits(name)?;
        let id = catalogue.next_id;
        catalogue.append(&Entry::Create {
            id,
            name: name.to_string(),
            partitions,
            config: config.clone(),
        })?;
        catalogue.next_id = TopicId(id.0 + 1);
        let spec = CatalogueTopic {
            id,
            name: name.clone(),
            partitions,
            config,
        };
        let topic = Arc::new(spec.open(&self.shared));
        self.topics.write().insert(name.clone(), Arc::clone(&topic));
        Ok(topic)
    }

    /// Changes a topic's settings.
    ///
    /// # Errors
    /// See [`TopicError`].
    pub fn alter_topic(&self, name: &TopicName, config: TopicConfig) -> Result<(), TopicError> {
        self.alter_topic_with(name, |_| Ok(config))
    }

    /// Changes a topic's settings to what `change` makes of them; no other change comes between.
    ///
    /// # Errors
    /// That of `change`, or [`TopicError`]; nothing is changed then.
    pub fn alter_topic_with<E: From<TopicError>>(
        &self,
        name: &TopicName,
        change: impl FnOnce(&TopicConfig) -> Result<TopicConfig, E>,
    ) -> Result<(), E> {
        let mut catalogue = self.catalogue.lock();
        let topic = self.topic(name).ok_or_else(|| TopicError::Unknown {
            topic: name.clone(),
        })?;
        let config = change(&topic.config())?;
        catalogue.append(&Entry::Alter {
            id: topic.id(),
            config: config.clone(),
        })?;
        *topic.config.write() = config;
        Ok(())
    }

    /// Deletes the topic `id` of this name with its hot segments and committed offsets. Readers that hold a segment keep
    /// its bytes.
    ///
    /// # Errors
    /// [`TopicError::Unknown`] when the topic of this name is another one by now. See [`TopicError`] for the rest. Once the
    /// catalogue has forgotten the topic it is gone, even if its files could not be removed: the next open, or the next
    /// topic of the name, removes them.
    pub fn delete_topic(&self, name: &TopicName, id: TopicId) -> Result<(), TopicError> {
        let mut catalogue = self.catalogue.lock();
        let found = self.topic(name).filter(|topic| topic.id() == id);
        let topic = found.ok_or_else(|| TopicError::Unknown {
            topic: name.clone(),
        })?;
        catalogue.append(&Entry::Delete { id: topic.id() })?;
        catalogue.deleted.insert(name.clone());
        self.topics.write().remove(name);
        topic.abandon();
        // After the catalogue: a deletion that is refused must leave them. A topic made anew under the name forgets them, too.
        self.forget_commits(name)?;
        let dir = self.topic_dir(name);
        self.shared.disk.remove_dir_all(&dir).on("remove", &dir)?;
        self.sync_topics_dir()
    }

    fn forget_commits(&self, name: &TopicName) -> Result<(), TopicError> {
        self.groups
            .delete_topic(name)
            .map_err(|error| TopicError::Closed {
                reason: error.to_string(),
            })
    }

    /// A topic's folder that was removed must not be back after a crash, under a new topic of the name.
    fn sync_topics_dir(&self) -> Result<(), TopicError> {
        let dir = self.shared.config.data_dir.join("topics");
        if self.shared.disk.exists(&dir).on("look for", &dir)? {
            self.shared.disk.sync_dir(&dir).on("sync", &dir)?;
        }
        Ok(())
    }

    fn topic_dir(&self, name: &TopicName) -> PathBuf {
        self.shared
            .config
            .data_dir
            .join("topics")
            .join(name.as_str())
    }

    /// Syncs and tidies every partition, ends the threads and gives up the folder. A second call does nothing.
    ///
    /// # Errors
    /// [`CloseError`]: what could not be synced is recovered by the next open as after a crash.
    pub fn close(&self) -> Result<(), CloseError> {
        let Some(lock) = self.lock.lock().take() else {
            return Ok(());
        };
        self.catalogue.lock().closed = true;
        self.groups.close();
        self.shared.queue.stop();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a sync thread panicked");
            }
        }
        let topics = self.topics();
        let partitions: Vec<_> = topics
            .iter()
            .flat_map(|topic| topic.used_partitions())
            .collect();
        let errors = Partition::close_all(&partitions, self.on_disk.as_ref());
        let is_unproven = |partition: &Arc<Partition>| partition.is_unproven();
        if errors.is_empty() && !partitions.iter().any(is_unproven) {
            self.shared.wal.close();
        }
        drop(lock);
        match errors.first() {
            None => Ok(()),
            Some(first) => Err(CloseError::Partitions {
                failed: errors.len(),
                first: first.to_string(),
            }),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "the log was not closed in order");
        }
    }
}

impl Catalogue {
    fn append(&mut self, entry: &Entry) -> Result<(), TopicError> {
        if self.closed {
            return Err(TopicError::Closed {
                reason: "the log is closed".to_owned(),
            });
        }
        self.journal
            .append(&encode(entry))
            .map_err(|error| match error {
                JournalError::Refused(error) => TopicError::Disk(error),
                JournalError::Failed(reason) => TopicError::Closed { reason },
            })
    }
}

fn open_catalogue(disk: &dyn Disk, data_dir: &Path) -> Result<(Journal, Replayed), OpenError> {
    let path = catalogue_path(data_dir);
    let topics_dir = data_dir.join("topics");
    let missing = !disk.exists(&path).on("look for", &path)?;
    if missing && !disk.list(&topics_dir).on("list", &topics_dir)?.is_empty() {
        return Err(OpenError::CatalogueMissing { path });
    }
    let mut state = replay_catalogue(&path, &[])?;
    let journal = Journal::open(disk, &path, |payloads| {
        state = replay_catalogue(&path, payloads)?;
        let live = state.topics.len();
        let worth_it = payloads.len() > 1000 && payloads.len() > 2 * live;
        let rewritten = worth_it.then(|| {
            let create = |topic: &CatalogueTopic| Entry::Create {
                id: topic.id,
                name: topic.name.to_string(),
                partitions: topic.partitions,
                config: topic.config.clone(),
            };
            let entries = std::iter::once(Entry::NextId(state.next_id))
                .chain(state.topics.values().map(create));
            entries.map(|entry| encode(&entry)).collect()
        });
        Ok(rewritten)
    })?;
    Ok((journal, state))
}

/// Makes what was recovered durable, and gives the write-ahead log free.
fn settle_recovered<'a>(
    shared: &Shared,
    topics: impl Iterator<Item = &'a Arc<Topic>>,
    on_disk: &dyn DiskFile,
) -> Result<(), DiskError> {
    let partitions: Vec<_> = topics.flat_map(|topic| topic.used_partitions()).collect();
    Partition::settle_recovered(&partitions, on_disk)?;
    let unproven: Vec<_> = partitions
        .iter()
        .filter(|partition| partition.is_unproven())
        .map(Arc::downgrade)
        .collect();
    shared.wal.release_all(&unproven);
    Ok(())
}

impl CatalogueTopic {
    fn open(self, shared: &Arc<Shared>) -> Topic {
        Topic::new(self.name, self.id, self.partitions, self.config, shared)
    }
}

/// Opens all partitions that have records, by as many threads as there are processors: each waits for the system most of the
/// time. A log without threads of its own gets none here either.
fn recover_partitions(
    shared: &Arc<Shared>,
    topics: &[Topic],
    replay: &Replay,
) -> Result<(), DiskError> {
    let mut waiting = Vec::new();
    for topic in topics {
        let ids = partitions_with_records(shared, topic, replay)?;
        waiting.extend(ids.into_iter().map(|id| (topic, id)));
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = match shared.config.sync_threads {
        0 => 1,
        _ => processors.min(waiting.len().div_ceil(LEAST_FOR_A_THREAD)),
    };
    let next = AtomicUsize::new(0);
    let open_some = || {
        while let Some((topic, id)) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
            match Partition::open(topic.spec(*id), shared, replay) {
                Ok(partition) => topic.put(partition),
                Err(error) => {
                    // Nobody needs the others any more.
                    next.store(waiting.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others = (1..threads).map_while(|_| {
            let thread = std::thread::Builder::new().name("basalt-open".to_owned());
            // Without it the others do its part.
            thread.spawn_scoped(scope, open_some).ok()
        });
        let others: Vec<_> = others.collect();
        let own = open_some();
        let ended = others.into_iter().map(|thread| match thread.join() {
            Ok(opened) => opened,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All of them, before the first error is told.
        ended.fold(own, Result::and)
    })
}

/// The partitions of a topic that have a folder or a record in the write-ahead log, in order.
fn partitions_with_records(
    shared: &Shared,
    topic: &Topic,
    replay: &Replay,
) -> Result<BTreeSet<PartitionId>, DiskError> {
    let dir = shared
        .config
        .data_dir
        .join("topics")
        .join(topic.name().as_str());
    let mut found: BTreeSet<PartitionId> = replay.partitions_of(topic.id()).collect();
    for name in shared.disk.list(&dir).on("list", &dir)? {
        let number = name
            .parse()
            .ok()
            .filter(|number: &u32| number.to_string() == name);
        match number.filter(|number| *number < topic.partition_count()) {
            Some(number) => drop(found.insert(PartitionId(number))),
            None => {
                let stray = dir.join(&name);
                tracing::warn!(path = %stray.display(), "this does not belong in a topic's folder; it is left alone");
            }
        }
    }
    found.retain(|id| id.0 < topic.partition_count());
    Ok(found)
}
