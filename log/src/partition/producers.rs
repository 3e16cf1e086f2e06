//! What a partition remembers of producers that number their batches: which of them it has, so that one that is sent again is
//! stored once.
//!
//! It is a fold over the log's batches, and nothing else, so that what a start makes of the log is what the running server had: batches
//! that others brought with a producer's number count, too, and are never refused for it. A snapshot of it is written when a segment
//! with batches is sealed, behind the segment's own sync: a start folds what comes after the newest.
//!
//! - **LOG-15**: a numbered batch is in the log once, however often it is sent, as long as it is among the producer's last
//!   [`MAX_SPANS`] in the partition; also after a crash, after its segment was released, and while nothing else is taken. It is
//!   acknowledged again only once it is as durable as the first time.
//!
//! After Kafka's KIP-98, with its rules for epochs and sequences.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use basalt_proto::batch::{BatchHeader, Marker, RecordBatch};
use basalt_proto::{FrameKind, FrameLimits, FrameWalk, Offset, PartitionId};

use super::Appended;
use super::transactions::Transactions;
use crate::block::crc32c;
use crate::disk::{Disk, replace_file};
use crate::error::{DiskError, OnDisk, SequenceError};
use crate::topic::TopicId;

/// Batches of one producer that are told from new ones: as many as it may have in flight.
const MAX_SPANS: usize = 5;
/// Producers of one partition. The one that has been silent longest makes room.
const MAX_PRODUCERS: usize = 4096;
/// A producer that was silent for a day is forgotten.
const EXPIRY_NS: u64 = 24 * 3_600 * 1_000_000_000;
const MAGIC: &[u8; 8] = b"BSLTPRD2";
/// As it was before it knew of transactions.
const FIRST_MAGIC: &[u8; 8] = b"BSLTPRD1";
const SUFFIX: &str = ".producers";
/// Magic, topic, partition, offset, number of producers.
const HEADER_BYTES: usize = 8 + 8 + 4 + 8 + 4;
/// Sequences are below this.
const SEQUENCES: u32 = 1 << 31;

/// The numbers that a producer gave a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Who it is; not negative.
    pub producer_id: i64,
    /// Which time it has begun; not negative.
    pub epoch: i16,
    /// The first record's number, below 2^31.
    pub first: u32,
    /// Records; at least one.
    pub record_count: u32,
}

impl Sequence {
    /// Those of a batch; `None` where it has none.
    #[must_use]
    pub fn of(header: &BatchHeader) -> Option<Self> {
        let first = u32::try_from(header.base_sequence).ok()?;
        let numbered = header.producer_id >= 0 && header.producer_epoch >= 0;
        numbered.then_some(Self {
            producer_id: header.producer_id,
            epoch: header.producer_epoch,
            first,
            record_count: header.record_count,
        })
    }

    fn last(&self) -> u32 {
        self.first.wrapping_add(self.record_count.saturating_sub(1)) % SEQUENCES
    }
}

/// A producer that a partition remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Who it is.
    pub producer_id: i64,
    /// Which time it has begun.
    pub epoch: i16,
    /// The last record's number; `None` if there is none of this epoch yet.
    pub last_sequence: Option<u32>,
    /// When its last batch was appended, in nanoseconds since the Unix epoch.
    pub last_append_ns: u64,
    /// Where its open transaction begins, if it has one.
    pub transaction_start: Option<Offset>,
}

/// A numbered batch in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    first: u32,
    last: u32,
    base_offset: Offset,
    end_offset: Offset,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    last_append_ns: u64,
    /// Its latest batches, oldest first; none when a marker has raised its epoch.
    spans: VecDeque<Span>,
}

/// All that are remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Producers {
    by_id: BTreeMap<i64, Producer>,
    pub(super) transactions: Transactions,
}

