//! A server for tests that does what the test says, one message at a time, with the codec of `basalt-proto`.
//!
//! Nothing here waits for time to pass: a test goes on when a message is there. The limit on each wait only keeps a failed
//! test from hanging.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use basalt_proto::session::{
    ErrorResponse, FetchRequest, FetchResponseHeader, ProduceRequest, ProduceResponse,
    REQUEST_HEADER_BYTES, Request, RequestHeader, ResponseBody, SESSION_VERSION, encode_error,
    encode_fetch_header, encode_response,
};
use basalt_proto::{Frame, FrameBatch, FrameLimits, Offset, Opening, PartitionId, TopicName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::client::Client;
use crate::config::{ClientConfig, Reconnect};

const HANG_LIMIT: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG_LIMIT, future)
        .await
        .expect("nothing came: the test would hang")
}

pub(crate) fn topic() -> TopicName {
    "t".parse().unwrap()
}

pub(crate) const PARTITION: PartitionId = PartitionId(3);

pub(crate) struct TestServer {
    listener: TcpListener,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        ClientConfig {
            address: self.listener.local_addr().unwrap().to_string(),
            reconnect: Reconnect {
                initial_backoff: Duration::from_millis(1),
                max_backoff: Duration::from_millis(4),
                max_attempts: 5,
            },
            ..ClientConfig::default()
        }
    }

    /// A client, and this end of its connection for calls.
    pub(crate) async fn client(&self) -> (Client, Peer) {
        self.client_with(self.config()).await
    }

    pub(crate) async fn client_with(&self, config: ClientConfig) -> (Client, Peer) {
        let (client, peer) = tokio::join!(Client::connect(config), self.accept());
        (client.unwrap(), peer)
    }

    /// The next connection, greeted.
    pub(crate) async fn accept(&self) -> Peer {
        let mut stream = self.accept_silent().await;
        let mut opening = [0; 2];
        soon(stream.read_exact(&mut opening)).await.unwrap();
        let expected = (
            Opening::Session {
                version: SESSION_VERSION,
            },
            2,
        );
        assert_eq!(Opening::parse(&opening), Ok(Some(expected)));
        stream.write_all(&[SESSION_VERSION]).await.unwrap();
        Peer { stream }
    }

    pub(crate) async fn accept_silent(&self) -> TcpStream {
        soon(self.listener.accept()).await.unwrap().0
    }
}

/// A request as it came.
pub(crate) struct Received {
    pub(crate) id: u32,
    kind: u8,
    body: Vec<u8>,
}

impl Received {
    pub(crate) fn request(&self) -> Request<'_> {
        Request::decode(self.kind, &self.body).unwrap()
    }

    pub(crate) fn produce(&self) -> ProduceRequest<'_> {
        match self.request() {
            Request::Produce(request) => request,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn fetch(&self) -> FetchRequest {
        match self.request() {
            Request::Fetch(request) => request,
            other => panic!("{other:?}"),
        }
    }

    /// The payloads of a produce request's frames, as text.
    pub(crate) fn payloads(&self) -> Vec<String> {
        let frames = FrameBatch::parse(self.produce().frames, &FrameLimits::default())
            .unwrap()
            .frames();
        frames
            .map(|frame| String::from_utf8(frame.unwrap().payload.to_vec()).unwrap())
            .collect()
    }
}

/// The server's end of one connection. Dropping it closes the connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
}

impl Peer {
    pub(crate) async fn receive(&mut self) -> Received {
        self.receive_or_end()
            .await
            .expect("the client closed the connection")
    }

    /// `None` when the client has closed the connection.
    pub(crate) async fn receive_or_end(&mut self) -> Option<Received> {
        let mut head = [0; REQUEST_HEADER_BYTES];
        soon(self.stream.read_exact(&mut head)).await.ok()?;
        let header = RequestHeader::decode(&head, 1 << 20).unwrap();
        let mut body = vec![0; header.body_bytes as usize];
        soon(self.stream.read_exact(&mut body)).await.unwrap();
        Some(Received {
            id: header.correlation_id,
            kind: header.kind,
            body,
        })
    }

    pub(crate) async fn reply(&mut self, id: u32, response: &impl ResponseBody) {
        let mut out = Vec::new();
        encode_response(id, response, &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    pub(crate) async fn stored(&mut self, id: u32, base: u64, count: u64) {
        let response = ProduceResponse {
            base_offset: Offset(base),
            end_offset: Offset(base + count),
        };
        self.reply(id, &response).await;
    }

    pub(crate) async fn refuse(&mut self, id: u32, error: &ErrorResponse) {
        let mut out = Vec::new();
        encode_error(id, error, &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// Answers a fetch with these records, at offsets from `base` on.
    pub(crate) async fn fetched(
        &mut self,
        id: u32,
        base: u64,
        payloads: &[&str],
        end_reached: bool,
    ) {
        let mut frames = Vec::new();
        let mut next = base;
        for payload in payloads {
            let mut frame = Frame::record(1, b"", payload.as_bytes());
            frame.header.offset = Offset(next);
            frame.encode_into(&mut frames);
            next += 1;
        }
        let header = FetchResponseHeader {
            log_start_offset: Offset(0),
            high_watermark: Offset(100),
            next_offset: Offset(next),
            end_reached,
        };
        let mut out = Vec::new();
        encode_fetch_header(id, &header, u32::try_from(frames.len()).unwrap(), &mut out);
        out.extend_from_slice(&frames);
        self.stream.write_all(&out).await.unwrap();
    }
}
