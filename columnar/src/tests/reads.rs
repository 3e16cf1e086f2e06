//! Reading over the seam, in gaps, by time, and through the cache.

use std::sync::Arc;

use basalt_log::crc32c;
use basalt_proto::{Frame, FrameLimits, FrameWalk, Offset};

use super::support::{
    Random, Setup, append, append_numbered, assert_dense, random_frames, records, replay, rows,
    topic,
};
use crate::{ReadError, TieredPartition};

async fn first_frame(partition: &TieredPartition, from: u64) -> (u64, u64) {
    let slice = partition.read(Offset(from), Offset::MAX, 1).await.unwrap();
    let frame = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED)
        .next()
        .unwrap()
        .unwrap();
    (frame.header.offset.0, frame.header.end_offset().0)
}

fn frame_of(count: u32) -> Vec<u8> {
    let mut frame = Frame::record(5, b"", b"payload");
    frame.header.record_count = count;
    let mut out = Vec::new();
    frame.encode_into(&mut out);
    out
}

/// PUB-09: the first frame is the one that covers the offset, hot and cold.
#[tokio::test]
async fn pub_09_a_read_inside_a_multi_record_frame_begins_with_it() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    for count in [5, 1, 3, 1] {
        append(&partition, &frame_of(count)).await;
    }
    for cold in [false, true] {
        if cold {
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
        assert_eq!(first_frame(&partition, 3).await, (0, 5));
        assert_eq!(first_frame(&partition, 7).await, (6, 9));
        assert_eq!(first_frame(&partition, 5).await, (5, 6));
        assert_eq!(first_frame(&partition, 8).await, (6, 9));
        let end = partition.read(Offset(10), Offset::MAX, 1).await.unwrap();
        assert!(end.is_empty() && end.next_offset == Offset(10));
        assert!(matches!(
            partition.read(Offset(11), Offset::MAX, 1).await,
            Err(ReadError::OutOfRange { .. })
        ));
    }
}

/// Reserves the offsets up to `bound` of a log that is not open, as one that acknowledges without an fsync leaves them reserved when the
/// machine stops: it goes on there, and offsets below are not given again.
fn reserve(setup: &Setup, bound: u64) {
    let mut file = b"BSLTRSV1".to_vec();
    file.extend(bound.to_be_bytes());
    file.extend(bound.to_be_bytes());
    // The boot in which it was written: none that is known.
    file.resize(60, 0);
    file.extend(crc32c(&file).to_be_bytes());
    std::fs::write(setup.folder.path().join("data/topics/t/0/reserved"), file).unwrap();
}

/// PUB-23: records 0 to 89 are cold, the next one is 100, hot or cold: an offset between them finds it.
#[tokio::test]
async fn pub_23_an_offset_in_the_hole_between_cold_and_hot_finds_the_next_record() {
    for cool_before in [true, false] {
        let setup = Setup::new();
        let fixture = setup.open().await;
        append_numbered(&fixture.partition(), 90).await;
        if cool_before {
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
        drop(fixture);
        reserve(&setup, 100);
        let fixture = setup.open().await;
        let partition = fixture.partition();
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        assert_eq!(partition.bounds().hot_bytes, 0);
        assert_eq!(partition.bounds().log_end_offset, Offset(100));
        for from in [90, 95, 99] {
            let nothing_yet = partition.read(Offset(from), Offset::MAX, 1).await.unwrap();
            assert!(nothing_yet.is_empty(), "{from}");
        }
        append_numbered(&partition, 20).await;
        let files = partition.snapshot().cold;
        let behind_cold = files.last().unwrap().chunks.last().unwrap().end_offset;
        assert_eq!(behind_cold, Offset(90), "there is a hole");
        for is_cold in [false, true] {
            for (from, first) in [
                (85, 85),
                (89, 89),
                (90, 100),
                (95, 100),
                (99, 100),
                (100, 100),
            ] {
                assert_eq!(
                    first_frame(&partition, from).await.0,
                    first,
                    "from {from}, cooled before the hole: {cool_before}, all cold: {is_cold}"
                );
            }
            let seen = records(&replay(&partition, Offset::ZERO).await);
            let offsets: Vec<_> = seen.iter().map(|record| record.offset).collect();
            assert_eq!(offsets, (0..90).chain(100..120).collect::<Vec<_>>());
            let snapshot = partition.snapshot();
            let rows = rows(&fixture.tiered, &snapshot).await;
            let offsets = rows.iter().map(|(offset, _)| *offset);
            assert_eq!(
                offsets.collect::<Vec<_>>(),
                (0..90).chain(100..120).collect::<Vec<_>>()
            );
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
    }
}

/// PUB-23 again: the last frame of the cold part spans the offsets up to the first hot one.
#[tokio::test]
async fn pub_23_an_offset_inside_the_last_cold_frame_finds_that_frame() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 89).await;
    append(&partition, &frame_of(11)).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&partition, 5).await;
    assert_eq!(first_frame(&partition, 85).await, (85, 86));
    for from in [89, 90, 95, 99] {
        assert_eq!(first_frame(&partition, from).await, (89, 100));
    }
    assert_eq!(first_frame(&partition, 100).await, (100, 101));
}

