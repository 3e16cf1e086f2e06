//! The bytes a peer has sent and nobody has used yet: bounded, timed, and grown only as bytes arrive.
//!
//! It knows lengths and deadlines, not formats: its user says how many bytes the item at the front needs.
//!
//! ING-2: capacity is at most twice what arrived or one read's worth, whatever length a peer claims, and while little is
//! there no more than that; what is beyond [`LARGE_ITEM_BYTES`] is given back with the item it was for, before its share
//! of the memory of all is.
//! ING-4: an item once begun has a deadline, renewed with each [`RENEWAL_BYTES`] of it; between items there is none.
//!
//! A peer that never pauses does not keep the thread: between two reads neither of which had to wait, others run.

use std::io;
use std::time::Duration;

use bytes::BufMut;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use crate::ShutdownSignal;
use crate::alarm::Alarm;
use crate::buffers::{Buffers, MAX_KEPT_BYTES, READ_BYTES};
use crate::error::{ConnectionError, Refusal};
use crate::shared::Shared;

/// So much of an item may be kept in a buffer of its own while the rest is waited for.
const SMALL_BYTES: usize = 16 << 10;
/// Each so many bytes of one item renew its deadline: a slow link may send a large frame, a trickle may not.
const RENEWAL_BYTES: usize = 1 << 20;
/// Items beyond this draw on the memory that all connections share; a buffer of so much is kept for the next item.
pub(crate) const LARGE_ITEM_BYTES: usize = MAX_KEPT_BYTES;

/// What waiting for input came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// More bytes are there.
    More,
    /// The peer will send no more, and nothing is half sent.
    Eof,
    /// The server is stopping; what is half sent stays unanswered.
    Stopping,
}

#[derive(Debug)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    /// When the item at the front must have come further, and how far.
    deadline: Option<(Instant, usize)>,
    large: Option<OwnedSemaphorePermit>,
    /// How long a large item waits for its share of memory, if the configuration does not say less.
    pub(crate) max_share_wait: Duration,
    /// Whether the last bytes were there without waiting.
    unwaited: bool,
    /// For the deadline.
    alarm: Alarm,
}

