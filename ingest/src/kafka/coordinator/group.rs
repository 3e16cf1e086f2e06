//! A group of either protocol, as the coordinator handles it.

use std::time::Duration;

use tokio::time::Instant;

use super::identity::{Identity, Name};
use super::writing::Store;
use super::{classic, consumer};
use crate::kafka::error::code;
use crate::kafka::stored::BadStored;

/// One has members of one protocol at a time. It is of another once nothing is left of it, when it is made anew.
#[derive(Debug)]
pub(super) enum Group {
    Classic(classic::Group),
    Consumer(consumer::Group),
}

impl Group {
    /// As it was stored; `session` is how long members of the consumer protocol may be silent.
    pub(super) fn decode(bytes: &[u8], now: Instant, session: Duration) -> Result<Self, BadStored> {
        match bytes.first() {
            Some(&consumer::VERSION) => consumer::decode(bytes, now, session).map(Self::Consumer),
            _ => classic::decode(bytes, now).map(Self::Classic),
        }
    }

    /// As one of the classic protocol.
    ///
    /// # Errors
    /// Kafka's code, if it is of the other.
    pub(super) fn classic(&mut self) -> Result<&mut classic::Group, i16> {
        match self {
            Self::Classic(group) => Ok(group),
            Self::Consumer(group) if group.is_used() => Err(code::INCONSISTENT_GROUP_PROTOCOL),
            // Until the end of its members is written down, or for a while after it was moved.
            Self::Consumer(_) => Err(code::COORDINATOR_LOAD_IN_PROGRESS),
        }
    }

    /// As one of the consumer protocol.
    ///
    /// # Errors
    /// Kafka's code, if it is of the other.
    pub(super) fn consumer(&mut self) -> Result<&mut consumer::Group, i16> {
        match self {
            Self::Consumer(group) => Ok(group),
            Self::Classic(group) if group.is_used() => Err(code::GROUP_ID_NOT_FOUND),
            Self::Classic(_) => Err(code::COORDINATOR_LOAD_IN_PROGRESS),
        }
    }

    pub(super) fn take_store(&mut self) -> Option<Store> {
        match self {
            Self::Classic(group) => group.take_store(),
            Self::Consumer(group) => group.take_store(),
        }
    }

    pub(super) fn stored(&mut self, now: Instant, number: u64, is_stored: bool) {
        match self {
            Self::Classic(group) => group.stored(now, number, is_stored),
            Self::Consumer(group) => group.stored(now, number, is_stored),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Classic(group) => group.bytes(),
            Self::Consumer(group) => group.bytes(),
        }
    }

    /// Whether it has members, or some that are about to be.
    pub(super) fn is_used(&self) -> bool {
        match self {
            Self::Classic(group) => group.is_used(),
            Self::Consumer(group) => group.is_used(),
        }
    }

    /// Whether nothing is left of it but what is stored of it elsewhere.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Classic(group) => group.is_idle(),
            Self::Consumer(group) => group.is_idle(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Classic(group) => group.deadline(),
            Self::Consumer(group) => group.deadline(),
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        match self {
            Self::Classic(group) => group.tick(now),
            Self::Consumer(group) => group.tick(now),
        }
    }

    /// Lets a member go, by its id or its instance.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        id: &Name,
        instance: Option<&Name>,
    ) -> Result<(), i16> {
        match self {
            Self::Classic(group) => group.leave(now, id, instance),
            Self::Consumer(group) => group.put_out(id, instance),
        }
    }

    /// Puts all members out; whoever asks for that writes down that there are none.
    pub(super) fn expel(&mut self, now: Instant) {
        match self {
            Self::Classic(group) => group.expel(now),
            Self::Consumer(group) => group.expel(now),
        }
    }

    /// Whether an offset may be committed by whoever says so.
    pub(super) fn may_commit(
        &mut self,
        now: Instant,
        who: &Identity,
        with_transaction: bool,
    ) -> Result<(), i16> {
        match self {
            Self::Classic(group) => group.may_commit(now, who, with_transaction),
            Self::Consumer(group) => group.may_commit(now, who, with_transaction),
        }
    }
}
