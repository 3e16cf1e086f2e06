//! One member of a group, and what it asks and is told.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::kafka::coordinator::identity::{Identity, Name, Reply};

/// What a member asks when it joins.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct Join {
    /// Empty for one that has none yet.
    pub(in crate::kafka) member_id: Name,
    /// The name of a static member, which it keeps over restarts.
    pub(in crate::kafka) instance_id: Option<Name>,
    pub(in crate::kafka) client_id: Name,
    pub(in crate::kafka) client_host: Name,
    pub(in crate::kafka) session: Duration,
    pub(in crate::kafka) rebalance: Duration,
    pub(in crate::kafka) protocol_type: Name,
    /// Protocols with what the member says for each, in its order of preference.
    pub(in crate::kafka) protocols: Vec<(Name, Bytes)>,
    /// Whether one without an id is given one first, with which it has to come back.
    pub(in crate::kafka) needs_known_id: bool,
    /// Whether a leader can be told that nothing is to be assigned.
    pub(in crate::kafka) can_skip_assignment: bool,
}

/// What a member is told when all have joined, or why it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct Joined {
    pub(in crate::kafka) error: i16,
    pub(in crate::kafka) generation: i32,
    pub(in crate::kafka) protocol_type: Option<Name>,
    pub(in crate::kafka) protocol: Option<Name>,
    pub(in crate::kafka) leader: Name,
    pub(in crate::kafka) member_id: Name,
    pub(in crate::kafka) skip_assignment: bool,
    /// For the leader alone.
    pub(in crate::kafka) members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct JoinedMember {
    pub(in crate::kafka) member_id: Name,
    pub(in crate::kafka) instance_id: Option<Name>,
    pub(in crate::kafka) metadata: Bytes,
}

impl Joined {
    pub(in crate::kafka) fn refused(error: i16, member_id: Name) -> Self {
        Self {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: Name::default(),
            member_id,
            skip_assignment: false,
            members: Vec::new(),
        }
    }
}

/// What a member asks when it wants its part.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct Sync {
    pub(in crate::kafka) who: Identity,
    /// What it believes to have been agreed on, where its version says so.
    pub(in crate::kafka) protocol_type: Option<Name>,
    pub(in crate::kafka) protocol: Option<Name>,
    /// From the leader: everybody's part.
    pub(in crate::kafka) assignments: Vec<(Name, Bytes)>,
}

/// A member's part, or why it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct Synced {
    pub(in crate::kafka) error: i16,
    pub(in crate::kafka) protocol_type: Option<Name>,
    pub(in crate::kafka) protocol: Option<Name>,
    pub(in crate::kafka) assignment: Bytes,
}

impl Synced {
    pub(in crate::kafka) fn refused(error: i16) -> Self {
        Self {
            error,
            protocol_type: None,
            protocol: None,
            assignment: Bytes::new(),
        }
    }
}

/// A member as the group knows it.
#[derive(Debug)]
pub(in crate::kafka::coordinator) struct Member {
    pub(in crate::kafka::coordinator) instance_id: Option<Name>,
    pub(in crate::kafka::coordinator) client_id: Name,
    pub(in crate::kafka::coordinator) client_host: Name,
    pub(super) session: Duration,
    pub(super) rebalance: Duration,
    pub(super) protocols: Vec<(Name, Bytes)>,
    pub(in crate::kafka::coordinator) assignment: Bytes,
    /// Grows with each that joins: the first that waits leads.
    pub(super) order: u64,
    /// It was never told that it is a member.
    pub(super) is_new: bool,
    /// It has its part of this generation.
    pub(super) has_part: bool,
    /// When its session ends, unless it is heard of.
    pub(super) expires: Instant,
    pub(super) join: Option<Reply<Joined>>,
    pub(super) sync: Option<Reply<Synced>>,
}

impl Member {
    /// What it said for a protocol.
    pub(in crate::kafka::coordinator) fn metadata(&self, protocol: &str) -> Bytes {
        let mut of_protocol = self
            .protocols
            .iter()
            .filter(|(name, _)| **name == *protocol);
        of_protocol
            .next()
            .map_or_else(Bytes::new, |(_, metadata)| metadata.clone())
    }

    pub(super) fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|(name, _)| **name == *protocol)
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        protocol_bytes(&self.protocols)
    }

    /// It waits for the others, which no session ends.
    pub(super) fn waits(&self) -> bool {
        self.sync.is_some() || (self.join.is_some() && !self.is_new)
    }

    /// It knows the generation and has not asked for its part.
    pub(super) fn is_late(&self) -> bool {
        !self.has_part && self.sync.is_none()
    }

    /// It was heard of.
    pub(super) fn touch(&mut self, now: Instant) {
        self.expires = now + self.session;
    }

    /// Whoever would be told that it is a member has gone away.
    pub(super) fn is_gone(&self) -> bool {
        self.is_new
            && self.instance_id.is_none()
            && self.join.as_ref().is_some_and(Reply::is_closed)
    }
}

pub(super) fn protocol_bytes(protocols: &[(Name, Bytes)]) -> usize {
    protocols
        .iter()
        .map(|(name, metadata)| name.len() + metadata.len())
        .sum()
}
