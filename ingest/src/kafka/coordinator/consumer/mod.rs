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
mod enter;
mod member;
mod reconcile;
mod stored;
#[cfg(test)]
mod tests;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use basalt_log::TopicId;
use tokio::time::Instant;

use super::identity::{Identity, Name, Reply, answer};
use super::writing::{Store, Writing};
use crate::kafka::error::{Failure, code};
pub(in crate::kafka) use assign::Assignor;
pub(in crate::kafka) use member::{Beat, Beaten, Pattern, Told};
use member::{Member, State};
pub(super) use stored::{VERSION, decode};

/// A partition of a topic.
pub(in crate::kafka) type Partition = (TopicId, u32);
pub(in crate::kafka) type Partitions = BTreeSet<Partition>;

/// Between two tries to write down what could not be.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// What a member that leaves says for its epoch.
const LEAVES: i32 = -1;
/// What a static member says that leaves and will be back.
const WILL_BE_BACK: i32 = -2;

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
    /// Who holds each partition that somebody holds: what [`Member::held`] says of all members.
    holders: HashMap<Partition, Name>,
    /// What all members say of themselves.
    said_bytes: usize,
    /// The topics that members want and that there are, with their partitions' count.
    topics: BTreeMap<TopicId, u32>,
    /// The topics' version when they were looked up.
    topics_version: Option<u64>,
    /// Who is in, or what somebody wants, is another than at this epoch: the next heartbeat makes the next one.
    is_reassignment_due: bool,
    writing: Writing,
    /// The last write failed, and is tried again then: until that nobody is told anything.
    retry_at: Option<Instant>,
    /// Those who are told something once it is written down, from that write on.
    waiting: Vec<Waiting>,
    /// It was moved: whoever was put out of it may still believe to be where it was, and commits nothing until then.
    moved_until: Option<Instant>,
    /// Nothing is due before that.
    due: Option<Instant>,
}

/// A member that is told something once it is written down.
#[derive(Debug)]
struct Waiting {
    number: u64,
    member_id: Name,
    reply: Reply<Told>,
    beaten: Beaten,
}

