//! What an index says, as far as it can be believed. Anything may be in the file; the segment's own bytes are not looked at.

use basalt_proto::Offset;

use super::{
    BOOT_AT, BOOT_BYTES, BootField, CRC_AT, ENTRY_BYTES, HEADER_BYTES, KIND_BLOCK, KIND_CLOSED,
    KIND_PUBLISHED, KIND_RUN, KIND_SEALED, PUBLISHED_AT, SegmentIdentity, boot_field,
};
use crate::block::{Block, crc32c};

/// What a sealed marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealedMarker {
    pub(crate) end_offset: Offset,
    pub(crate) frame_bytes: u64,
    pub(crate) appended_at_ns: u64,
}

/// A published mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishedMark {
    pub(crate) position: u64,
    pub(crate) end_offset: Offset,
    pub(crate) boot: BootField,
}

/// An index as read from disk, as far as it can be believed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadIndex {
    /// Blocks or runs that check, in order. After damage there may be holes between them.
    pub(crate) blocks: Vec<Block>,
    /// Up to where the segment was known to be on the disk when an entry was written.
    pub(crate) synced_position: u64,
    /// The same, by its own entries alone.
    pub(crate) entries_synced: u64,
    /// Where each entry that checks says the segment's frames had got: a block's or run's end, a marker's position.
    pub(crate) ends: Vec<u64>,
    /// There if the segment was sealed and the whole index is sound.
    pub(crate) sealed: Option<SealedMarker>,
    /// Set when something in the file cannot come from a crash while entries were appended one after the other.
    pub(crate) damage: Option<String>,
    /// Whether bytes that are no entry follow the last one: what a crash leaves, but also what a hand can.
    pub(crate) torn: bool,
    /// Whether nothing of it can be believed, so that only the segment itself can speak.
    pub(crate) missing: bool,
    pub(crate) published: Option<PublishedMark>,
}

impl ReadIndex {
    /// Up to where the frames are whole in the page cache, which still is that of the boot in which they were written.
    pub(crate) fn published_in(&self, boot_id: &str) -> (u64, Offset) {
        let alive = |mark: &PublishedMark| !boot_id.is_empty() && mark.boot == boot_field(boot_id);
        self.published
            .filter(alive)
            .map_or((0, Offset::ZERO), |mark| (mark.position, mark.end_offset))
    }

    /// Adds runs that the write-ahead log knows of; the bytes they name were applied to the segment.
    pub(crate) fn add_runs(&mut self, runs: impl IntoIterator<Item = Block>) {
        for run in runs {
            // A run is only written there once everything before it is durable (LOG-13).
            self.synced_position = self.synced_position.max(run.position);
            self.blocks.push(run);
        }
    }
}

fn be_u64(entry: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&entry[at..at + 8]);
    u64::from_be_bytes(bytes)
}

fn be_u32(entry: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&entry[at..at + 4]);
    u32::from_be_bytes(bytes)
}

/// One slot of an index that checks.
enum Slot {
    Block(Block),
    Run(Block, u64),
    Closed(u64),
    Sealed(SealedMarker, u64, u32),
    Published(PublishedMark),
}

fn read_slot(entry: &[u8], identity: &SegmentIdentity) -> Option<Slot> {
    let entry = <&[u8; ENTRY_BYTES]>::try_from(entry).ok()?;
    if identity.entry_crc(entry) != be_u32(entry, CRC_AT) {
        return None;
    }
    let mut block = Block {
        base_offset: Offset(be_u64(entry, 8)),
        position: be_u64(entry, 16),
        bytes: be_u64(entry, 24),
        record_count: be_u64(entry, 32),
        frame_count: be_u32(entry, 4),
        min_timestamp_ns: be_u64(entry, 40),
        max_timestamp_ns: be_u64(entry, 48),
        crc32c: be_u32(entry, 56),
        has_batches: entry[1] & 1 == 1,
    };
    let field = block.min_timestamp_ns;
    let sound = block.position.checked_add(block.bytes).is_some()
        && block.base_offset.checked_add(block.record_count).is_some()
        && block.base_offset >= identity.base_offset;
    match entry[0] {
        KIND_SEALED => {
            let marker = SealedMarker {
                end_offset: block.base_offset,
                frame_bytes: block.position,
                appended_at_ns: field,
            };
            Some(Slot::Sealed(marker, block.bytes, block.crc32c))
        }
        KIND_BLOCK if sound && block.bytes > 0 => Some(Slot::Block(block)),
        KIND_RUN if sound && block.bytes > 0 && field <= block.end_position() => {
            block.min_timestamp_ns = 0;
            Some(Slot::Run(block, field))
        }
        KIND_PUBLISHED => {
            let mut boot = [0; BOOT_BYTES];
            boot.copy_from_slice(&entry[BOOT_AT..BOOT_AT + BOOT_BYTES]);
            Some(Slot::Published(PublishedMark {
                position: block.position,
                end_offset: block.base_offset,
                boot,
            }))
        }
        KIND_CLOSED if block.bytes == 0 && field == block.position => Some(Slot::Closed(field)),
        _ => None,
    }
}

