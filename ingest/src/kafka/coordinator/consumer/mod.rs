//! A group of the consumer protocol (KIP-848) and its way to agreement, without a socket, a disk or a clock.
//!
//! Members say what they want, and the server says who is to have what: the *target assignment*, made anew at each *group epoch*, which
//! grows with whatever changes it. Each member comes to its part by itself, heartbeat by heartbeat: it gives up what is not in it
//! ([`member::State::Unrevoked`]), and gets what is in it as soon as nobody else has that
//! ([`member::State::Unreleased`]). The epoch it has come to is the member's own, and fences what it commits. The rules follow
//! Kafka's `GroupMetadataManager` (4.1).
//!
//! - **GRP-5**: a partition is one member's until that has said that it gave it up, has left, or was put out.
//! - **GRP-6**: what a member is told is written down before it is.

mod assign;
mod member;
mod reconcile;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use basalt_log::TopicId;
use tokio::time::Instant;

use super::identity::{Identity, Name, Reply, answer};
use super::writing::{Store, Writing};
use crate::kafka::error::{Failure, code};
use assign::{Assignor, Subscriber};
pub(in crate::kafka) use member::{Beat, Beaten, Told};
use member::{Member, Pattern, State};
pub(super) use stored::{VERSION, decode};

/// A partition of a topic.
pub(in crate::kafka) type Partition = (TopicId, u32);
pub(in crate::kafka) type Partitions = BTreeSet<Partition>;

/// What a member that leaves says for its epoch.
const LEAVES: i32 = -1;
/// What a static member says that leaves and will be back.
const WILL_BE_BACK: i32 = -2;
/// What all members of a group may say of themselves in all.
const MAX_METADATA_BYTES: usize = 32 << 20;

/// What bounds groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_members: usize,
    /// How long a member may be silent.
    pub(super) session: Duration,
}

/// The topics there are.
pub(super) trait Topics {
    /// Another number whenever there are others, or they have more partitions.
    fn version(&self) -> u64;
    fn find(&self, name: &str) -> Option<(TopicId, u32)>;
    /// Does something with each.
    fn each(&self, with: &mut dyn FnMut(&str, TopicId, u32));
}

/// A group as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct Described {
    pub(in crate::kafka) state: &'static str,
    pub(in crate::kafka) epoch: i32,
    pub(in crate::kafka) assignor: &'static str,
    pub(in crate::kafka) members: Vec<DescribedMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct DescribedMember {
    pub(in crate::kafka) member_id: Name,
    pub(in crate::kafka) instance_id: Option<Name>,
    pub(in crate::kafka) rack_id: Option<Name>,
    pub(in crate::kafka) client_id: Name,
    pub(in crate::kafka) client_host: Name,
    pub(in crate::kafka) epoch: i32,
    pub(in crate::kafka) names: Vec<Name>,
    pub(in crate::kafka) pattern: Option<Name>,
    pub(in crate::kafka) assigned: Partitions,
    pub(in crate::kafka) target: Partitions,
}

#[derive(Debug)]
pub(super) struct Group {
    epoch: i32,
    session: Duration,
    members: BTreeMap<Name, Member>,
    statics: HashMap<Name, Name>,
    /// Who has each partition that somebody has.
    holders: HashMap<Partition, Name>,
    /// The topics that members want and that there are, with their partitions' count.
    topics: BTreeMap<TopicId, u32>,
    /// The topics' version when they were looked up.
    topics_version: Option<u64>,
    writing: Writing,
    /// The last write failed: what members were told must be written before they are told more.
    has_failed: bool,
    /// Those who are told something once it is written down, from that write on.
    waiting: Vec<(u64, Reply<Told>, Beaten)>,
    /// It was moved: whoever was put out of it may still believe to be where it was, and commits nothing until then.
    moved_until: Option<Instant>,
}

impl Group {
    pub(super) fn new(session: Duration) -> Self {
        Self {
            epoch: 0,
            session,
            members: BTreeMap::new(),
            statics: HashMap::new(),
            holders: HashMap::new(),
            topics: BTreeMap::new(),
            topics_version: None,
            writing: Writing::default(),
            has_failed: false,
            waiting: Vec::new(),
            moved_until: None,
        }
    }

    /// A member is there, wants something else, has given something up, or leaves.
    pub(super) fn heartbeat(
        &mut self,
        now: Instant,
        beat: &Beat,
        limits: &Limits,
        topics: &dyn Topics,
        reply: Reply<Told>,
    ) {
        self.session = limits.session;
        if std::mem::take(&mut self.has_failed) {
            let number = self.writing.want();
            for member in self.members.values_mut() {
                member.changed_in = number;
            }
        }
        let told = match beat.epoch {
            LEAVES => self.leave(beat),
            WILL_BE_BACK => self.goes_away(now, beat),
            _ => self.beat(now, beat, limits, topics),
        };
        match told {
            Ok((beaten, number)) if number > self.writing.written() => {
                self.waiting.push((number, reply, beaten));
            }
            told => answer(Some(reply), told.map(|(beaten, _)| beaten)),
        }
    }

