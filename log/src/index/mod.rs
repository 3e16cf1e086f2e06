//! The `.idx` file beside a segment: what of its frames was written whole, in what blocks, under which checksums.
//!
//! The log is the truth: an index that is missing or damaged is rebuilt from its segment. What only the index knows is
//! how far an append had got when the machine stopped, which is how a torn tail is told from stored frames.
//!
//! All numbers big-endian.
//!
//! Header, 128 bytes:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `BSLTIDX2` |
//! | 8 | 8 | topic id |
//! | 16 | 4 | partition |
//! | 24 | 8 | base offset of the segment |
//! | 60 | 4 | CRC-32C of the 60 bytes before |
//! | 64 | 64 | the published mark: an entry of kind 5, rewritten in place; zeros if nothing was acknowledged from the page cache |
//!
//! Entry, 64 bytes:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 block, 2 sealed, 3 run, 4 closed, 5 published |
//! | 1 | 1 | bit 0: holds batch frames |
//! | 2 | 2 | 0 |
//! | 4 | 4 | frames (of a block) |
//! | 8 | 8 | base offset; of a marker or mark the segment's end offset |
//! | 16 | 8 | position; of a marker or mark the segment's length |
//! | 24 | 8 | bytes; of a sealed marker the number of entries before it; of a closed marker 0; of a published mark 36 bytes: the name of the boot, padded with zeros |
//! | 32 | 8 | offsets spanned |
//! | 40 | 8 | smallest stamp, ns; of a run or closed marker the position up to which the segment was known to be on the disk; of a sealed marker the broker's time of the last append |
//! | 48 | 8 | largest stamp, ns |
//! | 56 | 4 | CRC-32C of the block's or run's bytes; of a sealed marker of the entries before it |
//! | 60 | 4 | CRC-32C of the header's CRC and the 60 bytes before, so that an entry counts only in its own file |
//!
//! While a segment is active its index is a list of runs, appended and never rewritten: one for each block that was full
//! when its bytes were synced, and one for what there was of the last block. The next sync's runs begin again with that block,
//! now longer, so that runs overlap: a longer one counts where its bytes match, else the shorter. A stop in order adds a
//! closed marker. Sealing replaces the file by one with full blocks and the sealed marker.
//!
//! The index of a segment that was never settled is called `.new` instead of `.idx`: it may say anything after a crash of the
//! machine, and only its published mark counts. With the first settling it gets its name, after its bytes are durable.
//! So a segment that has neither has lost its index, and its frames speak for themselves.
//!
//! - **LOG-3**: an append is acknowledged at level `fsync` only after a synced entry covers it, here or in the write-ahead
//!   log; at level `os` only after the published mark does, which counts as long as the page cache that held both is alive.

use basalt_proto::{Offset, PartitionId};

use crate::topic::TopicId;

mod decode;
mod encode;
mod file;
#[cfg(test)]
mod tests;

pub(crate) use decode::{ReadIndex, read_index, read_young_index};
pub(crate) use file::{Covered, IndexFile};

pub(crate) const HEADER_BYTES: usize = 128;
pub(crate) const ENTRY_BYTES: usize = 64;
const PUBLISHED_AT: usize = 64;
const MAGIC: &[u8; 8] = b"BSLTIDX2";
const BOOT_AT: usize = 24;
const KIND_BLOCK: u8 = 1;
const KIND_SEALED: u8 = 2;
const KIND_RUN: u8 = 3;
const KIND_CLOSED: u8 = 4;
const KIND_PUBLISHED: u8 = 5;
const CRC_AT: usize = 60;

/// Whose segment an index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentIdentity {
    pub(crate) topic_id: TopicId,
    pub(crate) partition: PartitionId,
    pub(crate) base_offset: Offset,
}

/// The name of a boot of the machine as it stands in files.
pub(crate) type BootField = [u8; BOOT_BYTES];
pub(crate) const BOOT_BYTES: usize = 36;

pub(crate) fn boot_field(boot_id: &str) -> BootField {
    let mut field = [0; BOOT_BYTES];
    let bytes = &boot_id.as_bytes()[..boot_id.len().min(BOOT_BYTES)];
    field[..bytes.len()].copy_from_slice(bytes);
    field
}

impl SegmentIdentity {
    pub(crate) fn new(topic_id: TopicId, partition: PartitionId, base_offset: Offset) -> Self {
        Self {
            topic_id,
            partition,
            base_offset,
        }
    }
}
