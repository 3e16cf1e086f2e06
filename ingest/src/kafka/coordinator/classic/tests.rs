//! The rules by themselves: time stands until it is moved, and what is to be written down is written when a test says so.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::kafka::coordinator::identity::Identity;

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(60);

const LIMITS: Limits = Limits {
    max_members: 5,
    initial_delay: Duration::ZERO,
};

/// A group, its time, and its disk.
struct Bench {
    group: Group,
    now: Instant,
    limits: Limits,
    unwritten: Vec<Store>,
    /// What was written last.
    written: Option<Vec<u8>>,
}

impl Bench {
    fn new() -> Self {
        Self {
            group: Group::new(),
            now: Instant::now(),
            limits: LIMITS,
            unwritten: Vec::new(),
            written: None,
        }
    }

    fn join_with(&mut self, join: Join) -> oneshot::Receiver<Joined> {
        let (reply, joined) = oneshot::channel();
        self.group.join(self.now, join, &self.limits, reply);
        self.unwritten.extend(self.group.take_store());
        joined
    }

    fn join(&mut self, id: &str) -> oneshot::Receiver<Joined> {
        self.join_with(join(id, &["range"]))
    }

    fn sync(&mut self, who: &Identity, parts: &[(&Name, &str)]) -> oneshot::Receiver<Synced> {
        let (reply, synced) = oneshot::channel();
        let parts = parts.iter();
        let assignments = parts.map(|(id, part)| ((*id).clone(), Bytes::from((*part).to_owned())));
        let sync = Sync {
            who: who.clone(),
            protocol_type: None,
            protocol: None,
            assignments: assignments.collect(),
        };
        self.group.sync(self.now, sync, reply);
        self.unwritten.extend(self.group.take_store());
        synced
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

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.group.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.group.tick(self.now);
            self.unwritten.extend(self.group.take_store());
        }
        self.now = end;
    }

    fn heartbeat(&mut self, who: &Identity) -> i16 {
        self.group.heartbeat(self.now, who).err().unwrap_or(0)
    }

    fn leave(&mut self, id: &Name, instance: Option<&str>) -> i16 {
        let instance = instance.map(Name::from);
        let left = self.group.leave(self.now, id, instance.as_ref());
        self.unwritten.extend(self.group.take_store());
        left.err().unwrap_or(0)
    }

    fn commit(&mut self, who: &Identity) -> i16 {
        self.group
            .may_commit(self.now, who, false)
            .err()
            .unwrap_or(0)
    }

    /// A stable group of so many members, in the order in which they joined; the first leads.
    fn stable(count: usize) -> (Self, Vec<Identity>) {
        let mut bench = Self::new();
        let mut joins: Vec<oneshot::Receiver<Joined>> = vec![bench.join("")];
        let first = told(&mut joins[0]).member_id;
        for _ in 1..count {
            let mut join = bench.join("");
            nothing(&mut join);
            joins.push(join);
        }
        let ids = if count > 1 {
            joins[0] = bench.join(&first);
            joins.iter_mut().map(|join| told(join).member_id).collect()
        } else {
            vec![first]
        };
        let generation = bench.group.generation;
        let all: Vec<_> = ids.iter().map(|id| identity(id, generation)).collect();
        let parts: Vec<_> = ids.iter().map(|id| (id, "part")).collect();
        let mut synced = bench.sync(&all[0], &parts);
        bench.write(true);
        assert_eq!(told(&mut synced).error, 0);
        for one in &all[1..] {
            assert_eq!(told(&mut bench.sync(one, &[])).assignment, "part");
        }
        (bench, all)
    }
}

fn join(id: &str, protocols: &[&str]) -> Join {
    let protocols = protocols.iter();
    Join {
        member_id: id.into(),
        instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session: SESSION,
        rebalance: REBALANCE,
        protocol_type: "consumer".into(),
        protocols: protocols
            .map(|name| ((*name).into(), Bytes::from_static(b"topics")))
            .collect(),
        needs_known_id: false,
        can_skip_assignment: false,
    }
}

