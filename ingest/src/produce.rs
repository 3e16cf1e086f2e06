//! Producers: frames in, acknowledgements out, each at its own pace.
//!
//! Two halves of one task share the socket. The reading half appends all complete frames that have come as one batch
//! (with Kafka batches among them, as many as are checked in one turn). Where the page cache is enough it also writes
//! their acknowledgements, in one go, unless some are waiting before them. All others it leaves to the answering half and
//! goes on reading; that half waits for each batch to become durable, and writes what has become so together. So frames
//! that arrive during an fsync are appended meanwhile and share the next one.
//!
//! ING-1: acknowledgements leave in the order in which their frames were appended, and none before they are durable.
//! ING-2: what waits to be answered is bounded by [`ACK_BUDGET_BYTES`]; when that is used up, reading stops.

use std::sync::Arc;

use basalt_columnar::TieredPartition;
use basalt_log::{Appended, Durability, Topic};
use basalt_proto::{
    ACK_BYTES, Ack, ErrorKind, FrameBatch, FramePrefix, FrameStop, Offset, PartitionId, TopicName,
};
use futures::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::Counters;
use crate::commit_wait::CommitWait;
use crate::config::ACK_BUDGET_BYTES;
use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::output::{Output, Then};
use crate::shared::Shared;
use crate::verify::Turn;

/// The byte that opens a producer's connection.
pub(crate) const FIRST_BYTE: u8 = 0x01;

/// Appends that may wait for their fsync at a time; what they hold is bounded by bytes.
const MAX_WAITING_BATCHES: usize = 1024;
/// Acknowledgements that have become due together leave in one write of about so many bytes.
const MAX_COALESCED_BYTES: usize = 64 << 10;

/// What the reading half leaves to be answered.
#[derive(Debug)]
struct Waiting {
    answer: Answer,
    /// The share of the budget that the answer holds.
    share: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Answer {
    /// Frames that are appended and not on disk yet: their acks for when they are.
    Appended {
        appended: Appended,
        frame_count: usize,
        acks: Vec<u8>,
        wait: CommitWait,
    },
    /// Acks that are due, but that the peer did not take at once, or that have others before them.
    Due { acks: Vec<u8> },
    /// Frames that are not.
    Refused {
        refusal: Refusal,
        frame_count: usize,
    },
}

pub(crate) async fn serve(
    connection: &Connection<'_>,
    topic: &TopicName,
    partition: PartitionId,
    input: Input,
) -> Result<(), ConnectionError> {
    let found = match connection
        .shared
        .partition_or_create(topic, partition)
        .await
    {
        Ok(partition) => connection
            .shared
            .topic(topic)
            .map(|topic| (topic, partition)),
        Err(refusal) => Err(refusal),
    };
    let (topic, partition) = match found {
        Ok(found) => found,
        Err(refusal) => {
            connection.shared.counters.refuse(refusal.kind, 1);
            connection
                .output()
                .send(&refusal_ack(&refusal), Then::Nothing)
                .await?;
            return Err(refusal.into());
        }
    };
    let (sender, receiver) = mpsc::channel(MAX_WAITING_BATCHES);
    let reading = Reader {
        connection,
        topic,
        partition: Arc::clone(&partition),
        input,
        acks: Vec::new(),
        answers: sender,
        budget: Arc::new(Semaphore::new(ACK_BUDGET_BYTES)),
    };
    let mut reading = std::pin::pin!(reading.run());
    let mut answering = std::pin::pin!(answer_all(connection, &partition, receiver));
    tokio::select! {
        biased;
        // Answering ends first only by failing: nobody could be told of what is read from here on.
        answered = &mut answering => answered,
        read = &mut reading => {
            // The reader has dropped its sender: what it appended is answered, and then that is all.
            answering.await?;
            read
        }
    }
}

struct Reader<'a> {
    connection: &'a Connection<'a>,
    topic: Arc<Topic>,
    partition: Arc<TieredPartition>,
    input: Input,
    /// Of the last batch: memory that is used again.
    acks: Vec<u8>,
    answers: mpsc::Sender<Waiting>,
    budget: Arc<Semaphore>,
}

