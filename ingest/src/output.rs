//! Bytes to a peer: from memory, or from a file by `sendfile(2)`. Each wait for a peer that takes nothing has an end.

use std::io;
use std::time::Duration;

use basalt_log::{FrameSlice, ReadError};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Counters;
use crate::error::{ConnectionError, Refusal};
use crate::read_ahead::Lane;

/// The most one `sendfile` call is asked for, and that is looked for in memory at a time. From 256 KiB to 4 MiB it makes no
/// difference in CPU for a byte.
const SLICE_BYTES: u64 = 1 << 20;

/// What is sent from a file before other connections of the thread have their turn: about 0.4 ms of work. Each turn costs a
/// look for events and often the wake-up of another thread, together some 40 us.
pub(crate) const TURN_BYTES: u64 = 2 << 20;

/// The most that is sent from memory before others run.
const PIECE_BYTES: usize = 1 << 20;

/// Whether more follows at once, so that the kernel may hold a short packet back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    More,
}

/// The sending half of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) send_timeout: Duration,
    pub(crate) counters: &'a Counters,
    pub(crate) lane: &'a Lane,
}

impl Output<'_> {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// [`ConnectionError::SendTimeout`] when the peer takes no byte for that long, `Io` when the socket fails.
    pub(crate) async fn send(&self, mut bytes: &[u8], then: Then) -> Result<(), ConnectionError> {
        let flags = match then {
            Then::Nothing => SendFlags::NOSIGNAL,
            Then::More => SendFlags::NOSIGNAL | SendFlags::MORE,
        };
        while !bytes.is_empty() {
            let sent = self
                .progress(|| Ok(rustix::net::send(self.stream, bytes, flags)?))
                .await?;
            bytes = &bytes[sent.min(bytes.len())..];
        }
        Ok(())
    }

    /// Sends the frames of `slice` from its file, without their bytes passing through this process. On a disk that is
    /// no file (a simulated one) they are sent from memory, and counted as copied. What is not in memory is loaded first,
    /// beside the thread.
    ///
    /// # Errors
    /// As [`Self::send`], [`ConnectionError::FileTooShort`] when the file ends before its frames do, and `Refused` when the
    /// disk cannot read them.
    pub(crate) async fn send_file(&self, slice: &FrameSlice) -> Result<(), ConnectionError> {
        self.send_part(slice, 0, slice.len()).await
    }

    /// As [`Self::send_file`], of `bytes` bytes of the slice from its byte `from` on.
    ///
    /// # Errors
    /// As [`Self::send_file`].
    pub(crate) async fn send_part(
        &self,
        slice: &FrameSlice,
        from: u64,
        bytes: u64,
    ) -> Result<(), ConnectionError> {
        let mut position = slice.position() + from;
        let mut left = bytes;
        let end = from + bytes;
        // First: by that the file is open.
        let mut ready_bytes = self.load_piece(slice, end - left, left).await?;
        let Some(file) = self.ready(slice.descriptor())? else {
            let part = usize::try_from(from).ok().zip(usize::try_from(end).ok());
            let part = part.and_then(|(from, end)| slice.bytes().get(from..end));
            return self.send_counted(part.unwrap_or_default()).await;
        };
        let mut turn_bytes = 0;
        while left > 0 {
            if ready_bytes == 0 {
                ready_bytes = self.load_piece(slice, end - left, left).await?;
            }
            let count = usize::try_from(ready_bytes).unwrap_or(usize::MAX);
            let sent = self
                .progress(|| {
                    let mut at = position;
                    Ok(rustix::fs::sendfile(
                        self.stream,
                        &file,
                        Some(&mut at),
                        count,
                    )?)
                })
                .await?;
            if sent == 0 {
                return Err(ConnectionError::FileTooShort {
                    missing_bytes: left,
                });
            }
            Counters::add(&self.counters.bytes_sendfile, sent as u64);
            position += sent as u64;
            left = left.saturating_sub(sent as u64);
            ready_bytes = ready_bytes.saturating_sub(sent as u64);
            turn_bytes += sent as u64;
            if left > 0 && turn_bytes >= TURN_BYTES {
                tokio::task::yield_now().await;
                turn_bytes = 0;
            }
        }
        Ok(())
    }

    /// Loads what is sent next of `slice`, of which `left` bytes are left from its byte `from` on; how many bytes that is.
    async fn load_piece(
        &self,
        slice: &FrameSlice,
        from: u64,
        left: u64,
    ) -> Result<u64, ConnectionError> {
        let Some(stretch) = slice.stretch(from, left.min(SLICE_BYTES)) else {
            return Ok(0);
        };
        self.ready(self.lane.ready(&stretch).await)?;
        Ok(stretch.len())
    }

    /// Loads the frames of `slice`, which are about to be looked at in memory.
    ///
    /// # Errors
    /// [`ConnectionError::Refused`] when the disk cannot read them.
    pub(crate) async fn load(&self, slice: &FrameSlice) -> Result<(), ConnectionError> {
        match slice.stretch(0, u64::MAX) {
            Some(stretch) => self.ready(self.lane.ready(&stretch).await),
            None => Ok(()),
        }
    }

    fn ready<T>(&self, loaded: Result<T, ReadError>) -> Result<T, ConnectionError> {
        loaded.map_err(|error| {
            let refusal = Refusal::from(error);
            self.counters.refuse(refusal.kind, 1);
            refusal.into()
        })
    }

    /// Sends bytes of frames from memory.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(crate) async fn send_counted(&self, bytes: &[u8]) -> Result<(), ConnectionError> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.send(piece, Then::Nothing).await?;
            Counters::add(&self.counters.bytes_copied, piece.len() as u64);
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Runs `write` when the socket has room, and gives up when it has none for too long.
    async fn progress(
        &self,
        mut write: impl FnMut() -> io::Result<usize>,
    ) -> Result<usize, ConnectionError> {
        let mut write = || {
            loop {
                match write() {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    done => return done,
                }
            }
        };
        // Most writes find room: only one that does not needs the time.
        match self.stream.try_io(Interest::WRITABLE, &mut write) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return Ok(done?),
        }
        let attempt = self.stream.async_io(Interest::WRITABLE, write);
        match timeout(self.send_timeout, attempt).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(ConnectionError::SendTimeout {
                limit: self.send_timeout,
            }),
        }
    }
}
