//! The produce path over a real socket: a server and its clients in one process, on the loopback address.
//!
//! One workload: record frames of 129 bytes (a payload of 100, no key), made from a fixed seed. A line says what came of
//! a case: rate, and the processor time that server and clients took, which tells more than the rate on a machine that
//! has other work. Run `cargo bench -p basalt-ingest --bench produce [-- CASE...]`; set `TMPDIR` to choose the disk.
//! Compare two runs on one machine, never figures of two machines.

mod support;

use std::error::Error;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use basalt_log::Durability;
use basalt_proto::{ACK_BYTES, FrameBatch, FrameLimits};
use support::{
    Echo, FRAME_BYTES, Latencies, Measured, Server, Spent, connect_native, connect_session, frames,
    produce_request,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;
type Case = (&'static str, fn() -> Outcome);

/// What a throughput case sends.
const TOTAL_BYTES: usize = 2 << 30;
/// Produce requests a session has on their way.
const IN_FLIGHT: usize = 8;
const ACK_NONE: u8 = 0;
const ACK_OS: u8 = 1;
/// A response to a produce request: header and two offsets.
const RESPONSE_BYTES: usize = 25;
const ROUND_TRIPS: usize = 20_000;
const IDLE_CONNECTIONS: usize = 1000;

fn main() -> Outcome {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let cases: [Case; 12] = [
        ("session-os-512k", || session(512 << 10, ACK_OS)),
        ("session-os-64k", || session(64 << 10, ACK_OS)),
        ("session-os-4k", || session(4 << 10, ACK_OS)),
        ("session-none-512k", || session(512 << 10, ACK_NONE)),
        ("native", native),
        ("echo", echo),
        ("ping-native", ping_native),
        ("ping-session", ping_session),
        ("ping-beside-flood", ping_beside_flood),
        ("idle", idle),
        ("loopback", loopback),
        ("append-256k", append),
    ];
    for (name, case) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.starts_with(wanted)) {
            print!("{name:<20} ");
            std::io::stdout().flush()?;
            case()?;
        }
    }
    Ok(())
}

/// One session that sends requests of about `batch_bytes`, [`IN_FLIGHT`] at a time.
fn session(batch_bytes: usize, ack: u8) -> Outcome {
    let server = Server::start()?;
    let stream = connect_session(server.address)?;
    let request = produce_request(ack, &frames(batch_bytes / FRAME_BYTES));
    let count = TOTAL_BYTES / request.len();
    let measured = Measured::start();
    let client = std::thread::spawn(move || -> Outcome<Spent> {
        send_requests(&stream, &request, count, ack)?;
        Spent::of_this_thread()
    });
    let spent = client.join().map_err(|_| "a client panicked")??;
    let stored = server.stored_records();
    measured.report(stored, FRAME_BYTES, spent)?;
    server.stop()
}

fn send_requests(stream: &TcpStream, request: &[u8], count: usize, ack: u8) -> Outcome {
    let mut write = stream;
    let mut read = BufReader::new(stream);
    let mut response = [0; RESPONSE_BYTES];
    for number in 0..count + IN_FLIGHT {
        if number >= IN_FLIGHT && ack != ACK_NONE {
            read.read_exact(&mut response)?;
            if response[8] != 0 {
                return Err("a request was refused".into());
            }
        }
        if number < count {
            write.write_all(request)?;
        }
    }
    if ack == ACK_NONE {
        // The answer to a ping says that all before it was read.
        write.write_all(&[0, 0, 0, 5, 12, 0, 0, 0, 1])?;
        read.read_exact(&mut response[..9])?;
    }
    Ok(())
}

/// One HermitMQ connection: frames as fast as they go, acknowledgements read beside them.
fn native() -> Outcome {
    let server = Server::start()?;
    let stream = connect_native(server.address)?;
    let chunk = frames(512);
    let count = TOTAL_BYTES / chunk.len();
    let acks = count * 512;
    let reading = stream.try_clone()?;
    let measured = Measured::start();
    let reader = std::thread::spawn(move || -> Outcome<Spent> {
        let mut buffer = vec![0; 256 << 10];
        let mut left = acks * ACK_BYTES;
        while left > 0 {
            let read = (&reading).read(&mut buffer)?;
            if read == 0 {
                return Err("the server closed".into());
            }
            left -= read;
        }
        Spent::of_this_thread()
    });
    let writer = std::thread::spawn(move || -> Outcome<Spent> {
        for _ in 0..count {
            (&stream).write_all(&chunk)?;
        }
        Spent::of_this_thread()
    });
    let wrote = writer.join().map_err(|_| "a client panicked")??;
    let read = reader.join().map_err(|_| "a client panicked")??;
    let stored = server.stored_records();
    measured.report(stored, FRAME_BYTES, wrote + read)?;
    server.stop()
}

