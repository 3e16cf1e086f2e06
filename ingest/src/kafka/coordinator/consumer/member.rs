//! One member of a group of the consumer protocol, and what it says and is told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use basalt_log::TopicId;
use regex::bytes::{Regex, RegexBuilder};
use tokio::time::Instant;

use super::assign::Assignor;
use super::{Failure, Partitions};
use crate::kafka::coordinator::identity::Name;
use crate::kafka::error::code;

/// The longest pattern.
const MAX_PATTERN_TEXT: usize = 1024;
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
    pub(in crate::kafka) names: Option<Arc<BTreeSet<Name>>>,
    /// Those beside them whose whole names match; or none any more.
    pub(in crate::kafka) pattern: Option<Option<Pattern>>,
    pub(in crate::kafka) assignor: Option<Assignor>,
    /// What it has.
    pub(in crate::kafka) owned: Option<Partitions>,
}

impl Beat {
    /// Bytes that what it wants takes, about.
    pub(in crate::kafka::coordinator) fn wants_bytes(&self) -> usize {
        let names = self.names.as_deref().map_or(0, names_bytes);
        names + pattern_bytes(self.pattern.iter().flatten().next())
    }

    /// Whether it says an epoch before that one, of a member that is in.
    pub(super) const fn is_behind(&self, epoch: i32) -> bool {
        self.epoch > 0 && self.epoch != epoch
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

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Topics by a pattern.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct Pattern {
    pub(super) text: Name,
    compiled: Regex,
}

impl Pattern {
    /// `None` for an empty text.
    ///
    /// # Errors
    /// The text is no pattern, or one that takes too much.
    pub(in crate::kafka) fn new(text: &Name) -> Result<Option<Self>, Failure> {
        if text.is_empty() {
            return Ok(None);
        }
        let invalid = |why: String| {
            let message = format!("the pattern {text:?} is none: {why}");
            Failure::new(code::INVALID_REGULAR_EXPRESSION, message)
        };
        if text.len() > MAX_PATTERN_TEXT {
            return Err(invalid(format!(
                "it is longer than {MAX_PATTERN_TEXT} bytes"
            )));
        }
        // Names are of ASCII.
        let compile = |text: &str| {
            let mut builder = RegexBuilder::new(text);
            builder.unicode(false).size_limit(MAX_PATTERN_BYTES);
            let built = builder.dfa_size_limit(MAX_PATTERN_BYTES).build();
            built.map_err(|error| invalid(error.to_string()))
        };
        // By itself first: what is put around it must not make it one. It is a name's whole that has to match.
        compile(text)?;
        let compiled = compile(&format!("^(?:{text})$"))?;
        let text = text.clone();
        Ok(Some(Self { text, compiled }))
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.compiled.is_match(name.as_bytes())
    }
}

/// What is new in what a member says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Updated {
    /// It wants something else.
    pub(super) wants: bool,
    /// It says something of itself that it did not say before.
    pub(super) says: bool,
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
    pub(super) names: Arc<BTreeSet<Name>>,
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
    pub(super) topics: Arc<BTreeSet<TopicId>>,
    /// When its session ends, unless it is heard of.
    pub(super) expires: Instant,
    /// Until then it has to give up what it was told to.
    pub(super) revoke_until: Option<Instant>,
    /// The write that has what it was told last.
    pub(super) changed_in: u64,
    /// What it has may be another than it was told: that could not be written down.
    pub(super) is_untold: bool,
}

impl Member {
    pub(super) fn new(now: Instant, beat: &Beat) -> Self {
        Self {
            instance_id: beat.instance_id.clone(),
            rack_id: None,
            client_id: Name::default(),
            client_host: Name::default(),
            rebalance: Duration::ZERO,
            names: Arc::default(),
            pattern: None,
            assignor: None,
            epoch: 0,
            previous_epoch: 0,
            state: State::Stable,
            assigned: Partitions::new(),
            revoking: Partitions::new(),
            target: Partitions::new(),
            is_away: false,
            topics: Arc::default(),
            expires: now,
            revoke_until: None,
            changed_in: 0,
            is_untold: false,
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

    /// Takes what it says of itself; `pattern` is the one that it names, if it names one.
    pub(super) fn update(&mut self, beat: &Beat, pattern: Option<Option<Pattern>>) -> Updated {
        let mut wants = false;
        if beat.assignor.is_some() {
            wants |= set(&mut self.assignor, &beat.assignor);
        }
        if let Some(names) = &beat.names {
            wants |= set(&mut self.names, names);
        }
        if let Some(pattern) = pattern {
            wants |= set(&mut self.pattern, &pattern);
        }
        let mut says = wants;
        if let Some(rebalance) = &beat.rebalance {
            says |= set(&mut self.rebalance, rebalance);
        }
        if beat.rack_id.is_some() {
            says |= set(&mut self.rack_id, &beat.rack_id);
        }
        says |= set(&mut self.client_id, &beat.client_id);
        says |= set(&mut self.client_host, &beat.client_host);
        Updated { wants, says }
    }

    /// When it is out, unless it is heard of.
    pub(super) fn due(&self) -> Instant {
        self.revoke_until
            .map_or(self.expires, |until| until.min(self.expires))
    }

    /// All that nobody else may have.
    pub(super) fn held(&self) -> impl Iterator<Item = &super::Partition> {
        self.assigned.iter().chain(&self.revoking)
    }

    /// Bytes that what it wants takes, about.
    pub(super) fn wants_bytes(&self) -> usize {
        names_bytes(&self.names) + pattern_bytes(self.pattern.as_ref())
    }

    /// Bytes that all it says takes, about.
    pub(super) fn said_bytes(&self) -> usize {
        MEMBER_BYTES + self.wants_bytes()
    }
}

/// Takes another value; whether it is another.
fn set<T: Clone + PartialEq>(place: &mut T, value: &T) -> bool {
    let differs = place != value;
    if differs {
        place.clone_from(value);
    }
    differs
}

/// What a member takes beside what it wants, about: its names are short.
const MEMBER_BYTES: usize = 2048;
/// What a name takes beside its text, about.
const NAME_BYTES: usize = 64;

fn names_bytes(names: &BTreeSet<Name>) -> usize {
    names.iter().map(|name| name.len() + NAME_BYTES).sum()
}

fn pattern_bytes(pattern: Option<&Pattern>) -> usize {
    pattern.map_or(0, |pattern| pattern.text.len())
}
