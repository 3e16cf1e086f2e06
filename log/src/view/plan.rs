//! From blocks to whole frames: which blocks a read takes, and where among their frames it begins and ends.

use std::sync::Arc;

use basalt_proto::{FRAME_HEADER_BYTES, FrameHeader, Offset};

use super::{FrameSlice, SegmentFile, index};
use crate::block::Block;
use crate::error::ReadError;
use crate::mmap::Map;
use crate::residency::{Attempt, Stretch};

/// What a read of some blocks resolves to, before frames are walked. Taken under the partition's lock, walked outside.
#[derive(Debug)]
pub(crate) struct SlicePlan {
    /// The block in which the slice begins.
    first: Block,
    /// The last block taken whole.
    stop: Block,
    /// The block that holds the asked end, to be walked up to it.
    last: Option<Block>,
    has_batches: bool,
}

/// Chooses blocks for a read of `[from, end)`; `None` when no frame at or after `from` lies below `end`.
///
/// Whole blocks are taken while they fit; the first is taken in any case and cut by frames later. A damaged block ends
/// the slice, so that the read that begins with it reports it.
pub(crate) fn plan_slice(
    file: &SegmentFile,
    blocks: &[Block],
    from: Offset,
    end: Offset,
    max_bytes: u64,
) -> Option<SlicePlan> {
    let start = blocks.partition_point(|block| block.end_offset() <= from);
    let first = *blocks.get(start).filter(|block| block.base_offset < end)?;
    let mut plan = SlicePlan {
        first,
        stop: first,
        last: None,
        has_batches: false,
    };
    for block in &blocks[start..] {
        let is_first = block.position == first.position;
        let too_many = block.end_position() - first.position > max_bytes;
        if block.base_offset >= end || (!is_first && (too_many || file.is_damaged(block))) {
            break;
        }
        plan.has_batches |= block.has_batches;
        if block.end_offset() > end {
            plan.last = Some(*block);
            break;
        }
        plan.stop = *block;
    }
    Some(plan)
}

impl SlicePlan {
    /// Whether the slice ends among the frames of its first block, if that is read from its beginning.
    fn ends_in_first(&self) -> bool {
        self.last
            .is_some_and(|last| last.position == self.first.position)
    }

    /// What must be loaded before the plan can be resolved without waiting for the disk: everything the slice may hold,
    /// if a block whose frames will be walked is not in memory.
    fn absent(&self, file: &Arc<SegmentFile>, from: Offset, max_bytes: u64) -> Option<Stretch> {
        let first = &self.first;
        let walks_first = from > first.base_offset
            || self.ends_in_first()
            || self.stop.end_position() - first.position > max_bytes;
        let mut walked = walks_first.then_some(*first).into_iter().chain(self.last);
        let is_absent =
            |block: Block| !Stretch::new(file, block.position, block.end_position()).is_resident();
        let end_position = self.last.unwrap_or(self.stop).end_position();
        walked
            .any(is_absent)
            .then(|| Stretch::new(file, first.position, end_position))
    }
}

/// Where a walk over one block's frames has got to.
struct Walked {
    position: u64,
    offset: Offset,
}

/// Walks the mapped frames of `block` from `from_position` while `go_on(header, frame's end position)`; where it stopped.
fn walk_block(
    (file, map): (&SegmentFile, &Map),
    block: &Block,
    from_position: u64,
    from_offset: Offset,
    mut go_on: impl FnMut(&FrameHeader, u64) -> bool,
) -> Result<Walked, ReadError> {
    let bytes = map.bytes(index(from_position)..index(block.end_position()));
    let mut at = 0_usize;
    let mut walked = Walked {
        position: from_position,
        offset: from_offset,
    };
    while at < bytes.len() {
        let header = bytes[at..]
            .first_chunk::<FRAME_HEADER_BYTES>()
            .and_then(|header| FrameHeader::decode(header).ok());
        let Some(header) = header else {
            return Err(file.corrupt(block));
        };
        let end = walked.position + header.frame_bytes();
        if end > block.end_position() {
            return Err(file.corrupt(block));
        }
        walked.offset = header.offset;
        if !go_on(&header, end) {
            return Ok(walked);
        }
        walked = Walked {
            position: end,
            offset: header.end_offset(),
        };
        at = usize::try_from(end - from_position).map_err(|_| file.corrupt(block))?;
    }
    Ok(walked)
}

/// Turns a plan into a slice of whole frames.
pub(crate) fn resolve_slice(
    file: &Arc<SegmentFile>,
    plan: &SlicePlan,
    from: Offset,
    end: Offset,
    max_bytes: u64,
) -> Result<FrameSlice, ReadError> {
    let first = &plan.first;
    if file.is_damaged(first) {
        return Err(file.corrupt(first));
    }
    let reach = plan.last.unwrap_or(plan.stop).end_position();
    let map = file.map(reach.max(first.end_position()))?;
    let mapped = (&**file, &map);
    let start = if from <= first.base_offset {
        Walked {
            position: first.position,
            offset: first.base_offset,
        }
    } else {
        walk_block(
            mapped,
            first,
            first.position,
            first.base_offset,
            |header, _| header.end_offset() <= from,
        )?
    };
    let within = |position: u64| position - start.position <= max_bytes;
    let below = |header: &FrameHeader, frame_end: u64| {
        header.offset < end
            && (within(frame_end) || frame_end - header.frame_bytes() == start.position)
    };
    let stop = if plan.ends_in_first() || !within(plan.stop.end_position()) {
        walk_block(mapped, first, start.position, start.offset, below)?
    } else if let Some(last) = plan.last {
        walk_block(mapped, &last, last.position, last.base_offset, below)?
    } else {
        Walked {
            position: plan.stop.end_position(),
            offset: plan.stop.end_offset(),
        }
    };
    Ok(FrameSlice {
        file: Some((Arc::clone(file), map)),
        position: start.position,
        bytes: stop.position - start.position,
        first_offset: start.offset,
        next_offset: stop.offset,
        has_batches: plan.has_batches,
    })
}

/// As [`resolve_slice`], without waiting for the disk.
pub(crate) fn try_resolve_slice(
    file: &Arc<SegmentFile>,
    plan: &SlicePlan,
    from: Offset,
    end: Offset,
    max_bytes: u64,
) -> Result<Attempt<FrameSlice>, ReadError> {
    match plan.absent(file, from, max_bytes) {
        Some(absent) => Ok(Attempt::Absent(absent)),
        None => resolve_slice(file, plan, from, end, max_bytes).map(Attempt::Ready),
    }
}