    /// What a member is told, and the write that has to be done before.
    fn beat(
        &mut self,
        now: Instant,
        beat: &Beat,
        limits: &Limits,
        topics: &dyn Topics,
    ) -> Result<(Beaten, u64), Failure> {
        let id = &beat.member_id;
        let mut changes = self.enter(now, beat, limits)?;
        let Some(member) = self.members.get_mut(id) else {
            return Err(unknown_member(id));
        };
        member.expires = now + limits.session;
        member.is_away = false;
        if self.look_up(topics) {
            changes = true;
        }
        if changes {
            self.reassign();
        }
        let changed = self.reconcile(id, beat.owned.as_ref());
        if changes || changed.is_some() {
            let number = self.writing.want();
            if let Some(member) = self.members.get_mut(id) {
                member.changed_in = number;
            }
        }
        let Some(member) = self.members.get_mut(id) else {
            return Err(unknown_member(id));
        };
        member.revoke_until = match (member.state, changed, member.revoke_until) {
            (State::Unrevoked, Some(_), _) | (State::Unrevoked, None, None) => {
                Some(now + member.rebalance)
            }
            (State::Unrevoked, None, until) => until,
            _ => None,
        };
        let is_told = beat.is_full() || changed.is_some_and(|changed| changed.assigned);
        let beaten = Beaten {
            epoch: member.epoch,
            assignment: is_told.then(|| member.assigned.clone()),
        };
        Ok((beaten, member.changed_in))
    }

    /// Lets a member in, or finds the one it is, and takes what it says; whether who is in changes by that, or what somebody wants.
    fn enter(&mut self, now: Instant, beat: &Beat, limits: &Limits) -> Result<bool, Failure> {
        let id = &beat.member_id;
        let instance = beat.instance_id.as_ref();
        let known = instance.and_then(|instance| self.statics.get(instance));
        let mut predecessor = None;
        match (known, beat.epoch) {
            (Some(known), 0) if known != id => {
                if !self.members.get(known).is_some_and(|one| one.is_away) {
                    let message = "another member has that instance id, and has not left";
                    return Err(Failure::new(code::UNRELEASED_INSTANCE_ID, message));
                }
                predecessor = Some(known.clone());
            }
            (Some(known), _) if known != id => {
                let message = "another member has that instance id now";
                return Err(Failure::new(code::FENCED_INSTANCE_ID, message));
            }
            (None, 1..) if instance.is_some() => return Err(unknown_member(id)),
            _ => {}
        }
        let subscribes = beat.names.is_some() || beat.pattern.is_some();
        if subscribes && self.bytes() + beat.bytes() > MAX_METADATA_BYTES {
            let message = "the group's members say too much of themselves";
            return Err(Failure::new(code::GROUP_MAX_SIZE_REACHED, message));
        }
        let mut patterns = self.members.values().filter_map(|one| one.pattern.as_ref());
        let pattern = patterns.find(|one| Some(&one.text) == beat.pattern.as_ref());
        let pattern = pattern.cloned();
        if let Some(former) = &predecessor {
            let taken_over = self.members.get(former).cloned();
            let Some(mut member) = taken_over.map(Member::succeeded) else {
                return Err(unknown_member(id));
            };
            let wants = member.update(beat, pattern)?;
            self.members.remove(former);
            self.holders.retain(|_, holder| holder != former);
            for part in &member.assigned {
                self.holders.insert(*part, id.clone());
            }
            self.insert(id, member);
            return Ok(wants);
        }
        if let Some(member) = self.members.get_mut(id) {
            if beat.epoch > 0 {
                may_go_on(member, beat)?;
            }
            let wants = member.update(beat, pattern)?;
            if wants {
                self.topics_version = None;
            }
            return Ok(wants);
        }
        if beat.epoch > 0 {
            return Err(unknown_member(id));
        }
        if self.members.len() >= limits.max_members {
            let message = format!("the group has {} members already", self.members.len());
            return Err(Failure::new(code::GROUP_MAX_SIZE_REACHED, message));
        }
        let mut member = Member::new(now, beat);
        member.update(beat, pattern)?;
        self.insert(id, member);
        Ok(true)
    }

    fn insert(&mut self, id: &Name, member: Member) {
        if let Some(instance) = &member.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        self.members.insert(id.clone(), member);
        self.topics_version = None;
    }

