//! The record batches of one partition from an offset on: batch frames as they lie in the file, record frames made into
//! batches whose bounds do not depend on where the reader began (see [`LeanBatches`]).
//!
//! - **KAF-5**: whole batches, in order; the first one holds the offset asked for, or is the next behind it. At least one,
//!   if asked for so, however large.

use std::collections::BTreeMap;

use basalt_columnar::TieredPartition;
use basalt_log::{Aborted, AbortedTransactions, FrameSlice};
use basalt_proto::batch::{LeanBatches, RecordBatch, batch_start, is_small};
use basalt_proto::{
    FRAME_HEADER_BYTES, Frame, FrameError, FrameKind, FrameLimits, FrameWalk, Offset,
};

use crate::error::Refusal;
use crate::read_ahead::Lane;

/// Batches from this size on leave by sendfile; a call for each of the smaller ones would cost more than copying it.
const SENDFILE_BYTES: usize = 16 << 10;
/// What is made or copied before others run.
const TURN_BYTES: usize = 1 << 20;
/// What is read at a time to finish a batch, and to find its beginning.
const MORE_BYTES: u64 = 64 << 10;
const BACK_BYTES: u64 = 1 << 20;
/// How often it is read back at most. Large frames and batches among the small ones use this up: then the batch begins
/// with the frame that was asked for.
const BACK_READS: u32 = 4;

/// Some bytes of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    /// In memory.
    Bytes(Vec<u8>),
    /// In a file: so many bytes of a slice from one of its bytes on.
    File {
        slice: FrameSlice,
        from: u64,
        bytes: u64,
    },
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { bytes, .. } => *bytes,
        }
    }
}

/// What is wanted of a partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub(super) log_start_offset: Offset,
    /// Where what may be read ends.
    pub(super) end: Offset,
    /// Bytes of batches at most.
    pub(super) max_bytes: u64,
    /// Of those that are copied.
    pub(super) max_copied_bytes: u64,
    /// Whether there is a first batch in any case.
    pub(super) at_least_one: bool,
}

/// What was collected.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) pieces: Vec<Piece>,
    /// The void transactions that it has batches of, for clients that leave those out. A client knows of each until the marker that
    /// ends it, or to the end of the answer.
    pub(super) aborted: Vec<Aborted>,
}

/// Collects the batches of a partition. `slice` is what was read of it at the offset wanted, and is not empty. `aborted` are those that
/// are told of.
///
/// # Errors
/// A [`Refusal`] when not even the first batch can be read.
pub(super) async fn collect(
    lane: &Lane,
    partition: &TieredPartition,
    want: Want,
    aborted: Option<&AbortedTransactions>,
    slice: FrameSlice,
) -> Result<Collected, Refusal> {
    let mut batches = Batches {
        lane,
        partition,
        want,
        known: aborted.filter(|aborted| !aborted.is_empty()),
        aborted: BTreeMap::new(),
        pieces: Vec::new(),
        bytes: 0,
        file_bytes: 0,
        lean: LeanBatches::new(want.end),
        turn_bytes: 0,
    };
    if !slice.has_batches {
        // As much as is made of it, about: not to be moved as it grows.
        let bytes = slice.len().min(want.max_bytes).min(want.max_copied_bytes);
        batches.lean.reserve(usize::try_from(bytes).unwrap_or(0));
    }
    batches.go_back(&slice).await?;
    batches.go_on(slice).await?;
    Ok(batches.finish())
}

struct Batches<'a> {
    lane: &'a Lane,
    partition: &'a TieredPartition,
    want: Want,
    known: Option<&'a AbortedTransactions>,
    /// By first offset and producer.
    aborted: BTreeMap<(Offset, i64), Aborted>,
    /// What is behind them, up to the last batch from a file.
    pieces: Vec<Piece>,
    /// Of the pieces.
    bytes: u64,
    /// Of those from a file.
    file_bytes: u64,
    lean: LeanBatches,
    turn_bytes: usize,
}

/// Whether there is room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    More,
    Full,
}

