//! What the write-ahead log has for a segment, put back into it. How the records came there, and whether the frames are to be
//! believed in the end, it does not know.

use std::path::Path;
use std::sync::Arc;

use super::SegmentOnDisk;
use super::judge::whole_frames;
use crate::disk::DiskFile;
use crate::error::{DiskError, OnDisk};
use crate::segment::round_up;
use crate::wal::FoundRecord;

impl<'a> SegmentOnDisk<'a> {
    /// The records of this segment, whose file has so many bytes. Each holds the frames that it promises, and begins in or
    /// right behind what was there before it (LOG-13): what does not was made up.
    pub(super) fn records(&self, file_bytes: u64) -> Vec<&'a FoundRecord<'a>> {
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
pub(super) fn apply_records(
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
