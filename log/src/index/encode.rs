//! An index's header and entries, as bytes. What they say is true when they are written, or becomes so, is for the caller.

use basalt_proto::Offset;

use super::{
    BOOT_AT, BOOT_BYTES, BootField, CRC_AT, ENTRY_BYTES, HEADER_BYTES, KIND_BLOCK, KIND_CLOSED,
    KIND_PUBLISHED, KIND_RUN, KIND_SEALED, MAGIC, PUBLISHED_AT, SegmentIdentity,
};
use crate::block::{Block, crc32c};

impl SegmentIdentity {
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
    pub(super) fn entry_crc(&self, entry: &[u8; ENTRY_BYTES]) -> u32 {
        let mut bound = [0; ENTRY_BYTES];
        bound[..4].copy_from_slice(&self.header()[CRC_AT..PUBLISHED_AT]);
        bound[4..].copy_from_slice(&entry[..CRC_AT]);
        crc32c(&bound)
    }

    /// The mark that frames up to `position` are whole in the page cache of the boot.
    pub(super) fn published_mark(
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
