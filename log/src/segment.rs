//! The active segment: a preallocated file that one appender fills by `pwrite(2)`, mapped for its readers, and its growing
//! index.
//!
//! Blocks of the disk are allocated before bytes are written, for the frames and for the index entries that will cover them,
//! so that a full disk is an error before anything is appended and nowhere later.
//!
//! - **LOG-6**: an active segment's file is at least a byte longer than its frames, zeros after them, and whole pages long, until
//!   the log is closed in order or the segment sealed; what is closed in order is not whole pages long. So [`closed_bytes`]
//!   tells a file that no crash left, whatever frames it has and whichever of its lengths reached the disk.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basalt_proto::{FRAME_HEADER_BYTES, FrameHeader, Offset};

use crate::block::{Block, BlockBuilder};
use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk};
use crate::index::{BootField, Covered, IndexFile, SegmentIdentity};
use crate::view::{SegmentFile, SegmentView};

mod prepared;

pub(crate) use prepared::Prepared;

/// The first allocation of a segment: an almost idle partition costs little.
const FIRST_ALLOCATION_BYTES: u64 = 4 << 10;
/// Files are allocated in whole pages.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// So much is numbered, summed and written at a time: it stays in the processor's cache between the three.
const PIECE_BYTES: usize = 256 << 10;
/// Names of a segment made ahead, before it is known at which offset it begins.
pub(crate) const PREPARED_SEGMENT: &str = "next.seg";
pub(crate) const PREPARED_INDEX: &str = "next.idx";

thread_local! {
    /// Where frames get their offsets before they are written.
    static PIECE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn segment_path(dir: &Path, base_offset: Offset) -> PathBuf {
    dir.join(format!("{:020}.seg", base_offset.0))
}

pub(crate) fn index_path(segment_path: &Path) -> PathBuf {
    segment_path.with_extension("idx")
}

/// The name of an index before its segment was settled once.
pub(crate) fn young_index_path(segment_path: &Path) -> PathBuf {
    segment_path.with_extension("new")
}

/// The segment that takes appends.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) index: Arc<IndexFile>,
    /// Set once it was settled: its names are durable, and its index has its own.
    pub(crate) named: Arc<AtomicBool>,
    blocks: BlockBuilder,
    /// It is sealed before it would grow past this.
    seal_bytes: u64,
    allocated_bytes: u64,
    /// What the next commit begins with: all before it is durable or about to be.
    pub(crate) committed_position: u64,
    pub(crate) committed_offset: Offset,
    end_offset: Offset,
    /// Set while both files are as after a stop in order.
    trimmed: bool,
    pub(crate) appended_at_ns: u64,
}

/// What a recovered segment goes on with.
pub(crate) struct Recovered {
    pub(crate) file: Arc<SegmentFile>,
    /// Its index, and where the entries in it that count end; the file is the segment's own where the index is damaged.
    pub(crate) index: Arc<dyn DiskFile>,
    pub(crate) index_bytes: u64,
    /// Whether it was never settled.
    pub(crate) young: bool,
    /// Whether its index reads to its end.
    pub(crate) ends_for_sure: bool,
    /// Whether the log must settle it before anyone reads it.
    pub(crate) unsettled: bool,
    pub(crate) covered: Covered,
    pub(crate) blocks: BlockBuilder,
    pub(crate) allocated_bytes: u64,
    pub(crate) end_offset: Offset,
    pub(crate) appended_at_ns: u64,
}