fn of_instance(id: &str, instance: &str) -> Join {
    Join {
        instance_id: Some(instance.into()),
        ..join(id, &["range"])
    }
}

fn identity(id: &Name, generation: i32) -> Identity {
    Identity {
        member_id: id.clone(),
        instance_id: None,
        generation,
    }
}

fn told<T: std::fmt::Debug>(reply: &mut oneshot::Receiver<T>) -> T {
    reply.try_recv().expect("it is answered")
}

fn nothing<T: std::fmt::Debug>(reply: &mut oneshot::Receiver<T>) {
    assert!(matches!(reply.try_recv(), Err(TryRecvError::Empty)));
}

#[test]
fn members_agree_on_a_generation_and_are_told_their_parts_once_they_are_written_down() {
    let mut bench = Bench::new();
    let alone = told(&mut bench.join(""));
    assert_eq!((alone.error, alone.generation), (0, 1));
    assert_eq!(alone.leader, alone.member_id);
    let mut second = bench.join("");
    nothing(&mut second);
    // The leader hears of it, and joins again.
    assert_eq!(
        bench.heartbeat(&identity(&alone.member_id, 1)),
        code::REBALANCE_IN_PROGRESS
    );
    let leader = told(&mut bench.join(&alone.member_id));
    let second = told(&mut second);
    assert_eq!((leader.generation, second.generation), (2, 2));
    assert_eq!((leader.members.len(), second.members.len()), (2, 0));
    assert_eq!(second.leader, leader.member_id);
    let (first, other) = (
        identity(&leader.member_id, 2),
        identity(&second.member_id, 2),
    );
    let mut part = bench.sync(&other, &[]);
    let mut whole = bench.sync(&first, &[(&first.member_id, "a"), (&other.member_id, "b")]);
    nothing(&mut part);
    nothing(&mut whole);
    assert_eq!(bench.commit(&first), code::REBALANCE_IN_PROGRESS);
    bench.write(true);
    assert_eq!(told(&mut part).assignment, "b");
    assert_eq!(told(&mut whole).assignment, "a");
    assert_eq!(bench.heartbeat(&first), 0);
    assert_eq!(bench.commit(&other), 0);
    // A restart goes on where it was.
    let stored = bench.written.clone().expect("members");
    bench.group = stored::decode(&stored, bench.now).expect("a group");
    assert_eq!(bench.heartbeat(&other), 0);
    assert_eq!(told(&mut bench.sync(&other, &[])).assignment, "b");
    assert_eq!(bench.leave(&first.member_id, None), 0);
    let alone = told(&mut bench.join(&other.member_id));
    assert_eq!(
        alone.generation, 1002,
        "what was told and not written is jumped over"
    );
}

#[test]
fn a_store_that_fails_starts_over() {
    let mut bench = Bench::new();
    let alone = told(&mut bench.join(""));
    let who = identity(&alone.member_id, 1);
    let mut part = bench.sync(&who, &[(&who.member_id, "a")]);
    bench.write(false);
    assert_eq!(told(&mut part).error, code::COORDINATOR_NOT_AVAILABLE);
    assert_eq!(bench.heartbeat(&who), code::REBALANCE_IN_PROGRESS);
    let again = told(&mut bench.join(&who.member_id));
    assert_eq!((again.error, again.generation), (0, 2));
}

