//! The index of an active segment, as it grows on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use basalt_proto::Offset;
use parking_lot::Mutex;

use super::{BootField, ENTRY_BYTES, HEADER_BYTES, PUBLISHED_AT, SegmentIdentity};
use crate::block::Block;
use crate::disk::DiskFile;
use crate::error::{DiskError, OnDisk};
use crate::segment::young_index_path;

/// How much room an index gets ahead.
const STEP_BYTES: u64 = 16 << 10;

/// Entries are added by one thread at a time, the one that does the partition's disk work; the published mark is written
/// by the appender, elsewhere in the file.
#[derive(Debug)]
pub(crate) struct IndexFile {
    pub(crate) path: PathBuf,
    identity: SegmentIdentity,
    file: Arc<dyn DiskFile>,
    state: Mutex<IndexState>,
}

#[derive(Debug, Clone, Copy)]
struct IndexState {
    /// Where the next entry goes.
    bytes: u64,
    reserved_bytes: u64,
    covered: Covered,
}

/// What of the segment has entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Covered {
    /// So many blocks, from the first, have an entry each and will not grow.
    pub(crate) blocks: usize,
    /// Frames up to here have entries.
    pub(crate) position: u64,
}

impl IndexFile {
    /// The index in `file`, whose header is written and whose entries end at `bytes`.
    pub(crate) fn new(
        path: PathBuf,
        identity: SegmentIdentity,
        file: Arc<dyn DiskFile>,
        bytes: u64,
        covered: Covered,
    ) -> Self {
        let state = IndexState {
            bytes,
            reserved_bytes: 0,
            covered,
        };
        Self {
            path,
            identity,
            file,
            state: Mutex::new(state),
        }
    }

    /// Makes the index of a new segment in an empty file, under its young name. Nothing is synced.
    pub(crate) fn create(
        segment_path: &Path,
        identity: SegmentIdentity,
        file: Arc<dyn DiskFile>,
    ) -> Result<Self, DiskError> {
        let path = young_index_path(segment_path);
        file.write_at(&identity.header(), 0).on("write", &path)?;
        let bytes = HEADER_BYTES as u64;
        Ok(Self::new(path, identity, file, bytes, Covered::default()))
    }

    pub(crate) fn file_system(&self) -> Option<u64> {
        self.file.file_system()
    }

    pub(crate) fn covered(&self) -> Covered {
        self.state.lock().covered
    }

    /// Allocates room for the entries of `blocks` blocks and a closed marker, so that writing them finds no full disk.
    pub(crate) fn make_room(&self, blocks: usize) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        let needed = state.bytes + (blocks as u64 + 2) * ENTRY_BYTES as u64;
        if needed <= state.reserved_bytes {
            return Ok(());
        }
        let ahead = needed + needed.min(STEP_BYTES);
        match self.file.reserve(ahead) {
            Ok(()) => state.reserved_bytes = ahead,
            Err(_) => {
                self.file.reserve(needed).on("grow", &self.path)?;
                state.reserved_bytes = needed;
            }
        }
        Ok(())
    }

    /// Marks the frames up to `position` as whole in the page cache (LOG-3).
    pub(crate) fn publish(
        &self,
        position: u64,
        end_offset: Offset,
        boot: &BootField,
    ) -> Result<(), DiskError> {
        let mark = self.identity.published_mark(position, end_offset, boot);
        self.file
            .write_at(&mark, PUBLISHED_AT as u64)
            .on("write to", &self.path)
    }

    /// Adds the entries of `blocks`, which begin with the first one that [`Self::covered`] says is not done; their bytes were
    /// synced up to `synced_position`. The entries are not.
    pub(crate) fn cover(&self, blocks: &[Block], synced_position: u64) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        let fresh = |block: &&Block| block.end_position() > state.covered.position;
        let mut entries = Vec::with_capacity(blocks.len() * ENTRY_BYTES);
        for block in blocks.iter().filter(fresh) {
            let synced = synced_position.min(block.end_position());
            entries.extend_from_slice(&self.identity.run_entry(block, synced));
        }
        if !entries.is_empty() {
            self.file
                .write_at(&entries, state.bytes)
                .on("append to", &self.path)?;
        }
        state.bytes += entries.len() as u64;
        if let Some(last) = blocks.last() {
            state.covered.blocks += blocks.len() - 1;
            state.covered.position = state.covered.position.max(last.end_position());
        }
        Ok(())
    }

    /// Makes the entries durable.
    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        self.file.sync().on("sync", &self.path)
    }

    /// Adds the marker of a stop in order behind the entries and cuts the file behind it. Nothing is synced.
    pub(crate) fn close(&self, position: u64, end_offset: Offset) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        let closed = Block {
            base_offset: end_offset,
            position,
            bytes: 0,
            record_count: 0,
            frame_count: 0,
            min_timestamp_ns: 0,
            max_timestamp_ns: 0,
            crc32c: 0,
            has_batches: false,
        };
        let entry = self.identity.run_entry(&closed, position);
        self.file
            .write_at(&entry, state.bytes)
            .on("append to", &self.path)?;
        state.bytes += ENTRY_BYTES as u64;
        self.file.set_len(state.bytes).on("trim", &self.path)
    }
}