impl Producers {
    /// Where a batch is stored already; `None` for one that comes next.
    ///
    /// # Errors
    /// [`SequenceError`] for one that is neither.
    pub(crate) fn check(
        &self,
        sequence: &Sequence,
        now_ns: u64,
    ) -> Result<Option<Appended>, SequenceError> {
        let known = self.by_id.get(&sequence.producer_id);
        let Some(producer) = known.filter(|producer| !producer.is_expired(now_ns)) else {
            // Forgotten, or never seen: whatever it begins with is taken.
            return Ok(None);
        };
        if sequence.epoch < producer.epoch {
            return Err(SequenceError::Fenced {
                epoch: sequence.epoch,
                current: producer.epoch,
            });
        }
        let out_of_order = |expected: u32| SequenceError::OutOfOrder {
            expected,
            found: sequence.first,
        };
        if sequence.epoch > producer.epoch {
            return match sequence.first {
                0 => Ok(None),
                _ => Err(out_of_order(0)),
            };
        }
        let same = |span: &&Span| (span.first, span.last) == (sequence.first, sequence.last());
        if let Some(span) = producer.spans.iter().find(same) {
            return Ok(Some(Appended {
                base_offset: span.base_offset,
                end_offset: span.end_offset,
            }));
        }
        let (Some(oldest), Some(newest)) = (producer.spans.front(), producer.spans.back()) else {
            return Ok(None);
        };
        let expected = (newest.last + 1) % SEQUENCES;
        if sequence.first == expected {
            return Ok(None);
        }
        // By how much it ends before the oldest that is remembered, on the circle of all numbers.
        let before = (oldest.first + SEQUENCES - 1 - sequence.last()) % SEQUENCES;
        if before < SEQUENCES / 2 && producer.spans.len() == MAX_SPANS {
            return Err(SequenceError::LongStored {
                first: sequence.first,
            });
        }
        Err(out_of_order(expected))
    }

    /// Takes up the numbered batches among `frames`, which are in the log from `from` on; where they say so themselves without it.
    pub(crate) fn fold(&mut self, frames: &[u8], from: Option<Offset>, now_ns: u64) {
        let mut next = from;
        for frame in FrameWalk::new(frames, FrameLimits::UNLIMITED) {
            // What cannot be read is damage that recovery has told of.
            let Ok(frame) = frame else { return };
            let base_offset = next.unwrap_or(frame.header.offset);
            let end_offset = base_offset.saturating_add(frame.header.logical_count().into());
            next = from.map(|_| end_offset);
            if frame.header.kind != FrameKind::Batch {
                continue;
            }
            let Ok(header) = RecordBatch::header(frame.payload) else {
                continue;
            };
            if header.is_control() {
                if let Some(marker) = Marker::of(frame.payload) {
                    self.end_transaction(&header, marker, base_offset);
                }
                continue;
            }
            if header.is_transactional() && header.producer_id >= 0 {
                self.transactions.begin(header.producer_id, base_offset);
            }
            if let Some(sequence) = Sequence::of(&header) {
                self.take(&sequence, base_offset, end_offset, now_ns);
            }
        }
    }

    /// A marker ends its producer's transaction, and all epochs before its own.
    fn end_transaction(&mut self, header: &BatchHeader, marker: Marker, offset: Offset) {
        self.transactions.end(header.producer_id, marker, offset);
        if let Some(producer) = self.by_id.get_mut(&header.producer_id)
            && header.producer_epoch > producer.epoch
        {
            producer.epoch = header.producer_epoch;
            producer.spans.clear();
        }
    }

    fn take(&mut self, sequence: &Sequence, base_offset: Offset, end_offset: Offset, now_ns: u64) {
        let is_new = !self.by_id.contains_key(&sequence.producer_id);
        if is_new && self.by_id.len() >= MAX_PRODUCERS {
            self.make_room(now_ns);
        }
        let begun = || Producer {
            epoch: sequence.epoch,
            last_append_ns: now_ns,
            spans: VecDeque::with_capacity(1),
        };
        let producer = self.by_id.entry(sequence.producer_id).or_insert_with(begun);
        if sequence.epoch < producer.epoch {
            return;
        }
        if sequence.epoch > producer.epoch || producer.is_expired(now_ns) {
            *producer = begun();
        }
        producer.last_append_ns = producer.last_append_ns.max(now_ns);
        if producer.spans.len() == MAX_SPANS {
            producer.spans.pop_front();
        }
        producer.spans.push_back(Span {
            first: sequence.first,
            last: sequence.last(),
            base_offset,
            end_offset,
        });
    }

