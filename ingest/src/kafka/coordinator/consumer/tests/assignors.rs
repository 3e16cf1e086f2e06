//! What the assignors promise, over groups by chance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use basalt_log::TopicId;

use super::super::assign::{Assignor, Subscriber};
use super::super::{Name, Partitions};
use super::model::Chance;
use super::parts;

struct Wanting {
    id: Name,
    instance_id: Option<Name>,
    topics: Arc<BTreeSet<TopicId>>,
    had: Partitions,
}

fn wanting(id: &str, topics: &[u64]) -> Wanting {
    Wanting {
        id: id.into(),
        instance_id: None,
        topics: Arc::new(topics.iter().map(|id| TopicId(*id)).collect()),
        had: Partitions::new(),
    }
}

fn assign(
    assignor: Assignor,
    members: &mut [Wanting],
    topics: &BTreeMap<TopicId, u32>,
) -> Vec<Partitions> {
    let subscribers = members.iter().map(|one| Subscriber {
        id: &one.id,
        instance_id: one.instance_id.as_ref(),
        topics: &one.topics,
        had: &one.had,
    });
    let parts = assignor.assign(&subscribers.collect::<Vec<_>>(), topics);
    for (member, part) in members.iter_mut().zip(&parts) {
        member.had.clone_from(part);
    }
    parts
}

fn topics(of: &[(u64, u32)]) -> BTreeMap<TopicId, u32> {
    of.iter()
        .map(|(id, count)| (TopicId(*id), *count))
        .collect()
}

#[test]
fn range_gives_neighbours_and_static_members_first() {
    let mut members = [
        wanting("b", &[1, 2]),
        wanting("a", &[1]),
        wanting("z", &[1, 2]),
    ];
    members[2].instance_id = Some("i".into());
    let assigned = assign(Assignor::Range, &mut members, &topics(&[(1, 5), (2, 1)]));
    assert_eq!(assigned[2], parts([(1, 0), (1, 1), (2, 0)]));
    assert_eq!(assigned[1], parts([(1, 2), (1, 3)]));
    assert_eq!(assigned[0], parts([(1, 4)]));
}

#[test]
fn uniform_moves_no_more_than_it_has_to() {
    let topics = topics(&[(1, 10)]);
    let mut members = vec![wanting("a", &[1]), wanting("b", &[1])];
    let before = assign(Assignor::Uniform, &mut members, &topics);
    assert_eq!((before[0].len(), before[1].len()), (5, 5));
    members.push(wanting("c", &[1]));
    let after = assign(Assignor::Uniform, &mut members, &topics);
    assert_eq!(after[2].len(), 3);
    assert!(after[0].is_subset(&before[0]) && after[1].is_subset(&before[1]));
    members.remove(0);
    let last = assign(Assignor::Uniform, &mut members, &topics);
    assert!(after[1].is_subset(&last[0]) && after[2].is_subset(&last[1]));
    assert_eq!((last[0].len(), last[1].len()), (5, 5));
}

/// Of many topics, too, in a time that nobody notices.
#[test]
fn many_topics_are_shared_at_once() {
    let all: BTreeMap<_, _> = (0..40_000).map(|id| (TopicId(id), 1)).collect();
    let wanted: Vec<u64> = (0..40_000).collect();
    let mut members = vec![wanting("a", &wanted)];
    let shared = Arc::clone(&members[0].topics);
    for id in ["b", "c"] {
        assign(Assignor::Uniform, &mut members, &all);
        members.push(Wanting {
            topics: Arc::clone(&shared),
            ..wanting(id, &[])
        });
    }
    let assigned = assign(Assignor::Uniform, &mut members, &all);
    let loads: Vec<_> = assigned.iter().map(BTreeSet::len).collect();
    assert_eq!(loads.iter().max(), Some(&13_334), "{loads:?}");
    // One of them wants but half of it.
    members[0].topics = Arc::new(wanted[..20_000].iter().map(|id| TopicId(*id)).collect());
    let assigned = assign(Assignor::Uniform, &mut members, &all);
    let loads: Vec<_> = assigned.iter().map(BTreeSet::len).collect();
    assert_eq!(loads.iter().max(), Some(&13_334), "{loads:?}");
}

#[test]
fn every_partition_is_given_once_and_none_could_be_given_better() {
    for seed in 0..300 {
        let mut chance = Chance::new(seed);
        let mut topics = BTreeMap::new();
        let mut members: Vec<Wanting> = Vec::new();
        for round in 0..6 {
            for id in 0..5 {
                match chance.below(4) {
                    0 => drop(topics.insert(TopicId(id), chance.below(12))),
                    1 if round > 0 => drop(topics.remove(&TopicId(id))),
                    _ => {}
                }
            }
            if members.len() > 1 && chance.below(3) == 0 {
                members.remove(chance.place(members.len()));
            }
            for _ in 0..chance.below(3) {
                let wanted: Vec<_> = (0..5).filter(|_| chance.below(2) == 0).collect();
                let id = format!("{:03}-{round}", chance.below(1000));
                members.push(wanting(&id, &wanted));
            }
            let assignor = Assignor::ALL[chance.below(8) as usize / 7];
            let assigned = assign(assignor, &mut members, &topics);
            let what = format!("seed {seed}, round {round}, {assignor:?}");
            let mut holders = BTreeMap::new();
            for (place, part) in assigned.iter().enumerate() {
                for one in part {
                    assert!(members[place].topics.contains(&one.0), "{what}");
                    assert_eq!(holders.insert(*one, place), None, "{what}");
                }
            }
            let wanted = |topic: &TopicId| members.iter().any(|one| one.topics.contains(topic));
            let all = topics.iter().filter(|(topic, _)| wanted(topic));
            let all: BTreeSet<_> = all
                .flat_map(|(topic, count)| (0..*count).map(|id| (*topic, id)))
                .collect();
            assert_eq!(
                holders.keys().copied().collect::<BTreeSet<_>>(),
                all,
                "{what}"
            );
            if assignor == Assignor::Uniform {
                for ((topic, _), holder) in &holders {
                    let others = members.iter().zip(&assigned);
                    let least = others
                        .filter(|(one, _)| one.topics.contains(topic))
                        .map(|(_, part)| part.len());
                    let least = least.min().expect("the holder is one");
                    assert!(assigned[*holder].len() <= least + 1, "{what}");
                }
            }
        }
    }
}
