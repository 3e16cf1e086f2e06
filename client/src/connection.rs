//! One TCP connection that speaks the session protocol: requests go out in the order in which they were started, and
//! responses find their requests by correlation id.
//!
//! A task reads and writes; it ends with the connection. There is no reconnecting here: a connection that is lost stays
//! lost, and its owner decides what that means.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use basalt_proto::Opening;
use basalt_proto::session::{
    ErrorResponse, RESPONSE_HEADER_BYTES, Request, ResponseHeader, SESSION_REFUSED,
    SESSION_VERSION, STATUS_OK, SessionError,
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::authenticate::authenticate;
use crate::config::ClientConfig;
use crate::error::{ClientError, ConnectError, ConnectionLost};

/// Small requests that wait together go out in one write up to this size.
const COALESCE_BYTES: usize = 64 << 10;
const READ_BUFFER_BYTES: usize = 64 << 10;
/// A body is read into memory that grows from here, so that a wrong length costs no more than was really sent.
const FIRST_BODY_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u32, oneshot::Sender<Response>>,
    next_id: u32,
    lost: Option<ConnectionLost>,
}

#[derive(Debug)]
struct Outgoing {
    message: Bytes,
    written: Option<oneshot::Sender<()>>,
}

/// What the server answered.
#[derive(Debug)]
pub(crate) struct Response {
    status: u8,
    body: Bytes,
}

impl Response {
    #[cfg(test)]
    pub(crate) const fn new(status: u8, body: Bytes) -> Self {
        Self { status, body }
    }

    /// The body of a response that is no error.
    pub(crate) fn into_body(self) -> Result<Bytes, ClientError> {
        if self.status == STATUS_OK {
            return Ok(self.body);
        }
        match ErrorResponse::decode(self.status, &self.body) {
            Ok(response) => Err(ClientError::Refused { response }),
            Err(source) => Err(ClientError::Garbled { source }),
        }
    }
}

/// A request that was started, and its answer once it is there.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    receiver: oneshot::Receiver<T>,
    shared: Arc<Shared>,
}

impl<T> Future for Pending<T> {
    type Output = Result<T, ConnectionLost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.receiver).poll(cx));
        Poll::Ready(answer.map_err(|_| self.shared.lost().unwrap_or(ConnectionLost::Abandoned)))
    }
}

impl Shared {
    fn lost(&self) -> Option<ConnectionLost> {
        self.state.lock().lost.clone()
    }

