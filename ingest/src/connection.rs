//! One connection from its first byte to its end: told apart, opened, handed on, closed, and logged in one line.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use basalt_proto::{ErrorKind, MAX_OPENING_BYTES, Opening};
use bytes::BufMut;
use rustix::net::SendFlags;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info};

use crate::error::{ConnectionError, Refusal};
use crate::input::Input;
use crate::output::Output;
use crate::read_ahead::Lane;
use crate::shared::{Shared, SilentPeer};
use crate::sniff::{Caller, caller, is_large_kafka_request};
use crate::{Counters, HttpHandler, ShutdownSignal, commit, consume, kafka, produce, session};

/// Time to the first keepalive probe of an idle connection, between probes, and their number: a peer that vanished is
/// found out after two minutes, at no cost to one that is merely quiet.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// How long, after the last answer, what the peer still sends is read and dropped. Closing a socket with unread bytes
/// resets the connection, and a reset may overtake the answer.
const LINGER: Duration = Duration::from_secs(1);
/// How much is read from a socket before the opening is known.
const OPENING_READ_BYTES: usize = 4096;

/// Bytes of a request before its client has proved who it is.
pub(crate) const MAX_UNPROVED_BYTES: u32 = 64 << 10;
/// What a client is told that did not prove who it is.
pub(crate) const NO_SUCH_USER: &str = "no such user and password";

const _: () = assert!(OPENING_READ_BYTES >= MAX_OPENING_BYTES);

/// What a handler of a connection works with.
#[derive(Debug)]
pub(crate) struct Connection<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) shared: &'a Shared,
    pub(crate) shutdown: &'a ShutdownSignal,
    /// Its turns at the disk.
    pub(crate) lane: Lane,
}

impl<'a> Connection<'a> {
    fn new(
        stream: &'a TcpStream,
        peer: SocketAddr,
        shared: &'a Shared,
        shutdown: &'a ShutdownSignal,
    ) -> Self {
        Self {
            stream,
            peer,
            shared,
            shutdown,
            lane: Lane::new(&shared.read_ahead),
        }
    }

    pub(crate) fn output(&self) -> Output<'_> {
        Output {
            stream: self.stream,
            send_timeout: self.shared.config.send_timeout,
            counters: &self.shared.counters,
            lane: &self.lane,
        }
    }

    /// What comes of `proving`, in which the client proves who it is, if that comes in the time for openings.
    ///
    /// # Errors
    /// Its own, and [`ConnectionError::HandshakeTimeout`].
    pub(crate) async fn before_it_is_late<T>(
        &self,
        proving: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        let limit = self.shared.config.handshake_timeout;
        timeout(limit, proving).await.unwrap_or_else(|_| {
            Counters::increment(&self.shared.counters.handshake_timeouts);
            Err(ConnectionError::Unproved { limit })
        })
    }

    /// Sends as much of `bytes` as the socket takes without waiting; how much that was.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.stream.try_io(Interest::WRITABLE, || {
            Ok(rustix::net::send(self.stream, bytes, SendFlags::NOSIGNAL)?)
        });
        match sent {
            Err(error) if is_passing(&error) => Ok(0),
            sent => sent,
        }
    }
}

