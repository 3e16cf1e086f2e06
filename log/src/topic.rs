//! A topic: a name, an id, settings and its partitions.
//!
//! A partition that was never used costs nothing: it gets an object in memory when it is first asked for, and a folder with
//! its first record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use basalt_proto::{PartitionId, TopicName};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::config::{Durability, TopicConfig};
use crate::log::partition_dir;
use crate::partition::Partition;
use crate::partition::open::PartitionSpec;
use crate::sync::Shared;

/// Tells a topic from an earlier one of the same name. Never given twice in a data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicId(pub u64);

/// A named stream of records.
#[derive(Debug)]
pub struct Topic {
    name: TopicName,
    id: TopicId,
    pub(crate) config: Arc<RwLock<TopicConfig>>,
    /// Never fewer.
    pub(crate) partition_count: AtomicU32,
    used: RwLock<UsedPartitions>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct UsedPartitions {
    partitions: BTreeMap<PartitionId, Arc<Partition>>,
    /// The topic is: what is made from here on takes nothing.
    deleted: bool,
}

impl Topic {
    /// A topic none of whose partitions was used.
    pub(crate) fn new(
        name: TopicName,
        id: TopicId,
        partition_count: u32,
        config: TopicConfig,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            name,
            id,
            config: Arc::new(RwLock::new(config)),
            partition_count: AtomicU32::new(partition_count),
            used: RwLock::default(),
            shared: Arc::clone(shared),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TopicName {
        &self.name
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TopicId {
        self.id
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> TopicConfig {
        self.config.read().clone()
    }

    /// When an append is answered that does not say.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.config.read().durability.into()
    }

    /// How many partitions it has, numbered from 0.
    #[must_use]
    pub fn partition_count(&self) -> u32 {
        self.partition_count.load(Ordering::Acquire)
    }

    /// The partitions that are in use, in order of their numbers. All others have never held a record.
    #[must_use]
    pub fn used_partitions(&self) -> Vec<Arc<Partition>> {
        self.used.read().partitions.values().cloned().collect()
    }

    /// One of the partitions that are in use.
    #[must_use]
    pub fn used_partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.used.read().partitions.get(&id).cloned()
    }

    /// One of its partitions; it is in use from now on.
    #[must_use]
    pub fn partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        if id.0 >= self.partition_count() {
            return None;
        }
        if let Some(used) = self.used_partition(id) {
            return Some(used);
        }
        let mut used = self.used.write();
        let deleted = used.deleted;
        let partition = used.partitions.entry(id).or_insert_with(|| {
            let partition = Partition::new_empty(self.spec(id), &self.shared);
            if deleted {
                partition.abandon();
            }
            partition
        });
        Some(Arc::clone(partition))
    }

    /// Which partition this is, and where.
    pub(crate) fn spec(&self, id: PartitionId) -> PartitionSpec {
        PartitionSpec {
            topic: self.name.clone(),
            topic_id: self.id,
            id,
            dir: partition_dir(&self.shared.config.data_dir, &self.name, id),
            config: Arc::clone(&self.config),
        }
    }

    /// Puts a partition that was recovered in its place.
    pub(crate) fn put(&self, partition: Arc<Partition>) {
        let mut used = self.used.write();
        used.partitions.insert(partition.id(), partition);
    }

    /// Whether it was deleted, be there another of its name or not.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.used.read().deleted
    }

    /// Stops all partitions, also those that are yet to be used: the topic is deleted.
    pub(crate) fn abandon(&self) {
        self.used.write().deleted = true;
        for partition in self.used_partitions() {
            partition.abandon();
        }
    }
}
