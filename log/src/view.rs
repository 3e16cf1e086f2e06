//! Reading: a pinned view of a segment, and the slice of whole frames that a consumer is sent.
//!
//! Both hold their file open. It may be unlinked meanwhile (retention, cooling): its bytes stay readable and its blocks
//! are given back when the last view or slice is dropped.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basalt_proto::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, FrameLimits, FrameWalk, Offset, PartitionId,
};
use parking_lot::Mutex;

use crate::block::{Block, BlockBuilder, crc32c};
use crate::disk::{Disk, DiskFile};
use crate::error::{OnDisk, ReadError};
use crate::index::SegmentIdentity;
use crate::mmap::Map;
use crate::residency::{Attempt, Stretch};
use crate::topic::TopicId;

/// An open, mapped file of frames.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    pub(crate) path: PathBuf,
    pub(crate) identity: SegmentIdentity,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) map: Map,
    /// Blocks found not to match their checksum, by position. They are kept and refused, never served.
    damaged: Mutex<Vec<u64>>,
    any_damaged: AtomicBool,
    /// Blocks of a segment that an earlier process sealed, by position, whose bytes nobody has compared yet.
    unverified: Mutex<HashSet<u64>>,
    any_unverified: AtomicBool,
}

impl SegmentFile {
    pub(crate) fn new(
        path: PathBuf,
        identity: SegmentIdentity,
        file: Arc<dyn DiskFile>,
        map: Map,
    ) -> Self {
        Self {
            path,
            identity,
            file,
            map,
            damaged: Mutex::new(Vec::new()),
            any_damaged: AtomicBool::new(false),
            unverified: Mutex::new(HashSet::new()),
            any_unverified: AtomicBool::new(false),
        }
    }

    /// Has these blocks compared with their checksums before each is first read: they lay on the disk while no one looked.
    pub(crate) fn distrust(&self, blocks: &[Block]) {
        self.unverified
            .lock()
            .extend(blocks.iter().map(|block| block.position));
        self.any_unverified
            .store(!blocks.is_empty(), Ordering::Release);
    }

    /// Whether nobody has compared the block yet.
    fn is_unverified(&self, block: &Block) -> bool {
        self.any_unverified.load(Ordering::Acquire)
            && self.unverified.lock().contains(&block.position)
    }

    /// Compares a block that was not compared yet.
    pub(crate) fn compare_once(&self, block: &Block) {
        if !self.is_unverified(block) {
            return;
        }
        if crc32c(self.bytes(block.position, block.end_position())) != block.crc32c {
            tracing::error!(path = %self.path.display(), position = block.position, "a block fails its checksum; it is refused");
            self.mark_damaged(block.position);
        }
        let mut unverified = self.unverified.lock();
        unverified.remove(&block.position);
        self.any_unverified
            .store(!unverified.is_empty(), Ordering::Release);
    }

    pub(crate) fn mark_damaged(&self, position: u64) {
        let mut damaged = self.damaged.lock();
        if !damaged.contains(&position) {
            damaged.push(position);
            self.any_damaged.store(true, Ordering::Release);
        }
    }

    fn is_damaged(&self, block: &Block) -> bool {
        if !self.any_damaged.load(Ordering::Acquire) {
            return false;
        }
        let damaged = self.damaged.lock();
        damaged
            .iter()
            .any(|position| (block.position..block.end_position()).contains(position))
    }

    pub(crate) fn bytes(&self, from: u64, to: u64) -> &[u8] {
        // Positions are those of published bytes, which fit the address space they are mapped in.
        self.map.bytes(
            usize::try_from(from).unwrap_or(usize::MAX)..usize::try_from(to).unwrap_or(usize::MAX),
        )
    }

    fn corrupt(&self, block: &Block) -> ReadError {
        ReadError::Corrupt {
            path: self.path.clone(),
            position: block.position,
            next_offset: block.end_offset(),
        }
    }
}

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

