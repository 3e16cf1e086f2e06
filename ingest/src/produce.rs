//! Producers: frames in, acknowledgements out, each at its own pace.
//!
//! Two halves of one task share the socket. The reading half appends all complete frames that have come as one batch
//! (with Kafka batches among them, as many as are checked in one turn) and
//! goes on reading; the answering half waits for each batch to become durable and writes its acknowledgements in one go.
//! So frames that arrive during an fsync are appended meanwhile and share the next one.
//!
//! ING-1: the answering half takes batches in the order they were appended, and answers none before it is durable.
//! ING-2: what waits to be answered is bounded by [`ACK_BUDGET_BYTES`]; when that is used up, reading stops.

use std::sync::Arc;

use basalt_columnar::TieredPartition;
use basalt_log::{Appended, Durability, Topic};
use basalt_proto::{
    ACK_BYTES, Ack, ErrorKind, FrameBatch, FramePrefix, FrameStop, Offset, PartitionId, TopicName,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::Counters;
use crate::config::ACK_BUDGET_BYTES;
use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::output::Then;
use crate::verify::Turn;

/// The byte that opens a producer's connection.
pub(crate) const FIRST_BYTE: u8 = 0x01;

/// Appends that may wait for their fsync at a time; what they hold is bounded by bytes.
const MAX_WAITING_BATCHES: usize = 1024;

/// What the reading half leaves to be answered.
#[derive(Debug)]
struct Waiting {
    answer: Answer,
    /// The share of the budget that the answer holds.
    _share: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Answer {
    /// Frames that are appended: their acks for when they are durable.
    Appended {
        appended: Appended,
        durability: Durability,
        frame_count: usize,
        acks: Vec<u8>,
    },
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
    answers: mpsc::Sender<Waiting>,
    budget: Arc<Semaphore>,
}

impl Reader<'_> {
    async fn run(mut self) -> Result<(), ConnectionError> {
        let shared = self.connection.shared;
        loop {
            let Turn { prefix, more } = shared
                .verifier
                .prefix(self.input.unread(), &shared.config.limits)
                .await;
            let FramePrefix { batch, stop } = prefix;
            let appended = batch.map(|batch| (self.append(&batch), batch.bytes().len()));
            if let Some((answer, used)) = appended {
                let fatal = answer.is_fatal();
                if self.leave(answer).await.is_err() {
                    return Ok(());
                }
                self.input.consume(used);
                // Both halves are one task: a producer that never pauses must not keep its own answers waiting.
                tokio::task::yield_now().await;
                if let Some(refusal) = fatal {
                    return Err(refusal.into());
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

    /// Appends the batch; what to answer, whichever way it went.
    fn append(&self, batch: &FrameBatch<'_>) -> Answer {
        let counters = &self.connection.shared.counters;
        let durability = Durability::from(self.topic.config().durability);
        let frame_count = batch.frame_count();
        match self.partition.hot().append(batch, durability) {
            Ok(appended) => {
                Counters::increment(&counters.appends);
                Counters::add(&counters.frames_in, frame_count as u64);
                Counters::add(&counters.records_in, batch.record_count());
                Counters::add(&counters.bytes_in, batch.bytes().len() as u64);
                let acks = stored_acks(batch, appended.base_offset);
                Answer::Appended {
                    appended,
                    durability,
                    frame_count,
                    acks,
                }
            }
            Err(error) => {
                let refusal = self
                    .connection
                    .shared
                    .append_refusal(&self.partition, error);
                counters.refuse(refusal.kind, frame_count as u64);
                Answer::Refused {
                    refusal,
                    frame_count,
                }
            }
        }
    }

    /// Leaves an answer to the answering half, once the budget has room for it.
    async fn leave(&self, answer: Answer) -> Result<(), ()> {
        let share = u32::try_from(answer.bytes().min(ACK_BUDGET_BYTES)).map_err(drop)?;
        let share = Arc::clone(&self.budget)
            .acquire_many_owned(share)
            .await
            .map_err(drop)?;
        self.answers
            .send(Waiting {
                answer,
                _share: share,
            })
            .await
            .map_err(drop)
    }
}

impl Answer {
    fn bytes(&self) -> usize {
        match self {
            Self::Appended { frame_count, .. } | Self::Refused { frame_count, .. } => {
                frame_count * ACK_BYTES
            }
        }
    }

    /// The refusal after which the connection ends: one that no later frame would fare better than.
    fn is_fatal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. }
                if !refusal.kind.is_retryable() || refusal.kind == ErrorKind::ShuttingDown =>
            {
                Some(refusal.clone())
            }
            _ => None,
        }
    }
}

/// The acks of frames appended from `base` on, one behind the other.
fn stored_acks(batch: &FrameBatch<'_>, base: Offset) -> Vec<u8> {
    let mut acks = Vec::with_capacity(batch.frame_count() * ACK_BYTES);
    let mut offset = base;
    for frame in batch.frames().flatten() {
        acks.extend_from_slice(&Ack::Stored(offset).encode());
        offset = offset.saturating_add(u64::from(frame.header.logical_count()));
    }
    acks
}

pub(crate) fn refusal_ack(refusal: &Refusal) -> [u8; ACK_BYTES] {
    Ack::Refused {
        kind: refusal.kind,
        retry_after_ms: refusal.retry_after_ms(),
    }
    .encode()
}

async fn answer_all(
    connection: &Connection<'_>,
    partition: &TieredPartition,
    mut waiting: mpsc::Receiver<Waiting>,
) -> Result<(), ConnectionError> {
    let shared = connection.shared;
    let output = connection.output();
    while let Some(Waiting {
        answer,
        _share: share,
    }) = waiting.recv().await
    {
        let bytes = match answer {
            Answer::Appended {
                appended,
                durability,
                frame_count,
                acks,
            } => match partition.hot().acknowledged(&appended, durability).await {
                Ok(()) => acks,
                Err(error) => {
                    let refusal = shared.append_refusal(partition, error);
                    shared.counters.refuse(refusal.kind, frame_count as u64);
                    refusal_ack(&refusal).repeat(frame_count)
                }
            },
            Answer::Refused {
                refusal,
                frame_count,
            } => refusal_ack(&refusal).repeat(frame_count),
        };
        output.send(&bytes, Then::Nothing).await?;
        Counters::increment(&shared.counters.ack_writes);
        drop(share);
    }
    Ok(())
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
        let acks = stored_acks(&batch, Offset(10));
        let expected: Vec<u8> = [10, 15, 16]
            .iter()
            .flat_map(|at| Ack::Stored(Offset(*at)).encode())
            .collect();
        assert_eq!(acks, expected);
    }
}
