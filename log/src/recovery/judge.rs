//! How far an unsealed segment counts. It is told bytes and what index and write-ahead log say of them, and knows no disk, so that
//! tests can hand in every torn file there is.
//!
//! *Kept* is the position up to which the index says the segment was on the disk, or, if the page cache is that of the boot that wrote
//! it, was whole there; what a crash can spoil lies after it.
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

use basalt_proto::{FrameLimits, FrameWalk, Offset};

use crate::block::{Block, crc32c};
use crate::index::ReadIndex;
use crate::segment::closed_bytes;

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
pub(super) fn whole_frames(data: &[u8], from: u64, to: u64, offset: Offset) -> (u64, Offset) {
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

/// Decides by the table above; `published` is up to where the page cache is known to hold whole frames.
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