/// Walks the frames of `block` from `from_position` while `go_on(header, frame's end position)`; where it stopped.
fn walk_block(
    file: &SegmentFile,
    block: &Block,
    from_position: u64,
    from_offset: Offset,
    mut go_on: impl FnMut(&FrameHeader, u64) -> bool,
) -> Result<Walked, ReadError> {
    let bytes = file.bytes(from_position, block.end_position());
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
    let start = if from <= first.base_offset {
        Walked {
            position: first.position,
            offset: first.base_offset,
        }
    } else {
        walk_block(
            file,
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
        walk_block(file, first, start.position, start.offset, below)?
    } else if let Some(last) = plan.last {
        walk_block(file, &last, last.position, last.base_offset, below)?
    } else {
        Walked {
            position: plan.stop.end_position(),
            offset: plan.stop.end_offset(),
        }
    };
    Ok(FrameSlice {
        file: Some(Arc::clone(file)),
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

/// Whole frames in one file, to be sent by `sendfile(2)` or read from the map.
#[derive(Debug, Clone)]
pub struct FrameSlice {
    file: Option<Arc<SegmentFile>>,
    position: u64,
    bytes: u64,
    /// Offset of the first frame.
    pub first_offset: Offset,
    /// The offset to read from next.
    pub next_offset: Offset,
    /// Whether there may be batch frames among the frames.
    pub has_batches: bool,
}

impl FrameSlice {
    /// No frames: the next read goes on at `next_offset`.
    #[must_use]
    pub fn empty(next_offset: Offset) -> Self {
        Self {
            file: None,
            position: 0,
            bytes: 0,
            first_offset: next_offset,
            next_offset,
            has_batches: false,
        }
    }

    /// The file to send from; `None` for an empty slice and on a simulated disk.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().and_then(|file| file.file.descriptor())
    }

    /// Where in the file the frames begin.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of all frames.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// At most `bytes` of its bytes from its byte `from` on, to be loaded before they are used; `None` when there are none.
    #[must_use]
    pub fn stretch(&self, from: u64, bytes: u64) -> Option<Stretch> {
        let file = self.file.as_ref()?;
        let end = from.saturating_add(bytes).min(self.bytes);
        (from < end).then(|| Stretch::new(file, self.position + from, self.position + end))
    }

    /// Whether there is no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The frames, from the map.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.file.as_ref().map_or(&[], |file| {
            file.bytes(self.position, self.position + self.bytes)
        })
    }
}

/// A pinned view of a segment up to some offset.
#[derive(Debug, Clone)]
pub struct SegmentView {
    /// First offset the segment is for.
    pub base_offset: Offset,
    /// First offset after the view.
    pub end_offset: Offset,
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) blocks: Arc<[Block]>,
    pub(crate) appended_at_ns: u64,
    pub(crate) sealed: bool,
}

impl SegmentView {
    /// A view of a file of frames that is complete and belongs to no partition: what cold replay hydrates.
    ///
    /// # Errors
    /// [`ReadError::Disk`] when it cannot be opened, [`ReadError::Corrupt`] when it is not whole frames throughout,
    /// from `base_offset` to `end_offset`.
    pub fn open_chunk(
        disk: &dyn Disk,
        path: &Path,
        base_offset: Offset,
        end_offset: Offset,
    ) -> Result<Self, ReadError> {
        let file = disk.open(path).on("open", path)?;
        let bytes = file.len().on("read the length of", path)?;
        let mapped = usize::try_from(bytes)
            .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
            .on("map", path)?;
        let map = file.map_read_only(mapped).on("map", path)?;
        let identity = SegmentIdentity {
            topic_id: TopicId(0),
            partition: PartitionId(0),
            base_offset,
        };
        let file = Arc::new(SegmentFile::new(path.to_owned(), identity, file, map));
        let mut blocks = BlockBuilder::new(CHUNK_BLOCK_BYTES);
        let whole = blocks.append(file.map.bytes(0..mapped), 0, FrameLimits::UNLIMITED);
        let last = blocks
            .blocks()
            .last()
            .map_or(base_offset, Block::end_offset);
        let first = blocks
            .blocks()
            .first()
            .map_or(base_offset, |block| block.base_offset);
        if whole != mapped || first < base_offset || last > end_offset {
            return Err(ReadError::Corrupt {
                path: path.to_owned(),
                position: whole as u64,
                next_offset: end_offset,
            });
        }
        Ok(Self {
            base_offset,
            end_offset,
            file,
            blocks: blocks.blocks().into(),
            appended_at_ns: 0,
            sealed: true,
        })
    }

