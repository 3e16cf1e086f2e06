//! The rules by themselves: time stands until it is moved, and what is to be written down is written when a test says so.

use std::sync::Arc;

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
            self.group.stored(self.now, store.number, is_stored);
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
        names: Some(names_of(names)),
        owned: Some(Partitions::new()),
        ..beats(id, 0)
    }
}

fn names_of(names: &[&str]) -> Arc<BTreeSet<Name>> {
    Arc::new(names.iter().map(|name| Name::from(*name)).collect())
}

fn pattern(text: &str) -> Option<Option<Pattern>> {
    Some(Pattern::new(&text.into()).expect("a pattern"))
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
fn what_a_static_member_had_to_give_up_is_free_once_another_is_in_its_place() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let fixed = |id: &str| Beat {
        instance_id: Some("i".into()),
        ..joins(id, &["t"])
    };
    let all = bench.say(&fixed("a")).unwrap().assignment.unwrap();
    bench.join("b", &["t"]).unwrap();
    bench.say(&owns("a", 1, &all)).unwrap();
    assert_eq!(bench.group.members["a"].revoking.len(), 1);
    let away = Beat {
        epoch: WILL_BE_BACK,
        ..fixed("a")
    };
    bench.say(&away).unwrap();
    let back = bench.say(&fixed("x")).unwrap();
    let told = bench.say(&beats("b", 2)).unwrap();
    let parts = [back.assignment, told.assignment].into_iter().flatten();
    assert_eq!(parts.flatten().collect::<Partitions>(), all);
    assert_eq!(bench.group.state(), "Stable");
}

#[test]
fn topics_that_come_and_grow_and_go_are_noticed() {
    let mut bench = Bench::new(&[("orders.a", 1, 1), ("other", 2, 1)]);
    let with_pattern = Beat {
        pattern: pattern("orders\\..*"),
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
}

#[test]
fn patterns_match_whole_names_or_are_refused() {
    let none = |text: &str| Pattern::new(&text.into()).unwrap_err().code;
    for bad in ["(", "a)|(?:b", "((a{99}){99}){99}", &"a".repeat(1025)] {
        assert_eq!(none(bad), code::INVALID_REGULAR_EXPRESSION, "{bad:?}");
    }
    let matches = |text: &str, name: &str| {
        let pattern = Pattern::new(&text.into()).unwrap().expect("a pattern");
        pattern.matches(name)
    };
    assert!(matches("a|b", "b") && !matches("a|b", "ab"));
    assert!(matches("(?i)orders-.*", "ORDERS-1"));
    assert!(Pattern::new(&"".into()).unwrap().is_none());
    // Members share those that are the same, and have only so many.
    let mut bench = Bench::new(&[("t", 1, 1)]);
    let limits = Limits {
        max_members: 1000,
        ..LIMITS
    };
    for number in 0..70 {
        let (reply, mut told) = oneshot::channel();
        let beat = Beat {
            pattern: pattern(&format!("x{number}")),
            ..joins(&number.to_string(), &[])
        };
        let known = Known::of(&[]);
        bench
            .group
            .heartbeat(bench.now, &beat, &limits, &known, reply);
        bench.unwritten.extend(bench.group.take_store());
        bench.write(true);
        bench.write(true);
        let told = told.try_recv().expect("an answer").map_err(|no| no.code);
        assert_eq!(told.is_ok(), number < 64, "{number}");
    }
}

#[test]
fn the_most_wanted_assignor_assigns() {
    let mut bench = Bench::new(&[("t", 1, 4)]);
    let wanting = |id: &str, assignor: &str| Beat {
        assignor: Assignor::named(assignor),
        ..joins(id, &["t"])
    };
    bench.join("a", &["t"]).unwrap();
    assert_eq!(bench.group.describe().assignor, "uniform");
    bench.say(&wanting("b", "range")).unwrap();
    assert_eq!(bench.group.describe().assignor, "range");
    bench.say(&wanting("c", "uniform")).unwrap();
    assert_eq!(bench.group.describe().assignor, "uniform");
}

#[test]
fn nothing_is_told_that_is_not_written() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let mut told = bench.send(&joins("a", &["t"]));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    bench.write(false);
    let failed = told.try_recv().expect("an answer").map_err(|no| no.code);
    assert_eq!(failed, Err(code::COORDINATOR_NOT_AVAILABLE));
    // It is tried again by itself, and what it was not told it is told then, though it asks for nothing.
    let unwritten = bench.send(&beats("a", 1)).try_recv();
    let unwritten = unwritten.expect("an answer").map_err(|no| no.code);
    assert_eq!(unwritten, failed);
    assert!(bench.unwritten.is_empty() && !bench.group.is_idle());
    bench.pass(RETRY_AFTER);
    assert_eq!(bench.unwritten.len(), 1);
    let mut told = bench.send(&beats("a", 1));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    bench.write(true);
    let all = parts([(1, 0), (1, 1)]);
    let told = told.try_recv().expect("an answer").unwrap();
    assert_eq!((told.epoch, told.assignment), (1, Some(all)));
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
        pattern: pattern("u.*"),
        instance_id: Some("i".into()),
        rack_id: Some("r".into()),
        assignor: Some(Assignor::Range),
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

/// Nobody is left without partitions because the first thing after a start was that another went.
#[test]
fn whoever_stays_takes_over_from_one_that_goes_right_after_a_restart() {
    for goes in 0..3 {
        let mut bench = Bench::new(&[("t", 1, 4)]);
        let all = bench.join("a", &["t"]).unwrap().assignment.unwrap();
        bench.join("b", &["t"]).unwrap();
        bench.restart();
        match goes {
            0 => drop(bench.say(&beats("a", LEAVES))),
            1 => bench.group.put_out(&"a".into(), None).unwrap(),
            _ => {
                bench.pass(SESSION - Duration::from_secs(1));
                bench.say(&beats("b", 2)).unwrap();
                bench.pass(Duration::from_secs(1));
            }
        }
        bench.unwritten.extend(bench.group.take_store());
        bench.write(true);
        // And if it crashes again in between.
        bench.restart();
        let told = bench.say(&beats("b", 2)).unwrap();
        assert_eq!(told.assignment, Some(all), "{goes}");
    }
}

/// An old connection's heartbeat, read late, gives up nothing that the member has had since.
#[test]
fn what_was_said_before_a_partition_was_had_does_not_give_it_up() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let all = bench.join("a", &["t"]).unwrap().assignment.unwrap();
    bench.join("b", &["t"]).unwrap();
    let late = owns("b", 2, &Partitions::new());
    let kept = bench.say(&owns("a", 1, &all)).unwrap().assignment.unwrap();
    bench.say(&owns("a", 1, &kept)).unwrap();
    let mut moved = bench.say(&beats("b", 2)).unwrap().assignment.unwrap();
    // It comes to another epoch, and has to give up all that it has: the topic is made anew.
    bench.topics.set("t", 1, 3);
    bench.say(&beats("a", 2)).unwrap();
    moved.extend(
        bench
            .say(&beats("b", 2))
            .unwrap()
            .assignment
            .unwrap_or_default(),
    );
    bench.topics.set("t", 9, 3);
    bench.say(&owns("b", 3, &moved)).unwrap();
    assert_eq!(bench.group.members["b"].state, State::Unrevoked);
    assert_eq!(bench.say(&late).unwrap().epoch, 3, "it still has it");
    assert_eq!(bench.group.members["b"].state, State::Unrevoked);
    assert_eq!(
        bench.say(&owns("b", 3, &Partitions::new())).unwrap().epoch,
        4
    );
    assert_sound(&bench.group);
}