impl Batches<'_> {
    /// Begins the batch that holds the first frame of `slice`, if that is not its first.
    async fn go_back(&mut self, slice: &FrameSlice) -> Result<(), Refusal> {
        let Some(first) = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED).next() else {
            return Ok(());
        };
        let first = first?.header;
        if !is_small(&first) {
            return Ok(());
        }
        let start = batch_start(first.offset, self.want.end);
        let mut position = start.max(self.want.log_start_offset);
        for _ in 0..BACK_READS {
            if position >= first.offset {
                break;
            }
            let before = self
                .lane
                .read_ready(self.partition, position, first.offset, BACK_BYTES)
                .await?;
            for frame in FrameWalk::new(before.bytes(), FrameLimits::UNLIMITED) {
                let frame = frame?;
                if is_small(&frame.header) {
                    self.lean.push(&frame).map_err(FrameError::from)?;
                    self.lean.forget_closed();
                } else {
                    self.lean.forget();
                }
            }
            if before.next_offset <= position {
                break;
            }
            position = before.next_offset;
        }
        if !self.lean.takes(&first) {
            self.lean.forget();
        }
        Ok(())
    }

    async fn go_on(&mut self, mut slice: FrameSlice) -> Result<(), Refusal> {
        loop {
            if self.put_slice(&slice).await? == Next::Full {
                return Ok(());
            }
            let position = slice.next_offset;
            let left = self.want.max_bytes.saturating_sub(self.total());
            let done = !self.lean.is_open() && left < MORE_BYTES;
            if position >= self.want.end || done {
                return Ok(());
            }
            let bytes = left.max(MORE_BYTES);
            let end = self.want.end;
            let read = self.lane.read_ready(self.partition, position, end, bytes);
            slice = match read.await {
                // What has become cold has no markers, and a client that knows of a void transaction would wait for its own in vain.
                Ok(_) if self.has_become_cold(position) => return Ok(()),
                Ok(next) if next.next_offset > position => next,
                Ok(_) => return Ok(()),
                // What there is is sent; whoever asks for the rest is told.
                Err(_) if self.total() > 0 => {
                    self.lean.abandon();
                    return Ok(());
                }
                Err(_) if self.lean.is_open() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    fn has_become_cold(&self, position: Offset) -> bool {
        !self.aborted.is_empty() && self.partition.bounds().cold_end_offset > position
    }

    /// Notes the void transaction that a batch belongs to, if it does.
    fn note_transaction(&mut self, frame: &Frame<'_>) {
        let Some(known) = self.known else { return };
        let Ok(header) = RecordBatch::header(frame.payload) else {
            return;
        };
        if !header.is_transactional() || header.is_control() {
            return;
        }
        if let Some(found) = known.find(header.producer_id, frame.header.offset) {
            let key = (found.first_offset, found.producer_id);
            self.aborted.insert(key, found);
        }
    }

    /// Adds the frames of a slice until it is full.
    async fn put_slice(&mut self, slice: &FrameSlice) -> Result<Next, Refusal> {
        let mut walk = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED);
        loop {
            let position = walk.position();
            let Some(frame) = walk.next() else {
                return Ok(Next::More);
            };
            let frame = frame?;
            let next = match frame.header.kind {
                FrameKind::Batch => self.put_batch(&frame, slice, position),
                FrameKind::Record => self.put_record(&frame)?,
            };
            if next == Next::Full {
                return Ok(Next::Full);
            }
            if self.turn_bytes >= TURN_BYTES {
                self.turn_bytes = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    /// Adds a batch as it is.
    fn put_batch(&mut self, frame: &Frame<'_>, slice: &FrameSlice, position: usize) -> Next {
        self.lean.close();
        let batch = frame.payload;
        if !self.has_room(batch.len() as u64) {
            return Next::Full;
        }
        if batch.len() < SENDFILE_BYTES {
            if !self.has_copies(batch.len() as u64) {
                return Next::Full;
            }
            self.note_transaction(frame);
            self.lean.push_batch(batch);
            self.turn_bytes += batch.len();
            return Next::More;
        }
        self.note_transaction(frame);
        self.end_piece();
        self.put(Piece::File {
            slice: slice.clone(),
            from: (position + FRAME_HEADER_BYTES) as u64,
            bytes: batch.len() as u64,
        });
        Next::More
    }

    /// Adds a record frame. One that overfills a batch which is not the first takes that batch with it.
    fn put_record(&mut self, frame: &Frame<'_>) -> Result<Next, Refusal> {
        let frame_bytes = frame.key.len() + frame.payload.len();
        if !self.lean.takes(&frame.header) {
            self.lean.close();
            if !self.has_room(frame_bytes as u64) || !self.has_copies(frame_bytes as u64) {
                return Ok(Next::Full);
            }
        }
        self.lean.push(frame).map_err(FrameError::from)?;
        self.turn_bytes += frame_bytes;
        let open_bytes = (self.lean.bytes().len() - self.lean.closed_bytes()) as u64;
        if open_bytes > 0 && !(self.has_room(open_bytes) && self.has_copies(open_bytes)) {
            self.lean.abandon();
            return Ok(Next::Full);
        }
        Ok(Next::More)
    }

    /// Bytes of finished batches.
    fn total(&self) -> u64 {
        self.bytes + self.lean.closed_bytes() as u64
    }

    /// Whether a batch of so many bytes may be added to the finished ones.
    fn has_room(&self, batch_bytes: u64) -> bool {
        let total = self.total();
        (total == 0 && self.want.at_least_one)
            || total.saturating_add(batch_bytes) <= self.want.max_bytes
    }

    /// Whether so many bytes may be copied beside those that are.
    fn has_copies(&self, bytes: u64) -> bool {
        let total = self.total();
        let copied = total - self.file_bytes;
        (total == 0 && self.want.at_least_one)
            || copied.saturating_add(bytes) <= self.want.max_copied_bytes
    }

    fn put(&mut self, piece: Piece) {
        self.bytes += piece.len();
        if matches!(piece, Piece::File { .. }) {
            self.file_bytes += piece.len();
        }
        self.pieces.push(piece);
    }

    /// What is in memory becomes a piece, before one from a file.
    fn end_piece(&mut self) {
        let bytes = self.lean.take_bytes();
        if !bytes.is_empty() {
            self.put(Piece::Bytes(bytes));
        }
    }

    fn finish(mut self) -> Collected {
        self.end_piece();
        Collected {
            pieces: self.pieces,
            // By first offset, as clients take them.
            aborted: self.aborted.into_values().collect(),
        }
    }
}
