//! The listening side: accepts connections on every address, within limits, until told to stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use basalt_auth::Authenticator;
use basalt_columnar::TieredLog;
use futures::future::BoxFuture;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::connection;
use crate::shared::Shared;
use crate::{ConfigError, Counters, ServerConfig, ShutdownSignal, Topics};

/// Connections the kernel may hold until they are accepted.
const BACKLOG: u32 = 1024;
/// Descriptors kept for files at least when the limit on them bounds the number of connections.
const RESERVED_DESCRIPTORS: u64 = 256;
/// A peer silent for less than this is not yet made to go for others.
const MIN_EVICTION_AGE: Duration = Duration::from_millis(500);
/// How long a new connection waits for an evicted one's place.
const EVICTION_WAIT: Duration = Duration::from_secs(1);
/// How long a new connection waits for a place when nobody can be made to go.
const FULL_WAIT: Duration = Duration::from_secs(2);
/// Pauses after failed accepts: from the first to the last, doubling.
const MIN_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// Whoever speaks HTTP on the shared port.
pub trait HttpHandler: Send + Sync {
    /// Serves one connection whose first byte is a letter; nothing of it has been read. The future ends with the
    /// connection, and soon after `shutdown`. Its time limits are its own from here on.
    fn serve(&self, stream: TcpStream, shutdown: ShutdownSignal) -> BoxFuture<'static, ()>;
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The configuration contradicts itself.
    #[error("the server's configuration cannot work: {source}")]
    Config {
        /// Which field, and why.
        #[from]
        source: ConfigError,
    },
    /// An address could not be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A server that listens; connections wait until [`Server::run`].
pub struct Server {
    shared: Arc<Shared>,
    http: Option<Arc<dyn HttpHandler>>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    max_connections: usize,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Listens on every configured address. Connections whose first byte is a letter go to `http`, or are closed
    /// without one. With an `authenticator` its users alone are served, but for HTTP, whose handler sees to that itself.
    ///
    /// # Errors
    /// [`BindError::Config`] when the configuration contradicts itself, [`BindError::Listen`] when an address is taken
    /// or not ours.
    #[expect(
        clippy::unused_async,
        reason = "listening needs the runtime, which an async function has for sure"
    )]
    pub async fn bind(
        config: ServerConfig,
        log: Arc<TieredLog>,
        http: Option<Arc<dyn HttpHandler>>,
        authenticator: Option<Authenticator>,
    ) -> Result<Self, BindError> {
        config.validate()?;
        let mut listeners = Vec::with_capacity(config.listen.len());
        let mut addresses = Vec::with_capacity(config.listen.len());
        for &address in &config.listen {
            let listening =
                listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (bound, listener) =
                listening.map_err(|source| BindError::Listen { address, source })?;
            addresses.push(bound);
            listeners.push(listener);
        }
        let max_connections = affordable_connections(config.max_connections);
        let shared = Arc::new(Shared::new(config, log, authenticator));
        Ok(Self {
            shared,
            http,
            listeners,
            addresses,
            max_connections,
        })
    }

    /// The addresses in the order of the configuration, with the ports that were picked.
    #[must_use]
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The server's counters; they live on after it.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Its topics, to be changed by others than its peers.
    #[must_use]
    pub fn topics(&self) -> Topics {
        self.shared.topics.clone()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Serves until `shutdown`, then stops accepting, lets every connection finish and answer what is in flight, and cuts
    /// off what has not finished after [`ServerConfig::shutdown_grace`]. When it returns no connection is left; the log
    /// is still open.
    ///
    /// # Errors
    /// None at present: failing accepts are waited out, failing connections end by themselves.
    pub async fn run(self, shutdown: ShutdownSignal) -> io::Result<()> {
        let Self {
            shared,
            http,
            listeners,
            addresses: _,
            max_connections,
        } = self;
        shared.transactions.settle_stored().await;
        let places = Arc::new(Semaphore::new(max_connections));
        let acceptors = listeners.into_iter().map(|listener| {
            let acceptor = Acceptor {
                listener,
                shared: Arc::clone(&shared),
                http: http.clone(),
                places: Arc::clone(&places),
                shutdown: shutdown.clone(),
            };
            acceptor.run()
        });
        tokio::join!(
            futures::future::join_all(acceptors),
            shared.coordinator.expire(&shutdown),
            shared.transactions.run(&shutdown),
        );
        Ok(())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // A restart must not wait for the connections of the server before it to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// As many connections as wanted, or as descriptors allow: running out of those would hit files, too.
fn affordable_connections(wanted: usize) -> usize {
    let Some(descriptors) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    else {
        return wanted.min(Semaphore::MAX_PERMITS);
    };
    // The log keeps files open up to a quarter of the limit.
    let for_files = (descriptors / 4)
        .max(RESERVED_DESCRIPTORS)
        .min(descriptors / 2);
    let affordable = usize::try_from(descriptors - for_files)
        .unwrap_or(usize::MAX)
        .max(1);
    if affordable < wanted {
        warn!(
            wanted,
            affordable,
            descriptors,
            "the limit on open files allows fewer connections than configured"
        );
    }
    wanted.min(affordable).min(Semaphore::MAX_PERMITS)
}

/// One listening address.
struct Acceptor {
    listener: TcpListener,
    shared: Arc<Shared>,
    http: Option<Arc<dyn HttpHandler>>,
    places: Arc<Semaphore>,
    shutdown: ShutdownSignal,
}

impl Acceptor {
    async fn run(self) {
        let mut connections = JoinSet::new();
        let mut backoff = MIN_BACKOFF;
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.shutdown.wait() => break,
                Some(ended) = connections.join_next() => {
                    self.note_end(ended);
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    backoff = MIN_BACKOFF;
                    self.admit(stream, peer, &mut connections).await;
                }
                Err(failure) => {
                    self.wait_out(&failure, backoff).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF);
                }
            }
        }
        drop(self.listener);
        finish(&self.shared, connections).await;
    }

    async fn admit(&self, stream: TcpStream, peer: SocketAddr, connections: &mut JoinSet<()>) {
        Counters::increment(&self.shared.counters.connections_total);
        let Some(place) = self.place().await else {
            Counters::increment(&self.shared.counters.connections_refused);
            return;
        };
        // Here, not in the task: tasks start in any order, and the oldest is to go first.
        let silent = self.shared.silent.enter();
        let shared = Arc::clone(&self.shared);
        let http = self.http.clone();
        let shutdown = self.shutdown.clone();
        connections.spawn(async move {
            let _open = OpenConnection::count(&shared.counters);
            connection::serve(stream, peer, silent, &shared, http.as_deref(), shutdown).await;
            drop(place);
        });
    }

    /// A place for one more connection, if need be that of the peer that has been silent longest: then it takes until that
    /// one has had its moment to speak. `None` when everybody has spoken, and the server is full.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        let silent = &self.shared.silent;
        let Some(moment) = silent.until_oldest_is(MIN_EVICTION_AGE) else {
            // Everybody has spoken, but some may be about to end, or to be ended for taking too long.
            return tokio::select! {
                place = Arc::clone(&self.places).acquire_owned() => place.ok(),
                () = tokio::time::sleep(FULL_WAIT) => None,
                () = self.shutdown.wait() => None,
            };
        };
        let mut place = std::pin::pin!(Arc::clone(&self.places).acquire_owned());
        tokio::select! {
            place = &mut place => return place.ok(),
            () = tokio::time::sleep(moment) => {}
            () = self.shutdown.wait() => return None,
        }
        silent.evict_oldest(MIN_EVICTION_AGE);
        timeout(EVICTION_WAIT, place).await.ok()?.ok()
    }

    /// Pauses after a failed accept. Connections wait in the backlog meanwhile.
    async fn wait_out(&self, failure: &io::Error, pause: Duration) {
        Counters::increment(&self.shared.counters.accept_errors);
        if failure.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        if pause == MIN_BACKOFF {
            warn!(%failure, "cannot accept connections, trying again");
        }
        // Out of descriptors: whoever has not even said who it is gives its own back first.
        self.shared.silent.evict_oldest(MIN_EVICTION_AGE);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.shutdown.wait() => {}
        }
    }

    fn note_end(&self, ended: Result<(), JoinError>) {
        note_panic(&self.shared.counters, ended);
    }
}

fn note_panic(counters: &Counters, ended: Result<(), JoinError>) {
    if let Err(failure) = ended
        && failure.is_panic()
    {
        Counters::increment(&counters.connection_panics);
        error!(%failure, "a connection's task panicked; the server goes on");
    }
}

/// Lets connections end by themselves for as long as is granted, and cuts off the rest.
async fn finish(shared: &Shared, mut connections: JoinSet<()>) {
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            note_panic(&shared.counters, ended);
        }
    };
    if timeout(shared.config.shutdown_grace, all_ended)
        .await
        .is_err()
    {
        info!(
            connections = connections.len(),
            "cutting off connections that did not finish in time"
        );
        connections.shutdown().await;
    }
}

/// Counts a connection as open until dropped, also when its task is cut off.
struct OpenConnection<'a>(&'a Counters);

impl<'a> OpenConnection<'a> {
    fn count(counters: &'a Counters) -> Self {
        Counters::increment(&counters.connections_open);
        Self(counters)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        Counters::decrement(&self.0.connections_open);
    }
}
