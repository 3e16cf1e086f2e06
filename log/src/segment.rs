//! The active segment: a preallocated, mapped file that one appender fills, and its growing index.
//!
//! Blocks of the disk are allocated before bytes are written into the map, for the frames and for the index entry that
//! will cover them, so that a full disk is an error here and nowhere later.
//!
//! - **LOG-6**: an active segment's file is at least a byte longer than its frames, zeros after them, until the log is
//!   closed in order or the segment sealed. A file that ends with its last frame was therefore not left by a crash.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use basalt_proto::{FrameLimits, Offset, patch_offset, patch_record_count};

use crate::block::{Block, BlockBuilder, crc32c};
use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk};
use crate::index::{ENTRY_BYTES, HEADER_BYTES, SegmentIdentity};
use crate::mmap::MapWriter;
use crate::view::{SegmentFile, SegmentView};

/// The first allocation of a segment: an almost idle partition costs little.
const FIRST_ALLOCATION_BYTES: u64 = 64 << 10;
/// Files are allocated in whole pages.
const PAGE_BYTES: u64 = 4096;
/// How much room an index gets ahead.
const INDEX_STEP_BYTES: u64 = 16 << 10;
/// What a segment may exceed its size by when a single append is larger (LOG-6 needs one byte).
const SLACK_BYTES: u64 = 4096;

pub(crate) fn segment_path(dir: &Path, base_offset: Offset) -> PathBuf {
    dir.join(format!("{:020}.seg", base_offset.0))
}

pub(crate) fn index_path(segment_path: &Path) -> PathBuf {
    segment_path.with_extension("idx")
}

/// The segment that takes appends.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) index: Arc<dyn DiskFile>,
    writer: MapWriter,
    blocks: BlockBuilder,
    /// It is sealed before it would grow past this.
    seal_bytes: u64,
    allocated_bytes: u64,
    index_bytes: u64,
    index_reserved_bytes: u64,
    /// Up to where its bytes are known to be on the disk.
    pub(crate) synced_position: u64,
    /// Where the run begins that no index entry covers yet, and its first offset.
    run_position: u64,
    run_offset: Offset,
    end_offset: Offset,
    pub(crate) appended_at_ns: u64,
}

/// What a recovered segment goes on with.
pub(crate) struct Recovered {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) writer: MapWriter,
    pub(crate) index: Arc<dyn DiskFile>,
    pub(crate) blocks: BlockBuilder,
    pub(crate) allocated_bytes: u64,
    pub(crate) synced_position: u64,
    pub(crate) index_bytes: u64,
    pub(crate) run_position: u64,
    pub(crate) run_offset: Offset,
    pub(crate) end_offset: Offset,
    pub(crate) appended_at_ns: u64,
}

/// Address space for a segment that is sealed at `seal_bytes`.
pub(crate) fn map_capacity(seal_bytes: u64) -> io::Result<usize> {
    usize::try_from(seal_bytes.saturating_add(SLACK_BYTES))
        .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
}

impl Active {
    /// Creates the files of a new segment; their names are durable on return. With `first_bytes` 0 no block is
    /// allocated yet.
    ///
    /// On an error nothing that this call made is left behind if it can be helped; an empty segment that stays is harmless,
    /// and one that was there before stays in any case: its name may be what tells the next offset (LOG-12).
    pub(crate) fn create(
        disk: &dyn Disk,
        dir: &Path,
        identity: SegmentIdentity,
        seal_bytes: u64,
        block_bytes: u32,
        first_bytes: u64,
    ) -> Result<Self, DiskError> {
        let path = segment_path(dir, identity.base_offset);
        let was_there = disk.exists(&path).on("look for", &path)?;
        let created = Self::create_files(
            disk,
            dir,
            &path,
            identity,
            seal_bytes.max(first_bytes),
            block_bytes,
        )
        .and_then(|mut active| active.make_room(first_bytes).map(|()| active));
        if created.is_err() && !was_there {
            // Ignored: recovery drops empty segments, and the error that counts is the first one.
            let _ = disk.remove_file(&index_path(&path));
            let _ = disk.remove_file(&path);
        }
        created
    }