/// PUB-20: nobody commits for a generation that is over, or that it is no member of.
#[test]
fn pub_20_only_members_of_the_generation_commit() {
    let (mut bench, all) = Bench::stable(2);
    let stranger = identity(&"stranger".into(), all[0].generation);
    assert_eq!(bench.commit(&stranger), code::UNKNOWN_MEMBER_ID);
    for generation in [0, all[0].generation - 1, all[0].generation + 1] {
        let late = identity(&all[0].member_id, generation);
        assert_eq!(bench.commit(&late), code::ILLEGAL_GENERATION);
    }
    // Whoever is no member commits only where there are none.
    let nobody = identity(&"".into(), -1);
    assert_eq!(bench.commit(&nobody), code::UNKNOWN_MEMBER_ID);
    assert_eq!(bench.commit(&all[1]), 0);
    // While others join, what was done before is still committed.
    let mut third = bench.join("");
    assert_eq!(bench.commit(&all[1]), 0);
    let mut joins: Vec<_> = all.iter().map(|one| bench.join(&one.member_id)).collect();
    assert_eq!(told(&mut third).error, 0);
    assert!(joins.iter_mut().all(|join| told(join).error == 0));
    assert_eq!(bench.commit(&all[1]), code::ILLEGAL_GENERATION);
    let mut empty = Bench::new();
    assert_eq!(empty.commit(&nobody), 0);
    assert_eq!(empty.commit(&identity(&"whoever".into(), -1)), 0);
    assert_eq!(
        empty.commit(&identity(&"whoever".into(), 1)),
        code::UNKNOWN_MEMBER_ID
    );
}

#[test]
fn whoever_is_not_heard_of_is_out() {
    let (mut bench, all) = Bench::stable(2);
    bench.pass(SESSION / 2);
    assert_eq!(bench.heartbeat(&all[0]), 0);
    bench.pass(SESSION / 2 + Duration::from_millis(1));
    assert_eq!(bench.heartbeat(&all[1]), code::UNKNOWN_MEMBER_ID);
    assert_eq!(bench.heartbeat(&all[0]), code::REBALANCE_IN_PROGRESS);
    let alone = told(&mut bench.join(&all[0].member_id));
    assert_eq!(alone.members.len(), 1);
    // No session ends while its member waits for others.
    let mut second = bench.join("");
    bench.pass(SESSION - Duration::from_millis(1));
    assert_eq!(
        bench.heartbeat(&identity(&all[0].member_id, alone.generation)),
        code::REBALANCE_IN_PROGRESS
    );
    let mut first = bench.join(&all[0].member_id);
    assert_eq!((told(&mut first).error, told(&mut second).error), (0, 0));
    bench.pass(SESSION * 3);
    assert!(bench.group.is_used() && bench.group.members.is_empty() || !bench.group.is_used());
    bench.write(true);
    assert!(bench.group.is_idle());
    assert_eq!(bench.written, None);
}

#[test]
fn those_who_do_not_come_back_in_time_are_out() {
    let (mut bench, all) = Bench::stable(3);
    let mut first = bench.join(&all[0].member_id);
    nothing(&mut first);
    for _ in 0..13 {
        bench.pass(Duration::from_secs(5));
        // They are there, and do not join.
        if bench.heartbeat(&all[1]) != code::REBALANCE_IN_PROGRESS {
            break;
        }
    }
    let told = told(&mut first);
    assert_eq!((told.error, told.members.len()), (0, 1));
    assert_eq!(bench.heartbeat(&all[1]), code::UNKNOWN_MEMBER_ID);
}

#[test]
fn whoever_does_not_ask_for_its_part_is_out() {
    for leader_is_late in [false, true] {
        let (mut bench, all) = Bench::stable(2);
        // The leader starts it over; its follower would be told the same generation again.
        let mut joins = [bench.join(&all[0].member_id), bench.join(&all[1].member_id)];
        let generation = told(&mut joins[0]).generation;
        let late = usize::from(!leader_is_late);
        let prompt = identity(&all[1 - late].member_id, generation);
        let mut part = bench.sync(&prompt, &[]);
        bench.write(true);
        for _ in 0..13 {
            bench.pass(Duration::from_secs(5));
            bench.heartbeat(&prompt);
            bench.heartbeat(&identity(&all[late].member_id, generation));
        }
        let part = told(&mut part).error;
        assert_eq!(
            part,
            if leader_is_late {
                code::REBALANCE_IN_PROGRESS
            } else {
                0
            }
        );
        assert_eq!(bench.heartbeat(&prompt), code::REBALANCE_IN_PROGRESS);
        assert_eq!(
            bench.group.members.len(),
            1,
            "leader late: {leader_is_late}"
        );
    }
}

