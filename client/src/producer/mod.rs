//! Producing to one partition: records are gathered into batches, and batches are on their way several at a time.
//!
//! [`Producer::send`] puts a record's frame behind the open batch, in the memory that will go to the socket, and returns
//! a [`Delivery`]. A task seals batches (when full, or when they have lingered), sends them, and gives each its outcome.
//! Records wait in the [`queue`]; the [`task`] owns the connection.

mod queue;
mod task;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use basalt_proto::batch::RecordBatch;
use basalt_proto::session::{ProduceRequest, Request};
use basalt_proto::{
    FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind, Offset, PartitionId, TopicName,
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::config::{ClientConfig, ProducerConfig, WhenFull};
use crate::error::SendError;
use queue::{OutcomeReceiver, Queue};

/// A record to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordToSend {
    /// Nanoseconds since the Unix epoch.
    pub timestamp_ns: u64,
    /// The key. An empty one reads back as absent: a record frame cannot tell them apart.
    pub key: Option<Bytes>,
    /// The payload. It may be empty, but not null: see [`Producer::send_batch`].
    pub payload: Bytes,
}

/// What becomes of a record: its offset once it is stored as durably as was asked; `None` with
/// [`crate::AckLevel::None`], once the system has taken its bytes. Dropping it does not take the record back.
#[derive(Debug, Clone)]
#[must_use = "a record's fate is known only here; drop it deliberately"]
pub struct Delivery {
    outcome: OutcomeReceiver,
    /// Offsets before this record in its batch.
    index: u64,
}

impl Future for Delivery {
    type Output = Result<Option<Offset>, SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.index;
        Poll::Ready(match ready!(Pin::new(&mut self.outcome).poll(cx)) {
            Ok(Ok(base)) => Ok(base.map(|base: Offset| base.saturating_add(index))),
            Ok(Err(error)) => Err(error),
            // The task is gone with its runtime.
            Err(_) => Err(SendError::Closed),
        })
    }
}

/// Sends records to one partition. All methods take `&self`: share it in an `Arc`. Dropping it without
/// [`Producer::close`] lets what was sent finish in the background.
#[derive(Debug)]
pub struct Producer {
    queue: Arc<Queue>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Producer {
    pub(crate) fn start(
        client: Arc<ClientConfig>,
        topic: TopicName,
        partition: PartitionId,
        config: ProducerConfig,
    ) -> Self {
        let mut prefix = Vec::new();
        let request = ProduceRequest {
            topic,
            partition,
            ack: config.ack,
            frames: &[],
        };
        Request::Produce(request).encode_into(0, &mut prefix);
        let queue = Arc::new(Queue::new(config, prefix));
        let task = tokio::spawn(task::Task::new(client, Arc::clone(&queue)).run());
        Self {
            queue,
            task: Mutex::new(Some(task)),
        }
    }

    /// Takes a record. When the queue is full it waits or fails, as configured; the record itself goes out later.
    ///
    /// # Errors
    /// [`SendError::TooLarge`], [`SendError::QueueFull`] or [`SendError::Closed`]; the record was then not taken. What
    /// happens to a record that was taken is told by its [`Delivery`].
    pub async fn send(&self, record: RecordToSend) -> Result<Delivery, SendError> {
        let key = record.key.as_deref().unwrap_or_default();
        let frame_bytes = (FRAME_HEADER_BYTES + key.len() + record.payload.len()) as u64;
        let permits = self.reserve(frame_bytes).await?;
        self.queue.push(
            &Frame::record(record.timestamp_ns, key, &record.payload),
            permits,
        )
    }

    /// Takes a Kafka record batch (see [`basalt_proto::batch::BatchWriter`]), which can say null, headers and compression.
    /// The delivery is the first record's; the others follow it. `timestamp_ns` is the frame's, for time lookups.
    ///
    /// # Errors
    /// [`SendError::Batch`] when it is not sound, and those of [`Producer::send`].
    pub async fn send_batch(&self, timestamp_ns: u64, batch: &[u8]) -> Result<Delivery, SendError> {
        let header = RecordBatch::validate(batch).map_err(|source| SendError::Batch { source })?;
        let permits = self
            .reserve((FRAME_HEADER_BYTES + batch.len()) as u64)
            .await?;
        self.queue.push(
            &Frame::batch(timestamp_ns, batch, header.record_count),
            permits,
        )
    }

    /// Takes a record that stands for `record_count` records, as HermitMQ's producers send them.
    ///
    /// # Errors
    /// Those of [`Producer::send`].
    pub async fn send_opaque(
        &self,
        record: RecordToSend,
        record_count: u32,
    ) -> Result<Delivery, SendError> {
        let key = record.key.as_deref().unwrap_or_default();
        let permits = self
            .reserve((FRAME_HEADER_BYTES + key.len() + record.payload.len()) as u64)
            .await?;
        let mut frame = Frame::record(record.timestamp_ns, key, &record.payload);
        frame.header = FrameHeader {
            kind: FrameKind::Record,
            record_count,
            ..frame.header
        };
        self.queue.push(&frame, permits)
    }

    /// Sends what is waiting without lingering, and waits until every record taken before has its outcome.
    ///
    /// # Errors
    /// The first failure since the last flush.
    pub async fn flush(&self) -> Result<(), SendError> {
        self.queue.flush().await
    }

    /// Takes no more records, and does what [`Producer::flush`] does.
    ///
    /// # Errors
    /// The first failure since the last flush.
    pub async fn close(&self) -> Result<(), SendError> {
        self.queue.close();
        let flushed = self.queue.flush().await;
        let task = self.task.lock().take();
        if let Some(task) = task {
            // It ends by itself once all is settled; it cannot fail but by a panic, which its runtime has reported.
            let _ = task.await;
        }
        flushed
    }

    /// Room for a frame in the queue, in bytes.
    async fn reserve(&self, frame_bytes: u64) -> Result<u32, SendError> {
        let queue = &self.queue;
        let limit_bytes = queue.config.queue_bytes;
        let permits = u32::try_from(frame_bytes)
            .ok()
            .filter(|bytes| *bytes <= limit_bytes);
        let Some(permits) = permits else {
            return Err(SendError::TooLarge {
                found_bytes: frame_bytes,
                limit_bytes,
            });
        };
        let permit = match queue.room.try_acquire_many(permits) {
            Ok(permit) => permit,
            Err(_) if queue.config.when_full == WhenFull::Fail => {
                return Err(SendError::QueueFull {
                    queue_bytes: limit_bytes,
                });
            }
            Err(_) => {
                // What lingers takes the room that is waited for.
                queue.seal_open();
                queue
                    .room
                    .acquire_many(permits)
                    .await
                    .map_err(|_| SendError::Closed)?
            }
        };
        permit.forget();
        Ok(permits)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

#[cfg(test)]
mod tests;