    /// The segment's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Its blocks, in order; the last may be cut at the view's end.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Bytes of its frames.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        self.blocks.last().map_or(0, Block::end_position)
    }

    /// All its frames.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.file.bytes(0, self.frame_bytes())
    }

    /// The frames of one of its blocks.
    #[must_use]
    pub fn block_bytes(&self, block: &Block) -> &[u8] {
        self.file.bytes(block.position, block.end_position())
    }

    /// The broker's time of the last append, ns; what retention and cooling count a segment's age from.
    #[must_use]
    pub fn appended_at_ns(&self) -> u64 {
        self.appended_at_ns
    }

    /// Whether nothing is ever appended to it again.
    #[must_use]
    pub fn sealed(&self) -> bool {
        self.sealed
    }

    /// Whether a block was found not to match its checksum. Its records are refused, never served altered.
    #[must_use]
    pub fn is_damaged(&self, block: &Block) -> bool {
        self.file.compare_once(block);
        self.file.is_damaged(block)
    }

    /// Compares a block's bytes with its checksum, and remembers if they differ.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], naming file, position and the next readable offset.
    pub fn verify_block(&self, block: &Block) -> Result<(), ReadError> {
        if crc32c(self.block_bytes(block)) == block.crc32c && !self.is_damaged(block) {
            return Ok(());
        }
        self.file.mark_damaged(block.position);
        Err(self.file.corrupt(block))
    }

    /// Whole frames of `[from, end)`, as [`crate::Partition::read`]; empty when there is none.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] when the first block is damaged.
    pub fn slice(
        &self,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<FrameSlice, ReadError> {
        let end = end.min(self.end_offset);
        if from >= end {
            return Ok(FrameSlice::empty(from));
        }
        self.wanted(from, end, max_bytes)
            .for_each(|block| self.file.compare_once(block));
        match plan_slice(&self.file, &self.blocks, from, end, max_bytes) {
            Some(plan) => resolve_slice(&self.file, &plan, from, end, max_bytes),
            None => Ok(FrameSlice::empty(from)),
        }
    }

    /// As [`Self::slice`], without waiting for the disk.
    ///
    /// # Errors
    /// As [`Self::slice`].
    pub fn try_slice(
        &self,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<Attempt<FrameSlice>, ReadError> {
        let end = end.min(self.end_offset);
        if from >= end {
            return Ok(Attempt::Ready(FrameSlice::empty(from)));
        }
        let unverified: Vec<Block> = self
            .wanted(from, end, max_bytes)
            .filter(|block| self.file.is_unverified(block))
            .copied()
            .collect();
        if let (Some(first), Some(last)) = (unverified.first(), unverified.last()) {
            let stretch = Stretch::new(&self.file, first.position, last.end_position());
            return Ok(Attempt::Absent(stretch.unverified(unverified)));
        }
        match plan_slice(&self.file, &self.blocks, from, end, max_bytes) {
            Some(plan) => try_resolve_slice(&self.file, &plan, from, end, max_bytes),
            None => Ok(Attempt::Ready(FrameSlice::empty(from))),
        }
    }

    /// The blocks that a slice may reach into.
    fn wanted(&self, from: Offset, end: Offset, max_bytes: u64) -> impl Iterator<Item = &Block> {
        let start = self
            .blocks
            .partition_point(|block| block.end_offset() <= from);
        let blocks = &self.blocks[start..];
        let begin = blocks.first().map_or(0, |block| block.position);
        blocks
            .iter()
            .take_while(move |block| block.base_offset < end && block.position - begin <= max_bytes)
    }

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
        if self.is_damaged(block) {
            return Err(self.file.corrupt(block));
        }
        for frame in FrameWalk::new(self.block_bytes(block), FrameLimits::UNLIMITED) {
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

/// A hydrated chunk's blocks, for lookups only.
const CHUNK_BLOCK_BYTES: u32 = 64 << 10;
