//! An open loop without a server: what is sent when it is due, handed on by one thread, and received.
//!
//! Three threads and two connections of loopback TCP are the least that end to end takes. How late they are is how late the
//! machine lets threads run: the tail of a server that shares it is no shorter. The same with a relay that first writes what
//! it has read over old data of a file and syncs that is the least that a durable log takes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::FRAME_BYTES;
use super::network::connection;
use crate::clock::{Timeline, sleep_for, wake_precisely};
use crate::schedule::Schedule;
use crate::stats::{Latencies, LatencySummary};

/// Frames of one measurement, in seconds of their rate.
const SECONDS: u64 = if cfg!(test) { 1 } else { 4 };
/// Of those, so many tell nothing.
const WARM_UP: u64 = 8;
const BUFFER_BYTES: usize = 256 << 10;
/// Of the file that is written again and again.
const FILE_BYTES: u64 = 16 << 20;

/// Latencies from when a frame was due to when it came, at `rate` frames a second; with a folder, by way of its disk.
pub(super) fn latency(rate: u64, folder: Option<&Path>) -> io::Result<LatencySummary> {
    let file = folder.map(written_file).transpose()?;
    let schedule = Schedule::new(rate, 1, 0);
    let count = rate * SECONDS;
    let (sender, relay_in) = connection()?;
    let (relay_out, receiver) = connection()?;
    let timeline = Timeline::start();
    thread::scope(|scope| {
        let sending = scope.spawn(move || send(sender, timeline, schedule, count));
        let relaying = scope.spawn(|| relay(relay_in, relay_out, file.as_ref()));
        let receiving = scope.spawn(move || receive(receiver, timeline, schedule, count));
        let joined = |ended: thread::Result<io::Result<()>>| {
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        };
        joined(sending.join())?;
        joined(relaying.join())?;
        let latencies = receiving
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the receiver failed")))?;
        latencies
            .summary()
            .ok_or_else(|| io::Error::other("nothing came through the relay"))
    })
}

fn send(
    mut stream: TcpStream,
    timeline: Timeline,
    schedule: Schedule,
    count: u64,
) -> io::Result<()> {
    wake_precisely();
    let frames = [0x5a; 256 * FRAME_BYTES];
    let interval = Duration::from_nanos(schedule.interval_ns());
    let mut sent = 0;
    while sent < count {
        let due = schedule.due_count(timeline.now_ns()).min(count) - sent;
        let now = usize::try_from(due).unwrap_or(usize::MAX).min(256);
        stream.write_all(&frames[..now * FRAME_BYTES])?;
        sent += now as u64;
        let early = schedule.due_ns(sent).saturating_sub(timeline.now_ns());
        if early > 0 {
            thread::sleep(sleep_for(Duration::from_nanos(early), interval));
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn written_file(folder: &Path) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(folder)?;
    io::copy(&mut io::repeat(0x5a).take(FILE_BYTES), &mut file)?;
    file.sync_all()?;
    Ok(file)
}

fn relay(mut from: TcpStream, mut to: TcpStream, file: Option<&File>) -> io::Result<()> {
    let mut bytes = vec![0; BUFFER_BYTES];
    let mut position = 0;
    loop {
        let read = from.read(&mut bytes)?;
        if read == 0 {
            return to.shutdown(Shutdown::Write);
        }
        if let Some(file) = file {
            if position + read as u64 > FILE_BYTES {
                position = 0;
            }
            file.write_all_at(&bytes[..read], position)?;
            file.sync_data()?;
            position += read as u64;
        }
        to.write_all(&bytes[..read])?;
    }
}

fn receive(
    mut stream: TcpStream,
    timeline: Timeline,
    schedule: Schedule,
    count: u64,
) -> io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut bytes = vec![0; BUFFER_BYTES];
    let (mut received, mut known) = (0_u64, 0);
    loop {
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Ok(latencies);
        }
        let now_ns = timeline.now_ns();
        received += read as u64;
        let whole = received / FRAME_BYTES as u64;
        for number in known.max(count / WARM_UP)..whole {
            latencies.record(now_ns.saturating_sub(schedule.due_ns(number)), 1);
        }
        known = whole;
    }
}
