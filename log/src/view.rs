//! Reading: a pinned view of a segment, and the slice of whole frames that a consumer is sent.
//!
//! Both hold their file open. It may be unlinked meanwhile (retention, cooling): its bytes stay readable and its blocks
//! are given back when the last view or slice is dropped.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use basalt_proto::Offset;
use parking_lot::Mutex;

use crate::block::{Block, crc32c, digest_value, new_digest};
use crate::disk::{Descriptor, DiskFile};
use crate::error::{DiskError, OnDisk, ReadError};
use crate::index::SegmentIdentity;
use crate::mmap::{Map, MappedBytes};
use crate::residency::{Attempt, Stretch};

mod chunk;
mod plan;
mod search;

pub use chunk::ChunkBlocks;
pub(crate) use plan::{SlicePlan, plan_slice, resolve_slice, try_resolve_slice};

/// An open file of frames.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    pub(crate) path: PathBuf,
    pub(crate) identity: SegmentIdentity,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Bytes of whole frames, which are in the file for good (LOG-1).
    published: AtomicU64,
    /// How many there may be once.
    expected_bytes: u64,
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
        published: u64,
        expected_bytes: u64,
    ) -> Self {
        Self {
            path,
            identity,
            file,
            published: AtomicU64::new(published),
            expected_bytes,
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
    ///
    /// # Errors
    /// [`DiskError`] when the disk cannot read it.
    fn compare_once(&self, block: &Block) -> Result<(), DiskError> {
        if self.is_unverified(block) {
            self.compare(block)?;
        }
        Ok(())
    }

    /// Compares a block with its checksum. Not through a map: mapped pages stay in memory longer than what is read but once
    /// deserves.
    ///
    /// # Errors
    /// As [`Self::compare_once`].
    pub(crate) fn compare(&self, block: &Block) -> Result<(), DiskError> {
        let mut crc = new_digest();
        let mut see = |bytes: &[u8]| crc.update(bytes);
        self.file
            .load(block.position, block.bytes, &mut see)
            .on("read", &self.path)?;
        self.compared(block, digest_value(&crc) == block.crc32c);
        Ok(())
    }

    /// Notes that a block was compared with its checksum.
    pub(crate) fn compared(&self, block: &Block, is_sound: bool) {
        if !is_sound {
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

    /// Bytes of whole frames.
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Lets readers see `bytes` more bytes of frames, which are in the file. There is one who calls it.
    pub(crate) fn publish(&self, bytes: u64) {
        self.published.fetch_add(bytes, Ordering::Release);
    }

    /// A map for the bytes before `end`.
    ///
    /// # Errors
    /// [`DiskError`] when the file cannot be opened or mapped.
    ///
    /// # Panics
    /// When not so much is published.
    pub(crate) fn map(&self, end: u64) -> Result<Map, DiskError> {
        assert!(end <= self.published(), "read past the published bytes");
        let expected = index(self.expected_bytes.max(end));
        self.file.map(index(end), expected).on("map", &self.path)
    }

    /// The bytes from `from` to `to`.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub(crate) fn bytes(&self, from: u64, to: u64) -> Result<MappedBytes, DiskError> {
        let map = self.map(to)?;
        Ok(MappedBytes::new(map, index(from)..index(to)))
    }

    fn corrupt(&self, block: &Block) -> ReadError {
        ReadError::Corrupt {
            path: self.path.clone(),
            position: block.position,
            next_offset: block.end_offset(),
        }
    }
}

/// A position as an index into mapped bytes: what does not fit the address space cannot be mapped either.
fn index(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

/// Whole frames in one file, to be sent by `sendfile(2)` or read from its map, which it holds.
#[derive(Debug, Clone)]
pub struct FrameSlice {
    file: Option<(Arc<SegmentFile>, Map)>,
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

    /// The file to send from; `None` for an empty slice and on a simulated disk. After [`Stretch::load`] it is open.
    ///
    /// # Errors
    /// [`ReadError::Disk`] when it cannot be opened.
    pub fn descriptor(&self) -> Result<Option<Descriptor>, ReadError> {
        let Some((file, _)) = &self.file else {
            return Ok(None);
        };
        Ok(file.file.descriptor().on("open", &file.path)?)
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
        let (file, _) = self.file.as_ref()?;
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
        self.file.as_ref().map_or(&[], |(_, map)| {
            map.bytes(index(self.position)..index(self.position + self.bytes))
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
    ///
    /// # Errors
    /// [`ReadError::Disk`] when the file cannot be opened or mapped.
    pub fn bytes(&self) -> Result<MappedBytes, ReadError> {
        Ok(self.file.bytes(0, self.frame_bytes())?)
    }

    /// The frames of one of its blocks. They hold a map of the file, of which there are not many: drop them before the next
    /// segment's.
    ///
    /// # Errors
    /// [`ReadError::Disk`] when the file cannot be opened or mapped.
    pub fn block_bytes(&self, block: &Block) -> Result<MappedBytes, ReadError> {
        Ok(self.file.bytes(block.position, block.end_position())?)
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
    ///
    /// # Errors
    /// [`ReadError::Disk`] when it was not compared yet and the disk cannot read it.
    pub fn is_damaged(&self, block: &Block) -> Result<bool, ReadError> {
        self.file.compare_once(block)?;
        Ok(self.file.is_damaged(block))
    }

    /// Compares a block's bytes with its checksum, and remembers if they differ.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], naming file, position and the next readable offset; [`ReadError::Disk`].
    pub fn verify_block(&self, block: &Block) -> Result<(), ReadError> {
        if crc32c(&self.block_bytes(block)?) == block.crc32c && !self.is_damaged(block)? {
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
        for block in self.wanted(from, end, max_bytes) {
            self.file.compare_once(block)?;
        }
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
}
