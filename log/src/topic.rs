//! A topic: a name, an id, settings and its partitions.

use std::sync::Arc;

use basalt_proto::{PartitionId, TopicName};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::config::TopicConfig;
use crate::partition::Partition;

/// Tells a topic from an earlier one of the same name. Never given twice in a data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicId(pub u64);

/// A named stream of records.
#[derive(Debug)]
pub struct Topic {
    pub(crate) name: TopicName,
    pub(crate) id: TopicId,
    pub(crate) config: Arc<RwLock<TopicConfig>>,
    pub(crate) partitions: Vec<Arc<Partition>>,
}

impl Topic {
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

    /// Its partitions, in order of their numbers from 0.
    #[must_use]
    pub fn partitions(&self) -> &[Arc<Partition>] {
        &self.partitions
    }

    /// One of them.
    #[must_use]
    pub fn partition(&self, id: PartitionId) -> Option<&Arc<Partition>> {
        self.partitions.get(usize::try_from(id.0).ok()?)
    }
}
