//! P2: what is appended is what is replayed, whatever became of it in between.

use basalt_proto::{FrameLimits, FrameWalk, Offset, PartitionId};

use super::support::{
    Random, Setup, append, assert_dense, number, random_frames, records, replay, rows, seeds, topic,
};
use crate::RowBuilder;
use crate::replay::FrameRebuilder;

/// Frames through rows and back, in slices of `slice` rows.
fn through_rows(frames: &[u8], slice: usize) -> Vec<u8> {
    let mut builder = RowBuilder::new(PartitionId(3));
    for frame in FrameWalk::new(frames, FrameLimits::UNLIMITED) {
        builder.push(&frame.unwrap()).unwrap();
    }
    let rows = builder.finish();
    assert_eq!(builder.row_count(), 0);
    let mut rebuilder = FrameRebuilder::default();
    let mut rebuilt = Vec::new();
    let mut at = 0;
    while at < rows.num_rows() {
        let length = slice.min(rows.num_rows() - at);
        rebuilder
            .push(&rows.slice(at, length), None, &mut rebuilt)
            .unwrap();
        at += length;
    }
    rebuilder.finish().unwrap();
    rebuilt
}

#[test]
fn record_frames_survive_rows_byte_for_byte() {
    for seed in seeds(256) {
        let mut random = Random::new("record_frames_survive_rows", seed);
        let mut frames = random_frames(&mut random, 40, false);
        let base = random.below(1 << 62);
        number(&mut frames, base);
        assert!(through_rows(&frames, 7) == frames, "seed {seed}");
    }
}

#[test]
fn batch_frames_survive_rows_record_for_record() {
    for seed in seeds(256) {
        let mut random = Random::new("batch_frames_survive_rows", seed);
        let mut frames = random_frames(&mut random, 20, true);
        let base = random.below(1 << 62);
        number(&mut frames, base);
        let slice = 1 + usize::try_from(random.below(9)).unwrap();
        assert_eq!(
            records(&through_rows(&frames, slice)),
            records(&frames),
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn replay_is_the_same_hot_cold_and_after_a_restart() {
    for seed in seeds(12) {
        let mut random = Random::new("replay_is_the_same", seed);
        let batches = random.one_in(2);
        let setup = Setup::new();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        for _ in 0..1 + random.below(25) {
            append(&partition, &random_frames(&mut random, 12, batches)).await;
        }
        let hot = replay(&partition, Offset::ZERO).await;
        let end = partition.bounds().log_end_offset;

        let report = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        assert!(
            report.segments > 0 && report.bytes_in == hot.len() as u64,
            "{report:?}"
        );
        assert_eq!(partition.bounds().cold_end_offset, end);
        assert_eq!(partition.bounds().hot_bytes, 0);
        let cold = replay(&partition, Offset::ZERO).await;
        if batches {
            assert_eq!(records(&cold), records(&hot), "seed {seed}");
        } else {
            assert!(cold == hot, "seed {seed}");
        }

        append(&partition, &random_frames(&mut random, 12, batches)).await;
        let both = replay(&partition, Offset::ZERO).await;
        assert!(
            both.starts_with(&cold),
            "what is cold does not change when more is appended"
        );
        drop((partition, fixture));

        let fixture = setup.open().await;
        let partition = fixture.partition();
        assert!(
            replay(&partition, Offset::ZERO).await == both,
            "seed {seed}"
        );
        let snapshot = partition.snapshot();
        assert_dense(
            &rows(&fixture.tiered, &snapshot).await,
            0,
            snapshot.high_watermark.0,
        );
    }
}

#[tokio::test]
async fn replay_from_every_offset_begins_with_the_frame_that_covers_it() {
    let mut random = Random::new("replay_from_every_offset", 1);
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    for _ in 0..6 {
        append(&partition, &random_frames(&mut random, 12, true)).await;
    }
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append(&partition, &random_frames(&mut random, 12, true)).await;
    for offset in 0..partition.bounds().high_watermark.0 {
        let slice = partition
            .read(Offset(offset), Offset::MAX, 1)
            .await
            .unwrap();
        let frame = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED)
            .next()
            .unwrap()
            .unwrap();
        assert!((frame.header.offset.0..frame.header.end_offset().0).contains(&offset));
        assert_eq!(
            slice.next_offset,
            frame.header.end_offset(),
            "one frame, however small the limit"
        );
    }
}
