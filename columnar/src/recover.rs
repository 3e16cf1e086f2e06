//! Opening: the newest manifests, what a crash left behind, deletions that were interrupted.
//!
//! - **COL-18**: an object that the newest manifest does not name is deleted only if its records are elsewhere: in a newer file that
//!   is there, in hot segments, or expired. A file whose manifest was lost is kept and reported. Where only the manifest says so, it is proved to be
//!   durable first (COL-15).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use basalt_log::{Log, Partition};
use basalt_proto::{Offset, PartitionId, TopicName};
use futures::StreamExt;
use object_store::path::Path;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;

use crate::cache::ChunkCache;
use crate::config::ColdConfig;
use crate::delete;
use crate::error::{CoolError, TierError};
use crate::manifest::{self, Manifest, ManifestError, PartitionKey};
use crate::owner::Owner;
use crate::pace::Turns;
use crate::partition::TieredPartition;
use crate::paths::{self, Found};
use crate::shared::Shared;
use crate::steps::Steps;
use crate::store::{ColdStore, StoreError};
use crate::tiered::{Partitions, Tier};

/// Partitions whose manifests are read at the same time.
const OPENINGS: usize = 16;

/// What one listing of the whole store shows, by topic.
#[derive(Debug, Default)]
pub(crate) struct StoreListing(BTreeMap<(TopicName, u64), TopicListing>);

/// What is in a topic's folder.
#[derive(Debug, Default)]
pub(crate) struct TopicListing {
    partitions: BTreeMap<PartitionId, PartitionListing>,
    leftovers: Vec<Path>,
    /// Whether its deletion was begun.
    pub(crate) has_tombstone: bool,
}

#[derive(Debug, Default)]
struct PartitionListing {
    versions: Vec<u64>,
    objects: Vec<Path>,
}

impl StoreListing {
    /// One walk over everything: a request for a thousand objects, instead of some for each topic.
    pub(crate) async fn read(store: &ColdStore) -> Result<Self, StoreError> {
        let mut listing = Self::default();
        for path in store.list(&Path::default()).await? {
            let Some((topic, topic_id)) = paths::topic_of(&path) else {
                continue;
            };
            let prefix = paths::topic_prefix(&topic, topic_id);
            let found = paths::classify(&prefix, &path);
            if found != Found::Foreign {
                let topic = listing.0.entry((topic, topic_id)).or_default();
                topic.add(&found, path);
            }
        }
        Ok(listing)
    }

    /// The topics that have objects.
    pub(crate) fn topics(&self) -> impl Iterator<Item = (&TopicName, u64, &TopicListing)> {
        let topics = self.0.iter();
        topics.map(|((topic, topic_id), listing)| (topic, *topic_id, listing))
    }

    /// What there is of a topic.
    pub(crate) fn take(&mut self, topic: &TopicName, topic_id: u64) -> TopicListing {
        let key = (topic.clone(), topic_id);
        self.0.remove(&key).unwrap_or_default()
    }
}

impl TopicListing {
    fn add(&mut self, found: &Found, path: Path) {
        match found {
            Found::Object { partition, .. } => {
                let partition = self.partitions.entry(*partition).or_default();
                partition.objects.push(path);
            }
            Found::Manifest { partition, version } => {
                let partition = self.partitions.entry(*partition).or_default();
                partition.versions.push(*version);
            }
            Found::Leftover => self.leftovers.push(path),
            Found::Tombstone => self.has_tombstone = true,
            Found::Foreign => {}
        }
    }

    /// The partitions that have objects or manifests.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.partitions.keys().copied()
    }

    /// Deletes what was being written when the last run ended.
    pub(crate) async fn delete_leftovers(&self, store: &ColdStore) -> Result<(), StoreError> {
        for path in &self.leftovers {
            store.delete(path).await?;
        }
        Ok(())
    }
}

impl Tier {
    /// Claims the store, and opens every partition as its newest manifest describes it.
    pub(crate) async fn open(
        log: Arc<Log>,
        store: ColdStore,
        config: ColdConfig,
        steps: Arc<dyn Steps>,
        runtime: Handle,
    ) -> Result<Arc<Self>, TierError> {
        let disk = Arc::clone(log.disk());
        let cache = ChunkCache::open(&config.cache_dir, config.cache_bytes, disk, runtime.clone())
            .map_err(|source| TierError::Cache {
                path: config.cache_dir.clone(),
                source,
            })?;
        let (claim, owner) = match Owner::claim(&store, &log).await? {
            Some(claimed) => {
                store.remove_staged()?;
                let (claim, owner) = claimed.split();
                (Some(claim), Some(owner))
            }
            None => (None, None),
        };
        let mut listing = StoreListing::read(&store).await?;
        delete::finish_deletions(&store, &log, &listing).await?;
        let shared = Shared::new(log, store, config, steps, runtime, cache, owner);
        let may_have_twin = claim.as_ref().is_some_and(|claim| claim.may_have_twin);
        let partitions = open_partitions(&shared, &mut listing, may_have_twin).await?;
        if let Some(claim) = claim {
            claim.finish(&shared.log)?;
        }
        let tier = Self {
            shared,
            partitions: RwLock::new(partitions),
            deleted: Mutex::new(Vec::new()),
            turns: Mutex::new(Turns::default()),
        };
        tier.recount();
        Ok(Arc::new(tier))
    }
}

