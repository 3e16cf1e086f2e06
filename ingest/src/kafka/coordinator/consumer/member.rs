//! One member of a group of the consumer protocol, and what it says and is told.

use std::collections::BTreeSet;
use std::time::Duration;

use basalt_log::TopicId;
use regex::{Regex, RegexBuilder};
use tokio::time::Instant;

use super::assign::Assignor;
use super::{Failure, Partitions};
use crate::kafka::coordinator::identity::Name;
use crate::kafka::error::code;

/// What a pattern may take, compiled.
const MAX_PATTERN_BYTES: usize = 256 << 10;

/// What a member says with a heartbeat. What has not changed since the last one it leaves out.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct Beat {
    pub(in crate::kafka) member_id: Name,
    /// The last one it was told; 0 to join, and below that to leave.
    pub(in crate::kafka) epoch: i32,
    pub(in crate::kafka) instance_id: Option<Name>,
    pub(in crate::kafka) rack_id: Option<Name>,
    pub(in crate::kafka) client_id: Name,
    pub(in crate::kafka) client_host: Name,
    pub(in crate::kafka) rebalance: Option<Duration>,
    /// The topics it wants by their names.
    pub(in crate::kafka) names: Option<BTreeSet<Name>>,
    /// Those beside them whose whole names match; empty for none.
    pub(in crate::kafka) pattern: Option<Name>,
    pub(in crate::kafka) assignor: Option<Name>,
    /// What it has.
    pub(in crate::kafka) owned: Option<Partitions>,
}

impl Beat {
    /// Bytes that what it wants takes, about.
    pub(super) fn bytes(&self) -> usize {
        let names = self.names.iter().flatten();
        let names = names.map(|name| name.len() + NAME_BYTES).sum::<usize>();
        names
            + self
                .pattern
                .as_ref()
                .map_or(0, |text| text.len() + PATTERN_BYTES)
    }

    /// Whether it says all there is to be said, so that it is to be told all, too.
    pub(super) fn is_full(&self) -> bool {
        let subscribes = self.names.is_some() || self.pattern.is_some();
        self.epoch == 0 || (self.rebalance.is_some() && subscribes && self.owned.is_some())
    }
}

/// What a member is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct Beaten {
    pub(in crate::kafka) epoch: i32,
    /// What it may have, unless that has not changed.
    pub(in crate::kafka) assignment: Option<Partitions>,
}

/// What a member is told, or why it is not.
pub(in crate::kafka) type Told = Result<Beaten, Failure>;

/// Where a member is on its way from what it has to what it is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has what it was to have at its epoch.
    Stable,
    /// It has to give up something first.
    Unrevoked,
    /// It waits for what others have to give up.
    Unreleased,
}

/// Topics by a pattern.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    pub(super) text: Name,
    compiled: Regex,
}

impl Pattern {
    /// `None` for an empty one.
    pub(super) fn new(text: &Name) -> Result<Option<Self>, Failure> {
        if text.is_empty() {
            return Ok(None);
        }
        // It is a name's whole that has to match.
        let compiled = RegexBuilder::new(&format!("^(?:{text})$"))
            .size_limit(MAX_PATTERN_BYTES)
            .dfa_size_limit(MAX_PATTERN_BYTES)
            .build()
            .map_err(|error| {
                let message = format!("the pattern {text:?} is none: {error}");
                Failure::new(code::INVALID_REGULAR_EXPRESSION, message)
            })?;
        let text = text.clone();
        Ok(Some(Self { text, compiled }))
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.compiled.is_match(name)
    }
}

