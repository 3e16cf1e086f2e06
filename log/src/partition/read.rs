//! Reading: slices for consumers, snapshots for cooling and SQL.

use std::sync::Arc;

use basalt_proto::{FrameLimits, FrameWalk, Offset};

use super::{AbortedTransactions, Isolation, Partition};
use crate::block::{Block, crc32c};
use crate::error::ReadError;
use crate::residency::Attempt;
use crate::segment::Active;
use crate::view::{
    FrameSlice, SegmentFile, SegmentView, SlicePlan, plan_slice, resolve_slice, try_resolve_slice,
};

/// The hot part of a partition at one moment, pinned.
#[derive(Debug, Clone)]
pub struct HotSnapshot {
    /// First offset in hot segments.
    pub log_start_offset: Offset,
    /// Exclusive bound of what may be read.
    pub high_watermark: Offset,
    /// The void transactions of its records.
    pub aborted: Arc<AbortedTransactions>,
    /// Next to be written.
    pub log_end_offset: Offset,
    /// The segments, oldest first; the last one cut at the high watermark, or where what is committed ends.
    pub segments: Vec<Arc<SegmentView>>,
}

/// Where a read goes on. `end` is cut at the high watermark.
enum Chosen {
    /// No frame below the end.
    Nothing { next_offset: Offset },
    /// A sealed segment, in which there may be none all the same.
    Sealed {
        segment: Arc<SegmentView>,
        end: Offset,
    },
    /// The active one.
    Active {
        file: Arc<SegmentFile>,
        plan: SlicePlan,
        end: Offset,
    },
}

impl Partition {
    /// Whole frames from `from` on that begin below `end` and the high watermark: at most `max_bytes`, but at least one
    /// frame if there is any. The first frame is the one that covers `from`, or the next one where `from` lies in a gap.
    /// A slice stops at its segment's end; go on at its `next_offset`. At the high watermark it is empty.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] before the first hot offset or past the high watermark; [`ReadError::Corrupt`] where the
    /// block at `from` is damaged.
    pub fn read(&self, from: Offset, end: Offset, max_bytes: u64) -> Result<FrameSlice, ReadError> {
        let mut at = from;
        loop {
            // Frames are walked, and blocks compared with their checksums, without the lock.
            match self.choose(at, end, max_bytes)? {
                Chosen::Nothing { next_offset } => return Ok(FrameSlice::empty(next_offset)),
                Chosen::Sealed { segment, end } => {
                    let slice = segment.slice(at, end, max_bytes)?;
                    if !slice.is_empty() {
                        return Ok(slice);
                    }
                    at = segment.end_offset;
                }
                Chosen::Active { file, plan, end } => {
                    return resolve_slice(&file, &plan, at, end, max_bytes);
                }
            }
        }
    }

    /// As [`Self::read`], without waiting for the disk: where it would have to, the answer is what must be loaded.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn try_read(
        &self,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<Attempt<FrameSlice>, ReadError> {
        let mut at = from;
        loop {
            match self.choose(at, end, max_bytes)? {
                Chosen::Nothing { next_offset } => {
                    return Ok(Attempt::Ready(FrameSlice::empty(next_offset)));
                }
                Chosen::Sealed { segment, end } => match segment.try_slice(at, end, max_bytes)? {
                    Attempt::Ready(slice) if slice.is_empty() => at = segment.end_offset,
                    answer => return Ok(answer),
                },
                Chosen::Active { file, plan, end } => {
                    return try_resolve_slice(&file, &plan, at, end, max_bytes);
                }
            }
        }
    }

    /// Where a read of `[at, end)` finds its first frames.
    fn choose(&self, at: Offset, end: Offset, max_bytes: u64) -> Result<Chosen, ReadError> {
        let state = self.state.lock();
        let high_watermark = *self.high_watermark.borrow();
        let log_start_offset = state.log_start_offset();
        if at < log_start_offset || at > high_watermark {
            return Err(ReadError::OutOfRange {
                offset: at,
                log_start_offset,
                high_watermark,
            });
        }
        let end = end.min(high_watermark);
        if at >= end {
            return Ok(Chosen::Nothing { next_offset: at });
        }
        let first = state
            .sealed
            .partition_point(|segment| segment.end_offset <= at);
        let sealed = state
            .sealed
            .get(first)
            .filter(|segment| segment.base_offset < end);
        if let Some(segment) = sealed {
            return Ok(Chosen::Sealed {
                segment: Arc::clone(segment),
                end,
            });
        }
        let planned = state.active.as_ref().and_then(|active| {
            let plan = plan_slice(&active.file, active.blocks(), at, end, max_bytes)?;
            let file = Arc::clone(&active.file);
            Some(Chosen::Active { file, plan, end })
        });
        // A gap up to the end: the reader goes on behind it, not at the same place for ever.
        Ok(planned.unwrap_or(Chosen::Nothing {
            next_offset: at.max(end),
        }))
    }

