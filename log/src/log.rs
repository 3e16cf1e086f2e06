//! The data folder: its lock, its catalogue of topics, its threads.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use basalt_proto::TopicName;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::LogConfig;
use crate::disk::{Disk, DiskFile};
use crate::error::{CloseError, OnDisk, OpenError};
use crate::groups::Groups;
use crate::partition::Partition;
use crate::sync::{self, Shared};
use crate::topic::Topic;

mod catalogue;
mod folder;
mod open;
mod topics;

use catalogue::Catalogue;
pub(crate) use catalogue::replay_catalogue;
pub(crate) use folder::{catalogue_path, groups_path, lock_data_dir, partition_dir, topics_dir};
pub use topics::MAX_PARTITIONS;

/// An open data folder.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    topics: RwLock<BTreeMap<TopicName, Arc<Topic>>>,
    /// Grows after each change of which topics there are, or of how many partitions one has.
    topics_version: AtomicU64,
    catalogue: Mutex<Catalogue>,
    groups: Groups,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<Box<dyn Any + Send + Sync>>>,
    /// A file on the disk of the data folder, open all the time, to sync the file system by.
    on_disk: Arc<dyn DiskFile>,
}

impl Log {
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

    /// Nanoseconds since the Unix epoch, by the clock that it was given.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    /// Consumer groups and transactions.
    #[must_use]
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Counts the segments sealed since the log was opened, to be watched.
    #[must_use]
    pub fn seals(&self) -> watch::Receiver<u64> {
        self.shared.seals.subscribe()
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