    /// Those that are not expired.
    pub(super) fn active(&self, now_ns: u64) -> Vec<ActiveProducer> {
        let is_active = |(id, one): &(&i64, &Producer)| {
            !one.is_expired(now_ns) || self.transactions.is_open(**id)
        };
        let active = self.by_id.iter().filter(is_active);
        let active = active.map(|(id, producer)| ActiveProducer {
            producer_id: *id,
            epoch: producer.epoch,
            last_sequence: producer.spans.back().map(|span| span.last),
            last_append_ns: producer.last_append_ns,
            transaction_start: self.transactions.start_of(*id),
        });
        let open = self.transactions.open_producers();
        let forgotten = open.filter(|id| !self.by_id.contains_key(id));
        let forgotten = forgotten.map(|id| ActiveProducer {
            producer_id: id,
            epoch: 0,
            last_sequence: None,
            last_append_ns: 0,
            transaction_start: self.transactions.start_of(id),
        });
        active.chain(forgotten).collect()
    }

    fn make_room(&mut self, now_ns: u64) {
        self.by_id
            .retain(|_, producer| !producer.is_expired(now_ns));
        if self.by_id.len() >= MAX_PRODUCERS {
            // One that is in the midst of a transaction may send a batch of it again.
            let transactions = &self.transactions;
            let idle = self.by_id.iter();
            let idle = idle.filter(|(id, _)| !transactions.is_open(**id));
            let longest = idle.min_by_key(|(_, producer)| producer.last_append_ns);
            if let Some(id) = longest.map(|(id, _)| *id) {
                self.by_id.remove(&id);
            }
        }
    }

    fn encode(&self, topic_id: TopicId, partition: PartitionId, end_offset: Offset) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&topic_id.0.to_be_bytes());
        out.extend_from_slice(&partition.0.to_be_bytes());
        out.extend_from_slice(&end_offset.0.to_be_bytes());
        let count = u32::try_from(self.by_id.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&count.to_be_bytes());
        for (id, producer) in &self.by_id {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&producer.epoch.to_be_bytes());
            out.extend_from_slice(&producer.last_append_ns.to_be_bytes());
            out.push(u8::try_from(producer.spans.len()).unwrap_or(u8::MAX));
            for span in &producer.spans {
                out.extend_from_slice(&span.first.to_be_bytes());
                out.extend_from_slice(&span.last.to_be_bytes());
                out.extend_from_slice(&span.base_offset.0.to_be_bytes());
                out.extend_from_slice(&span.end_offset.0.to_be_bytes());
            }
        }
        self.transactions.encode(&mut out);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// `None` for bytes that are no snapshot of that partition at that offset.
    fn decode(
        bytes: &[u8],
        topic_id: TopicId,
        partition: PartitionId,
        end_offset: Offset,
    ) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c(body).to_be_bytes() != *crc || body.len() < HEADER_BYTES {
            return None;
        }
        let mut reader = Reader(body);
        let magic = reader.take::<8>()?;
        let has_transactions = magic == *MAGIC;
        if !has_transactions && magic != *FIRST_MAGIC {
            return None;
        }
        let header = (
            TopicId(u64::from_be_bytes(reader.take()?)),
            PartitionId(u32::from_be_bytes(reader.take()?)),
            Offset(u64::from_be_bytes(reader.take()?)),
        );
        if header != (topic_id, partition, end_offset) {
            return None;
        }
        let mut producers = Self::default();
        for _ in 0..u32::from_be_bytes(reader.take()?) {
            let id = i64::from_be_bytes(reader.take()?);
            let (epoch, last_append_ns) = (
                i16::from_be_bytes(reader.take()?),
                u64::from_be_bytes(reader.take()?),
            );
            let [count] = reader.take()?;
            let mut spans = VecDeque::new();
            for _ in 0..count {
                spans.push_back(Span {
                    first: u32::from_be_bytes(reader.take()?),
                    last: u32::from_be_bytes(reader.take()?),
                    base_offset: Offset(u64::from_be_bytes(reader.take()?)),
                    end_offset: Offset(u64::from_be_bytes(reader.take()?)),
                });
            }
            let producer = Producer {
                epoch,
                last_append_ns,
                spans,
            };
            producers.by_id.insert(id, producer);
        }
        if has_transactions {
            producers.transactions = Transactions::decode(&mut reader)?;
        }
        reader.0.is_empty().then_some(producers)
    }
}

impl Producer {
    fn is_expired(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_append_ns) > EXPIRY_NS
    }
}

/// What is left of some bytes.
pub(super) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

/// The name of the snapshot that knows what is below `end_offset`.
pub(crate) fn snapshot_name(end_offset: Offset) -> String {
    format!("{:020}{SUFFIX}", end_offset.0)
}

/// The offset of a snapshot's name; `None` for other names.
pub(crate) fn snapshot_offset(name: &str) -> Option<Offset> {
    let digits = name.strip_suffix(SUFFIX)?;
    let offset = (digits.len() == 20).then(|| digits.parse().ok())?;
    offset.map(Offset)
}

