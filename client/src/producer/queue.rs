//! Records between `send` and their outcome.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::pin::pin;

use basalt_proto::session::seal_request;
use basalt_proto::{Frame, Offset};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::Shared;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::Delivery;
use crate::config::ProducerConfig;
use crate::error::SendError;

/// Where a batch was stored; `None` when nobody was to say.
pub(super) type Outcome = Result<Option<Offset>, SendError>;
pub(super) type OutcomeReceiver = Shared<oneshot::Receiver<Outcome>>;

/// Memory that a batch starts with; it grows up to the batch's size and is given away with it.
const FIRST_BATCH_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) config: ProducerConfig,
    /// Bytes that `send` may still take; given back with each outcome.
    pub(super) room: Semaphore,
    /// Wakes the task: there is a batch to linger or to send, or the end.
    pub(super) work: Notify,
    /// Wakes those who wait for outcomes.
    settled: Notify,
    /// A produce request without frames.
    prefix: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<OpenBatch>,
    ready: VecDeque<SealedBatch>,
    next_sequence: u64,
    /// Batches without an outcome.
    unsettled: BTreeSet<u64>,
    first_error: Option<SendError>,
    closed: bool,
}

#[derive(Debug)]
struct OpenBatch {
    sequence: u64,
    message: Vec<u8>,
    record_count: u64,
    permits: usize,
    outcome: oneshot::Sender<Outcome>,
    receiver: OutcomeReceiver,
}

/// A batch that is ready to be sent: a whole request, whose correlation id is the low half of its sequence number.
#[derive(Debug)]
pub(super) struct SealedBatch {
    pub(super) sequence: u64,
    pub(super) message: Bytes,
    /// Whether it may have reached a server before.
    pub(super) was_sent: bool,
    permits: usize,
    outcome: oneshot::Sender<Outcome>,
}

impl SealedBatch {
    pub(super) fn correlation_id(&self) -> u32 {
        correlation_id(self.sequence)
    }
}

/// At most `max_in_flight` batches are on a connection at once, so ids come around long after they are free again.
fn correlation_id(sequence: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = sequence.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// What the task finds when it looks for work.
#[derive(Debug)]
pub(super) enum Work {
    /// Send this.
    Send(SealedBatch),
    /// This batch is open; seal it when it has lingered.
    Linger {
        /// Its sequence number.
        sequence: u64,
    },
    /// Nothing yet.
    Idle,
    /// Nothing any more.
    Done,
}

impl Queue {
    pub(super) fn new(config: ProducerConfig, prefix: Vec<u8>) -> Self {
        Self {
            config,
            room: Semaphore::new(config.queue_bytes as usize),
            work: Notify::new(),
            settled: Notify::new(),
            prefix,
            state: Mutex::new(State::default()),
        }
    }

    /// Puts a frame, for which room was reserved, behind the others.
    pub(super) fn push(&self, frame: &Frame<'_>, permits: u32) -> Result<Delivery, SendError> {
        let frame_bytes = permits as usize;
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            self.room.add_permits(frame_bytes);
            return Err(SendError::Closed);
        }
        let mut wake = false;
        if state
            .open
            .as_ref()
            .is_some_and(|open| open.permits + frame_bytes > self.config.batch_bytes)
        {
            state.seal_open();
            wake = true;
        }
        let mut open = state.open.take().unwrap_or_else(|| {
            wake = true;
            state.begin(&self.prefix)
        });
        let delivery = Delivery {
            outcome: open.receiver.clone(),
            index: open.record_count,
        };
        frame.encode_into(&mut open.message);
        open.record_count += u64::from(frame.header.logical_count());
        open.permits += frame_bytes;
        let full = open.permits >= self.config.batch_bytes;
        state.open = Some(open);
        if full {
            state.seal_open();
            wake = true;
        }
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(delivery)
    }

    /// Makes the open batch ready to be sent, if there is one.
    pub(super) fn seal_open(&self) {
        self.state.lock().seal_open();
        self.work.notify_one();
    }

    /// Makes this batch ready to be sent if it is still open: another may have taken its place.
    pub(super) fn seal_lingered(&self, lingered: u64) {
        let mut state = self.state.lock();
        if state
            .open
            .as_ref()
            .is_some_and(|open| open.sequence == lingered)
        {
            state.seal_open();
        }
    }

    /// What there is to do for a task that can send.
    pub(super) fn next_work(&self) -> Work {
        let mut state = self.state.lock();
        if self.config.linger.is_zero() && state.ready.is_empty() {
            state.seal_open();
        }
        if let Some(batch) = state.ready.pop_front() {
            return Work::Send(batch);
        }
        match &state.open {
            Some(open) => Work::Linger {
                sequence: open.sequence,
            },
            None if state.closed => Work::Done,
            None => Work::Idle,
        }
    }

    /// Puts batches back that must be sent again, before all others.
    pub(super) fn put_back(&self, batches: Vec<SealedBatch>) {
        let mut state = self.state.lock();
        for batch in batches.into_iter().rev() {
            state.ready.push_front(batch);
        }
    }

    #[cfg(test)]
    pub(super) fn ready_count(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Takes all that waits to be sent.
    pub(super) fn take_all(&self) -> Vec<SealedBatch> {
        let mut state = self.state.lock();
        state.seal_open();
        mem::take(&mut state.ready).into()
    }

    /// Gives a batch its outcome, and its room back.
    pub(super) fn settle(&self, batch: SealedBatch, outcome: Outcome) {
        {
            let mut state = self.state.lock();
            state.unsettled.remove(&batch.sequence);
            if let Err(error) = &outcome {
                state.first_error.get_or_insert_with(|| error.clone());
            }
        }
        // Nobody may be waiting for it.
        let _ = batch.outcome.send(outcome);
        self.room.add_permits(batch.permits);
        self.settled.notify_waiters();
    }

    pub(super) async fn flush(&self) -> Result<(), SendError> {
        let end = {
            let mut state = self.state.lock();
            state.seal_open();
            state.next_sequence
        };
        self.work.notify_one();
        loop {
            // Listening begins before looking, so that no outcome falls in between.
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.unsettled.first().is_none_or(|oldest| *oldest >= end) {
                    return state.first_error.take().map_or(Ok(()), Err);
                }
            }
            settled.await;
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.seal_open();
        drop(state);
        self.work.notify_one();
    }
}

impl State {
    fn begin(&mut self, prefix: &[u8]) -> OpenBatch {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.unsettled.insert(sequence);
        let (outcome, receiver) = oneshot::channel();
        let mut message = Vec::with_capacity(FIRST_BATCH_BYTES);
        message.extend_from_slice(prefix);
        OpenBatch {
            sequence,
            message,
            record_count: 0,
            permits: 0,
            outcome,
            receiver: receiver.shared(),
        }
    }

    fn seal_open(&mut self) {
        let Some(open) = self.open.take() else { return };
        let OpenBatch {
            sequence,
            mut message,
            permits,
            outcome,
            ..
        } = open;
        seal_request(&mut message, correlation_id(sequence));
        let message = Bytes::from(message);
        self.ready.push_back(SealedBatch {
            sequence,
            message,
            was_sent: false,
            permits,
            outcome,
        });
    }
}
