//! The rules by themselves: time stands until it is moved, and what is to be written down is written when a test says so.

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::*;

mod assignors;
mod model;

const SESSION: Duration = Duration::from_secs(45);
const REBALANCE: Duration = Duration::from_secs(60);

const LIMITS: Limits = Limits {
    max_members: 5,
    session: SESSION,
};

/// Topics by name.
#[derive(Debug, Default, Clone)]
struct Known {
    version: u64,
    topics: BTreeMap<String, (TopicId, u32)>,
}

impl Known {
    fn of(topics: &[(&str, u64, u32)]) -> Self {
        let topics = topics.iter();
        Self {
            version: 0,
            topics: topics
                .map(|(name, id, count)| ((*name).to_owned(), (TopicId(*id), *count)))
                .collect(),
        }
    }

    fn set(&mut self, name: &str, id: u64, count: u32) {
        self.version += 1;
        self.topics.insert(name.to_owned(), (TopicId(id), count));
    }
}

impl Topics for Known {
    fn version(&self) -> u64 {
        self.version
    }

    fn find(&self, name: &str) -> Option<(TopicId, u32)> {
        self.topics.get(name).copied()
    }

    fn each(&self, with: &mut dyn FnMut(&str, TopicId, u32)) {
        for (name, (id, count)) in &self.topics {
            with(name, *id, *count);
        }
    }
}

/// A group, its time, its topics, and its disk.
struct Bench {
    group: Group,
    now: Instant,
    topics: Known,
    unwritten: Vec<Store>,
    /// What was written last.
    written: Option<Vec<u8>>,
}

type Answer = oneshot::Receiver<Told>;

impl Bench {
    fn new(topics: &[(&str, u64, u32)]) -> Self {
        Self {
            group: Group::new(SESSION),
            now: Instant::now(),
            topics: Known::of(topics),
            unwritten: Vec::new(),
            written: None,
        }
    }

    /// A heartbeat, and its answer once what is to be written is.
    fn say(&mut self, beat: &Beat) -> Result<Beaten, i16> {
        let mut told = self.send(beat);
        self.write(true);
        self.write(true);
        told.try_recv().expect("an answer").map_err(|no| no.code)
    }

    fn send(&mut self, beat: &Beat) -> Answer {
        let (reply, told) = oneshot::channel();
        self.group
            .heartbeat(self.now, beat, &LIMITS, &self.topics, reply);
        self.unwritten.extend(self.group.take_store());
        told
    }

    /// Writes down what is to be, or fails to.
    fn write(&mut self, is_stored: bool) {
        for store in std::mem::take(&mut self.unwritten) {
            if is_stored {
                self.written = store.members;
            }
            self.group.stored(store.number, is_stored);
        }
        self.unwritten.extend(self.group.take_store());
    }

    fn restart(&mut self) {
        self.unwritten.clear();
        self.group = match &self.written {
            Some(written) => decode(written, self.now, SESSION).expect("a group"),
            None => Group::new(SESSION),
        };
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.group.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.group.tick(self.now);
            self.unwritten.extend(self.group.take_store());
        }
        self.now = end;
    }

    fn join(&mut self, id: &str, names: &[&str]) -> Result<Beaten, i16> {
        self.say(&joins(id, names))
    }
}

fn joins(id: &str, names: &[&str]) -> Beat {
    Beat {
        rebalance: Some(REBALANCE),
        names: Some(names.iter().map(|name| Name::from(*name)).collect()),
        owned: Some(Partitions::new()),
        ..beats(id, 0)
    }
}

/// A heartbeat that says nothing new.
fn beats(id: &str, epoch: i32) -> Beat {
    Beat {
        member_id: id.into(),
        epoch,
        instance_id: None,
        rack_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        rebalance: None,
        names: None,
        pattern: None,
        assignor: None,
        owned: None,
    }
}

fn owns(id: &str, epoch: i32, owned: &Partitions) -> Beat {
    Beat {
        owned: Some(owned.clone()),
        ..beats(id, epoch)
    }
}

fn parts(of: impl IntoIterator<Item = (u64, u32)>) -> Partitions {
    of.into_iter()
        .map(|(topic, id)| (TopicId(topic), id))
        .collect()
}

fn who(id: &str, epoch: i32) -> Identity {
    Identity {
        member_id: id.into(),
        instance_id: None,
        generation: epoch,
    }
}

