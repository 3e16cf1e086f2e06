//! Reading a partition from a start to an end, or for ever.

use std::sync::Arc;
use std::time::Duration;

use basalt_proto::session::{FetchRequest, FetchResponseHeader, NO_END_OFFSET, Request, Start};
use basalt_proto::{FrameLimits, FrameWalk, Offset, PartitionId, TopicName};
use bytes::Bytes;

use crate::client::reconnect;
use crate::config::{ClientConfig, ConsumerConfig};
use crate::connection::{Connection, Pending, Response};
use crate::error::{ClientError, ConnectionLost};

/// Frames of one partition, whole and in order.
#[derive(Debug, Clone)]
pub struct FetchedFrames {
    /// The frames, one after the other. Empty when the server had none in time, or none before the end.
    pub bytes: Bytes,
    /// Where to go on.
    pub next_offset: Offset,
    /// The first readable offset, when the server answered.
    pub log_start_offset: Offset,
    /// The end of what was readable, when the server answered.
    pub high_watermark: Offset,
    /// Nothing more will come before the end offset that was asked for.
    pub end_reached: bool,
}

impl FetchedFrames {
    /// The frames. The first may begin before the offset that was asked for, if it spans it.
    #[must_use]
    pub fn frames(&self) -> FrameWalk<'_> {
        FrameWalk::new(&self.bytes, FrameLimits::UNLIMITED)
    }

    pub(crate) fn decode(body: &Bytes) -> Result<Self, ClientError> {
        let (header, frames) = FetchResponseHeader::decode_prefix(body)
            .map_err(|source| ClientError::Garbled { source })?;
        Ok(Self {
            bytes: body.slice_ref(frames),
            next_offset: header.next_offset,
            log_start_offset: header.log_start_offset,
            high_watermark: header.high_watermark,
            end_reached: header.end_reached,
        })
    }
}

/// Reads one partition. While the caller works on a response, the next one is under way.
#[derive(Debug)]
pub struct Consumer {
    client: Arc<ClientConfig>,
    config: ConsumerConfig,
    topic: TopicName,
    partition: PartitionId,
    /// Where the next request starts: where the last response said.
    position: Start,
    ended: bool,
    failure_count: u32,
    connection: Option<Connection>,
    ahead: Option<Pending<Response>>,
}

impl Consumer {
    pub(crate) fn new(
        client: Arc<ClientConfig>,
        topic: TopicName,
        partition: PartitionId,
        start: Start,
        config: ConsumerConfig,
    ) -> Self {
        Self {
            client,
            config,
            topic,
            partition,
            position: start,
            ended: false,
            failure_count: 0,
            connection: None,
            ahead: None,
        }
    }

    /// Where it reads next: the start it was given until the first response, then an offset.
    #[must_use]
    pub const fn position(&self) -> Start {
        self.position
    }

    /// The next frames, at least one; waits until there are some. `None` at the end offset. A lost connection and a busy
    /// server are tried again as [`crate::Reconnect`] says, from where reading stopped: nothing is skipped or repeated.
    ///
    /// Dropping the future before it is ready loses nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with what the server said, above all
    /// [`basalt_proto::ErrorKind::OffsetOutOfRange`] and the bounds; [`ClientError::Connect`] and
    /// [`ClientError::OutcomeUnknown`] when trying again was of no use. Calling again after an error starts where it
    /// stopped.
    pub async fn next(&mut self) -> Result<Option<FetchedFrames>, ClientError> {
        while !self.ended {
            let answer = self.answer().await;
            self.ahead = None;
            match answer.and_then(Response::into_body) {
                Ok(body) => {
                    self.failure_count = 0;
                    let fetched = self.accept(&body)?;
                    if !fetched.bytes.is_empty() {
                        return Ok(Some(fetched));
                    }
                }
                Err(ClientError::OutcomeUnknown { source }) => {
                    self.connection = None;
                    self.wait(ClientError::OutcomeUnknown { source }, Duration::ZERO)
                        .await?;
                }
                Err(ClientError::Refused { response }) if response.kind.is_retryable() => {
                    let advice = Duration::from_millis(u64::from(response.retry_after_ms));
                    // A server that says why it cannot answer yet must not look like a topic without records.
                    tracing::warn!(kind = ?response.kind, message = %response.message, "the server cannot be read for now, trying again");
                    self.wait(ClientError::Refused { response }, advice).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The answer to the request under way, which is started if there is none. What must outlive a dropped future is
    /// kept in `self`.
    async fn answer(&mut self) -> Result<Response, ClientError> {
        if self.ahead.is_none() {
            let connection = match self.connection.take() {
                Some(connection) if !connection.is_lost() => connection,
                _ => reconnect(&self.client, &mut self.failure_count).await?,
            };
            let pending = connection.start(&Request::Fetch(self.request()));
            self.connection = Some(connection);
            self.ahead = Some(pending.map_err(|source| ClientError::OutcomeUnknown { source })?);
        }
        let timeout = self
            .client
            .request_timeout
            .saturating_add(self.config.max_wait);
        let lost = match &mut self.ahead {
            Some(pending) => match tokio::time::timeout(timeout, pending).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(lost)) => lost,
                Err(_) => ConnectionLost::TimedOut { timeout },
            },
            None => ConnectionLost::Abandoned,
        };
        Err(ClientError::OutcomeUnknown { source: lost })
    }

    /// Takes a response over: moves on, and starts the next request, so that it is under way while the caller works.
    fn accept(&mut self, body: &Bytes) -> Result<FetchedFrames, ClientError> {
        let fetched = FetchedFrames::decode(body)?;
        if let Start::Offset(asked) = self.position
            && !fetched.bytes.is_empty()
            && fetched.next_offset <= asked
        {
            return Err(ClientError::NoProgress {
                asked,
                next: fetched.next_offset,
            });
        }
        self.position = Start::Offset(fetched.next_offset);
        self.ended = fetched.end_reached;
        if let Some(connection) = self.connection.as_ref().filter(|_| !self.ended) {
            // If it is lost by now, the next call finds that out and connects again.
            self.ahead = connection.start(&Request::Fetch(self.request())).ok();
        }
        Ok(fetched)
    }

    fn request(&self) -> FetchRequest {
        FetchRequest {
            topic: self.topic.clone(),
            partition: self.partition,
            start: self.position,
            max_bytes: self.config.max_bytes,
            min_bytes: self.config.min_bytes,
            max_wait_ms: u32::try_from(self.config.max_wait.as_millis()).unwrap_or(u32::MAX),
            end_offset: self.config.end_offset.unwrap_or(NO_END_OFFSET),
        }
    }

    /// Waits before another attempt, for as long as the server advised or the configuration says; or gives `error` back.
    async fn wait(&mut self, error: ClientError, advice: Duration) -> Result<(), ClientError> {
        self.failure_count = self.failure_count.saturating_add(1);
        let Some(wait) = self.client.reconnect.wait_after(self.failure_count) else {
            self.failure_count = 0;
            return Err(error);
        };
        tracing::debug!(%error, failure_count = self.failure_count, "fetch failed, trying again");
        tokio::time::sleep(wait.max(advice)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