/// Opens all partitions, some at a time: each waits for the store most of its time.
async fn open_partitions(
    shared: &Arc<Shared>,
    listing: &mut StoreListing,
    may_have_twin: bool,
) -> Result<Partitions, TierError> {
    let mut partitions = HashMap::new();
    for topic in shared.log.topics() {
        let listing = listing.take(topic.name(), topic.id().0);
        listing.delete_leftovers(&shared.store).await?;
        // One whose records are all cold may have no folder any more.
        for id in listing.partitions() {
            let _ = topic.partition(id);
        }
        let listing = &listing;
        let mut opened = futures::stream::iter(topic.used_partitions())
            .map(|hot| async move { open_partition(&hot, shared, listing, may_have_twin).await })
            .buffer_unordered(OPENINGS);
        while let Some(partition) = opened.next().await {
            let partition = partition?;
            partitions.insert((topic.id().0, partition.id()), partition);
        }
    }
    Ok(partitions)
}

/// A partition as its newest manifest describes it, which is then written anew if the data folder may have a twin (COL-32).
async fn open_partition(
    hot: &Arc<Partition>,
    shared: &Arc<Shared>,
    listing: &TopicListing,
    may_have_twin: bool,
) -> Result<Arc<TieredPartition>, TierError> {
    let nothing = PartitionListing::default();
    let found = listing.partitions.get(&hot.id()).unwrap_or(&nothing);
    let key = PartitionKey {
        topic: hot.topic().clone(),
        topic_id: hot.topic_id().0,
        partition: hot.id(),
    };
    let failed = |source| TierError::Manifest {
        topic: key.topic.clone(),
        partition: key.partition,
        source: Box::new(source),
    };
    let manifest = match found.versions.iter().max() {
        None => Manifest::empty(1, shared.writer.clone()),
        Some(newest) => {
            let stored = manifest::load(&shared.store, &key, *newest)
                .await
                .map_err(failed)?;
            Manifest {
                epoch: stored.epoch.saturating_add(1),
                ..stored
            }
        }
    };
    let log_end_offset = hot.bounds().log_end_offset;
    if log_end_offset < manifest.cold_end_offset {
        return Err(TierError::LogBehindCold {
            topic: key.topic,
            partition: key.partition,
            cold_end_offset: manifest.cold_end_offset,
            log_end_offset,
        });
    }
    let partition = TieredPartition::new(Arc::clone(hot), Arc::clone(shared), manifest);
    if may_have_twin {
        partition.shut_out_twin().await.map_err(failed)?;
    }
    // What a full disk does not let be tidied up is tidied up later: no reader sees any of it.
    match partition.unless_full(tidy(&partition, found).await) {
        Ok(()) => Ok(partition),
        Err(CoolError::Manifest(source)) => Err(failed(source)),
        Err(CoolError::Store(source)) => Err(failed(ManifestError::Store(source))),
        Err(source) => Err(TierError::Release {
            topic: key.topic,
            partition: key.partition,
            source: Box::new(source),
        }),
    }
}

/// Lets go of what is superseded: objects, hot segments and manifests.
async fn tidy(partition: &TieredPartition, found: &PartitionListing) -> Result<(), CoolError> {
    delete_orphans(partition, found).await?;
    partition.release_cold().await?;
    if old_versions(partition, found).next().is_none() {
        return Ok(());
    }
    partition.prove(Offset::MAX).await?;
    for version in old_versions(partition, found) {
        let path = paths::manifest_path(&partition.key.prefix(), version);
        partition.shared.store.delete(&path).await?;
    }
    Ok(())
}

/// Manifests that are two versions old or more.
fn old_versions<'a>(
    partition: &TieredPartition,
    found: &'a PartitionListing,
) -> impl Iterator<Item = u64> + use<'a> {
    let newest = partition.state.lock().manifest.version;
    found
        .versions
        .iter()
        .copied()
        .filter(move |version| newest.saturating_sub(*version) > 1)
}

/// Deletes objects that are superseded (COL-18).
async fn delete_orphans(
    partition: &TieredPartition,
    found: &PartitionListing,
) -> Result<(), CoolError> {
    let manifest = partition.state.lock().manifest.clone();
    let named: HashSet<&Path> = manifest.files.iter().map(|file| &file.path).collect();
    let hot_start = partition.hot.bounds().log_start_offset;
    let there: HashSet<&Path> = found.objects.iter().collect();
    let mut superseded = Vec::new();
    for path in found.objects.iter().filter(|path| !named.contains(path)) {
        match paths::object_range(path) {
            Some(range) if is_elsewhere(&manifest, &range, hot_start, &there) => {
                superseded.push((path, range.start));
            }
            _ => tracing::error!(
                object = %path, topic = %partition.key.topic, partition = %partition.key.partition,
                cold_end_offset = %manifest.cold_end_offset, log_start_offset = %hot_start,
                "a cold file is in no manifest and its records are nowhere else: the newest manifest was lost; the file is kept, but not read"
            ),
        }
    }
    let lowest = superseded.iter().map(|(_, base)| *base).min();
    if let Some(lowest) = lowest.filter(|base| *base < manifest.cold_end_offset) {
        // An earlier manifest may have named it.
        partition.prove(lowest).await?;
    }
    for (path, _) in superseded {
        tracing::info!(object = %path, "deleting a cold file that no manifest names");
        partition.shared.store.delete(path).await?;
    }
    Ok(())
}

/// Whether all records of an object at `range` that did not expire are hot, or in other files of the manifest, which are there.
fn is_elsewhere(
    manifest: &Manifest,
    range: &Range<Offset>,
    hot_start: Offset,
    there: &HashSet<&Path>,
) -> bool {
    let rest_is_hot = range.end <= manifest.cold_end_offset
        || range.start.max(manifest.cold_end_offset) >= hot_start;
    let mut overlapping = manifest
        .files
        .iter()
        .filter(|file| file.base_offset < range.end && file.end_offset > range.start);
    rest_is_hot && overlapping.all(|file| there.contains(&file.path))
}