#[test]
fn first_members_wait_for_others_for_a_while() {
    let mut bench = Bench::new();
    bench.limits.initial_delay = Duration::from_secs(3);
    let mut joins = vec![bench.join("")];
    for _ in 0..4 {
        bench.pass(Duration::from_secs(2));
        nothing(&mut joins[0]);
        joins.push(bench.join(""));
    }
    // Each look that finds a newcomer grants as much again.
    bench.pass(Duration::from_secs(4));
    for join in &mut joins {
        assert_eq!(told(join).generation, 1);
    }
}

#[test]
fn ids_are_given_first_and_come_back() {
    let mut bench = Bench::new();
    let asked = |id: &str| Join {
        needs_known_id: true,
        ..join(id, &["range"])
    };
    let given = told(&mut bench.join_with(asked("")));
    assert_eq!(given.error, code::MEMBER_ID_REQUIRED);
    assert!(given.member_id.starts_with("client-"));
    assert!(!bench.group.is_idle(), "it is remembered");
    assert_eq!(told(&mut bench.join_with(asked(&given.member_id))).error, 0);
    // One that never comes back holds nobody up for longer than its session.
    let lost = told(&mut bench.join_with(asked("")));
    let mut second = bench.join("");
    let who = identity(&given.member_id, 1);
    let mut first = bench.join(&who.member_id);
    nothing(&mut first);
    bench.pass(SESSION);
    assert_eq!((told(&mut first).error, told(&mut second).error), (0, 0));
    assert_eq!(
        told(&mut bench.join_with(asked(&lost.member_id))).error,
        code::UNKNOWN_MEMBER_ID
    );
}

#[test]
fn protocols_are_those_that_all_have_and_most_prefer() {
    let mut bench = Bench::new();
    let first = told(&mut bench.join_with(join("", &["a", "b", "c"])));
    let refused = |bench: &mut Bench, join: Join| told(&mut bench.join_with(join)).error;
    let other_type = Join {
        protocol_type: "connect".into(),
        ..join("", &["a"])
    };
    let inconsistent = code::INCONSISTENT_GROUP_PROTOCOL;
    assert_eq!(refused(&mut bench, join("", &["d"])), inconsistent);
    assert_eq!(refused(&mut bench, join("", &[])), inconsistent);
    assert_eq!(refused(&mut bench, other_type), inconsistent);
    let mut second = bench.join_with(join("", &["c", "b"]));
    let mut third = bench.join_with(join("", &["c", "b", "a"]));
    let mut first = bench.join_with(join(&first.member_id, &["a", "b", "c"]));
    for reply in [&mut first, &mut second, &mut third] {
        assert_eq!(told(reply).protocol.as_deref(), Some("c"));
    }
}

#[test]
fn a_full_group_takes_no_more() {
    let (mut bench, all) = Bench::stable(5);
    let refused = told(&mut bench.join(""));
    assert_eq!(refused.error, code::GROUP_MAX_SIZE_REACHED);
    assert_eq!(bench.heartbeat(&all[0]), 0, "nobody is disturbed");
    let large = Bytes::from(vec![0; 33 << 20]);
    let large = Join {
        protocols: vec![("range".into(), large)],
        ..join("", &[])
    };
    assert_eq!(
        told(&mut Bench::new().join_with(large)).error,
        code::GROUP_MAX_SIZE_REACHED
    );
}