/// The snapshots of one partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshots<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) dir: &'a Path,
    pub(crate) topic_id: TopicId,
    pub(crate) partition: PartitionId,
}

impl Snapshots<'_> {
    pub(crate) fn path(self, end_offset: Offset) -> PathBuf {
        self.dir.join(snapshot_name(end_offset))
    }

    /// Writes the one at `end_offset`; durable on return.
    pub(crate) fn write(self, producers: &Producers, end_offset: Offset) -> Result<(), DiskError> {
        let path = self.path(end_offset);
        let bytes = producers.encode(self.topic_id, self.partition, end_offset);
        replace_file(self.disk, &path, &bytes)
            .on("write", &path)
            .map(drop)
    }

    /// Reads the one at `end_offset`; `None` where it is damaged.
    pub(crate) fn read(self, end_offset: Offset) -> Result<Option<Producers>, DiskError> {
        let path = self.path(end_offset);
        let bytes = self
            .disk
            .open(&path)
            .and_then(|file| file.read_all())
            .on("read", &path)?;
        let (topic_id, partition) = (self.topic_id, self.partition);
        Ok(Producers::decode(&bytes, topic_id, partition, end_offset))
    }

    pub(crate) fn remove(self, end_offset: Offset) -> Result<(), DiskError> {
        let path = self.path(end_offset);
        self.disk.remove_file(&path).on("remove", &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(producer_id: i64, first: u32) -> Sequence {
        Sequence {
            producer_id,
            epoch: 3,
            first,
            record_count: 2,
        }
    }

    #[test]
    fn snapshot_comes_back_as_it_was_and_no_other_bytes_are_one() {
        let mut producers = Producers::default();
        for first in 0..9 {
            for id in [0, 7, i64::MAX] {
                let base = u64::from(first) * 10;
                let (base, end) = (Offset(base), Offset(base + 2));
                producers.take(&sequence(id, first * 2), base, end, 5);
            }
        }
        let transactions = &mut producers.transactions;
        for (id, first, marker) in [(7, 10, 20), (3, 12, 30), (7, 40, 50)] {
            transactions.begin(id, Offset(first));
            transactions.end(id, Marker::Abort, Offset(marker));
        }
        transactions.begin(5, Offset(60));
        let (topic, partition, end) = (TopicId(9), PartitionId(2), Offset(90));
        let bytes = producers.encode(topic, partition, end);
        let decode = |bytes: &[u8]| Producers::decode(bytes, topic, partition, end);
        assert_eq!(decode(&bytes), Some(producers.clone()));
        assert_eq!(Producers::decode(&bytes, TopicId(8), partition, end), None);
        assert_eq!(Producers::decode(&bytes, topic, PartitionId(1), end), None);
        assert_eq!(
            Producers::decode(&bytes, topic, partition, Offset(91)),
            None
        );
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None);
        }
        // One from before there were transactions.
        producers.transactions = Transactions::default();
        let mut old = producers.encode(topic, partition, end);
        old.truncate(old.len() - 4 - 8);
        old[..8].copy_from_slice(FIRST_MAGIC);
        let crc = crc32c(&old).to_be_bytes();
        old.extend_from_slice(&crc);
        assert_eq!(decode(&old), Some(producers));
        assert_eq!(snapshot_offset(&snapshot_name(end)), Some(end));
        assert_eq!(snapshot_offset("90.producers"), None);
    }

    #[test]
    fn silent_producers_are_forgotten_and_make_room() {
        let mut producers = Producers::default();
        let (base, end) = (Offset(0), Offset(2));
        for id in 0..=i64::try_from(MAX_PRODUCERS).unwrap() {
            producers.take(&sequence(id, 0), base, end, id.cast_unsigned());
        }
        assert_eq!(producers.by_id.len(), MAX_PRODUCERS);
        // The one that was silent longest had to go: whatever it sends is taken.
        assert_eq!(producers.check(&sequence(0, 8), 5), Ok(None));
        assert!(producers.check(&sequence(1, 8), 5).is_err());
        assert_eq!(producers.check(&sequence(1, 8), EXPIRY_NS + 2), Ok(None));
        producers.take(&sequence(-1, 0), base, end, 3 * EXPIRY_NS);
        assert_eq!(producers.by_id.len(), 1, "a day is over");
    }
}
