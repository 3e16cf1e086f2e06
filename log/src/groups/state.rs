//! What the journal of the groups tells, and its entries: a running server and one that reads the journal anew come to the
//! same state, since both apply the same entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use basalt_proto::{GroupName, Offset, PartitionId, TopicName};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

/// Commits that one entry holds at most when the journal is rewritten.
const MAX_COMMITS_PER_ENTRY: usize = 4096;

/// Where a group stands in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Everything below it is handled.
    pub offset: Offset,
    /// What the consumer said with it; mostly nothing.
    pub metadata: Arc<str>,
    /// When that was, in milliseconds since the Unix epoch; 0 in journals that did not say.
    pub at_ms: u64,
}

/// A group that has committed something, or has members.
#[derive(Debug, Default, Clone)]
pub(super) struct Group {
    pub(super) offsets: BTreeMap<(TopicName, PartitionId), Committed>,
    pub(super) members: Option<Arc<[u8]>>,
    /// When its last members went, in milliseconds since the Unix epoch.
    pub(super) emptied_at_ms: u64,
}

impl Group {
    /// Whether it has no members, and neither committed anything nor had any after that time.
    pub(super) fn is_idle_since(&self, before_ms: u64) -> bool {
        let commits = self.offsets.values().map(|committed| committed.at_ms);
        let last = commits.max().unwrap_or(0).max(self.emptied_at_ms);
        self.members.is_none() && last <= before_ms
    }

    fn is_bare(&self) -> bool {
        self.offsets.is_empty() && self.members.is_none()
    }
}

/// All groups, by name.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) groups: BTreeMap<GroupName, Group>,
    /// States of transactions by transactional id, and when they were stored, in milliseconds since the Unix epoch.
    pub(super) transactions: BTreeMap<String, (Arc<[u8]>, u64)>,
}

/// One entry of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// Commits as they were written before they had a text and a time: group, topic, partition, offset.
    Commits(Vec<(String, String, u32, u64)>),
    TopicDeleted(String),
    /// Commits of one group at one time: topic, partition, offset, text.
    Committed {
        group: String,
        at_ms: u64,
        offsets: Vec<(String, u32, u64, String)>,
    },
    /// The members of a group, in base64; `None` when it has none any more.
    Members {
        group: String,
        at_ms: u64,
        members: Option<String>,
    },
    /// The group's offsets in these partitions are forgotten; all of them, and its members, for `None`.
    Forgotten {
        group: String,
        offsets: Option<Vec<(String, u32)>>,
    },
    /// The group is forgotten, if it has no members and was not used since.
    Expired {
        group: String,
        before_ms: u64,
    },
    /// The state of a producer's transactions, in base64; `None` forgets it.
    Transaction {
        id: String,
        at_ms: u64,
        state: Option<String>,
    },
    /// What was stored together.
    Many(Vec<Self>),
}

/// Why an entry says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadEntry {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Name(#[from] basalt_proto::NameError),
    #[error("what is in base64: {0}")]
    Base64(#[from] base64::DecodeError),
}

