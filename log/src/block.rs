//! Blocks: runs of frames that share one index entry and one checksum.

use basalt_proto::batch::RecordBatch;
use basalt_proto::{Frame, FrameKind, FrameLimits, FrameWalk, Offset};
use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of some bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A run of frames in a segment: at once the sparse offset index, the time index and the checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First offset.
    pub base_offset: Offset,
    /// Where its first frame begins in the segment.
    pub position: u64,
    /// Its frames together.
    pub bytes: u64,
    /// Offsets it spans.
    pub record_count: u64,
    /// Frames.
    pub frame_count: u32,
    /// Smallest record stamp; stamps that do not fit saturate.
    pub min_timestamp_ns: u64,
    /// Largest record stamp.
    pub max_timestamp_ns: u64,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
    /// Whether any of its frames is a batch frame.
    pub has_batches: bool,
}

impl Block {
    fn empty(base_offset: Offset, position: u64) -> Self {
        Self {
            base_offset,
            position,
            bytes: 0,
            record_count: 0,
            frame_count: 0,
            min_timestamp_ns: u64::MAX,
            max_timestamp_ns: 0,
            crc32c: 0,
            has_batches: false,
        }
    }

    /// The first offset after it.
    #[must_use]
    pub fn end_offset(&self) -> Offset {
        Offset(self.base_offset.0.saturating_add(self.record_count))
    }

    /// The byte after it.
    #[must_use]
    pub fn end_position(&self) -> u64 {
        self.position + self.bytes
    }
}

/// The stamps of a frame's records, smallest and largest. A batch's own stamps count, saturated to u64 ns.
pub(crate) fn frame_timestamps(frame: &Frame<'_>) -> (u64, u64) {
    let stamp = frame.header.timestamp_ns;
    if frame.header.kind == FrameKind::Record {
        return (stamp, stamp);
    }
    let saturate = |ms: i64| u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000);
    match RecordBatch::validate(frame.payload) {
        // The header knows the largest stamp only; 0 is a safe lower bound for pruning.
        Ok(header) => (0, saturate(header.max_timestamp_ms)),
        Err(_) => (0, u64::MAX),
    }
}

/// Gathers stored frames into blocks. The last block is open: it grows until it is full.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    blocks: Vec<Block>,
    digest: Digest,
    block_bytes: u64,
    /// Set when the last block takes no more frames however small it is.
    closed: bool,
}

impl BlockBuilder {
    pub(crate) fn new(block_bytes: u32) -> Self {
        Self {
            blocks: Vec::new(),
            digest: new_digest(),
            block_bytes: u64::from(block_bytes),
            closed: true,
        }
    }

    /// Takes up the whole frames in `bytes`, which are stored at `position` with their offsets in them, and returns
    /// how many bytes were whole frames within `limits`.
    pub(crate) fn append(&mut self, bytes: &[u8], position: u64, limits: FrameLimits) -> usize {
        let mut walk = FrameWalk::new(bytes, limits);
        let mut hashed = 0;
        loop {
            let start = walk.position();
            let Some(Ok(frame)) = walk.next() else { break };
            if self.closed
                || self
                    .blocks
                    .last()
                    .is_none_or(|open| open.bytes >= self.block_bytes)
            {
                self.closed = false;
                self.hash(&bytes[hashed..start]);
                hashed = start;
                self.digest = new_digest();
                self.blocks
                    .push(Block::empty(frame.header.offset, position + start as u64));
            }
            self.take(&frame, (walk.position() - start) as u64);
        }
        self.hash(&bytes[hashed..walk.position()]);
        walk.position()
    }

    /// Takes up a block as it is, checksum and all: one whose bytes no longer match it, so that they never will.
    pub(crate) fn push_damaged(&mut self, block: Block) {
        self.blocks.push(block);
        self.closed = true;
    }

    fn take(&mut self, frame: &Frame<'_>, frame_bytes: u64) {
        let Some(open) = self.blocks.last_mut() else {
            return;
        };
        let (min, max) = frame_timestamps(frame);
        open.bytes += frame_bytes;
        // By the end offset, not by adding counts, so that a block also spans a gap between its frames.
        open.record_count = frame
            .header
            .end_offset()
            .0
            .saturating_sub(open.base_offset.0);
        open.frame_count += 1;
        open.min_timestamp_ns = open.min_timestamp_ns.min(min);
        open.max_timestamp_ns = open.max_timestamp_ns.max(max);
        open.has_batches |= frame.header.kind == FrameKind::Batch;
    }

    fn hash(&mut self, bytes: &[u8]) {
        if let Some(open) = self.blocks.last_mut().filter(|_| !bytes.is_empty()) {
            self.digest.update(bytes);
            open.crc32c = digest_value(&self.digest);
        }
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }
}

pub(crate) fn new_digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

pub(crate) fn digest_value(digest: &Digest) -> u32 {
    // A 32-bit CRC in the crate's 64-bit result: it always fits.
    u32::try_from(digest.finalize()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use basalt_proto::patch_offset;

    fn frames(count: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for offset in 0..count {
            let start = bytes.len();
            Frame::record(1_000 + offset, b"key", b"some payload").encode_into(&mut bytes);
            patch_offset(&mut bytes[start..], Offset(offset));
        }
        bytes
    }

    #[test]
    fn blocks_cover_all_frames_whatever_pieces_they_come_in() {
        let bytes = frames(100);
        let frame_bytes = bytes.len() / 100;
        let mut whole = BlockBuilder::new(256);
        assert_eq!(whole.append(&bytes, 0, FrameLimits::default()), bytes.len());
        for piece_frames in [1, 3, 7, 100] {
            let mut pieces = BlockBuilder::new(256);
            for (at, piece) in bytes.chunks(piece_frames * frame_bytes).enumerate() {
                pieces.append(
                    piece,
                    (at * piece_frames * frame_bytes) as u64,
                    FrameLimits::default(),
                );
            }
            assert_eq!(pieces.blocks(), whole.blocks());
        }
        let mut end = (0, Offset(0));
        for block in whole.blocks() {
            assert_eq!((block.position, block.base_offset), end);
            let at = usize::try_from(block.position).expect("small");
            let len = usize::try_from(block.bytes).expect("small");
            assert_eq!(block.crc32c, crc32c(&bytes[at..at + len]));
            assert_eq!(block.min_timestamp_ns, 1_000 + block.base_offset.0);
            end = (block.end_position(), block.end_offset());
        }
        assert_eq!(end, (bytes.len() as u64, Offset(100)));
    }
}
