//! One record of the write-ahead log: a run of frames, and where in which segment it belongs.

use basalt_proto::{Offset, PartitionId};

use crate::block::{Block, crc32c};
use crate::topic::TopicId;

pub(crate) const RECORD_HEADER_BYTES: usize = 64;

/// What a record says of its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) topic_id: TopicId,
    pub(crate) partition: PartitionId,
    /// Base offset of the segment.
    pub(crate) segment: Offset,
    /// Where in the segment they stand.
    pub(crate) position: u64,
    pub(crate) base_offset: Offset,
    /// Offsets they span.
    pub(crate) record_count: u64,
}

impl RecordHeader {
    /// The header of the record of `frames`, for the file with this sequence number.
    pub(crate) fn encode(&self, sequence: u64, frames: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
        let mut header = [0; RECORD_HEADER_BYTES];
        // Records are bounded far below 4 GiB by the size of their files.
        let bytes = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        header[4..8].copy_from_slice(&bytes.to_be_bytes());
        header[8..16].copy_from_slice(&sequence.to_be_bytes());
        header[16..24].copy_from_slice(&self.topic_id.0.to_be_bytes());
        header[24..28].copy_from_slice(&self.partition.0.to_be_bytes());
        header[28..32].copy_from_slice(&crc32c(frames).to_be_bytes());
        header[32..40].copy_from_slice(&self.segment.0.to_be_bytes());
        header[40..48].copy_from_slice(&self.position.to_be_bytes());
        header[48..56].copy_from_slice(&self.base_offset.0.to_be_bytes());
        header[56..64].copy_from_slice(&self.record_count.to_be_bytes());
        let crc = crc32c(&header[4..]);
        header[..4].copy_from_slice(&crc.to_be_bytes());
        header
    }
}

/// A record found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundRecord<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) frames: &'a [u8],
    pub(crate) crc32c: u32,
}

impl FoundRecord<'_> {
    /// The run of the segment it speaks of.
    pub(crate) fn run(&self) -> Block {
        Block {
            base_offset: self.header.base_offset,
            position: self.header.position,
            bytes: self.frames.len() as u64,
            record_count: self.header.record_count,
            frame_count: 0,
            min_timestamp_ns: 0,
            max_timestamp_ns: u64::MAX,
            crc32c: self.crc32c,
            has_batches: true,
        }
    }
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// The record at the start of `bytes` and the bytes after it; `None` when there is none of this sequence number that is
/// whole. Anything may be in `bytes`.
pub(crate) fn read_record(bytes: &[u8], sequence: u64) -> Option<(FoundRecord<'_>, &[u8])> {
    let (header, rest) = bytes.split_at_checked(RECORD_HEADER_BYTES)?;
    if crc32c(&header[4..]) != be_u32(header, 0) || be_u64(header, 8) != sequence {
        return None;
    }
    let frames_bytes = usize::try_from(be_u32(header, 4)).ok()?;
    let (frames, rest) = rest.split_at_checked(frames_bytes)?;
    let found = FoundRecord {
        header: RecordHeader {
            topic_id: TopicId(be_u64(header, 16)),
            partition: PartitionId(be_u32(header, 24)),
            segment: Offset(be_u64(header, 32)),
            position: be_u64(header, 40),
            base_offset: Offset(be_u64(header, 48)),
            record_count: be_u64(header, 56),
        },
        frames,
        crc32c: be_u32(header, 28),
    };
    let run = found.run();
    let sound = !frames.is_empty()
        && run.base_offset >= found.header.segment
        && run.position.checked_add(run.bytes).is_some()
        && run.base_offset.checked_add(run.record_count).is_some()
        && crc32c(frames) == found.crc32c;
    sound.then_some((found, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            topic_id: TopicId(7),
            partition: PartitionId(3),
            segment: Offset(100),
            position: 4096,
            base_offset: Offset(110),
            record_count: 5,
        }
    }

    #[test]
    fn a_record_reads_as_written_and_golden_bytes_hold() {
        let mut bytes = header().encode(9, b"frames").to_vec();
        bytes.extend_from_slice(b"framesrest");
        let (found, rest) = read_record(&bytes, 9).unwrap();
        assert_eq!(
            (found.header, found.frames, rest),
            (header(), &b"frames"[..], &b"rest"[..])
        );
        let hex: String = bytes[4..64]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "000000060000000000000009000000000000000700000003".to_owned()
                + &format!("{:08x}", crc32c(b"frames"))
                + "00000000000000640000000000001000000000000000006e0000000000000005"
        );
    }

    #[test]
    fn every_flipped_bit_every_cut_and_another_sequence_are_refused() {
        let mut bytes = header().encode(9, b"frames").to_vec();
        bytes.extend_from_slice(b"frames");
        assert_eq!(read_record(&bytes, 8), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_record(&damaged, 9), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(read_record(&bytes[..cut], 9), None, "cut {cut}");
        }
    }
}
