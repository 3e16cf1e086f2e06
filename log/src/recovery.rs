//! Opening a segment: what of it counts, after a stop in order, a crash, or damage.
//!
//! First the records of the write-ahead log are put into the segment where its bytes differ, and count as runs of its index
//! from then on (`records`). Then it is judged where its frames end (`judge`, LOG-7), what stands behind them goes, and what an unclean
//! stop left is written again (`tail`, LOG-8). A sealed segment is not scanned.
//!
//! It knows one segment at a time: which of them there are, and what they make together, is for `partition::open`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use basalt_proto::{FrameLimits, Offset};

use crate::block::{Block, BlockBuilder};
use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk};
use crate::index::{Covered, ENTRY_BYTES, HEADER_BYTES, SegmentIdentity, boot_field};
use crate::segment::{Recovered, index_path, young_index_path};
use crate::view::{SegmentFile, SegmentView};
use crate::wal::FoundRecord;

mod finding;
mod judge;
mod names;
mod records;
mod stored_index;
mod tail;

pub use finding::Finding;
use finding::report;
use judge::Verdict;
pub(crate) use judge::judge;
pub(crate) use names::{SegmentNames, list_segments};
use records::apply_records;
pub(crate) use stored_index::load_index;
use stored_index::{LoadedIndex, index_with};
use tail::{end_with_frames, keep_aside, rewrite};

/// A segment as recovery found it.
pub(crate) enum RecoveredSegment {
    /// Sealed in order: not scanned.
    Sealed(SegmentView),
    /// To go on with, or to be sealed.
    Open(Box<Recovered>, IndexState),
}

/// Whether the index on disk can be appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexState {
    Usable,
    /// It must be written anew: the segment is sealed instead of continued.
    Damaged,
}

/// A segment's files and who they belong to.
pub(crate) struct SegmentOnDisk<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) path: &'a Path,
    pub(crate) identity: SegmentIdentity,
    pub(crate) seal_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) now_ns: u64,
    /// What the write-ahead log has for the partition.
    pub(crate) records: &'a [FoundRecord<'a>],
}

/// Opens one segment.
pub(crate) fn recover_segment(
    segment: &SegmentOnDisk<'_>,
    findings: &mut Vec<Finding>,
) -> Result<RecoveredSegment, DiskError> {
    let SegmentOnDisk {
        disk,
        path,
        identity,
        ..
    } = *segment;
    let file = disk.open(path).on("open", path)?;
    let mut file_bytes = file.len().on("read the length of", path)?;
    let LoadedIndex {
        mut index,
        young,
        stored,
    } = load_index(disk, path, &identity)?;
    if let Some(marker) = index.sealed {
        if marker.frame_bytes <= file_bytes {
            if marker.frame_bytes < file_bytes {
                // The crash came between sealing and trimming.
                file.set_len(marker.frame_bytes).on("trim", path)?;
            }
            let bytes = marker.frame_bytes;
            let file = SegmentFile::new(path.to_owned(), identity, file, bytes, bytes);
            file.distrust(&index.blocks);
            return Ok(RecoveredSegment::Sealed(SegmentView {
                base_offset: identity.base_offset,
                end_offset: marker.end_offset,
                file: Arc::new(file),
                blocks: index.blocks.into(),
                appended_at_ns: marker.appended_at_ns,
                sealed: true,
            }));
        }
        index.damage = Some(format!(
            "the segment is sealed at {} bytes but has {file_bytes}",
            marker.frame_bytes
        ));
    }
    let records = segment.records(file_bytes);
    if !records.is_empty() {
        apply_records(path, &records, &file)?;
        index.add_runs(records.iter().map(|record| record.run()));
        file_bytes = file_bytes.max(file.len().on("read the length of", path)?);
    }
    let index = LoadedIndex {
        index,
        young,
        stored,
    };
    recover_unsealed(segment, file, file_bytes, index, findings)
}

fn to_usize(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
}