#[test]
fn the_first_member_has_all_and_a_second_gets_its_half_once_that_is_given_up() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    let first = bench.join("a", &["t"]).unwrap();
    let all = parts((0..4).map(|id| (1, id)));
    assert_eq!((first.epoch, first.assignment), (1, Some(all.clone())));
    let second = bench.join("b", &["t"]).unwrap();
    assert_eq!(
        (second.epoch, second.assignment),
        (2, Some(Partitions::new()))
    );
    assert_eq!(bench.group.state(), "Reconciling");
    // It is told what to keep, at its old epoch, under which it commits what it gives up.
    let told = bench.say(&owns("a", 1, &all)).unwrap();
    let half = told.assignment.expect("a smaller part");
    assert_eq!((told.epoch, half.len()), (1, 2));
    bench
        .group
        .may_commit(bench.now, &who("a", 1), false)
        .unwrap();
    assert_eq!(bench.say(&beats("b", 2)).unwrap().assignment, None);
    // Saying nothing is not giving up.
    assert_eq!(bench.say(&beats("a", 1)).unwrap().epoch, 1);
    assert_eq!(bench.say(&owns("a", 1, &half)).unwrap().epoch, 2);
    let told = bench
        .say(&beats("b", 2))
        .unwrap()
        .assignment
        .expect("its part");
    assert_eq!(told, all.difference(&half).copied().collect());
    assert_eq!(bench.group.state(), "Stable");
    let stale = bench.group.may_commit(bench.now, &who("a", 1), false);
    assert_eq!(stale, Err(code::STALE_MEMBER_EPOCH));
    let fenced = bench.group.may_commit(bench.now, &who("a", 1), true);
    assert_eq!(fenced, Err(code::ILLEGAL_GENERATION));
}

#[test]
fn whoever_leaves_or_is_silent_makes_room() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    let all = bench.join("a", &["t"]).unwrap().assignment.unwrap();
    bench.join("b", &["t"]).unwrap();
    let left = bench.say(&beats("a", LEAVES)).unwrap();
    assert_eq!((left.epoch, left.assignment), (LEAVES, None));
    let told = bench.say(&beats("b", 2)).unwrap();
    assert_eq!((told.epoch, told.assignment), (3, Some(all)));
    bench.join("c", &["t"]).unwrap();
    bench.pass(SESSION - Duration::from_secs(1));
    bench.say(&beats("c", 4)).unwrap();
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.say(&beats("b", 3)), Err(code::UNKNOWN_MEMBER_ID));
    let told = bench.say(&beats("c", 4)).unwrap();
    assert_eq!(told.assignment.map(|part| part.len()), Some(4));
}

#[test]
fn whoever_does_not_give_up_in_time_is_out() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let all = bench.join("a", &["t"]).unwrap().assignment.unwrap();
    bench.join("b", &["t"]).unwrap();
    for _ in 0..6 {
        bench.say(&owns("a", 1, &all)).unwrap();
        bench.say(&beats("b", 2)).unwrap();
        bench.pass(REBALANCE / 6);
    }
    assert_eq!(bench.say(&owns("a", 1, &all)), Err(code::UNKNOWN_MEMBER_ID));
    assert_eq!(bench.say(&beats("b", 2)).unwrap().assignment, Some(all));
}

#[test]
fn a_lost_answer_does_not_fence_and_a_wrong_epoch_does() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let all = bench.join("a", &["t"]).unwrap().assignment.unwrap();
    // Its join again, as if it had not heard of it.
    let again = bench.join("a", &["t"]).unwrap();
    assert_eq!((again.epoch, again.assignment), (1, Some(all.clone())));
    bench.topics.set("t", 1, 3);
    let told = bench.say(&owns("a", 1, &all)).unwrap();
    assert_eq!(told.epoch, 2);
    // It did not hear of the second epoch.
    let told = bench.say(&owns("a", 1, &all)).unwrap();
    assert_eq!(told.epoch, 2);
    let beyond = parts((0..4).map(|id| (1, id)));
    let fenced = Err(code::FENCED_MEMBER_EPOCH);
    assert_eq!(bench.say(&owns("a", 1, &beyond)), fenced);
    assert_eq!(bench.say(&beats("a", 1)), fenced);
    assert_eq!(bench.say(&beats("a", 3)), fenced);
    assert_eq!(bench.say(&beats("nobody", 3)), Err(code::UNKNOWN_MEMBER_ID));
}