impl Active {
    /// Creates the files of a new segment. Nothing is synced: [`settle_names`] makes them durable. With `first_bytes` 0 no
    /// block is allocated yet.
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
            let _ = disk.remove_file(&young_index_path(&path));
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
        disk.make_dir_all(dir).on("create", dir)?;
        // The index's name first: a segment that has neither name of an index has lost it.
        let young = young_index_path(path);
        let index = disk.create(&young).on("create", &young)?;
        let index = IndexFile::create(path, identity, index)?;
        let file = disk.create(path).on("create", path)?;
        let file = SegmentFile::new(path.to_owned(), identity, file, 0, seal_bytes);
        Ok(Self {
            file: Arc::new(file),
            index: Arc::new(index),
            named: Arc::new(AtomicBool::new(false)),
            blocks: BlockBuilder::new(block_bytes),
            seal_bytes,
            allocated_bytes: 0,
            committed_position: 0,
            committed_offset: identity.base_offset,
            end_offset: identity.base_offset,
            trimmed: false,
            appended_at_ns: 0,
        })
    }

    /// Goes on with a segment that recovery has read. All in it counts as committed: the log settles it before it is used.
    pub(crate) fn from_recovered(recovered: Recovered, seal_bytes: u64) -> Self {
        let path = &recovered.file.path;
        let index = IndexFile::new(
            if recovered.young {
                young_index_path(path)
            } else {
                index_path(path)
            },
            recovered.file.identity,
            recovered.index,
            recovered.index_bytes,
            recovered.covered,
        );
        Self {
            committed_position: recovered.file.published(),
            committed_offset: recovered.end_offset,
            file: recovered.file,
            index: Arc::new(index),
            named: Arc::new(AtomicBool::new(!recovered.young)),
            blocks: recovered.blocks,
            seal_bytes,
            allocated_bytes: recovered.allocated_bytes,
            trimmed: !recovered.unsettled,
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
        self.file.published()
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        self.blocks.blocks()
    }

    /// Bytes that still fit before it is to be sealed.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.seal_bytes.saturating_sub(self.frame_bytes())
    }

    /// Whether it is time to make the next segment.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.frame_bytes() >= self.seal_bytes / 4 * 3
    }

    /// Makes an empty segment able to hold a frame of `bytes`, if it is larger than segments are.
    pub(crate) fn widen(&mut self, bytes: u64) {
        assert_eq!(self.frame_bytes(), 0, "only an empty segment is widened");
        if bytes <= self.room_bytes() {
            return;
        }
        let SegmentFile {
            path,
            identity,
            file,
            ..
        } = &*self.file;
        let file = Arc::clone(file);
        self.file = Arc::new(SegmentFile::new(path.clone(), *identity, file, 0, bytes));
        self.seal_bytes = bytes;
    }

    /// Allocates what an append of `bytes` needs: blocks for the frames, one byte more (LOG-6), and room for the index
    /// entries of all that has none.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Result<(), DiskError> {
        if bytes == 0 {
            return Ok(());
        }
        let uncovered = self.blocks().len() - self.index.covered().blocks;
        let coming = usize::try_from(bytes / self.blocks.block_bytes()).unwrap_or(usize::MAX);
        self.index.make_room(uncovered.saturating_add(coming) + 2)?;
        let needed = round_up(self.frame_bytes() + bytes + 1);
        if needed <= self.allocated_bytes {
            return Ok(());
        }
        let generous = self
            .allocated_bytes
            .saturating_mul(4)
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

    /// Writes whole frames to the tail, numbering them from [`Self::end_offset`]. [`Self::make_room`] came before.
    ///
    /// # Errors
    /// [`DiskError`] when the disk refused: the frames are not published, and what was written of them is in the way of
    /// others, so that nothing more may be appended.
    pub(crate) fn append(&mut self, frames: &[u8], now_ns: u64) -> Result<(), DiskError> {
        let start = self.frame_bytes();
        assert!(
            start + (frames.len() as u64) < self.allocated_bytes,
            "room is made before an append (LOG-6)"
        );
        let (mut position, mut offset) = (start, self.end_offset);
        self.trimmed = false;
        let before = self.blocks.mark();
        let written = PIECE.with_borrow_mut(|piece| {
            for whole in pieces(frames) {
                piece.clear();
                piece.extend_from_slice(whole);
                offset = self.blocks.number(piece, position, offset);
                self.file
                    .file
                    .write_at(piece, position)
                    .on("append to", &self.file.path)?;
                position += piece.len() as u64;
            }
            // A single large frame must not hold its memory for good.
            piece.shrink_to(2 * PIECE_BYTES);
            Ok(())
        });
        if let Err(error) = written {
            // Readers go by the blocks: they end with what is published.
            self.blocks.undo(&before);
            return Err(error);
        }
        self.file.publish(frames.len() as u64);
        self.end_offset = offset;
        self.appended_at_ns = now_ns;
        Ok(())
    }

    /// Marks all frames as whole in the page cache (LOG-3).
    pub(crate) fn mark_published(&self, boot: &BootField) -> Result<(), DiskError> {
        self.index
            .publish(self.frame_bytes(), self.end_offset, boot)
    }

    /// Whether both files are as after a stop in order.
    pub(crate) fn is_trimmed(&self) -> bool {
        self.trimmed
    }

    /// Leaves the word of a stop in order in the index. All frames are settled. The index must be synced before
    /// [`Self::cut`].
    pub(crate) fn write_closed(&self) -> Result<(), DiskError> {
        self.index.close(self.frame_bytes(), self.end_offset)
    }

    /// Cuts the file to its frames: with a sync of it that is the state of a log closed in order.
    pub(crate) fn cut(&self) -> Result<(), DiskError> {
        let end = self.frame_bytes();
        let bytes = if end == 0 { 0 } else { closed_bytes(end) };
        self.file.file.set_len(bytes).on("trim", &self.file.path)
    }

    /// What [`Self::cut`] did is synced.
    pub(crate) fn set_trimmed(&mut self) {
        self.trimmed = true;
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

/// The frames and the index of a segment are durable: gives the index its name and makes the names durable, unless they
/// are.
pub(crate) fn settle_names(
    disk: &dyn Disk,
    segment_path: &Path,
    named: &AtomicBool,
) -> Result<(), DiskError> {
    if named.load(Ordering::Acquire) {
        return Ok(());
    }
    rename_index(disk, segment_path, named)?;
    let dir = segment_path.parent().unwrap_or(Path::new("."));
    disk.sync_dir(dir).on("sync", dir)?;
    named.store(true, Ordering::Release);
    Ok(())
}

/// Gives a young index its name, which is not durable yet.
pub(crate) fn rename_index(
    disk: &dyn Disk,
    segment_path: &Path,
    named: &AtomicBool,
) -> Result<(), DiskError> {
    if named.load(Ordering::Acquire) {
        return Ok(());
    }
    let (young, path) = (young_index_path(segment_path), index_path(segment_path));
    match disk.rename(&young, &path) {
        // By an earlier try, whose sync failed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.on("rename to", &path),
    }
}

/// Cuts frames into pieces of whole frames of about [`PIECE_BYTES`].
fn pieces(frames: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = frames;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = if rest.len() <= PIECE_BYTES {
            rest.len()
        } else {
            whole_frames_up_to(rest, PIECE_BYTES)
        };
        let (piece, after) = rest.split_at(cut);
        rest = after;
        Some(piece)
    })
}

/// Bytes of the whole frames at the start of `frames` that fit `bytes`, but of one at least.
fn whole_frames_up_to(frames: &[u8], bytes: usize) -> usize {
    let mut end = 0;
    for frame_bytes in frame_lengths(frames).map(|(frame_bytes, _)| frame_bytes) {
        if end > 0 && end + frame_bytes > bytes {
            break;
        }
        end += frame_bytes;
    }
    end
}

/// Length and record count of each frame in checked frames.
pub(crate) fn frame_lengths(frames: &[u8]) -> impl Iterator<Item = (usize, u32)> {
    let mut rest = frames;
    std::iter::from_fn(move || {
        let header = FrameHeader::decode(rest.first_chunk::<FRAME_HEADER_BYTES>()?).ok()?;
        let bytes = usize::try_from(header.frame_bytes()).ok()?;
        rest = rest.get(bytes..)?;
        Some((bytes, header.record_count))
    })
}

/// How long the file of a segment is after a stop in order, when its frames end at `end` (LOG-6).
pub(crate) fn closed_bytes(end: u64) -> u64 {
    if end.is_multiple_of(PAGE_BYTES) {
        end + 1
    } else {
        end
    }
}

pub(crate) fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}
