//! Cold reads: bytes that are not in memory are brought there beside the threads that serve sockets.
//!
//! - **ING-7**: no thread that serves sockets waits for a disk to read, but for a page that was evicted in the moment
//!   between the look and the use. What is not in memory is loaded by at most [`crate::ServerConfig::cold_reads`] threads,
//!   each for at most [`WINDOW_BYTES`] at a time. Connections take turns: one has one piece of [`PIECE_BYTES`] waiting, and
//!   gets its next turn behind all others that wait.
//! - A connection that reads in order from the disk has the next [`WINDOW_BYTES`] loaded while it sends, but only by a
//!   thread that nobody waits for. So what is loaded and not sent is at most a slice and a window for each connection.
//! - A disk that cannot read is an error of that read alone.

use std::panic::resume_unwind;
use std::sync::Arc;

use basalt_columnar::{ReadError, TieredPartition};
use basalt_log::{Attempt, FrameSlice, Mark, Stretch};
use basalt_proto::Offset;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::Counters;
use crate::error::Refusal;

/// The most that is loaded in one turn.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// The most a fetch returns of what has to be loaded from the disk: others may be waiting for their turn at it.
const MAX_COLD_BYTES: u64 = 4 << 20;
/// How far behind the bytes being sent a sequential reader finds what it wants in memory.
const WINDOW_BYTES: u64 = 4 << 20;
/// Files of which a connection's place is remembered.
const MAX_TRACKED_FILES: usize = 8;
/// What was loaded may have been evicted when it is looked for. After so many times it is read all the same.
const MAX_ATTEMPTS: u32 = 3;

/// The threads that wait for the disk, as places: one for a whole server.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    places: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl ReadAhead {
    pub(crate) fn new(cold_reads: usize, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(cold_reads.min(Semaphore::MAX_PERMITS))),
            counters,
        })
    }

    /// Loads in a place, which is held until that is done, whether or not anybody still waits.
    fn load(
        &self,
        stretch: Stretch,
        place: impl Send + 'static,
    ) -> JoinHandle<Result<(), basalt_log::ReadError>> {
        let counters = Arc::clone(&self.counters);
        tokio::task::spawn_blocking(move || {
            let loaded = stretch.load();
            if loaded.is_ok() {
                Counters::increment(&counters.cold_reads);
                Counters::add(&counters.bytes_read_ahead, stretch.len());
            }
            drop(place);
            loaded
        })
    }
}

/// One connection's turns.
#[derive(Debug)]
pub(crate) struct Lane {
    pool: Arc<ReadAhead>,
    /// Held by whichever of its requests has its turn or waits for it.
    turn: tokio::sync::Mutex<()>,
    /// How far each file is loaded, of those that are read from the disk.
    loaded: Mutex<Vec<Mark>>,
    /// At most one at a time.
    prefetch: Arc<Semaphore>,
}

impl Lane {
    pub(crate) fn new(pool: &Arc<ReadAhead>) -> Self {
        Self {
            pool: Arc::clone(pool),
            turn: tokio::sync::Mutex::new(()),
            loaded: Mutex::default(),
            prefetch: Arc::new(Semaphore::new(1)),
        }
    }

