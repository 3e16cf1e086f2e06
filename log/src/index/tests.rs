//! Index bytes written, damaged and read.

use basalt_proto::{Offset, PartitionId};

use super::decode::SealedMarker;
use super::{
    ENTRY_BYTES, HEADER_BYTES, PUBLISHED_AT, SegmentIdentity, boot_field, read_index,
    read_young_index,
};
use crate::block::Block;
use crate::topic::TopicId;

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
