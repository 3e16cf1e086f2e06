//! Groups with members: who is in, who gets what, and when that is over (docs/KAFKA_GROUPS.md).
//!
//! Each group is a state machine ([`group`]) under a lock of its own, which nobody holds while waiting. What it wants
//! written down goes to the log's journal of groups under that lock, and so do offsets that its members commit: the journal
//! has them in the order in which they were allowed.
//!
//! - **GRP-4**: no commit of a generation is applied after one of a later generation.

mod group;
mod member;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use basalt_columnar::TieredLog;
use basalt_log::{Change, Pending};
use basalt_proto::GroupName;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::error::code;
use crate::ShutdownSignal;
use crate::config::GroupLimits;
use group::{Group, Limits, Phase};
pub(super) use member::{Identity, Join, Joined, Name, Sync, Synced};

/// Groups that have members, or are about to, at a time.
const MAX_GROUPS: usize = 100_000;
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
    group: Mutex<Group>,
    /// Its share of [`Coordinator::bytes`].
    bytes: AtomicUsize,
    /// Something is due earlier than was planned.
    earlier: Notify,
}

impl Slot {
    fn new(name: GroupName, group: Group) -> Arc<Self> {
        Arc::new(Self {
            name,
            group: Mutex::new(group),
            bytes: AtomicUsize::new(0),
            earlier: Notify::new(),
        })
    }
}

/// A group as it is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    /// In Kafka's words.
    pub(super) state: &'static str,
    pub(super) protocol_type: Name,
    pub(super) protocol: Name,
    pub(super) members: Vec<DescribedMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DescribedMember {
    pub(super) member_id: Name,
    pub(super) instance_id: Option<Name>,
    pub(super) client_id: Name,
    pub(super) client_host: Name,
    pub(super) metadata: bytes::Bytes,
    pub(super) assignment: bytes::Bytes,
}

impl Described {
    /// Of a group that has committed offsets and no members.
    pub(super) fn empty() -> Self {
        Self::without_members("Empty")
    }

    /// Of a group that does not exist.
    pub(super) fn dead() -> Self {
        Self::without_members("Dead")
    }

    fn without_members(state: &'static str) -> Self {
        Self {
            state,
            protocol_type: Name::default(),
            protocol: Name::default(),
            members: Vec::new(),
        }
    }

    fn of(group: &Group) -> Self {
        let protocol = group.protocol.clone().unwrap_or_default();
        // What is not agreed on is not told.
        let is_stable = group.phase == Phase::Stable;
        let members = group.members.iter().map(|(id, member)| {
            let (metadata, assignment) = match is_stable {
                true => (member.metadata(&protocol), member.assignment.clone()),
                false => Default::default(),
            };
            DescribedMember {
                member_id: id.clone(),
                instance_id: member.instance_id.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                metadata,
                assignment,
            }
        });
        let members = members.collect();
        Self {
            state: state_name(group.phase),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            protocol: match is_stable {
                true => protocol,
                false => Name::default(),
            },
            members,
        }
    }
}

const fn state_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Empty => "Empty",
        Phase::Joining { .. } => "PreparingRebalance",
        Phase::Assigning { .. } => "CompletingRebalance",
        Phase::Stable => "Stable",
    }
}

