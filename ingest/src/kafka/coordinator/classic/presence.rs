//! Who is there, for how long, and what that allows.

use tokio::time::Instant;

use super::member::{Joined, Member, Synced};
use super::{Group, Phase};
use crate::kafka::coordinator::identity::{Identity, Name, answer};
use crate::kafka::error::code;

impl Group {
    /// Whether it is a member, under its own name, of this generation.
    pub(super) fn member_of_generation(&self, who: &Identity) -> Result<(), i16> {
        self.member(&who.member_id, who.instance_id.as_ref())?;
        if who.generation != self.generation {
            return Err(code::ILLEGAL_GENERATION);
        }
        Ok(())
    }

    pub(super) fn member(&self, id: &Name, instance: Option<&Name>) -> Result<(), i16> {
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
    pub(in crate::kafka::coordinator) fn heartbeat(
        &mut self,
        now: Instant,
        who: &Identity,
    ) -> Result<(), i16> {
        self.member_of_generation(who)?;
        self.touch(now, &who.member_id);
        match self.phase {
            Phase::Empty => Err(code::UNKNOWN_MEMBER_ID),
            Phase::Joining { .. } => Err(code::REBALANCE_IN_PROGRESS),
            Phase::Assigning { .. } | Phase::Stable => Ok(()),
        }
    }

    pub(super) fn touch(&mut self, now: Instant, id: &Name) {
        if let Some(member) = self.members.get_mut(id) {
            member.touch(now);
        }
    }

    /// A member goes, or an operator lets a static one go, by its instance alone.
    pub(in crate::kafka::coordinator) fn leave(
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
    pub(in crate::kafka::coordinator) fn expel(&mut self, now: Instant) {
        let sessions = self.members.values().map(|member| member.session);
        let Some(longest) = sessions.max() else {
            return;
        };
        self.remove_all(|_, _| true);
        self.clear();
        self.moved_until = Some(now + longest);
    }

    /// Forgets members, and answers them if they wait.
    pub(super) fn remove_all(&mut self, goes: impl Fn(&Name, &Member) -> bool) {
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

    pub(super) fn after_removal(&mut self, now: Instant) {
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
    pub(in crate::kafka::coordinator) fn may_commit(
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
    pub(in crate::kafka::coordinator) fn deadline(&self) -> Option<Instant> {
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
    pub(in crate::kafka::coordinator) fn tick(&mut self, now: Instant) {
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
