//! Groups with members: who is in, who gets what, and when that is over (docs/KAFKA_GROUPS.md).
//!
//! Each group is a state machine ([`classic`] or [`consumer`]) under a lock of its own, which nobody holds while waiting. What it wants
//! written down goes to the log's journal of groups under that lock, and so do offsets that its members commit: the journal
//! has them in the order in which they were allowed.
//!
//! - **GRP-4**: no commit of a generation is applied after one of a later generation.

mod classic;
mod consumer;
mod described;
mod group;
mod identity;
mod writing;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use basalt_columnar::TieredLog;
use basalt_log::{Change, Log, Pending, TopicId};
use basalt_proto::{GroupName, TopicName};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::error::{Failure, code};
use crate::ShutdownSignal;
use crate::config::GroupLimits;
pub(super) use classic::{Join, Joined, Sync, Synced};
use consumer::Topics;
pub(super) use consumer::{
    Assignor, Beat, Described as DescribedConsumers, Partitions, Pattern, Told,
};
pub(super) use described::{Described, Listed};
use group::Group;
pub(super) use identity::{Identity, Name};

/// Groups that have members, or are about to, at a time.
const MAX_GROUPS: usize = 100_000;
/// How members of a group agree.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Classic,
    Consumer,
}

/// What a group is made as when there is none, and it does not matter.
const ANY: Option<Protocol> = Some(Protocol::Classic);

/// Between two looks at which groups nobody uses, at most.
const EXPIRY_PAUSE: Duration = Duration::from_secs(600);
/// What the members of all groups may say of themselves in all, about.
const MAX_BYTES: usize = 256 << 20;

/// All groups that have members.
#[derive(Debug)]
pub(crate) struct Coordinator {
    groups: Mutex<HashMap<GroupName, Arc<Slot>>>,
    /// What all members said of themselves.
    bytes: AtomicUsize,
    log: Arc<TieredLog>,
    limits: GroupLimits,
}

#[derive(Debug)]
struct Slot {
    name: GroupName,
    held: Mutex<Held>,
    /// Its share of [`Coordinator::bytes`].
    bytes: AtomicUsize,
    /// Something is due earlier than was planned.
    earlier: Notify,
}

/// A group and what the coordinator knows of it beside what it is.
#[derive(Debug)]
struct Held {
    group: Group,
    /// Nobody finds it any more: look again.
    is_dead: bool,
    /// When it is looked at next, if that is planned.
    timed_until: Option<Instant>,
}

impl Slot {
    fn new(name: GroupName, group: Group) -> Arc<Self> {
        let held = Held {
            group,
            is_dead: false,
            timed_until: None,
        };
        Arc::new(Self {
            name,
            held: Mutex::new(held),
            bytes: AtomicUsize::new(0),
            earlier: Notify::new(),
        })
    }
}

impl Coordinator {
    /// Groups as they were stored: their members go on as if nothing had been. To be called within a runtime.
    pub(crate) fn new(log: Arc<TieredLog>, limits: GroupLimits) -> Arc<Self> {
        let now = Instant::now();
        let mut groups = HashMap::new();
        for (name, members) in log.log().groups().members() {
            match Group::decode(&members, now, limits.consumer_session) {
                Ok(group) => drop(groups.insert(name.clone(), Slot::new(name, group))),
                // Members that are not known join again, and committed offsets are not in it.
                Err(failure) => {
                    error!(group = %name, %failure, "the members of a group cannot be read: they have to join again");
                }
            }
        }
        let coordinator = Arc::new(Self {
            groups: Mutex::new(groups),
            bytes: AtomicUsize::new(0),
            log,
            limits,
        });
        // Their sessions are watched from here on; those of others from when they join.
        for slot in coordinator.slots() {
            coordinator.settle(&slot, slot.held.lock());
        }
        coordinator
    }

    fn slots(&self) -> Vec<Arc<Slot>> {
        self.groups.lock().values().cloned().collect()
    }