    /// Looks up which topics members want, unless that is known; whether it is something else than it was.
    fn look_up(&mut self, topics: &dyn Topics) -> bool {
        // It is asked for first: what changes after that has another.
        let version = topics.version();
        if self.topics_version == Some(version) {
            return false;
        }
        self.topics_version = Some(version);
        let mut found = BTreeMap::new();
        let mut by_name = BTreeMap::new();
        let mut by_pattern = BTreeMap::<Name, (Pattern, BTreeSet<TopicId>)>::new();
        for member in self.members.values() {
            for name in &member.names {
                by_name
                    .entry(name.clone())
                    .or_insert_with(|| topics.find(name));
            }
            if let Some(pattern) = &member.pattern {
                let text = pattern.text.clone();
                by_pattern
                    .entry(text)
                    .or_insert_with(|| (pattern.clone(), BTreeSet::new()));
            }
        }
        found.extend(by_name.values().flatten().copied());
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
        for member in self.members.values_mut() {
            let named = member.names.iter().filter_map(|name| by_name.get(name));
            let mut ids: BTreeSet<_> = named.flatten().map(|(id, _)| *id).collect();
            let pattern = member.pattern.as_ref();
            let matched = pattern.and_then(|pattern| by_pattern.get(&pattern.text));
            ids.extend(matched.iter().flat_map(|(_, ids)| ids));
            member.topics = ids;
        }
        changes
    }

    /// The next epoch, and who is to have what in it.
    fn reassign(&mut self) {
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
    fn assignor(&self) -> Assignor {
        let votes = |assignor| {
            let members = self.members.values();
            members.filter(|one| one.assignor == Some(assignor)).count()
        };
        let all = Assignor::ALL.into_iter().rev();
        all.max_by_key(|assignor| votes(*assignor))
            .unwrap_or(Assignor::Uniform)
    }

    fn leave(&mut self, beat: &Beat) -> Result<(Beaten, u64), Failure> {
        self.is_itself(beat)?;
        self.remove_all(std::slice::from_ref(&beat.member_id));
        let beaten = Beaten {
            epoch: LEAVES,
            assignment: None,
        };
        Ok((beaten, self.writing.wanted()))
    }

    /// A static member goes, and what it has stays its own for the time of its session.
    fn goes_away(&mut self, now: Instant, beat: &Beat) -> Result<(Beaten, u64), Failure> {
        self.is_itself(beat)?;
        let session = self.session;
        let member = self.members.get_mut(&beat.member_id);
        let member = member.filter(|member| member.instance_id.is_some());
        let Some(member) = member else {
            return Err(unknown_member(&beat.member_id));
        };
        member.is_away = true;
        member.expires = now + session;
        member.changed_in = self.writing.want();
        let beaten = Beaten {
            epoch: WILL_BE_BACK,
            assignment: None,
        };
        Ok((beaten, member.changed_in))
    }

    fn is_itself(&self, beat: &Beat) -> Result<(), Failure> {
        let id = &beat.member_id;
        let instance = beat.instance_id.as_ref();
        let known = instance.map(|instance| self.statics.get(instance));
        match known {
            Some(Some(known)) if known != id => {
                let message = "another member has that instance id now";
                Err(Failure::new(code::FENCED_INSTANCE_ID, message))
            }
            Some(None) => Err(unknown_member(id)),
            _ if self.members.contains_key(id) => Ok(()),
            _ => Err(unknown_member(id)),
        }
    }

    /// Puts a member out, by its id or its instance.
    pub(super) fn put_out(&mut self, id: &Name, instance: Option<&Name>) -> Result<(), i16> {
        let id = match instance {
            None => id.clone(),
            Some(instance) => {
                let known = self.statics.get(instance).ok_or(code::UNKNOWN_MEMBER_ID)?;
                if !id.is_empty() && known != id {
                    return Err(code::FENCED_INSTANCE_ID);
                }
                known.clone()
            }
        };
        if !self.members.contains_key(&id) {
            return Err(code::UNKNOWN_MEMBER_ID);
        }
        self.remove_all(&[id]);
        Ok(())
    }

    fn remove_all(&mut self, ids: &[Name]) {
        for id in ids {
            let Some(member) = self.members.remove(id) else {
                continue;
            };
            for part in member.held() {
                self.holders.remove(part);
            }
            if let Some(instance) = &member.instance_id
                && self.statics.get(instance) == Some(id)
            {
                self.statics.remove(instance);
            }
        }
        if ids.is_empty() {
            return;
        }
        // What nobody wants any more need not be looked up.
        self.topics_version = None;
        self.reassign();
        self.writing.want();
    }

    /// All members are out, and have to come back as new ones. It is for the caller to write down that there are none.
    pub(super) fn expel(&mut self, now: Instant) {
        if self.members.is_empty() {
            return;
        }
        let all: Vec<_> = self.members.keys().cloned().collect();
        self.remove_all(&all);
        self.moved_until = Some(now + self.session);
    }

    /// Whether an offset may be committed by whoever says so.
    pub(super) fn may_commit(
        &self,
        now: Instant,
        who: &Identity,
        with_transaction: bool,
    ) -> Result<(), i16> {
        if who.generation < 0 && self.members.is_empty() {
            return match self.moved_until.is_some_and(|until| now < until) {
                true => Err(code::UNKNOWN_MEMBER_ID),
                false => Ok(()),
            };
        }
        match self.is_of_epoch(who) {
            // Clients that commit with a transaction know no other code for it.
            Err(code::STALE_MEMBER_EPOCH) if with_transaction => Err(code::ILLEGAL_GENERATION),
            may => may,
        }
    }

    /// Whether it is a member of that epoch.
    pub(super) fn is_of_epoch(&self, who: &Identity) -> Result<(), i16> {
        let member = self.members.get(&who.member_id);
        let member = member.ok_or(code::UNKNOWN_MEMBER_ID)?;
        match who.generation == member.epoch {
            true => Ok(()),
            false => Err(code::STALE_MEMBER_EPOCH),
        }
    }

    /// When something is due, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let members = self.members.values();
        let due = members.flat_map(|one| std::iter::once(one.expires).chain(one.revoke_until));
        due.chain(self.moved_until).min()
    }

