//! An object store that fails: whatever it does, every record stays readable, and is cold in the end.

use std::sync::Arc;

use basalt_proto::Offset;
use bytes::Bytes;

use super::crash::StopAt;
use super::failing::{Failing, Fault, Turn, failing_setup};
use super::support::{
    Setup, append_numbered, assert_dense, files_below, records, replay, rows, seeds, topic,
};
use crate::{ColdStore, CoolError, DeleteError, ManifestError, NoSteps, Step, StoreError};

#[tokio::test]
async fn an_object_whose_commit_found_itself_is_kept() {
    let turn = Turn::with(Fault::TriedTwice);
    let mut setup = Setup::new();
    setup.store = Some(ColdStore::remote(Arc::new(Failing {
        inner: Arc::new(object_store::memory::InMemory::new()),
        turn: Arc::clone(&turn),
    })));
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 300).await;
    turn.fail_nth(0);
    let report = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(report.rows, 300, "it is a commit like any other");
    assert_eq!(partition.bounds().cold_end_offset, Offset(300));
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 300);
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 300);
}

#[tokio::test]
async fn a_manifest_that_could_not_be_opened_to_be_synced_is_tried_again() {
    let mut setup = Setup::new();
    let turn = Turn::with(Fault::Vanishes(setup.cold_dir()));
    let store = ColdStore::local_through(setup.cold_dir(), |inner| {
        Arc::new(Failing {
            inner,
            turn: Arc::clone(&turn),
        })
    });
    setup.store = Some(store.unwrap());
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    turn.fail_nth(0);
    let failed = fixture.tiered.cool_topic(&topic("t"), true).await;
    turn.stop_failing();
    let status = partition.cooling_status();
    let told = failed.as_ref().map_err(|error| error.to_string());
    assert!(
        told.is_err_and(|told| status
            .last_error
            .is_some_and(|error| error.starts_with(&told))),
        "what failed is shown"
    );
    let passing = matches!(
        failed,
        Err(CoolError::Manifest(ManifestError::Store(
            StoreError::Open { .. }
        )))
    );
    assert!(passing, "{failed:?}");
    let key = partition.key.prefix();
    let manifest = setup
        .cold_dir()
        .join(crate::paths::manifest_path(&key, 1).as_ref());
    std::fs::rename(manifest.with_extension("away"), manifest).unwrap();

    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(partition.bounds().cold_end_offset, Offset(100));
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 100);
}

#[tokio::test]
async fn a_start_without_room_for_its_manifest_releases_later() {
    let turn = Turn::with(Fault::Full);
    let mut setup = failing_setup(&turn);
    setup.steps = StopAt::new(Step::ManifestCommitted, 1);
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 100).await;
    assert!(fixture.tiered.cool_topic(&topic("t"), true).await.is_err());
    drop(fixture);
    setup.steps = Arc::new(NoSteps);
    turn.fail_nth(0);
    let fixture = setup.open().await;
    let partition = fixture.partition();
    assert_eq!(partition.bounds().cold_end_offset, Offset(100));
    assert!(!partition.hot().sealed_segments().is_empty());
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 100);
    turn.stop_failing();
    fixture.tiered.maintain().await;
    assert!(partition.hot().sealed_segments().is_empty());
    assert_eq!(partition.state.lock().manifest.version, 2);
}

#[tokio::test]
async fn a_tombstone_whose_write_failed_after_all_is_withdrawn() {
    let turn = Turn::failing(true);
    let setup = failing_setup(&turn);
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    turn.fail_nth(0);
    let failed = fixture.tiered.delete_topic(&topic("t")).await;
    turn.stop_failing();
    assert!(matches!(failed, Err(DeleteError::Store(_))), "{failed:?}");
    let files = files_below(&setup.cold_dir());
    assert!(files.is_empty(), "{files:?}");
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    drop((partition, fixture));
    let fixture = setup.open().await;
    let partition = fixture.partition();
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 100);
}

#[tokio::test]
async fn a_store_that_breaks_at_any_operation_loses_nothing_and_is_caught_up_with() {
    for after in [false, true] {
        // As many operations as cooling two segments takes, and some more.
        for nth in 0..40 {
            println!(
                "operation {nth} fails {}",
                if after {
                    "after it was done"
                } else {
                    "before it is done"
                }
            );
            let turn = Turn::failing(after);
            let setup = failing_setup(&turn);
            let fixture = setup.open().await;
            let partition = fixture.partition();
            append_numbered(&partition, 300).await;
            let before = records(&replay(&partition, Offset::ZERO).await);

            turn.fail_nth(nth);
            let cooled = fixture.tiered.cool_topic(&topic("t"), true).await;
            turn.stop_failing();
            if let Err(error) = &cooled {
                assert!(!matches!(error, CoolError::Closed), "{error:?}");
            }
            assert_eq!(records(&replay(&partition, Offset::ZERO).await), before);
            let snapshot = partition.snapshot();
            assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 300);
            drop(snapshot);

            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            assert_eq!(partition.bounds().cold_end_offset, Offset(300));
            assert_eq!(records(&replay(&partition, Offset::ZERO).await), before);
            drop((partition, fixture));

            let fixture = setup.open().await;
            let partition = fixture.partition();
            assert_eq!(records(&replay(&partition, Offset::ZERO).await), before);
            let snapshot = partition.snapshot();
            assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 300);
            assert_eq!(
                object_count(&setup),
                snapshot.cold.len(),
                "orphans are collected when it is opened"
            );
        }
    }
}

