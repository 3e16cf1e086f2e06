//! The server over real sockets: a log in a temporary folder, port 0, and clients written from the byte layout, not
//! from this project's encoders.

mod authenticated;
mod cold;
mod consume;
mod durability;
mod hostile;
mod kafka;
mod limits;
mod pressure;
mod produce;
mod session;
mod shutdown;
mod tail;
mod topics;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use basalt_auth::Authenticator;
use basalt_columnar::{ColdConfig, ColdStore, TieredLog, TieredPartition};
use basalt_log::{Disk, Log, LogConfig, RealDisk, SystemClock};
use basalt_proto::{Offset, PartitionId, TopicName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::shared::Shared;
use crate::{Counters, CountersSnapshot, HttpHandler, Server, ServerConfig, ShutdownTrigger};

/// No test waits longer for anything than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// Held by tests that measure the process's memory, or use much of it.
static MEMORY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What the connections of a server share, without a server.
pub(crate) async fn shared(adjust: impl FnOnce(&mut ServerConfig)) -> (TempDir, Arc<Shared>) {
    let dir = TempDir::new().unwrap();
    let log = open_log(&dir.path().join("data"), Arc::new(RealDisk::new())).await;
    let mut config = ServerConfig::default();
    adjust(&mut config);
    config.validate().unwrap();
    (dir, Arc::new(Shared::new(config, log, None)))
}

/// The two ends of a connection: the peer's and the server's.
pub(crate) async fn stream_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap());
    let (peer, accepted) = tokio::join!(peer, listener.accept());
    (peer.unwrap(), accepted.unwrap().0)
}

async fn open_log(root: &Path, disk: Arc<dyn Disk>) -> Arc<TieredLog> {
    let log = Log::open(LogConfig::new(root), disk, Arc::new(SystemClock)).unwrap();
    let store = ColdStore::local(root.join("cold")).unwrap();
    TieredLog::open(log, store, ColdConfig::new(root.join("cache")))
        .await
        .unwrap()
}

pub(super) struct Harness {
    dir: TempDir,
    root: PathBuf,
    log: Arc<TieredLog>,
    address: SocketAddr,
    trigger: ShutdownTrigger,
    counters: Arc<Counters>,
    shared: Arc<Shared>,
    running: JoinHandle<std::io::Result<()>>,
}

impl Harness {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(adjust: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::start_serving(adjust, None).await
    }

    async fn start_serving(
        adjust: impl FnOnce(&mut ServerConfig),
        http: Option<Arc<dyn HttpHandler>>,
    ) -> Self {
        Self::start_on(Arc::new(RealDisk::new()), adjust, http).await
    }

    async fn start_on(
        disk: Arc<dyn Disk>,
        adjust: impl FnOnce(&mut ServerConfig),
        http: Option<Arc<dyn HttpHandler>>,
    ) -> Self {
        Self::start_in(TempDir::new().unwrap(), disk, adjust, http).await
    }

    /// Over the log that is in the folder, if there is one.
    async fn start_in(
        dir: TempDir,
        disk: Arc<dyn Disk>,
        adjust: impl FnOnce(&mut ServerConfig),
        http: Option<Arc<dyn HttpHandler>>,
    ) -> Self {
        Self::start_guarded(dir, disk, adjust, http, None).await
    }

