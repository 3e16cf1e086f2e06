//! Limits, cancellation and accidents.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::DataType;
use basalt_proto::{Frame, PartitionId};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use futures::StreamExt;
use tonic::Code;

use super::{Fixture, eventually};
use crate::parameters::Query;
use crate::planner::Planner;
use crate::{QueryConfig, QueryError};

/// Rows without end, for all that a test waits for.
const ENDLESS: &str = "SELECT value FROM generate_series(1, 9223372036854775806)";

fn small(memory_bytes: usize, timeout: Duration) -> QueryConfig {
    QueryConfig {
        memory_bytes,
        timeout,
        target_partitions: 2,
        ..QueryConfig::default()
    }
}

#[tokio::test]
async fn a_query_past_its_deadline_is_ended_and_says_so() {
    let fixture = Fixture::with_config(small(64 << 20, Duration::from_millis(300))).await;
    let error = fixture
        .error(&format!(
            "SELECT count(*) FROM ({ENDLESS}) WHERE value % 2 = 5"
        ))
        .await;
    assert!(matches!(error, QueryError::Deadline { .. }), "{error}");
    assert_eq!(error.status().code(), Code::DeadlineExceeded);
    assert_eq!(fixture.engine.counters().failed, 1);
}

#[tokio::test]
async fn a_query_that_needs_too_much_memory_is_refused_and_frees_it() {
    let fixture = Fixture::with_config(small(1 << 20, Duration::from_secs(60))).await;
    let sql = "SELECT count(*) FROM (SELECT DISTINCT value, value * 2 FROM generate_series(1, 3000000)) a \
               JOIN generate_series(1, 3000000) b ON a.value = b.value";
    let error = fixture.error(sql).await;
    assert_eq!(error.status().code(), Code::ResourceExhausted, "{error}");
    eventually("the memory is free again", || {
        fixture
            .engine
            .planner()
            .template
            .runtime_env()
            .memory_pool
            .reserved()
            == 0
    })
    .await;
}

#[tokio::test]
async fn dropping_the_stream_ends_the_query() {
    let fixture = Fixture::new().await;
    let mut rows = fixture.engine.query(ENDLESS).await.unwrap();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    assert_eq!(fixture.engine.counters().running, 1);
    drop(rows);
    eventually("the query is cancelled", || {
        fixture.engine.counters().cancelled == 1
    })
    .await;
    let counters = fixture.engine.counters();
    assert_eq!((counters.started, counters.running), (1, 0));
}

/// A count over a cross join held every thread of the engine: neither its deadline nor its reader's leaving ended it.
#[tokio::test]
async fn a_join_that_multiplies_ends_at_its_deadline_and_lets_others_in() {
    let fixture = Fixture::with_config(small(256 << 20, Duration::from_secs(2))).await;
    let endless = "SELECT count(*) FROM generate_series(1, 20000) a \
                   CROSS JOIN generate_series(1, 20000) b CROSS JOIN generate_series(1, 20000) c";
    let mut heavy = Vec::new();
    for _ in 0..4 {
        let mut rows = fixture.engine.query(endless).await.unwrap();
        heavy.push(tokio::spawn(async move { rows.next().await }));
    }
    assert_eq!(fixture.rows("SELECT 1").await, ["1"]);
    for query in heavy {
        let ended = tokio::time::timeout(Duration::from_secs(30), query).await;
        let answer = ended.expect("the deadline ends it").unwrap();
        assert!(
            matches!(answer, Some(Err(QueryError::Deadline { .. }))),
            "{answer:?}"
        );
    }
    assert_eq!(fixture.rows("SELECT 2").await, ["2"]);
}

#[tokio::test]
async fn a_finished_query_unpins_what_it_read() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    fixture.append("t", 0, &[Frame::record(1, b"", b"x")]).await;
    let partition = fixture
        .tiered
        .partition(&super::name("t"), PartitionId(0))
        .unwrap();
    let view = partition.snapshot().hot[0].clone();
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, ["1"]);
    eventually("only this test holds the view", || {
        Arc::strong_count(&view) <= 2
    })
    .await;
    assert_eq!(fixture.engine.counters().succeeded, 1);
}

#[tokio::test]
async fn a_panic_ends_its_query_and_no_other() {
    let fixture = Fixture::new().await;
    let explode = create_udf(
        "explode",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(|_: &[ColumnarValue]| panic!("a bug in a function")),
    );
    let mut other = fixture.engine.query(ENDLESS).await.unwrap();
    assert!(other.next().await.unwrap().is_ok());
    let error = fixture
        .engine
        .query_with(&explode, "SELECT explode(value) FROM generate_series(1, 3)")
        .await;
    assert!(
        matches!(&error, Err(QueryError::Panicked { message }) if message.contains("a bug in a function")),
        "{error:?}"
    );
    assert!(other.next().await.unwrap().is_ok());
    assert_eq!(fixture.rows("SELECT 1").await, ["1"]);
}

impl crate::QueryEngine {
    /// Runs `sql` with one more function, to its end.
    async fn query_with(&self, udf: &ScalarUDF, sql: &str) -> Result<usize, QueryError> {
        let mut planner = Planner::new(Arc::clone(self.log()), self.config().clone())?;
        planner
            .template
            .register_udf(Arc::new(udf.clone()))
            .unwrap();
        let mut rows =
            crate::stream::start(self.runtime(), Arc::new(planner), Query::plain(sql)).await?;
        let mut count = 0;
        while let Some(batch) = rows.next().await {
            count += batch?.num_rows();
        }
        Ok(count)
    }
}