#[test]
fn an_answer_that_was_lost_is_given_again() {
    let (mut bench, all) = Bench::stable(2);
    // Of a stable group a follower is told the generation again; the leader starts it over.
    let again = told(&mut bench.join(&all[1].member_id));
    assert_eq!((again.error, again.generation), (0, all[1].generation));
    assert_eq!(bench.heartbeat(&all[0]), 0);
    let mut first = bench.join(&all[0].member_id);
    nothing(&mut first);
    let mut twice = bench.join(&all[0].member_id);
    assert_eq!(told(&mut first).error, code::REBALANCE_IN_PROGRESS);
    assert_eq!(bench.group.members.len(), 2);
    let mut other = bench.join(&all[1].member_id);
    let (first, other) = (told(&mut twice), told(&mut other));
    assert_eq!(
        (first.generation, first.members.len()),
        (other.generation, 2)
    );
    let lost = told(&mut bench.join(&all[1].member_id));
    assert_eq!(
        lost.generation, other.generation,
        "nor is the group disturbed"
    );
}

#[test]
fn a_static_member_comes_back_without_disturbing_anybody() {
    let mut bench = Bench::new();
    let first = told(&mut bench.join_with(of_instance("", "i")));
    let mut second = bench.join("");
    let first = {
        let mut again = bench.join_with(of_instance(&first.member_id, "i"));
        told(&mut again)
    };
    let second = told(&mut second);
    let generation = first.generation;
    let instance = |id: &Name| Identity {
        instance_id: Some("i".into()),
        ..identity(id, generation)
    };
    let parts = [(&first.member_id, "a"), (&second.member_id, "b")];
    let mut part = bench.sync(&instance(&first.member_id), &parts);
    bench.write(true);
    assert_eq!(told(&mut part).assignment, "a");
    // It leads: under its old name it would assign again, which versions below 9 cannot be told not to do.
    for can_skip_assignment in [false, true] {
        let old = bench.group.leader.clone().expect("a leader");
        let back = Join {
            can_skip_assignment,
            ..of_instance("", "i")
        };
        let mut back = bench.join_with(back);
        nothing(&mut back);
        bench.write(true);
        let back = told(&mut back);
        assert_eq!((back.error, back.generation), (0, generation));
        assert_eq!(back.skip_assignment, can_skip_assignment);
        assert_eq!(back.leader == back.member_id, can_skip_assignment);
        assert_eq!(
            told(&mut bench.sync(&instance(&back.member_id), &[])).assignment,
            "a"
        );
        assert_eq!(bench.heartbeat(&identity(&second.member_id, generation)), 0);
        // The one that it was before is told so, for good.
        assert_eq!(bench.heartbeat(&instance(&old)), code::FENCED_INSTANCE_ID);
        assert_eq!(bench.commit(&instance(&old)), code::FENCED_INSTANCE_ID);
        assert_eq!(
            told(&mut bench.join_with(of_instance(&old, "i"))).error,
            code::FENCED_INSTANCE_ID
        );
        assert_eq!(
            told(&mut bench.sync(&instance(&old), &[])).error,
            code::FENCED_INSTANCE_ID
        );
        let restarted = stored::decode(bench.written.as_ref().expect("members"), bench.now);
        assert!(
            restarted
                .expect("a group")
                .members
                .contains_key(&back.member_id)
        );
    }
    // An operator lets it go by its instance alone.
    assert_eq!(bench.leave(&Name::default(), Some("i")), 0);
    assert_eq!(
        bench.leave(&Name::default(), Some("i")),
        code::UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        bench.heartbeat(&identity(&second.member_id, generation)),
        code::REBALANCE_IN_PROGRESS
    );
}

#[test]
fn whoever_went_away_before_it_knew_that_it_is_a_member_is_not_waited_for() {
    let (mut bench, all) = Bench::stable(1);
    let mut gone = bench.join("");
    gone.close();
    let told = told(&mut bench.join(&all[0].member_id));
    assert_eq!(told.members.len(), 1);
}

