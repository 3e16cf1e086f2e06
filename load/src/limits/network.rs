//! How fast bytes get through loopback TCP: from memory, and from a cached file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use basalt_proto::{Frame, FrameLimits, FrameWalk};

use super::{FRAME_BYTES, Pair};
use crate::clock::Timeline;

const WRITE_BYTES: usize = 256 << 10;
const RECEIVE_BYTES: usize = 512 << 10;
/// Bytes of one measurement.
const TOTAL_BYTES: u64 = if cfg!(test) { 128 << 20 } else { 2 << 30 };
/// Frames of the file: as many as a segment of 64 MiB holds.
const FILE_FRAMES: usize = (64 << 20) / FRAME_BYTES;

/// Two ends of a connection.
pub(super) fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// MB and 129-byte records per second.
pub(super) fn tcp() -> io::Result<Pair> {
    transfer(false, |mut stream| {
        let bytes = vec![1; WRITE_BYTES];
        let mut left = TOTAL_BYTES;
        while left > 0 {
            let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            stream.write_all(&bytes[..part])?;
            left -= part as u64;
        }
        Ok(())
    })
}

/// A file of frames that has just been written, and so is in the page cache.
pub(super) struct CachedFile {
    file: File,
    bytes: u64,
}

impl CachedFile {
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let mut frames = Vec::with_capacity(FILE_FRAMES * FRAME_BYTES);
        for number in 0..FILE_FRAMES {
            Frame::record(number as u64, &[], &[b'.'; 100]).encode_into(&mut frames);
        }
        let mut file = tempfile::tempfile_in(folder)?;
        file.write_all(&frames)?;
        Ok(Self {
            file,
            bytes: frames.len() as u64,
        })
    }

    /// MB and records per second.
    pub(super) fn send(&self, slice_bytes: u64, walk: bool) -> io::Result<Pair> {
        transfer(walk, |stream| {
            let (mut left, mut position) = (TOTAL_BYTES / self.bytes * self.bytes, 0);
            while left > 0 {
                let slice = slice_bytes.min(self.bytes - position).min(left);
                let slice = usize::try_from(slice).unwrap_or(usize::MAX);
                let sent = rustix::fs::sendfile(&stream, &self.file, Some(&mut position), slice)?;
                left -= sent as u64;
                if position == self.bytes {
                    position = 0;
                }
            }
            Ok(())
        })
    }
}

/// Lets a thread send, reads to the end here, and gives MB and records per second.
fn transfer(walk: bool, send: impl FnOnce(TcpStream) -> io::Result<()> + Send) -> io::Result<Pair> {
    let (near, mut far) = connection()?;
    thread::scope(|scope| {
        let started = Timeline::start();
        let sender = scope.spawn(move || send(near));
        let received = receive(&mut far, walk);
        let seconds = started.now_ns() as f64 / 1e9;
        sender
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the sender failed")))?;
        let (bytes, records) = received?;
        Ok((bytes as f64 / 1e6 / seconds, records as f64 / seconds))
    })
}

fn receive(stream: &mut TcpStream, walk: bool) -> io::Result<(u64, u64)> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    let (mut kept, mut bytes, mut records) = (0, 0, 0);
    loop {
        let read = stream.read(&mut buffer[kept..])?;
        if read == 0 {
            return Ok((
                bytes,
                if walk {
                    records
                } else {
                    bytes / FRAME_BYTES as u64
                },
            ));
        }
        bytes += read as u64;
        if walk {
            let filled = kept + read;
            let mut frames = FrameWalk::new(&buffer[..filled], FrameLimits::default());
            for frame in frames.by_ref() {
                frame.map_err(io::Error::other)?;
                records += 1;
            }
            let walked = frames.position();
            buffer.copy_within(walked..filled, 0);
            kept = filled - walked;
        }
    }
}