#[tokio::test]
async fn holes_in_cold_files_are_stepped_over_and_a_bounded_read_of_one_ends() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&partition, 100).await;
    // As if the log had left out offsets before 100 and before 200.
    {
        let mut state = partition.state.lock();
        for file in &mut state.manifest.files {
            let mut short = (**file).clone();
            short.chunks.retain(|chunk| chunk.end_offset.0 % 100 != 0);
            assert!(!short.chunks.is_empty());
            *file = Arc::new(short);
        }
    }
    let files = partition.snapshot().cold;
    let first_hole = files[0].chunks.last().unwrap().end_offset.0;
    assert!(first_hole < 100);
    for from in first_hole..100 {
        assert_eq!(first_frame(&partition, from).await.0, 100);
    }
    let second_hole = files[1].chunks.last().unwrap().end_offset.0;
    for from in second_hole..200 {
        assert_eq!(first_frame(&partition, from).await.0, 200);
    }
    let bounded = partition
        .read(Offset(first_hole), Offset(99), u64::MAX)
        .await
        .unwrap();
    assert!(bounded.is_empty());
    assert_eq!(
        bounded.next_offset,
        Offset(99),
        "a reader that stops at 99 is done"
    );
}

#[tokio::test]
async fn a_bounded_read_ends_at_its_end_hot_and_cold() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    for cold in [false, true] {
        if cold {
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
        let mut at = Offset(10);
        let mut seen = Vec::new();
        loop {
            let slice = partition.read(at, Offset(55), 500).await.unwrap();
            for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
                seen.push(frame.unwrap().header.offset.0);
            }
            if slice.is_empty() {
                break;
            }
            at = slice.next_offset;
        }
        assert_eq!(seen, (10..55).collect::<Vec<_>>());
    }
}

/// The answer by hand: the smallest offset whose stamp is late enough.
fn earliest(stamps: &[u64], target: u64) -> Option<(Offset, u64)> {
    let found = stamps
        .iter()
        .enumerate()
        .find(|(_, stamp)| **stamp >= target);
    found.map(|(offset, stamp)| (Offset(offset as u64), *stamp))
}

#[tokio::test]
async fn times_are_found_over_cold_and_hot_though_stamps_are_in_no_order() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    let mut random = Random::new("times_are_found", 3);
    let mut stamps = Vec::new();
    for part in 0..3 {
        let mut frames = Vec::new();
        for _ in 0..150 {
            let stamp = 1000 * (part + 1) + random.below(1500);
            stamps.push(stamp);
            Frame::record(stamp, b"", b"some payload").encode_into(&mut frames);
        }
        append(&partition, &frames).await;
        if part < 2 {
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
    }
    assert!(partition.snapshot().cold.len() >= 2 && !partition.snapshot().hot.is_empty());
    for target in (0..5000).step_by(37).chain([0, u64::MAX]) {
        assert_eq!(
            partition.offset_for_timestamp(target).await.unwrap(),
            earliest(&stamps, target),
            "{target}"
        );
    }
}