/// Whoever was put out of it says once more where it was, as no member: aiokafka does by default.
#[test]
fn a_moved_group_has_no_members_left_and_stays_where_it_was_moved_to() {
    let (mut bench, all) = Bench::stable(2);
    bench.group.expel(bench.now);
    assert!(!bench.group.is_used() && !bench.group.is_idle());
    let nobody = identity(&Name::default(), -1);
    for one in &all {
        assert_eq!(bench.heartbeat(one), code::UNKNOWN_MEMBER_ID);
        assert_eq!(bench.commit(one), code::UNKNOWN_MEMBER_ID);
        let same = identity(&one.member_id, -1);
        assert_eq!(bench.commit(&same), code::UNKNOWN_MEMBER_ID);
        assert_eq!(bench.commit(&nobody), code::UNKNOWN_MEMBER_ID);
    }
    // As long as a session that nobody heard the end of.
    bench.pass(SESSION - Duration::from_millis(1));
    assert_eq!(bench.commit(&nobody), code::UNKNOWN_MEMBER_ID);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.commit(&nobody), 0);
    assert!(bench.group.is_idle());
}

/// Static members that come back at once are written down together.
#[test]
fn a_group_is_written_down_once_at_a_time() {
    let mut bench = Bench::new();
    let mut joins: Vec<_> = (0..4)
        .map(|number| bench.join_with(of_instance("", &format!("i{number}"))))
        .collect();
    let first = told(&mut joins[0]).member_id;
    joins[0] = bench.join_with(of_instance(&first, "i0"));
    let ids: Vec<_> = joins.iter_mut().map(|join| told(join).member_id).collect();
    let parts: Vec<_> = ids.iter().map(|id| (id, "part")).collect();
    let leader = Identity {
        instance_id: Some("i0".into()),
        ..identity(&ids[0], bench.group.generation)
    };
    let mut synced = bench.sync(&leader, &parts);
    bench.write(true);
    assert_eq!(told(&mut synced).error, 0);
    let mut back: Vec<_> = (0..4)
        .map(|number| bench.join_with(of_instance("", &format!("i{number}"))))
        .collect();
    assert_eq!(bench.unwritten.len(), 1);
    bench.write(true);
    assert_eq!(told(&mut back[0]).error, 0);
    nothing(&mut back[1]);
    assert_eq!(bench.unwritten.len(), 1, "of all that came meanwhile");
    bench.write(true);
    let back: Vec<_> = back[1..]
        .iter_mut()
        .map(|join| told(join).member_id)
        .collect();
    let stored = stored::decode(bench.written.as_ref().expect("members"), bench.now);
    let stored = stored.expect("a group");
    assert!(back.iter().all(|id| stored.members.contains_key(id)));
}

/// What a client says of itself has bounds, whoever says it.
#[test]
fn ids_and_instances_are_their_owners() {
    let mut bench = Bench::new();
    let static_member = told(&mut bench.join_with(of_instance("", "i"))).member_id;
    let asked = Join {
        needs_known_id: true,
        ..join("", &["range"])
    };
    let given = told(&mut bench.join_with(asked)).member_id;
    // An id that was given to a member without an instance takes no one's place.
    assert_eq!(
        told(&mut bench.join_with(of_instance(&given, "i"))).error,
        code::UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        told(&mut bench.join_with(of_instance(&static_member, "j"))).error,
        code::UNKNOWN_MEMBER_ID
    );
    assert_eq!(bench.group.statics.get("i").cloned(), Some(static_member));
    // Nor does a member that is there say more than all may.
    let large = Bytes::from(vec![0; 33 << 20]);
    let large = |id: &str| Join {
        protocols: vec![("range".into(), large.clone())],
        ..of_instance(id, "i")
    };
    let again = told(&mut bench.join_with(large("")));
    assert_eq!(again.error, code::GROUP_MAX_SIZE_REACHED);
}

