//! The task that sends a producer's batches and settles them.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use basalt_proto::session::{
    AckLevel, NO_MAX_QUEUE_WAIT, ProduceResponse, Request, ResponseBody as _,
};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::Sleep;

use super::queue::{Outcome, Queue, SealedBatch, Work};
use crate::client::reconnect;
use crate::config::{ClientConfig, ProducerConfig};
use crate::connection::{Connection, Response, within};
use crate::error::{ClientError, ConnectionLost, SendError};

/// What became of a request: answered, or (where no answer is due) written.
enum Answer {
    Response(Response),
    Written,
}

type InFlight = FuturesUnordered<BoxFuture<'static, (u64, Result<Answer, ConnectionLost>)>>;

pub(super) struct Task {
    client: Arc<ClientConfig>,
    queue: Arc<Queue>,
    connection: Option<Arc<Connection>>,
    /// Batches on the connection, by sequence number.
    sent: BTreeMap<u64, SealedBatch>,
    answers: InFlight,
    failure_count: u32,
    /// Why the last connection was lost.
    last_lost: ConnectionLost,
    /// The open batch that lingers, and until when.
    lingering: Option<(u64, Pin<Box<Sleep>>)>,
}

impl Task {
    pub(super) fn new(client: Arc<ClientConfig>, queue: Arc<Queue>) -> Self {
        Self {
            client,
            queue,
            connection: None,
            sent: BTreeMap::new(),
            answers: FuturesUnordered::new(),
            failure_count: 0,
            last_lost: ConnectionLost::Abandoned,
            lingering: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let may_send = self.sent.len() < self.queue.config.max_in_flight.max(1);
            let work = if may_send {
                self.queue.next_work()
            } else {
                Work::Idle
            };
            match work {
                Work::Send(batch) => {
                    self.dispatch(batch).await;
                    continue;
                }
                Work::Done if self.sent.is_empty() => break,
                Work::Linger { sequence } => self.linger(sequence),
                Work::Done | Work::Idle => self.lingering = None,
            }
            self.wait().await;
        }
        self.part().await;
    }

    /// Starts the clock of an open batch, once.
    fn linger(&mut self, sequence: u64) {
        if self
            .lingering
            .as_ref()
            .is_none_or(|(lingering, _)| *lingering != sequence)
        {
            let sleep = tokio::time::sleep(self.queue.config.linger);
            self.lingering = Some((sequence, Box::pin(sleep)));
        }
    }

    /// Waits for whatever comes first: an answer, new work, or the end of the linger.
    async fn wait(&mut self) {
        let lingered = async {
            match &mut self.lingering {
                Some((sequence, sleep)) => {
                    sleep.await;
                    *sequence
                }
                None => pending().await,
            }
        };
        tokio::select! {
            Some((sequence, answer)) = self.answers.next() => self.settle(sequence, answer).await,
            () = self.queue.work.notified() => {}
            sequence = lingered => self.queue.seal_lingered(sequence),
        }
    }

