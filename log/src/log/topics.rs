//! The topics of an open log: found, made, altered, deleted, one change at a time. The catalogue on the disk comes first in
//! each, so that a crash leaves a topic either way, and what it leaves of a deleted one goes with the next open.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use basalt_proto::TopicName;

use super::Log;
use super::catalogue::{CatalogueTopic, Entry};
use super::folder::{topic_dir, topics_dir};
use crate::config::TopicConfig;
use crate::error::{DiskError, OnDisk, TopicError};
use crate::topic::{Topic, TopicId};

/// The most partitions one topic may have.
pub const MAX_PARTITIONS: u32 = 1_000_000;

impl Log {
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

    /// Another number whenever there are other topics than before, or one has more partitions.
    #[must_use]
    pub fn topics_version(&self) -> u64 {
        self.topics_version.load(Ordering::Acquire)
    }

    /// To be called after the change can be seen: whoever saw the new number sees the change.
    fn topics_changed(&self) {
        self.topics_version.fetch_add(1, Ordering::Release);
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

    /// Numbers for `count` producers, which nobody else is ever given; durable on return. A data folder's first one is drawn by chance,
    /// so that producers of another, or of one that was wiped, are not taken for these: below 2^62.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub fn reserve_producer_ids(&self, count: u32) -> Result<Range<i64>, TopicError> {
        let mut catalogue = self.catalogue.lock();
        let first = catalogue.next_producer_id.unwrap_or_else(|| {
            let chance = RandomState::new().build_hasher().finish();
            (chance % (1 << 30)) << 32
        });
        let next = first + u64::from(count);
        catalogue.append(&Entry::NextProducerId(next))?;
        catalogue.next_producer_id = Some(next);
        Ok(first.cast_signed()..next.cast_signed())
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
                min: 1,
                max: MAX_PARTITIONS,
            });
        }
        let mut catalogue = self.catalogue.lock();
        if self.topics.read().contains_key(name) {
            return Err(TopicError::Exists {
                topic: name.clone(),
            });
        }
        let dir = topic_dir(&self.shared.config.data_dir, name);
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
        // A deletion may have ended before it came to them.
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
        self.topics_changed();
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

    /// Gives a topic more partitions, `partitions` in all. Records stay where they are.
    ///
    /// # Errors
    /// [`TopicError::BadPartitionCount`] unless it has fewer; see [`TopicError`].
    pub fn add_partitions(&self, name: &TopicName, partitions: u32) -> Result<(), TopicError> {
        let mut catalogue = self.catalogue.lock();
        let topic = self.topic(name).ok_or_else(|| TopicError::Unknown {
            topic: name.clone(),
        })?;
        let min = topic.partition_count().saturating_add(1);
        if !(min..=MAX_PARTITIONS).contains(&partitions) {
            return Err(TopicError::BadPartitionCount {
                partitions,
                min,
                max: MAX_PARTITIONS,
            });
        }
        catalogue.append(&Entry::Grow {
            id: topic.id(),
            partitions,
        })?;
        topic.partition_count.store(partitions, Ordering::Release);
        self.topics_changed();
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
        self.topics_changed();
        topic.abandon();
        // After the catalogue: a deletion that is refused must leave them. A topic made anew under the name forgets them, too.
        self.forget_commits(name)?;
        let dir = topic_dir(&self.shared.config.data_dir, name);
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
        let dir = topics_dir(&self.shared.config.data_dir);
        if self.shared.disk.exists(&dir).on("look for", &dir)? {
            self.shared.disk.sync_dir(&dir).on("sync", &dir)?;
        }
        Ok(())
    }
}