    fn create_files(
        disk: &dyn Disk,
        dir: &Path,
        path: &Path,
        identity: SegmentIdentity,
        seal_bytes: u64,
        block_bytes: u32,
    ) -> Result<Self, DiskError> {
        disk.create_dir_all(dir).on("create", dir)?;
        let file = disk.create(path).on("create", path)?;
        let index_path = index_path(path);
        let index = disk.create(&index_path).on("create", &index_path)?;
        index
            .write_at(&identity.header(), 0)
            .and_then(|()| index.sync())
            .on("write", &index_path)?;
        disk.sync_dir(dir).on("sync", dir)?;
        let (map, writer) = map_capacity(seal_bytes)
            .and_then(|capacity| file.map(capacity, 0))
            .on("map", path)?;
        Ok(Self {
            file: Arc::new(SegmentFile::new(path.to_owned(), identity, file, map)),
            index,
            writer,
            blocks: BlockBuilder::new(block_bytes),
            seal_bytes,
            allocated_bytes: 0,
            index_bytes: HEADER_BYTES as u64,
            index_reserved_bytes: 0,
            synced_position: 0,
            run_position: 0,
            run_offset: identity.base_offset,
            end_offset: identity.base_offset,
            appended_at_ns: 0,
        })
    }

    /// Goes on with a segment that recovery has read.
    pub(crate) fn from_recovered(recovered: Recovered, seal_bytes: u64) -> Self {
        Self {
            file: recovered.file,
            index: recovered.index,
            writer: recovered.writer,
            blocks: recovered.blocks,
            seal_bytes,
            allocated_bytes: recovered.allocated_bytes,
            index_bytes: recovered.index_bytes,
            index_reserved_bytes: 0,
            synced_position: recovered.synced_position,
            run_position: recovered.run_position,
            run_offset: recovered.run_offset,
            end_offset: recovered.end_offset,
            appended_at_ns: recovered.appended_at_ns,
        }
    }

    pub(crate) fn base_offset(&self) -> Offset {
        self.file.identity.base_offset
    }

    pub(crate) fn end_offset(&self) -> Offset {
        self.end_offset
    }

