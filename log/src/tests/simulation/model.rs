//! What a partition has promised, and whether it keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Bounds, Durability};

pub(super) type Payload = Arc<[u8]>;

/// What a record survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    /// Appended, and no more was said.
    Nothing,
    /// Acknowledged or shown from the page cache: it survives the process.
    Process,
    /// It survives the machine.
    Machine,
}

impl Promise {
    /// What the append alone promises; level `fsync` promises more once the synced offset passes it.
    pub(super) fn of(durability: Durability) -> Self {
        match durability {
            Durability::Os => Self::Process,
            Durability::Fsync | Durability::None => Self::Nothing,
        }
    }
}

/// The frames of an append.
#[derive(Debug, Clone, Default)]
pub(super) struct Payloads(Vec<(Payload, u64)>);

impl Payloads {
    /// One more frame, which takes `span` offsets.
    pub(super) fn push(&mut self, payload: Payload, span: u64) {
        self.0.push((payload, span));
    }

    /// Payloads by the offsets that their frames begin with.
    fn from(&self, base: u64) -> impl Iterator<Item = (u64, &Payload)> {
        self.0.iter().scan(base, |next, (payload, span)| {
            let offset = *next;
            *next += span;
            Some((offset, payload))
        })
    }

    /// Offsets that all of them take.
    fn span(&self) -> u64 {
        self.0.iter().map(|(_, span)| span).sum()
    }
}

#[derive(Debug)]
struct Kept {
    payload: Payload,
    promise: Promise,
}

/// What a partition holds, as far as its answers tell.
#[derive(Debug, Default)]
pub(super) struct PartitionModel {
    kept: BTreeMap<u64, Kept>,
    /// Everything that was ever tried at an offset and not taken back: what an append that failed wrote may be found.
    tried: BTreeMap<u64, Vec<Payload>>,
    /// The high watermark, exclusive.
    visible: u64,
    synced: u64,
    /// Behind the last offset that was acknowledged or shown.
    seen_end: u64,
    released: u64,
}

impl PartitionModel {
    /// An append failed.
    pub(super) fn failed(&mut self, base: u64, payloads: &Payloads) {
        for (offset, payload) in payloads.from(base) {
            self.tried.entry(offset).or_default().push(payload.clone());
        }
    }

    /// An append went well.
    pub(super) fn appended(&mut self, base: u64, payloads: &Payloads, promise: Promise) {
        assert!(
            base >= self.seen_end,
            "offset {base} was given before: all below {} were seen",
            self.seen_end
        );
        for (offset, payload) in payloads.from(base) {
            let payload = payload.clone();
            self.kept.insert(offset, Kept { payload, promise });
        }
        if promise >= Promise::Process {
            self.seen_end = self.seen_end.max(base + payloads.span());
        }
    }

    pub(super) fn released(&mut self, through: u64) {
        self.released = self.released.max(through);
        self.kept = self.kept.split_off(&self.released);
    }

    /// What the bounds promise: below the high watermark records were shown, below the synced offset they are durable (LOG-9,
    /// LOG-10). `shown_durably` at level `fsync`.
    pub(super) fn observe(&mut self, bounds: &Bounds, synced: u64, shown_durably: bool) {
        let (visible, end) = (bounds.high_watermark.0, bounds.log_end_offset.0);
        assert!(visible >= self.visible, "the high watermark fell");
        assert!(synced >= self.synced, "the synced offset fell");
        assert!(visible <= end && synced <= end, "{bounds:?}, {synced}");
        let shown = if shown_durably {
            Promise::Machine
        } else {
            Promise::Process
        };
        self.promise(self.visible, visible, shown);
        self.promise(self.synced, synced, Promise::Machine);
        (self.visible, self.synced) = (visible, synced);
        self.seen_end = self.seen_end.max(visible).max(synced);
    }

    fn promise(&mut self, from: u64, to: u64, promise: Promise) {
        for (_, kept) in self.kept.range_mut(from..to.max(from)) {
            kept.promise = kept.promise.max(promise);
        }
    }

    /// The log was closed in order.
    pub(super) fn closed(&mut self) {
        self.promise(0, u64::MAX, Promise::Machine);
    }

    /// What is read while the log is open: all that is visible, and nothing else.
    pub(super) fn check(&self, found: &BTreeMap<u64, Vec<u8>>) {
        for (offset, kept) in self.kept.range(..self.visible) {
            self.holds(found, *offset, kept);
        }
        self.only_sent(found);
    }

    fn holds(&self, found: &BTreeMap<u64, Vec<u8>>, offset: u64, kept: &Kept) {
        let there = found.get(&offset).map(|payload| &payload[..]);
        assert!(
            there == Some(&kept.payload[..]),
            "offset {offset}, promised as {:?}, {}",
            kept.promise,
            match there {
                None => "is gone",
                Some(_) => "holds other bytes",
            }
        );
    }

    /// Nobody may find what was never sent, or find it twice.
    pub(super) fn only_sent(&self, found: &BTreeMap<u64, Vec<u8>>) {
        let mut numbers = BTreeSet::new();
        for (offset, payload) in found.range(self.released..) {
            let kept = self.kept.get(offset).map(|kept| &kept.payload[..]);
            let tried = self.tried.get(offset).into_iter().flatten();
            assert!(
                kept == Some(payload) || tried.into_iter().any(|tried| tried[..] == payload[..]),
                "offset {offset} holds what nobody sent there"
            );
            let number = super::history::number_of(payload);
            assert!(
                numbers.insert(number),
                "offset {offset} holds a record twice"
            );
        }
    }

    /// The log was opened anew. What is found is durable from now on (LOG-8), what is not was not promised. Unless it is
    /// `proven`, for want of room, records keep the promise they had.
    pub(super) fn recovered(
        &mut self,
        found: &BTreeMap<u64, Vec<u8>>,
        bounds: &Bounds,
        power_lost: bool,
        shown_durably: bool,
        proven: bool,
    ) {
        let survives = if power_lost {
            Promise::Machine
        } else {
            Promise::Process
        };
        for (offset, kept) in &self.kept {
            if kept.promise >= survives {
                self.holds(found, *offset, kept);
            }
        }
        self.only_sent(found);
        let (visible, end) = (bounds.high_watermark.0, bounds.log_end_offset.0);
        assert!(
            end >= self.seen_end,
            "ends at {end}, below {}",
            self.seen_end
        );
        if !power_lost || shown_durably {
            assert!(visible >= self.visible, "the high watermark fell");
        }
        let before = std::mem::take(&mut self.kept);
        for (offset, payload) in found.range(self.released..) {
            let payload = Payload::from(&payload[..]);
            let had = before.get(offset).map(|kept| kept.promise);
            let promise = if proven {
                Promise::Machine
            } else {
                had.unwrap_or(Promise::Process).max(Promise::Process)
            };
            self.kept.insert(*offset, Kept { payload, promise });
        }
        for (offset, kept) in before {
            if !found.contains_key(&offset) {
                self.tried.entry(offset).or_default().push(kept.payload);
            }
        }
        (self.visible, self.synced) = (visible, end);
        self.seen_end = self.seen_end.max(end);
    }

    /// The records that no loss may cost, and their frames' bytes.
    pub(super) fn durable(&self) -> impl Iterator<Item = (u64, &Payload)> {
        let durable = |(_, kept): &(&u64, &Kept)| kept.promise == Promise::Machine;
        self.kept
            .iter()
            .filter(durable)
            .map(|(offset, kept)| (*offset, &kept.payload))
    }
}