    /// Which serves users of the authenticator's alone, if there is one.
    async fn start_guarded(
        dir: TempDir,
        disk: Arc<dyn Disk>,
        adjust: impl FnOnce(&mut ServerConfig),
        http: Option<Arc<dyn HttpHandler>>,
        authenticator: Option<Authenticator>,
    ) -> Self {
        let root = dir.path().join("data");
        let log = open_log(&root, disk).await;
        let mut config = ServerConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ..ServerConfig::default()
        };
        adjust(&mut config);
        let server = Server::bind(config, Arc::clone(&log), http, authenticator)
            .await
            .unwrap();
        let trigger = ShutdownTrigger::new();
        let address = server.local_addresses()[0];
        let (counters, shared) = (server.counters(), server.shared());
        let running = tokio::spawn(server.run(trigger.signal()));
        Self {
            dir,
            root,
            log,
            address,
            trigger,
            counters,
            shared,
            running,
        }
    }

    async fn connect(&self) -> Peer {
        Peer {
            stream: patient(TcpStream::connect(self.address)).await.unwrap(),
        }
    }

    async fn producer(&self, topic: &str) -> Peer {
        let mut peer = self.connect().await;
        peer.send(&produce_opening(topic, 0)).await;
        peer
    }

    async fn consumer(&self, group: &str, topic: &str) -> Peer {
        let mut peer = self.connect().await;
        peer.send(&consume_opening(group, topic, 0)).await;
        peer
    }

    /// Commits, and fails unless that is answered as done.
    async fn commit(&self, group: &str, topic: &str, offset: u64) {
        let mut peer = self.connect().await;
        peer.send(&commit_opening(group, topic, 0, offset)).await;
        assert_eq!(peer.rest().await, [0x01]);
    }

    /// Produces frames and fails unless each is acknowledged; their offsets.
    async fn produce(&self, topic: &str, frames: &[Vec<u8>]) -> Vec<u64> {
        let mut peer = self.producer(topic).await;
        peer.send(&frames.concat()).await;
        let mut offsets = Vec::new();
        for _ in frames {
            offsets.push(peer.stored().await);
        }
        offsets
    }

    fn partition(&self, topic: &str) -> Arc<TieredPartition> {
        self.log
            .partition(&TopicName::new(topic).unwrap(), PartitionId(0))
            .unwrap()
    }

    /// Ends the segment that is written to, so that retention can take it.
    async fn seal(&self, topic: &str) {
        let partition = self.partition(topic);
        assert!(
            tokio::task::spawn_blocking(move || partition.hot().seal_active())
                .await
                .unwrap()
                .unwrap()
        );
    }

    /// What retention does to hot segments that end at or before `through`.
    async fn expire(&self, topic: &str, through: u64) {
        let partition = self.partition(topic);
        tokio::task::spawn_blocking(move || partition.hot().release(Offset(through)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            self.partition(topic).bounds().log_start_offset,
            Offset(through)
        );
    }

    fn count(&self) -> CountersSnapshot {
        self.counters.snapshot()
    }

    /// Waits until the counters satisfy `condition`.
    async fn until(&self, what: &str, condition: impl Fn(&CountersSnapshot) -> bool) {
        let waiting = async {
            while !condition(&self.count()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(
            timeout(PATIENCE, waiting).await.is_ok(),
            "never came: {what}; counters: {:?}",
            self.count()
        );
    }

    /// A producer and a consumer of a topic of their own get through.
    async fn assert_serves(&self, topic: &str) {
        let offset = self
            .produce(topic, &[frame(1, b"", b"still here", 1)])
            .await[0];
        self.commit("checker", topic, offset).await;
        let mut consumer = self.consumer("checker", topic).await;
        assert_eq!(consumer.frame().await.payload, b"still here");
    }

    /// Stops and checks that nothing panicked and no connection is left.
    async fn stop(self) {
        drop(self.stop_and_keep().await);
    }

    /// Ends as a process does that is killed, once its disk takes no change any more; the folder stays.
    async fn die(self) -> TempDir {
        self.trigger.trigger();
        // Nothing can be finished.
        let _ = patient(self.running).await;
        let _ = self.log.shutdown().await;
        let _ = self.log.log().close();
        self.dir
    }

    /// The folder stays.
    async fn stop_and_keep(self) -> TempDir {
        self.trigger.trigger();
        patient(self.running).await.unwrap().unwrap();
        let count = self.counters.snapshot();
        assert_eq!(
            (count.connections_open, count.connection_panics),
            (0, 0),
            "{count:?}"
        );
        self.log.shutdown().await.unwrap();
        self.log.log().close().unwrap();
        self.dir
    }
}

pub(crate) async fn patient<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("it takes too long")
}

/// A frame as a client got it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Received {
    bytes: Vec<u8>,
    timestamp_ns: u64,
    offset: u64,
    record_count: u32,
    key: Vec<u8>,
    payload: Vec<u8>,
}

/// A client's end of a connection.
struct Peer {
    stream: TcpStream,
}

