//! The server's own tables against what the log says, which is what the metrics show too.

use std::sync::Arc;

use basalt_proto::{Frame, GroupName, Offset, PartitionId};

use super::{Fixture, eventually, name};
use crate::{QueryConfig, Setting};

async fn append(fixture: &Fixture, topic: &str, partition: u32, stamps: &[u64]) {
    for stamp in stamps {
        let frame = Frame::record(*stamp, b"k", b"value");
        fixture.append(topic, partition, &[frame]).await;
    }
}

#[tokio::test]
async fn files_are_the_cold_files_and_no_others() {
    let fixture = Fixture::new().await;
    fixture.create("t", 2, 1 << 20).await;
    assert!(fixture.rows("SELECT * FROM sys.files").await.is_empty());
    append(&fixture, "t", 1, &[30, 10]).await;
    fixture.cool("t").await;
    append(&fixture, "t", 1, &[50, u64::MAX]).await;
    fixture.cool("t").await;
    append(&fixture, "t", 1, &[70]).await;
    let sql = "SELECT topic, partition, base_offset, end_offset, rows, frame_bytes, min_timestamp, max_timestamp FROM sys.files ORDER BY base_offset";
    let expected = [
        "t|1|0|2|2|70|1970-01-01T00:00:00.000000010Z|1970-01-01T00:00:00.000000030Z",
        "t|1|2|4|2|70|1970-01-01T00:00:00.000000050Z|",
    ];
    assert_eq!(fixture.rows(sql).await, expected);
    let partition = fixture
        .tiered
        .partition(&name("t"), PartitionId(1))
        .unwrap();
    let snapshot = partition.snapshot();
    let paths: Vec<String> = snapshot
        .cold
        .iter()
        .map(|file| file.path.to_string())
        .collect();
    let found = fixture
        .rows("SELECT path FROM sys.files ORDER BY base_offset")
        .await;
    assert_eq!(found, paths);
    let raw = "SELECT min_timestamp_raw, max_timestamp_raw FROM sys.files ORDER BY base_offset";
    let expected = ["10|30".to_owned(), format!("50|{}", u64::MAX)];
    assert_eq!(fixture.rows(raw).await, expected);
    let totals = format!("{}|{}", paths.len(), partition.bounds().cold_bytes);
    let found = fixture
        .rows("SELECT count(*), sum(file_bytes) FROM sys.files")
        .await;
    assert_eq!(found, [totals]);
}

#[tokio::test]
async fn groups_show_where_they_stand_and_how_far_they_are_behind() {
    let fixture = Fixture::new().await;
    fixture.create("t", 2, 1 << 20).await;
    fixture.create("gone", 1, 1 << 20).await;
    append(&fixture, "t", 0, &[1, 2, 3]).await;
    let groups = fixture.tiered.log().groups();
    let group = |name: &str| GroupName::new(name).unwrap();
    let commit = |group: GroupName, topic: &str, partition, offset| {
        let partition = PartitionId(partition);
        groups
            .commit_now(
                &group,
                &fixture.tiered.log().topic(&name(topic)).unwrap(),
                partition,
                Offset(offset),
            )
            .unwrap();
    };
    commit(group("b"), "t", 0, 1);
    commit(group("a"), "t", 1, 0);
    commit(group("a"), "t", 0, 3);
    commit(group("a"), "gone", 0, 0);
    // Beyond the end, as after a lost tail: nothing is left to be read.
    commit(group("c"), "t", 0, 9);
    fixture.tiered.delete_topic(&name("gone")).await.unwrap();
    let sql = "SELECT * FROM sys.groups";
    let expected = ["a|t|0|3|3|0", "a|t|1|0|0|0", "b|t|0|1|3|2", "c|t|0|9|3|0"];
    assert_eq!(fixture.rows(sql).await, expected);
    append(&fixture, "t", 1, &[1]).await;
    let lag = "SELECT lag_records FROM sys.groups WHERE group_name = 'a' AND partition = 1";
    assert_eq!(fixture.rows(lag).await, ["1"]);
}

#[tokio::test]
async fn settings_are_those_that_the_server_handed_in() {
    let setting = Setting {
        name: "query.timeout_ms".to_owned(),
        value: "5".to_owned(),
        description: "Longest a query may run.".to_owned(),
    };
    let fixture = Fixture::with_config(QueryConfig {
        settings: Arc::new([setting]),
        ..QueryConfig::default()
    })
    .await;
    let rows = fixture.rows("SELECT * FROM sys.settings").await;
    assert_eq!(rows, ["query.timeout_ms|5|Longest a query may run."]);
}

#[tokio::test]
async fn cooling_shows_what_is_left_and_what_was_done() {
    let fixture = Fixture::new().await;
    fixture.create("t", 2, 1 << 10).await;
    for _ in 0..5 {
        let frame = Frame::record(1, b"k", &[b'x'; 400]);
        fixture.append("t", 1, &[frame]).await;
    }
    let sql = "SELECT topic, partition, backlog_segments, backlog_bytes, cooling, merging, cooled_segments, cooled_frame_bytes, cooled_bytes_per_second > 0, merged_files, last_error, retry_at FROM sys.cooling";
    let partition = fixture
        .tiered
        .partition(&name("t"), PartitionId(1))
        .unwrap();
    // Two frames fill a segment; it is sealed by another thread.
    eventually("two segments are sealed", || {
        partition.cooling_status().backlog_segments == 2
    })
    .await;
    let before = "t|1|2|1720|false|false|0|0||0||";
    assert_eq!(fixture.rows(sql).await, [before]);
    fixture.cool("t").await;
    let status = partition.cooling_status();
    assert_eq!((status.backlog_segments, status.backlog_bytes), (0, 0));
    assert_eq!(status.cooled_frame_bytes, 5 * 430);
    let after = format!(
        "t|1|0|0|false|false|{}|2150|true|0||",
        status.cooled_segments
    );
    assert_eq!(fixture.rows(sql).await, [after]);
    let files =
        "SELECT sum(cooled_file_bytes) = (SELECT sum(file_bytes) FROM sys.files) FROM sys.cooling";
    assert_eq!(fixture.rows(files).await, ["true"]);
}
