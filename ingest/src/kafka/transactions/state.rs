//! The transactions of one transactional id: who may write, what the open one has touched, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use basalt_log::TopicId;
use basalt_proto::batch::Marker;
use basalt_proto::{GroupName, Offset, PartitionId, TopicName};
use bytes::{Buf, BufMut};
use tokio::time::Instant;

use crate::kafka::error::code;
use crate::kafka::stored::{
    BadStored, open, put_count, put_millis, put_text, take_millis, take_text,
};

const VERSION: u8 = 1;
/// What a partition, a group or an offset takes, about, and a state without any.
const PLACE_BYTES: usize = 400;
const STATE_BYTES: usize = 2048;
const NO_EPOCH: i16 = -1;
/// The last epoch of an id, which is for fencing alone.
const LAST_EPOCH: i16 = i16::MAX - 1;

/// A partition of a topic, which is another if the topic is made anew.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) topic: TopicName,
    pub(super) topic_id: u64,
    pub(super) partition: PartitionId,
}

impl Place {
    pub(super) const fn topic_id(&self) -> TopicId {
        TopicId(self.topic_id)
    }
}

/// Where an id's transactions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// None is open.
    Empty,
    /// One is.
    Open { since: Instant },
    /// One is decided, and not every partition knows.
    Ending(Marker),
}

#[derive(Debug, Clone)]
pub(super) struct Transaction {
    pub(super) producer_id: i64,
    pub(super) epoch: i16,
    pub(super) timeout: Duration,
    pub(super) phase: Phase,
    /// How the one before ended: one who asks for that again has lost the answer.
    pub(super) last_end: Option<Marker>,
    pub(super) places: BTreeSet<Place>,
    /// The epoch with which its producer asked for the present one, if it said so: it may ask again.
    pub(super) last_epoch: Option<i16>,
    /// What groups have handled when it is committed.
    pub(super) offsets: BTreeMap<GroupName, BTreeMap<Place, (Offset, String)>>,
}

impl Transaction {
    /// Of an id that nobody has used.
    pub(super) const fn new(producer_id: i64, timeout: Duration) -> Self {
        Self {
            producer_id,
            epoch: 0,
            timeout,
            phase: Phase::Empty,
            last_end: None,
            places: BTreeSet::new(),
            last_epoch: None,
            offsets: BTreeMap::new(),
        }
    }

    /// Whether that producer may go on; `fenced` is what it is told when another has taken over.
    pub(super) fn check(&self, producer_id: i64, epoch: i16, fenced: i16) -> Result<(), i16> {
        if producer_id != self.producer_id {
            return Err(code::INVALID_PRODUCER_ID_MAPPING);
        }
        match epoch == self.epoch {
            true => Ok(()),
            false => Err(fenced),
        }
    }

    /// The same with an epoch that ends all before, be it the last.
    pub(super) fn fenced(&self) -> Option<Self> {
        (self.epoch < LAST_EPOCH).then(|| Self {
            epoch: self.epoch + 1,
            last_epoch: None,
            ..self.clone()
        })
    }

    /// The same with the next epoch that a producer may have; `None` when there is none.
    pub(super) fn with_next_epoch(&self) -> Option<Self> {
        self.fenced().filter(|next| next.epoch < LAST_EPOCH)
    }

