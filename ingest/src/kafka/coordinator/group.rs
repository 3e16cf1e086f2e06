//! One group's way to agreement: the classic protocol as Kafka's own `GroupCoordinator` (3.9) has it, without a socket, a
//! disk or a clock.
//!
//! Members join; when all have, one of them leads, and all are told the new generation. The leader says who gets what, which is
//! written down before anybody is told. Whatever changes who is in, or what somebody says of itself, starts it over.
//!
//! - **GRP-1**: every request is answered once.
//! - **GRP-2**: a generation has one assignment, and whoever is told its part is a member of that generation.
//! - **GRP-3**: generations never fall while there are members; after a crash, none that anybody had a part of is given again.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::member::{
    Identity, Join, Joined, JoinedMember, Member, Name, Reply, Sync, Synced, answer, protocol_bytes,
};
use crate::kafka::error::code;

/// How long one that was never told that it is a member waits at most.
const NEW_MEMBER_WAIT: Duration = Duration::from_secs(300);
/// What all members of a group may say of themselves in all.
const MAX_METADATA_BYTES: usize = 32 << 20;
/// What a member takes beside what it says, about: its names are short.
const MEMBER_BYTES: usize = 2048;
/// The first generation after a start is so much above what was stored: some may have been told and never written down.
const GENERATIONS_AFTER_START: i32 = 1000;

/// What bounds groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_members: usize,
    pub(super) initial_delay: Duration,
}

/// Where a group is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no member.
    Empty,
    /// Members join: until all have, or until the time is over.
    Joining {
        until: Instant,
        first: Option<First>,
    },
    /// All know the generation, and wait for the leader to say who gets what.
    Assigning {
        /// What the leader said is being written down, as the store of that number.
        store: Option<u64>,
    },
    /// All have, or can have, their part.
    Stable,
}

/// The first members of a group: more are waited for, each for a while, but not for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct First {
    latest: Instant,
    delay: Duration,
    has_newcomer: bool,
}

/// Something to be written down: the members, or that there are none.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) number: u64,
    pub(super) members: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) phase: Phase,
    pub(super) generation: i32,
    pub(super) next_generation: i32,
    pub(super) protocol_type: Option<Name>,
    pub(super) protocol: Option<Name>,
    pub(super) leader: Option<Name>,
    pub(super) members: BTreeMap<Name, Member>,
    pub(super) statics: HashMap<Name, Name>,
    /// Ids that were given to be come back with, and until when.
    pending: HashMap<Name, Instant>,
    /// Until then every member of the generation has to ask for its part.
    sync_until: Option<Instant>,
    next_order: u64,
    /// How often it was to be written down, and up to which of these it was.
    wanted: u64,
    written: u64,
    /// The one that is under way. There is one at a time, of the group as it is then.
    storing: Option<u64>,
    /// It was moved: whoever was put out of it may still believe to be where it was, and commits nothing until then.
    moved_until: Option<Instant>,
    /// Static members that came back; they are told once it is written down who they are now.
    returning: Vec<(u64, Reply<Joined>, Joined)>,
    /// Nobody finds it any more: look again.
    pub(super) is_dead: bool,
    /// When it is looked at next, if that is planned.
    pub(super) timed_until: Option<Instant>,
}

