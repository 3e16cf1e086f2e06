//! What retention lets go, and when its files are deleted.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use basalt_log::ManualClock;
use basalt_proto::Offset;

use super::support::{
    Setup, append_numbered, assert_dense, cold_rows, files_below, replay, rows, topic,
};
use crate::{ReadError, Step, Steps, Stopped};

fn objects(setup: &Setup) -> usize {
    files_below(&setup.cold_dir())
        .keys()
        .filter(|name| name.ends_with(".parquet"))
        .count()
}

#[tokio::test]
async fn retention_by_age_counts_from_the_last_append_over_cold_and_hot() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    fixture.clock.advance_ns(10_000_000_000);
    append_numbered(&partition, 100).await;
    partition.hot().seal_active().unwrap();
    fixture.clock.advance_ns(10_000_000_000);
    append_numbered(&partition, 100).await;

    fixture.configure(|config| config.retention_age = Some(Duration::from_secs(15)));
    let report = fixture.tiered.maintain().await;
    assert_eq!(
        (report.expired_partitions, report.deleted_files),
        (1, 1),
        "{report:?}"
    );
    assert_eq!(
        partition.bounds().log_start_offset,
        Offset(100),
        "the cold file went"
    );
    assert_eq!(objects(&setup), 0);
    fixture.clock.advance_ns(10_000_000_000);
    fixture.tiered.maintain().await;
    assert_eq!(
        partition.bounds().log_start_offset,
        Offset(200),
        "the sealed segment went without being cooled"
    );
    fixture.clock.advance_ns(100_000_000_000);
    fixture.tiered.maintain().await;
    assert_eq!(
        partition.bounds().log_start_offset,
        Offset(200),
        "the active segment stays"
    );
    let early = partition.read(Offset(199), Offset::MAX, 1).await;
    assert!(
        matches!(
            early,
            Err(ReadError::OutOfRange {
                log_start_offset: Offset(200),
                ..
            })
        ),
        "{early:?}"
    );
    drop((partition, fixture));

    let fixture = setup.open().await;
    let partition = fixture.partition();
    assert_eq!(partition.bounds().log_start_offset, Offset(200));
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 200, 300);
}

#[tokio::test]
async fn retention_by_bytes_counts_cold_and_hot_together() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 1000).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&partition, 1000).await;
    let all = replay(&partition, Offset::ZERO).await.len() as u64;
    fixture.configure(|config| config.retention_bytes = Some(all * 3 / 4));
    fixture.tiered.maintain().await;
    let start = partition.bounds().log_start_offset;
    let kept = replay(&partition, start).await.len() as u64;
    assert!(
        kept >= all * 3 / 4 && kept < all * 3 / 4 + (8 << 10),
        "{kept} of {all}"
    );
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, start.0, 2000);
}

/// Kafka's DeleteRecords: exactly what is below goes, whatever it lies in the midst of, also over a restart and when it is cooled.
#[tokio::test]
async fn the_start_is_moved_into_the_midst_of_hot_and_cold_records() {
    for offset in [1, 50, 99, 100, 101, 150, 199, 200, 250, 300] {
        let setup = Setup::new();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        append_numbered(&partition, 100).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        append_numbered(&partition, 100).await;
        partition.hot().seal_active().unwrap();
        append_numbered(&partition, 100).await;
        let start = Offset(offset);
        assert_eq!(partition.delete_before(start).await.unwrap(), start);
        let earlier = partition.delete_before(Offset(offset - 1)).await;
        assert_eq!(earlier.unwrap(), start, "it never goes back");
        let check = async |fixture: &super::support::Fixture, what: &str| {
            let partition = fixture.partition();
            let bounds = partition.bounds();
            assert_eq!(bounds.log_start_offset, start, "{what} {offset}");
            assert!(bounds.cold_end_offset >= start, "{what} {offset}");
            let seen = rows(&fixture.tiered, &partition.snapshot()).await;
            assert_dense(&seen, offset, bounds.high_watermark.0);
            let replayed = super::support::records(&replay(&partition, start).await);
            let is_there = replayed.iter().filter(|seen| seen.offset >= offset);
            assert_eq!(is_there.count() as u64, bounds.high_watermark.0 - offset);
            let early = partition.read(Offset(offset - 1), Offset::MAX, 1).await;
            assert!(matches!(early, Err(ReadError::OutOfRange { .. })), "{what}");
            // Stamps are ten times the offsets: a time before the start is the start's.
            let found = partition.offset_for_timestamp(10).await.unwrap();
            assert_eq!(
                found.map(|(at, _)| at),
                (offset < 300).then_some(start),
                "{what}"
            );
        };
        check(&fixture, "at once").await;
        drop((partition, fixture));
        let fixture = setup.open().await;
        check(&fixture, "restarted").await;
        append_numbered(&fixture.partition(), 10).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        let partition = fixture.partition();
        assert_eq!(
            partition.bounds().high_watermark,
            Offset(310),
            "no offset again"
        );
        let seen = rows(&fixture.tiered, &partition.snapshot()).await;
        assert_dense(&seen, offset, 310);
        fixture.tiered.maintain().await;
        assert!(objects(&setup) <= 3);
    }
}