    /// Ends every request that waits; the first cause stays.
    fn lose(&self, cause: ConnectionLost) {
        let waiting = {
            let mut state = self.state.lock();
            state.lost.get_or_insert(cause);
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }
}

impl Connection {
    /// Connects and greets, within the configured time.
    pub(crate) async fn open(config: &ClientConfig) -> Result<Self, ConnectError> {
        let address = &config.address;
        let greeted = tokio::time::timeout(config.connect_timeout, greet(config));
        let stream = greeted.await.map_err(|_| ConnectError::TimedOut {
            address: address.clone(),
            timeout: config.connect_timeout,
        })??;
        let (read, write) = stream.into_split();
        let (outgoing, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(run(
            read,
            write,
            receiver,
            Arc::clone(&shared),
            config.max_response_bytes,
        ));
        Ok(Self {
            shared,
            outgoing,
            task: task.abort_handle(),
        })
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.shared.state.lock().lost.is_some()
    }

    /// Ends the connection and every request on it.
    pub(crate) fn give_up(&self, cause: ConnectionLost) {
        self.shared.lose(cause);
        self.task.abort();
    }

    /// Starts `request` under an id of the connection's choice.
    ///
    /// # Errors
    /// The connection was lost before, so the request was not sent.
    pub(crate) fn start(&self, request: &Request<'_>) -> Result<Pending<Response>, ConnectionLost> {
        let (sender, receiver) = oneshot::channel();
        let correlation_id = {
            let mut state = self.shared.state.lock();
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            loop {
                let id = state.next_id;
                state.next_id = id.wrapping_add(1);
                if let Entry::Vacant(entry) = state.waiting.entry(id) {
                    entry.insert(sender);
                    break id;
                }
            }
        };
        let mut message = Vec::new();
        request.encode_into(correlation_id, &mut message);
        self.push(Outgoing {
            message: Bytes::from(message),
            written: None,
        })?;
        Ok(Pending {
            receiver,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Starts a request that is encoded already, under an id of the caller's choice that is not in use.
    ///
    /// # Errors
    /// The connection was lost before, so the request was not sent.
    pub(crate) fn start_encoded(
        &self,
        correlation_id: u32,
        message: Bytes,
    ) -> Result<Pending<Response>, ConnectionLost> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            state.waiting.insert(correlation_id, sender);
        }
        self.push(Outgoing {
            message,
            written: None,
        })?;
        Ok(Pending {
            receiver,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Sends a request that is never answered; the result comes when the system has taken its bytes.
    ///
    /// # Errors
    /// The connection was lost before, so the request was not sent.
    pub(crate) fn send_unanswered(&self, message: Bytes) -> Result<Pending<()>, ConnectionLost> {
        if let Some(lost) = self.shared.lost() {
            return Err(lost);
        }
        let (sender, receiver) = oneshot::channel();
        self.push(Outgoing {
            message,
            written: Some(sender),
        })?;
        Ok(Pending {
            receiver,
            shared: Arc::clone(&self.shared),
        })
    }

    fn push(&self, outgoing: Outgoing) -> Result<(), ConnectionLost> {
        // The receiver is gone only when the task has ended, which tells why first.
        self.outgoing
            .send(outgoing)
            .map_err(|_| self.shared.lost().unwrap_or(ConnectionLost::Abandoned))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.give_up(ConnectionLost::Abandoned);
    }
}

async fn greet(config: &ClientConfig) -> Result<TcpStream, ConnectError> {
    let address = &config.address;
    let failed = |source: io::Error| ConnectError::Unreachable {
        address: address.to_owned(),
        source: Arc::new(source),
    };
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    // Batching is done here, deliberately; Nagle's would only delay the last piece.
    stream.set_nodelay(true).map_err(failed)?;
    let mut opening = Vec::new();
    Opening::Session {
        version: SESSION_VERSION,
    }
    .encode_into(&mut opening);
    stream.write_all(&opening).await.map_err(failed)?;
    match stream.read_u8().await.map_err(failed)? {
        SESSION_VERSION => {
            if let Some(credentials) = &config.credentials {
                authenticate(&mut stream, address, credentials).await?;
            }
            Ok(stream)
        }
        SESSION_REFUSED => Err(ConnectError::VersionRefused {
            address: address.to_owned(),
            version: SESSION_VERSION,
        }),
        found => Err(ConnectError::NotBasalt {
            address: address.to_owned(),
            found,
        }),
    }
}

async fn run(
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    outgoing: mpsc::UnboundedReceiver<Outgoing>,
    shared: Arc<Shared>,
    max_response_bytes: u32,
) {
    let lost = tokio::select! {
        lost = read_responses(read, &shared, max_response_bytes) => lost,
        result = write_requests(write, outgoing) => match result {
            Ok(()) => ConnectionLost::Abandoned,
            Err(source) => ConnectionLost::Io { source: Arc::new(source) },
        },
    };
    tracing::debug!(%lost, "connection ended");
    shared.lose(lost);
}

async fn read_responses(
    read: OwnedReadHalf,
    shared: &Shared,
    max_response_bytes: u32,
) -> ConnectionLost {
    let mut read = BufReader::with_capacity(READ_BUFFER_BYTES, read);
    loop {
        match read_response(&mut read, max_response_bytes).await {
            Ok((correlation_id, response)) => {
                let waiting = shared.state.lock().waiting.remove(&correlation_id);
                match waiting {
                    // Whoever waited may have given up; then the answer is of no use.
                    Some(waiting) => drop(waiting.send(response)),
                    None => return ConnectionLost::UnknownRequest { correlation_id },
                }
            }
            Err(lost) => return lost,
        }
    }
}

async fn read_response(
    read: &mut BufReader<OwnedReadHalf>,
    max_response_bytes: u32,
) -> Result<(u32, Response), ConnectionLost> {
    let mut head = [0; RESPONSE_HEADER_BYTES];
    read.read_exact(&mut head).await.map_err(lost)?;
    let header = ResponseHeader::decode(&head, max_response_bytes)
        .map_err(|source: SessionError| ConnectionLost::Garbled { source })?;
    let body_bytes = header.body_bytes as usize;
    let mut body = Vec::with_capacity(body_bytes.min(FIRST_BODY_BYTES));
    read.take(u64::from(header.body_bytes))
        .read_to_end(&mut body)
        .await
        .map_err(lost)?;
    if body.len() < body_bytes {
        return Err(ConnectionLost::Closed);
    }
    Ok((
        header.correlation_id,
        Response {
            status: header.status,
            body: Bytes::from(body),
        },
    ))
}

fn lost(error: io::Error) -> ConnectionLost {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ConnectionLost::Closed,
        _ => ConnectionLost::Io {
            source: Arc::new(error),
        },
    }
}

async fn write_requests(
    mut write: OwnedWriteHalf,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
) -> io::Result<()> {
    let mut waiting = Vec::new();
    let mut together = Vec::new();
    while outgoing.recv_many(&mut waiting, 64).await > 0 {
        for Outgoing { message, .. } in &waiting {
            if together.len() + message.len() > COALESCE_BYTES && !together.is_empty() {
                write.write_all(&together).await?;
                together.clear();
            }
            if message.len() > COALESCE_BYTES {
                write.write_all(message).await?;
            } else {
                together.extend_from_slice(message);
            }
        }
        if !together.is_empty() {
            write.write_all(&together).await?;
            together.clear();
        }
        for written in waiting.drain(..).filter_map(|outgoing| outgoing.written) {
            // The producer may be gone; its bytes are written all the same.
            let _ = written.send(());
        }
    }
    Ok(())
}

/// Waits for an answer, and gives the connection up if it takes too long.
pub(crate) async fn within<T>(
    timeout: Option<Duration>,
    connection: &Connection,
    pending: Pending<T>,
) -> Result<T, ConnectionLost> {
    match timeout {
        None => pending.await,
        Some(timeout) => match tokio::time::timeout(timeout, pending).await {
            Ok(answer) => answer,
            Err(_) => {
                // What else waits on it would wait as long: the server or the way to it is stuck.
                let lost = ConnectionLost::TimedOut { timeout };
                connection.give_up(lost.clone());
                Err(lost)
            }
        },
    }
}
