//! Deleting topics, and creating them again.

use std::sync::Arc;

use basalt_log::TopicConfig;
use basalt_proto::{GroupName, Offset, PartitionId};

use super::crash::StopAt;
use super::support::{Setup, append_numbered, cold_rows, files_below, records, replay, topic};
use crate::{CoolError, CoolingStatus, DeleteError, NoSteps, Step};

#[tokio::test]
async fn deleting_a_topic_removes_its_objects_and_a_new_one_of_the_name_starts_empty() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let old_id = partition.topic_id();
    fixture.tiered.delete_topic(&topic("t")).await.unwrap();
    assert!(files_below(&setup.cold_dir()).is_empty());
    assert_eq!(
        std::fs::read_dir(setup.cold_dir()).unwrap().count(),
        0,
        "nor are there empty folders"
    );
    assert!(
        fixture
            .tiered
            .partition(&topic("t"), PartitionId(0))
            .is_none()
    );
    let again = fixture.tiered.delete_topic(&topic("t")).await;
    assert!(matches!(again, Err(DeleteError::Topic(_))), "{again:?}");
    assert!(matches!(
        fixture.tiered.cool_topic(&topic("t"), true).await,
        Err(CoolError::UnknownTopic { .. })
    ));

    let partition = fixture.partition();
    assert_ne!(partition.topic_id(), old_id);
    assert_eq!(partition.bounds().log_end_offset, Offset(0));
    append_numbered(&partition, 10).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let files = files_below(&setup.cold_dir());
    assert!(
        files
            .keys()
            .all(|name| name.starts_with(&format!("t/{:016x}/", partition.topic_id().0))),
        "{files:?}"
    );
    assert!(!replay(&partition, Offset(0)).await.is_empty());
}

/// A topic made anew has nothing of the one that had its name: no record, no file, no count, and no group's place in it.
#[tokio::test]
async fn a_topic_made_anew_has_nothing_of_the_old_one() {
    let setup = Setup::new();
    let mut fixture = setup.open().await;
    let group = GroupName::new("g").unwrap();
    append_numbered(&fixture.partition(), 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&fixture.partition(), 20).await;
    let groups = fixture.tiered.log().groups();
    for (name, offset) in [("t", 70), ("other", 5)] {
        let committed = {
            let topic = fixture.tiered.log().topic_or_create(&topic(name)).unwrap();
            groups.commit_now(&group, &topic, PartitionId(0), Offset(offset))
        };
        committed.unwrap();
    }
    fixture.tiered.delete_topic(&topic("t")).await.unwrap();

    for is_restarted in [false, true] {
        if is_restarted {
            drop(fixture);
            fixture = setup.open().await;
        }
        let partition = fixture.partition();
        let bounds = partition.bounds();
        assert_eq!(bounds.log_start_offset, Offset(0));
        assert_eq!(bounds.cold_end_offset, Offset(0));
        assert_eq!(bounds.high_watermark, Offset(0));
        assert_eq!(bounds.log_end_offset, Offset(0));
        assert_eq!((bounds.hot_bytes, bounds.cold_bytes), (0, 0));
        let snapshot = partition.snapshot();
        assert!(snapshot.cold.is_empty() && snapshot.hot.is_empty());
        assert_eq!(partition.cooling_status(), CoolingStatus::default());
        assert_eq!(partition.offset_for_timestamp(0).await.unwrap(), None);
        assert!(replay(&partition, Offset(0)).await.is_empty());
        let groups = fixture.tiered.log().groups();
        let committed = |name| {
            let committed = groups.committed(&group, &topic(name), PartitionId(0));
            committed.map(|committed| committed.offset)
        };
        assert_eq!(committed("t"), None);
        assert_eq!(committed("other"), Some(Offset(5)), "another topic's stays");
        assert_eq!(groups.list().len(), 1);
        assert!(files_below(&setup.cold_dir()).is_empty());
    }

    let partition = fixture.partition();
    append_numbered(&partition, 10).await;
    for is_cold in [false, true] {
        let seen = records(&replay(&partition, Offset(0)).await);
        let payloads: Vec<_> = seen
            .into_iter()
            .filter_map(|record| record.payload)
            .collect();
        let expected: Vec<_> = (0..10)
            .map(|offset| offset.to_string().into_bytes())
            .collect();
        assert_eq!(payloads, expected, "cold: {is_cold}");
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    assert_eq!(partition.cooling_status().cooled_segments, 1);
}

#[tokio::test]
async fn objects_of_a_deleted_topic_stay_while_a_query_reads_them() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let snapshot = partition.snapshot();
    fixture.tiered.delete_topic(&topic("t")).await.unwrap();
    let read = cold_rows(fixture.tiered.store(), &snapshot.cold[0]).await;
    assert_eq!(read.iter().map(|rows| rows.num_rows()).sum::<usize>(), 100);
    fixture.tiered.maintain().await;
    assert!(!files_below(&setup.cold_dir()).is_empty());
    drop(snapshot);
    let report = fixture.tiered.maintain().await;
    assert!(report.delete_errors.is_empty(), "{report:?}");
    assert!(files_below(&setup.cold_dir()).is_empty());
}