#[tokio::test]
async fn a_store_that_breaks_at_any_operation_of_a_merge_loses_nothing_and_is_caught_up_with() {
    for after in [false, true] {
        for nth in 0.. {
            let turn = Turn::failing(after);
            let setup = Setup {
                merge_bytes: 1 << 20,
                ..failing_setup(&turn)
            };
            let fixture = setup.open().await;
            let partition = fixture.partition();
            for _ in 0..3 {
                append_numbered(&partition, 40).await;
                fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            }
            let before = replay(&partition, Offset::ZERO).await;

            turn.fail_nth(nth);
            let report = fixture.tiered.maintain().await;
            turn.stop_failing();
            let got_through = report.errors.is_empty();
            assert_eq!(report.deleted_files == 3, got_through, "{nth} {report:?}");
            assert!(replay(&partition, Offset::ZERO).await == before);
            let snapshot = partition.snapshot();
            assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 120);
            drop(snapshot);

            fixture.clock.advance_ns(30_000_000_000);
            let report = fixture.tiered.maintain().await;
            assert!(report.errors.is_empty(), "{nth} {report:?}");
            assert_eq!(partition.snapshot().cold.len(), 1, "{nth}");
            assert!(replay(&partition, Offset::ZERO).await == before);
            drop((partition, fixture));

            let fixture = setup.open().await;
            let partition = fixture.partition();
            assert!(replay(&partition, Offset::ZERO).await == before);
            assert_eq!(partition.snapshot().cold.len(), 1);
            assert_eq!(object_count(&setup), 1, "orphans are collected");
            if got_through {
                println!("a merge of three files takes {nth} operations");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_merged_file_that_was_not_committed_is_deleted_once_that_is_known() {
    let turn = Turn::with(Fault::Full);
    let setup = Setup {
        merge_bytes: 1 << 20,
        ..failing_setup(&turn)
    };
    let fixture = setup.open().await;
    let partition = fixture.partition();
    for _ in 0..3 {
        append_numbered(&partition, 40).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    // All that a merge puts in one piece is its manifest.
    turn.fail_nth(0);
    let report = fixture.tiered.maintain().await;
    turn.stop_failing();
    assert!(matches!(&report.errors[..], [(_, _, error)] if error.is_disk_full()));
    assert_eq!(object_count(&setup), 4, "perhaps it is committed");
    assert!(fixture.tiered.maintain().await.errors.is_empty());
    assert_eq!(partition.snapshot().cold.len(), 3, "it rests");

    append_numbered(&partition, 40).await;
    let cooled = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(cooled.rows, 40, "cooling does not rest");
    fixture.tiered.maintain().await;
    assert_eq!(object_count(&setup), 4, "it is not, says the next commit");
    fixture.clock.advance_ns(30_000_000_000);
    fixture.tiered.maintain().await;
    assert_eq!(object_count(&setup), 1);
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 160);
}

fn object_count(setup: &Setup) -> usize {
    files_below(&setup.cold_dir())
        .keys()
        .filter(|name| name.ends_with(".parquet"))
        .count()
}

#[tokio::test]
async fn a_store_that_breaks_at_random_and_comes_back_is_caught_up_with() {
    for seed in seeds(6) {
        let mut random = super::support::Random::new("a_store_that_breaks_at_random", seed);
        let turn = Turn::failing(random.one_in(2));
        let setup = failing_setup(&turn);
        let fixture = setup.open().await;
        let partition = fixture.partition();
        for round in 1..12 {
            append_numbered(&partition, 100).await;
            turn.fail_nth(random.below(30));
            let _ = fixture.tiered.cool_topic(&topic("t"), true).await;
            turn.stop_failing();
            let snapshot = partition.snapshot();
            assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, round * 100);
            assert_eq!(
                records(&replay(&partition, Offset::ZERO).await).len(),
                usize::try_from(round * 100).unwrap()
            );
        }
    }
}

#[tokio::test]
async fn another_writer_stops_this_one_for_good_and_its_records_stay_hot() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let key = partition.key.clone();
    let theirs = crate::manifest::Manifest {
        writer: "somebody else".to_owned(),
        version: 2,
        ..partition.state.lock().manifest.clone()
    };
    crate::manifest::commit(fixture.tiered.store(), &key, &theirs)
        .await
        .unwrap();

    append_numbered(&partition, 100).await;
    let refused = fixture.tiered.cool_topic(&topic("t"), true).await;
    let another = matches!(
        refused,
        Err(CoolError::Manifest(ManifestError::AnotherWriter {
            found_version: 2,
            ..
        }))
    );
    assert!(another, "{refused:?}");
    let refused = fixture.tiered.cool_topic(&topic("t"), true).await;
    assert!(
        matches!(refused, Err(CoolError::Fenced { .. })),
        "{refused:?}"
    );
    assert_eq!(partition.bounds().cold_end_offset, Offset(100));
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 200);
}

#[tokio::test]
async fn a_cold_object_that_was_changed_is_refused_and_never_served_altered() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let file = Arc::clone(&partition.snapshot().cold[0]);
    let whole = fixture
        .tiered
        .store()
        .get(&file.path)
        .await
        .unwrap()
        .to_vec();
    let good = replay(&partition, Offset::ZERO).await;
    drop((partition, fixture));
    let path = setup.cold_dir().join(file.path.as_ref());
    // A flipped bit somewhere in every 97 bytes: the answer is an error or what was written.
    for position in (0..whole.len()).step_by(97) {
        let mut flipped = whole.clone();
        flipped[position] ^= 0x10;
        std::fs::write(&path, &flipped).unwrap();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        let mut at = Offset::ZERO;
        let mut seen = Vec::new();
        while let Ok(slice) = partition.read(at, Offset::MAX, u64::MAX).await {
            if slice.is_empty() {
                break;
            }
            seen.extend_from_slice(slice.bytes());
            at = slice.next_offset;
        }
        assert!(good.starts_with(&seen), "bit flipped at {position}");
    }
    std::fs::write(&path, Bytes::from(whole)).unwrap();
}
