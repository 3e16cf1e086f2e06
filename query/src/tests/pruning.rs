//! What a filter or a limit leaves unread.

use std::sync::Arc;

use basalt_proto::Frame;
use datafusion::physical_plan::{ExecutionPlan, collect};

use super::Fixture;
use crate::control::QueryPool;
use crate::parameters::Query;

/// Runs `sql` and adds up a metric over its plan.
pub(super) async fn metrics(fixture: &Fixture, sql: &str, names: &[&str]) -> (usize, Vec<usize>) {
    let mut planned = fixture
        .engine
        .planner()
        .plan(&Query::plain(sql))
        .await
        .unwrap();
    let plan = planned.physical_plan(0).await.unwrap();
    let shared = &fixture.engine.planner().template.runtime_env().memory_pool;
    let pool = Arc::new(QueryPool::new(Arc::clone(shared)));
    let batches = collect(Arc::clone(&plan), planned.task_context(&pool).unwrap())
        .await
        .unwrap();
    let sums = names.iter().map(|name| sum(&plan, name)).collect();
    (batches.iter().map(|batch| batch.num_rows()).sum(), sums)
}

fn sum(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let own = plan
        .metrics()
        .and_then(|metrics| metrics.sum_by_name(name))
        .map_or(0, |value| value.as_usize());
    own + plan
        .children()
        .into_iter()
        .map(|child| sum(child, name))
        .sum::<usize>()
}

/// 20 cold files of 100 records, then 500 hot ones; the stamp is a thousand times the offset.
async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    for round in 0..25_u64 {
        let frames: Vec<_> = (0..100)
            .map(|n| Frame::record((round * 100 + n) * 1_000, b"", b"0123456789"))
            .collect();
        fixture.append("t", 0, &frames).await;
        if round < 20 {
            fixture.cool("t").await;
        }
    }
    fixture
}

#[tokio::test]
async fn filters_on_offset_stamp_and_partition_open_only_what_can_match() {
    let fixture = fixture().await;
    let names = ["files_opened", "blocks_read"];
    let all = "SELECT _offset, _payload FROM t";
    let (rows, sums) = metrics(&fixture, all, &names).await;
    assert_eq!((rows, sums[0]), (2_500, 20));
    let all_blocks = sums[1];
    assert!(all_blocks > 10, "{all_blocks} blocks");
    for (filter, expected_rows, files, blocks) in [
        ("_offset >= 450 AND _offset < 550", 100, 2, 0..=0),
        ("_offset = 2250", 1, 0, 1..=1),
        ("_timestamp < to_timestamp_nanos(100000)", 100, 1, 0..=0),
        ("_timestamp >= to_timestamp_nanos(2499000)", 1, 0, 1..=1),
        ("_offset BETWEEN 1950 AND 2010", 61, 1, 1..=1),
        ("_partition = 1", 0, 0, 0..=0),
        ("_offset IN (5, 2499)", 2, 1, 1..=1),
    ] {
        let (rows, sums) = metrics(&fixture, &format!("{all} WHERE {filter}"), &names).await;
        assert_eq!((rows, sums[0]), (expected_rows, files), "{filter}");
        assert!(
            blocks.contains(&sums[1]),
            "{filter}: {} of {all_blocks} blocks",
            sums[1]
        );
    }
}

#[tokio::test]
async fn a_limit_opens_few_files() {
    let fixture = fixture().await;
    let (rows, sums) = metrics(
        &fixture,
        "SELECT _offset, _payload FROM t LIMIT 5",
        &["files_opened", "blocks_read"],
    )
    .await;
    assert_eq!(rows, 5);
    assert!(sums[0] <= 4 && sums[1] <= 4, "{sums:?}");
}

#[tokio::test]
async fn counting_reads_no_hot_block() {
    let fixture = fixture().await;
    let (_, sums) = metrics(&fixture, "SELECT count(*) FROM t", &["blocks_read"]).await;
    assert_eq!(sums, [0]);
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, ["2500"]);
    assert_eq!(
        fixture
            .rows("SELECT count(*) FROM t WHERE _offset >= 1999")
            .await,
        ["501"]
    );
}

#[tokio::test]
async fn a_limit_counts_rows_that_pass_the_filter() {
    let fixture = fixture().await;
    let count = fixture.rows("SELECT count(*) FROM t").await;
    let count: usize = count[0].parse().unwrap();
    // One in a hundred, spread over all files.
    let matching = count / 100;
    for (limit, expected) in [
        ("LIMIT 3", 3.min(matching)),
        ("LIMIT 1000000", matching),
        ("LIMIT 1000000 OFFSET 1", matching - 1),
    ] {
        let sql = format!(
            "SELECT count(*) FROM (SELECT _offset FROM t WHERE _offset % 100 = 99 {limit})"
        );
        assert_eq!(fixture.rows(&sql).await, [expected.to_string()], "{limit}");
    }
}