    /// The earliest hot record whose stamp is at least `timestamp_ns`, with its stamp; `None` when there is none yet.
    /// Stamps need not be in order.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] when a damaged block may hold it.
    pub fn offset_for_timestamp(
        &self,
        timestamp_ns: u64,
    ) -> Result<Option<(Offset, u64)>, ReadError> {
        for segment in self.snapshot(Isolation::Uncommitted).segments {
            if let Some(found) = segment.offset_for_timestamp(timestamp_ns, segment.base_offset)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The hot part at this moment. What it holds stays readable until it is dropped, whatever is released meanwhile.
    #[must_use]
    pub fn snapshot(&self, isolation: Isolation) -> HotSnapshot {
        let state = self.state.lock();
        let readable = *self.high_watermark.borrow();
        let (high_watermark, aborted) = match isolation {
            // Nothing is void to one who sees everything.
            Isolation::Uncommitted => (readable, Arc::default()),
            Isolation::Committed => (
                state.stable_offset(readable),
                Arc::clone(state.producers.transactions.aborted()),
            ),
        };
        let mut segments: Vec<Arc<SegmentView>> = state
            .sealed
            .iter()
            .filter(|segment| segment.base_offset < high_watermark)
            .cloned()
            .collect();
        let active = state
            .active
            .as_ref()
            .filter(|active| active.base_offset() < high_watermark);
        segments.extend(active.map(|active| Arc::new(active.view(false))));
        let (log_start_offset, log_end_offset) = (state.log_start_offset(), state.log_end_offset);
        drop(state);
        let mut visible_end = high_watermark;
        for segment in segments
            .iter_mut()
            .filter(|segment| segment.end_offset > high_watermark)
        {
            let view = cut(segment, high_watermark);
            visible_end = visible_end.min(view.end_offset);
            *segment = Arc::new(view);
        }
        HotSnapshot {
            log_start_offset,
            high_watermark: visible_end,
            aborted,
            log_end_offset,
            segments,
        }
    }

    /// The segments that are sealed on disk, oldest first: what cooling may take.
    #[must_use]
    pub fn sealed_segments(&self) -> Vec<Arc<SegmentView>> {
        let state = self.state.lock();
        state.sealed[..state.finished()].to_vec()
    }

    /// Bytes of frames in the active segment.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        self.state
            .lock()
            .active
            .as_ref()
            .map_or(0, Active::frame_bytes)
    }
}

/// The view up to `end`, which a frame begins at. A block that is cut gets the checksum of what is left of it. Where the disk
/// cannot read it the view ends before it, as if it had been taken earlier.
fn cut(view: &SegmentView, end: Offset) -> SegmentView {
    let mut blocks: Vec<Block> = view
        .blocks
        .iter()
        .filter(|block| block.base_offset < end)
        .copied()
        .collect();
    let mut view_end = end;
    if let Some(last) = blocks.last_mut().filter(|last| last.end_offset() > end) {
        match cut_block(view, last, end) {
            Ok(()) => {}
            // A block that is damaged is refused whole.
            Err(ReadError::Corrupt { .. }) => {}
            Err(error) => {
                tracing::warn!(path = %view.path().display(), %error, "a snapshot ends before records that cannot be read now");
                view_end = last.base_offset;
                blocks.pop();
            }
        }
    }
    SegmentView {
        end_offset: view_end,
        blocks: blocks.into(),
        ..view.clone()
    }
}

fn cut_block(view: &SegmentView, block: &mut Block, end: Offset) -> Result<(), ReadError> {
    let slice = view.slice(block.base_offset, end, u64::MAX)?;
    block.bytes = slice.position() + slice.len() - block.position;
    block.record_count = end.0 - block.base_offset.0;
    block.crc32c = crc32c(slice.bytes());
    let frames = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED);
    block.frame_count = u32::try_from(frames.count()).unwrap_or(u32::MAX);
    Ok(())
}
