//! How a member joins: who is taken, under which id, and what it is told.

use tokio::time::Instant;

use super::member::{Join, Joined, JoinedMember, Member, Synced, protocol_bytes};
use super::{Group, Limits, MAX_METADATA_BYTES, NEW_MEMBER_WAIT, Phase, new_id};
use crate::kafka::coordinator::identity::{Name, Reply, answer};
use crate::kafka::error::code;

impl Group {
    /// A member joins, or joins again.
    pub(in crate::kafka::coordinator) fn join(
        &mut self,
        now: Instant,
        join: Join,
        limits: &Limits,
        reply: Reply<Joined>,
    ) {
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
    pub(super) fn accepts(&self, join: &Join) -> bool {
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

    pub(super) fn is_full(&self, join: &Join, limits: &Limits) -> bool {
        self.members.len() >= limits.max_members || self.is_too_large_with(None, join)
    }

    /// Whether members would say too much of themselves, if that one said this instead of what it did.
    pub(super) fn is_too_large_with(&self, id: Option<&Name>, join: &Join) -> bool {
        let others = self.members.iter().filter(|(other, _)| Some(*other) != id);
        let others = others.map(|(_, member)| member.metadata_bytes());
        others.sum::<usize>() + protocol_bytes(&join.protocols) > MAX_METADATA_BYTES
    }

    pub(super) fn add(
        &mut self,
        now: Instant,
        id: Name,
        join: Join,
        limits: &Limits,
        reply: Reply<Joined>,
    ) {
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
    pub(super) fn replace(&mut self, now: Instant, old: &Name, join: Join, reply: Reply<Joined>) {
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
    pub(super) fn joined(&self, id: &Name) -> Joined {
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
}
