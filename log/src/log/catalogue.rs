//! The catalogue of topics: a journal of what was created, altered and deleted. It knows no file but its own, and nothing of
//! records.
//!
//! The id of a topic is given once: what an earlier topic of a name has left is told by it from what belongs to the present one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use basalt_proto::TopicName;
use serde::{Deserialize, Serialize};

use super::folder::{catalogue_path, topics_dir};
use crate::config::TopicConfig;
use crate::disk::Disk;
use crate::error::{OnDisk, OpenError, TopicError};
use crate::journal::{Journal, JournalError};
use crate::sync::Shared;
use crate::topic::{Topic, TopicId};

/// One entry of the catalogue's journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
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
    /// It has so many partitions now.
    Grow {
        id: TopicId,
        partitions: u32,
    },
    Delete {
        id: TopicId,
    },
    /// Ids below this were given, also to topics that are gone.
    NextId(TopicId),
    /// Producers' ids below this were given.
    NextProducerId(u64),
}

#[derive(Debug)]
pub(super) struct Catalogue {
    pub(super) journal: Journal,
    pub(super) next_id: TopicId,
    /// `None` before the first.
    pub(super) next_producer_id: Option<u64>,
    pub(super) deleted: BTreeSet<TopicName>,
    pub(super) closed: bool,
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
    pub(super) next_id: TopicId,
    pub(super) next_producer_id: Option<u64>,
    /// Names of deleted topics whose folder may still be there.
    pub(super) deleted: BTreeSet<TopicName>,
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
        next_producer_id: None,
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
            Entry::Grow { id, partitions } => {
                if let Some(topic) = replayed.topics.get_mut(&id) {
                    topic.partitions = topic.partitions.max(partitions);
                }
            }
            Entry::Delete { id } => replayed
                .deleted
                .extend(replayed.topics.remove(&id).map(|topic| topic.name)),
            Entry::NextId(id) => replayed.next_id = replayed.next_id.max(id),
            Entry::NextProducerId(id) => {
                replayed.next_producer_id = replayed.next_producer_id.max(Some(id));
            }
        }
    }
    Ok(replayed)
}

fn encode(entry: &Entry) -> Vec<u8> {
    // Names, numbers and durations always have a JSON form.
    serde_json::to_vec(entry).unwrap_or_default()
}

impl Catalogue {
    pub(super) fn append(&mut self, entry: &Entry) -> Result<(), TopicError> {
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

pub(super) fn open_catalogue(
    disk: &dyn Disk,
    data_dir: &Path,
) -> Result<(Journal, Replayed), OpenError> {
    let path = catalogue_path(data_dir);
    let topics_dir = topics_dir(data_dir);
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
                .chain(state.next_producer_id.map(Entry::NextProducerId))
                .chain(state.topics.values().map(create));
            entries.map(|entry| encode(&entry)).collect()
        });
        Ok(rewritten)
    })?;
    Ok((journal, state))
}

impl CatalogueTopic {
    pub(super) fn open(self, shared: &Arc<Shared>) -> Topic {
        Topic::new(self.name, self.id, self.partitions, self.config, shared)
    }
}