    /// What it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let places = self.places.len() * PLACE_BYTES;
        let groups = self.offsets.values().map(|offsets| {
            let texts = offsets.values().map(|(_, text)| PLACE_BYTES + text.len());
            PLACE_BYTES + texts.sum::<usize>()
        });
        STATE_BYTES + places + groups.sum::<usize>()
    }

    /// The same, open.
    pub(super) fn opened(&self, now: Instant) -> Self {
        let phase = match self.phase {
            Phase::Open { since } => Phase::Open { since },
            _ => Phase::Open { since: now },
        };
        Self {
            phase,
            ..self.clone()
        }
    }

    /// The same, decided.
    pub(super) fn decided(&self, marker: Marker) -> Self {
        Self {
            phase: Phase::Ending(marker),
            ..self.clone()
        }
    }

    /// The same when all know the decision.
    pub(super) fn ended(&self, marker: Marker) -> Self {
        Self {
            phase: Phase::Empty,
            last_end: Some(marker),
            places: BTreeSet::new(),
            offsets: BTreeMap::new(),
            ..*self
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Open { since } if since + self.timeout <= now)
    }

    pub(super) const fn state_name(&self) -> &'static str {
        match (self.phase, self.last_end) {
            (Phase::Open { .. }, _) => "Ongoing",
            (Phase::Ending(Marker::Commit), _) => "PrepareCommit",
            (Phase::Ending(Marker::Abort), _) => "PrepareAbort",
            (Phase::Empty, Some(Marker::Commit)) => "CompleteCommit",
            (Phase::Empty, Some(Marker::Abort)) => "CompleteAbort",
            (Phase::Empty, None) => "Empty",
        }
    }

    /// As it is written down (see [`crate::kafka::stored`]): version, producer id and epoch, timeout; 0 if none is open, 1 if one
    /// is, 2 for one that is being aborted and 3 for one that is being committed; 0, 2 or 3 for how the last one ended; the epoch with which the
    /// present one was asked for, or -1; partitions:
    /// topic, topic's id, number; groups, and of each the same with offset and text.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_i64(self.producer_id);
        out.put_i16(self.epoch);
        put_millis(&mut out, self.timeout);
        out.put_u8(match self.phase {
            Phase::Empty => 0,
            Phase::Open { .. } => 1,
            Phase::Ending(marker) => number(marker),
        });
        out.put_u8(self.last_end.map_or(0, number));
        out.put_i16(self.last_epoch.unwrap_or(NO_EPOCH));
        put_count(&mut out, self.places.len());
        self.places
            .iter()
            .for_each(|place| put_place(&mut out, place));
        put_count(&mut out, self.offsets.len());
        for (group, offsets) in &self.offsets {
            put_text(&mut out, group.as_str());
            put_count(&mut out, offsets.len());
            for (place, (offset, metadata)) in offsets {
                put_place(&mut out, place);
                out.put_u64(offset.0);
                put_text(&mut out, metadata);
            }
        }
        out
    }

    /// What was written down; one that was open has been so since `now`.
    pub(super) fn decode(bytes: &[u8], now: Instant) -> Result<Self, BadStored> {
        let mut bytes = open(bytes, VERSION)?;
        let producer_id = bytes.try_get_i64()?;
        let epoch = bytes.try_get_i16()?;
        let timeout = take_millis(&mut bytes)?;
        let phase = match bytes.try_get_u8()? {
            0 => Phase::Empty,
            1 => Phase::Open { since: now },
            other => Phase::Ending(marker(other)?),
        };
        let last_end = match bytes.try_get_u8()? {
            0 => None,
            other => Some(marker(other)?),
        };
        let last_epoch = Some(bytes.try_get_i16()?).filter(|epoch| *epoch != NO_EPOCH);
        let mut places = BTreeSet::new();
        for _ in 0..bytes.try_get_u32()? {
            places.insert(take_place(&mut bytes)?);
        }
        let mut groups = BTreeMap::new();
        for _ in 0..bytes.try_get_u32()? {
            let group = GroupName::new(&take_text(&mut bytes)?)?;
            let mut offsets = BTreeMap::new();
            for _ in 0..bytes.try_get_u32()? {
                let place = take_place(&mut bytes)?;
                let offset = Offset(bytes.try_get_u64()?);
                offsets.insert(place, (offset, take_text(&mut bytes)?));
            }
            groups.insert(group, offsets);
        }
        Ok(Self {
            producer_id,
            epoch,
            timeout,
            phase,
            last_end,
            places,
            last_epoch,
            offsets: groups,
        })
    }
}

const fn number(marker: Marker) -> u8 {
    match marker {
        Marker::Abort => 2,
        Marker::Commit => 3,
    }
}

const fn marker(number: u8) -> Result<Marker, BadStored> {
    match number {
        2 => Ok(Marker::Abort),
        3 => Ok(Marker::Commit),
        other => Err(BadStored::State(other)),
    }
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    put_text(out, place.topic.as_str());
    out.put_u64(place.topic_id);
    out.put_u32(place.partition.0);
}

fn take_place(bytes: &mut bytes::Bytes) -> Result<Place, BadStored> {
    Ok(Place {
        topic: TopicName::new(&take_text(bytes)?)?,
        topic_id: bytes.try_get_u64()?,
        partition: PartitionId(bytes.try_get_u32()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(topic: &str, partition: u32) -> Place {
        Place {
            topic: TopicName::new(topic).unwrap(),
            topic_id: 7,
            partition: PartitionId(partition),
        }
    }

    #[test]
    fn what_was_written_down_comes_back_and_nothing_else_is_read() {
        let now = Instant::now();
        let mut transaction = Transaction::new(5 << 32, Duration::from_millis(60_000));
        transaction.epoch = 3;
        transaction.last_epoch = Some(2);
        transaction.places = [place("a", 0), place("b", 9)].into();
        let offsets = [(place("c", 1), (Offset(5), "text".to_owned()))];
        transaction
            .offsets
            .insert(GroupName::new("g").unwrap(), offsets.into());
        transaction
            .offsets
            .insert(GroupName::new("h").unwrap(), BTreeMap::new());
        for made in [
            transaction.clone(),
            transaction.opened(now),
            transaction.decided(Marker::Abort),
            transaction.decided(Marker::Commit),
            transaction.ended(Marker::Commit),
        ] {
            let bytes = made.encode();
            let read = Transaction::decode(&bytes, now).unwrap();
            assert_eq!(format!("{read:?}"), format!("{made:?}"));
            for cut in 0..bytes.len() {
                assert!(Transaction::decode(&bytes[..cut], now).is_err(), "{cut}");
            }
        }
    }
}