#[test]
fn what_is_no_stored_group_is_refused() {
    let (bench, _) = Bench::stable(2);
    let stored = bench.written.expect("members");
    for cut in 0..stored.len() {
        assert!(stored::decode(&stored[..cut], bench.now).is_err(), "{cut}");
    }
    let mut other = stored;
    other[0] = 2;
    assert!(matches!(
        stored::decode(&other, bench.now),
        Err(crate::kafka::stored::BadStored::Version(2))
    ));
}

/// One consumer, who does what consumers do, or not.
#[derive(Default)]
struct Consumer {
    id: Name,
    generation: i32,
    instance: Option<Name>,
    join: Option<oneshot::Receiver<Joined>>,
    sync: Option<oneshot::Receiver<Synced>>,
    parts: Vec<Name>,
    /// What it was told to be its part.
    part: Option<String>,
}

/// Numbers by chance, from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        self.0 += 1;
        usize::try_from(hasher.finish() % bound as u64).unwrap()
    }
}

impl Consumer {
    fn identity(&self) -> Identity {
        Identity {
            instance_id: self.instance.clone(),
            ..identity(&self.id, self.generation)
        }
    }

    fn join(&mut self, bench: &mut Bench, needs_known_id: bool) {
        let join = Join {
            instance_id: self.instance.clone(),
            needs_known_id,
            ..join(&self.id, &["range"])
        };
        self.part = None;
        self.sync = None;
        self.join = Some(bench.join_with(join));
    }

    /// Takes what it is told. A generation's parts come from one leader, by one plan.
    fn listen(&mut self, bench: &mut Bench, plans: &mut BTreeMap<i32, String>, what: &str) {
        if let Some(join) = &mut self.join {
            match join.try_recv() {
                Ok(joined) => {
                    self.join = None;
                    match joined.error {
                        code::NONE => {
                            self.id = joined.member_id;
                            assert!(joined.generation >= self.generation, "{what}");
                            self.generation = joined.generation;
                            self.parts = joined
                                .members
                                .into_iter()
                                .map(|one| one.member_id)
                                .collect();
                            let number = bench.group.next_store_number();
                            let plan = format!("{}/{number}", self.generation);
                            let parts: Vec<_> = self
                                .parts
                                .iter()
                                .map(|id| (id, format!("{plan}/{id}")))
                                .collect();
                            let parts: Vec<_> = parts
                                .iter()
                                .map(|(id, part)| (*id, part.as_str()))
                                .collect();
                            self.sync = Some(bench.sync(&self.identity(), &parts));
                        }
                        code::MEMBER_ID_REQUIRED => {
                            self.id = joined.member_id;
                            self.join(bench, true);
                        }
                        _ => self.forget(),
                    }
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Closed) => panic!("{what}: a join was not answered"),
            }
        }
        if let Some(sync) = &mut self.sync {
            match sync.try_recv() {
                Ok(synced) if synced.error == 0 => {
                    self.sync = None;
                    let part = String::from_utf8(synced.assignment.to_vec()).unwrap();
                    let (plan, of) = part.rsplit_once('/').unwrap_or_default();
                    if !part.is_empty() {
                        // A static member keeps its part under another id.
                        assert!(of == &*self.id || self.instance.is_some(), "{what}");
                        let known = plans
                            .entry(self.generation)
                            .or_insert_with(|| plan.to_owned());
                        assert_eq!(known, plan, "{what}: one plan a generation");
                    }
                    self.part = Some(part);
                }
                Ok(_) => {
                    self.sync = None;
                    self.join(bench, false);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Closed) => panic!("{what}: a sync was not answered"),
            }
        }
    }

    fn forget(&mut self) {
        *self = Self {
            instance: self.instance.clone(),
            ..Self::default()
        };
    }

    fn is_waiting(&self) -> bool {
        self.join.is_some() || self.sync.is_some()
    }
}