    /// As [`TieredPartition::read`], but waits for the disk beside the thread.
    ///
    /// # Errors
    /// As [`TieredPartition::read`].
    pub(crate) async fn read(
        &self,
        partition: &TieredPartition,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<FrameSlice, ReadError> {
        for _ in 0..MAX_ATTEMPTS {
            match partition.try_read(from, end, max_bytes).await? {
                Attempt::Ready(slice) => return Ok(slice),
                Attempt::Absent(stretch) => self.load(&stretch).await?,
            }
        }
        partition.read(from, end, max_bytes).await
    }

    /// As [`Self::read`], with frames that are in memory, or were a moment ago: an error of the disk is known before an
    /// answer is begun. Of what has to be loaded it is less.
    ///
    /// # Errors
    /// A [`Refusal`] as [`TieredPartition::read`], or when the disk cannot read the frames.
    pub(crate) async fn read_ready(
        &self,
        partition: &TieredPartition,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<FrameSlice, Refusal> {
        let mut slice = self.read(partition, from, end, max_bytes).await?;
        let Some(mut whole) = slice.stretch(0, u64::MAX) else {
            return Ok(slice);
        };
        if whole.len() > MAX_COLD_BYTES && !whole.is_resident() {
            slice = self.read(partition, from, end, MAX_COLD_BYTES).await?;
            whole = slice.stretch(0, u64::MAX).unwrap_or(whole);
        }
        self.ready(&whole).await?;
        Ok(slice)
    }

    /// As [`TieredPartition::offset_for_timestamp`], but waits for the disk beside the thread.
    ///
    /// # Errors
    /// As [`TieredPartition::offset_for_timestamp`].
    pub(crate) async fn offset_for_timestamp(
        &self,
        partition: &TieredPartition,
        timestamp_ns: u64,
    ) -> Result<Option<(Offset, u64)>, ReadError> {
        for _ in 0..MAX_ATTEMPTS {
            match partition.try_offset_for_timestamp(timestamp_ns).await? {
                Attempt::Ready(found) => return Ok(found),
                Attempt::Absent(stretch) => self.load(&stretch).await?,
            }
        }
        partition.offset_for_timestamp(timestamp_ns).await
    }

    /// Returns when `stretch` is in memory, and has what follows it loaded if it is read in order from the disk.
    ///
    /// # Errors
    /// [`basalt_log::ReadError::Disk`] when the disk cannot read it.
    pub(crate) async fn ready(&self, stretch: &Stretch) -> Result<(), basalt_log::ReadError> {
        if stretch.is_resident() {
            if !self.follows(stretch) {
                return Ok(());
            }
        } else {
            self.load(stretch).await?;
        }
        self.prefetch(stretch);
        Ok(())
    }

    /// Loads `stretch`, a piece in each turn.
    async fn load(&self, stretch: &Stretch) -> Result<(), basalt_log::ReadError> {
        let _turn = self.turn.lock().await;
        for piece in stretch.pieces(PIECE_BYTES) {
            // Another request may have loaded it meanwhile.
            if piece.is_resident() || self.is_prefetched(&piece).await {
                continue;
            }
            // Never closed; without a place is better than not at all.
            let Ok(place) = Arc::clone(&self.pool.places).acquire_owned().await else {
                break;
            };
            match self.pool.load(piece, place).await {
                Ok(loaded) => loaded?,
                Err(stopped) if stopped.is_panic() => resume_unwind(stopped.into_panic()),
                // Cut off with the runtime, as this connection is about to be.
                Err(_) => break,
            }
        }
        remember(&mut self.loaded.lock(), stretch.mark());
        Ok(())
    }

    /// Whether `stretch` begins in or right behind what was loaded before.
    fn follows(&self, stretch: &Stretch) -> bool {
        let loaded = self.loaded.lock();
        let mut beside = loaded.iter().filter(|mark| mark.is_beside(stretch));
        beside.any(|mark| stretch.position() <= mark.position)
    }

    /// Waits for the prefetch that may be about to bring `piece`, and says whether it has.
    async fn is_prefetched(&self, piece: &Stretch) -> bool {
        if self.prefetch.available_permits() > 0 || !self.follows(piece) {
            return false;
        }
        // Never closed. It is free again when the prefetch has ended.
        drop(self.prefetch.acquire().await);
        piece.is_resident()
    }

    /// Has what follows `stretch` loaded as far as the window reaches, if half of it is missing and a place is free. Errors
    /// are left to the read that wants the bytes.
    fn prefetch(&self, stretch: &Stretch) {
        let Ok(alone) = Arc::clone(&self.prefetch).try_acquire_owned() else {
            return;
        };
        let Some(window) = self.missing_window(stretch) else {
            return;
        };
        let Ok(place) = Arc::clone(&self.pool.places).try_acquire_owned() else {
            return;
        };
        remember(&mut self.loaded.lock(), window.mark());
        // Nobody waits for it.
        drop(self.pool.load(window, (place, alone)));
    }

    /// What is to be loaded behind `stretch` now.
    fn missing_window(&self, stretch: &Stretch) -> Option<Stretch> {
        let mut loaded = self.loaded.lock();
        let end = stretch.end_position() + WINDOW_BYTES;
        let known = loaded.iter().find(|mark| mark.is_beside(stretch));
        let from = known
            .map(|mark| mark.position)
            // A reader that went back, or forth, begins anew.
            .filter(|position| (stretch.end_position()..=end).contains(position))
            .unwrap_or(stretch.end_position());
        if end - from < WINDOW_BYTES / 2 {
            return None;
        }
        let window = stretch.elsewhere(from, end)?;
        if window.is_resident() {
            remember(&mut loaded, window.mark());
            return None;
        }
        Some(window)
    }
}

/// Notes how far a file is loaded. The file that was noted longest ago makes room.
fn remember(loaded: &mut Vec<Mark>, mark: Mark) {
    loaded.retain(|known| !known.shares_file(&mark));
    if loaded.len() >= MAX_TRACKED_FILES {
        loaded.remove(0);
    }
    loaded.push(mark);
}
