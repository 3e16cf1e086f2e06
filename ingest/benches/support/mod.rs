//! A server to measure, the bytes to send to it, and the clocks.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::{ColdConfig, ColdStore, TieredLog, TieredPartition};
use basalt_ingest::{Counters, ServerConfig, ShutdownTrigger};
use basalt_log::{Log, LogConfig, RealDisk, SystemClock, TopicConfig, TopicDurability};
use basalt_proto::session::{AckLevel, ProduceRequest, Request};
use basalt_proto::{Frame, Opening, PartitionId, TopicName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const SEED: u64 = 0x0b5a_1700_2013_0001;
const PAYLOAD_BYTES: usize = 100;
pub(crate) const FRAME_BYTES: usize = 129;
const TOPIC: &str = "bench";

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// A server with one topic of durability `os`, in a temporary folder.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    counters: Arc<Counters>,
    trigger: ShutdownTrigger,
    running: tokio::task::JoinHandle<std::io::Result<()>>,
    log: Arc<TieredLog>,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let runtime = runtime()?;
        let root = folder.path().join("data");
        let (log, server) = runtime.block_on(async {
            let log = Log::open(
                LogConfig::new(&root),
                Arc::new(RealDisk::new()),
                Arc::new(SystemClock),
            )?;
            let store = ColdStore::local(root.join("cold"))?;
            let log = TieredLog::open(log, store, ColdConfig::new(root.join("cache"))).await?;
            let config = TopicConfig {
                durability: TopicDurability::Os,
                ..TopicConfig::default()
            };
            log.create_topic(&TopicName::new(TOPIC)?, 1, config)?;
            let config = ServerConfig {
                listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
                ..ServerConfig::default()
            };
            let server = basalt_ingest::Server::bind(config, Arc::clone(&log), None, None).await?;
            Outcome::Ok((log, server))
        })?;
        let trigger = ShutdownTrigger::new();
        let (address, counters) = (server.local_addresses()[0], server.counters());
        let running = runtime.spawn(server.run(trigger.signal()));
        Ok(Self {
            address,
            counters,
            trigger,
            running,
            log,
            runtime,
            _folder: folder,
        })
    }

    pub(crate) fn stored_records(&self) -> u64 {
        let counters = self.counters.snapshot();
        print!(
            "{:>4} KiB an append; ",
            (counters.bytes_in / counters.appends.max(1)) >> 10
        );
        counters.records_in
    }

    pub(crate) fn partition(&self) -> Outcome<Arc<TieredPartition>> {
        let found = self.log.partition(&TopicName::new(TOPIC)?, PartitionId(0));
        found.ok_or_else(|| "no partition".into())
    }

    pub(crate) fn stop(self) -> Outcome {
        self.trigger.trigger();
        self.runtime.block_on(self.running)??;
        self.runtime.block_on(self.log.shutdown())?;
        self.log.log().close()?;
        Ok(())
    }
}

/// The least that answers: every byte goes back.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    _runtime: Runtime,
}

impl Echo {
    pub(crate) fn start() -> Outcome<Self> {
        let runtime = runtime()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let mut buffer = vec![0; 4096];
            loop {
                match stream.read(&mut buffer).await? {
                    0 => return std::io::Result::Ok(()),
                    count => stream.write_all(&buffer[..count]).await?,
                }
            }
        });
        Ok(Self {
            address,
            _runtime: runtime,
        })
    }
}

/// `count` frames, one behind the other.
pub(crate) fn frames(count: usize) -> Vec<u8> {
    let mut state = SEED;
    let mut frames = Vec::with_capacity(count * FRAME_BYTES);
    let mut timestamp_ns = 1_357_034_400_000_000_000;
    for _ in 0..count {
        let mut payload = [0; PAYLOAD_BYTES];
        for part in payload.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            part.copy_from_slice(&state.to_be_bytes()[..part.len()]);
        }
        timestamp_ns += 1_000;
        Frame::record(timestamp_ns, b"", &payload).encode_into(&mut frames);
    }
    frames
}

