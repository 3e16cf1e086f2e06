//! Opening a partition's folder: what of each segment counts, after a stop in order, a crash, or damage.
//!
//! First the records of the write-ahead log are put into the segment where its bytes differ, and count as runs of its index
//! from then on. How the end of an unsealed segment is then found: *kept* is the position up to which the index says the segment
//! was on the disk, or, if the page cache is that of the boot that wrote it, was whole there; what a crash can spoil lies
//! after it.
//!
//! | what is found | the frames that count |
//! |---|---|
//! | the file ends with its last whole frame or run, as no crash leaves it (LOG-6) | all; a run that fails its checksum is damage |
//! | the file is shorter than kept: it was cut from outside | all whole frames |
//! | the index is missing | all whole frames: the log is the truth |
//! | else: a crash | those of the runs that match their checksums, and up to kept in any case: what follows was never acknowledged at a level that survives this |
//!
//! A run below kept that fails its checksum is damage in the middle: it is reported with file and position, kept, and
//! refused to readers; the rest stays readable.
//!
//! - **LOG-7**: recovery removes no frame that was acknowledged at a level that survives what happened.
//! - **LOG-8**: what recovery accepts is written to the disk anew, and settled before anyone may read it: by the log, which
//!   does it for all partitions together.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use basalt_proto::{FrameLimits, FrameWalk, Offset, PartitionId};

use crate::block::{Block, BlockBuilder, crc32c};
use crate::disk::{Disk, DiskFile, replace_file};
use crate::error::{DiskError, OnDisk};
use crate::index::{
    Covered, ENTRY_BYTES, HEADER_BYTES, ReadIndex, SegmentIdentity, boot_field, read_index,
    read_young_index,
};
use crate::segment::{
    PAGE_BYTES, PREPARED_INDEX, PREPARED_SEGMENT, Recovered, closed_bytes, index_path, round_up,
    young_index_path,
};
use crate::topic::TopicId;
use crate::view::{SegmentFile, SegmentView};
use crate::wal::FoundRecord;

/// What follows the frames and is cheaper to write than to have cleared by the file system.
const SMALL_TAIL_BYTES: usize = 64 << 10;

/// Something wrong with a file, for the log of the server and for `basalt check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which file.
    pub path: PathBuf,
    /// Where in it.
    pub position: u64,
    /// What is wrong.
    pub what: String,
}

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

/// How far an unsealed segment counts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Where its last frame that counts ends.
    pub(crate) end: u64,
    /// Stretches that are kept although their bytes fail their checksum or are no frames.
    pub(crate) damaged: Vec<Block>,
    /// Whether it was left by a stop in order, so that the disk holds what the page cache does.
    pub(crate) closed: bool,
}

/// Where whole frames, numbered without a hole from `offset`, end in `data[from..to]`, and the offset after them.
fn whole_frames(data: &[u8], from: u64, to: u64, offset: Offset) -> (u64, Offset) {
    let clamp = |position: u64| {
        usize::try_from(position)
            .unwrap_or(usize::MAX)
            .min(data.len())
    };
    let mut walk = FrameWalk::new(&data[clamp(from)..clamp(to)], FrameLimits::UNLIMITED);
    let mut expected = offset;
    loop {
        let end = walk.position();
        match walk.next() {
            Some(Ok(frame)) if frame.header.offset == expected && frame.header.record_count > 0 => {
                expected = frame.header.end_offset();
            }
            _ => return (from + end as u64, expected),
        }
    }
}

/// Decides by the table above; `published` is up to where the page cache is known to hold whole frames. Pure, so that tests
/// can hand in every torn file there is.
pub(crate) fn judge(
    data: &[u8],
    base_offset: Offset,
    index: &ReadIndex,
    (published, published_offset): (u64, Offset),
) -> Verdict {
    let kept = index.synced_position.max(published);
    let whole = follow_runs(data, base_offset, index, u64::MAX);
    let (end, _) = whole_frames(data, whole.end, data.len() as u64, whole.end_offset);
    let closed = !data.is_empty() && closed_bytes(end) == data.len() as u64;
    if closed || kept > data.len() as u64 || index.missing {
        return Verdict {
            end,
            damaged: whole.damaged,
            closed,
        };
    }
    let mut crashed = follow_runs(data, base_offset, index, kept);
    if crashed.end < published {
        // Frames in the page cache that had no entry yet.
        let (end, end_offset) = whole_frames(data, crashed.end, published, crashed.end_offset);
        if end < published {
            let damaged = damage(end, end_offset, published, published_offset);
            crashed.damaged.push(damaged);
        }
        crashed.end = published;
    }
    Verdict {
        end: crashed.end,
        damaged: crashed.damaged,
        closed,
    }
}

