//! A crash between any two steps of a commit: nothing is lost, nothing is there twice.

use std::sync::Arc;
use std::time::Duration;

use basalt_proto::Offset;
use parking_lot::Mutex;

use super::merging::merging;
use super::support::{
    Random, Setup, append, append_numbered, assert_dense, files_below, random_frames, records,
    replay, rows, topic,
};
use crate::{CoolError, NoSteps, Step, Steps, Stopped};

/// Stops when `at` was reached for the `countdown`th time, and at every step after that: the process is dead.
#[derive(Debug)]
pub(super) struct StopAt {
    at: Step,
    countdown: Mutex<u32>,
}

impl StopAt {
    pub(super) fn new(at: Step, countdown: u32) -> Arc<Self> {
        Arc::new(Self {
            at,
            countdown: Mutex::new(countdown),
        })
    }
}

impl Steps for StopAt {
    fn reached(&self, step: Step) -> Result<(), Stopped> {
        let mut countdown = self.countdown.lock();
        if step == self.at {
            *countdown = countdown.saturating_sub(1);
        }
        if *countdown == 0 {
            Err(Stopped { after: step })
        } else {
            Ok(())
        }
    }
}

#[tokio::test]
async fn a_crash_between_any_two_steps_of_cooling_loses_and_doubles_nothing() {
    for step in Step::COOLING {
        for nth in [1, 2] {
            let mut random = Random::new("a_crash_between_any_two_steps", u64::from(nth));
            let mut setup = Setup::new();
            setup.steps = StopAt::new(step, nth);
            let fixture = setup.open().await;
            let partition = fixture.partition();
            while partition.hot().sealed_segments().len() < 3 {
                append(&partition, &random_frames(&mut random, 12, true)).await;
            }
            let before = records(&replay(&partition, Offset::ZERO).await);
            let end = partition.bounds().high_watermark.0;
            let stopped = fixture.tiered.cool_topic(&topic("t"), true).await;
            assert!(
                matches!(stopped, Err(CoolError::Stopped(_))),
                "{step:?}: {stopped:?}"
            );
            drop((partition, fixture));

            setup.steps = Arc::new(NoSteps);
            for round in 0..2 {
                let fixture = setup.open().await;
                let partition = fixture.partition();
                let what = format!("{step:?} {nth} {round}");
                assert_eq!(
                    records(&replay(&partition, Offset::ZERO).await),
                    before,
                    "{what}"
                );
                let snapshot = partition.snapshot();
                assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, end);
                assert_no_orphans(&setup, snapshot.cold.len());
                // And it goes on as if nothing had been.
                fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
                assert_eq!(
                    records(&replay(&partition, Offset::ZERO).await),
                    before,
                    "{what}"
                );
                let snapshot = partition.snapshot();
                assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, end);
                assert!(snapshot.hot.is_empty(), "{what}");
                assert_no_orphans(&setup, snapshot.cold.len());
            }
        }
    }
}

fn assert_no_orphans(setup: &Setup, cold_files: usize) {
    let files = files_below(&setup.cold_dir());
    let objects = files
        .keys()
        .filter(|name| name.ends_with(".parquet"))
        .count();
    assert_eq!(
        objects, cold_files,
        "an object for each file, and no other: {files:?}"
    );
    assert!(
        files
            .keys()
            .all(|name| name.ends_with(".parquet") || name.ends_with(".json")),
        "{files:?}"
    );
}

#[tokio::test]
async fn a_crash_between_any_two_steps_of_merging_loses_and_doubles_nothing() {
    for step in Step::MERGING {
        for nth in [1, 2, 3] {
            let mut random = Random::new("a_crash_between_any_two_steps_of_merging", 1);
            let mut setup = merging();
            let fixture = setup.open().await;
            let partition = fixture.partition();
            for _ in 0..7 {
                append(&partition, &random_frames(&mut random, 8, true)).await;
                fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            }
            let before = replay(&partition, Offset::ZERO).await;
            let end = partition.bounds().high_watermark.0;
            drop((partition, fixture));

            setup.steps = StopAt::new(step, nth);
            let fixture = setup.open().await;
            let report = fixture.tiered.maintain().await;
            let stopped = matches!(report.errors[..], [(_, _, CoolError::Stopped(_))]);
            // There is one merge, with two commits: that of what was read at the start, and its own.
            let once = matches!(
                step,
                Step::MergePlanned
                    | Step::ObjectWritten
                    | Step::ObjectSynced
                    | Step::ObjectVerified
                    | Step::ManifestsTrimmed
            );
            let twice = matches!(step, Step::ManifestCommitted | Step::Swapped);
            let expected = nth == 1 || !once && (nth == 2 || !twice);
            assert_eq!(stopped, expected, "{step:?} {nth}: {report:?}");
            drop(fixture);

            setup.steps = Arc::new(NoSteps);
            for round in 0..2 {
                let what = format!("{step:?} {nth} {round}");
                let fixture = setup.open().await;
                let partition = fixture.partition();
                assert!(replay(&partition, Offset::ZERO).await == before, "{what}");
                let snapshot = partition.snapshot();
                assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, end);
                assert_no_orphans(&setup, snapshot.cold.len());
                drop(snapshot);
                // And it goes on as if nothing had been.
                let report = fixture.tiered.maintain().await;
                assert!(report.errors.is_empty(), "{what}: {report:?}");
                assert!(replay(&partition, Offset::ZERO).await == before, "{what}");
                let snapshot = partition.snapshot();
                assert!(snapshot.cold.len() < 7, "{what}");
                assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, end);
                assert_no_orphans(&setup, snapshot.cold.len());
            }
        }
    }
}