/// A member as the group knows it.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) instance_id: Option<Name>,
    pub(super) rack_id: Option<Name>,
    pub(super) client_id: Name,
    pub(super) client_host: Name,
    /// How long it may take to give up partitions.
    pub(super) rebalance: Duration,
    pub(super) names: BTreeSet<Name>,
    pub(super) pattern: Option<Pattern>,
    pub(super) assignor: Option<Assignor>,
    pub(super) epoch: i32,
    /// The one before, under which it may come if it did not hear of this one.
    pub(super) previous_epoch: i32,
    pub(super) state: State,
    /// What it was told to have.
    pub(super) assigned: Partitions,
    /// What it was told to give up, and has not said that it did.
    pub(super) revoking: Partitions,
    /// What it is to have at the group's epoch.
    pub(super) target: Partitions,
    /// A static member that said it will be back.
    pub(super) is_away: bool,
    /// The topics it wants, as there were when that was looked up last.
    pub(super) topics: BTreeSet<TopicId>,
    /// When its session ends, unless it is heard of.
    pub(super) expires: Instant,
    /// Until then it has to give up what it was told to.
    pub(super) revoke_until: Option<Instant>,
    /// The write that has what it was told last.
    pub(super) changed_in: u64,
}

impl Member {
    pub(super) fn new(now: Instant, beat: &Beat) -> Self {
        Self {
            instance_id: beat.instance_id.clone(),
            rack_id: None,
            client_id: Name::default(),
            client_host: Name::default(),
            rebalance: Duration::ZERO,
            names: BTreeSet::new(),
            pattern: None,
            assignor: None,
            epoch: 0,
            previous_epoch: 0,
            state: State::Stable,
            assigned: Partitions::new(),
            revoking: Partitions::new(),
            target: Partitions::new(),
            is_away: false,
            topics: BTreeSet::new(),
            expires: now,
            revoke_until: None,
            changed_in: 0,
        }
    }

    /// The same member under another id, which has nothing of what its predecessor was to give up.
    pub(super) fn succeeded(self) -> Self {
        Self {
            epoch: 0,
            previous_epoch: 0,
            state: State::Stable,
            revoking: Partitions::new(),
            is_away: false,
            revoke_until: None,
            ..self
        }
    }

    /// Takes what it says of itself; whether it wants something else than before. `known` is its pattern, if somebody has the same.
    ///
    /// # Errors
    /// What it says is nothing; then nothing of it is taken.
    pub(super) fn update(&mut self, beat: &Beat, known: Option<Pattern>) -> Result<bool, Failure> {
        let unknown = |name: &Name| {
            let known = Assignor::ALL.map(Assignor::name).join(", ");
            let message = format!("there is no assignor {name:?}; there are {known}");
            Failure::new(code::UNSUPPORTED_ASSIGNOR, message)
        };
        let assignor = match &beat.assignor {
            None => self.assignor,
            Some(name) => Some(Assignor::named(name).ok_or_else(|| unknown(name))?),
        };
        let own = self.pattern.as_ref().map(|pattern| &*pattern.text);
        let own = own.unwrap_or_default();
        let mut wants = false;
        if let Some(text) = beat.pattern.as_ref().filter(|text| ***text != *own) {
            self.pattern = match known {
                Some(known) => Some(known),
                None => Pattern::new(text)?,
            };
            wants = true;
        }
        if let Some(names) = beat.names.as_ref().filter(|names| **names != self.names) {
            self.names.clone_from(names);
            wants = true;
        }
        wants |= assignor != self.assignor;
        self.assignor = assignor;
        if let Some(rebalance) = beat.rebalance {
            self.rebalance = rebalance;
        }
        if beat.rack_id.is_some() {
            self.rack_id.clone_from(&beat.rack_id);
        }
        self.client_id = beat.client_id.clone();
        self.client_host = beat.client_host.clone();
        Ok(wants)
    }

    /// All that nobody else may have.
    pub(super) fn held(&self) -> impl Iterator<Item = &super::Partition> {
        self.assigned.iter().chain(&self.revoking)
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let names = self.names.iter().map(|name| name.len() + NAME_BYTES);
        let parts = self.assigned.len() + self.revoking.len() + self.target.len();
        let pattern = self.pattern.as_ref().map_or(0, |_| PATTERN_BYTES);
        MEMBER_BYTES + names.sum::<usize>() + parts * PARTITION_BYTES + pattern
    }
}

/// What a member takes beside what it says, about: its names are short.
const MEMBER_BYTES: usize = 2048;
/// What a compiled pattern takes, mostly.
const PATTERN_BYTES: usize = 32 << 10;
/// What a name takes beside its text, and a partition in a set, about.
const NAME_BYTES: usize = 64;
const PARTITION_BYTES: usize = 32;