    /// Does what is due: puts out who was silent, or has not given up what it had to.
    pub(super) fn tick(&mut self, now: Instant) {
        self.moved_until = self.moved_until.filter(|until| *until > now);
        let is_over = |member: &Member| {
            member.expires <= now || member.revoke_until.is_some_and(|until| until <= now)
        };
        let over = self.members.iter().filter(|(_, member)| is_over(member));
        let over: Vec<_> = over.map(|(id, _)| id.clone()).collect();
        self.remove_all(&over);
    }

    /// Bytes that its members take, about.
    pub(super) fn bytes(&self) -> usize {
        self.members.values().map(Member::bytes).sum()
    }

    pub(super) fn is_used(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether nothing is left of it but what is stored of it elsewhere.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_used() && self.writing.is_settled() && self.moved_until.is_none()
    }

    /// What is to be written down now; [`Self::stored`] is to be called then.
    pub(super) fn take_store(&mut self) -> Option<Store> {
        if !self.writing.is_due() {
            return None;
        }
        let members = self.is_used().then(|| stored::encode(self));
        Some(self.writing.begin(members))
    }

    /// A write has succeeded or failed.
    pub(super) fn stored(&mut self, number: u64, is_stored: bool) {
        self.writing.end(number);
        self.has_failed |= !is_stored;
        for (due, reply, beaten) in std::mem::take(&mut self.waiting) {
            if due > number {
                self.waiting.push((due, reply, beaten));
                continue;
            }
            let told = match is_stored {
                true => Ok(beaten),
                false => Err(Failure::new(
                    code::COORDINATOR_NOT_AVAILABLE,
                    "the group could not be written down",
                )),
            };
            answer(Some(reply), told);
        }
    }

    pub(super) fn state(&self) -> &'static str {
        let is_there = |one: &Member| one.state == State::Stable && one.epoch == self.epoch;
        match self.members.values().all(is_there) {
            _ if self.members.is_empty() => "Empty",
            true => "Stable",
            false => "Reconciling",
        }
    }

    pub(super) fn describe(&self) -> Described {
        let members = self.members.iter().map(|(id, member)| DescribedMember {
            member_id: id.clone(),
            instance_id: member.instance_id.clone(),
            rack_id: member.rack_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            epoch: member.epoch,
            names: member.names.iter().cloned().collect(),
            pattern: member.pattern.as_ref().map(|pattern| pattern.text.clone()),
            assigned: member.assigned.clone(),
            target: member.target.clone(),
        });
        Described {
            state: self.state(),
            epoch: self.epoch,
            assignor: self.assignor().name(),
            members: members.collect(),
        }
    }
}

/// Whether a member that is in may go on at the epoch it says.
fn may_go_on(member: &Member, beat: &Beat) -> Result<(), Failure> {
    // It did not hear of its epoch, but of no partition either that it was to give up with it.
    let is_behind = beat.epoch == member.previous_epoch
        && (beat.owned.as_ref()).is_some_and(|owned| owned.is_subset(&member.assigned));
    match beat.epoch == member.epoch || is_behind {
        true => Ok(()),
        false => {
            let (is, said) = (member.epoch, beat.epoch);
            let message = format!("the member's epoch is {is}, not {said}: it has to join again");
            Err(Failure::new(code::FENCED_MEMBER_EPOCH, message))
        }
    }
}

fn unknown_member(id: &Name) -> Failure {
    let message = format!("the group has no member {id:?}: it has to join again");
    Failure::new(code::UNKNOWN_MEMBER_ID, message)
}