#[tokio::test]
async fn a_crash_between_any_two_steps_of_retention_keeps_what_is_to_be_kept() {
    for step in [
        Step::ManifestCommitted,
        Step::Swapped,
        Step::Released,
        Step::DroppedFileDeleting,
    ] {
        let mut setup = Setup::new();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        append_numbered(&partition, 400).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        fixture.clock.advance_ns(5_000_000_000);
        append_numbered(&partition, 400).await;
        fixture.configure(|config| config.retention_age = Some(Duration::from_secs(4)));
        drop((partition, fixture));

        setup.steps = StopAt::new(step, 1);
        let fixture = setup.open().await;
        let report = fixture.tiered.maintain().await;
        assert!(
            matches!(report.errors[..], [(_, _, CoolError::Stopped(_))]),
            "{step:?}: {report:?}"
        );
        drop(fixture);

        setup.steps = Arc::new(NoSteps);
        let fixture = setup.open().await;
        let partition = fixture.partition();
        fixture.tiered.maintain().await;
        let bounds = partition.bounds();
        assert_eq!(bounds.log_start_offset, Offset(400), "{step:?}");
        let snapshot = partition.snapshot();
        assert_dense(&rows(&fixture.tiered, &snapshot).await, 400, 800);
        assert_no_orphans(&setup, 0);
        assert_eq!(records(&replay(&partition, Offset(400)).await).len(), 400);
    }
}

#[tokio::test]
async fn a_log_that_ends_before_its_cold_part_is_refused() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 400).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    drop((partition, fixture));
    std::fs::remove_dir_all(setup.folder.path().join("data/topics/t/0")).unwrap();
    let refused = setup.try_open().await;
    assert!(
        matches!(refused, Err(crate::TierError::LogBehindCold { .. })),
        "offsets would be used twice"
    );
}

/// Whether all manifests are lost or the newest alone, with which an older one becomes the truth.
#[tokio::test]
async fn a_cold_file_whose_manifest_was_lost_is_kept() {
    for newest_alone in [false, true] {
        let setup = Setup::new();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        append_numbered(&partition, 400).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        drop((partition, fixture));
        let before = files_below(&setup.cold_dir());
        let manifests: Vec<_> = before
            .keys()
            .filter(|name| name.ends_with(".json"))
            .collect();
        assert!(manifests.len() > 1, "one before the newest is kept");
        let lost = if newest_alone {
            &manifests[manifests.len() - 1..]
        } else {
            &manifests[..]
        };
        for manifest in lost {
            std::fs::remove_file(setup.cold_dir().join(manifest)).unwrap();
        }
        let _fixture = setup.open().await;
        let objects = |files: &std::collections::BTreeMap<String, u64>| {
            files
                .keys()
                .filter(|name| name.ends_with(".parquet"))
                .count()
        };
        assert_eq!(
            objects(&files_below(&setup.cold_dir())),
            objects(&before),
            "it may be the only copy (newest alone: {newest_alone})"
        );
    }
}

#[tokio::test]
async fn a_start_releases_nothing_on_a_manifest_that_may_not_be_durable() {
    let mut setup = Setup::new();
    setup.steps = StopAt::new(Step::ManifestCommitted, 2);
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 400).await;
    let stopped = fixture.tiered.cool_topic(&topic("t"), true).await;
    assert!(matches!(stopped, Err(CoolError::Stopped(_))), "{stopped:?}");
    let prefix = partition.key.prefix();
    drop((partition, fixture));

    // Its own version comes first: stopped there, the start has released nothing.
    let hot = || files_below(&setup.folder.path().join("data/topics"));
    let before = hot();
    let mut stopping = setup.clone();
    stopping.steps = StopAt::new(Step::ManifestCommitted, 1);
    assert!(matches!(
        stopping.try_open().await,
        Err(crate::TierError::Release { .. })
    ));
    assert_eq!(hot(), before);

    setup.steps = Arc::new(NoSteps);
    let newest = |setup: &Setup| {
        let manifests = setup.cold_dir().join(format!("{prefix}/manifest"));
        files_below(&manifests).into_keys().next_back().unwrap()
    };
    let fixture = setup.open().await;
    assert!(fixture.partition().hot().sealed_segments().len() < 3);
    drop(fixture);
    let version = newest(&setup);
    // A power cut takes what nobody synced: all manifests but the one that the start wrote itself.
    for name in files_below(&setup.cold_dir()).into_keys() {
        if name.ends_with(".json") && !name.ends_with(&version) {
            std::fs::remove_file(setup.cold_dir().join(name)).unwrap();
        }
    }
    for _ in 0..2 {
        let fixture = setup.open().await;
        let partition = fixture.partition();
        assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 400);
        assert_eq!(
            newest(&setup),
            version,
            "nothing to release, nothing to write"
        );
    }
}

#[tokio::test]
async fn a_start_deletes_no_expired_object_on_a_manifest_that_may_not_be_durable() {
    let mut setup = Setup::new();
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 400).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    fixture.configure(|config| config.retention_bytes = Some(0));
    drop(fixture);
    setup.steps = StopAt::new(Step::ManifestCommitted, 1);
    let fixture = setup.open().await;
    fixture.tiered.maintain().await;
    drop(fixture);

    let before = files_below(&setup.cold_dir());
    setup.steps = StopAt::new(Step::ManifestCommitted, 1);
    assert!(setup.try_open().await.is_err());
    let after = files_below(&setup.cold_dir());
    assert!(before.keys().all(|name| after.contains_key(name)));
    assert_eq!(after.len(), before.len() + 1, "one manifest more");

    setup.steps = Arc::new(NoSteps);
    for _ in 0..2 {
        let fixture = setup.open().await;
        assert_no_orphans(&setup, 0);
        assert_eq!(fixture.partition().bounds().log_start_offset, Offset(400));
    }
}