/// Reads the index `bytes` of the segment `identity`. Anything may be in them.
pub(crate) fn read_index(bytes: &[u8], identity: &SegmentIdentity) -> ReadIndex {
    let mut index = ReadIndex::default();
    if bytes.get(..PUBLISHED_AT) != Some(&identity.header()[..PUBLISHED_AT]) {
        index.damage = Some("the index has no header of this segment".to_owned());
    }
    let mark = bytes.get(PUBLISHED_AT..HEADER_BYTES);
    index.published = mark.and_then(|mark| match read_slot(mark, identity)? {
        Slot::Published(mark) => Some(mark),
        _ => None,
    });
    let slots = bytes.get(HEADER_BYTES..).unwrap_or_default();
    // Where the last entry ends.
    let (mut offset, mut position) = (identity.base_offset, 0_u64);
    // Whether all blocks go on from the one before.
    let mut is_gapless = true;
    for (number, entry) in slots.chunks(ENTRY_BYTES).enumerate() {
        let slot = read_slot(entry, identity).filter(|slot| match slot {
            Slot::Block(block) => block.position >= position && block.base_offset >= offset,
            // One may begin again anywhere before, also where blocks were smaller when that was written.
            Slot::Run(run, _) => run.end_position() >= position,
            Slot::Closed(at) => *at >= position,
            Slot::Sealed(..) => true,
            Slot::Published(_) => false,
        });
        let Some(slot) = slot else {
            index.torn = true;
            continue;
        };
        if std::mem::take(&mut index.torn) {
            index.damage.get_or_insert_with(|| {
                format!("entries before entry {number} of the index fail their checks")
            });
        }
        match slot {
            Slot::Block(block) | Slot::Run(block, _) => {
                is_gapless &= (block.position, block.base_offset) == (position, offset);
                if let Slot::Run(_, synced_position) = slot {
                    index.synced_position = index.synced_position.max(synced_position);
                }
                (position, offset) = (block.end_position(), block.end_offset());
                index.blocks.push(block);
            }
            Slot::Closed(at) => {
                index.synced_position = index.synced_position.max(at);
                position = at;
            }
            Slot::Sealed(marker, entries, crc) => {
                let before = &slots[..number * ENTRY_BYTES];
                let unmarked = mark.is_some_and(|mark| mark.iter().all(|byte| *byte == 0));
                if entries == number as u64
                    && crc == crc32c(before)
                    && (marker.frame_bytes, marker.end_offset) == (position, offset)
                    && is_gapless
                    && unmarked
                {
                    index.sealed = Some(marker);
                    index.synced_position = marker.frame_bytes;
                } else {
                    index.damage.get_or_insert_with(|| {
                        "the sealed marker does not match the entries".to_owned()
                    });
                }
            }
            Slot::Published(_) => {}
        }
        index.ends.push(position);
    }
    if index.damage.is_some() {
        index.sealed = None;
        index.missing = index.blocks.is_empty();
    }
    index.entries_synced = index.synced_position;
    index
}

/// What there is to know of a segment that was never settled: its published mark.
pub(crate) fn read_young_index(bytes: &[u8], identity: &SegmentIdentity) -> ReadIndex {
    ReadIndex {
        published: read_index(bytes, identity).published,
        ..ReadIndex::default()
    }
}