impl Group {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Empty,
            generation: 0,
            next_generation: 1,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            statics: HashMap::new(),
            pending: HashMap::new(),
            sync_until: None,
            next_order: 0,
            wanted: 0,
            written: 0,
            storing: None,
            moved_until: None,
            returning: Vec::new(),
            is_dead: false,
            timed_until: None,
        }
    }

    /// What a start finds: a stable group, whose members may be heard of again.
    pub(super) fn restored(
        now: Instant,
        generation: i32,
        protocol_type: Name,
        protocol: Name,
        leader: Option<Name>,
        members: BTreeMap<Name, Member>,
    ) -> Self {
        let statics = members.iter();
        let statics = statics.filter_map(|(id, one)| Some((one.instance_id.clone()?, id.clone())));
        let mut group = Self {
            phase: Phase::Stable,
            generation,
            next_generation: after(generation, GENERATIONS_AFTER_START),
            protocol_type: Some(protocol_type),
            protocol: Some(protocol),
            leader,
            statics: statics.collect(),
            next_order: members.len() as u64,
            members,
            ..Self::new()
        };
        group
            .members
            .values_mut()
            .for_each(|member| member.touch(now));
        group
    }

    /// Bytes that its members said, and are told, and about what they take beside that.
    pub(super) fn bytes(&self) -> usize {
        let members = self.members.values();
        let said = members.map(|member| member.metadata_bytes() + member.assignment.len());
        said.sum::<usize>() + (self.members.len() + self.pending.len()) * MEMBER_BYTES
    }

    #[cfg(test)]
    pub(super) const fn next_store_number(&self) -> u64 {
        self.wanted
    }

    /// Whether nothing is left of it but what is stored of it elsewhere.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_used()
            && self.storing.is_none()
            && self.written == self.wanted
            && self.moved_until.is_none()
    }

    /// Whether it has members, or some that are about to be.
    pub(super) fn is_used(&self) -> bool {
        self.phase != Phase::Empty || !self.pending.is_empty()
    }

    /// What is to be written down now; [`Self::stored`] is to be called then.
    pub(super) fn take_store(&mut self) -> Option<Store> {
        if self.storing.is_some() || self.written == self.wanted {
            return None;
        }
        let members = match self.phase {
            Phase::Empty => None,
            Phase::Stable | Phase::Assigning { store: Some(_) } => {
                Some(super::stored::encode(self))
            }
            // Its next generation will be.
            Phase::Joining { .. } | Phase::Assigning { store: None } => return None,
        };
        self.storing = Some(self.wanted);
        Some(Store {
            number: self.wanted,
            members,
        })
    }

    fn store(&mut self) -> u64 {
        self.wanted += 1;
        self.wanted
    }

    /// A store has succeeded or failed.
    pub(super) fn stored(&mut self, now: Instant, number: u64, is_stored: bool) {
        self.storing = None;
        self.written = number;
        let returning = std::mem::take(&mut self.returning);
        for (waits_for, reply, joined) in returning {
            if waits_for > number {
                self.returning.push((waits_for, reply, joined));
                continue;
            }
            // Another may have taken its place meanwhile.
            let Some(member) = self.members.get_mut(&joined.member_id) else {
                let refused = Joined::refused(code::UNKNOWN_MEMBER_ID, joined.member_id);
                answer(Some(reply), refused);
                continue;
            };
            member.touch(now);
            member.is_new = false;
            match is_stored {
                true => answer(Some(reply), joined),
                false => {
                    let refused =
                        Joined::refused(code::COORDINATOR_NOT_AVAILABLE, joined.member_id);
                    answer(Some(reply), refused);
                }
            }
        }
        let Phase::Assigning { store: Some(due) } = self.phase else {
            return;
        };
        if due > number {
            return;
        }
        if is_stored {
            self.phase = Phase::Stable;
            let (protocol_type, protocol) = (self.protocol_type.clone(), self.protocol.clone());
            for member in self.members.values_mut().filter(|one| one.sync.is_some()) {
                member.has_part = true;
                member.touch(now);
                let part = Synced {
                    error: code::NONE,
                    protocol_type: protocol_type.clone(),
                    protocol: protocol.clone(),
                    assignment: member.assignment.clone(),
                };
                answer(member.sync.take(), part);
            }
        } else {
            self.refuse_syncs(now, code::COORDINATOR_NOT_AVAILABLE);
            self.prepare(now, None);
        }
    }

    /// A member joins, or joins again.
    pub(super) fn join(&mut self, now: Instant, join: Join, limits: &Limits, reply: Reply<Joined>) {
        let refuse =
            |reply, error, id: &Name| answer(Some(reply), Joined::refused(error, id.clone()));
        let id = join.member_id.clone();
        if !self.accepts(&join) {
            return refuse(reply, code::INCONSISTENT_GROUP_PROTOCOL, &id);
        }
        let instance = join.instance_id.as_ref();
        let known = instance
            .and_then(|instance| self.statics.get(instance))
            .cloned();
        if id.is_empty() {
            if let Some(old) = known {
                if self.is_too_large_with(Some(&old), &join) {
                    return refuse(reply, code::GROUP_MAX_SIZE_REACHED, &id);
                }
                return self.replace(now, &old, join, reply);
            }
            let is_waiting_list_full = self.pending.len() >= limits.max_members;
            if is_waiting_list_full || self.is_full(&join, limits) {
                return refuse(reply, code::GROUP_MAX_SIZE_REACHED, &id);
            }
            let new = new_id(join.instance_id.as_ref().unwrap_or(&join.client_id));
            if join.needs_known_id && join.instance_id.is_none() {
                self.pending.insert(new.clone(), now + join.session);
                return refuse(reply, code::MEMBER_ID_REQUIRED, &new);
            }
            return self.add(now, new, join, limits, reply);
        }
        if self.pending.remove(&id).is_some() {
            let error = match join.instance_id {
                // Such an id is for members without one.
                Some(_) => code::UNKNOWN_MEMBER_ID,
                None if self.is_full(&join, limits) => code::GROUP_MAX_SIZE_REACHED,
                None => return self.add(now, id, join, limits, reply),
            };
            refuse(reply, error, &id);
            // Perhaps it was the one that was waited for.
            return self.after_removal(now);
        }
        match (&join.instance_id, known) {
            (Some(_), Some(known)) if known != id => {
                return refuse(reply, code::FENCED_INSTANCE_ID, &id);
            }
            (Some(_), None) => return refuse(reply, code::UNKNOWN_MEMBER_ID, &id),
            _ => {}
        }
        if self.is_too_large_with(Some(&id), &join) {
            return refuse(reply, code::GROUP_MAX_SIZE_REACHED, &id);
        }
        let Some(member) = self.members.get_mut(&id) else {
            return refuse(reply, code::UNKNOWN_MEMBER_ID, &id);
        };
        if !member.is_new {
            member.touch(now);
        }
        let is_same = member.protocols == join.protocols;
        let is_leader = self.leader.as_ref() == Some(&id);
        match self.phase {
            // Its answer was lost.
            Phase::Assigning { .. } if is_same => answer(Some(reply), self.joined(&id)),
            Phase::Stable if is_same && !is_leader => answer(Some(reply), self.joined(&id)),
            _ => {
                member.update(join);
                // One that asks again has lost its first answer, or will not read it.
                let former = member.join.replace(reply);
                answer(former, Joined::refused(code::REBALANCE_IN_PROGRESS, id));
                self.prepare(now, None);
            }
        }
    }

    /// Whether it can be a member beside the others.
    fn accepts(&self, join: &Join) -> bool {
        if join.protocols.is_empty() || join.protocol_type.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        let has_place = |id: &Name, member: &Member| {
            *id == join.member_id
                || (join.member_id.is_empty()
                    && join.instance_id.is_some()
                    && member.instance_id == join.instance_id)
        };
        let others = self
            .members
            .iter()
            .filter(|(id, member)| !has_place(id, member));
        let shared = |name: &Name| others.clone().all(|(_, member)| member.supports(name));
        let is_type = self.protocol_type.as_ref() == Some(&join.protocol_type);
        (is_type || others.clone().next().is_none())
            && join.protocols.iter().any(|(name, _)| shared(name))
    }

    fn is_full(&self, join: &Join, limits: &Limits) -> bool {
        self.members.len() >= limits.max_members || self.is_too_large_with(None, join)
    }

    /// Whether members would say too much of themselves, if that one said this instead of what it did.
    fn is_too_large_with(&self, id: Option<&Name>, join: &Join) -> bool {
        let others = self.members.iter().filter(|(other, _)| Some(*other) != id);
        let others = others.map(|(_, member)| member.metadata_bytes());
        others.sum::<usize>() + protocol_bytes(&join.protocols) > MAX_METADATA_BYTES
    }

    fn add(&mut self, now: Instant, id: Name, join: Join, limits: &Limits, reply: Reply<Joined>) {
        if let Some(instance) = &join.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type.clone());
        }
        let mut member = Member::new(now, join, self.next_order);
        self.next_order += 1;
        member.expires = now + NEW_MEMBER_WAIT;
        member.join = Some(reply);
        self.members.insert(id, member);
        if let Phase::Joining {
            first: Some(first), ..
        } = &mut self.phase
        {
            first.has_newcomer = true;
        }
        self.prepare(now, Some(limits));
    }

    /// A static member is back, and has no memory of its id.
    fn replace(&mut self, now: Instant, old: &Name, join: Join, reply: Reply<Joined>) {
        let id = new_id(join.instance_id.as_ref().unwrap_or(&join.client_id));
        let Some(mut member) = self.members.remove(old) else {
            return answer(Some(reply), Joined::refused(code::UNKNOWN_MEMBER_ID, id));
        };
        let fenced = Joined::refused(code::FENCED_INSTANCE_ID, old.clone());
        answer(member.join.take(), fenced);
        answer(
            member.sync.take(),
            Synced::refused(code::FENCED_INSTANCE_ID),
        );
        if let Some(instance) = &join.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        let can_skip_assignment = join.can_skip_assignment;
        member.update(join);
        member.touch(now);
        let was_leader = self.leader.as_ref() == Some(old);
        if was_leader {
            self.leader = Some(id.clone());
        }
        self.members.insert(id.clone(), member);
        if self.phase == Phase::Stable && self.chosen_protocol() == self.protocol {
            // Nothing changes but its id. It need not sync again, and a leader assigns nothing.
            let mut joined = self.joined(&id);
            if was_leader && can_skip_assignment {
                joined.skip_assignment = true;
            } else if was_leader {
                // Under its old name somebody else leads, so that it only asks for its part.
                joined.leader = old.clone();
                joined.members.clear();
            }
            let number = self.store();
            self.returning.push((number, reply, joined));
            return;
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.join = Some(reply);
        }
        self.prepare(now, None);
    }

    /// What a member of this generation is told.
    fn joined(&self, id: &Name) -> Joined {
        let is_leader = self.leader.as_ref() == Some(id);
        let protocol = self.protocol.clone().unwrap_or_default();
        let members = self.members.iter().filter(|_| is_leader);
        let members = members.map(|(id, member)| JoinedMember {
            member_id: id.clone(),
            instance_id: member.instance_id.clone(),
            metadata: member.metadata(&protocol),
        });
        Joined {
            error: code::NONE,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: id.clone(),
            skip_assignment: false,
            members: members.collect(),
        }
    }

    /// Starts over, or goes on with it: completes it if nobody is missing. Only newcomers make an empty group wait for more.
    fn prepare(&mut self, now: Instant, limits: Option<&Limits>) {
        if !matches!(self.phase, Phase::Joining { .. }) {
            let longest = self.longest_rebalance();
            let initial = limits.filter(|_| self.phase == Phase::Empty);
            self.refuse_syncs(now, code::REBALANCE_IN_PROGRESS);
            self.sync_until = None;
            for (_, reply, joined) in std::mem::take(&mut self.returning) {
                if let Some(member) = self.members.get_mut(&joined.member_id) {
                    let former = member.join.replace(reply);
                    let refused = Joined::refused(code::REBALANCE_IN_PROGRESS, joined.member_id);
                    answer(former, refused);
                }
            }
            self.phase = match initial {
                Some(limits) if !limits.initial_delay.is_zero() => Phase::Joining {
                    until: now + limits.initial_delay.min(longest),
                    first: Some(First {
                        latest: now + longest,
                        delay: limits.initial_delay,
                        has_newcomer: false,
                    }),
                },
                _ => Phase::Joining {
                    until: now + longest,
                    first: None,
                },
            };
        }
        let Phase::Joining { first: None, .. } = self.phase else {
            return;
        };
        let all_wait = self.members.values().all(|member| member.join.is_some());
        if all_wait && self.pending.is_empty() {
            self.complete(now);
        }
    }

    fn longest_rebalance(&self) -> Duration {
        let members = self.members.values().map(|member| member.rebalance);
        members.max().unwrap_or_default()
    }

    fn refuse_syncs(&mut self, now: Instant, error: i16) {
        for member in self.members.values_mut().filter(|one| one.sync.is_some()) {
            member.touch(now);
            answer(member.sync.take(), Synced::refused(error));
        }
    }

    /// The joining is over: whoever did not come is out, but for static members; the rest are told the new generation.
    fn complete(&mut self, now: Instant) {
        let missing = |member: &Member| {
            member.is_gone() || (member.join.is_none() && member.instance_id.is_none())
        };
        self.remove_all(|_, member| missing(member));
        if self.members.is_empty() {
            return self.empty();
        }
        let longest = self.longest_rebalance();
        let waiting = |group: &Self, id: &Name| {
            let member = group.members.get(id);
            member.is_some_and(|member| member.join.is_some())
        };
        let leader = self
            .leader
            .take()
            .filter(|id| waiting(self, id))
            .or_else(|| {
                let waiting = self
                    .members
                    .iter()
                    .filter(|(_, member)| member.join.is_some());
                let first = waiting.min_by_key(|(_, member)| member.order);
                first.map(|(id, _)| id.clone())
            });
        let Some(leader) = leader else {
            // Static members alone, none of which came: their sessions decide.
            self.phase = Phase::Joining {
                until: now + longest,
                first: None,
            };
            return;
        };
        self.leader = Some(leader);
        self.generation = self.next_generation;
        self.next_generation = after(self.generation, 1);
        self.protocol = self.chosen_protocol();
        self.phase = Phase::Assigning { store: None };
        self.sync_until = Some(now + longest);
        let ids: Vec<_> = self.members.keys().cloned().collect();
        for id in ids {
            let joined = self.joined(&id);
            if let Some(member) = self.members.get_mut(&id) {
                member.has_part = false;
                member.assignment = Bytes::new();
                if let Some(reply) = member.join.take() {
                    member.is_new = false;
                    member.touch(now);
                    answer(Some(reply), joined);
                }
            }
        }
    }

    /// The protocol that most members would choose among those that all have.
    fn chosen_protocol(&self) -> Option<Name> {
        let all_have = |name: &str| self.members.values().all(|member| member.supports(name));
        let choice_of = |member: &Member| {
            let mut names = member.protocols.iter().map(|(name, _)| name);
            names.find(|name| all_have(name)).cloned()
        };
        let mut votes = BTreeMap::<Name, usize>::new();
        for name in self.members.values().filter_map(choice_of) {
            *votes.entry(name).or_default() += 1;
        }
        let most = votes.values().max().copied()?;
        let leader = self.leader.as_ref().and_then(|id| self.members.get(id));
        let of_leader = leader.into_iter().flat_map(|leader| &leader.protocols);
        // Where two have as many votes, the leader's order decides.
        let mut by_leader = of_leader.map(|(name, _)| name);
        let chosen = by_leader
            .find(|name| votes.get(*name) == Some(&most))
            .cloned();
        chosen.or_else(|| {
            votes
                .into_iter()
                .find(|(_, count)| *count == most)
                .map(|(name, _)| name)
        })
    }

    fn empty(&mut self) {
        self.clear();
        self.store();
    }

    fn clear(&mut self) {
        self.phase = Phase::Empty;
        self.generation = self.next_generation;
        self.next_generation = after(self.generation, 1);
        self.leader = None;
        self.protocol = None;
        self.protocol_type = None;
        self.sync_until = None;
    }

    /// A member asks for its part; the leader brings everybody's.
    pub(super) fn sync(&mut self, now: Instant, sync: Sync, reply: Reply<Synced>) {
        let refuse = |reply, error| answer(Some(reply), Synced::refused(error));
        if let Err(error) = self.member_of_generation(&sync.who) {
            return refuse(reply, error);
        }
        let differs = |said: &Option<Name>, is: &Option<Name>| said.is_some() && said != is;
        if differs(&sync.protocol_type, &self.protocol_type)
            || differs(&sync.protocol, &self.protocol)
        {
            return refuse(reply, code::INCONSISTENT_GROUP_PROTOCOL);
        }
        let id = sync.who.member_id;
        let Some(member) = self.members.get_mut(&id) else {
            return refuse(reply, code::UNKNOWN_MEMBER_ID);
        };
        member.touch(now);
        match self.phase {
            Phase::Empty => refuse(reply, code::UNKNOWN_MEMBER_ID),
            Phase::Joining { .. } => refuse(reply, code::REBALANCE_IN_PROGRESS),
            Phase::Stable => {
                member.has_part = true;
                let part = Synced {
                    error: code::NONE,
                    protocol_type: self.protocol_type.clone(),
                    protocol: self.protocol.clone(),
                    assignment: member.assignment.clone(),
                };
                answer(Some(reply), part);
            }
            Phase::Assigning { store } => {
                let former = member.sync.replace(reply);
                answer(former, Synced::refused(code::REBALANCE_IN_PROGRESS));
                if self.leader.as_ref() == Some(&id) && store.is_none() {
                    let bytes = sync.assignments.iter().map(|(_, part)| part.len());
                    if bytes.sum::<usize>() > MAX_METADATA_BYTES {
                        return answer(member.sync.take(), Synced::refused(code::UNKNOWN));
                    }
                    // Parts of those who are no members fall away; members without one have an empty one.
                    for (of, part) in sync.assignments {
                        if let Some(member) = self.members.get_mut(&of) {
                            member.assignment = part;
                        }
                    }
                    let number = self.store();
                    self.phase = Phase::Assigning {
                        store: Some(number),
                    };
                }
            }
        }
    }

    /// Whether it is a member, under its own name, of this generation.
    fn member_of_generation(&self, who: &Identity) -> Result<(), i16> {
        self.member(&who.member_id, who.instance_id.as_ref())?;
        if who.generation != self.generation {
            return Err(code::ILLEGAL_GENERATION);
        }
        Ok(())
    }

    fn member(&self, id: &Name, instance: Option<&Name>) -> Result<(), i16> {
        if let Some(instance) = instance {
            match self.statics.get(instance) {
                Some(known) if known == id => {}
                Some(_) => return Err(code::FENCED_INSTANCE_ID),
                None => return Err(code::UNKNOWN_MEMBER_ID),
            }
        }
        match self.members.contains_key(id) {
            true => Ok(()),
            false => Err(code::UNKNOWN_MEMBER_ID),
        }
    }

    /// A member is there.
    pub(super) fn heartbeat(&mut self, now: Instant, who: &Identity) -> Result<(), i16> {
        self.member_of_generation(who)?;
        self.touch(now, &who.member_id);
        match self.phase {
            Phase::Empty => Err(code::UNKNOWN_MEMBER_ID),
            Phase::Joining { .. } => Err(code::REBALANCE_IN_PROGRESS),
            Phase::Assigning { .. } | Phase::Stable => Ok(()),
        }
    }

    fn touch(&mut self, now: Instant, id: &Name) {
        if let Some(member) = self.members.get_mut(id) {
            member.touch(now);
        }
    }

    /// A member goes, or an operator lets a static one go, by its instance alone.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        id: &Name,
        instance: Option<&Name>,
    ) -> Result<(), i16> {
        let id = match instance {
            Some(instance) => {
                let known = self.statics.get(instance).ok_or(code::UNKNOWN_MEMBER_ID)?;
                if !id.is_empty() && known != id {
                    return Err(code::FENCED_INSTANCE_ID);
                }
                known.clone()
            }
            None => id.clone(),
        };
        if self.pending.remove(&id).is_some() {
            if matches!(self.phase, Phase::Joining { .. }) {
                self.prepare(now, None);
            }
            return Ok(());
        }
        if !self.members.contains_key(&id) {
            return Err(code::UNKNOWN_MEMBER_ID);
        }
        self.remove_all(|of, _| *of == id);
        self.after_removal(now);
        Ok(())
    }

    /// All members are out, and have to come back as new ones: what they believe of their positions is void. Some commit it once more
    /// as if they were no members, when they learn that. It is for the caller to write down that there are none.
    pub(super) fn expel(&mut self, now: Instant) {
        let sessions = self.members.values().map(|member| member.session);
        let Some(longest) = sessions.max() else {
            return;
        };
        self.remove_all(|_, _| true);
        self.clear();
        self.moved_until = Some(now + longest);
    }

    /// Forgets members, and answers them if they wait.
    fn remove_all(&mut self, goes: impl Fn(&Name, &Member) -> bool) {
        let going = self.members.iter().filter(|(id, member)| goes(id, member));
        let going: Vec<_> = going.map(|(id, _)| id.clone()).collect();
        for id in going {
            let Some(mut member) = self.members.remove(&id) else {
                continue;
            };
            let unknown = code::UNKNOWN_MEMBER_ID;
            answer(member.sync.take(), Synced::refused(unknown));
            if let Some(instance) = &member.instance_id
                && self.statics.get(instance) == Some(&id)
            {
                self.statics.remove(instance);
            }
            if self.leader.as_ref() == Some(&id) {
                self.leader = None;
            }
            answer(member.join.take(), Joined::refused(unknown, id));
        }
    }

    fn after_removal(&mut self, now: Instant) {
        match self.phase {
            Phase::Empty => {}
            // Even the initial wait is over when nobody is left to be waited with.
            _ if self.members.is_empty() && self.pending.is_empty() => {
                self.refuse_syncs(now, code::REBALANCE_IN_PROGRESS);
                self.empty();
            }
            _ => self.prepare(now, None),
        }
    }

    /// Whether an offset may be committed by whoever says so.
    pub(super) fn may_commit(
        &mut self,
        now: Instant,
        who: &Identity,
        with_transaction: bool,
    ) -> Result<(), i16> {
        if who.generation < 0 && self.members.is_empty() {
            if self.moved_until.is_some_and(|until| now < until) {
                return Err(code::UNKNOWN_MEMBER_ID);
            }
            // Whoever assigns partitions to itself; it may call itself whatever it likes.
            return Ok(());
        }
        if who.generation >= 0 || !who.member_id.is_empty() || who.instance_id.is_some() {
            self.member_of_generation(who)?;
        } else {
            return Err(code::UNKNOWN_MEMBER_ID);
        }
        self.touch(now, &who.member_id);
        match self.phase {
            // What is committed with a transaction is fenced by that, and clients take this code for fatal there.
            Phase::Assigning { .. } if !with_transaction => Err(code::REBALANCE_IN_PROGRESS),
            Phase::Empty => Err(code::UNKNOWN_MEMBER_ID),
            // In a rebalance too: members give up what they have, and say how far they came.
            Phase::Joining { .. } | Phase::Assigning { .. } | Phase::Stable => Ok(()),
        }
    }

    /// When something is due, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let sessions = self.members.values().filter(|member| !member.waits());
        let sessions = sessions.map(|member| member.expires);
        let joining = match self.phase {
            Phase::Joining { until, .. } => Some(until),
            _ => None,
        };
        let sync = self.sync_until;
        let sync = sync.filter(|_| self.members.values().any(Member::is_late));
        let pending = self.pending.values().copied();
        let moved = self.moved_until;
        sessions
            .chain(joining)
            .chain(sync)
            .chain(pending)
            .chain(moved)
            .min()
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant) {
        let mut has_removed = false;
        self.moved_until = self.moved_until.filter(|until| *until > now);
        let before = self.pending.len();
        self.pending.retain(|_, until| *until > now);
        has_removed |= self.pending.len() < before;
        let before = self.members.len();
        self.remove_all(|_, member| !member.waits() && member.expires <= now);
        if self.sync_until.is_some_and(|until| until <= now) {
            self.sync_until = None;
            self.remove_all(|_, member| member.is_late());
        }
        let members_went = self.members.len() < before;
        has_removed |= members_went;
        if has_removed && (members_went || matches!(self.phase, Phase::Joining { .. })) {
            self.after_removal(now);
        }
        let Phase::Joining { until, first } = &mut self.phase else {
            return;
        };
        if *until > now {
            return;
        }
        if let Some(first) = first
            && first.has_newcomer
            && now < first.latest
        {
            first.has_newcomer = false;
            *until = first.latest.min(now + first.delay);
            return;
        }
        self.complete(now);
    }
}

