//! How a member comes from what it has to what it is to have, a heartbeat at a time.

use super::member::{Member, State};
use super::{Group, Partitions};
use crate::kafka::coordinator::identity::Name;

/// That a member has come further.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changed {
    /// It may have other partitions than before.
    pub(super) assigned: bool,
}

impl Group {
    /// Moves a member on as far as it can go, which says that it has `owned`, or that this has not changed.
    pub(super) fn reconcile(&mut self, id: &Name, owned: Option<&Partitions>) -> Option<Changed> {
        let member = self.members.get(id)?;
        let has = |parts: &Partitions| owned.is_none_or(|owned| !owned.is_disjoint(parts));
        let epoch = match member.state {
            State::Stable if member.epoch == self.epoch => return None,
            State::Unrevoked if has(&member.revoking) => return None,
            // What it was to give up, it gave up: it goes on from the next epoch.
            State::Unrevoked => member.epoch + 1,
            State::Stable | State::Unreleased => member.epoch,
        };
        let kept: Partitions = member
            .assigned
            .intersection(&member.target)
            .copied()
            .collect();
        let revoking: Partitions = member.assigned.difference(&kept).copied().collect();
        let next = if !revoking.is_empty() && has(&revoking) {
            Next {
                state: State::Unrevoked,
                epoch,
                assigned: kept,
                revoking,
            }
        } else {
            let is_free = |part| self.holders.get(part).is_none_or(|holder| holder == id);
            let free = member.target.iter().filter(|part| is_free(part)).copied();
            let assigned: Partitions = free.collect();
            let state = match assigned.len() == member.target.len() {
                true => State::Stable,
                false => State::Unreleased,
            };
            Next {
                state,
                epoch: self.epoch,
                assigned,
                revoking: Partitions::new(),
            }
        };
        self.apply(id, next)
    }

    fn apply(&mut self, id: &Name, next: Next) -> Option<Changed> {
        let member = self.members.get_mut(id)?;
        if next.is(member) {
            return None;
        }
        for part in member.held() {
            self.holders.remove(part);
        }
        if next.epoch != member.epoch {
            member.previous_epoch = member.epoch;
            member.epoch = next.epoch;
        }
        let assigned = next.assigned != member.assigned;
        member.state = next.state;
        member.assigned = next.assigned;
        member.revoking = next.revoking;
        for part in member.held() {
            self.holders.insert(*part, id.clone());
        }
        Some(Changed { assigned })
    }
}

/// What a member comes to.
struct Next {
    state: State,
    epoch: i32,
    assigned: Partitions,
    revoking: Partitions,
}

impl Next {
    fn is(&self, member: &Member) -> bool {
        self.state == member.state
            && self.epoch == member.epoch
            && self.assigned == member.assigned
            && self.revoking == member.revoking
    }
}
