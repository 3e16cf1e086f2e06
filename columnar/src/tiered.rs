//! The tiered log: topics whose partitions are hot and cold.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use basalt_log::{Log, Partition, Topic, TopicConfig, TopicError, TopicId};
use basalt_proto::{Offset, PartitionId, TopicName};
use basalt_schema::{SchemaError, TopicSchema};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use crate::compact::When;
use crate::config::ColdConfig;
use crate::cool::{CoolReport, blocking};
use crate::delete::{self, DeletedTopic};
use crate::error::{CoolError, DeleteError, ShutdownError, TierError};
use crate::maintenance::{self, MaintenanceReport};
use crate::manifest::Manifest;
use crate::pace::Turns;
use crate::partition::{TierBounds, TieredPartition};
use crate::schemas;
use crate::shared::Shared;
use crate::steps::{NoSteps, Steps};
use crate::store::ColdStore;

/// Threads that drive the cold tier's waiting.
const WORKERS: usize = 1;
/// How long a shutdown waits for a store to delete what stopped uploads have left.
const LAST_SWEEP: Duration = Duration::from_secs(5);
/// Threads that may block: far more than [`crate::shared`] lets run at the same time, since those wait for others to read files.
const BLOCKING_THREADS: usize = 32;

/// A log whose older part lives in an object store. What servers and queries hold.
#[derive(Debug)]
pub struct TieredLog {
    pub(crate) tier: Arc<Tier>,
    runtime: Mutex<Option<Runtime>>,
    maintenance: Mutex<Option<JoinHandle<()>>>,
}

/// The part of it that its own threads hold.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) shared: Arc<Shared>,
    pub(crate) partitions: RwLock<Partitions>,
    pub(crate) deleted: Mutex<Vec<DeletedTopic>>,
    pub(crate) turns: Mutex<Turns>,
}

/// By topic id and number.
pub(crate) type Partitions = HashMap<(u64, PartitionId), Arc<TieredPartition>>;

impl TieredLog {
    /// Opens the cold part of every partition of `log`: reads the newest manifests, releases segments that are cold, deletes what
    /// a crash left behind, finishes interrupted deletions, and empties the cache folder.
    ///
    /// # Errors
    /// [`TierError`] names the partition and object that cannot be used. Nothing is deleted that is still needed.
    pub async fn open(
        log: Arc<Log>,
        store: ColdStore,
        config: ColdConfig,
    ) -> Result<Arc<Self>, TierError> {
        Self::open_with_steps(log, store, config, Arc::new(NoSteps)).await
    }

    /// As [`TieredLog::open`], with a hook between every two steps of a commit: for tests that stop there.
    ///
    /// # Errors
    /// As [`TieredLog::open`].
    pub async fn open_with_steps(
        log: Arc<Log>,
        store: ColdStore,
        config: ColdConfig,
        steps: Arc<dyn Steps>,
    ) -> Result<Arc<Self>, TierError> {
        config.validate()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("basalt-cold")
            .enable_all()
            .build()
            .map_err(TierError::Threads)?;
        // From here on its drop must not block, wherever it happens.
        let runtime = RuntimeGuard(Some(runtime));
        let handle = runtime.handle()?;
        let opened = handle
            .spawn(Tier::open(log, store, config, steps, handle.clone()))
            .await;
        let tier =
            opened.map_err(|stopped| TierError::Threads(std::io::Error::other(stopped)))??;
        Ok(Arc::new(Self {
            tier,
            runtime: Mutex::new(runtime.into_inner()),
            maintenance: Mutex::new(None),
        }))
    }

    /// The hot log.
    #[must_use]
    pub fn log(&self) -> &Arc<Log> {
        &self.tier.shared.log
    }