pub(crate) fn produce_request(ack: u8, frames: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if let (Some(ack), Ok(topic)) = (AckLevel::from_code(ack), TopicName::new(TOPIC)) {
        let partition = PartitionId(0);
        Request::Produce(ProduceRequest {
            topic,
            partition,
            ack,
            frames,
        })
        .encode_into(7, &mut out);
    }
    out
}

fn connect(address: SocketAddr, opening: &Opening) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut out = Vec::new();
    opening.encode_into(&mut out);
    stream.write_all(&out)?;
    Ok(stream)
}

pub(crate) fn connect_session(address: SocketAddr) -> Outcome<TcpStream> {
    let mut stream = connect(address, &Opening::Session { version: 1 })?;
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

pub(crate) fn connect_native(address: SocketAddr) -> Outcome<TcpStream> {
    let opening = Opening::Produce {
        topic: TopicName::new(TOPIC)?,
        partition: PartitionId(0),
    };
    connect(address, &opening)
}

/// Processor time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spent {
    ns: u64,
}

impl Spent {
    pub(crate) fn of_this_thread() -> Outcome<Self> {
        Self::read("/proc/thread-self/schedstat")
    }

    /// Of all threads that still run.
    fn of_this_process() -> Outcome<Self> {
        let mut ns = 0;
        for task in std::fs::read_dir("/proc/self/task")? {
            let path = task?.path().join("schedstat");
            // A thread may end meanwhile.
            ns += Self::read(&path.to_string_lossy()).map_or(0, |spent| spent.ns);
        }
        Ok(Self { ns })
    }

    fn read(path: &str) -> Outcome<Self> {
        let text = std::fs::read_to_string(path)?;
        let ns = text.split(' ').next().unwrap_or_default().parse()?;
        Ok(Self { ns })
    }

    pub(crate) fn milliseconds(self) -> f64 {
        self.ns as f64 / 1e6
    }
}

impl Add for Spent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            ns: self.ns + other.ns,
        }
    }
}

/// A case from its start.
pub(crate) struct Measured {
    at: Instant,
    spent: Option<Spent>,
}

impl Measured {
    pub(crate) fn start() -> Self {
        Self {
            at: Instant::now(),
            spent: Spent::of_this_process().ok(),
        }
    }

    /// What threads that still run have spent since then.
    pub(crate) fn spent(&self) -> Outcome<Spent> {
        let before = self.spent.map_or(0, |spent| spent.ns);
        Ok(Spent {
            ns: Spent::of_this_process()?.ns.saturating_sub(before),
        })
    }

    /// Prints what came of `count` records; `client` is what the clients' threads spent, which have ended.
    pub(crate) fn report(&self, count: u64, record_bytes: usize, client: Spent) -> Outcome {
        let seconds = self.at.elapsed().as_secs_f64();
        let server = self.spent()?;
        let count = count as f64;
        println!(
            "{:>6.2} M records/s, {:>5.0} MB/s; a record costs the server {:>5.1} ns, the client {:>5.1} ns",
            count / seconds / 1e6,
            count * record_bytes as f64 / seconds / 1e6,
            server.ns as f64 / count,
            client.ns as f64 / count,
        );
        Ok(())
    }
}

/// How long each of many took.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    all: Vec<Duration>,
}

impl Latencies {
    pub(crate) fn time(&mut self, work: impl FnOnce() -> Outcome) -> Outcome {
        let start = Instant::now();
        work()?;
        self.all.push(start.elapsed());
        Ok(())
    }

    pub(crate) fn report(mut self) -> Outcome {
        self.all.sort_unstable();
        let last = self
            .all
            .len()
            .checked_sub(1)
            .ok_or("nothing was measured")?;
        let at = |percent: usize| self.all[last * percent / 100].as_secs_f64() * 1e6;
        println!(
            "{:>8} round trips: p50 {:.1} us, p99 {:.1} us, longest {:.0} us",
            self.all.len(),
            at(50),
            at(99),
            at(100),
        );
        Ok(())
    }
}

/// Memory of this process that is in use and no file's.
pub(crate) fn resident_bytes() -> Outcome<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes: usize = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("an odd status")?
        .parse()?;
    Ok(kibibytes << 10)
}