#[test]
fn a_member_that_is_somebody_else_now_holds_nothing_of_before() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let fixed = |id: &str, epoch: i32| Beat {
        instance_id: Some("i".into()),
        ..Beat {
            epoch,
            ..joins(id, &["t"])
        }
    };
    bench.join("x", &["t"]).unwrap();
    bench.say(&fixed("old", 0)).unwrap();
    bench.say(&fixed("old", WILL_BE_BACK)).unwrap();
    // While it is away only joining again is its way back.
    let late = bench.say(&fixed("old", 2));
    assert_eq!(late, Err(code::FENCED_MEMBER_EPOCH));
    bench.say(&fixed("x", 0)).unwrap();
    let told = bench.say(&fixed("x", 0)).unwrap();
    assert_eq!(told.assignment.map(|part| part.len()), Some(2));
    assert_sound(&bench.group);
}

#[test]
fn one_that_is_put_out_while_it_waits_is_told_so() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let mut told = bench.send(&joins("a", &["t"]));
    bench.group.put_out(&"a".into(), None).unwrap();
    bench.write(true);
    let told = told.try_recv().expect("an answer").map_err(|no| no.code);
    assert_eq!(told, Err(code::UNKNOWN_MEMBER_ID));
}

/// Nobody is put out because the disk was full for longer than a session.
#[test]
fn members_outlive_a_disk_that_fails_for_long() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    let all = bench.join("a", &["t"]).unwrap().assignment.unwrap();
    bench.topics.set("t", 1, 3);
    drop(bench.send(&beats("a", 1)));
    for _ in 0..12 {
        bench.write(false);
        let told = bench.send(&owns("a", 1, &all)).try_recv();
        let told = told.expect("an answer").map_err(|no| no.code);
        assert_eq!(told, Err(code::COORDINATOR_NOT_AVAILABLE));
        bench.pass(SESSION / 9);
    }
    bench.write(true);
    let told = bench.say(&owns("a", 1, &all)).unwrap();
    assert_eq!(told.assignment.map(|part| part.len()), Some(3));
}

/// The last member goes, and that cannot be written: it is tried again until it can.
#[test]
fn the_end_of_a_group_is_written_in_the_end() {
    let mut bench = Bench::new(&[("t", 1, 2)]);
    bench.join("a", &["t"]).unwrap();
    drop(bench.send(&beats("a", LEAVES)));
    bench.write(false);
    assert!(!bench.group.is_idle());
    bench.pass(RETRY_AFTER);
    bench.write(false);
    bench.pass(RETRY_AFTER);
    bench.write(true);
    assert!(bench.written.is_none() && bench.group.is_idle());
}

/// What is known twice says the same.
fn assert_sound(group: &Group) {
    let held = group.members.iter();
    let held = held.flat_map(|(id, one)| one.held().map(move |part| (*part, id.clone())));
    assert_eq!(held.collect::<HashMap<_, _>>(), group.holders);
    let said = group.members.values().map(Member::said_bytes);
    assert_eq!(said.sum::<usize>(), group.said_bytes);
    let statics = group.members.iter();
    let statics = statics.filter_map(|(id, one)| Some((one.instance_id.clone()?, id.clone())));
    assert_eq!(statics.collect::<HashMap<_, _>>(), group.statics);
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
    assert_sound(&bench.group);
    // One that is in may say the same again, and more, but not without end.
    let names = (0..400_000).map(|number| Name::from(format!("{number:0100}")));
    let much = Beat {
        names: Some(Arc::new(names.collect())),
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
