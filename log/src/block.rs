//! Blocks: runs of frames that share one index entry and one checksum.

use basalt_proto::batch::RecordBatch;
use basalt_proto::{
    FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind, FrameLimits, FrameWalk, Offset,
    patch_offset, patch_record_count,
};
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
fn frame_timestamps(frame: &Frame<'_>) -> (u64, u64) {
    match frame.header.kind {
        FrameKind::Record => (frame.header.timestamp_ns, frame.header.timestamp_ns),
        FrameKind::Batch => batch_timestamps(frame.payload),
    }
}

fn batch_timestamps(batch: &[u8]) -> (u64, u64) {
    match RecordBatch::validate(batch) {
        Ok(_) => header_timestamps(batch),
        Err(_) => (0, u64::MAX),
    }
}

fn header_timestamps(batch: &[u8]) -> (u64, u64) {
    let saturate = |ms: i64| u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000);
    match RecordBatch::header(batch) {
        // The header knows the largest stamp only; 0 is a safe lower bound for pruning.
        Ok(header) => (0, saturate(header.max_timestamp_ms)),
        Err(_) => (0, u64::MAX),
    }
}

/// What [`BlockBuilder::undo`] goes back to.
#[derive(Debug)]
pub(crate) struct BlocksMark {
    blocks: usize,
    last: Option<Block>,
    digest: Digest,
    closed: bool,
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
            if self.begins_block() {
                self.hash(&bytes[hashed..start]);
                hashed = start;
                self.begin_block(frame.header.offset, position + start as u64);
            }
            let stamps = frame_timestamps(&frame);
            self.take(&frame.header, stamps, (walk.position() - start) as u64);
        }
        self.hash(&bytes[hashed..walk.position()]);
        walk.position()
    }

    /// Numbers the frames in `bytes`, whole and checked ones that are about to be stored at `position`, from `offset` on, and
    /// takes them up: one walk for both. Returns the offset after them.
    ///
    /// # Panics
    /// When `bytes` are not whole frames.
    pub(crate) fn number(&mut self, bytes: &mut [u8], position: u64, offset: Offset) -> Offset {
        let (mut at, mut hashed, mut next) = (0, 0, offset);
        while at < bytes.len() {
            let rest = &mut bytes[at..];
            let header = rest
                .first_chunk::<FRAME_HEADER_BYTES>()
                .and_then(|header| FrameHeader::decode(header).ok());
            let whole = header.and_then(|header| {
                let frame_bytes = usize::try_from(header.frame_bytes()).ok()?;
                Some((header, rest.get_mut(..frame_bytes)?))
            });
            let Some((mut header, frame)) = whole else {
                panic!("only checked frames are appended")
            };
            header.offset = next;
            patch_offset(frame, next);
            if header.record_count == 0 {
                header.record_count = 1;
                patch_record_count(frame, 1);
            }
            let frame_bytes = frame.len();
            let stamps = match header.kind {
                FrameKind::Record => (header.timestamp_ns, header.timestamp_ns),
                FrameKind::Batch => {
                    header_timestamps(&frame[FRAME_HEADER_BYTES + header.key_bytes as usize..])
                }
            };
            if self.begins_block() {
                self.hash(&bytes[hashed..at]);
                hashed = at;
                self.begin_block(next, position + at as u64);
            }
            self.take(&header, stamps, frame_bytes as u64);
            next = header.end_offset();
            at += frame_bytes;
        }
        self.hash(&bytes[hashed..]);
        next
    }

    /// The state before an append that may fail.
    pub(crate) fn mark(&self) -> BlocksMark {
        BlocksMark {
            blocks: self.blocks.len(),
            last: self.blocks.last().copied(),
            digest: self.digest,
            closed: self.closed,
        }
    }

    /// Forgets what was taken up since the mark.
    pub(crate) fn undo(&mut self, mark: &BlocksMark) {
        self.blocks.truncate(mark.blocks);
        if let (Some(last), Some(before)) = (self.blocks.last_mut(), mark.last) {
            *last = before;
        }
        self.digest = mark.digest;
        self.closed = mark.closed;
    }

    fn begins_block(&self) -> bool {
        self.closed
            || self
                .blocks
                .last()
                .is_none_or(|open| open.bytes >= self.block_bytes)
    }

    fn begin_block(&mut self, base_offset: Offset, position: u64) {
        self.closed = false;
        self.digest = new_digest();
        self.blocks.push(Block::empty(base_offset, position));
    }

    /// Takes up a block as it is, checksum and all: one whose bytes no longer match it, so that they never will.
    pub(crate) fn push_damaged(&mut self, block: Block) {
        self.blocks.push(block);
        self.closed = true;
    }

    fn take(&mut self, header: &FrameHeader, (min, max): (u64, u64), frame_bytes: u64) {
        let Some(open) = self.blocks.last_mut() else {
            return;
        };
        open.bytes += frame_bytes;
        // By the end offset, not by adding counts, so that a block also spans a gap between its frames.
        open.record_count = header.end_offset().0.saturating_sub(open.base_offset.0);
        open.frame_count += 1;
        open.min_timestamp_ns = open.min_timestamp_ns.min(min);
        open.max_timestamp_ns = open.max_timestamp_ns.max(max);
        open.has_batches |= header.kind == FrameKind::Batch;
    }

    fn hash(&mut self, bytes: &[u8]) {
        if let Some(open) = self.blocks.last_mut().filter(|_| !bytes.is_empty()) {
            self.digest.update(bytes);
            open.crc32c = digest_value(&self.digest);
        }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
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