/// A frame sent and sent back by the least that tokio can do: what the machine's round trip costs.
fn echo() -> Outcome {
    let echo = Echo::start()?;
    let stream = connect(echo.address)?;
    round_trips(&stream, &frames(1), FRAME_BYTES)?.report()
}

fn ping_native() -> Outcome {
    let server = Server::start()?;
    let stream = connect_native(server.address)?;
    round_trips(&stream, &frames(1), ACK_BYTES)?.report()?;
    server.stop()
}

fn ping_session() -> Outcome {
    let server = Server::start()?;
    let stream = connect_session(server.address)?;
    let request = produce_request(ACK_OS, &frames(1));
    round_trips(&stream, &request, RESPONSE_BYTES)?.report()?;
    server.stop()
}

/// One record at a time while two sessions send as much as they can: whether a thread is shared.
fn ping_beside_flood() -> Outcome {
    let server = Server::start()?;
    let request = produce_request(ACK_OS, &frames((64 << 10) / FRAME_BYTES));
    let floods: Vec<_> = (0..2)
        .map(|_| {
            let stream = connect_session(server.address)?;
            let request = request.clone();
            let count = TOTAL_BYTES / 2 / request.len();
            Ok(std::thread::spawn(move || {
                send_requests(&stream, &request, count, ACK_OS)
            }))
        })
        .collect::<Outcome<_>>()?;
    let stream = connect_native(server.address)?;
    let frame = frames(1);
    let mut latencies = Latencies::default();
    while floods.iter().any(|flood| !flood.is_finished()) {
        latencies.time(|| round_trip(&stream, &frame, ACK_BYTES))?;
    }
    for flood in floods {
        flood.join().map_err(|_| "a client panicked")??;
    }
    latencies.report()?;
    server.stop()
}

/// Many sessions that said hello and nothing more.
fn idle() -> Outcome {
    let server = Server::start()?;
    let mut streams = Vec::with_capacity(IDLE_CONNECTIONS);
    connect_session(server.address)?;
    let before = support::resident_bytes()?;
    for _ in 0..IDLE_CONNECTIONS {
        streams.push(connect_session(server.address)?);
    }
    let opened = support::resident_bytes()?;
    // A record each: buffers that were used are given back.
    let request = produce_request(ACK_OS, &frames(1000));
    let mut response = [0; RESPONSE_BYTES];
    for mut stream in &streams {
        stream.write_all(&request)?;
        stream.read_exact(&mut response)?;
    }
    std::thread::sleep(std::time::Duration::from_secs(4));
    let used = support::resident_bytes()?;
    let measured = Measured::start();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let spent = measured.spent()?;
    println!(
        "{:.1} KiB a connection when opened, {:.1} KiB after its use; {:.2} ms of processor time in 3 s",
        kib_each(opened.saturating_sub(before)),
        kib_each(used.saturating_sub(before)),
        spent.milliseconds(),
    );
    drop(streams);
    server.stop()
}

fn kib_each(bytes: usize) -> f64 {
    (bytes >> 10) as f64 / IDLE_CONNECTIONS as f64
}

/// What the machine's loopback carries between two threads that do nothing else: the bound of all above.
fn loopback() -> Outcome {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut write = TcpStream::connect(listener.local_addr()?)?;
    let (mut read, _) = listener.accept()?;
    let chunk = frames((256 << 10) / FRAME_BYTES);
    let measured = Measured::start();
    let writer = std::thread::spawn(move || -> Outcome<Spent> {
        for _ in 0..TOTAL_BYTES / chunk.len() {
            write.write_all(&chunk)?;
        }
        Spent::of_this_thread()
    });
    let mut buffer = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        match read.read(&mut buffer)? {
            0 => break,
            count => total += count,
        }
    }
    let spent = writer.join().map_err(|_| "a client panicked")??;
    measured.report((total / FRAME_BYTES) as u64, FRAME_BYTES, spent)
}

/// What the log takes without a socket: what all above spend there.
fn append() -> Outcome {
    let server = Server::start()?;
    let bytes = frames((256 << 10) / FRAME_BYTES);
    let partition = server.partition()?;
    let measured = Measured::start();
    let count = TOTAL_BYTES / bytes.len();
    let mut stored = 0;
    for _ in 0..count {
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default())?;
        partition.hot().append(&batch, Durability::Os)?;
        stored += batch.record_count();
    }
    measured.report(stored, FRAME_BYTES, Spent::default())?;
    server.stop()
}

fn connect(address: std::net::SocketAddr) -> Outcome<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn round_trips(stream: &TcpStream, message: &[u8], answer_bytes: usize) -> Outcome<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..ROUND_TRIPS {
        latencies.time(|| round_trip(stream, message, answer_bytes))?;
    }
    Ok(latencies)
}

fn round_trip(mut stream: &TcpStream, message: &[u8], answer_bytes: usize) -> Outcome {
    let mut answer = [0; 256];
    stream.write_all(message)?;
    stream.read_exact(&mut answer[..answer_bytes])?;
    Ok(())
}