    /// Bytes of its frames.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.writer.position() as u64
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        self.blocks.blocks()
    }

    /// Bytes that still fit before it is to be sealed.
    pub(crate) fn room_bytes(&self) -> u64 {
        let end = (self.seal_bytes).min((self.writer.capacity() as u64).saturating_sub(1));
        end.saturating_sub(self.frame_bytes())
    }

    /// Makes an empty segment able to hold a frame of `bytes`, if it is larger than segments are.
    pub(crate) fn widen(&mut self, bytes: u64) -> Result<(), DiskError> {
        assert_eq!(
            self.frame_bytes(),
            0,
            "only an empty segment is mapped anew"
        );
        if bytes <= self.room_bytes() {
            return Ok(());
        }
        let SegmentFile {
            path,
            identity,
            file,
            ..
        } = &*self.file;
        let (map, writer) = map_capacity(bytes)
            .and_then(|capacity| file.map(capacity, 0))
            .on("map", path)?;
        self.file = Arc::new(SegmentFile::new(
            path.clone(),
            *identity,
            Arc::clone(file),
            map,
        ));
        self.writer = writer;
        self.seal_bytes = bytes;
        Ok(())
    }

    /// Allocates what an append of `bytes` needs: blocks for the frames, one byte more (LOG-6), and room for its index
    /// entry, that of the run before it and a closed marker.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Result<(), DiskError> {
        if bytes == 0 {
            return Ok(());
        }
        let index_needed = self.index_bytes + 3 * ENTRY_BYTES as u64;
        if index_needed > self.index_reserved_bytes {
            let path = index_path(&self.file.path);
            let ahead = index_needed + INDEX_STEP_BYTES;
            match self.index.reserve(ahead) {
                Ok(()) => self.index_reserved_bytes = ahead,
                Err(_) => {
                    self.index.reserve(index_needed).on("grow", &path)?;
                    self.index_reserved_bytes = index_needed;
                }
            }
        }
        let needed = round_up(self.frame_bytes() + bytes + 1);
        if needed <= self.allocated_bytes {
            return Ok(());
        }
        let generous = self
            .allocated_bytes
            .saturating_mul(2)
            .max(FIRST_ALLOCATION_BYTES);
        let generous = round_up(generous.min(self.seal_bytes + 1)).max(needed);
        let file = &self.file.file;
        match file.allocate(generous) {
            Ok(()) => self.allocated_bytes = generous,
            Err(_) if generous > needed => {
                self.give_back();
                file.allocate(needed)
                    .on("grow", &self.file.path)
                    .inspect_err(|_| self.give_back())?;
                self.allocated_bytes = needed;
            }
            Err(error) => {
                self.give_back();
                return Err(error).on("grow", &self.file.path);
            }
        }
        Ok(())
    }

    /// Returns what a failed allocation may have got in part.
    fn give_back(&self) {
        if let Err(error) = self.file.file.set_len(self.allocated_bytes) {
            tracing::warn!(path = %self.file.path.display(), %error, "blocks of a failed allocation were not given back");
        }
    }

    /// Copies whole frames to the tail, numbering them from [`Self::end_offset`]. [`Self::make_room`] came before.
    pub(crate) fn append(
        &mut self,
        frames: &[u8],
        lengths: impl Iterator<Item = (usize, u32)>,
        now_ns: u64,
    ) {
        let position = self.frame_bytes();
        assert!(
            position + (frames.len() as u64) < self.allocated_bytes,
            "room is made before an append (LOG-6)"
        );
        let tail = self.writer.unpublished(frames.len());
        tail.copy_from_slice(frames);
        let mut rest = tail;
        let mut offset = self.end_offset;
        for (frame_bytes, record_count) in lengths {
            let (frame, after) = rest.split_at_mut(frame_bytes);
            patch_offset(frame, offset);
            if record_count == 0 {
                patch_record_count(frame, 1);
            }
            offset = Offset(offset.0 + u64::from(record_count.max(1)));
            rest = after;
        }
        assert!(rest.is_empty(), "the lengths are those of the frames");
        self.writer.publish(frames.len());
        self.end_offset = offset;
        self.appended_at_ns = now_ns;
        let start = usize::try_from(position).unwrap_or(usize::MAX);
        let stored = self.file.map.bytes(start..start + frames.len());
        let taken = self.blocks.append(stored, position, FrameLimits::UNLIMITED);
        assert_eq!(taken, frames.len(), "appended frames were checked before");
    }

    /// Whether frames were appended that no index entry covers.
    pub(crate) fn has_open_run(&self) -> bool {
        self.frame_bytes() > self.run_position
    }

    /// Writes the index entry of the open run (LOG-3). Nothing is synced.
    pub(crate) fn close_run(&mut self) -> Result<(), DiskError> {
        if !self.has_open_run() {
            return Ok(());
        }
        let end = self.frame_bytes();
        let start = usize::try_from(self.run_position).unwrap_or(usize::MAX);
        let run = Block {
            base_offset: self.run_offset,
            position: self.run_position,
            bytes: end - self.run_position,
            record_count: self.end_offset.0 - self.run_offset.0,
            frame_count: 0,
            min_timestamp_ns: 0,
            max_timestamp_ns: u64::MAX,
            crc32c: crc32c(self.file.map.bytes(start..self.writer.position())),
            has_batches: true,
        };
        self.write_entry(&run)?;
        self.run_position = end;
        self.run_offset = self.end_offset;
        Ok(())
    }

    fn write_entry(&mut self, run: &Block) -> Result<(), DiskError> {
        let entry = self.file.identity.run_entry(run, self.synced_position);
        self.index
            .write_at(&entry, self.index_bytes)
            .on("append to", &index_path(&self.file.path))?;
        self.index_bytes += ENTRY_BYTES as u64;
        Ok(())
    }

    /// Cuts both files to what is in them and syncs them: the state of a log closed in order.
    pub(crate) fn trim(&mut self) -> Result<(), DiskError> {
        self.close_run()?;
        let file = Arc::clone(&self.file);
        let end = self.frame_bytes();
        // The frames' sync comes first: only then may the file end with them (LOG-6), and the index say so.
        file.file.sync().on("sync", &file.path)?;
        self.synced_position = end;
        let closed = Block {
            base_offset: self.end_offset,
            position: end,
            bytes: 0,
            record_count: 0,
            frame_count: 0,
            min_timestamp_ns: 0,
            max_timestamp_ns: 0,
            crc32c: 0,
            has_batches: false,
        };
        self.write_entry(&closed)?;
        let index_path = index_path(&file.path);
        self.index
            .set_len(self.index_bytes)
            .and_then(|()| self.index.sync())
            .on("trim", &index_path)?;
        file.file
            .set_len(end)
            .and_then(|()| file.file.sync())
            .on("trim", &file.path)
    }

    /// A view of all its frames.
    pub(crate) fn view(&self, sealed: bool) -> SegmentView {
        SegmentView {
            base_offset: self.base_offset(),
            end_offset: self.end_offset,
            file: Arc::clone(&self.file),
            blocks: self.blocks.blocks().into(),
            appended_at_ns: self.appended_at_ns,
            sealed,
        }
    }
}

fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}