impl Reader<'_> {
    async fn run(mut self) -> Result<(), ConnectionError> {
        let shared = self.connection.shared;
        loop {
            let unread = self.input.unread();
            let check = shared.check_for(unread, &self.topic.config());
            let Turn { prefix, more } = shared.verifier.prefix(check, unread.len()).await;
            let FramePrefix { batch, stop } = prefix;
            if let Some(batch) = batch {
                let used = batch.bytes().len();
                let appended = append(
                    self.connection.shared,
                    &self.topic,
                    &self.partition,
                    &batch,
                    &mut self.acks,
                );
                self.input.consume(used);
                match appended {
                    Ok(None) => self.acknowledge().await?,
                    Ok(Some(waiting)) => {
                        if self.leave(waiting).await.is_err() {
                            return Ok(());
                        }
                    }
                    Err((refusal, frame_count)) => {
                        let fatal = is_fatal(&refusal).then(|| refusal.clone());
                        if self
                            .leave(Answer::Refused {
                                refusal,
                                frame_count,
                            })
                            .await
                            .is_err()
                        {
                            return Ok(());
                        }
                        if let Some(refusal) = fatal {
                            return Err(refusal.into());
                        }
                    }
                }
            }
            let needed_bytes = match stop {
                FrameStop::End | FrameStop::Incomplete { .. } if more => continue,
                FrameStop::End => basalt_proto::FRAME_HEADER_BYTES,
                FrameStop::Incomplete { needed_bytes, .. } => {
                    // Within the limits, which fit memory: the walk has checked the header.
                    usize::try_from(needed_bytes).unwrap_or(usize::MAX)
                }
                FrameStop::Refused { error, .. } => {
                    let refusal = Refusal::from(error);
                    shared.counters.refuse(refusal.kind, 1);
                    // Nobody left to tell is no reason not to log what was wrong.
                    let _ = self
                        .leave(Answer::Refused {
                            refusal: refusal.clone(),
                            frame_count: 1,
                        })
                        .await;
                    return Err(refusal.into());
                }
            };
            match self
                .input
                .fill(
                    self.connection.stream,
                    needed_bytes,
                    shared,
                    self.connection.shutdown,
                )
                .await
            {
                Ok(Filled::More) => {}
                Ok(Filled::Eof | Filled::Stopping) => return Ok(()),
                Err(ConnectionError::Refused(refusal)) => {
                    shared.counters.refuse(refusal.kind, 1);
                    let _ = self
                        .leave(Answer::Refused {
                            refusal: refusal.clone(),
                            frame_count: 1,
                        })
                        .await;
                    return Err(refusal.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes [`Self::acks`], which are due. What the peer does not take at once, or all of it when others are waiting
    /// before, is left to the answering half.
    async fn acknowledge(&mut self) -> Result<(), ConnectionError> {
        let mut sent = 0;
        // The budget is whole when everything before has been written.
        if self.budget.available_permits() == ACK_BUDGET_BYTES {
            sent = self.connection.try_send(&self.acks)?;
            Counters::increment(&self.connection.shared.counters.ack_writes);
        }
        if sent < self.acks.len() {
            let acks = self.acks[sent..].to_vec();
            // The answering half ends first only by failing, and says why.
            let _ = self.leave(Answer::Due { acks }).await;
        }
        self.acks.shrink_to(MAX_COALESCED_BYTES);
        Ok(())
    }

    /// Leaves an answer to the answering half, once the budget has room for it.
    async fn leave(&self, answer: Answer) -> Result<(), ()> {
        let share = u32::try_from(answer.bytes().min(ACK_BUDGET_BYTES)).map_err(drop)?;
        let share = Arc::clone(&self.budget)
            .acquire_many_owned(share)
            .await
            .map_err(drop)?;
        self.answers
            .send(Waiting { answer, share })
            .await
            .map_err(drop)
    }
}

impl Answer {
    fn bytes(&self) -> usize {
        match self {
            Self::Appended { acks, .. } | Self::Due { acks } => acks.len(),
            Self::Refused { frame_count, .. } => frame_count * ACK_BYTES,
        }
    }
}

/// Whether the connection ends after the refusal: no later frame would fare better.
fn is_fatal(refusal: &Refusal) -> bool {
    !refusal.kind.is_retryable() || refusal.kind == ErrorKind::ShuttingDown
}

/// Appends the batch. `None` when its acks, which are then in `acks`, are due; else what has to be waited for.
///
/// # Errors
/// Why nothing was appended, and of how many frames.
fn append(
    shared: &Shared,
    topic: &Topic,
    partition: &TieredPartition,
    batch: &FrameBatch<'_>,
    acks: &mut Vec<u8>,
) -> Result<Option<Answer>, (Refusal, usize)> {
    let durability = Durability::from(topic.config().durability);
    let frame_count = batch.frame_count();
    let wait = (durability == Durability::Fsync).then(|| shared.commits.enter(partition));
    let appended = match partition.append(batch, durability) {
        Ok(appended) => appended,
        Err(error) => {
            let refusal = shared.append_refusal(partition, error);
            shared.counters.refuse(refusal.kind, frame_count as u64);
            return Err((refusal, frame_count));
        }
    };
    shared.counters.stored(batch);
    acks.clear();
    put_acks(batch, appended.base_offset, acks);
    Ok(wait.map(|wait| Answer::Appended {
        appended,
        frame_count,
        acks: std::mem::take(acks),
        wait,
    }))
}

/// Appends the acks of frames that were appended from `base` on, one behind the other.
fn put_acks(batch: &FrameBatch<'_>, base: Offset, acks: &mut Vec<u8>) {
    let frame_count = batch.frame_count();
    let start = acks.len();
    acks.resize(start + frame_count * ACK_BYTES, 0);
    let slots = acks[start..].as_chunks_mut::<ACK_BYTES>().0.iter_mut();
    if batch.record_count() == frame_count as u64 {
        // One offset a frame, whatever is in them: no need to look again.
        for (slot, offset) in slots.zip(base.0..) {
            *slot = Ack::Stored(Offset(offset)).encode();
        }
        return;
    }
    let mut offset = base;
    for (slot, frame) in slots.zip(batch.frames().flatten()) {
        *slot = Ack::Stored(offset).encode();
        offset = offset.saturating_add(u64::from(frame.header.logical_count()));
    }
}

pub(crate) fn refusal_ack(refusal: &Refusal) -> [u8; ACK_BYTES] {
    Ack::Refused {
        kind: refusal.kind,
        retry_after_ms: refusal.retry_after_ms(),
    }
    .encode()
}

/// Answers in order what the reading half has left, as each is due.
async fn answer_all(
    connection: &Connection<'_>,
    partition: &TieredPartition,
    mut waiting: mpsc::Receiver<Waiting>,
) -> Result<(), ConnectionError> {
    let (shared, output) = (connection.shared, connection.output());
    // What has become due, and its shares of the budget until it is written.
    let (mut due, mut shares) = (Vec::new(), Vec::new());
    let mut next = waiting.recv().await;
    while let Some(Waiting { answer, share }) = next.take() {
        let mut settling = std::pin::pin!(settle(shared, partition, answer));
        let acks = match settling.as_mut().now_or_never() {
            Some(acks) => acks,
            None => {
                // It has to be waited for, and what is due does not.
                send_due(connection, &output, &mut due, &mut shares).await?;
                settling.await
            }
        };
        due.extend_from_slice(&acks);
        shares.push(share);
        next = waiting.try_recv().ok();
        if next.is_none() || due.len() >= MAX_COALESCED_BYTES {
            send_due(connection, &output, &mut due, &mut shares).await?;
        }
        if next.is_none() {
            next = waiting.recv().await;
        }
    }
    Ok(())
}

async fn send_due(
    connection: &Connection<'_>,
    output: &Output<'_>,
    due: &mut Vec<u8>,
    shares: &mut Vec<OwnedSemaphorePermit>,
) -> Result<(), ConnectionError> {
    if !due.is_empty() {
        output.send(due, Then::Nothing).await?;
        Counters::increment(&connection.shared.counters.ack_writes);
        due.clear();
        due.shrink_to(MAX_COALESCED_BYTES);
    }
    shares.clear();
    Ok(())
}

/// The acks of an answer, once they are due.
async fn settle(shared: &Shared, partition: &TieredPartition, answer: Answer) -> Vec<u8> {
    match answer {
        Answer::Due { acks } => acks,
        Answer::Refused {
            refusal,
            frame_count,
        } => refusal_ack(&refusal).repeat(frame_count),
        Answer::Appended {
            appended,
            frame_count,
            acks,
            wait,
        } => {
            let durable = partition
                .hot()
                .acknowledged(&appended, Durability::Fsync)
                .await;
            drop(wait);
            match durable {
                Ok(()) => acks,
                Err(error) => {
                    let refusal = shared.append_refusal(partition, error);
                    shared.counters.refuse(refusal.kind, frame_count as u64);
                    refusal_ack(&refusal).repeat(frame_count)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use basalt_proto::{Frame, FrameLimits, patch_record_count};

    use super::*;

    #[test]
    fn acks_skip_the_offsets_a_frame_spans() {
        let mut bytes = Vec::new();
        for record_count in [5, 0, 3] {
            let at = bytes.len();
            Frame::record(1, b"", b"x").encode_into(&mut bytes);
            patch_record_count(&mut bytes[at..], record_count);
        }
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
        let mut acks = Vec::new();
        put_acks(&batch, Offset(10), &mut acks);
        let expected: Vec<u8> = [10, 15, 16]
            .iter()
            .flat_map(|at| Ack::Stored(Offset(*at)).encode())
            .collect();
        assert_eq!(acks, expected);
    }

    #[test]
    fn acks_of_frames_of_one_record_each_count_up() {
        let mut bytes = Vec::new();
        (0..3).for_each(|_| Frame::record(1, b"", b"x").encode_into(&mut bytes));
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
        let mut acks = Vec::new();
        put_acks(&batch, Offset(7), &mut acks);
        let expected: Vec<u8> = [7, 8, 9]
            .iter()
            .flat_map(|at| Ack::Stored(Offset(*at)).encode())
            .collect();
        assert_eq!(acks, expected);
    }
}