    /// Puts a batch on the connection, making one if need be.
    async fn dispatch(&mut self, mut batch: SealedBatch) {
        let unanswered = self.queue.config.ack == AckLevel::None;
        let sequence = batch.sequence;
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => {
                self.queue.put_back(vec![batch]);
                return self.fail_waiting(&error);
            }
        };
        let timeout = Some(self.client.request_timeout);
        let started = if unanswered {
            connection
                .send_unanswered(batch.message.clone())
                .map(|pending| {
                    let connection = Arc::clone(&connection);
                    self.answers.push(Box::pin(async move {
                        (
                            sequence,
                            within(timeout, &connection, pending)
                                .await
                                .map(|()| Answer::Written),
                        )
                    }));
                })
        } else {
            connection
                .start_encoded(batch.correlation_id(), batch.message.clone())
                .map(|pending| {
                    let connection = Arc::clone(&connection);
                    self.answers.push(Box::pin(async move {
                        (
                            sequence,
                            within(timeout, &connection, pending)
                                .await
                                .map(Answer::Response),
                        )
                    }));
                })
        };
        match started {
            Ok(()) => {
                batch.was_sent = true;
                self.sent.insert(sequence, batch);
            }
            // Lost before anything was sent on it. Those sent earlier come first again.
            Err(lost) => {
                self.queue.put_back(vec![batch]);
                self.lose(lost).await;
            }
        }
    }

    async fn connection(&mut self) -> Result<Arc<Connection>, SendError> {
        if let Some(connection) = &self.connection {
            return Ok(Arc::clone(connection));
        }
        loop {
            let connection = Arc::new(reconnect(&self.client, &mut self.failure_count).await?);
            match set_options(&self.client, self.queue.config, &connection).await {
                Ok(()) => {
                    self.connection = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                Err(ClientError::OutcomeUnknown { source }) => {
                    self.failure_count = self.failure_count.saturating_add(1);
                    match self.client.reconnect.wait_after(self.failure_count) {
                        Some(wait) => tokio::time::sleep(wait).await,
                        None => return Err(SendError::NotSent { source }),
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn settle(&mut self, sequence: u64, answer: Result<Answer, ConnectionLost>) {
        match answer {
            Ok(answer) => {
                self.failure_count = 0;
                let outcome = outcome(answer);
                if let Some(batch) = self.sent.remove(&sequence) {
                    self.queue.settle(batch, outcome);
                }
            }
            Err(lost) => self.lose(lost).await,
        }
    }

    /// Leaves the connection: answers that did come count, the rest of what was sent is lost or goes out again.
    async fn lose(&mut self, lost: ConnectionLost) {
        self.last_lost = lost.clone();
        if let Some(connection) = self.connection.take() {
            connection.give_up(lost.clone());
        }
        while let Some((sequence, answer)) = self.answers.next().await {
            if let Ok(answer) = answer
                && let Some(batch) = self.sent.remove(&sequence)
            {
                self.failure_count = 0;
                self.queue.settle(batch, outcome(answer));
            }
        }
        let lost_batches = std::mem::take(&mut self.sent)
            .into_values()
            .collect::<Vec<_>>();
        tracing::debug!(%lost, batch_count = lost_batches.len(), "producer lost its connection");
        if self.queue.config.retry_lost {
            self.queue.put_back(lost_batches);
        } else {
            for batch in lost_batches {
                self.queue.settle(
                    batch,
                    Err(SendError::OutcomeUnknown {
                        source: lost.clone(),
                    }),
                );
            }
        }
        self.failure_count = self.failure_count.saturating_add(1);
        match self.client.reconnect.wait_after(self.failure_count) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => self.fail_waiting(&SendError::NotSent { source: lost }),
        }
    }

    /// Fails all that waits: there is no server to send it to. What was sent before may be stored.
    fn fail_waiting(&mut self, unsent: &SendError) {
        self.failure_count = 0;
        for batch in self.queue.take_all() {
            let error = if batch.was_sent {
                SendError::OutcomeUnknown {
                    source: self.last_lost.clone(),
                }
            } else {
                unsent.clone()
            };
            self.queue.settle(batch, Err(error));
        }
    }

    /// Without acknowledgements, what is written may still be on its way when the connection closes. A ping behind it is
    /// answered when the server has read it all.
    async fn part(self) {
        if self.queue.config.ack != AckLevel::None {
            return;
        }
        if let Some(connection) = &self.connection
            && let Ok(pending) = connection.start(&Request::Ping)
            && let Err(lost) = within(Some(self.client.request_timeout), connection, pending).await
        {
            tracing::debug!(%lost, "connection lost while closing; unacknowledged records may be lost");
        }
    }
}

/// Tells the server of a new connection what it does not do by itself. Answered before anything else is asked, since
/// batches choose their own correlation ids.
async fn set_options(
    client: &ClientConfig,
    producer: ProducerConfig,
    connection: &Connection,
) -> Result<(), ClientError> {
    let Some(wait) = producer.max_queue_wait else {
        return Ok(());
    };
    let options = Request::Options {
        max_queue_wait_ms: u32::try_from(wait.as_millis()).unwrap_or(NO_MAX_QUEUE_WAIT),
    };
    let lost = |source| ClientError::OutcomeUnknown { source };
    let pending = connection.start(&options).map_err(lost)?;
    let answer = within(Some(client.request_timeout), connection, pending).await;
    answer.map_err(lost)?.into_body().map(drop)
}

fn outcome(answer: Answer) -> Outcome {
    let Answer::Response(response) = answer else {
        return Ok(None);
    };
    let body = response.into_body().map_err(failed)?;
    let stored =
        ProduceResponse::decode(&body).map_err(|source| failed(ClientError::Garbled { source }))?;
    Ok(Some(stored.base_offset))
}

/// An answer that is no acknowledgement. One that cannot be understood leaves the outcome open.
fn failed(error: ClientError) -> SendError {
    match error {
        ClientError::Refused { response } => SendError::Refused { response },
        ClientError::Garbled { source } => SendError::OutcomeUnknown {
            source: ConnectionLost::Garbled { source },
        },
        ClientError::OutcomeUnknown { source } => SendError::OutcomeUnknown { source },
        ClientError::Connect(source) => SendError::Connect(source),
        ClientError::NoProgress { .. } => SendError::OutcomeUnknown {
            source: ConnectionLost::Abandoned,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::future::ready;

    use basalt_proto::{Frame, Offset};
    use bytes::Bytes;

    use super::*;

    /// The loss may be seen before an answer that came before it, so the task must look for such answers.
    #[tokio::test]
    async fn an_answer_that_is_there_when_the_loss_is_seen_counts() {
        let queue = Arc::new(Queue::new(
            ProducerConfig {
                batch_bytes: 1,
                ..ProducerConfig::default()
            },
            vec![0; 16],
        ));
        let mut task = Task::new(Arc::new(ClientConfig::default()), Arc::clone(&queue));
        let mut deliveries = Vec::new();
        for _ in 0..2 {
            deliveries.push(queue.push(&Frame::record(1, b"", b"a"), 30).unwrap());
            let Work::Send(batch) = queue.next_work() else {
                panic!("the batch is full")
            };
            task.sent.insert(batch.sequence, batch);
        }
        let stored = [5_u64.to_be_bytes(), 6_u64.to_be_bytes()].concat();
        let answer = Answer::Response(Response::new(0, Bytes::from(stored)));
        task.answers.push(Box::pin(ready((1, Ok(answer)))));
        task.settle(0, Err(ConnectionLost::Closed)).await;

        let second = deliveries.pop().unwrap().await;
        assert_eq!(second.unwrap(), Some(Offset(5)));
        let first = deliveries.pop().unwrap().await;
        assert!(matches!(
            first,
            Err(SendError::OutcomeUnknown {
                source: ConnectionLost::Closed
            })
        ));
    }
}