/// A stretch that is kept and not served.
fn damage(from: u64, from_offset: Offset, to: u64, to_offset: Offset) -> Block {
    Block {
        base_offset: from_offset,
        position: from,
        bytes: to.saturating_sub(from),
        // What promised less was made up: a block spans offsets, or it would be passed over.
        record_count: to_offset.0.saturating_sub(from_offset.0).max(1),
        frame_count: 0,
        min_timestamp_ns: 0,
        max_timestamp_ns: u64::MAX,
        crc32c: 0,
        has_batches: true,
    }
}

struct Followed {
    end: u64,
    end_offset: Offset,
    damaged: Vec<Block>,
}

/// Follows the runs of an index from the segment's start. Runs overlap: of those that go on from where it has got, the
/// longest that matches its bytes counts. What matches nothing below `kept` is kept as damage; after it, it ends the segment.
fn follow_runs(data: &[u8], base_offset: Offset, index: &ReadIndex, kept: u64) -> Followed {
    let mut runs: Vec<&Block> = index.blocks.iter().collect();
    runs.sort_by_key(|run| (run.position, std::cmp::Reverse(run.bytes)));
    let mut at = Followed {
        end: 0,
        end_offset: base_offset,
        damaged: Vec::new(),
    };
    for run in runs {
        let range = usize::try_from(run.position)
            .ok()
            .zip(usize::try_from(run.end_position()).ok());
        let Some(bytes) = range.and_then(|(from, to)| data.get(from..to)) else {
            continue;
        };
        if run.end_position() <= at.end {
            continue;
        }
        if run.position > at.end {
            // The entries of this stretch are lost: its frames speak for themselves.
            if run.position > kept {
                break;
            }
            let (end, end_offset) = whole_frames(data, at.end, run.position, at.end_offset);
            if end < run.position {
                at.take_damage(damage(end, end_offset, run.position, run.base_offset));
            } else if end_offset == run.base_offset {
                (at.end, at.end_offset) = (end, end_offset);
            } else {
                // Its frames are numbered otherwise than those before it: it was made up.
                continue;
            }
        }
        // Bytes that match and are not the frames that were promised: an index or a write-ahead log that was made up.
        let is_sound = crc32c(bytes) == run.crc32c && at.goes_on(data, run);
        if is_sound {
            (at.end, at.end_offset) = (run.end_position(), run.end_offset());
        } else if run.end_position() <= kept {
            let (from, to) = (at.end, run.end_position());
            at.take_damage(damage(from, at.end_offset, to, run.end_offset()));
        }
        // Else a shorter run, or the bytes of the write-ahead log, may go on from here.
    }
    at
}

impl Followed {
    /// Takes a stretch that begins where it has got.
    fn take_damage(&mut self, damaged: Block) {
        (self.end, self.end_offset) = (damaged.end_position(), damaged.end_offset());
        self.damaged.push(damaged);
    }