impl Input {
    /// An input that begins with what was read behind an opening.
    pub(crate) fn new(bytes: Vec<u8>, start: usize) -> Self {
        debug_assert!(start <= bytes.len());
        Self {
            bytes,
            start,
            deadline: None,
            large: None,
            max_share_wait: Duration::MAX,
            unwaited: false,
            alarm: Alarm::default(),
        }
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Marks `count` bytes as used: the next item begins behind them, with its own deadline and share of memory.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.bytes.len());
        self.deadline = None;
        if self.bytes.capacity() > LARGE_ITEM_BYTES {
            self.move_to_front();
            self.bytes.shrink_to(LARGE_ITEM_BYTES);
        }
        // Last: others may take this share at once, so that the memory must be free by then.
        self.large = None;
    }

    /// Waits for bytes, then takes those that are there, up to [`READ_BYTES`] or the end of the item at the front.
    /// `needed_bytes` is that item's length as far as is known, within the limits, and more than is there.
    ///
    /// When nothing had to be waited for the last time either, others run first.
    ///
    /// # Errors
    /// [`ConnectionError::FrameTimeout`], `Truncated` and `Io`; `Refused` as busy when the shared memory stays taken.
    pub(crate) async fn fill(
        &mut self,
        stream: &TcpStream,
        needed_bytes: usize,
        shared: &Shared,
        shutdown: &ShutdownSignal,
    ) -> Result<Filled, ConnectionError> {
        if std::mem::take(&mut self.unwaited) {
            tokio::task::yield_now().await;
        }
        if shutdown.is_triggered() {
            return Ok(Filled::Stopping);
        }
        self.reserve_share(needed_bytes, shared).await?;
        let mut waited = false;
        loop {
            self.take_buffer(&shared.buffers);
            match self.take_available(stream, needed_bytes)? {
                Taken::Some => {
                    self.unwaited = !waited;
                    return Ok(Filled::More);
                }
                Taken::Eof if self.unread().is_empty() => return Ok(Filled::Eof),
                Taken::Eof => {
                    return Err(ConnectionError::Truncated {
                        received_bytes: self.unread().len(),
                        needed_bytes,
                    });
                }
                Taken::None => {}
            }
            self.give_buffer(&shared.buffers);
            tokio::select! {
                biased;
                readable = self.readable(stream, needed_bytes, shared.config.frame_timeout) => readable?,
                () = shutdown.wait() => return Ok(Filled::Stopping),
            }
            waited = true;
        }
    }

    /// Drops the next `count` bytes as they come, whatever they are; [`Filled::More`] when that is done.
    ///
    /// # Errors
    /// As [`Self::fill`], but never `Refused`.
    pub(crate) async fn discard(
        &mut self,
        stream: &TcpStream,
        mut count: usize,
        shared: &Shared,
        shutdown: &ShutdownSignal,
    ) -> Result<Filled, ConnectionError> {
        while count > 0 {
            // In pieces, each of which has a deadline as an item has.
            let piece = count.min(READ_BYTES);
            while self.unread().len() < piece {
                match self.fill(stream, piece, shared, shutdown).await? {
                    Filled::More => {}
                    ended => return Ok(ended),
                }
            }
            self.consume(piece);
            count -= piece;
        }
        Ok(Filled::More)
    }

    async fn reserve_share(
        &mut self,
        needed_bytes: usize,
        shared: &Shared,
    ) -> Result<(), ConnectionError> {
        if needed_bytes <= LARGE_ITEM_BYTES || self.large.is_some() {
            return Ok(());
        }
        let limit = shared.config.frame_timeout.min(self.max_share_wait);
        let share = timeout(limit, shared.large_frames.take(needed_bytes)).await;
        let Ok(Some(permit)) = share else {
            let message = format!(
                "no memory for a frame of {needed_bytes} bytes within {limit:?}: too many large ones"
            );
            return Err(Refusal::new(basalt_proto::ErrorKind::Busy, message).into());
        };
        self.large = Some(permit);
        Ok(())
    }

    /// Reads until the socket is empty, or has given one read's worth and the item of `needed_bytes`.
    fn take_available(&mut self, stream: &TcpStream, needed_bytes: usize) -> io::Result<Taken> {
        let target = needed_bytes.max(READ_BYTES);
        let before = self.bytes.len() - self.start;
        self.make_way(needed_bytes);
        while self.unread().len() < target {
            if self.bytes.len() == self.bytes.capacity() {
                // Once some of the buffer is worked on, the rest has room without growing it.
                if self.start > 0 {
                    break;
                }
                // Doubling keeps the copying linear; exact, so that the last step does not overshoot a large frame.
                let grown = (self.bytes.len() * 2).min(target);
                self.bytes.reserve_exact(grown - self.bytes.len());
            }
            let room = (self.bytes.capacity() - self.bytes.len()).min(target - self.unread().len());
            match stream.try_read_buf(&mut (&mut self.bytes).limit(room)) {
                // What came before the end is worked on first; the end is found again.
                Ok(0) if self.unread().len() > before => return Ok(Taken::Some),
                Ok(0) => return Ok(Taken::Eof),
                // The socket is empty: to ask again would only be told so, before what came is answered.
                Ok(count) if count < room => return Ok(Taken::Some),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(if self.unread().len() > before {
            Taken::Some
        } else {
            Taken::None
        })
    }

    /// Moves what is unread to the front, unless that is more than the room it gains and the item fits without.
    fn make_way(&mut self, needed_bytes: usize) {
        let fits = needed_bytes <= self.bytes.capacity() - self.start;
        if !fits || self.unread().len() <= self.start {
            self.move_to_front();
        }
    }

    /// Makes sure that there is room for a read's worth.
    fn take_buffer(&mut self, buffers: &Buffers) {
        if self.bytes.capacity() < READ_BYTES {
            let mut buffer = buffers.take();
            buffer.extend_from_slice(self.unread());
            self.bytes = buffer;
            self.start = 0;
        }
    }

    /// Leaves the buffer to others, unless there is much in it.
    fn give_buffer(&mut self, buffers: &Buffers) {
        if self.unread().len() <= SMALL_BYTES && self.bytes.capacity() >= READ_BYTES {
            let rest = self.unread().to_vec();
            buffers.give(std::mem::replace(&mut self.bytes, rest));
            self.start = 0;
        }
    }

    fn move_to_front(&mut self) {
        self.bytes.drain(..self.start);
        self.start = 0;
    }

    async fn readable(
        &mut self,
        stream: &TcpStream,
        needed_bytes: usize,
        limit: Duration,
    ) -> Result<(), ConnectionError> {
        if !self.unread().is_empty() {
            let deadline = self.renewed_deadline(limit);
            return tokio::select! {
                biased;
                ready = stream.readable() => Ok(ready?),
                () = self.alarm.at(deadline) => Err(ConnectionError::FrameTimeout {
                    limit,
                    received_bytes: self.bytes.len() - self.start,
                    needed_bytes,
                }),
            };
        }
        Ok(stream.readable().await?)
    }

    fn renewed_deadline(&mut self, limit: Duration) -> Instant {
        let received = self.unread().len();
        match self.deadline {
            Some((deadline, renewed_at)) if received < renewed_at.saturating_add(RENEWAL_BYTES) => {
                deadline
            }
            _ => {
                let deadline = Instant::now() + limit;
                self.deadline = Some((deadline, received));
                deadline
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Some,
    None,
    Eof,
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::ShutdownTrigger;
    use crate::tests::{patient, shared, stream_pair};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memory_of_a_large_item_is_gone_when_its_share_is() {
        let (_dir, shared) = shared(|_| {}).await;
        let (mut peer, stream) = stream_pair().await;
        let shutdown = ShutdownTrigger::new();
        let (item_bytes, next) = (8 << 20, b"next");
        let sending = tokio::spawn(async move {
            peer.write_all(&vec![7; item_bytes]).await.unwrap();
            peer.write_all(next).await.unwrap();
            peer
        });
        let mut input = Input::new(Vec::new(), 0);
        let fill_to = async |input: &mut Input, needed_bytes| {
            while input.unread().len() < needed_bytes {
                let signal = shutdown.signal();
                let filled = input.fill(&stream, needed_bytes, &shared, &signal);
                assert_eq!(patient(filled).await.unwrap(), Filled::More);
            }
        };
        fill_to(&mut input, item_bytes).await;
        assert!(input.large.is_some() && input.bytes.capacity() >= item_bytes);
        input.consume(item_bytes);
        assert!(input.large.is_none());
        assert!(
            input.bytes.capacity() <= LARGE_ITEM_BYTES,
            "{} bytes are kept without a share",
            input.bytes.capacity()
        );
        fill_to(&mut input, next.len()).await;
        assert_eq!(input.unread(), next);
        drop(sending.await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn connection_that_waits_keeps_what_came_and_no_buffer() {
        let (_dir, shared) = shared(|_| {}).await;
        let (mut peer, stream) = stream_pair().await;
        let shutdown = ShutdownTrigger::new();
        let signal = shutdown.signal();
        let mut input = Input::new(b"opening+".to_vec(), 7);
        let waits = async |input: &mut Input| {
            let filling = Box::pin(input.fill(&stream, 4, &shared, &signal));
            assert!(timeout(Duration::from_millis(1), filling).await.is_err());
            assert!(input.bytes.capacity() <= SMALL_BYTES);
        };
        waits(&mut input).await;
        peer.write_all(b"12").await.unwrap();
        let filled = patient(input.fill(&stream, 4, &shared, &signal)).await;
        assert_eq!(filled.unwrap(), Filled::More);
        assert_eq!(input.unread(), b"+12");
        assert!(input.bytes.capacity() >= READ_BYTES);
        waits(&mut input).await;
        assert_eq!(input.unread(), b"+12");
        input.consume(3);
        waits(&mut input).await;
        assert_eq!(input.bytes.capacity(), 0);
    }

    #[test]
    fn unread_bytes_survive_the_shrinking() {
        let mut bytes = vec![1; 3 * LARGE_ITEM_BYTES];
        bytes.extend_from_slice(b"rest");
        let mut input = Input::new(bytes, 10);
        input.consume(3 * LARGE_ITEM_BYTES - 10);
        assert_eq!(input.unread(), b"rest");
        assert!(input.bytes.capacity() <= LARGE_ITEM_BYTES);
        input.consume(1);
        assert_eq!(input.unread(), b"est");
    }
}