    /// Does `work` with a group that has members, or is made for it; `None` when there is none.
    fn with<T>(
        self: &Arc<Self>,
        name: &GroupName,
        make: Option<Protocol>,
        work: impl FnOnce(&mut Group, Instant) -> T,
    ) -> Option<T> {
        loop {
            let slot = {
                let mut groups = self.groups.lock();
                match (groups.get(name), make) {
                    (Some(slot), _) => Arc::clone(slot),
                    (None, Some(protocol)) if groups.len() < MAX_GROUPS => {
                        let slot = Slot::new(name.clone(), self.new_group(protocol));
                        groups.insert(name.clone(), Arc::clone(&slot));
                        slot
                    }
                    (None, _) => return None,
                }
            };
            let mut held = slot.held.lock();
            if held.is_dead {
                continue;
            }
            let done = work(&mut held.group, Instant::now());
            self.settle(&slot, held);
            return Some(done);
        }
    }

    /// Sees to what a group left to be done: what it wants written down, its end, and when it is looked at next.
    fn settle(self: &Arc<Self>, slot: &Arc<Slot>, mut held: MutexGuard<'_, Held>) {
        if let Some(store) = held.group.take_store() {
            let change = Change::Members(store.members);
            let pending = self.log.log().groups().begin(&slot.name, change);
            let (coordinator, slot) = (Arc::clone(self), Arc::clone(slot));
            tokio::spawn(async move {
                let stored = pending.durable().await;
                if let Err(failure) = &stored {
                    warn!(group = %slot.name, %failure, "the members of a group could not be stored");
                }
                let mut held = slot.held.lock();
                let is_stored = stored.is_ok();
                held.group.stored(Instant::now(), store.number, is_stored);
                coordinator.settle(&slot, held);
            });
        }
        let bytes = held.group.bytes();
        let before = slot.bytes.swap(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        if held.group.is_idle() {
            held.is_dead = true;
            self.groups.lock().remove(&slot.name);
            slot.earlier.notify_one();
            return;
        }
        let Some(deadline) = held.group.deadline() else {
            return;
        };
        match held.timed_until {
            None => {
                held.timed_until = Some(deadline);
                tokio::spawn(keep_time(Arc::downgrade(self), Arc::clone(slot)));
            }
            Some(planned) if deadline < planned => {
                held.timed_until = Some(deadline);
                slot.earlier.notify_one();
            }
            Some(_) => {}
        }
    }

    fn new_group(&self, protocol: Protocol) -> Group {
        match protocol {
            Protocol::Classic => Group::Classic(classic::Group::new()),
            Protocol::Consumer => {
                Group::Consumer(consumer::Group::new(self.limits.consumer_session))
            }
        }
    }

    pub(super) fn join(
        self: &Arc<Self>,
        name: &GroupName,
        join: Join,
    ) -> oneshot::Receiver<Joined> {
        let (reply, joined) = oneshot::channel();
        let refuse = |reply: oneshot::Sender<Joined>, error, id: Name| {
            drop(reply.send(Joined::refused(error, id)));
        };
        let id = join.member_id.clone();
        if !(self.limits.min_session..=self.limits.max_session).contains(&join.session) {
            refuse(reply, code::INVALID_SESSION_TIMEOUT, id);
            return joined;
        }
        // Members that are known go on.
        if id.is_empty() && self.bytes.load(Ordering::Relaxed) > MAX_BYTES {
            refuse(reply, code::COORDINATOR_NOT_AVAILABLE, id);
            return joined;
        }
        let limits = classic::Limits {
            max_members: self.limits.max_members,
            initial_delay: self.limits.initial_rebalance_delay,
        };
        let makes = id.is_empty().then_some(Protocol::Classic);
        let mut reply = Some(reply);
        let done = self.with(name, makes, |group, now| {
            let group = group.classic()?;
            if let Some(reply) = reply.take() {
                group.join(now, join, &limits, reply);
            }
            Ok(())
        });
        if let Some(reply) = reply {
            let error = match (done, makes) {
                (Some(Err(error)), _) => error,
                (_, Some(_)) => code::COORDINATOR_NOT_AVAILABLE,
                (_, None) => code::UNKNOWN_MEMBER_ID,
            };
            refuse(reply, error, id);
        }
        joined
    }

    pub(super) fn sync(
        self: &Arc<Self>,
        name: &GroupName,
        sync: Sync,
    ) -> oneshot::Receiver<Synced> {
        let (reply, synced) = oneshot::channel();
        let bytes = sync.assignments.iter().map(|(_, part)| part.len());
        let bytes = bytes.sum::<usize>();
        let mut reply = Some(reply);
        let mut error = code::UNKNOWN_MEMBER_ID;
        if bytes > 0 && self.bytes.load(Ordering::Relaxed) + bytes > MAX_BYTES {
            error = code::COORDINATOR_NOT_AVAILABLE;
        } else {
            self.with(name, None, |group, now| {
                // A group of the other protocol has no such member.
                if let Ok(group) = group.classic()
                    && let Some(reply) = reply.take()
                {
                    group.sync(now, sync, reply);
                }
            });
        }
        if let Some(reply) = reply {
            drop(reply.send(Synced::refused(error)));
        }
        synced
    }

    pub(super) fn heartbeat(&self, name: &GroupName, who: &Identity) -> Result<(), i16> {
        let slot = self.groups.lock().get(name).cloned();
        let slot = slot.ok_or(code::UNKNOWN_MEMBER_ID)?;
        // It only makes something due later, which is found out when it would have been due.
        match &mut slot.held.lock().group {
            Group::Classic(group) => group.heartbeat(Instant::now(), who),
            Group::Consumer(_) => Err(code::UNKNOWN_MEMBER_ID),
        }
    }

    /// A member of a group of the consumer protocol says that it is there, and what it wants and has.
    pub(super) fn beat(self: &Arc<Self>, name: &GroupName, beat: &Beat) -> oneshot::Receiver<Told> {
        let (reply, beaten) = oneshot::channel();
        let joins = beat.epoch == 0;
        let refused = |code, message: &str| Err(Failure::new(code, message));
        let bytes = beat.wants_bytes();
        let is_full = self.bytes.load(Ordering::Relaxed) + bytes > MAX_BYTES;
        if is_full && (joins || bytes > 0) {
            let message = "the members of all groups say too much of themselves";
            drop(reply.send(refused(code::COORDINATOR_NOT_AVAILABLE, message)));
            return beaten;
        }
        let limits = consumer::Limits {
            max_members: self.limits.max_members,
            session: self.limits.consumer_session,
        };
        let mut reply = Some(reply);
        let makes = joins.then_some(Protocol::Consumer);
        let done = self.with(name, makes, |group, now| {
            let group = group.consumer()?;
            if let Some(reply) = reply.take() {
                group.heartbeat(now, beat, &limits, &**self.log.log(), reply);
            }
            Ok(())
        });
        if let Some(reply) = reply {
            let error = match (done, makes) {
                (Some(Err(code::GROUP_ID_NOT_FOUND)), _) => refused(
                    code::GROUP_ID_NOT_FOUND,
                    "the group has members of the classic protocol (group.protocol=classic)",
                ),
                (Some(Err(error)), _) => refused(
                    error,
                    "the group is about to change its protocol: try again",
                ),
                (_, Some(_)) => refused(code::COORDINATOR_NOT_AVAILABLE, "too many groups"),
                (_, None) => refused(
                    code::UNKNOWN_MEMBER_ID,
                    "the group has no members: it has to be joined again",
                ),
            };
            drop(reply.send(error));
        }
        beaten
    }

    /// Whether it is a member, at that epoch, if the group has epochs; any other may ask where the group is.
    pub(super) fn may_ask(&self, name: &GroupName, who: &Identity) -> Result<(), i16> {
        if who.member_id.is_empty() && who.generation < 0 {
            return Ok(());
        }
        let slot = self.groups.lock().get(name).cloned();
        match slot.map(|slot| match &slot.held.lock().group {
            Group::Classic(_) => Ok(()),
            Group::Consumer(group) => group.is_of_epoch(who),
        }) {
            Some(may) => may,
            None => Ok(()),
        }
    }

    /// Lets members go, each by its id and instance; what becomes of each.
    pub(super) fn leave(
        self: &Arc<Self>,
        name: &GroupName,
        members: &[(Name, Option<Name>)],
    ) -> Vec<Result<(), i16>> {
        let left = self.with(name, None, |group, now| {
            let members = members.iter();
            let left = members.map(|(id, instance)| group.leave(now, id, instance.as_ref()));
            left.collect()
        });
        left.unwrap_or_else(|| vec![Err(code::UNKNOWN_MEMBER_ID); members.len()])
    }

    /// Begins a change under the group's lock, so that nobody joins or commits between `may` and its place in the order.
    fn begin_if(
        self: &Arc<Self>,
        name: &GroupName,
        make: Option<Protocol>,
        may: impl FnOnce(&mut Group, Instant) -> Result<(), i16>,
        changes: Vec<Change>,
    ) -> Option<Result<Pending, i16>> {
        self.with(name, make, |group, now| {
            may(group, now)?;
            Ok(self.log.log().groups().begin_all(name, changes))
        })
    }

    /// Commits for one who may; the change has its place in the order. [`code::GROUP_ID_NOT_FOUND`] where nobody is a member.
    pub(super) fn commit(
        self: &Arc<Self>,
        name: &GroupName,
        who: &Identity,
        change: Option<Change>,
    ) -> Result<Option<Pending>, i16> {
        let make = ANY.filter(|_| who.generation < 0);
        let Some(change) = change else {
            return self.check(name, who, false).map(|()| None);
        };
        let may = |group: &mut Group, now| group.may_commit(now, who, false);
        let begun = self.begin_if(name, make, may, vec![change]);
        let refused = match make {
            Some(_) => code::COORDINATOR_NOT_AVAILABLE,
            None => code::GROUP_ID_NOT_FOUND,
        };
        begun.unwrap_or(Err(refused)).map(Some)
    }

    /// As [`Self::commit`]: whether it may, with a transaction or without.
    pub(super) fn check(
        self: &Arc<Self>,
        name: &GroupName,
        who: &Identity,
        with_transaction: bool,
    ) -> Result<(), i16> {
        let make = ANY.filter(|_| who.generation < 0);
        let may = |group: &mut Group, now| group.may_commit(now, who, with_transaction);
        let may = self.with(name, make, may);
        may.unwrap_or(Err(code::GROUP_ID_NOT_FOUND))
    }

    /// Moves a group, in one step: whoever is a member has to join again, and finds the new offsets. `None` when there are too many
    /// groups.
    pub(crate) fn seek(self: &Arc<Self>, name: &GroupName, change: Change) -> Option<Pending> {
        let expel = |group: &mut Group, now| {
            group.expel(now);
            Ok(())
        };
        let changes = vec![Change::Members(None), change];
        self.begin_if(name, ANY, expel, changes)?.ok()
    }

    /// Forgets a group that has no members.
    pub(super) fn delete(self: &Arc<Self>, name: &GroupName) -> Result<Pending, i16> {
        let groups = self.log.log().groups();
        let may = |group: &mut Group, _| match group.is_used() {
            true => Err(code::NON_EMPTY_GROUP),
            false if groups.contains(name) => Ok(()),
            false => Err(code::GROUP_ID_NOT_FOUND),
        };
        let deleted = self.begin_if(name, ANY, may, vec![Change::Delete]);
        deleted.unwrap_or(Err(code::COORDINATOR_NOT_AVAILABLE))
    }

    /// Forgets offsets of a group without members; what there is to know if it has some, or is not there.
    pub(super) fn forget(
        self: &Arc<Self>,
        name: &GroupName,
        change: Change,
    ) -> Result<Pending, Described> {
        let groups = self.log.log().groups();
        let mut found = Described::dead();
        let may = |group: &mut Group, _| match group.is_used() {
            true => {
                found = Described::of(group);
                Err(code::NON_EMPTY_GROUP)
            }
            false if groups.contains(name) => Ok(()),
            false => Err(code::GROUP_ID_NOT_FOUND),
        };
        let begun = self.begin_if(name, ANY, may, vec![change]);
        begun.and_then(Result::ok).ok_or(found)
    }

    /// Forgets groups that nobody has used for longer than is configured, from time to time.
    pub(crate) async fn expire(self: &Arc<Self>, shutdown: &ShutdownSignal) {
        let Some(retention) = self.limits.retention else {
            return;
        };
        let pause = (retention / 10).clamp(Duration::from_millis(100), EXPIRY_PAUSE);
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(pause) => {}
            }
            for (name, change) in self.log.log().groups().idle_for(retention) {
                let may = |group: &mut Group, _| match group.is_used() {
                    true => Err(code::NON_EMPTY_GROUP),
                    false => Ok(()),
                };
                let Some(Ok(pending)) = self.begin_if(&name, ANY, may, vec![change]) else {
                    continue;
                };
                match pending.durable().await {
                    Ok(()) => info!(group = %name, "a group that nobody used is forgotten"),
                    Err(failure) => warn!(group = %name, %failure, "a group was not forgotten"),
                }
            }
        }
    }

    pub(super) fn describe(&self, name: &GroupName) -> Described {
        let slot = self.groups.lock().get(name).cloned();
        if let Some(slot) = slot {
            let held = slot.held.lock();
            let consumers = match &held.group {
                group if !group.is_used() => None,
                Group::Classic(_) => return Described::of(&held.group),
                Group::Consumer(group) => Some(group.describe()),
            };
            drop(held);
            if let Some(consumers) = consumers {
                let topics = self.log.log().topics().into_iter();
                let names = topics.map(|topic| (topic.id(), topic.name().clone()));
                return Described::of_consumers(consumers, &names.collect());
            }
        }
        match self.log.log().groups().contains(name) {
            true => Described::empty(),
            false => Described::dead(),
        }
    }

    /// A group of the consumer protocol that has members.
    pub(super) fn describe_consumers(&self, name: &GroupName) -> Option<DescribedConsumers> {
        let slot = self.groups.lock().get(name).cloned()?;
        let held = slot.held.lock();
        match &held.group {
            Group::Consumer(group) if group.is_used() => Some(group.describe()),
            _ => None,
        }
    }

    /// All groups, those without members too, by name.
    pub(super) fn list(&self) -> Vec<(GroupName, Listed)> {
        let names = self.log.log().groups().names().into_iter();
        let mut all: BTreeMap<_, _> = names.map(|name| (name, Listed::empty())).collect();
        for slot in self.slots() {
            let held = slot.held.lock();
            if held.group.is_used() {
                all.insert(slot.name.clone(), Listed::of(&held.group));
            }
        }
        all.into_iter().collect()
    }
}

impl Topics for Log {
    fn version(&self) -> u64 {
        self.topics_version()
    }

    fn find(&self, name: &str) -> Option<(TopicId, u32)> {
        let topic = self.topic(&TopicName::new(name).ok()?)?;
        Some((topic.id(), topic.partition_count()))
    }

    fn each(&self, with: &mut dyn FnMut(&str, TopicId, u32)) {
        for topic in self.topics() {
            with(topic.name().as_str(), topic.id(), topic.partition_count());
        }
    }
}

/// Looks at a group when something is due, until nothing can be.
async fn keep_time(coordinator: Weak<Coordinator>, slot: Arc<Slot>) {
    loop {
        let until = {
            let mut held = slot.held.lock();
            match held.timed_until {
                Some(until) if !held.is_dead => until,
                _ => {
                    held.timed_until = None;
                    return;
                }
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = slot.earlier.notified() => continue,
        }
        let Some(coordinator) = coordinator.upgrade() else {
            return;
        };
        let mut held = slot.held.lock();
        if held.is_dead {
            return;
        }
        held.group.tick(Instant::now());
        held.timed_until = held.group.deadline();
        let is_over = held.timed_until.is_none();
        coordinator.settle(&slot, held);
        if is_over {
            return;
        }
    }
}