impl Coordinator {
    /// Groups as they were stored: their members go on as if nothing had been. To be called within a runtime.
    pub(crate) fn new(log: Arc<TieredLog>, limits: GroupLimits) -> Arc<Self> {
        let now = Instant::now();
        let mut groups = HashMap::new();
        for (name, members) in log.log().groups().members() {
            match stored::decode(&members, now) {
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
            coordinator.settle(&slot, slot.group.lock());
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
        make: bool,
        work: impl FnOnce(&mut Group, Instant) -> T,
    ) -> Option<T> {
        loop {
            let slot = {
                let mut groups = self.groups.lock();
                match groups.get(name) {
                    Some(slot) => Arc::clone(slot),
                    None if !make || groups.len() >= MAX_GROUPS => return None,
                    None => {
                        let slot = Slot::new(name.clone(), Group::new());
                        groups.insert(name.clone(), Arc::clone(&slot));
                        slot
                    }
                }
            };
            let mut group = slot.group.lock();
            if group.is_dead {
                continue;
            }
            let done = work(&mut group, Instant::now());
            self.settle(&slot, group);
            return Some(done);
        }
    }

    /// Sees to what a group left to be done: what it wants written down, its end, and when it is looked at next.
    fn settle(self: &Arc<Self>, slot: &Arc<Slot>, mut group: MutexGuard<'_, Group>) {
        if let Some(store) = group.take_store() {
            let change = Change::Members(store.members);
            let pending = self.log.log().groups().begin(&slot.name, change);
            let (coordinator, slot) = (Arc::clone(self), Arc::clone(slot));
            tokio::spawn(async move {
                let stored = pending.durable().await;
                if let Err(failure) = &stored {
                    warn!(group = %slot.name, %failure, "the members of a group could not be stored");
                }
                let mut group = slot.group.lock();
                group.stored(Instant::now(), store.number, stored.is_ok());
                coordinator.settle(&slot, group);
            });
        }
        let bytes = group.bytes();
        let before = slot.bytes.swap(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        if group.is_idle() {
            group.is_dead = true;
            self.groups.lock().remove(&slot.name);
            slot.earlier.notify_one();
            return;
        }
        let Some(deadline) = group.deadline() else {
            return;
        };
        match group.timed_until {
            None => {
                group.timed_until = Some(deadline);
                tokio::spawn(keep_time(Arc::downgrade(self), Arc::clone(slot)));
            }
            Some(planned) if deadline < planned => {
                group.timed_until = Some(deadline);
                slot.earlier.notify_one();
            }
            Some(_) => {}
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
        let limits = Limits {
            max_members: self.limits.max_members,
            initial_delay: self.limits.initial_rebalance_delay,
        };
        let makes = id.is_empty();
        let mut reply = Some(reply);
        self.with(name, makes, |group, now| {
            if let Some(reply) = reply.take() {
                group.join(now, join, &limits, reply);
            }
        });
        if let Some(reply) = reply {
            let error = match makes {
                true => code::COORDINATOR_NOT_AVAILABLE,
                false => code::UNKNOWN_MEMBER_ID,
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
            self.with(name, false, |group, now| {
                if let Some(reply) = reply.take() {
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
        slot.group.lock().heartbeat(Instant::now(), who)
    }

    /// Lets members go, each by its id and instance; what becomes of each.
    pub(super) fn leave(
        self: &Arc<Self>,
        name: &GroupName,
        members: &[(Name, Option<Name>)],
    ) -> Vec<Result<(), i16>> {
        let left = self.with(name, false, |group, now| {
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
        make: bool,
        may: impl FnOnce(&mut Group, Instant) -> Result<(), i16>,
        changes: Vec<Change>,
    ) -> Option<Result<Pending, i16>> {
        self.with(name, make, |group, now| {
            may(group, now)?;
            Ok(self.log.log().groups().begin_all(name, changes))
        })
    }

    /// Commits for one who may; the change has its place in the order.
    pub(super) fn commit(
        self: &Arc<Self>,
        name: &GroupName,
        who: &Identity,
        change: Option<Change>,
    ) -> Result<Option<Pending>, i16> {
        let make = who.generation < 0;
        let Some(change) = change else {
            return self.check(name, who, false).map(|()| None);
        };
        let may = |group: &mut Group, now| group.may_commit(now, who, false);
        let begun = self.begin_if(name, make, may, vec![change]);
        let refused = match make {
            true => code::COORDINATOR_NOT_AVAILABLE,
            false => code::ILLEGAL_GENERATION,
        };
        begun.unwrap_or(Err(refused)).map(Some)
    }

    /// Whether it may commit, with a transaction or without.
    pub(super) fn check(
        self: &Arc<Self>,
        name: &GroupName,
        who: &Identity,
        with_transaction: bool,
    ) -> Result<(), i16> {
        let make = who.generation < 0;
        let may = |group: &mut Group, now| group.may_commit(now, who, with_transaction);
        let may = self.with(name, make, may);
        may.unwrap_or(Err(code::ILLEGAL_GENERATION))
    }

    /// Moves a group, in one step: whoever is a member has to join again, and finds the new offsets. `None` when there are too many
    /// groups.
    pub(crate) fn seek(self: &Arc<Self>, name: &GroupName, change: Change) -> Option<Pending> {
        let expel = |group: &mut Group, now| {
            group.expel(now);
            Ok(())
        };
        let changes = vec![Change::Members(None), change];
        self.begin_if(name, true, expel, changes)?.ok()
    }

    /// Forgets a group that has no members.
    pub(super) fn delete(self: &Arc<Self>, name: &GroupName) -> Result<Pending, i16> {
        let groups = self.log.log().groups();
        let may = |group: &mut Group, _| match group.is_used() {
            true => Err(code::NON_EMPTY_GROUP),
            false if groups.contains(name) => Ok(()),
            false => Err(code::GROUP_ID_NOT_FOUND),
        };
        let deleted = self.begin_if(name, true, may, vec![Change::Delete]);
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
        let begun = self.begin_if(name, true, may, vec![change]);
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
                let Some(Ok(pending)) = self.begin_if(&name, true, may, vec![change]) else {
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
            let group = slot.group.lock();
            if group.is_used() {
                return Described::of(&group);
            }
        }
        match self.log.log().groups().contains(name) {
            true => Described::empty(),
            false => Described::dead(),
        }
    }

    /// All groups, those without members too: name, type, state.
    pub(super) fn list(&self) -> Vec<(GroupName, Name, &'static str)> {
        let mut all: HashMap<_, _> = self
            .log
            .log()
            .groups()
            .names()
            .into_iter()
            .map(|name| (name, (Name::default(), state_name(Phase::Empty))))
            .collect();
        for slot in self.slots() {
            let group = slot.group.lock();
            if group.is_used() {
                let kind = group.protocol_type.clone().unwrap_or_default();
                all.insert(slot.name.clone(), (kind, state_name(group.phase)));
            }
        }
        let mut all: Vec<_> = all
            .into_iter()
            .map(|(name, (kind, state))| (name, kind, state))
            .collect();
        all.sort();
        all
    }
}

/// Looks at a group when something is due, until nothing can be.
async fn keep_time(coordinator: Weak<Coordinator>, slot: Arc<Slot>) {
    loop {
        let until = {
            let mut group = slot.group.lock();
            match group.timed_until {
                Some(until) if !group.is_dead => until,
                _ => {
                    group.timed_until = None;
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
        let mut group = slot.group.lock();
        if group.is_dead {
            return;
        }
        group.tick(Instant::now());
        group.timed_until = group.deadline();
        let is_over = group.timed_until.is_none();
        coordinator.settle(&slot, group);
        if is_over {
            return;
        }
    }
}
