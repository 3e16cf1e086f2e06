//! What is answered besides topics, and what is refused.

use basalt_proto::Frame;
use tonic::Code;

use super::Fixture;
use crate::QueryError;

#[tokio::test]
async fn the_server_describes_itself() {
    let fixture = Fixture::new().await;
    fixture.create("b", 2, 4096).await;
    fixture.create("a", 1, 1 << 20).await;
    fixture
        .append(
            "b",
            1,
            &[Frame::record(3, b"k", b"v"), Frame::record(9, b"k", b"v")],
        )
        .await;
    let topics = "SELECT topic, partition_count, segment_bytes, retention_bytes FROM sys.topics ORDER BY topic";
    assert_eq!(fixture.rows(topics).await, ["a|1|1048576|", "b|2|4096|"]);
    let partitions = "SELECT topic, partition, high_watermark, hot_bytes, cold_bytes FROM sys.partitions ORDER BY 1, 2";
    assert_eq!(
        fixture.rows(partitions).await,
        ["a|0|0|0|0", "b|0|0|0|0", "b|1|2|62|0"]
    );
    let segments = "SELECT tier, base_offset, end_offset, frame_bytes, min_timestamp, sealed FROM sys.segments WHERE topic = 'b' AND partition = 1";
    assert_eq!(
        fixture.rows(segments).await,
        ["hot|0|2|62|1970-01-01T00:00:00.000000003Z|false"]
    );
    fixture.cool("b").await;
    let segments = "SELECT tier, base_offset, end_offset, frame_bytes, path LIKE 'b/%.parquet' FROM sys.segments WHERE topic = 'b' AND partition = 1";
    assert_eq!(fixture.rows(segments).await, ["cold|0|2|62|true"]);
    let tables = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema <> 'information_schema' ORDER BY 1, 2";
    let expected = [
        "public|a",
        "public|b",
        "sys|cooling",
        "sys|files",
        "sys|groups",
        "sys|partitions",
        "sys|queries",
        "sys|segments",
        "sys|settings",
        "sys|topics",
    ];
    assert_eq!(fixture.rows(tables).await, expected);
    assert_eq!(
        fixture
            .rows("SELECT count(*) FROM sys.topics t JOIN sys.partitions p ON t.topic = p.topic")
            .await,
        ["3"]
    );
    assert!(
        !fixture
            .rows("EXPLAIN SELECT _offset FROM b")
            .await
            .is_empty()
    );
    assert!(!fixture.rows("SHOW TABLES").await.is_empty());
}

#[tokio::test]
async fn only_reading_is_allowed() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 4096).await;
    for sql in [
        "CREATE TABLE x (a INT)",
        "CREATE TABLE x AS SELECT 1",
        "CREATE VIEW x AS SELECT 1",
        "CREATE SCHEMA x",
        "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'",
        "DROP TABLE t",
        "INSERT INTO t (_offset) VALUES (1)",
        "DELETE FROM t",
        "UPDATE t SET _offset = 1",
        "COPY t TO '/tmp/t.parquet'",
        "COPY (SELECT 1) TO '/tmp/t.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/t.csv'",
        "SET datafusion.execution.batch_size = 1",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "SELECT * FROM '/etc/passwd'",
        "SELECT 1; SELECT 2",
        "SELECT",
        "SELEC 1",
        "",
    ] {
        let error = fixture.error(sql).await;
        assert_eq!(
            error.status().code(),
            Code::InvalidArgument,
            "{sql}: {error}"
        );
    }
    assert!(!std::path::Path::new("/tmp/t.csv").exists());
    assert!(matches!(
        fixture.error("DROP TABLE t").await,
        QueryError::ReadOnly { .. }
    ));
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test]
async fn parameters_without_values_are_refused_and_counted() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 4096).await;
    for (sql, count) in [
        ("SELECT * FROM t WHERE _offset = $2", 2),
        ("SELECT * FROM t WHERE _offset = ?", 1),
        ("EXPLAIN SELECT ?", 1),
    ] {
        let error = fixture.error(sql).await;
        assert!(
            matches!(&error, QueryError::Parameters { expected, found: 0 } if *expected == count),
            "{error}"
        );
    }
    for sql in ["SELECT :a", "SELECT $a", "SELECT ?, $1"] {
        let error = fixture.error(sql).await;
        assert_eq!(error.status().code(), Code::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn a_fault_in_the_data_is_the_statement_s_and_names_its_cause() {
    let fixture = Fixture::new().await;
    let error = fixture.error("SELECT 1 / 0").await;
    assert_eq!(error.status().code(), Code::InvalidArgument);
    assert!(
        error.to_string().to_lowercase().contains("divide by zero"),
        "{error}"
    );
    for sql in [
        "SELECT 'a' ~ '('",
        "SELECT value FROM (VALUES ('a')) t(value) WHERE value ~ '('",
        "SELECT regexp_like(value, '(') FROM (VALUES ('a')) t(value)",
        "SELECT regexp_replace(value, '(', 'x') FROM (VALUES ('a')) t(value)",
        "SELECT regexp_count(value, '(') FROM (VALUES ('a')) t(value)",
        "SELECT regexp_match(value, '(') FROM (VALUES ('a')) t(value)",
    ] {
        let error = fixture.error(sql).await;
        assert_eq!(
            error.status().code(),
            Code::InvalidArgument,
            "{sql}: {error}"
        );
    }
    let error = fixture.error("SELECT no_such_column FROM sys.topics").await;
    assert!(error.to_string().contains("no_such_column"), "{error}");
}

#[tokio::test]
async fn long_and_deep_statements_are_answered_or_refused_and_never_end_the_process() {
    let fixture = Fixture::new().await;
    // As deep as is let through, and deeper.
    for (start, step) in [
        ("SELECT 1", "+1"),
        (
            "SELECT value FROM generate_series(1, 2) WHERE value = 1",
            " OR value = 1",
        ),
        ("SELECT 1", " UNION ALL SELECT 1"),
        ("SELECT 1", " IS NULL"),
        ("SELECT 1", "::int"),
        ("SELECT ''", "||''"),
        ("SELECT '{}'", "->'a'"),
    ] {
        for times in [400, 50_000] {
            match fixture
                .batches(&format!("{start}{}", step.repeat(times)))
                .await
            {
                Ok(_) => assert!(times < 1_000, "{step}"),
                Err(error) => assert_eq!(
                    error.status().code(),
                    Code::InvalidArgument,
                    "{step} {times}: {error}"
                ),
            }
        }
    }
    let sql = format!("SELECT {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert_eq!(
        fixture.error(&sql).await.status().code(),
        Code::InvalidArgument
    );
    let sql = format!("SELECT '{}'", "x".repeat(2 << 20));
    assert!(matches!(
        fixture.error(&sql).await,
        QueryError::TooLong { .. }
    ));
    assert_eq!(fixture.rows("SELECT 1").await, ["1"]);
}