impl Member {
    fn new(now: Instant, join: Join, order: u64) -> Self {
        let mut member = Self {
            instance_id: join.instance_id.clone(),
            client_id: Name::default(),
            client_host: Name::default(),
            session: join.session,
            rebalance: join.rebalance,
            protocols: Vec::new(),
            assignment: Bytes::new(),
            order,
            is_new: true,
            has_part: false,
            expires: now,
            join: None,
            sync: None,
        };
        member.update(join);
        member
    }

    /// What it says of itself now.
    fn update(&mut self, join: Join) {
        self.client_id = join.client_id;
        self.client_host = join.client_host;
        self.session = join.session;
        self.rebalance = join.rebalance;
        self.protocols = join.protocols;
    }
}

/// The generation that is so many after another; they begin at 1 again behind the last.
const fn after(generation: i32, count: i32) -> i32 {
    match generation.checked_add(count) {
        Some(next) => next,
        None => 1,
    }
}

/// A member's id, which nobody ever had: a server that was restarted knows nobody by chance.
fn new_id(of: &Name) -> Name {
    let mut random = [0_u64; 2];
    for word in &mut random {
        use std::hash::{BuildHasher as _, Hasher as _, RandomState};
        *word = RandomState::new().build_hasher().finish();
    }
    let [a, b] = random;
    format!("{of}-{a:016x}{b:016x}").into()
}
