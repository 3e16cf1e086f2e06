//! P1: while segments seal, cool, merge, hydrate and expire, every snapshot shows every record exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use basalt_proto::{FrameLimits, FrameWalk, Offset};
use tokio::sync::watch;

use super::support::{
    Counted, Fixture, Random, Setup, append, assert_dense, random_frames, rows, seeds, topic,
};
use crate::{ReadError, Step, TieredPartition};

/// Appends until `total` offsets are there and files were merged. What was acknowledged is published.
async fn appender(
    partition: Arc<TieredPartition>,
    seed: u64,
    total: u64,
    acknowledged: Arc<AtomicU64>,
    merges: watch::Receiver<u32>,
) {
    let mut random = Random::new("one_cut appender", seed);
    loop {
        let end = acknowledged.load(Ordering::SeqCst);
        if end >= total && (*merges.borrow() >= 3 || end >= 20 * total) {
            break;
        }
        // On a slow disk cooling would never catch up, and there would be one cold file.
        while partition.hot().sealed_segments().len() > 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        append(&partition, &random_frames(&mut random, 8, true)).await;
        acknowledged.fetch_max(partition.bounds().high_watermark.0, Ordering::SeqCst);
    }
}

/// Seals, cools and expires, at random, until it is told to stop.
async fn changer(fixture: Arc<Fixture>, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = Random::new("one_cut changer", seed);
    while !stop.load(Ordering::SeqCst) {
        // Seldom expires: what is gone is not merged.
        match random.below(12) {
            0..=3 => {
                fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            }
            4 => {
                let kept = random.below(60_000);
                fixture.configure(|config| config.retention_bytes = Some(kept));
                let report = fixture.tiered.maintain().await;
                assert!(report.errors.is_empty(), "{report:?}");
                fixture.configure(|config| config.retention_bytes = None);
            }
            5..=8 => {
                let hot = random.below(30_000);
                fixture.configure(|config| config.hot_bytes = Some(hot));
                let report = fixture.tiered.maintain().await;
                assert!(report.errors.is_empty(), "{report:?}");
            }
            _ => {
                let partition = fixture.partition();
                tokio::task::spawn_blocking(move || partition.hot().seal_active().unwrap())
                    .await
                    .unwrap();
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Takes snapshots and counts.
async fn counter(
    fixture: Arc<Fixture>,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> u64 {
    let partition = fixture.partition();
    let (mut last_start, mut last_end) = (0, 0);
    let mut snapshots = 0;
    while !stop.load(Ordering::SeqCst) {
        let known = acknowledged.load(Ordering::SeqCst);
        let snapshot = partition.snapshot();
        let (start, end) = (snapshot.log_start_offset.0, snapshot.high_watermark.0);
        assert!(
            end >= known,
            "what was acknowledged before the snapshot is in it"
        );
        assert!(
            start >= last_start && end >= last_end,
            "neither bound ever falls"
        );
        assert_dense(&rows(&fixture.tiered, &snapshot).await, start, end);
        (last_start, last_end) = (start, end);
        snapshots += 1;
        tokio::task::yield_now().await;
    }
    snapshots
}

/// Follows the log as a consumer does: no offset is left out but by retention.
async fn consumer(partition: Arc<TieredPartition>, stop: Arc<AtomicBool>) -> u64 {
    let mut at = Offset::ZERO;
    let mut high_watermark = partition.subscribe();
    loop {
        match partition.read(at, Offset::MAX, 2000).await {
            Ok(slice) if slice.is_empty() => {
                if stop.load(Ordering::SeqCst) {
                    return at.0;
                }
                let _ = high_watermark.wait_for(|offset| *offset > at).await;
            }
            Ok(slice) => {
                for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
                    let header = frame.unwrap().header;
                    assert_eq!(header.offset, at, "the next frame is the next record");
                    at = header.end_offset();
                }
                assert_eq!(slice.next_offset, at);
            }
            Err(ReadError::OutOfRange {
                log_start_offset, ..
            }) => {
                assert!(
                    log_start_offset > at,
                    "only what has expired is out of range"
                );
                at = log_start_offset;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_snapshot_and_every_consumer_sees_every_record_once() {
    for seed in seeds(3) {
        let (steps, merges) = Counted::new(Step::MergePlanned);
        let setup = Setup {
            steps,
            segment_bytes: 4 << 10,
            row_group_bytes: 1 << 10,
            cache_bytes: 20 << 10,
            merge_bytes: 1 << 20,
            ..Setup::new()
        };
        let fixture = Arc::new(setup.open().await);
        // Merges on its own, beside what is done here.
        fixture.tiered.spawn_maintenance();
        let partition = fixture.partition();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (stop, stop_consumer) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let changing = tokio::spawn(changer(Arc::clone(&fixture), seed, Arc::clone(&stop)));
        let counting: Vec<_> = (0..2)
            .map(|_| {
                tokio::spawn(counter(
                    Arc::clone(&fixture),
                    Arc::clone(&acknowledged),
                    Arc::clone(&stop),
                ))
            })
            .collect();
        let consuming = tokio::spawn(consumer(Arc::clone(&partition), Arc::clone(&stop_consumer)));

        appender(
            Arc::clone(&partition),
            seed,
            2500,
            Arc::clone(&acknowledged),
            merges.clone(),
        )
        .await;
        stop.store(true, Ordering::SeqCst);
        changing.await.unwrap();
        assert!(*merges.borrow() >= 3, "files were merged: seed {seed}");
        for counted in counting {
            assert!(counted.await.unwrap() > 0, "seed {seed}");
        }
        stop_consumer.store(true, Ordering::SeqCst);
        // One more record wakes a consumer that waits at the end.
        append(
            &partition,
            &random_frames(&mut Random::new("one_cut last", seed), 1, false),
        )
        .await;
        assert_eq!(
            consuming.await.unwrap(),
            partition.bounds().high_watermark.0,
            "seed {seed}"
        );
    }
}
