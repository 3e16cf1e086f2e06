//! What reading costs: a server's CPU for each GB against a bare `sendfile(2)` loop, and hot latencies beside cold scans.
//!
//! Build with `--release`, then, with `E=target/release/examples/read_path` and a folder on the disk to be measured:
//!
//! ```text
//! $E prepare DIR 4             # a topic `t` of 4 GiB, and a small topic `hot`
//! $E bare DIR 9100 1024 &      # sendfile of the segments in slices of 1024 KiB, to whoever connects
//! $E serve DIR 9101 &          # a server of the same folder (not while another one has it)
//! $E receive 9100 PID 4        # rate, and the CPU that process PID took for each GB
//! $E consume 9101 PID 4        # the same of the server
//! $E hot 9101 10               # latencies of fetches of `hot` for 10 s
//! $E evict DIR                 # drops the segments of `t` from the page cache
//! $E idle 9101 PID 2000        # CPU while so many fetches wait at the tail
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::{ColdConfig, ColdStore, TieredLog};
use basalt_ingest::{Server, ServerConfig, ShutdownTrigger};
use basalt_log::{Durability, Log, LogConfig, RealDisk, SystemClock, TopicConfig};
use basalt_proto::session::{FetchRequest, NO_END_OFFSET, Request, Start};
use basalt_proto::{
    FRAME_HEADER_BYTES, Frame, FrameBatch, FrameHeader, FrameLimits, Offset, PartitionId, TopicName,
};
use tokio::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

const PAYLOAD_BYTES: usize = 1000;
const READ_BYTES: usize = 1 << 20;
const GIB: u64 = 1 << 30;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["prepare", dir, gib] => prepare(Path::new(dir), gib.parse::<u64>()? * GIB),
        ["bare", dir, port, slice_kib] => bare(
            Path::new(dir),
            port.parse()?,
            slice_kib.parse::<usize>()? << 10,
        ),
        ["serve", dir, port] => serve(Path::new(dir), port.parse()?),
        ["receive", port, pid, gib] => receive(connect(port)?, pid, gib.parse::<u64>()? * GIB),
        ["consume", port, pid, gib] => {
            let mut stream = connect(port)?;
            stream.write_all(b"\x02\x01g\x01t\0\0\0\0")?;
            receive(stream, pid, gib.parse::<u64>()? * GIB)
        }
        ["hot", port, seconds] => hot(connect(port)?, Duration::from_secs(seconds.parse()?)),
        ["evict", dir] => evict(Path::new(dir)),
        ["idle", port, pid, count] => idle(connect(port)?, pid, count.parse()?),
        _ => Err("see the head of this file for its commands".into()),
    }
}

fn connect(port: &str) -> Outcome<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse::<u16>()?))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn open_log(dir: &Path) -> Outcome<Arc<Log>> {
    Ok(Log::open(
        LogConfig::new(dir),
        Arc::new(RealDisk::new()),
        Arc::new(SystemClock),
    )?)
}

fn prepare(dir: &Path, bytes: u64) -> Outcome<()> {
    let log = open_log(dir)?;
    for (name, bytes) in [("t", bytes), ("hot", 1 << 20)] {
        let topic = log.create_topic(&TopicName::new(name)?, 1, TopicConfig::default())?;
        let partition = topic.partition(PartitionId(0)).ok_or("no partition")?;
        let mut frames = Vec::new();
        while frames.len() < READ_BYTES {
            Frame::record(1, b"", &[7; PAYLOAD_BYTES]).encode_into(&mut frames);
        }
        let batch = FrameBatch::parse(&frames, &FrameLimits::default())?;
        for _ in 0..bytes.div_ceil(frames.len() as u64) {
            partition.append(&batch, Durability::Os)?;
        }
    }
    log.close()?;
    Ok(())
}

/// The segments of `t`, in order.
fn segments(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir.join("topics/t/0"))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    paths.sort_unstable();
    Ok(paths)
}

fn evict(dir: &Path) -> Outcome<()> {
    for path in segments(dir)? {
        let file = File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// The least that sending these files can cost.
fn bare(dir: &Path, port: u16, slice_bytes: usize) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    loop {
        let (stream, _) = listener.accept()?;
        for path in segments(dir)? {
            let file = File::open(path)?;
            let mut position = 0;
            // An error is a peer that has had enough.
            while let Ok(1..) =
                rustix::fs::sendfile(&stream, &file, Some(&mut position), slice_bytes)
            {}
        }
    }
}

fn serve(dir: &Path, port: u16) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = ColdStore::local(dir.join("cold"))?;
        let cold = ColdConfig::new(dir.join("cache"));
        let log = TieredLog::open(open_log(dir)?, store, cold).await?;
        let config = ServerConfig {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
            max_in_flight_requests: 4096,
            ..ServerConfig::default()
        };
        let server = Server::bind(config, Arc::clone(&log), None, None).await?;
        let counters = server.counters();
        let trigger = ShutdownTrigger::new();
        let running = tokio::spawn(server.run(trigger.signal()));
        tokio::signal::ctrl_c().await?;
        trigger.trigger();
        running.await??;
        println!("{:?}", counters.snapshot());
        log.shutdown().await?;
        Ok(())
    })
}

