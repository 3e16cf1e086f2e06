//! How members come to the next generation: joining, choosing, and who gets what.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::member::{Joined, Member, Sync, Synced};
use super::{First, Group, Limits, MAX_METADATA_BYTES, Phase, after};
use crate::kafka::coordinator::identity::{Name, Reply, answer};
use crate::kafka::error::code;

impl Group {
    /// Starts over, or goes on with it: completes it if nobody is missing. Only newcomers make an empty group wait for more.
    pub(super) fn prepare(&mut self, now: Instant, limits: Option<&Limits>) {
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

    pub(super) fn longest_rebalance(&self) -> Duration {
        let members = self.members.values().map(|member| member.rebalance);
        members.max().unwrap_or_default()
    }

    pub(super) fn refuse_syncs(&mut self, now: Instant, error: i16) {
        for member in self.members.values_mut().filter(|one| one.sync.is_some()) {
            member.touch(now);
            answer(member.sync.take(), Synced::refused(error));
        }
    }

    /// The joining is over: whoever did not come is out, but for static members; the rest are told the new generation.
    pub(super) fn complete(&mut self, now: Instant) {
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
    pub(super) fn chosen_protocol(&self) -> Option<Name> {
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

    pub(super) fn empty(&mut self) {
        self.clear();
        self.store();
    }

    pub(super) fn clear(&mut self) {
        self.phase = Phase::Empty;
        self.generation = self.next_generation;
        self.next_generation = after(self.generation, 1);
        self.leader = None;
        self.protocol = None;
        self.protocol_type = None;
        self.sync_until = None;
    }

    /// A member asks for its part; the leader brings everybody's.
    pub(in crate::kafka::coordinator) fn sync(
        &mut self,
        now: Instant,
        sync: Sync,
        reply: Reply<Synced>,
    ) {
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
}
