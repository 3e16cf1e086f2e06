//! Who is in: members that join, go on, take another's place, and leave.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::member::{Beaten, Member, State};
use super::{Beat, Group, LEAVES, Limits, Pattern, WILL_BE_BACK, unknown_member};
use crate::kafka::coordinator::identity::Name;
use crate::kafka::error::{Failure, code};

/// What all members of a group may say of themselves in all.
const MAX_SAID_BYTES: usize = 32 << 20;
/// Different patterns that members of a group have. Those that have the same share it.
const MAX_PATTERNS: usize = 64;

impl Group {
    /// Lets a member in, or finds the one it is, and takes what it says; whether there is something new in that.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        beat: &Beat,
        limits: &Limits,
    ) -> Result<bool, Failure> {
        let id = &beat.member_id;
        let instance = beat.instance_id.as_ref();
        let known = instance.and_then(|instance| self.statics.get(instance));
        let known = known.filter(|known| *known != id).cloned();
        if beat.epoch > 0 {
            if known.is_some() {
                return Err(fenced());
            }
            let member = self.members.get(id).ok_or_else(|| unknown_member(id))?;
            // Those that are in need not say their instance each time.
            if instance.is_some() && member.instance_id.as_ref() != instance {
                return Err(unknown_member(id));
            }
            may_go_on(member, beat)?;
            self.check_size(beat, id)?;
            let pattern = self.pattern_of(beat)?;
            return Ok(self.update(beat, pattern));
        }
        if let Some(known) = &known
            && !self.members.get(known).is_some_and(|one| one.is_away)
        {
            let message = "another member has that instance id, and has not left";
            return Err(Failure::new(code::UNRELEASED_INSTANCE_ID, message));
        }
        self.check_size(beat, known.as_ref().unwrap_or(id))?;
        let pattern = self.pattern_of(beat)?;
        let is_other = |member: &Member| member.instance_id.as_ref() != instance;
        if self.members.get(id).is_some_and(is_other) {
            // It is another than the one that had its id.
            self.remove_all(std::slice::from_ref(id));
        }
        if let Some(former) = known.and_then(|known| self.take_out(&known)) {
            self.insert(id, former.succeeded());
            self.update(beat, pattern);
            return Ok(true);
        }
        if let Some(member) = self.members.get_mut(id) {
            let was_away = std::mem::take(&mut member.is_away);
            return Ok(self.update(beat, pattern) || was_away);
        }
        if self.members.len() >= limits.max_members {
            let message = format!("the group has {} members already", self.members.len());
            return Err(Failure::new(code::GROUP_MAX_SIZE_REACHED, message));
        }
        self.insert(id, Member::new(now, beat));
        self.is_reassignment_due = true;
        self.update(beat, pattern);
        Ok(true)
    }

    /// Takes what a member that is in says of itself; whether that is something new.
    fn update(&mut self, beat: &Beat, pattern: Option<Option<Pattern>>) -> bool {
        let Some(member) = self.members.get_mut(&beat.member_id) else {
            return false;
        };
        let before = member.said_bytes();
        let updated = member.update(beat, pattern);
        self.said_bytes = self.said_bytes - before + member.said_bytes();
        if updated.wants {
            self.topics_version = None;
            self.is_reassignment_due = true;
        }
        updated.says
    }

    /// The pattern that a member names, as another has it compiled, if one does; `None` if it names none, or its own again.
    fn pattern_of(&self, beat: &Beat) -> Result<Option<Option<Pattern>>, Failure> {
        let Some(Some(pattern)) = &beat.pattern else {
            return Ok(beat.pattern.clone());
        };
        let own = self.members.get(&beat.member_id);
        if own.is_some_and(|own| own.pattern.as_ref() == Some(pattern)) {
            return Ok(None);
        }
        let all = self.members.values().filter_map(|one| one.pattern.as_ref());
        let all: BTreeMap<_, _> = all.map(|one| (&one.text, one)).collect();
        match all.get(&pattern.text) {
            Some(known) => Ok(Some(Some((*known).clone()))),
            None if all.len() < MAX_PATTERNS => Ok(Some(Some(pattern.clone()))),
            None => {
                let message = format!("the group's members have {MAX_PATTERNS} patterns already");
                Err(Failure::new(code::GROUP_MAX_SIZE_REACHED, message))
            }
        }
    }

    /// Whether all members say too much, with what one says now instead of what `id` said. Whoever says no more than before may.
    fn check_size(&self, beat: &Beat, id: &Name) -> Result<(), Failure> {
        let before = self.members.get(id).map_or(0, Member::wants_bytes);
        let more = beat.wants_bytes().saturating_sub(before);
        match more > 0 && self.said_bytes + more > MAX_SAID_BYTES {
            false => Ok(()),
            true => {
                let message = "the group's members say too much of themselves";
                Err(Failure::new(code::GROUP_MAX_SIZE_REACHED, message))
            }
        }
    }

    pub(super) fn insert(&mut self, id: &Name, member: Member) {
        if let Some(instance) = &member.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        for part in member.held() {
            self.holders.insert(*part, id.clone());
        }
        self.said_bytes += member.said_bytes();
        let due = member.due();
        self.members.insert(id.clone(), member);
        self.topics_version = None;
        self.due_at(due);
    }

    /// It is no member any more, and holds nothing.
    fn take_out(&mut self, id: &Name) -> Option<Member> {
        let member = self.members.remove(id)?;
        for part in member.held() {
            self.holders.remove(part);
        }
        if let Some(instance) = &member.instance_id
            && self.statics.get(instance) == Some(id)
        {
            self.statics.remove(instance);
        }
        self.said_bytes -= member.said_bytes();
        // What nobody wants any more need not be looked up.
        self.topics_version = None;
        Some(member)
    }

    pub(super) fn remove_all(&mut self, ids: &[Name]) {
        for id in ids {
            if self.take_out(id).is_some() {
                self.is_reassignment_due = true;
            }
        }
        if !ids.is_empty() {
            self.writing.want();
        }
    }

    pub(super) fn leave(&mut self, beat: &Beat) -> Result<(Beaten, u64), Failure> {
        self.is_itself(beat)?;
        self.remove_all(std::slice::from_ref(&beat.member_id));
        let beaten = Beaten {
            epoch: LEAVES,
            assignment: None,
        };
        Ok((beaten, self.writing.wanted()))
    }

    /// A static member goes, and what it has stays its own for the time of its session. What it was to give up it has not any more.
    pub(super) fn goes_away(
        &mut self,
        now: Instant,
        beat: &Beat,
    ) -> Result<(Beaten, u64), Failure> {
        self.is_itself(beat)?;
        let session = self.session;
        let member = self.members.get_mut(&beat.member_id);
        let member = member.filter(|member| member.instance_id.is_some());
        let Some(member) = member else {
            return Err(unknown_member(&beat.member_id));
        };
        for part in std::mem::take(&mut member.revoking) {
            self.holders.remove(&part);
        }
        if member.state == State::Unrevoked {
            member.state = State::Unreleased;
        }
        member.revoke_until = None;
        member.is_away = true;
        member.expires = now + session;
        let number = self.writing.want();
        member.changed_in = number;
        let due = member.due();
        self.due_at(due);
        let beaten = Beaten {
            epoch: WILL_BE_BACK,
            assignment: None,
        };
        Ok((beaten, number))
    }

    fn is_itself(&self, beat: &Beat) -> Result<(), Failure> {
        let id = &beat.member_id;
        let instance = beat.instance_id.as_ref();
        match instance.map(|instance| self.statics.get(instance)) {
            Some(Some(known)) if known != id => Err(fenced()),
            Some(None) => Err(unknown_member(id)),
            _ if self.members.contains_key(id) => Ok(()),
            _ => Err(unknown_member(id)),
        }
    }

    /// Who is meant by an id, an instance, or both.
    pub(super) fn find(&self, id: &Name, instance: Option<&Name>) -> Result<Name, i16> {
        let id = match instance {
            None => id,
            Some(instance) => {
                let known = self.statics.get(instance).ok_or(code::UNKNOWN_MEMBER_ID)?;
                if !id.is_empty() && known != id {
                    return Err(code::FENCED_INSTANCE_ID);
                }
                known
            }
        };
        match self.members.contains_key(id) {
            true => Ok(id.clone()),
            false => Err(code::UNKNOWN_MEMBER_ID),
        }
    }

    /// Puts a member out, by its id or its instance.
    pub(in crate::kafka::coordinator) fn put_out(
        &mut self,
        id: &Name,
        instance: Option<&Name>,
    ) -> Result<(), i16> {
        let id = self.find(id, instance)?;
        self.remove_all(&[id]);
        Ok(())
    }
}

/// Whether a member that is in may go on at the epoch it says.
fn may_go_on(member: &Member, beat: &Beat) -> Result<(), Failure> {
    // It did not hear of its epoch, but of no partition either that it was to give up with it.
    let is_behind = beat.epoch == member.previous_epoch
        && (beat.owned.as_ref()).is_some_and(|owned| owned.is_subset(&member.assigned));
    let is_there = beat.epoch == member.epoch || is_behind;
    match is_there && !member.is_away {
        true => Ok(()),
        false => {
            let (is, said) = (member.epoch, beat.epoch);
            let message = match member.is_away {
                true => "the member has left for a while: it has to join again".to_owned(),
                false => format!("the member's epoch is {is}, not {said}: it has to join again"),
            };
            Err(Failure::new(code::FENCED_MEMBER_EPOCH, message))
        }
    }
}

fn fenced() -> Failure {
    let message = "another member has that instance id now";
    Failure::new(code::FENCED_INSTANCE_ID, message)
}
