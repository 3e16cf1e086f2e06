//! A group of the classic protocol and its way to agreement: as Kafka's own `GroupCoordinator` (3.9) has it, without a socket, a
//! disk or a clock.
//!
//! Members join; when all have, one of them leads, and all are told the new generation. The leader says who gets what, which is
//! written down before anybody is told. Whatever changes who is in, or what somebody says of itself, starts it over.
//!
//! - **GRP-1**: every request is answered once.
//! - **GRP-2**: a generation has one assignment, and whoever is told its part is a member of that generation.
//! - **GRP-3**: generations never fall while there are members; after a crash, none that anybody had a part of is given again.

mod join;
mod member;
mod presence;
mod rebalance;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::identity::{Name, Reply, answer};
use super::writing::{Store, Writing};
use crate::kafka::error::code;
use member::Member;
pub(in crate::kafka) use member::{Join, Joined, Sync, Synced};
pub(super) use stored::decode;

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
    writing: Writing,
    /// It was moved: whoever was put out of it may still believe to be where it was, and commits nothing until then.
    moved_until: Option<Instant>,
    /// Static members that came back; they are told once it is written down who they are now.
    returning: Vec<(u64, Reply<Joined>, Joined)>,
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
            writing: Writing::default(),
            moved_until: None,
            returning: Vec::new(),
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
        self.writing.wanted()
    }

    /// Whether nothing is left of it but what is stored of it elsewhere.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_used() && self.writing.is_settled() && self.moved_until.is_none()
    }

    /// Whether it has members, or some that are about to be.
    pub(super) fn is_used(&self) -> bool {
        self.phase != Phase::Empty || !self.pending.is_empty()
    }

    /// What is to be written down now; [`Self::stored`] is to be called then.
    pub(super) fn take_store(&mut self) -> Option<Store> {
        if !self.writing.is_due() {
            return None;
        }
        let members = match self.phase {
            Phase::Empty => None,
            Phase::Stable | Phase::Assigning { store: Some(_) } => Some(stored::encode(self)),
            // Its next generation will be.
            Phase::Joining { .. } | Phase::Assigning { store: None } => return None,
        };
        Some(self.writing.begin(members))
    }

    const fn store(&mut self) -> u64 {
        self.writing.want()
    }

    /// A store has succeeded or failed.
    pub(super) fn stored(&mut self, now: Instant, number: u64, is_stored: bool) {
        self.writing.end(number);
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