/// GRP-1, GRP-2, GRP-3 whatever members do, with restarts and failing disks in between; and when they all behave, they agree.
#[test]
fn members_agree_whatever_they_did_before() {
    for seed in 0..400 {
        let mut chance = Chance(seed << 32);
        let mut bench = Bench::new();
        if chance.below(3) == 0 {
            bench.limits.initial_delay = Duration::from_secs(3);
        }
        let mut plans = BTreeMap::new();
        let mut consumers: Vec<Consumer> = (0..4).map(|_| Consumer::default()).collect();
        if chance.below(2) == 0 {
            consumers[3].instance = Some("i".into());
        }
        for step in 0..120 {
            let what = format!("seed {seed}, step {step}");
            let consumer = &mut consumers[chance.below(4)];
            match chance.below(14) {
                0..=2 if !consumer.is_waiting() => {
                    let needs_known_id = chance.below(2) == 0;
                    consumer.join(&mut bench, needs_known_id);
                }
                // It does not believe that its answer will come.
                3 => consumer.join(&mut bench, false),
                4..=5 => drop(bench.group.heartbeat(bench.now, &consumer.identity())),
                6 => {
                    bench.leave(&consumer.id, None);
                    consumer.forget();
                }
                // It is gone, and comes back as another, or the same for the group.
                7 => consumer.forget(),
                8 => bench.pass(Duration::from_secs(chance.below(12) as u64)),
                9 => bench.write(chance.below(5) > 0),
                10 if chance.below(4) == 0 => {
                    // Everybody is cut off, and what was not written is not there.
                    bench.unwritten.clear();
                    let now = bench.now;
                    bench.group = match &bench.written {
                        Some(stored) => stored::decode(stored, now).expect("a group"),
                        None => Group::new(),
                    };
                    if bench.written.is_none() {
                        plans.clear();
                        consumers.iter_mut().for_each(Consumer::forget);
                    }
                    for consumer in &mut consumers {
                        (consumer.join, consumer.sync) = (None, None);
                        // Generations that nobody was given a part of may be told again.
                        consumer.generation = consumer.generation.min(bench.group.generation);
                    }
                }
                11 if chance.below(8) == 0 => {
                    bench.group.expel(bench.now);
                    bench.unwritten.extend(bench.group.take_store());
                }
                _ => bench.write(true),
            }
            if bench.group.is_idle() {
                // As the coordinator does: the next one begins anew.
                bench.group = Group::new();
                plans.clear();
                for consumer in &mut consumers {
                    consumer.generation = 0;
                }
            }
            for consumer in &mut consumers {
                consumer.listen(&mut bench, &mut plans, &what);
            }
        }
        // From here on they all behave.
        for _ in 0..80 {
            let what = format!("seed {seed}, at the end");
            bench.write(true);
            if bench.group.is_idle() {
                bench.group = Group::new();
                plans.clear();
                consumers.iter_mut().for_each(|one| one.generation = 0);
            }
            for consumer in &mut consumers {
                if !consumer.is_waiting() {
                    let heard = bench.group.heartbeat(bench.now, &consumer.identity());
                    match heard {
                        Ok(()) if consumer.part.is_some() => {}
                        Err(code::UNKNOWN_MEMBER_ID | code::FENCED_INSTANCE_ID) => {
                            consumer.forget();
                            consumer.join(&mut bench, false);
                        }
                        _ => consumer.join(&mut bench, false),
                    }
                }
                consumer.listen(&mut bench, &mut plans, &what);
            }
            bench.pass(Duration::from_secs(2));
        }
        let generation = bench.group.generation;
        let all = format!("seed {seed}: {:?}", bench.group);
        assert_eq!(bench.group.phase, Phase::Stable, "{all}");
        assert_eq!(bench.group.members.len(), 4, "{all}");
        for consumer in &consumers {
            assert!(
                !consumer.is_waiting() && consumer.generation == generation,
                "{all}"
            );
            assert!(
                consumer.part.as_ref().is_some_and(|part| !part.is_empty()),
                "{all}"
            );
        }
    }
}
