//! Deleting a topic: from the log, then its cold objects.
//!
//! A tombstone is written first, so that objects are only ever deleted because somebody asked for it, not because a catalogue does
//! not know them. The topic is deleted once the log's catalogue has forgotten it:
//!
//! - **COL-19**: a tombstone counts only when the catalogue does not know its topic. Then the next start deletes the objects. Before
//!   that a deletion that failed or was interrupted is as if nobody had tried: the tombstone is withdrawn, the topic goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use basalt_log::{Log, TopicError, TopicId};
use basalt_proto::TopicName;
use bytes::Bytes;
use object_store::path::Path;

use crate::error::{Chain, DeleteError};
use crate::file::ColdFile;
use crate::partition::TieredPartition;
use crate::paths;
use crate::recover::StoreListing;
use crate::shared::Shared;
use crate::steps::Step;
use crate::store::{ColdStore, StoreError};

/// A deleted topic whose objects may still be read by queries.
#[derive(Debug)]
pub(crate) struct DeletedTopic {
    prefix: Path,
    files: Vec<Arc<ColdFile>>,
}

impl DeletedTopic {
    /// Whether nobody reads its objects any more.
    pub(crate) fn is_unread(&self) -> bool {
        self.files.iter().all(|file| Arc::strong_count(file) == 1)
    }

    /// Deletes all objects, then the tombstone.
    pub(crate) async fn delete_objects(&self, shared: &Shared) -> Result<(), DeleteError> {
        delete_all_but_tombstone(&shared.store, &self.prefix).await?;
        shared.steps.reached(Step::ObjectsDeleted)?;
        finish(&shared.store, &self.prefix).await?;
        Ok(())
    }
}

/// Deletes a topic from the log. `partitions` are all of it; they are closed.
pub(crate) async fn delete_topic(
    shared: &Arc<Shared>,
    name: &TopicName,
    topic_id: u64,
    partitions: &[Arc<TieredPartition>],
) -> Result<DeletedTopic, DeleteError> {
    let prefix = paths::topic_prefix(name, topic_id);
    let _stopping = StopMerging::new(partitions);
    let mut work = Vec::new();
    for partition in partitions {
        // Waits for what is being merged and cooled: nothing new is written behind the tombstone. Held until it is decided, so
        // that nobody sees a partition that is closed and then open again.
        let merging = partition.merging.lock().await;
        work.push((merging, partition.work.lock().await));
    }
    if !knows(&shared.log, name, topic_id) {
        // Somebody else was quicker. A later topic of the name is not meant.
        return Err(TopicError::Unknown {
            topic: name.clone(),
        }
        .into());
    }
    // What is deleted may be a new owner's by now.
    shared.check_owner().await?;
    let written = shared
        .store
        .put_durable(&paths::tombstone(&prefix), Bytes::new())
        .await;
    if let Err(error) = written {
        withdraw(&shared.store, &prefix).await;
        return Err(error.into());
    }
    shared.steps.reached(Step::TombstoneWritten)?;
    let close = |closed| {
        for partition in partitions {
            partition.state.lock().closed = closed;
        }
    };
    close(true);
    if let Err(error) = delete_from_log(&shared.log, name, topic_id).await {
        if knows(&shared.log, name, topic_id) {
            withdraw(&shared.store, &prefix).await;
            close(false);
        }
        return Err(error);
    }
    drop(work);
    shared.steps.reached(Step::TopicDeleted)?;
    let mut files = Vec::new();
    for partition in partitions {
        // Whoever still has the partition finds nothing in it.
        let mut state = partition.state.lock();
        files.append(&mut state.dropped);
        files.append(&mut state.manifest.files);
    }
    Ok(DeletedTopic { prefix, files })
}

/// Asks what is being merged to stop, while it lives.
struct StopMerging<'a>(&'a [Arc<TieredPartition>]);

impl<'a> StopMerging<'a> {
    fn new(partitions: &'a [Arc<TieredPartition>]) -> Self {
        for partition in partitions {
            partition.deleting.store(true, Ordering::Relaxed);
        }
        Self(partitions)
    }
}

impl Drop for StopMerging<'_> {
    fn drop(&mut self) {
        for partition in self.0 {
            partition.deleting.store(false, Ordering::Relaxed);
        }
    }
}

/// Whether the log has the very topic, not just one of the name.
pub(crate) fn knows(log: &Log, name: &TopicName, topic_id: u64) -> bool {
    log.topic(name)
        .is_some_and(|topic| topic.id().0 == topic_id)
}

/// Takes back a tombstone, also one of which nobody knows whether it is there. Should that fail, the next start does it (COL-19).
async fn withdraw(store: &ColdStore, prefix: &Path) {
    let tombstone = paths::tombstone(prefix);
    if let Err(error) = store.delete_durable(&tombstone).await {
        tracing::warn!(%tombstone, error = %Chain(&error), "the tombstone of a topic that was not deleted stays until the next start");
    }
}

async fn delete_from_log(
    log: &Arc<Log>,
    name: &TopicName,
    topic_id: u64,
) -> Result<(), DeleteError> {
    let (log, name) = (Arc::clone(log), name.clone());
    let deleted =
        tokio::task::spawn_blocking(move || log.delete_topic(&name, TopicId(topic_id))).await;
    deleted
        .unwrap_or_else(|stopped| std::panic::resume_unwind(stopped.into_panic()))
        .map_err(DeleteError::from)
}

async fn delete_all_but_tombstone(store: &ColdStore, prefix: &Path) -> Result<(), StoreError> {
    let tombstone = paths::tombstone(prefix);
    for path in store
        .list(prefix)
        .await?
        .into_iter()
        .filter(|path| *path != tombstone)
    {
        store.delete(&path).await?;
    }
    Ok(())
}

async fn finish(store: &ColdStore, prefix: &Path) -> Result<(), StoreError> {
    store.delete(&paths::tombstone(prefix)).await?;
    store.remove_empty_folders(prefix).await;
    Ok(())
}

/// The error for a deletion whose thread ended early.
pub(crate) fn interrupted(stopped: &tokio::task::JoinError) -> DeleteError {
    let source = object_store::Error::Generic {
        store: "cold tier",
        source: stopped.to_string().into(),
    };
    DeleteError::Store(StoreError::Object {
        action: "delete",
        path: String::new(),
        source,
    })
}

/// Finishes the deletions that an earlier run began, and withdraws those that did not get as far as the catalogue (COL-19).
pub(crate) async fn finish_deletions(
    store: &ColdStore,
    log: &Log,
    listing: &StoreListing,
) -> Result<(), StoreError> {
    for (topic, topic_id, found) in listing.topics() {
        if !found.has_tombstone {
            continue;
        }
        let prefix = paths::topic_prefix(topic, topic_id);
        if knows(log, topic, topic_id) {
            tracing::info!(%topic, "withdrawing the deletion of a topic that was never decided");
            store.delete_durable(&paths::tombstone(&prefix)).await?;
            continue;
        }
        tracing::info!(%topic, "finishing the deletion of a topic");
        delete_all_but_tombstone(store, &prefix).await?;
        finish(store, &prefix).await?;
    }
    Ok(())
}