    /// Where cold objects are.
    #[must_use]
    pub fn store(&self) -> &ColdStore {
        &self.tier.shared.store
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ColdConfig {
        &self.tier.shared.config
    }

    /// A partition, if there is such a topic and it has that many.
    #[must_use]
    pub fn partition(
        &self,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Option<Arc<TieredPartition>> {
        let topic = self.log().topic(topic)?;
        self.tier.partition(&topic.partition(partition)?)
    }

    /// The partitions of a topic that are in use, in order; none for a topic that is not there. All others have never held a
    /// record.
    #[must_use]
    pub fn topic_partitions(&self, topic: &TopicName) -> Vec<Arc<TieredPartition>> {
        self.log()
            .topic(topic)
            .map_or_else(Vec::new, |topic| self.tier.partitions_of(&topic))
    }

    /// Where the records of each of a topic's partitions are, those never used among them, in order.
    pub fn topic_bounds(&self, topic: &Topic) -> impl Iterator<Item = (PartitionId, TierBounds)> {
        (0..topic.partition_count()).map(PartitionId).map(|id| {
            let used = topic.used_partition(id);
            let tiered = used.and_then(|hot| self.tier.partition(&hot));
            let bounds = tiered.map_or_else(TierBounds::default, |tiered| tiered.bounds());
            (id, bounds)
        })
    }

    /// All topics' partitions that are in use.
    #[must_use]
    pub fn all_partitions(&self) -> Vec<Arc<TieredPartition>> {
        self.tier.all_partitions()
    }

    /// A topic, created with defaults if it is not there and the log may create topics.
    ///
    /// # Errors
    /// Those of [`Log::topic_or_create`].
    pub fn topic_or_create(&self, topic: &TopicName) -> Result<Arc<Topic>, TopicError> {
        self.log().topic_or_create(topic)
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// Those of [`Log::create_topic`]; [`TopicError::BadSetting`] for a schema that is none.
    pub fn create_topic(
        &self,
        topic: &TopicName,
        partitions: u32,
        config: TopicConfig,
    ) -> Result<Arc<Topic>, TopicError> {
        self.log()
            .create_topic(topic, partitions, schemas::checked(config)?)
    }

    /// Changes a topic's settings to what `change` makes of them; no other change comes between.
    ///
    /// # Errors
    /// That of `change`, or those of [`Log::alter_topic`]; [`TopicError::BadSetting`] for a schema that is none.
    pub fn alter_topic<E: From<TopicError>>(
        &self,
        topic: &TopicName,
        change: impl FnOnce(&TopicConfig) -> Result<TopicConfig, E>,
    ) -> Result<(), E> {
        self.log()
            .alter_topic_with(topic, |config| Ok(schemas::checked(change(config)?)?))
    }

    /// The schema of a topic's payloads; `None` if it has none, or is not there.
    ///
    /// # Errors
    /// [`SchemaError`] for one that a later version of this program has stored, and this one cannot read.
    pub fn topic_schema(&self, topic: &TopicName) -> Result<Option<Arc<TopicSchema>>, SchemaError> {
        match self.log().topic(topic) {
            Some(topic) => self.tier.shared.schemas.of(&topic),
            None => Ok(None),
        }
    }

    /// Deletes a topic with its hot segments and its cold objects. Objects that a query reads go when it ends. A later topic of the
    /// same name has nothing to do with it.
    ///
    /// # Errors
    /// [`DeleteError`]. If the log has the topic after that, nothing was deleted; else the rest goes at the next start.
    pub async fn delete_topic(&self, topic: &TopicName) -> Result<(), DeleteError> {
        self.delete_topic_if(topic, None).await
    }

    /// [`TieredLog::delete_topic`], only if the topic of that name still has that id.
    ///
    /// # Errors
    /// As [`TieredLog::delete_topic`]; one with another id is unknown.
    pub async fn delete_topic_with_id(
        &self,
        topic: &TopicName,
        id: TopicId,
    ) -> Result<(), DeleteError> {
        self.delete_topic_if(topic, Some(id)).await
    }

    async fn delete_topic_if(
        &self,
        topic: &TopicName,
        id: Option<TopicId>,
    ) -> Result<(), DeleteError> {
        let (tier, topic) = (Arc::clone(&self.tier), topic.clone());
        let deleted = self
            .tier
            .shared
            .runtime
            .spawn(async move { tier.delete_topic(&topic, id).await });
        deleted
            .await
            .unwrap_or_else(|stopped| Err(delete::interrupted(&stopped)))
    }

    /// Has maintenance look for what is due now, not when its interval is over.
    pub fn wake_maintenance(&self) {
        self.tier.shared.wake.notify_one();
    }

    /// Seals a topic's active segments and cools all that is sealed. With `wait` the report says what was done, and what was
    /// appended before the call is cold on return; without, what is queued.
    ///
    /// # Errors
    /// [`CoolError`] of the first partition that fails; the others go on.
    pub async fn cool_topic(&self, topic: &TopicName, wait: bool) -> Result<CoolReport, CoolError> {
        let (tier, topic) = (Arc::clone(&self.tier), topic.clone());
        let cooled = self
            .tier
            .shared
            .runtime
            .spawn(async move { tier.cool_topic(&topic, wait).await });
        cooled.await.unwrap_or(Err(CoolError::Closed))
    }

    /// One pass over all partitions: retention, the hot window, files that nobody reads any more. Errors are in the report, and
    /// what failed is tried again in the next pass.
    pub async fn maintain(&self) -> MaintenanceReport {
        let tier = Arc::clone(&self.tier);
        let pass = self
            .tier
            .shared
            .runtime
            .spawn(async move { tier.maintain().await });
        pass.await.unwrap_or_default()
    }

    /// Lets maintenance run by itself, on the cold tier's own threads: at once, whenever a segment was sealed, and at
    /// [`ColdConfig::maintenance_interval`]. Calling it again changes nothing.
    pub fn spawn_maintenance(self: &Arc<Self>) {
        let mut running = self.maintenance.lock();
        if running.is_none() {
            let task = maintenance::run(Arc::clone(&self.tier));
            *running = Some(self.tier.shared.runtime.spawn(task));
        }
    }

    /// Stops maintenance, after the step it is at, and closes the log.
    ///
    /// # Errors
    /// [`ShutdownError::Log`] when the log could not be closed in order.
    pub async fn shutdown(&self) -> Result<(), ShutdownError> {
        let running = self.maintenance.lock().take();
        if let Some(running) = running {
            running.abort();
            // The error says that it was stopped, which is what was asked.
            let _ = running.await;
        }
        self.tier.sweep_before_the_end().await;
        let log = Arc::clone(self.log());
        let closed = tokio::task::spawn_blocking(move || log.close()).await;
        closed.unwrap_or_else(|stopped| std::panic::resume_unwind(stopped.into_panic()))?;
        Ok(())
    }
}

impl Drop for TieredLog {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.lock().take() {
            // Does not wait: this may run where blocking is not allowed. A segment that is being cooled stays hot.
            runtime.shutdown_background();
        }
    }
}

/// A runtime that may be dropped anywhere.
struct RuntimeGuard(Option<Runtime>);

impl RuntimeGuard {
    fn handle(&self) -> Result<Handle, TierError> {
        let gone = || TierError::Threads(std::io::Error::other("the runtime is gone"));
        self.0
            .as_ref()
            .map(|runtime| runtime.handle().clone())
            .ok_or_else(gone)
    }

    fn into_inner(mut self) -> Option<Runtime> {
        self.0.take()
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Tier {
    /// The tiered side of a partition; a new one for a topic that was created since the log was opened, none for one that was
    /// deleted meanwhile.
    pub(crate) fn partition(&self, hot: &Arc<Partition>) -> Option<Arc<TieredPartition>> {
        let key = (hot.topic_id().0, hot.id());
        if let Some(known) = self.partitions.read().get(&key) {
            return Some(Arc::clone(known));
        }
        let mut partitions = self.partitions.write();
        // Asked under the lock: a deletion forgets its partitions under it after the log has forgotten the topic, so none is
        // made that it would not see.
        if !delete::knows(&self.shared.log, hot.topic(), hot.topic_id().0) {
            return None;
        }
        Some(Arc::clone(partitions.entry(key).or_insert_with(|| {
            // Topic ids are never used twice, so there are no manifests of it.
            let manifest = Manifest::empty(1, self.shared.writer.clone());
            TieredPartition::new(Arc::clone(hot), Arc::clone(&self.shared), manifest)
        })))
    }

    /// Deletes what uploads left that were stopped half way. The next start deletes what a store does not let go quickly, but for
    /// parts of uploads.
    async fn sweep_before_the_end(&self) {
        let shared = &self.shared;
        if shared.pace.rests(shared.now_ns()).is_some() {
            return;
        }
        let swept = tokio::time::timeout(LAST_SWEEP, shared.litter.sweep(&shared.store)).await;
        if !matches!(swept, Ok(Ok(_))) {
            tracing::info!("the store keeps what stopped uploads have left, for now");
        }
    }

    /// Counts the hot bytes of all partitions.
    pub(crate) fn recount(&self) {
        let partitions = self.all_partitions();
        let hot_bytes = partitions.iter().map(|partition| partition.hot.hot_bytes());
        self.shared.budget.recount(hot_bytes.sum());
    }

    pub(crate) fn partitions_of(&self, topic: &Topic) -> Vec<Arc<TieredPartition>> {
        topic
            .used_partitions()
            .iter()
            .filter_map(|hot| self.partition(hot))
            .collect()
    }

    pub(crate) fn all_partitions(&self) -> Vec<Arc<TieredPartition>> {
        self.shared
            .log
            .topics()
            .iter()
            .flat_map(|topic| self.partitions_of(topic))
            .collect()
    }

    async fn delete_topic(&self, name: &TopicName, id: Option<TopicId>) -> Result<(), DeleteError> {
        let found = self.shared.log.topic(name);
        let Some(topic) = found.filter(|topic| id.is_none_or(|id| topic.id() == id)) else {
            return Err(TopicError::Unknown {
                topic: name.clone(),
            }
            .into());
        };
        let id = topic.id().0;
        let partitions = self.partitions_of(&topic);
        let deleted = delete::delete_topic(&self.shared, name, id, &partitions).await;
        if !delete::knows(&self.shared.log, name, id) {
            self.partitions.write().retain(|(topic, _), _| *topic != id);
            self.shared.schemas.forget(id);
        }
        let deleted = deleted?;
        if !deleted.is_unread() {
            self.deleted.lock().push(deleted);
            return Ok(());
        }
        deleted.delete_objects(&self.shared).await
    }

    async fn cool_topic(&self, name: &TopicName, wait: bool) -> Result<CoolReport, CoolError> {
        let topic = self
            .shared
            .log
            .topic(name)
            .ok_or_else(|| CoolError::UnknownTopic {
                topic: name.clone(),
            })?;
        let partitions = self.partitions_of(&topic);
        let mut report = CoolReport::default();
        let mut first_error = None;
        for partition in &partitions {
            match partition.seal().await {
                Ok(queued) => report.add(queued),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        if wait {
            report = CoolReport::default();
            let cooled = partitions.iter().map(|partition| {
                let through = partition.state.lock().cool_through;
                partition.cool_through(through)
            });
            for cooled in futures::future::join_all(cooled).await {
                match cooled {
                    Ok(cooled) => report.add(cooled),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            first_error = first_error.or(self.compact(&partitions).await.err());
        } else {
            self.shared.wake.notify_one();
        }
        first_error.map_or(Ok(report), Err)
    }

    /// Compacts what is cold of these, if their topic wants that.
    async fn compact(&self, partitions: &[Arc<TieredPartition>]) -> Result<(), CoolError> {
        let compacts = |partition: &Arc<TieredPartition>| {
            let config = partition.hot.config();
            config.cleanup_policy.compacts()
        };
        if !partitions.iter().any(compacts) {
            return Ok(());
        }
        let _turn = self.shared.merge_turn.lock().await;
        let mut report = MaintenanceReport::default();
        let mut first_error = None;
        for partition in partitions {
            let compacted = partition.compact(When::Asked, &mut report).await;
            first_error = first_error.or(compacted.err());
        }
        first_error.map_or(Ok(()), Err)
    }
}

impl TieredPartition {
    /// Seals the active segment, and asks for all that is sealed to be cooled. What there is to cool.
    pub(crate) async fn seal(&self) -> Result<CoolReport, CoolError> {
        let hot = Arc::clone(&self.hot);
        blocking(move || hot.seal_active())
            .await?
            .map_err(CoolError::Seal)?;
        let sealed = self.hot.sealed_segments();
        let mut state = self.state.lock();
        let cold_end = state.manifest.cold_end_offset;
        let through = sealed
            .last()
            .map_or(Offset::ZERO, |segment| segment.end_offset);
        state.cool_through = state.cool_through.max(through);
        state.rest_until_ns = 0;
        drop(state);
        let mut queued = CoolReport::default();
        for segment in sealed
            .iter()
            .filter(|segment| segment.end_offset > cold_end)
        {
            queued.segments += 1;
            queued.bytes_in += segment.frame_bytes();
        }
        Ok(queued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::{Setup, append_numbered, files_below, records, replay, topic};

    #[tokio::test]
    async fn a_deleted_partition_comes_not_back_and_leaves_a_later_topic_alone() {
        let setup = Setup::new();
        let fixture = setup.open().await;
        let tier = &fixture.tiered.tier;
        let old = fixture.partition();
        append_numbered(&old, 300).await;
        // As maintenance holds it that listed the topics a moment before.
        let old_topic = tier.shared.log.topic(&topic("t")).unwrap();
        fixture.tiered.delete_topic(&topic("t")).await.unwrap();

        let new = fixture.partition();
        append_numbered(&new, 300).await;
        new.hot().seal_active().unwrap();
        let files = files_below(&setup.folder.path().join("data/topics"));
        assert!(tier.partition(old.hot()).is_none());
        assert!(tier.partitions_of(&old_topic).is_empty());
        assert_eq!(tier.partitions.read().len(), 1, "only the new one");

        // Nor does one that was held all the time do anything.
        for cooled in [
            old.cool_through(Offset::MAX).await.map(drop),
            old.release(Offset::MAX).await,
            old.release_cold().await,
        ] {
            assert!(
                matches!(cooled, Err(CoolError::Closed) | Ok(())),
                "{cooled:?}"
            );
        }
        assert!(matches!(
            old.release(Offset::MAX).await,
            Err(CoolError::Closed)
        ));
        assert_eq!(files_below(&setup.folder.path().join("data/topics")), files);
        assert_eq!(records(&replay(&new, Offset::ZERO).await).len(), 300);
    }
}