/// Whether the same call may succeed a moment later.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    silent: SilentPeer,
    shared: &Shared,
    http: Option<&dyn HttpHandler>,
    shutdown: ShutdownSignal,
) {
    let ended = match open(&stream, silent, shared, &shutdown).await {
        Ok(Some(Opened::Http { first_byte })) => {
            if let Some(http) = http {
                Counters::increment(&shared.counters.connections_http);
                return http.serve(stream, shutdown).await;
            }
            Err(ConnectionError::UnknownProtocol {
                first_byte,
                hint: " (HTTP, which is not served here)",
            })
        }
        Ok(Some(Opened::Native { opening, input })) => {
            let connection = Connection::new(&stream, peer, shared, &shutdown);
            let ended = native(&connection, opening, input).await;
            close_gently(&stream, &ended).await;
            ended
        }
        Ok(Some(Opened::Kafka { input })) => {
            Counters::increment(&shared.counters.connections_kafka);
            let connection = Connection::new(&stream, peer, shared, &shutdown);
            let ended = kafka::serve(&connection, input).await;
            close_gently(&stream, &ended).await;
            ended
        }
        Ok(Some(Opened::Refused { first_byte, error })) => {
            let ended = refuse_opening(&stream, shared, first_byte, error).await;
            close_gently(&stream, &ended).await;
            ended
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    note_end(shared, peer, ended);
}

enum Opened {
    Http {
        first_byte: u8,
    },
    Native {
        opening: Opening,
        input: Input,
    },
    Kafka {
        input: Input,
    },
    Refused {
        first_byte: u8,
        error: basalt_proto::OpeningError,
    },
}

/// Finds out who calls and for what; `None` when the peer left first or the server stops.
async fn open(
    stream: &TcpStream,
    silent: SilentPeer,
    shared: &Shared,
    shutdown: &ShutdownSignal,
) -> Result<Option<Opened>, ConnectionError> {
    prepare(stream, shared)?;
    let limit = shared.config.handshake_timeout;
    let deadline = Instant::now() + limit;
    let mut received = Vec::new();
    let opened = tokio::select! {
        biased;
        opened = timeout_at(deadline, read_opening(stream, &mut received)) => opened,
        () = silent.evicted() => {
            Counters::increment(&shared.counters.connections_evicted);
            return Err(ConnectionError::Evicted);
        }
        () = shutdown.wait() => return Ok(None),
    };
    match opened {
        Ok(opened) => opened,
        Err(_) => {
            Counters::increment(&shared.counters.handshake_timeouts);
            Err(ConnectionError::HandshakeTimeout {
                limit,
                received_bytes: received.len(),
            })
        }
    }
}

fn prepare(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    // Data that a vanished peer never acknowledges must not hold the connection for a quarter of an hour.
    let unacknowledged_ms =
        u32::try_from(shared.config.send_timeout.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(stream, unacknowledged_ms)?;
    Ok(())
}

async fn read_opening(
    stream: &TcpStream,
    received: &mut Vec<u8>,
) -> Result<Option<Opened>, ConnectionError> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    let [first_byte] = first;
    match caller(first_byte) {
        Caller::Http => return Ok(Some(Opened::Http { first_byte })),
        Caller::Kafka => {
            let input = Input::new(Vec::new(), 0);
            return Ok(Some(Opened::Kafka { input }));
        }
        Caller::Unknown { hint } => {
            return Err(ConnectionError::UnknownProtocol { first_byte, hint });
        }
        Caller::Native => {}
    }
    loop {
        stream.readable().await?;
        let room = OPENING_READ_BYTES - received.len();
        match stream.try_read_buf(&mut (&mut *received).limit(room)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        }
        match Opening::parse(received) {
            Ok(Some((opening, used))) => {
                let input = Input::new(std::mem::take(received), used);
                return Ok(Some(Opened::Native { opening, input }));
            }
            _ if is_large_kafka_request(received) => {
                let input = Input::new(std::mem::take(received), 0);
                return Ok(Some(Opened::Kafka { input }));
            }
            Ok(None) => {}
            Err(error) => return Ok(Some(Opened::Refused { first_byte, error })),
        }
    }
}

async fn native(
    connection: &Connection<'_>,
    opening: Opening,
    input: Input,
) -> Result<(), ConnectionError> {
    let is_session = matches!(opening, Opening::Session { .. });
    if connection.shared.authenticator.is_some() && !is_session {
        let message = "this opening has no way to say who you are, which is asked here: use a session, or Kafka's protocol";
        let refusal = Refusal::new(ErrorKind::Unauthenticated, message);
        let is_producer = matches!(opening, Opening::Produce { .. });
        return refuse(connection.stream, connection.shared, is_producer, refusal).await;
    }
    match opening {
        Opening::Produce { topic, partition } => {
            produce::serve(connection, &topic, partition, input).await
        }
        Opening::Consume {
            group,
            topic,
            partition,
        } => consume::serve(connection, &group, &topic, partition).await,
        Opening::Commit {
            group,
            topic,
            partition,
            offset,
        } => commit::serve(connection, &group, &topic, partition, offset).await,
        Opening::Session { version } => session::serve(connection, version, input).await,
    }
}

/// Answers an opening that cannot be served in the way its caller reads answers: a producer by a refusal; a consumer and
/// a commit, for whom every byte is a success, by the end of the connection.
async fn refuse_opening(
    stream: &TcpStream,
    shared: &Shared,
    first_byte: u8,
    error: basalt_proto::OpeningError,
) -> Result<(), ConnectionError> {
    refuse(
        stream,
        shared,
        first_byte == produce::FIRST_BYTE,
        error.into(),
    )
    .await
}

async fn refuse(
    stream: &TcpStream,
    shared: &Shared,
    is_producer: bool,
    refusal: Refusal,
) -> Result<(), ConnectionError> {
    shared.counters.refuse(refusal.kind, 1);
    if is_producer {
        let output = Output {
            stream,
            send_timeout: shared.config.handshake_timeout,
            counters: &shared.counters,
            lane: &Lane::new(&shared.read_ahead),
        };
        output
            .send(
                &produce::refusal_ack(&refusal),
                crate::output::Then::Nothing,
            )
            .await?;
    }
    Err(refusal.into())
}

/// Says that no more will come, and gives the peer a moment to read what did.
async fn close_gently(stream: &TcpStream, ended: &Result<(), ConnectionError>) {
    let answered = matches!(ended, Ok(()) | Err(ConnectionError::Refused(_)));
    if !answered || rustix::net::shutdown(stream, rustix::net::Shutdown::Write).is_err() {
        return;
    }
    let drain = async {
        let mut dropped = vec![0; 16 << 10];
        loop {
            if stream.readable().await.is_err() {
                return;
            }
            match stream.try_read(&mut dropped) {
                Ok(0) => return,
                Ok(_) => tokio::task::yield_now().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    // Whether the peer closed in time or not, the connection ends here.
    let _ = timeout(LINGER, drain).await;
}

fn note_end(shared: &Shared, peer: SocketAddr, ended: Result<(), ConnectionError>) {
    let Err(error) = ended else { return };
    match error {
        ConnectionError::UnknownProtocol { .. } => {
            Counters::increment(&shared.counters.connections_unknown)
        }
        ConnectionError::FrameTimeout { .. } => {
            Counters::increment(&shared.counters.frame_timeouts)
        }
        ConnectionError::SendTimeout { .. } => Counters::increment(&shared.counters.send_timeouts),
        _ => {}
    }
    if error.is_ordinary() {
        debug!(%peer, "connection ended: {}", error.describe());
    } else {
        info!(%peer, "connection ended: {}", error.describe());
    }
}