#[test]
fn a_static_member_that_comes_back_has_what_it_had_and_nobody_moves() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    let fixed = |id: &str, epoch: i32| Beat {
        instance_id: Some("i".into()),
        ..match epoch {
            0 => joins(id, &["t"]),
            _ => beats(id, epoch),
        }
    };
    bench.join("b", &["t"]).unwrap();
    let first = bench.say(&fixed("a", 0)).unwrap();
    bench
        .say(&owns("b", 1, &bench.group.members["b"].target.clone()))
        .unwrap();
    bench
        .say(&owns("b", 1, &bench.group.members["b"].target.clone()))
        .unwrap();
    let part = bench
        .say(&fixed("a", first.epoch))
        .unwrap()
        .assignment
        .unwrap();
    assert_eq!(part.len(), 2);
    // While it is there nobody else is it.
    assert_eq!(bench.say(&fixed("x", 0)), Err(code::UNRELEASED_INSTANCE_ID));
    assert_eq!(bench.say(&fixed("x", 2)), Err(code::FENCED_INSTANCE_ID));
    assert_eq!(
        bench.say(&fixed("a", WILL_BE_BACK)).unwrap().epoch,
        WILL_BE_BACK
    );
    let epoch = bench.group.epoch;
    let back = bench.say(&fixed("x", 0)).unwrap();
    assert_eq!((back.epoch, back.assignment), (epoch, Some(part.clone())));
    assert_eq!(bench.group.epoch, epoch, "nobody moves");
    assert_eq!(bench.say(&fixed("a", 2)), Err(code::FENCED_INSTANCE_ID));
    // One that does not come back loses it.
    bench.say(&fixed("x", WILL_BE_BACK)).unwrap();
    bench.pass(SESSION - Duration::from_secs(1));
    let told = bench.say(&beats("b", 2)).unwrap();
    assert_eq!(told.assignment, None);
    bench.pass(Duration::from_secs(1));
    let told = bench.say(&beats("b", 2)).unwrap();
    assert_eq!(told.assignment.map(|part| part.len()), Some(4));
    // A dynamic member has no place to come back to.
    assert_eq!(
        bench.say(&beats("b", WILL_BE_BACK)),
        Err(code::UNKNOWN_MEMBER_ID)
    );
}

#[test]
fn topics_that_come_and_grow_and_go_are_noticed() {
    let mut bench = Bench::new(&[("orders.a", 1, 1), ("other", 2, 1)]);
    let with_pattern = Beat {
        pattern: Some("orders\\..*".into()),
        names: None,
        ..joins("a", &[])
    };
    let told = bench.say(&with_pattern).unwrap();
    assert_eq!(told.assignment, Some(parts([(1, 0)])));
    bench.topics.set("orders.b", 3, 1);
    bench.topics.set("my.orders.c", 4, 1);
    let told = bench.say(&beats("a", 1)).unwrap();
    assert_eq!(
        told.assignment,
        Some(parts([(1, 0), (3, 0)])),
        "of whole names"
    );
    bench.topics.set("orders.a", 1, 2);
    let told = bench.say(&beats("a", 2)).unwrap();
    assert_eq!(told.assignment, Some(parts([(1, 0), (1, 1), (3, 0)])));
    // Made anew: the old one has to be given up.
    bench.topics.set("orders.b", 5, 1);
    let told = bench.say(&beats("a", 3)).unwrap();
    assert_eq!(
        (told.epoch, told.assignment),
        (3, Some(parts([(1, 0), (1, 1)])))
    );
    let told = bench.say(&owns("a", 3, &parts([(1, 0), (1, 1)]))).unwrap();
    assert_eq!(told.assignment, Some(parts([(1, 0), (1, 1), (5, 0)])));
    // What does not concern it moves nobody.
    bench.topics.set("other", 2, 7);
    assert_eq!(bench.say(&beats("a", 4)).unwrap().epoch, 4);
    let bad = Beat {
        pattern: Some("(".into()),
        ..with_pattern
    };
    let bad = Beat {
        member_id: "b".into(),
        ..bad
    };
    assert_eq!(bench.say(&bad), Err(code::INVALID_REGULAR_EXPRESSION));
    let huge = Beat {
        pattern: Some("((a{99}){99}){99}".into()),
        ..bad
    };
    assert_eq!(bench.say(&huge), Err(code::INVALID_REGULAR_EXPRESSION));
    assert_eq!(bench.group.members.len(), 1);
}

#[test]
fn the_most_wanted_assignor_assigns() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    let wanting = |id: &str, assignor: &str| Beat {
        assignor: Some(assignor.into()),
        ..joins(id, &["t"])
    };
    bench.join("a", &["t"]).unwrap();
    assert_eq!(bench.group.describe().assignor, "uniform");
    bench.say(&wanting("b", "range")).unwrap();
    assert_eq!(bench.group.describe().assignor, "range");
    bench.say(&wanting("c", "uniform")).unwrap();
    assert_eq!(bench.group.describe().assignor, "uniform");
    let unknown = bench.say(&wanting("d", "sticky"));
    assert_eq!(unknown, Err(code::UNSUPPORTED_ASSIGNOR));
}

