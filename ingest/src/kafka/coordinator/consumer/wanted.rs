//! What members want, what topics there are of that, and who is to have them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use basalt_log::TopicId;

use super::assign::{Assignor, Subscriber};
use super::{Group, Topics};
use crate::kafka::coordinator::identity::Name;

impl Group {
    /// Looks up which topics members want, unless that is known; whether there are others than at this epoch, or they have more
    /// partitions. What members want themselves is not looked at: whoever changes that says so.
    pub(super) fn look_up(&mut self, topics: &dyn Topics) -> bool {
        // It is asked for first: what changes after that has another.
        let version = topics.version();
        if self.topics_version == Some(version) {
            return false;
        }
        self.topics_version = Some(version);
        let mut by_name = HashMap::new();
        let mut by_pattern = HashMap::new();
        for member in self.members.values() {
            for name in member.names.iter() {
                let found = || topics.find(name);
                by_name.entry(name.clone()).or_insert_with(found);
            }
            if let Some(pattern) = &member.pattern {
                let none = || (pattern.clone(), BTreeSet::new());
                by_pattern.entry(pattern.text.clone()).or_insert_with(none);
            }
        }
        let mut found: BTreeMap<_, _> = by_name.values().flatten().copied().collect();
        if !by_pattern.is_empty() {
            topics.each(&mut |name, id, partitions| {
                for (pattern, ids) in by_pattern.values_mut() {
                    if pattern.matches(name) {
                        ids.insert(id);
                        found.insert(id, partitions);
                    }
                }
            });
        }
        let changes = found != self.topics;
        self.topics = found;
        // Those that want the same share what that is: assignors need not look at it twice.
        let mut shared =
            HashMap::<(Arc<BTreeSet<Name>>, Option<Name>), Arc<BTreeSet<TopicId>>>::new();
        for member in self.members.values_mut() {
            let pattern = member.pattern.as_ref().map(|pattern| pattern.text.clone());
            let wanted = || {
                let named = member.names.iter().filter_map(|name| by_name.get(name));
                let matched = pattern.as_ref().and_then(|text| by_pattern.get(text));
                let matched = matched.into_iter().flat_map(|(_, ids)| ids.iter().copied());
                let named = named.flatten().map(|(id, _)| *id);
                Arc::new(named.chain(matched).collect())
            };
            let key = (Arc::clone(&member.names), pattern.clone());
            member.topics = Arc::clone(shared.entry(key).or_insert_with(wanted));
        }
        changes
    }

    /// The next epoch, and who is to have what in it.
    pub(super) fn reassign(&mut self) {
        self.is_reassignment_due = false;
        self.epoch = self.epoch.saturating_add(1);
        let assignor = self.assignor();
        let subscribers = self.members.iter().map(|(id, member)| Subscriber {
            id,
            instance_id: member.instance_id.as_ref(),
            topics: &member.topics,
            had: &member.target,
        });
        let subscribers: Vec<_> = subscribers.collect();
        let parts = assignor.assign(&subscribers, &self.topics);
        for (member, part) in self.members.values_mut().zip(parts) {
            member.target = part;
        }
    }

    /// What most members want who want one.
    pub(super) fn assignor(&self) -> Assignor {
        let votes = |assignor| {
            let members = self.members.values();
            members.filter(|one| one.assignor == Some(assignor)).count()
        };
        let all = Assignor::ALL.into_iter().rev();
        all.max_by_key(|assignor| votes(*assignor))
            .unwrap_or(Assignor::Uniform)
    }
}