    /// Whether the frames up to a run's end go on from here and are those that it promises.
    fn goes_on(&mut self, data: &[u8], run: &Block) -> bool {
        let ends_so = |from, offset| {
            let end = run.end_position();
            whole_frames(data, from, end, offset) == (end, run.end_offset())
        };
        if ends_so(self.end, self.end_offset) {
            return true;
        }
        // Nothing proves which offsets a damaged stretch spans, so what is sound behind it knows better.
        let before = self.damaged.last_mut().filter(|before| {
            before.end_position() == run.position && before.base_offset < run.base_offset
        });
        let Some(before) = before.filter(|_| ends_so(run.position, run.base_offset)) else {
            return false;
        };
        before.record_count = run.base_offset.0 - before.base_offset.0;
        true
    }
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

impl<'a> SegmentOnDisk<'a> {
    /// The records of this segment, whose file has so many bytes. Each holds the frames that it promises, and begins in or
    /// right behind what was there before it (LOG-13): what does not was made up.
    fn records(&self, file_bytes: u64) -> Vec<&'a FoundRecord<'a>> {
        let (segment, mut reach) = (self.identity.base_offset, file_bytes);
        let of_this = self.records.iter();
        of_this
            .filter(|record| record.header.segment == segment)
            .take_while(|record| {
                let run = record.run();
                let follows = run.position <= reach;
                reach = reach.max(run.end_position());
                let frames = whole_frames(record.frames, 0, run.bytes, run.base_offset);
                follows && frames == (run.bytes, run.end_offset())
            })
            .collect()
    }
}

/// Puts the bytes of records into a segment where they are not there. What it writes is not synced.
fn apply_records(
    path: &Path,
    records: &[&FoundRecord<'_>],
    file: &Arc<dyn DiskFile>,
) -> Result<(), DiskError> {
    let end = records
        .iter()
        .map(|record| record.run().end_position())
        .max();
    let Some(end) = end else { return Ok(()) };
    let bytes = file.len().on("read the length of", path)?;
    if bytes <= end {
        // A byte more than the frames: it must not look closed in order (LOG-6).
        file.allocate(round_up(end + 1)).on("grow", path)?;
    }
    let mut there = Vec::new();
    for record in records {
        let position = record.run().position;
        there.resize(record.frames.len(), 0);
        file.read_at(&mut there, position).on("read", path)?;
        if there != record.frames {
            file.write_at(record.frames, position)
                .on("put the write-ahead log into", path)?;
        }
    }
    Ok(())
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

/// The index of a segment.
pub(crate) struct LoadedIndex {
    pub(crate) index: ReadIndex,
    /// Whether it is one that was never settled.
    young: bool,
    /// Its file and the bytes in it, if there is one.
    stored: Option<(Arc<dyn DiskFile>, Vec<u8>)>,
}

pub(crate) fn load_index(
    disk: &dyn Disk,
    segment_path: &Path,
    identity: &SegmentIdentity,
) -> Result<LoadedIndex, DiskError> {
    let read = |path: &Path| {
        let opened = disk.open(path);
        let read = opened.and_then(|file| file.read_all().map(|bytes| (file, bytes)));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).on("read", path),
        }
    };
    let mut young = false;
    let mut stored = read(&index_path(segment_path))?;
    if stored.is_none() {
        stored = read(&young_index_path(segment_path))?;
        young = stored.is_some();
    }
    let bytes = stored.as_ref().map_or(&[][..], |(_, bytes)| bytes);
    let index = if young {
        read_young_index(bytes, identity)
    } else {
        read_index(bytes, identity)
    };
    Ok(LoadedIndex {
        index,
        young,
        stored,
    })
}

fn to_usize(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// An index as it was read, with this header and nothing behind the entries that were kept.
///
/// What counts and has no entry yet is marked until it has; what was cut is vouched for no more. The file is not cut: it has room for
/// the entries that are lacking, which a full disk would not give again. All of it is written, since entries that were read may be in
/// the page cache alone (LOG-8).
fn index_with(mut bytes: Vec<u8>, header: &[u8; HEADER_BYTES], kept: usize) -> Vec<u8> {
    bytes.resize(bytes.len().max(HEADER_BYTES), 0);
    bytes[..HEADER_BYTES].copy_from_slice(header);
    bytes[kept..].fill(0);
    bytes
}

/// Takes away what stands behind the frames that count.
fn end_with_frames(
    file: &Arc<dyn DiskFile>,
    file_bytes: u64,
    verdict: &Verdict,
    path: &Path,
) -> Result<(), DiskError> {
    if file_bytes > verdict.end && !file_bytes.is_multiple_of(PAGE_BYTES) {
        // No crash left it: it was cut from outside, somewhere in a frame. Its frames are made sure of before it ends with
        // them, as if it had been closed in order (LOG-6).
        let cut = file
            .sync()
            .and_then(|()| file.set_len(closed_bytes(verdict.end)));
        cut.on("cut the torn tail of", path)?;
    } else if file_bytes > verdict.end && !verdict.closed {
        // What does not count must not be taken for frames by a later recovery. It is not cut off: a file that ends with its
        // frames is believed to have been closed in order, with all of them on the disk (LOG-6), and these are not yet.
        clear_tail(file, verdict.end, file_bytes).on("clear the torn tail of", path)?;
    }
    Ok(())
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
    let kept_index_bytes = (HEADER_BYTES + entries * ENTRY_BYTES) as u64;
    // Left as it is until a sound one takes its place: a crash from here on finds what this recovery found.
    let without = || (Arc::clone(&file), IndexState::Damaged);
    let (index_file, state) = match stored.filter(|_| index.damage.is_none()) {
        Some((index_file, bytes)) => {
            let boot = boot_field(&disk.boot_id());
            let header = identity.marked_header(verdict.end, end_offset, &boot);
            let kept = HEADER_BYTES + entries * ENTRY_BYTES;
            let bytes = index_with(bytes, &header, kept);
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
            index_bytes: kept_index_bytes,
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

/// Makes what follows the frames that count zero.
fn clear_tail(file: &Arc<dyn DiskFile>, end: u64, file_bytes: u64) -> io::Result<()> {
    match usize::try_from(file_bytes - end) {
        // Of a small file the page would be written in any case.
        Ok(bytes) if bytes <= SMALL_TAIL_BYTES => file.write_at(&vec![0; bytes], end),
        _ => file.zero_from(end),
    }
}

/// Writes the bytes a file holds over themselves, by way of a buffer since they are mapped from it.
fn rewrite(file: &Arc<dyn DiskFile>, bytes: &[u8], from: u64) -> io::Result<()> {
    let mut position = from;
    for piece in bytes.chunks(1 << 20) {
        let copy = piece.to_vec();
        file.write_at(&copy, position)?;
        position += piece.len() as u64;
    }
    Ok(())
}

/// Where the index does not read to its end, what is cut may be a torn tail or acknowledged records: it is put beside the
/// segment first.
fn keep_aside(
    disk: &dyn Disk,
    path: &Path,
    file: &Arc<dyn DiskFile>,
    end: u64,
    findings: &mut Vec<Finding>,
) -> Result<(), DiskError> {
    let bytes = file.read_all().on("read", path)?;
    let rest = &bytes[usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len())..];
    let Some(last) = rest.iter().rposition(|byte| *byte != 0) else {
        return Ok(());
    };
    let aside = path.with_extension("cut");
    replace_file(disk, &aside, &rest[..=last]).on("write", &aside)?;
    let what = format!(
        "{} bytes that are cut from the segment are kept in {}",
        last + 1,
        aside.display()
    );
    findings.push(Finding {
        path: path.to_owned(),
        position: end,
        what,
    });
    Ok(())
}

fn report(
    path: &Path,
    index: &ReadIndex,
    verdict: &Verdict,
    file_bytes: u64,
    findings: &mut Vec<Finding>,
) {
    let mut find = |position: u64, what: String| {
        findings.push(Finding {
            path: path.to_owned(),
            position,
            what,
        })
    };
    // A segment without a frame may have been cut off in the making: its index is nothing to miss.
    if let Some(damage) = index.damage.as_ref().filter(|_| verdict.end > 0) {
        find(0, format!("{damage}; it is rebuilt from the segment"));
    }
    for run in &verdict.damaged {
        let what = format!(
            "{} bytes fail their checksum (offsets {} to {}); they are kept and not served",
            run.bytes,
            run.base_offset,
            run.end_offset()
        );
        find(run.position, what);
    }
    let promised = index.blocks.last().map_or(0, Block::end_position);
    if promised > verdict.end {
        find(
            verdict.end,
            format!(
                "torn after this byte ({promised} were begun, the file has {file_bytes}); cut there"
            ),
        );
    }
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

/// What is in a partition's folder.
pub(crate) struct SegmentNames {
    /// Base offsets of the segments, in order.
    pub(crate) bases: Vec<Offset>,
    /// Names that do not belong there.
    pub(crate) strange: Vec<String>,
    /// Files of a segment that was made ahead.
    pub(crate) prepared: Vec<String>,
    /// Whether there is a reservation.
    pub(crate) is_reserved: bool,
}

/// Looks at the names in a partition's folder.
pub(crate) fn list_segments(disk: &dyn Disk, dir: &Path) -> Result<SegmentNames, DiskError> {
    let names = disk.list(dir).on("list", dir)?;
    let base = |name: &str| {
        name.strip_suffix(".seg")
            .filter(|digits| digits.len() == 20)?
            .parse()
            .ok()
            .map(Offset)
    };
    let mut bases: Vec<Offset> = names.iter().filter_map(|name| base(name)).collect();
    bases.sort_unstable();
    let known = |name: &String| {
        let index_base = name
            .strip_suffix(".idx")
            .or_else(|| name.strip_suffix(".new"))
            .map(|digits| format!("{digits}.seg"));
        base(name).is_some()
            || index_base
                .is_some_and(|segment| base(&segment).is_some_and(|base| bases.contains(&base)))
            || name == crate::reserve::FILE_NAME
            || name == PREPARED_SEGMENT
            || name == PREPARED_INDEX
            || name.ends_with(".cut")
    };
    let strange = names.iter().filter(|name| !known(name)).cloned().collect();
    let is_reserved = names.iter().any(|name| name == crate::reserve::FILE_NAME);
    let is_prepared = |name: &String| name == PREPARED_SEGMENT || name == PREPARED_INDEX;
    Ok(SegmentNames {
        strange,
        is_reserved,
        prepared: names
            .iter()
            .filter(|name| is_prepared(name))
            .cloned()
            .collect(),
        bases,
    })
}

pub(crate) fn identity(
    topic_id: TopicId,
    partition: PartitionId,
    base_offset: Offset,
) -> SegmentIdentity {
    SegmentIdentity {
        topic_id,
        partition,
        base_offset,
    }
}