impl Peer {
    async fn send(&mut self, bytes: &[u8]) {
        patient(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends what the server may refuse to take.
    async fn try_send(&mut self, bytes: &[u8]) {
        // A reset is what a refusal may look like from here.
        let _ = patient(self.stream.write_all(bytes)).await;
    }

    async fn exact(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        patient(self.stream.read_exact(&mut bytes)).await.unwrap();
        bytes
    }

    async fn ack(&mut self) -> [u8; 9] {
        self.exact(9).await.try_into().unwrap()
    }

    async fn stored(&mut self) -> u64 {
        let ack = self.ack().await;
        assert_eq!(ack[0], 0x00, "refused: {ack:02x?}");
        u64::from_be_bytes(ack[1..].try_into().unwrap())
    }

    async fn frame(&mut self) -> Received {
        let mut bytes = self.exact(29).await;
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let wide = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes[0], 0x01, "not a record frame: {bytes:02x?}");
        let (timestamp_ns, offset) = (wide(1), wide(9));
        let (key_bytes, payload_bytes, record_count) =
            (number(17) as usize, number(21) as usize, number(25));
        let key = self.exact(key_bytes).await;
        let payload = self.exact(payload_bytes).await;
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(&payload);
        Received {
            bytes,
            timestamp_ns,
            offset,
            record_count,
            key,
            payload,
        }
    }

    /// Everything up to the server's end of the connection, be that clean or a reset.
    async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match patient(self.stream.read(&mut buffer)).await {
                Ok(0) | Err(_) => return rest,
                Ok(count) => rest.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Fails if the server closes, or sends anything, within `time`.
    async fn stays_open_and_silent(&mut self, time: Duration) {
        let mut byte = [0];
        let read = timeout(time, self.stream.read(&mut byte)).await;
        assert!(read.is_err(), "expected silence, got {read:?}");
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).unwrap());
    out.extend_from_slice(text.as_bytes());
}

fn produce_opening(topic: &str, partition: u32) -> Vec<u8> {
    let mut out = vec![0x01];
    text(&mut out, topic);
    out.extend_from_slice(&partition.to_be_bytes());
    out
}

fn consume_opening(group: &str, topic: &str, partition: u32) -> Vec<u8> {
    let mut out = vec![0x02];
    text(&mut out, group);
    text(&mut out, topic);
    out.extend_from_slice(&partition.to_be_bytes());
    out
}

fn commit_opening(group: &str, topic: &str, partition: u32, offset: u64) -> Vec<u8> {
    let mut out = consume_opening(group, topic, partition);
    out[0] = 0x03;
    out.extend_from_slice(&offset.to_be_bytes());
    out
}

fn header(
    magic: u8,
    timestamp_ns: u64,
    key_bytes: u32,
    payload_bytes: u32,
    record_count: u32,
) -> Vec<u8> {
    let mut out = vec![magic];
    out.extend_from_slice(&timestamp_ns.to_be_bytes());
    out.extend_from_slice(&0_u64.to_be_bytes());
    out.extend_from_slice(&key_bytes.to_be_bytes());
    out.extend_from_slice(&payload_bytes.to_be_bytes());
    out.extend_from_slice(&record_count.to_be_bytes());
    out
}

fn frame(timestamp_ns: u64, key: &[u8], payload: &[u8], record_count: u32) -> Vec<u8> {
    let (key_bytes, payload_bytes) = (
        u32::try_from(key.len()).unwrap(),
        u32::try_from(payload.len()).unwrap(),
    );
    let mut out = header(0x01, timestamp_ns, key_bytes, payload_bytes, record_count);
    out.extend_from_slice(key);
    out.extend_from_slice(payload);
    out
}

/// Frames with the payloads `0`, `1`, ... and one record each.
fn numbered_frames(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| frame(u64::from(number), b"", number.to_string().as_bytes(), 1))
        .collect()
}

fn refused(ack: [u8; 9]) -> (u8, u32) {
    assert_eq!(
        (ack[0], &ack[2..5]),
        (0xff, &[0, 0, 0][..]),
        "not a refusal: {ack:02x?}"
    );
    (ack[1], u32::from_be_bytes(ack[5..].try_into().unwrap()))
}

fn high_watermark(harness: &Harness, topic: &str) -> Offset {
    harness.partition(topic).bounds().high_watermark
}
