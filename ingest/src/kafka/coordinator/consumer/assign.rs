//! Who is to have what: the server's own assignors, as KIP-848 names them.
//!
//! Both are functions of who subscribes to what, and of what each was to have before; neither knows who has what by now.
//!
//! - **GRP-7**: every partition of a topic that somebody subscribes to is given to one of its subscribers, and to one alone.
//! - `uniform`: nobody could give one of its partitions to another of the topic's subscribers and still have as many as that one
//!   had; and partitions stay where they were unless that is in the way.
//! - `range`: neighbours together, topic by topic, static members first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use basalt_log::TopicId;

use super::{Partition, Partitions};
use crate::kafka::coordinator::identity::Name;

/// A way to assign partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::kafka) enum Assignor {
    Uniform,
    Range,
}

impl Assignor {
    /// All there are; the first is that of a group whose members do not care.
    pub(in crate::kafka) const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    pub(in crate::kafka) const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    pub(in crate::kafka) fn named(name: &str) -> Option<Self> {
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
    /// Shared by those that want the same.
    pub(super) topics: &'a Arc<BTreeSet<TopicId>>,
    /// What it was to have before.
    pub(super) had: &'a Partitions,
}

/// Topics that the same members want, and these, by their place in the list.
struct Class {
    topics: BTreeSet<TopicId>,
    places: Vec<usize>,
}

/// All topics that somebody wants and that there are, where there is least choice first.
fn classes(subscribers: &[Subscriber<'_>], topics: &BTreeMap<TopicId, u32>) -> Vec<Class> {
    // Those that want the same share what that is.
    let mut alike = BTreeMap::<_, Vec<usize>>::new();
    for (place, subscriber) in subscribers.iter().enumerate() {
        let places = alike.entry(Arc::as_ptr(subscriber.topics)).or_default();
        places.push(place);
    }
    let mut alike: Vec<_> = alike.into_values().collect();
    alike.sort();
    let mut by_topic = BTreeMap::<TopicId, Vec<usize>>::new();
    for (number, places) in alike.iter().enumerate() {
        let wanted = places.first().map(|place| subscribers[*place].topics);
        let there = wanted.into_iter().flat_map(|wanted| wanted.iter());
        for topic in there.filter(|id| topics.contains_key(id)) {
            by_topic.entry(*topic).or_default().push(number);
        }
    }
    let mut by_members = BTreeMap::<Vec<usize>, BTreeSet<TopicId>>::new();
    for (topic, numbers) in by_topic {
        by_members.entry(numbers).or_default().insert(topic);
    }
    let classes = by_members.into_iter().map(|(numbers, topics)| Class {
        topics,
        places: numbers
            .iter()
            .flat_map(|number| alike[*number].iter().copied())
            .collect(),
    });
    let mut classes: Vec<_> = classes.collect();
    classes.sort_by_key(|class| (class.places.len(), class.topics.first().copied()));
    classes
}

fn range(subscribers: &[Subscriber<'_>], topics: &BTreeMap<TopicId, u32>) -> Vec<Partitions> {
    let mut parts = vec![Partitions::new(); subscribers.len()];
    for mut class in classes(subscribers, topics) {
        class.places.sort_by_key(|place| {
            let one = &subscribers[*place];
            (one.instance_id.is_none(), one.instance_id, one.id)
        });
        let among = u32::try_from(class.places.len()).unwrap_or(u32::MAX);
        for topic in class.topics {
            let count = topics.get(&topic).copied().unwrap_or(0);
            let mut next = 0;
            for (number, place) in (0_u32..).zip(&class.places) {
                let end = next + count / among + u32::from(number < count % among);
                parts[*place].extend((next..end).map(|id| (topic, id)));
                next = end;
            }
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
    let classes = classes(subscribers, topics);
    for class in &classes {
        let mut loads = Loads::of(class, &parts);
        for topic in &class.topics {
            let count = topics.get(topic).copied().unwrap_or(0);
            let all = (0..count).map(|id| (*topic, id));
            for part in all.filter(|part| !taken.contains(part)) {
                if let Some((load, place)) = loads.0.pop_first() {
                    parts[place].insert(part);
                    loads.0.insert((load + 1, place));
                }
            }
        }
    }
    // Each move makes the sum of the loads' squares smaller.
    loop {
        let mut moves = 0;
        for class in &classes {
            let mut loads = Loads::of(class, &parts);
            moves += std::iter::from_fn(|| loads.even_out(class, &mut parts)).count();
        }
        if moves == 0 {
            return parts;
        }
    }
}

/// Members by how many partitions they have.
struct Loads(BTreeSet<(usize, usize)>);

impl Loads {
    fn of(class: &Class, parts: &[Partitions]) -> Self {
        let loads = class
            .places
            .iter()
            .map(|place| (parts[*place].len(), *place));
        Self(loads.collect())
    }

    /// Moves a partition of the class's topics from whoever has most to whoever has least; `None` when that would win nothing.
    fn even_out(&mut self, class: &Class, parts: &mut [Partitions]) -> Option<()> {
        let (least, to) = *self.0.first()?;
        let of_class = |place: usize| {
            let mut own = parts[place].iter().rev();
            own.find(|(topic, _)| class.topics.contains(topic)).copied()
        };
        let mut above = self.0.range((least + 2, 0)..).rev();
        let (most, from, part) =
            above.find_map(|(load, place)| Some((*load, *place, of_class(*place)?)))?;
        parts[from].remove(&part);
        parts[to].insert(part);
        for (load, place) in [(least, to), (most, from)] {
            self.0.remove(&(load, place));
        }
        self.0.extend([(least + 1, to), (most - 1, from)]);
        Some(())
    }
}
