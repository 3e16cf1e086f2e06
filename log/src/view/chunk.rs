//! Files of frames that belong to no partition: what cold replay hydrates.

use std::path::Path;
use std::sync::Arc;

use basalt_proto::{FrameLimits, Offset, PartitionId};

use super::{SegmentFile, SegmentView};
use crate::block::{Block, BlockBuilder};
use crate::disk::Disk;
use crate::error::{OnDisk, ReadError};
use crate::index::SegmentIdentity;
use crate::topic::TopicId;

/// A block is what is walked to find an offset.
const BLOCK_BYTES: u32 = 64 << 10;

/// The index of such a file, made while it is written: so its frames need not be read again.
#[derive(Debug)]
pub struct ChunkBlocks {
    blocks: BlockBuilder,
    bytes: u64,
    /// Where the first bytes lie that are no whole frame.
    broken_at: Option<u64>,
}

impl Default for ChunkBlocks {
    fn default() -> Self {
        Self {
            blocks: BlockBuilder::new(BLOCK_BYTES),
            bytes: 0,
            broken_at: None,
        }
    }
}

impl ChunkBlocks {
    /// Takes up whole frames that are written behind those before.
    pub fn push(&mut self, frames: &[u8]) {
        let whole = self
            .blocks
            .append(frames, self.bytes, FrameLimits::UNLIMITED);
        if whole < frames.len() && self.broken_at.is_none() {
            self.broken_at = Some(self.bytes + whole as u64);
        }
        self.bytes += frames.len() as u64;
    }
}

impl SegmentView {
    /// A view of a file that is complete, and has the frames that `blocks` took up.
    ///
    /// # Errors
    /// [`ReadError::Disk`] when it cannot be opened, [`ReadError::Corrupt`] when it is longer or shorter, or is not whole frames
    /// throughout, from `base_offset` to `end_offset`.
    pub fn open_chunk(
        disk: &dyn Disk,
        path: &Path,
        base_offset: Offset,
        end_offset: Offset,
        blocks: &ChunkBlocks,
    ) -> Result<Self, ReadError> {
        let file = disk.open(path).on("open", path)?;
        let bytes = file.len().on("read the length of", path)?;
        let found = blocks.blocks.blocks();
        let first = found.first().map_or(base_offset, |block| block.base_offset);
        let last = found.last().map_or(base_offset, Block::end_offset);
        let position = match blocks.broken_at {
            Some(position) => Some(position),
            None if bytes != blocks.bytes => Some(bytes.min(blocks.bytes)),
            None if first < base_offset => Some(0),
            None if last > end_offset => Some(bytes),
            None => None,
        };
        if let Some(position) = position {
            return Err(ReadError::Corrupt {
                path: path.to_owned(),
                position,
                next_offset: end_offset,
            });
        }
        let identity = SegmentIdentity {
            topic_id: TopicId(0),
            partition: PartitionId(0),
            base_offset,
        };
        let file = SegmentFile::new(path.to_owned(), identity, file, bytes, bytes);
        Ok(Self {
            base_offset,
            end_offset,
            file: Arc::new(file),
            blocks: found.into(),
            appended_at_ns: 0,
            sealed: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use basalt_proto::Frame;

    use super::*;
    use crate::RealDisk;

    fn frames(offsets: std::ops::Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for offset in offsets {
            let mut frame = Frame::record(7, b"k", b"payload");
            frame.header.offset = Offset(offset);
            frame.encode_into(&mut bytes);
        }
        bytes
    }

    fn opened(pieces: &[&[u8]], file: &[u8]) -> Result<SegmentView, ReadError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chunk");
        std::fs::write(&path, file).unwrap();
        let mut blocks = ChunkBlocks::default();
        for piece in pieces {
            blocks.push(piece);
        }
        SegmentView::open_chunk(&RealDisk::new(), &path, Offset(10), Offset(30), &blocks)
    }

    #[test]
    fn a_chunk_is_indexed_as_it_was_written() {
        let (head, tail) = (frames(10..5_000), frames(5_000..5_010));
        let all = [head.clone(), tail.clone()].concat();
        let refused = opened(&[&head, &tail], &all);
        assert!(
            matches!(refused, Err(ReadError::Corrupt { .. })),
            "{refused:?}"
        );

        let (head, tail) = (frames(10..20), frames(20..30));
        let all = [head.clone(), tail.clone()].concat();
        let view = opened(&[&head, &tail], &all).unwrap();
        assert_eq!(view.frame_bytes(), all.len() as u64);
        for block in view.blocks() {
            view.verify_block(block).unwrap();
        }
        let slice = view.slice(Offset(20), Offset::MAX, u64::MAX).unwrap();
        assert_eq!((slice.first_offset, slice.bytes()), (Offset(20), &tail[..]));
    }

    #[test]
    fn a_chunk_that_is_not_what_was_written_is_refused() {
        let all = frames(10..30);
        let position = |pieces: &[&[u8]], file: &[u8]| match opened(pieces, file) {
            Err(ReadError::Corrupt { position, .. }) => position,
            other => panic!("{other:?}"),
        };
        let frame_bytes = (all.len() / 20) as u64;
        let (short, long) = (&all[..all.len() - 1], [&all[..], b"x"].concat());
        assert_eq!(position(&[&all], short), all.len() as u64 - 1);
        assert_eq!(position(&[&all], &long), all.len() as u64);
        assert_eq!(position(&[short], short), 19 * frame_bytes);
        assert_eq!(position(&[&frames(9..30)], &frames(9..30)), 0);
    }
}
