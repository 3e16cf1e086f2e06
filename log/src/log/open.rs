//! Opening a data folder: the catalogue, then every partition that has records, then one settling for all of them, before anyone
//! may read what was recovered (LOG-8) and before the write-ahead log is used again. What counts in a partition is for `recovery`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicUsize, Ordering};

use basalt_proto::PartitionId;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::Log;
use super::catalogue::{Catalogue, Replayed, open_catalogue};
use super::folder::{catalogue_path, groups_path, lock_data_dir, topic_dir, topics_dir};
use crate::clock::Clock;
use crate::config::LogConfig;
use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk, OpenError};
use crate::groups::Groups;
use crate::index::boot_field;
use crate::partition::Partition;
use crate::sync::{self, Shared};
use crate::topic::Topic;
use crate::wal::{Replay, Wal};

/// With fewer partitions to open a thread is not worth its start.
const LEAST_FOR_A_THREAD: usize = 64;

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
                next_producer_id,
                deleted,
            },
        ) = open_catalogue(disk.as_ref(), &data_dir)?;
        let threads = config.sync_threads;
        let groups = Groups::open(&disk, &clock, &groups_path(&data_dir), threads > 0)?;
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
            let dir = topic_dir(&data_dir, name);
            shared.disk.remove_dir_all(&dir).on("remove", &dir)?;
        }
        let topics_dir = topics_dir(&data_dir);
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
            topics_version: AtomicU64::new(0),
            catalogue: Mutex::new(Catalogue {
                journal,
                next_id,
                next_producer_id,
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
    let dir = topic_dir(&shared.config.data_dir, topic.name());
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
