//! What is to be written: heads of requests, and slices of the circles between them, gathered into few large writes.

use std::io::{self, IoSlice};
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::lane::Lane;

/// Slices of one write.
const SLICES: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Source {
    Heads,
    Ring { lane: usize },
}

#[derive(Clone, Copy, Debug)]
struct Part {
    source: Source,
    from: usize,
    to: usize,
}

/// Parts that are written in order. Filled only when it is empty, so that it stays as small as one filling.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    heads: Vec<u8>,
    parts: Vec<Part>,
    /// The first part that is not wholly written.
    next: usize,
    bytes: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.parts.len()
    }

    /// Bytes of this filling.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets what was written.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.is_empty(), "what is not written must not be forgotten");
        self.heads.clear();
        self.parts.clear();
        self.next = 0;
        self.bytes = 0;
    }

    /// Adds `count` records of a lane from its place on, behind its head where it has one, and returns the bytes of their
    /// frames.
    pub(super) fn push(&mut self, number: usize, lane: &Lane, count: usize, id: u32) -> usize {
        let from = self.heads.len();
        if !lane.head.is_empty() {
            self.heads.extend_from_slice(&lane.head);
            self.parts.push(Part {
                source: Source::Heads,
                from,
                to: self.heads.len(),
            });
        }
        let frame_bytes = lane.ring.run(lane.place, count, |from, to| {
            self.parts.push(Part {
                source: Source::Ring { lane: number },
                from,
                to,
            });
        });
        if !lane.head.is_empty() {
            seal(&mut self.heads[from..], frame_bytes, id);
        }
        self.bytes += frame_bytes + (self.heads.len() - from);
        frame_bytes
    }

    /// Writes as much as the socket takes without waiting.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn write(&mut self, stream: &TcpStream, lanes: &[Lane]) -> io::Result<()> {
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            let mut offered = 0;
            for (slot, part) in slices.iter_mut().zip(&self.parts[self.next..]) {
                let bytes = match part.source {
                    Source::Heads => &self.heads[part.from..part.to],
                    Source::Ring { lane } => lanes[lane].ring.slice(part.from, part.to),
                };
                *slot = IoSlice::new(bytes);
                count += 1;
                offered += bytes.len();
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(
                stream,
                &slices[..count],
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(written) => {
                    self.advance(written);
                    if written < offered {
                        return Ok(());
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(part) = self.parts.get_mut(self.next) {
            let left = part.to - part.from;
            if written < left {
                part.from += written;
                return;
            }
            written -= left;
            self.next += 1;
        }
    }
}

/// Fills in the length and the id of a request whose frames come from elsewhere.
fn seal(head: &mut [u8], frame_bytes: usize, id: u32) {
    let length = head.len() - 4 + frame_bytes;
    // Batches are bounded far below 4 GiB by the arguments and the size of payloads; more is refused by any server.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    head[..4].copy_from_slice(&length.to_be_bytes());
    head[5..9].copy_from_slice(&id.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use basalt_proto::Frame;
    use basalt_proto::session::AckLevel;

    use super::*;
    use crate::produce::head;
    use crate::ring::Ring;

    const GOLDEN: &str = include_str!("../../../tests/golden/request-v1-produce.hex");

    fn golden() -> Vec<u8> {
        let digits: String = GOLDEN
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    fn lane(frames: &[Frame<'_>], head: Vec<u8>) -> Lane {
        Lane {
            partition: 3,
            ring: Arc::new(Ring::of(frames)),
            place: 0,
            sent: 0,
            quota: u64::MAX,
            schedule: None,
            sent_at: None,
            head,
            alone: true,
            next_offset: None,
            first_offset: None,
        }
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_request_is_the_golden_one_byte_for_byte() {
        let head = head(&"t".parse().unwrap(), 3, AckLevel::Fsync);
        let lanes = [lane(&[Frame::record(1_000, b"k1", b"a")], head)];
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push(0, &lanes[0], 1, 7), 32);
        let (near, mut far) = connection();
        outbox.write(&near, &lanes).unwrap();
        assert!(outbox.is_empty());
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert_eq!(received, golden());
    }

    #[test]
    fn what_the_socket_does_not_take_is_written_later_and_nothing_twice() {
        let payload = vec![7; 300_000];
        let frames: Vec<_> = (0..5)
            .map(|stamp| Frame::record(stamp, b"", &payload))
            .collect();
        let lanes = [lane(&frames, Vec::new())];
        let mut outbox = Outbox::default();
        let total = outbox.push(0, &lanes[0], 123, 0);
        let (near, mut far) = connection();
        outbox.write(&near, &lanes).unwrap();
        assert!(!outbox.is_empty(), "no socket takes 37 MB");
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            far.read_to_end(&mut received).map(|_| received)
        });
        while !outbox.is_empty() {
            outbox.write(&near, &lanes).unwrap();
        }
        drop(near);
        let received = reader.join().unwrap().unwrap();
        let expected: Vec<u8> = (0..123)
            .flat_map(|number| lanes[0].ring.frame(number % 5).to_vec())
            .collect();
        assert_eq!(received.len(), total);
        assert!(received == expected);
    }
}