impl Entry {
    pub(super) fn decode(payload: &[u8]) -> Result<Self, BadEntry> {
        Ok(serde_json::from_slice(payload)?)
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, BadEntry> {
        Ok(serde_json::to_vec(self)?)
    }

    pub(super) fn transaction(id: String, at_ms: u64, state: Option<&[u8]>) -> Self {
        Self::Transaction {
            id,
            at_ms,
            state: state.map(|state| BASE64_STANDARD.encode(state)),
        }
    }

    pub(super) fn members(group: &GroupName, at_ms: u64, members: Option<&[u8]>) -> Self {
        Self::Members {
            group: group.to_string(),
            at_ms,
            members: members.map(|members| BASE64_STANDARD.encode(members)),
        }
    }
}

impl State {
    /// Applies an entry, whole or not at all; the number of things it told.
    pub(super) fn apply(&mut self, entry: Entry) -> Result<u64, BadEntry> {
        match entry {
            Entry::Commits(commits) => {
                let count = commits.len() as u64;
                let named = commits.into_iter().map(|(group, topic, id, offset)| {
                    let key = (TopicName::new(&topic)?, PartitionId(id));
                    let committed = Committed {
                        offset: Offset(offset),
                        metadata: Arc::default(),
                        at_ms: 0,
                    };
                    Ok((GroupName::new(&group)?, key, committed))
                });
                for (group, key, committed) in named.collect::<Result<Vec<_>, BadEntry>>()? {
                    let group = self.groups.entry(group).or_default();
                    group.offsets.insert(key, committed);
                }
                Ok(count)
            }
            Entry::Committed {
                group,
                at_ms,
                offsets,
            } => {
                let count = offsets.len() as u64;
                let group = GroupName::new(&group)?;
                let named = offsets.into_iter().map(|(topic, id, offset, metadata)| {
                    let committed = Committed {
                        offset: Offset(offset),
                        metadata: metadata.into(),
                        at_ms,
                    };
                    Ok(((TopicName::new(&topic)?, PartitionId(id)), committed))
                });
                let named = named.collect::<Result<Vec<_>, BadEntry>>()?;
                if !named.is_empty() {
                    self.groups.entry(group).or_default().offsets.extend(named);
                }
                Ok(count)
            }
            Entry::TopicDeleted(topic) => {
                self.groups.retain(|_, group| {
                    group.offsets.retain(|(of, _), _| of.as_str() != topic);
                    !group.is_bare()
                });
                Ok(1)
            }
            Entry::Members {
                group,
                at_ms,
                members,
            } => {
                let name = GroupName::new(&group)?;
                let members = members.map(|members| BASE64_STANDARD.decode(members));
                let members = members.transpose()?;
                let group = self.groups.entry(name.clone()).or_default();
                group.emptied_at_ms = at_ms;
                group.members = members.map(Arc::from);
                self.forget_if_bare(&name);
                Ok(1)
            }
            Entry::Forgotten { group, offsets } => {
                let name = GroupName::new(&group)?;
                match offsets {
                    None => drop(self.groups.remove(&name)),
                    Some(offsets) => {
                        let keys = offsets
                            .into_iter()
                            .map(|(topic, id)| Ok((TopicName::new(&topic)?, PartitionId(id))));
                        let keys = keys.collect::<Result<Vec<_>, BadEntry>>()?;
                        if let Some(group) = self.groups.get_mut(&name) {
                            keys.iter().for_each(|key| drop(group.offsets.remove(key)));
                        }
                        self.forget_if_bare(&name);
                    }
                }
                Ok(1)
            }
            Entry::Expired { group, before_ms } => {
                let name = GroupName::new(&group)?;
                let is_idle = |group: &Group| group.is_idle_since(before_ms);
                if self.groups.get(&name).is_some_and(is_idle) {
                    self.groups.remove(&name);
                }
                Ok(1)
            }
            Entry::Transaction { id, at_ms, state } => {
                let state = state.map(|state| BASE64_STANDARD.decode(state));
                match state.transpose()? {
                    Some(state) => {
                        let state = (Arc::from(state), at_ms);
                        self.transactions.insert(id, state);
                    }
                    None => drop(self.transactions.remove(&id)),
                }
                Ok(1)
            }
            Entry::Many(entries) => entries
                .into_iter()
                .try_fold(0, |told, entry| Ok(told + self.apply(entry)?)),
        }
    }

    /// Offsets of which it is not known when they were committed count as of then.
    pub(super) fn date(&mut self, now_ms: u64) {
        let offsets = self
            .groups
            .values_mut()
            .flat_map(|group| group.offsets.values_mut());
        for committed in offsets.filter(|committed| committed.at_ms == 0) {
            committed.at_ms = now_ms;
        }
    }

    /// Forgets a group that has nothing left.
    fn forget_if_bare(&mut self, name: &GroupName) {
        if self.groups.get(name).is_some_and(Group::is_bare) {
            self.groups.remove(name);
        }
    }

    /// How many things are known.
    pub(super) fn len(&self) -> u64 {
        let of_group = |group: &Group| group.offsets.len() + usize::from(group.members.is_some());
        let groups = self.groups.values().map(of_group).sum::<usize>();
        (groups + self.transactions.len()) as u64
    }

    /// Entries that tell all of it.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let transactions = self.transactions.iter();
        let transactions = transactions
            .map(|(id, (state, at_ms))| Entry::transaction(id.clone(), *at_ms, Some(state)));
        let groups = self.groups.iter().flat_map(|(name, group)| {
            let members = group.members.as_deref();
            let kept = members.is_some() || group.emptied_at_ms > 0;
            let members = kept.then(|| Entry::members(name, group.emptied_at_ms, members));
            // One time an entry, so those of a time stand together.
            let mut by_time = BTreeMap::<u64, Vec<_>>::new();
            for ((topic, id), committed) in &group.offsets {
                by_time.entry(committed.at_ms).or_default().push((
                    topic.to_string(),
                    id.0,
                    committed.offset.0,
                    committed.metadata.to_string(),
                ));
            }
            let offsets = by_time.into_iter().flat_map(move |(at_ms, offsets)| {
                let chunks = offsets.chunks(MAX_COMMITS_PER_ENTRY);
                let entries = chunks.map(|chunk| Entry::Committed {
                    group: name.to_string(),
                    at_ms,
                    offsets: chunk.to_vec(),
                });
                entries.collect::<Vec<_>>()
            });
            // Members last: told of a group that has nothing else, their end would leave nothing.
            offsets.chain(members)
        });
        groups.chain(transactions)
    }
}