impl Group {
    pub(super) fn new(session: Duration) -> Self {
        Self {
            epoch: 0,
            session,
            members: BTreeMap::new(),
            statics: HashMap::new(),
            holders: HashMap::new(),
            said_bytes: 0,
            topics: BTreeMap::new(),
            topics_version: None,
            is_reassignment_due: false,
            writing: Writing::default(),
            retry_at: None,
            waiting: Vec::new(),
            moved_until: None,
            due: None,
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
        if self.retry_at.is_some() {
            // It is there, and not to be put out because of our disk.
            if let Some(member) = self.members.get_mut(&beat.member_id) {
                member.expires = member.expires.max(now + limits.session);
            }
            return answer(Some(reply), Err(not_written()));
        }
        let told = match beat.epoch {
            LEAVES => self.leave(beat),
            WILL_BE_BACK => self.goes_away(now, beat),
            _ => self.beat(now, beat, limits, topics),
        };
        match told {
            Ok((beaten, number)) if number > self.writing.written() => self.waiting.push(Waiting {
                number,
                member_id: beat.member_id.clone(),
                reply,
                beaten,
            }),
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
        let has_said = self.enter(now, beat, limits)?;
        let reassigned = self.look_up(topics) || self.is_reassignment_due;
        if reassigned {
            self.reassign();
        }
        // One that is behind did not hear of what it has since: it cannot have given it up.
        let is_behind = self
            .members
            .get(id)
            .is_some_and(|one| beat.is_behind(one.epoch));
        let owned = beat.owned.as_ref().filter(|_| !is_behind);
        let changed = self.reconcile(id, owned);
        let number = match has_said || reassigned || changed.is_some() {
            true => Some(self.writing.want()),
            false => None,
        };
        let Some(member) = self.members.get_mut(id) else {
            return Err(unknown_member(id));
        };
        member.changed_in = number.unwrap_or(member.changed_in);
        member.expires = now + limits.session;
        member.revoke_until = match (member.state, changed, member.revoke_until) {
            (State::Unrevoked, Some(_), _) | (State::Unrevoked, None, None) => {
                Some(now + member.rebalance)
            }
            (State::Unrevoked, None, until) => until,
            _ => None,
        };
        let is_untold = std::mem::take(&mut member.is_untold);
        let is_told = is_untold || beat.is_full() || changed.is_some_and(|one| one.assigned);
        let beaten = Beaten {
            epoch: member.epoch,
            assignment: is_told.then(|| member.assigned.clone()),
        };
        let told = (beaten, member.changed_in);
        let due = member.due();
        self.due_at(due);
        Ok(told)
    }

    fn due_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// All members are out, and have to come back as new ones. It is for the caller to write down that there are none.
    pub(super) fn expel(&mut self, now: Instant) {
        if self.members.is_empty() {
            return;
        }
        let all: Vec<_> = self.members.keys().cloned().collect();
        self.remove_all(&all);
        let until = now + self.session;
        self.moved_until = Some(until);
        self.due_at(until);
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

    /// Nothing is due before that. What is due may be later: heartbeats do not look at every member.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Does what is due: puts out who was silent, or has not given up what it had to, and writes again what could not be written.
    pub(super) fn tick(&mut self, now: Instant) {
        self.moved_until = self.moved_until.filter(|until| *until > now);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            let number = self.writing.want();
            for member in self.members.values_mut() {
                member.changed_in = number;
                member.is_untold = true;
            }
        }
        let over = self
            .members
            .iter()
            .filter(|(_, member)| member.due() <= now);
        let over: Vec<_> = over.map(|(id, _)| id.clone()).collect();
        self.remove_all(&over);
        let members = self.members.values().map(Member::due);
        self.due = members.chain(self.moved_until).chain(self.retry_at).min();
    }

    /// Bytes that its members say of themselves, about.
    pub(super) const fn bytes(&self) -> usize {
        self.said_bytes
    }

    pub(super) fn is_used(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether nothing is left of it but what is stored of it elsewhere.
    pub(super) fn is_idle(&self) -> bool {
        let is_stored = self.writing.is_settled() && self.retry_at.is_none();
        !self.is_used() && is_stored && self.moved_until.is_none()
    }

    /// What is to be written down now; [`Self::stored`] is to be called then.
    pub(super) fn take_store(&mut self) -> Option<Store> {
        if !self.writing.is_due() || self.retry_at.is_some() {
            return None;
        }
        let members = self.is_used().then(|| stored::encode(self));
        Some(self.writing.begin(members))
    }

    /// A write has succeeded or failed.
    pub(super) fn stored(&mut self, now: Instant, number: u64, is_stored: bool) {
        self.writing.end(number);
        if !is_stored {
            let at = now + RETRY_AFTER;
            self.retry_at = Some(at);
            self.due_at(at);
        }
        for one in std::mem::take(&mut self.waiting) {
            let leaves = one.beaten.epoch < 0;
            let told = match is_stored {
                true if one.number > number => {
                    self.waiting.push(one);
                    continue;
                }
                // It was put out while it waited.
                true if !leaves && !self.members.contains_key(&one.member_id) => {
                    Err(unknown_member(&one.member_id))
                }
                true => Ok(one.beaten),
                false => Err(not_written()),
            };
            answer(Some(one.reply), told);
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

fn unknown_member(id: &Name) -> Failure {
    let message = format!("the group has no member {id:?}: it has to join again");
    Failure::new(code::UNKNOWN_MEMBER_ID, message)
}

/// Clients ask for their coordinator again, and try again.
fn not_written() -> Failure {
    let message = "the group cannot be written down: the server's log says why";
    Failure::new(code::COORDINATOR_NOT_AVAILABLE, message)
}