/// Seconds that a process has spent on processors.
fn cpu_seconds(pid: &str) -> Outcome<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

/// Reads frames up to `bytes` bytes, or the end, and looks at each header.
fn receive(mut stream: TcpStream, pid: &str, bytes: u64) -> Outcome<()> {
    let (begin, cpu_before) = (Instant::now(), cpu_seconds(pid)?);
    let own_before = cpu_seconds("self")?;
    let mut buffer = vec![0; READ_BYTES];
    let (mut filled, mut received, mut frames) = (0, 0_u64, 0_u64);
    // Within 2 MiB of the end nothing may follow.
    while received + (2 << 20) < bytes {
        let count = stream.read(&mut buffer[filled..])?;
        if count == 0 {
            break;
        }
        received += count as u64;
        filled += count;
        let mut at = 0;
        while let Some(header) = buffer[at..filled].first_chunk::<FRAME_HEADER_BYTES>() {
            let frame_bytes = usize::try_from(FrameHeader::decode(header)?.frame_bytes())?;
            if at + frame_bytes > filled {
                break;
            }
            at += frame_bytes;
            frames += 1;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
    }
    let (seconds, cpu) = (
        begin.elapsed().as_secs_f64(),
        cpu_seconds(pid)? - cpu_before,
    );
    let own_cpu = cpu_seconds("self")? - own_before;
    let gb = received as f64 / 1e9;
    println!(
        "{frames} frames, {gb:.2} GB in {seconds:.2} s: {:.2} GB/s; CPU s/GB: sender {:.3}, receiver {:.3}",
        gb / seconds,
        cpu / gb,
        own_cpu / gb
    );
    Ok(())
}

fn fetch(name: &str, id: u32, start: Start, max_wait_ms: u32) -> Outcome<Vec<u8>> {
    let request = Request::Fetch(FetchRequest {
        topic: TopicName::new(name)?,
        partition: PartitionId(0),
        start,
        max_bytes: 64 << 10,
        min_bytes: 1,
        max_wait_ms,
        end_offset: NO_END_OFFSET,
    });
    let mut out = Vec::new();
    request.encode_into(id, &mut out);
    Ok(out)
}

fn open_session(stream: &mut TcpStream) -> Outcome<()> {
    stream.write_all(&[0x04, 0x01])?;
    let mut version = [0];
    stream.read_exact(&mut version)?;
    Ok(())
}

/// Fetches 64 KiB of `hot` a thousand times a second, one after the other, and prints the latencies.
fn hot(mut stream: TcpStream, time: Duration) -> Outcome<()> {
    open_session(&mut stream)?;
    let begin = Instant::now();
    let mut latencies = Vec::new();
    let mut response = Vec::new();
    while begin.elapsed() < time {
        let sent = Instant::now();
        stream.write_all(&fetch("hot", 1, Start::Offset(Offset(10)), 0)?)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        response.resize(usize::try_from(u32::from_be_bytes(length))?, 0);
        stream.read_exact(&mut response)?;
        latencies.push(sent.elapsed());
        std::thread::sleep(Duration::from_millis(1).saturating_sub(sent.elapsed()));
    }
    latencies.sort_unstable();
    let at = |permille: usize| latencies[(latencies.len() - 1) * permille / 1000];
    println!(
        "{} fetches of {} bytes: p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        latencies.len(),
        response.len(),
        at(500),
        at(990),
        at(999),
        at(1000)
    );
    Ok(())
}

/// Lets `count` fetches wait at the tail of `hot` and prints what that costs.
fn idle(mut stream: TcpStream, pid: &str, count: u32) -> Outcome<()> {
    open_session(&mut stream)?;
    for id in 0..count {
        stream.write_all(&fetch("hot", id, Start::Latest, 300_000)?)?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu_seconds(pid)?;
    std::thread::sleep(Duration::from_secs(10));
    let cpu = cpu_seconds(pid)? - before;
    println!("{count} waiting fetches: {cpu:.2} s of CPU in 10 s");
    Ok(())
}
