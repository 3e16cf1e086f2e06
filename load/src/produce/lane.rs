//! One stream of records: from one connection to one partition.

use std::sync::Arc;

use basalt_proto::session::{AckLevel, ProduceRequest, Request};
use basalt_proto::{PartitionId, TopicName};

use crate::ring::Ring;
use crate::schedule::Schedule;
use crate::shared::{SentAt, Window};

/// What one stream has sent, and what it has still to send.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) partition: u32,
    pub(crate) ring: Arc<Ring>,
    /// Where in the circle the next record is.
    pub(crate) place: usize,
    /// Records sent so far; the number of the next one.
    pub(crate) sent: u64,
    /// Records to send; `u64::MAX` if the time bounds them.
    pub(crate) quota: u64,
    /// When each is due; `None` in a closed loop.
    pub(crate) schedule: Option<Schedule>,
    /// For readers that measure a closed loop.
    pub(crate) sent_at: Option<Arc<SentAt>>,
    /// A produce request without frames; empty where there are no requests.
    pub(crate) head: Vec<u8>,
    /// Nobody else sends to the partition, so that acknowledged offsets follow one another.
    pub(crate) alone: bool,
    /// The offset that must be acknowledged next, once it is known.
    pub(crate) next_offset: Option<u64>,
    /// The first offset that was acknowledged.
    pub(crate) first_offset: Option<u64>,
}

impl Lane {
    /// Records that may be sent now, at most `batch`.
    pub(super) fn ready(&self, now_ns: u64, batch: u32, window: &Window) -> u32 {
        let left = self.quota - self.sent;
        let ready = match &self.schedule {
            Some(schedule) => schedule
                .due_count(now_ns.min(window.until_ns - 1))
                .saturating_sub(self.sent),
            None if window.is_over(now_ns) => 0,
            None => left,
        };
        u32::try_from(ready.min(left)).unwrap_or(batch).min(batch)
    }

    /// Whether nothing more will ever be ready.
    pub(super) fn is_done(&self, now_ns: u64, window: &Window) -> bool {
        self.sent == self.quota
            || (window.is_over(now_ns)
                && self
                    .schedule
                    .is_none_or(|schedule| schedule.due_count(window.until_ns - 1) <= self.sent))
    }

    /// When the next record is due; `None` in a closed loop or when there is none.
    pub(super) fn next_due_ns(&self, window: &Window) -> Option<u64> {
        let due = self
            .schedule
            .filter(|_| self.sent < self.quota)?
            .due_ns(self.sent);
        (due < window.until_ns).then_some(due)
    }

    /// Takes note that `count` records were given to the connection.
    pub(super) fn advance(&mut self, count: u32, now_ns: u64) {
        if let Some(sent_at) = &self.sent_at {
            sent_at.set(self.sent, now_ns);
        }
        self.sent += u64::from(count);
        self.place = (self.place + count as usize) % self.ring.len();
    }

    /// Whether the offsets `[base, base + count)` are what had to be acknowledged next.
    pub(super) fn follows(&mut self, base: u64, count: u64) -> bool {
        self.first_offset.get_or_insert(base);
        let follows = match self.next_offset {
            Some(expected) if self.alone => base == expected,
            Some(earliest) => base >= earliest,
            None => true,
        };
        self.next_offset = Some(base.saturating_add(count));
        follows
    }
}

/// A produce request up to its frames.
pub(crate) fn head(topic: &TopicName, partition: u32, ack: AckLevel) -> Vec<u8> {
    let request = ProduceRequest {
        topic: topic.clone(),
        partition: PartitionId(partition),
        ack,
        frames: &[],
    };
    let mut head = Vec::new();
    Request::Produce(request).encode_into(0, &mut head);
    head
}
