//! Which transactions a partition has: those that are open, and those whose records are void.
//!
//! Part of the fold over the log's batches ([`super::producers`]): a transactional batch opens its producer's transaction if none is
//! open, and a control batch ends it. What a start makes of the log is what the running server had.
//!
//! - **LOG-17**: no record of a transaction that is open lies below the stable offset, and none of one that was aborted is
//!   shown to whoever reads what is committed. Void transactions are known for as long as a record of theirs is hot; what is
//!   cooled has none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use basalt_proto::batch::{BatchHeader, Marker, RecordBatch};
use basalt_proto::{Frame, FrameKind, Offset};

/// What a reader sees of transactions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Everything that is readable, whatever became of its transaction.
    #[default]
    Uncommitted,
    /// Records of transactions that were committed, and all that belong to none: up to the first open one.
    Committed,
}

/// A transaction whose records are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted {
    /// Whose.
    pub producer_id: i64,
    /// Offset of its first record, or of the first that is known of.
    pub first_offset: Offset,
    /// Offset of the control batch that ended it.
    pub marker_offset: Offset,
}

/// All void transactions of a partition's hot records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AbortedTransactions {
    /// By producer, each producer's by offset; they do not overlap.
    by_producer: BTreeMap<i64, Vec<(Offset, Offset)>>,
}

/// What is known of a partition's transactions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transactions {
    /// First offset of each producer's open one.
    open: BTreeMap<i64, Offset>,
    /// The same in order.
    starts: BTreeSet<(Offset, i64)>,
    /// Behind the last marker that was seen since the start.
    marked_end: Offset,
    aborted: Arc<AbortedTransactions>,
}

/// As far as it is a fold over the log.
impl PartialEq for Transactions {
    fn eq(&self, other: &Self) -> bool {
        (&self.open, &self.aborted) == (&other.open, &other.aborted)
    }
}

impl Eq for Transactions {}

impl AbortedTransactions {
    /// The void transaction of that producer that a record at `offset` belongs to.
    #[must_use]
    pub fn find(&self, producer_id: i64, offset: Offset) -> Option<Aborted> {
        let of_producer = self.by_producer.get(&producer_id)?;
        let at = of_producer.partition_point(|(_, marker)| *marker <= offset);
        let (first_offset, marker_offset) = *of_producer.get(at)?;
        (first_offset <= offset).then_some(Aborted {
            producer_id,
            first_offset,
            marker_offset,
        })
    }

    /// Whether a batch at `offset` is one that nobody is to see who reads what is committed: a void one, or a marker.
    #[must_use]
    fn hides(&self, header: &BatchHeader, offset: Offset) -> bool {
        header.is_control()
            || (header.is_transactional() && self.find(header.producer_id, offset).is_some())
    }

    /// Whether whoever reads what is committed sees that frame, which is not beyond the stable offset.
    #[must_use]
    pub fn shows(&self, frame: &Frame<'_>) -> bool {
        frame.header.kind == FrameKind::Record
            || RecordBatch::header(frame.payload)
                .map_or(true, |header| !self.hides(&header, frame.header.offset))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = Aborted> {
        self.by_producer.iter().flat_map(|(id, of_producer)| {
            of_producer.iter().map(|(first, marker)| Aborted {
                producer_id: *id,
                first_offset: *first,
                marker_offset: *marker,
            })
        })
    }
}

impl Transactions {
    /// A transactional batch is in the log.
    pub(super) fn begin(&mut self, producer_id: i64, offset: Offset) {
        if let Entry::Vacant(vacant) = self.open.entry(producer_id) {
            vacant.insert(offset);
            self.starts.insert((offset, producer_id));
        }
    }

    /// A control batch is.
    pub(super) fn end(&mut self, producer_id: i64, marker: Marker, marker_offset: Offset) {
        self.marked_end = marker_offset.saturating_add(1);
        let Some(first_offset) = self.open.remove(&producer_id) else {
            return;
        };
        self.starts.remove(&(first_offset, producer_id));
        if marker == Marker::Abort {
            self.put_aborted(Aborted {
                producer_id,
                first_offset,
                marker_offset,
            });
        }
    }

    fn put_aborted(&mut self, one: Aborted) {
        let aborted = Arc::make_mut(&mut self.aborted);
        let of_producer = aborted.by_producer.entry(one.producer_id).or_default();
        of_producer.push((one.first_offset, one.marker_offset));
    }

    /// Behind the last marker: what is durable up to there knows of all that has ended since the start.
    pub(super) const fn marked_end(&self) -> Offset {
        self.marked_end
    }

    /// Those whose transaction is open.
    pub(super) fn open_producers(&self) -> impl Iterator<Item = i64> {
        self.open.keys().copied()
    }

    pub(super) fn is_open(&self, producer_id: i64) -> bool {
        self.open.contains_key(&producer_id)
    }

    /// Where a producer's open one begins.
    pub(super) fn start_of(&self, producer_id: i64) -> Option<Offset> {
        self.open.get(&producer_id).copied()
    }

    /// Where the first open one begins.
    pub(super) fn first_open(&self) -> Option<Offset> {
        self.starts.first().map(|(first, _)| *first)
    }

    pub(super) const fn aborted(&self) -> &Arc<AbortedTransactions> {
        &self.aborted
    }

    /// Forgets what no record from `log_start_offset` on belongs to.
    pub(super) fn forget_below(&mut self, log_start_offset: Offset) {
        let is_gone = |(_, marker): &(Offset, Offset)| *marker < log_start_offset;
        let mut all = self.aborted.by_producer.values();
        if !all.any(|of_producer| of_producer.first().is_some_and(is_gone)) {
            return;
        }
        let aborted = Arc::make_mut(&mut self.aborted);
        aborted.by_producer.retain(|_, of_producer| {
            of_producer.retain(|one| !is_gone(one));
            !of_producer.is_empty()
        });
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
        out.extend_from_slice(&count(self.open.len()));
        for (id, first) in &self.open {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&first.0.to_be_bytes());
        }
        out.extend_from_slice(&count(self.aborted.iter().count()));
        for one in self.aborted.iter() {
            out.extend_from_slice(&one.producer_id.to_be_bytes());
            out.extend_from_slice(&one.first_offset.0.to_be_bytes());
            out.extend_from_slice(&one.marker_offset.0.to_be_bytes());
        }
    }

    /// `None` where it is cut off.
    pub(super) fn decode(reader: &mut super::producers::Reader<'_>) -> Option<Self> {
        let mut transactions = Self::default();
        for _ in 0..u32::from_be_bytes(reader.take()?) {
            let id = i64::from_be_bytes(reader.take()?);
            let first = Offset(u64::from_be_bytes(reader.take()?));
            transactions.begin(id, first);
        }
        for _ in 0..u32::from_be_bytes(reader.take()?) {
            transactions.put_aborted(Aborted {
                producer_id: i64::from_be_bytes(reader.take()?),
                first_offset: Offset(u64::from_be_bytes(reader.take()?)),
                marker_offset: Offset(u64::from_be_bytes(reader.take()?)),
            });
        }
        Some(transactions)
    }
}