fn recover_unsealed(
    segment: &SegmentOnDisk<'_>,
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    index: LoadedIndex,
    findings: &mut Vec<Finding>,
) -> Result<RecoveredSegment, DiskError> {
    let SegmentOnDisk {
        disk,
        path,
        identity,
        ..
    } = *segment;
    let LoadedIndex {
        index,
        young,
        stored,
    } = index;
    let index = &index;
    let expected = to_usize(segment.seal_bytes.max(file_bytes)).on("map", path)?;
    let map = file
        .map(to_usize(file_bytes).on("map", path)?, expected)
        .on("map", path)?;
    let published = index.published_in(&disk.boot_id());
    let data = map.bytes(0..map.readable());
    let verdict = judge(data, identity.base_offset, index, published);
    report(path, index, &verdict, file_bytes, findings);
    if file_bytes > verdict.end && (index.damage.is_some() || index.torn) {
        match keep_aside(disk, path, &file, verdict.end, findings) {
            // A torn index is what a crash leaves, and a full disk must not keep the rest from being read.
            Err(error) if error.is_full() && index.damage.is_none() => {
                tracing::warn!(path = %path.display(), %error, "a torn tail is cut without a copy");
            }
            kept => kept?,
        }
    }
    end_with_frames(&file, file_bytes, &verdict, path)?;
    let published = to_usize(verdict.end).on("map", path)?;
    if !verdict.closed {
        // After a failed fsync the kernel holds pages for clean that never reached the disk. What was just read from the
        // page cache is written again, so that settling covers it whatever came before (LOG-8). What the index's
        // entries say was synced had its sync.
        let from = index.entries_synced.min(verdict.end);
        let tail = to_usize(from).on("map", path)?..published;
        rewrite(&file, map.bytes(tail), from).on("rewrite the tail of", path)?;
    }
    let (blocks, end_offset) = rebuild_blocks(
        map.bytes(0..published),
        &identity,
        &verdict,
        segment.block_bytes,
    );
    drop(map);
    let index_path = if young {
        young_index_path(path)
    } else {
        index_path(path)
    };
    let ends = index.ends.iter().take_while(|end| **end <= verdict.end);
    let (entries, covered_position) = ends.fold((0, 0), |(count, _), end| (count + 1, *end));
    let kept_index_bytes = HEADER_BYTES + entries * ENTRY_BYTES;
    // Left as it is until a sound one takes its place: a crash from here on finds what this recovery found.
    let without = || (Arc::clone(&file), IndexState::Damaged);
    let (index_file, state) = match stored.filter(|_| index.damage.is_none()) {
        Some((index_file, bytes)) => {
            let boot = boot_field(&disk.boot_id());
            let header = identity.marked_header(verdict.end, end_offset, &boot);
            let bytes = index_with(bytes, &header, kept_index_bytes);
            match index_file.write_at(&bytes, 0).on("clear", &index_path) {
                Err(error) if error.is_full() => without(),
                written => {
                    written?;
                    (index_file, IndexState::Usable)
                }
            }
        }
        None => without(),
    };
    let covered_blocks = blocks
        .blocks()
        .partition_point(|block| block.end_position() <= covered_position);
    let file = SegmentFile::new(
        path.to_owned(),
        identity,
        file,
        verdict.end,
        expected as u64,
    );
    for damaged in &verdict.damaged {
        file.mark_damaged(damaged.position);
    }
    Ok(RecoveredSegment::Open(
        Box::new(Recovered {
            file: Arc::new(file),
            index: index_file,
            index_bytes: kept_index_bytes as u64,
            young,
            ends_for_sure: index.damage.is_none() && !index.torn && verdict.damaged.is_empty(),
            unsettled: young || !verdict.closed || covered_position < verdict.end,
            covered: Covered {
                // The last block may still grow.
                blocks: covered_blocks.min(blocks.blocks().len().saturating_sub(1)),
                position: covered_position,
            },
            blocks,
            allocated_bytes: verdict.end,
            end_offset,
            appended_at_ns: segment.now_ns,
        }),
        state,
    ))
}

/// The blocks of the frames that count. A damaged run stays a block of its own with the checksum it fails.
fn rebuild_blocks(
    data: &[u8],
    identity: &SegmentIdentity,
    verdict: &Verdict,
    block_bytes: u32,
) -> (BlockBuilder, Offset) {
    let mut blocks = BlockBuilder::new(block_bytes);
    let index = |position: u64| {
        usize::try_from(position)
            .unwrap_or(usize::MAX)
            .min(data.len())
    };
    let mut at = 0_u64;
    for run in &verdict.damaged {
        blocks.append(
            &data[index(at)..index(run.position)],
            at,
            FrameLimits::UNLIMITED,
        );
        blocks.push_damaged(*run);
        at = run.end_position();
    }
    blocks.append(&data[index(at)..], at, FrameLimits::UNLIMITED);
    let end_offset = blocks
        .blocks()
        .last()
        .map_or(identity.base_offset, Block::end_offset);
    (blocks, end_offset)
}