#[test]
fn nothing_is_told_that_is_not_written() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let mut told = bench.send(&joins("a", &["t"]));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    bench.write(false);
    let failed = told.try_recv().expect("an answer").map_err(|no| no.code);
    assert_eq!(failed, Err(code::COORDINATOR_NOT_AVAILABLE));
    // What it was not told is still not written.
    let mut told = bench.send(&beats("a", 1));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    bench.write(true);
    assert_eq!(told.try_recv().expect("an answer").unwrap().epoch, 1);
    // A heartbeat that changes nothing waits for nobody else's write.
    let mut other = bench.send(&joins("b", &["t"]));
    bench.write(true);
    other.try_recv().unwrap().unwrap();
    let mut third = bench.send(&joins("c", &["t"]));
    let mut told = bench.send(&beats("b", 2));
    assert_eq!(third.try_recv(), Err(TryRecvError::Empty));
    assert!(told.try_recv().is_err(), "its epoch is another one");
    bench.write(true);
    bench.write(true);
    let epoch = told.try_recv().unwrap().unwrap().epoch;
    third.try_recv().unwrap().unwrap();
    let mut fourth = bench.send(&joins("d", &["t"]));
    let leaves = bench.send(&beats("nobody", LEAVES)).try_recv();
    assert!(leaves.unwrap().is_err());
    assert_eq!(fourth.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(epoch, 3);
}

#[test]
fn a_restart_moves_nobody() {
    let mut bench = Bench::new(&[("t", 1, 4), ("u", 2, 1)]);
    let all = bench.join("a", &["t", "u"]).unwrap().assignment.unwrap();
    let told = bench.say(&Beat {
        pattern: Some("u.*".into()),
        instance_id: Some("i".into()),
        rack_id: Some("r".into()),
        assignor: Some("range".into()),
        ..joins("b", &["t"])
    });
    assert_eq!(told.unwrap().epoch, 2);
    bench.say(&owns("a", 1, &all)).unwrap();
    let before = bench.group.describe();
    assert!(!bench.group.members["a"].revoking.is_empty());
    bench.restart();
    assert_eq!(bench.group.describe(), before);
    // What is to be given up has to be still.
    assert_eq!(bench.say(&beats("b", 2)).unwrap().assignment, None);
    let kept = bench.group.members["a"].assigned.clone();
    assert_eq!(bench.say(&owns("a", 1, &kept)).unwrap().epoch, 2);
    assert!(bench.say(&beats("b", 2)).unwrap().assignment.is_some());
    assert_eq!(bench.group.epoch, 2);
    bench.restart();
    bench.pass(SESSION);
    assert!(!bench.group.is_used());
    bench.write(true);
    assert!(bench.written.is_none() && bench.group.is_idle());
}

#[test]
fn what_is_stored_is_read_or_refused() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    bench.join("a", &["t"]).unwrap();
    bench.join("b", &["t"]).unwrap();
    let stored = bench.written.clone().expect("members");
    for cut in 0..stored.len() {
        assert!(decode(&stored[..cut], bench.now, SESSION).is_err(), "{cut}");
    }
    assert_eq!(stored[0], 2);
}

#[test]
fn groups_are_bounded() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    for id in 0..LIMITS.max_members {
        bench.join(&id.to_string(), &["t"]).unwrap();
    }
    let full = Err(code::GROUP_MAX_SIZE_REACHED);
    assert_eq!(bench.join("one more", &["t"]), full);
    // One that is in may say more, but not without end.
    let names = (0..400_000).map(|number| Name::from(format!("{number:0100}")));
    let much = Beat {
        names: Some(names.collect()),
        ..beats("0", bench.group.members["0"].epoch)
    };
    assert_eq!(bench.say(&much), full);
}

#[test]
fn a_group_that_is_moved_puts_all_out_and_takes_no_late_commit() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    bench.join("a", &["t"]).unwrap();
    bench.group.expel(bench.now);
    bench.write(true);
    let late = |bench: &Bench| bench.group.may_commit(bench.now, &who("", -1), false);
    assert_eq!(late(&bench), Err(code::UNKNOWN_MEMBER_ID));
    assert_eq!(bench.say(&beats("a", 1)), Err(code::UNKNOWN_MEMBER_ID));
    bench.pass(SESSION);
    assert_eq!(late(&bench), Ok(()));
    assert!(bench.join("a", &["t"]).unwrap().epoch > 1);
}