#[tokio::test]
async fn a_deletion_that_was_interrupted_after_it_was_decided_is_finished_at_the_next_start() {
    for step in [Step::TopicDeleted, Step::ObjectsDeleted] {
        let mut setup = Setup::new();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        append_numbered(&partition, 100).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        fixture
            .tiered
            .create_topic(&topic("other"), 1, TopicConfig::default())
            .unwrap();
        let other = fixture
            .tiered
            .partition(&topic("other"), PartitionId(0))
            .unwrap();
        append_numbered(&other, 100).await;
        fixture
            .tiered
            .cool_topic(&topic("other"), true)
            .await
            .unwrap();
        drop((partition, other, fixture));

        setup.steps = StopAt::new(step, 1);
        let fixture = setup.open().await;
        let stopped = fixture.tiered.delete_topic(&topic("t")).await;
        assert!(
            matches!(stopped, Err(DeleteError::Stopped(_))),
            "{step:?}: {stopped:?}"
        );
        drop(fixture);

        setup.steps = Arc::new(NoSteps);
        let fixture = setup.open().await;
        assert!(
            fixture.tiered.log().topic(&topic("t")).is_none(),
            "{step:?}"
        );
        let files = files_below(&setup.cold_dir());
        assert!(
            files.keys().all(|name| name.starts_with("other/")),
            "{step:?}: {files:?}"
        );
        let other = fixture
            .tiered
            .partition(&topic("other"), PartitionId(0))
            .unwrap();
        assert!(!replay(&other, Offset(0)).await.is_empty());
    }
}

#[tokio::test]
async fn a_deletion_that_was_interrupted_before_it_was_decided_is_withdrawn_at_the_next_start() {
    let mut setup = Setup::new();
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_numbered(&fixture.partition(), 50).await;
    drop(fixture);

    setup.steps = StopAt::new(Step::TombstoneWritten, 1);
    let fixture = setup.open().await;
    let stopped = fixture.tiered.delete_topic(&topic("t")).await;
    assert!(
        matches!(stopped, Err(DeleteError::Stopped(_))),
        "{stopped:?}"
    );
    drop(fixture);

    setup.steps = Arc::new(NoSteps);
    let fixture = setup.open().await;
    assert!(fixture.tiered.log().topic(&topic("t")).is_some());
    let seen = records(&replay(&fixture.partition(), Offset(0)).await);
    assert_eq!(seen.len(), 150, "nobody was told that it was deleted");
    let files = files_below(&setup.cold_dir());
    assert!(
        !files.keys().any(|name| name.ends_with("DELETED")),
        "{files:?}"
    );
}
