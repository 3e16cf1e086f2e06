//! Who is to have what: the server's own assignors, as KIP-848 names them.
//!
//! Both are functions of who subscribes to what, and of what each was to have before; neither knows who has what by now.
//!
//! - **GRP-7**: every partition of a topic that somebody subscribes to is given to one of its subscribers, and to one alone.
//! - `uniform`: nobody could give one of its partitions to another of the topic's subscribers and still have as many as that one
//!   had; and partitions stay where they were unless that is in the way.
//! - `range`: neighbours together, topic by topic, static members first.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use basalt_log::TopicId;

use super::{Partition, Partitions};
use crate::kafka::coordinator::identity::Name;

/// A way to assign partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Assignor {
    Uniform,
    Range,
}

impl Assignor {
    /// All there are; the first is that of a group whose members do not care.
    pub(super) const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// What each of the subscribers is to have, in their order; `topics` are the ones that there are, with their partitions' count.
    pub(super) fn assign(
        self,
        subscribers: &[Subscriber<'_>],
        topics: &BTreeMap<TopicId, u32>,
    ) -> Vec<Partitions> {
        match self {
            Self::Uniform => uniform(subscribers, topics),
            Self::Range => range(subscribers, topics),
        }
    }
}

/// A member as an assignor sees it.
#[derive(Debug)]
pub(super) struct Subscriber<'a> {
    pub(super) id: &'a Name,
    pub(super) instance_id: Option<&'a Name>,
    pub(super) topics: &'a BTreeSet<TopicId>,
    /// What it was to have before.
    pub(super) had: &'a Partitions,
}

/// Subscribers of each topic there is, by their place in the list.
fn by_topic(
    subscribers: &[Subscriber<'_>],
    topics: &BTreeMap<TopicId, u32>,
) -> BTreeMap<TopicId, Vec<usize>> {
    let mut by_topic = BTreeMap::<_, Vec<_>>::new();
    for (place, subscriber) in subscribers.iter().enumerate() {
        for topic in subscriber
            .topics
            .iter()
            .filter(|id| topics.contains_key(id))
        {
            by_topic.entry(*topic).or_default().push(place);
        }
    }
    by_topic
}

fn range(subscribers: &[Subscriber<'_>], topics: &BTreeMap<TopicId, u32>) -> Vec<Partitions> {
    let mut parts = vec![Partitions::new(); subscribers.len()];
    for (topic, mut places) in by_topic(subscribers, topics) {
        places.sort_by_key(|place| {
            let one = &subscribers[*place];
            (one.instance_id.is_none(), one.instance_id, one.id)
        });
        let count = topics.get(&topic).copied().unwrap_or(0);
        let among = u32::try_from(places.len()).unwrap_or(u32::MAX);
        let mut next = 0;
        for (number, place) in (0_u32..).zip(places) {
            let end = next + count / among + u32::from(number < count % among);
            parts[place].extend((next..end).map(|id| (topic, id)));
            next = end;
        }
    }
    parts
}

fn uniform(subscribers: &[Subscriber<'_>], topics: &BTreeMap<TopicId, u32>) -> Vec<Partitions> {
    let mut taken = HashSet::new();
    let may_keep = |one: &Subscriber<'_>, (topic, id): &Partition| {
        one.topics.contains(topic) && topics.get(topic).is_some_and(|count| id < count)
    };
    let kept = subscribers.iter().map(|one| {
        let had = one.had.iter().filter(|part| may_keep(one, part));
        had.filter(|part| taken.insert(**part)).copied().collect()
    });
    let mut parts: Vec<Partitions> = kept.collect();
    let mut by_topic: Vec<_> = by_topic(subscribers, topics).into_iter().collect();
    // Where there is little choice, it is made first.
    by_topic.sort_by_key(|(topic, places)| (places.len(), *topic));
    for (topic, places) in &by_topic {
        let mut loads = Loads::of(places, &parts);
        for id in 0..topics.get(topic).copied().unwrap_or(0) {
            let part = (*topic, id);
            if taken.contains(&part) {
                continue;
            }
            if let Some((load, place)) = loads.0.pop_first() {
                parts[place].insert(part);
                loads.0.insert((load + 1, place));
            }
        }
    }
    // Each move makes the sum of the loads' squares smaller.
    while by_topic.iter().any(|(topic, places)| {
        let mut loads = Loads::of(places, &parts);
        std::iter::from_fn(|| loads.even_out(*topic, &mut parts)).count() > 0
    }) {}
    parts
}

/// Members by how many partitions they have.
struct Loads(BTreeSet<(usize, usize)>);

impl Loads {
    fn of(places: &[usize], parts: &[Partitions]) -> Self {
        let loads = places.iter().map(|place| (parts[*place].len(), *place));
        Self(loads.collect())
    }

    /// Moves one of the topic's partitions from whoever has most to whoever has least; `None` when that would win nothing.
    fn even_out(&mut self, topic: TopicId, parts: &mut [Partitions]) -> Option<()> {
        let (least, to) = *self.0.first()?;
        let of_topic = |place: usize| {
            let mut own = parts[place].range((topic, 0)..=(topic, u32::MAX));
            own.next_back().copied()
        };
        let above = self.0.range((least + 2, 0)..).rev();
        let (most, from, part) = above
            .filter_map(|(load, place)| Some((*load, *place, of_topic(*place)?)))
            .next()?;
        parts[from].remove(&part);
        parts[to].insert(part);
        for (load, place) in [(least, to), (most, from)] {
            self.0.remove(&(load, place));
        }
        self.0.extend([(least + 1, to), (most - 1, from)]);
        Some(())
    }
}
