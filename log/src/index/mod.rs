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

mod file;

pub(crate) use file::{Covered, IndexFile};

use basalt_proto::{Offset, PartitionId};

use crate::block::{Block, crc32c};
use crate::topic::TopicId;

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

    /// The file's header, with no published mark.
    pub(crate) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&self.topic_id.0.to_be_bytes());
        header[16..20].copy_from_slice(&self.partition.0.to_be_bytes());
        header[24..32].copy_from_slice(&self.base_offset.0.to_be_bytes());
        let crc = crc32c(&header[..CRC_AT]);
        header[CRC_AT..PUBLISHED_AT].copy_from_slice(&crc.to_be_bytes());
        header
    }

    /// The file's header with a published mark.
    pub(crate) fn marked_header(
        &self,
        position: u64,
        end_offset: Offset,
        boot: &BootField,
    ) -> [u8; HEADER_BYTES] {
        let mut header = self.header();
        header[PUBLISHED_AT..].copy_from_slice(&self.published_mark(position, end_offset, boot));
        header
    }

    /// The CRC over an entry, which binds it to this segment.
    fn entry_crc(&self, entry: &[u8; ENTRY_BYTES]) -> u32 {
        let mut bound = [0; ENTRY_BYTES];
        bound[..4].copy_from_slice(&self.header()[CRC_AT..PUBLISHED_AT]);
        bound[4..].copy_from_slice(&entry[..CRC_AT]);
        crc32c(&bound)
    }

    /// The mark that frames up to `position` are whole in the page cache of the boot.
    fn published_mark(
        &self,
        position: u64,
        end_offset: Offset,
        boot: &BootField,
    ) -> [u8; ENTRY_BYTES] {
        let mut mark = [0; ENTRY_BYTES];
        mark[0] = KIND_PUBLISHED;
        mark[8..16].copy_from_slice(&end_offset.0.to_be_bytes());
        mark[16..24].copy_from_slice(&position.to_be_bytes());
        mark[BOOT_AT..BOOT_AT + BOOT_BYTES].copy_from_slice(boot);
        let crc = self.entry_crc(&mark);
        mark[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        mark
    }

    /// The entry of a run, or with no bytes the marker of a stop in order.
    pub(crate) fn run_entry(&self, run: &Block, synced_position: u64) -> [u8; ENTRY_BYTES] {
        let run = Block {
            min_timestamp_ns: synced_position,
            ..*run
        };
        let kind = if run.bytes == 0 {
            KIND_CLOSED
        } else {
            KIND_RUN
        };
        self.entry(kind, &run)
    }

    /// The entry of a block.
    fn block_entry(&self, block: &Block) -> [u8; ENTRY_BYTES] {
        self.entry(KIND_BLOCK, block)
    }

    fn entry(&self, kind: u8, block: &Block) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        entry[0] = kind;
        entry[1] = u8::from(block.has_batches);
        entry[4..8].copy_from_slice(&block.frame_count.to_be_bytes());
        entry[8..16].copy_from_slice(&block.base_offset.0.to_be_bytes());
        entry[16..24].copy_from_slice(&block.position.to_be_bytes());
        entry[24..32].copy_from_slice(&block.bytes.to_be_bytes());
        entry[32..40].copy_from_slice(&block.record_count.to_be_bytes());
        entry[40..48].copy_from_slice(&block.min_timestamp_ns.to_be_bytes());
        entry[48..56].copy_from_slice(&block.max_timestamp_ns.to_be_bytes());
        entry[56..60].copy_from_slice(&block.crc32c.to_be_bytes());
        let crc = self.entry_crc(&entry);
        entry[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        entry
    }

    /// A whole index of a sealed segment.
    pub(crate) fn sealed_index(
        &self,
        blocks: &[Block],
        end_offset: Offset,
        appended_at_ns: u64,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + (blocks.len() + 1) * ENTRY_BYTES);
        out.extend_from_slice(&self.header());
        for block in blocks {
            out.extend_from_slice(&self.block_entry(block));
        }
        let mut marker = [0; ENTRY_BYTES];
        marker[0] = KIND_SEALED;
        marker[8..16].copy_from_slice(&end_offset.0.to_be_bytes());
        let frame_bytes = blocks.last().map_or(0, Block::end_position);
        marker[16..24].copy_from_slice(&frame_bytes.to_be_bytes());
        marker[24..32].copy_from_slice(&(blocks.len() as u64).to_be_bytes());
        marker[32..40].copy_from_slice(
            &end_offset
                .0
                .saturating_sub(self.base_offset.0)
                .to_be_bytes(),
        );
        marker[40..48].copy_from_slice(&appended_at_ns.to_be_bytes());
        let max = blocks
            .iter()
            .map(|block| block.max_timestamp_ns)
            .max()
            .unwrap_or(0);
        marker[48..56].copy_from_slice(&max.to_be_bytes());
        marker[56..60].copy_from_slice(&crc32c(&out[HEADER_BYTES..]).to_be_bytes());
        let crc = self.entry_crc(&marker);
        marker[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        out.extend_from_slice(&marker);
        out
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> SegmentIdentity {
        SegmentIdentity {
            topic_id: TopicId(7),
            partition: PartitionId(3),
            base_offset: Offset(100),
        }
    }

    fn blocks() -> Vec<Block> {
        (0..4)
            .map(|at| Block {
                base_offset: Offset(100 + at * 10),
                position: at * 1000,
                bytes: 1000,
                record_count: 10,
                frame_count: 10,
                min_timestamp_ns: at,
                max_timestamp_ns: at + 5,
                crc32c: 0xabcd,
                has_batches: at == 2,
            })
            .collect()
    }

    #[test]
    fn an_index_reads_as_written() {
        let bytes = identity().sealed_index(&blocks(), Offset(140), 99);
        let index = read_index(&bytes, &identity());
        assert_eq!(index.blocks, blocks());
        assert_eq!(
            index.sealed,
            Some(SealedMarker {
                end_offset: Offset(140),
                frame_bytes: 4000,
                appended_at_ns: 99
            })
        );
        assert_eq!(index.damage, None);
    }

    #[test]
    fn the_index_of_another_segment_is_refused_whole() {
        let bytes = identity().sealed_index(&blocks(), Offset(140), 99);
        let other = SegmentIdentity {
            topic_id: TopicId(8),
            ..identity()
        };
        let index = read_index(&bytes, &other);
        assert!(index.blocks.is_empty() && index.damage.is_some());
    }

    #[test]
    fn every_flipped_bit_is_noticed_and_every_cut_ends_at_a_whole_entry() {
        let bytes = identity().sealed_index(&blocks(), Offset(140), 99);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let index = read_index(&damaged, &identity());
            assert!(
                index.sealed.is_none() && (index.damage.is_some() || index.torn),
                "bit {bit}"
            );
            assert!(
                index.blocks.iter().all(|block| blocks().contains(block)),
                "bit {bit}"
            );
        }
        for cut in HEADER_BYTES..bytes.len() {
            let index = read_index(&bytes[..cut], &identity());
            assert_eq!((index.damage, index.sealed), (None, None), "cut {cut}");
            assert_eq!(index.blocks.len(), (cut - HEADER_BYTES) / ENTRY_BYTES);
        }
    }

    #[test]
    fn zeros_are_no_believable_entry() {
        let mut bytes = identity().sealed_index(&blocks(), Offset(140), 99);
        let half = HEADER_BYTES + 2 * ENTRY_BYTES;
        bytes[half..].fill(0);
        let index = read_index(&bytes, &identity());
        assert!(index.torn && index.sealed.is_none());
        assert_eq!(index.blocks, blocks()[..2]);
    }

    #[test]
    fn runs_tell_how_far_the_disk_had_got() {
        let [first, second, ..] = blocks()[..] else {
            panic!("four blocks")
        };
        let closed = Block {
            base_offset: Offset(120),
            position: 2000,
            bytes: 0,
            record_count: 0,
            ..second
        };
        let mut bytes = identity().header().to_vec();
        bytes.extend(identity().run_entry(&first, 0));
        bytes.extend(identity().run_entry(&second, 1000));
        assert_eq!(read_index(&bytes, &identity()).synced_position, 1000);
        let longer = Block {
            bytes: 1500,
            record_count: 15,
            ..second
        };
        bytes.extend(identity().run_entry(&longer, 1000));
        let overlapping = read_index(&bytes, &identity());
        assert_eq!(overlapping.damage, None);
        assert_eq!(overlapping.ends, [1000, 2000, 2500]);
        bytes.truncate(bytes.len() - ENTRY_BYTES);
        bytes.extend(identity().run_entry(&closed, 2000));
        let index = read_index(&bytes, &identity());
        assert_eq!(
            (index.synced_position, index.blocks.len(), index.ends),
            (2000, 2, vec![1000, 2000, 2000])
        );
    }

    #[test]
    fn published_mark_counts_in_its_own_boot_only() {
        let mut bytes = identity().header().to_vec();
        let mark = identity().published_mark(1234, Offset(110), &boot_field("boot 1"));
        bytes[PUBLISHED_AT..PUBLISHED_AT + ENTRY_BYTES].copy_from_slice(&mark);
        let index = read_index(&bytes, &identity());
        assert_eq!(index.published_in("boot 1"), (1234, Offset(110)));
        assert_eq!(index.published_in("boot 2"), (0, Offset::ZERO));
        bytes[PUBLISHED_AT + 16] ^= 1;
        let index = read_index(&bytes, &identity());
        assert_eq!((index.published, index.damage), (None, None));
    }

    #[test]
    fn only_the_mark_of_a_young_index_counts() {
        let [first, ..] = blocks()[..] else {
            panic!("four blocks")
        };
        let mut bytes = identity()
            .marked_header(1234, Offset(110), &boot_field("boot 1"))
            .to_vec();
        bytes.extend(identity().run_entry(&first, 1000));
        let index = read_young_index(&bytes, &identity());
        assert_eq!((index.blocks.len(), index.synced_position), (0, 0));
        assert_eq!(index.published_in("boot 1"), (1234, Offset(110)));
        let nothing = read_young_index(&[0; 7], &identity());
        assert_eq!(
            (nothing.damage, nothing.missing, nothing.published),
            (None, false, None)
        );
    }
}