#[tokio::test]
async fn times_of_batch_records_are_the_same_before_and_after_cooling() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    let mut random = Random::new("times_of_batch_records", 11);
    for _ in 0..12 {
        append(&partition, &random_frames(&mut random, 12, true)).await;
    }
    let targets: Vec<u64> = (0..200).map(|_| random.stamp_ns()).collect();
    let mut hot = Vec::new();
    for target in &targets {
        hot.push(partition.offset_for_timestamp(*target).await.unwrap());
    }
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    for (target, hot) in targets.iter().zip(hot) {
        assert_eq!(
            partition.offset_for_timestamp(*target).await.unwrap(),
            hot,
            "{target}"
        );
    }
}

#[tokio::test]
async fn the_cache_keeps_its_budget_and_a_held_slice_keeps_its_bytes() {
    let setup = Setup {
        cache_bytes: 6 << 10,
        ..Setup::new()
    };
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 1000).await;
    let hot = replay(&partition, Offset::ZERO).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let held = partition.read(Offset(0), Offset::MAX, 200).await.unwrap();
    let held_bytes = held.bytes().to_vec();
    assert!(replay(&partition, Offset::ZERO).await == hot);
    assert!(partition.shared.hydrator.cache.ready_bytes() <= 6 << 10);
    let files: Vec<_> = super::support::files_below(&setup.folder.path().join("cache"))
        .into_iter()
        .collect();
    let on_disk: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    assert!(
        on_disk <= 9 << 10,
        "the budget, and at most one that is on its way: {files:?}"
    );
    assert_eq!(held.bytes(), held_bytes, "its file is unlinked, not gone");
    drop((partition, fixture));
    let _fixture = setup.open().await;
    assert!(
        super::support::files_below(&setup.folder.path().join("cache")).is_empty(),
        "emptied at start"
    );
}

#[tokio::test]
async fn a_row_group_is_hydrated_once_however_many_wait_and_the_next_is_prepared() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 300).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let reads = (0..50).map(|_| partition.read(Offset(0), Offset::MAX, 100));
    use std::os::fd::{AsFd as _, AsRawFd as _};
    let mut descriptors = std::collections::HashSet::new();
    let slices = futures::future::join_all(reads).await;
    for slice in &slices {
        let slice = slice.as_ref().unwrap();
        assert_eq!(slice.first_offset, Offset(0));
        let descriptor = slice.descriptor().unwrap().unwrap();
        descriptors.insert(descriptor.as_fd().as_raw_fd());
    }
    assert_eq!(descriptors.len(), 1, "all read the same file");
    let next = {
        let file = Arc::clone(&partition.snapshot().cold[0]);
        assert!(file.chunks.len() > 1);
        partition
            .shared
            .hydrator
            .hydrate(&partition.key, &file, 1)
            .await
            .unwrap()
    };
    assert_eq!(
        next.base_offset,
        partition.snapshot().cold[0].chunks[1].base_offset
    );
}

#[tokio::test]
async fn a_snapshot_names_each_record_once_although_segments_are_not_released_yet() {
    // A copy of the hot files brings the segments back that were released, as a crash before the unlink would.
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 400).await;
    partition.hot().seal_active().unwrap();
    let dir = setup.folder.path().join("data/topics/t/0");
    let saved: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    drop((partition, fixture));
    for (path, bytes) in saved {
        std::fs::write(path, bytes).unwrap();
    }
    let fixture = setup.open().await;
    let partition = fixture.partition();
    assert_eq!(partition.bounds().hot_bytes, 0, "released again");
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 400);
}