/// PUB-19: what a reader holds stays readable until it lets go, and is deleted then.
#[tokio::test]
async fn pub_19_a_dropped_file_is_deleted_only_when_no_snapshot_holds_it() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&partition, 100).await;
    let snapshot = partition.snapshot();
    let slice = partition.read(Offset(50), Offset::MAX, 1000).await.unwrap();
    let bytes = slice.bytes().to_vec();

    fixture.configure(|config| config.retention_bytes = Some(1));
    let report = fixture.tiered.maintain().await;
    assert_eq!(
        (report.expired_partitions, report.deleted_files),
        (1, 0),
        "{report:?}"
    );
    assert_eq!(partition.bounds().log_start_offset, Offset(100));
    assert_eq!(objects(&setup), 1, "a snapshot holds it");
    let held: usize = cold_rows(fixture.tiered.store(), &snapshot.cold[0])
        .await
        .iter()
        .map(|rows| rows.num_rows())
        .sum();
    assert_eq!(held, 100);
    let file = Arc::clone(&snapshot.cold[0]);
    drop(snapshot);
    assert_eq!(
        fixture.tiered.maintain().await.deleted_files,
        0,
        "a file by itself counts, too"
    );
    drop(file);
    assert_eq!(fixture.tiered.maintain().await.deleted_files, 1);
    assert_eq!(objects(&setup), 0);
    assert_eq!(
        slice.bytes(),
        bytes,
        "a slice is of a hydrated file, and keeps that"
    );
}

#[tokio::test]
async fn everything_may_expire_and_the_log_goes_on() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    fixture.configure(|config| config.retention_bytes = Some(0));
    fixture.tiered.maintain().await;
    let bounds = partition.bounds();
    assert_eq!(
        (bounds.log_start_offset, bounds.log_end_offset),
        (Offset(100), Offset(100))
    );
    drop((partition, fixture));
    let fixture = setup.open().await;
    let partition = fixture.partition();
    assert_eq!(partition.bounds().log_start_offset, Offset(100));
    fixture.configure(|config| config.retention_bytes = None);
    append_numbered(&partition, 50).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 100, 150);
}

/// Time passes while a segment is cooled.
#[derive(Debug, Default)]
struct Slow(OnceLock<Arc<ManualClock>>);

impl Steps for Slow {
    fn reached(&self, step: Step) -> Result<(), Stopped> {
        if let Some(clock) = self.0.get().filter(|_| step == Step::ObjectWritten) {
            clock.advance_ns(100_000_000_000);
        }
        Ok(())
    }
}

#[tokio::test]
async fn what_expires_while_others_are_cooled_is_let_go_before_their_end_and_not_cooled() {
    let slow = Arc::new(Slow::default());
    let setup = Setup {
        steps: Arc::<Slow>::clone(&slow),
        ..Setup::new()
    };
    let fixture = setup.open().await;
    slow.0.set(Arc::clone(&fixture.clock)).unwrap();
    let partition = fixture.partition();
    for _ in 0..4 {
        append_numbered(&partition, 100).await;
        partition.hot().seal_active().unwrap();
    }
    append_numbered(&partition, 100).await;
    fixture.configure(|config| {
        config.hot_bytes = Some(0);
        config.retention_age = Some(Duration::from_secs(50));
    });
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    assert_eq!(report.cooled.segments, 1, "{report:?}");
    assert_eq!(partition.bounds().log_start_offset, Offset(400));
}
