//! Two servers and one store: a stranger is refused, a twin shuts the other out, and neither loses a record.

use std::path::Path as FsPath;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use basalt_proto::Offset;
use parking_lot::Mutex;

use super::failing::{Failing, Turn};
use super::support::{Setup, append_numbered, assert_dense, records, replay, rows, topic};
use super::weather::{Network, Weather};
use crate::{
    ColdStore, CoolError, NoSteps, OwnerError, Step, Steps, Stopped, StoreError, TierError,
};

fn shared(network: &Network) -> Setup {
    Setup {
        store: Some(network.store().shared()),
        ..Setup::new()
    }
}

/// A copy of a data folder, as a backup or a snapshot of its disk is one.
fn copied(setup: &Setup) -> Setup {
    fn copy(from: &FsPath, to: &FsPath) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if from.is_dir() {
                copy(&from, &to);
            } else {
                std::fs::copy(&from, &to).unwrap();
            }
        }
    }
    let copied = Setup {
        folder: Arc::new(tempfile::tempdir().unwrap()),
        ..setup.clone()
    };
    copy(
        &setup.folder.path().join("data"),
        &copied.folder.path().join("data"),
    );
    copied
}

async fn refused_start(setup: &Setup) -> OwnerError {
    match setup.try_open().await.map(drop) {
        Err(TierError::Owner(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn another_data_folder_is_refused_and_changes_nothing() {
    let network = Network::new();
    let setup = shared(&network);
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let stranger = shared(&network);
    assert!(matches!(
        refused_start(&stranger).await,
        OwnerError::Taken { epoch: 1, .. }
    ));
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 200);
    // Nor does one that was refused remember anything of it: it may go elsewhere.
    let elsewhere = Setup {
        store: Some(Network::new().store().shared()),
        ..stranger
    };
    elsewhere.open().await;
}

#[tokio::test]
async fn a_data_folder_keeps_to_the_store_it_was_cooled_to() {
    let (network, other) = (Network::new(), Network::new());
    let setup = shared(&network);
    drop(setup.open().await);
    for store in [
        Some(other.store().shared()),
        Some(other.store()),
        // The folder beside it, by default.
        None,
    ] {
        let elsewhere = Setup {
            store,
            ..setup.clone()
        };
        assert!(matches!(
            refused_start(&elsewhere).await,
            OwnerError::Elsewhere { .. }
        ));
    }
    // A store that is somebody else's is not mistaken for it either.
    let theirs = shared(&other);
    drop(theirs.open().await);
    let elsewhere = Setup {
        store: Some(other.store().shared()),
        ..setup.clone()
    };
    assert!(matches!(
        refused_start(&elsewhere).await,
        OwnerError::Elsewhere { .. }
    ));
    setup.open().await;
}

#[tokio::test]
async fn a_start_that_breaks_at_any_request_can_be_made_again() {
    for after in [false, true] {
        for nth in 0..30 {
            let (network, turn) = (Network::new(), Turn::failing(after));
            let mut setup = shared(&network);
            let failing = Failing {
                inner: Arc::new(network.clone()),
                turn: Arc::clone(&turn),
            };
            setup.store = Some(ColdStore::remote(Arc::new(failing)).shared());
            let fixture = setup.open().await;
            append_numbered(&fixture.partition(), 100).await;
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            drop(fixture);
            // As one that was moved: it writes its manifests anew.
            let setup = copied(&setup);
            turn.fail_nth(nth);
            let started = setup.try_open().await;
            turn.stop_failing();
            let done = started.is_ok();
            drop(started);
            let fixture = setup.open().await;
            let partition = fixture.partition();
            assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 100);
            append_numbered(&partition, 100).await;
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 200);
            if done {
                println!("a start takes {nth} requests");
                assert!(nth > 5);
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_start_in_the_same_place_writes_no_manifest_and_one_elsewhere_does() {
    let network = Network::new();
    let setup = shared(&network);
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    drop(fixture);
    let version =
        |fixture: &super::support::Fixture| fixture.partition().state.lock().manifest.version;
    assert_eq!(version(&setup.open().await), 1);
    assert_eq!(version(&copied(&setup).open().await), 2);
}

#[tokio::test]
async fn a_store_that_does_not_look_at_conditions_is_refused() {
    let network = Network::new();
    network.becomes(Weather::Unconditional);
    let setup = shared(&network);
    let error = refused_start(&setup).await;
    assert!(
        matches!(&error, OwnerError::Store(StoreError::Unusable(_))),
        "{error:?}"
    );
    assert!(error.to_string().contains("If-None-Match"), "{error}");
}

/// Waits at a step until it is told to go on, once it is armed.
#[derive(Debug)]
struct Held {
    step: Step,
    armed: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Steps for Held {
    fn reached(&self, step: Step) -> Result<(), Stopped> {
        if step == self.step
            && let Some((reached, go_on)) = self.armed.lock().take()
        {
            reached.send(()).unwrap();
            go_on.recv().unwrap();
        }
        Ok(())
    }
}

/// The first server has uploaded an object, or committed it too, when its twin starts; to the twin the former is an orphan.
#[tokio::test(flavor = "multi_thread")]
async fn a_twin_that_starts_in_the_middle_of_a_commit_costs_no_record_on_either_side() {
    for step in [Step::ObjectVerified, Step::ManifestCommitted] {
        let network = Network::new();
        let held = Arc::new(Held {
            step,
            armed: Mutex::new(None),
        });
        let setup = Setup {
            steps: Arc::<Held>::clone(&held),
            ..shared(&network)
        };
        let first = setup.open().await;
        let partition = first.partition();
        append_numbered(&partition, 100).await;
        first.tiered.cool_topic(&topic("t"), true).await.unwrap();
        append_numbered(&partition, 100).await;
        partition.hot().seal_active().unwrap();
        let twin = Setup {
            steps: Arc::new(NoSteps),
            ..copied(&setup)
        };

        let (reached, is_there) = channel();
        let (go_on, goes_on) = channel();
        *held.armed.lock() = Some((reached, goes_on));
        let cooling = Arc::clone(&first.tiered);
        let cooling = tokio::spawn(async move { cooling.cool_topic(&topic("t"), true).await });
        tokio::task::spawn_blocking(move || is_there.recv().unwrap())
            .await
            .unwrap();
        assert_eq!(network.objects().await.len(), 2);
        let second = twin.open().await;
        let committed = step == Step::ManifestCommitted;
        let kept = network.objects().await.len();
        assert_eq!(kept == 2, committed, "what nobody named is an orphan");
        go_on.send(()).unwrap();
        let cooled = cooling.await.unwrap();
        assert_eq!(cooled.is_ok(), committed, "{cooled:?}");

        // From here on they are two logs, of which the second has the store.
        append_numbered(&partition, 30).await;
        let refused = first
            .tiered
            .cool_topic(&topic("t"), true)
            .await
            .unwrap_err();
        assert!(
            matches!(
                &refused,
                CoolError::Owner(OwnerError::Superseded { .. }) | CoolError::Fenced { .. }
            ),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("taken over"), "{refused}");
        let theirs = second.partition();
        append_numbered(&theirs, 50).await;
        second.tiered.cool_topic(&topic("t"), true).await.unwrap();
        for (fixture, count) in [(&first, 230), (&second, 250)] {
            let partition = fixture.partition();
            assert_eq!(
                records(&replay(&partition, Offset::ZERO).await).len() as u64,
                count
            );
            let snapshot = partition.snapshot();
            assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, count);
        }
        assert!(
            partition.bounds().hot_bytes > 0,
            "what the first took stays hot"
        );
        drop((partition, first));
        assert!(matches!(
            refused_start(&setup).await,
            OwnerError::Taken { epoch: 2, .. }
        ));
    }
}

/// It has read the manifests of before the twin's claim, and its next commit would be the next version.
#[tokio::test]
async fn what_a_server_commits_after_its_twin_has_claimed_the_store_is_void() {
    let network = Network::new();
    let setup = shared(&network);
    let first = setup.open().await;
    let partition = first.partition();
    append_numbered(&partition, 100).await;
    first.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let second = copied(&setup).open().await;
    let theirs = second.partition();
    // Other records at the same offsets.
    append_numbered(&partition, 60).await;
    append_numbered(&theirs, 90).await;
    assert!(first.tiered.cool_topic(&topic("t"), true).await.is_err());
    assert!(first.tiered.delete_topic(&topic("t")).await.is_err());
    second.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(records(&replay(&theirs, Offset::ZERO).await).len(), 190);
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 160);
}
