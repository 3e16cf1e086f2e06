//! The connection that calls share, and the way to producers and consumers.

use std::sync::Arc;
use std::time::Duration;

use basalt_proto::session::{Request, Start};
use basalt_proto::{PartitionId, TopicName};
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::config::{ClientConfig, ConsumerConfig, ProducerConfig};
use crate::connection::{Connection, within};
use crate::consumer::Consumer;
use crate::error::{ClientError, ConnectError, ConnectionLost};
use crate::producer::Producer;

/// A client of one server. Cloning it is cheap; clones share a connection for their calls.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Arc<ClientConfig>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Client {
    /// Connects once, without trying again: a wrong address shows at once.
    ///
    /// # Errors
    /// [`ConnectError`] says what is at the address instead of a server.
    pub async fn connect(config: ClientConfig) -> Result<Self, ConnectError> {
        let connection = Connection::open(&config).await?;
        let connection = Mutex::new(Some(Arc::new(connection)));
        Ok(Self {
            inner: Arc::new(Inner {
                config: Arc::new(config),
                connection,
            }),
        })
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// A producer to one partition, with a connection of its own, made when the first record is sent. Must be called
    /// within a tokio runtime.
    #[must_use]
    pub fn producer(
        &self,
        topic: TopicName,
        partition: PartitionId,
        config: ProducerConfig,
    ) -> Producer {
        Producer::start(Arc::clone(&self.inner.config), topic, partition, config)
    }

    /// A consumer of one partition, with a connection of its own, made at the first [`Consumer::next`].
    #[must_use]
    pub fn consumer(
        &self,
        topic: TopicName,
        partition: PartitionId,
        start: Start,
        config: ConsumerConfig,
    ) -> Consumer {
        Consumer::new(
            Arc::clone(&self.inner.config),
            topic,
            partition,
            start,
            config,
        )
    }

    /// Sends a request and gives the body of its response. `more_wait` is what the request asks the server to wait on top
    /// of the usual; `None` waits for as long as the connection stands.
    pub(crate) async fn call(
        &self,
        request: &Request<'_>,
        more_wait: Option<Duration>,
    ) -> Result<Bytes, ClientError> {
        let config = &self.inner.config;
        let timeout = more_wait.map(|more| config.request_timeout.saturating_add(more));
        let mut failure_count = 0;
        loop {
            let connection = self.connection(&mut failure_count).await?;
            let (error, unsent) = match connection.start(request) {
                Ok(pending) => match within(timeout, &connection, pending).await {
                    Ok(response) => return response.into_body(),
                    Err(lost) => (lost, false),
                },
                Err(lost) => (lost, true),
            };
            failure_count += 1;
            // A server that was too slow once would be so again; asking twice only adds to its work.
            let again = unsent
                || (is_repeatable(request) && !matches!(error, ConnectionLost::TimedOut { .. }));
            match config.reconnect.wait_after(failure_count) {
                Some(wait) if again => tokio::time::sleep(wait).await,
                _ => return Err(ClientError::OutcomeUnknown { source: error }),
            }
        }
    }

    /// The shared connection, made anew if it was lost.
    async fn connection(&self, failure_count: &mut u32) -> Result<Arc<Connection>, ConnectError> {
        let mut slot = self.inner.connection.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_lost()) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(reconnect(&self.inner.config, failure_count).await?);
        *slot = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// Connects, trying again as configured. `failure_count` is raised by each failure.
pub(crate) async fn reconnect(
    config: &ClientConfig,
    failure_count: &mut u32,
) -> Result<Connection, ConnectError> {
    loop {
        match Connection::open(config).await {
            Ok(connection) => return Ok(connection),
            Err(error) => {
                *failure_count = failure_count.saturating_add(1);
                let hopeless = matches!(
                    error,
                    ConnectError::VersionRefused { .. }
                        | ConnectError::NotBasalt { .. }
                        | ConnectError::NotLoggedIn { .. }
                        | ConnectError::ServerUnproved { .. }
                );
                match config.reconnect.wait_after(*failure_count) {
                    Some(wait) if !hopeless => {
                        tracing::debug!(%error, failure_count, ?wait, "cannot connect, trying again");
                        tokio::time::sleep(wait).await;
                    }
                    _ => return Err(error),
                }
            }
        }
    }
}

/// Whether asking twice does no more than asking once.
const fn is_repeatable(request: &Request<'_>) -> bool {
    match request {
        Request::Fetch(_)
        | Request::ListOffsets(_)
        | Request::Metadata { .. }
        | Request::Commit { .. }
        | Request::Committed { .. }
        | Request::Seek { .. }
        | Request::AlterTopic { .. }
        | Request::Groups { .. }
        | Request::Ping
        | Request::Options { .. }
        | Request::Authenticate { .. } => true,
        Request::Produce(_)
        | Request::CreateTopic { .. }
        | Request::DeleteTopic { .. }
        | Request::AddPartitions { .. }
        | Request::CoolTopic { .. } => false,
    }
}

#[cfg(test)]
mod tests;
