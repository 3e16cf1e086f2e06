//! Finding records by their stamps.

use std::ops::ControlFlow;

use basalt_proto::{FrameKind, FrameLimits, FrameWalk, Offset};

use super::SegmentView;
use crate::block::Block;
use crate::error::ReadError;
use crate::residency::{Attempt, Stretch};

impl SegmentView {
    /// The earliest record at or after `from` whose stamp is at least `timestamp_ns`, with its stamp. Stamps need not
    /// be in order: blocks whose largest stamp is below are skipped, the others walked.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] when a block that must be walked is damaged.
    pub fn offset_for_timestamp(
        &self,
        timestamp_ns: u64,
        from: Offset,
    ) -> Result<Option<(Offset, u64)>, ReadError> {
        for block in self.candidates(timestamp_ns, from) {
            if let Some(found) = self.find_in_block(block, timestamp_ns, from)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// As [`Self::offset_for_timestamp`], without waiting for the disk.
    ///
    /// # Errors
    /// As [`Self::offset_for_timestamp`].
    pub fn try_offset_for_timestamp(
        &self,
        timestamp_ns: u64,
        from: Offset,
    ) -> Result<Attempt<Option<(Offset, u64)>>, ReadError> {
        for block in self.candidates(timestamp_ns, from) {
            let stretch = Stretch::new(&self.file, block.position, block.end_position());
            if self.file.is_unverified(block) {
                return Ok(Attempt::Absent(stretch.unverified(vec![*block])));
            }
            if !stretch.is_resident() {
                return Ok(Attempt::Absent(stretch));
            }
            if let Some(found) = self.find_in_block(block, timestamp_ns, from)? {
                return Ok(Attempt::Ready(Some(found)));
            }
        }
        Ok(Attempt::Ready(None))
    }

    /// Blocks that may hold a record at or after `from` that is stamped so or later.
    fn candidates(&self, timestamp_ns: u64, from: Offset) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| {
            block.max_timestamp_ns >= timestamp_ns && block.end_offset() > from
        })
    }

    /// The first record of one block for [`Self::offset_for_timestamp`].
    fn find_in_block(
        &self,
        block: &Block,
        timestamp_ns: u64,
        from: Offset,
    ) -> Result<Option<(Offset, u64)>, ReadError> {
        if self.is_damaged(block)? {
            return Err(self.file.corrupt(block));
        }
        let bytes = self.block_bytes(block)?;
        for frame in FrameWalk::new(&bytes, FrameLimits::UNLIMITED) {
            let frame = frame.map_err(|_| self.file.corrupt(block))?;
            if frame.header.end_offset() <= from || frame.header.offset >= self.end_offset {
                continue;
            }
            if frame.header.kind == FrameKind::Record {
                if frame.header.timestamp_ns >= timestamp_ns {
                    return Ok(Some((frame.header.offset, frame.header.timestamp_ns)));
                }
                continue;
            }
            let found = basalt_proto::expand(&frame, |record| {
                // A stamp too large for u64 ns is later than any that can be asked for, one before 1970 earlier.
                let beyond = record
                    .timestamp_ms
                    .map_or(0, |ms| if ms < 0 { 0 } else { u64::MAX });
                let stamp = record.timestamp_ns.unwrap_or(beyond);
                if stamp >= timestamp_ns && record.offset >= from {
                    return ControlFlow::Break((record.offset, stamp));
                }
                ControlFlow::Continue(())
            })
            .map_err(|_| self.file.corrupt(block))?;
            if let ControlFlow::Break(found) = found {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}
