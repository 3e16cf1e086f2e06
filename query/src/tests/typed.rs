//! Tables of typed topics: the same rows hot, cold and half and half.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use basalt_log::TopicConfig;
use basalt_proto::Frame;
use basalt_proto::batch::{BatchFields, BatchWriter, Compression, RecordToWrite};
use datafusion::physical_plan::collect;

use super::{Fixture, TIERS, Tier, name};
use crate::control::QueryPool;
use crate::parameters::Query;

const ORDERS: &str = r#"{"format":"json","columns":[
    {"name":"id","type":"int64"},
    {"name":"price","type":"decimal(10, 2)"},
    {"name":"at","type":"timestamp(ms)"},
    {"name":"city","type":"string","path":"address.city"},
    {"name":"tags","type":"list<string>"}
]}"#;

impl Fixture {
    /// Gives `topic` this schema.
    pub(super) fn set_schema(&self, topic: &str, text: &str) {
        self.tiered
            .alter_topic(&name(topic), |config| {
                Ok::<_, basalt_log::TopicError>(TopicConfig {
                    schema: Some(text.into()),
                    ..config.clone()
                })
            })
            .unwrap();
    }
}

fn frames<'a>(payloads: &'a [&'a [u8]]) -> Vec<Frame<'a>> {
    payloads
        .iter()
        .map(|payload| Frame::record(1_000, b"k", payload))
        .collect()
}

#[tokio::test]
async fn bad_records_in_the_middle_are_whole_rows_in_every_tier() {
    let payloads: [&[u8]; 8] = [
        br#"{"id":1,"price":"1.50","at":"2024-05-06T07:08:09.5Z","address":{"city":"Rom"},"tags":["a",null]}"#,
        br#"{"id":2,"price":2.25}"#,
        b"not json",
        br#"{"id":"three","price":3}"#,
        b"\xff\xfe",
        br#"{"id":4,"price":4.123,"tags":["x"]}"#,
        b"",
        br#"{"id":5,"price":5,"at":1000,"tags":[]}"#,
    ];
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        fixture.set_schema("t", ORDERS);
        fixture.place("t", tier, &frames(&payloads)).await;
        let ask = async |sql: &str| fixture.rows(sql).await;
        assert_eq!(
            ask("SELECT _offset, id, price, at, city, tags, _error FROM t ORDER BY _offset").await,
            [
                "0|1|1.50|2024-05-06T07:08:09.500Z|Rom|[a, ]|",
                "1|2|2.25||||",
                "2||||||not JSON: expected ident at index 1",
                "3||||||id: \"three\" is no int64",
                "4||||||not UTF-8 at byte 0",
                "5||||||price: 4.123 is no decimal(10, 2)",
                "6||||||the payload is empty",
                "7|5|5.00|1970-01-01T00:00:01Z||[]|",
            ],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT count(*), count(id), sum(price), count(_error) FROM t").await,
            ["8|3|8.75|5"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT _offset, length(_payload) FROM t WHERE _error LIKE 'id:%'").await,
            ["3|24"],
            "a record that does not fit keeps its payload"
        );
        assert_eq!(
            ask("SELECT city, id FROM t WHERE id BETWEEN 1 AND 4 AND _offset < 7 ORDER BY id")
                .await,
            ["Rom|1", "|2"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT id FROM t ORDER BY id DESC LIMIT 2").await.len(),
            2
        );
        assert_eq!(
            ask("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 't' AND ordinal_position > 6 AND column_name IN ('id', 'at', '_error') ORDER BY ordinal_position").await.len(),
            3
        );
    }
}

#[tokio::test]
async fn a_query_that_names_no_declared_column_computes_none() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    fixture.set_schema("t", ORDERS);
    fixture
        .place("t", Tier::Half, &frames(&[b"{}", b"{}", b"{}", b"{}"]))
        .await;
    let plan = async |sql: &str| fixture.rows(&format!("EXPLAIN {sql}")).await.concat();
    for sql in [
        "SELECT count(*) FROM t",
        "SELECT _offset, _key FROM t WHERE _offset > 1",
        "SELECT _payload->>'id' FROM t",
    ] {
        assert!(!plan(sql).await.contains("TypedExec"), "{sql}");
    }
    let typed = plan("SELECT id FROM t WHERE _offset > 1").await;
    assert!(typed.contains("TypedExec"), "{typed}");
}

#[tokio::test]
async fn a_later_schema_is_that_of_older_records_too() {
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        let payloads: [&[u8]; 4] = [
            br#"{"a":1,"b":"x"}"#,
            br#"{"a":2}"#,
            br#"{"a":3,"b":"7"}"#,
            br#"{"a":4,"b":8}"#,
        ];
        fixture.place("t", tier, &frames(&payloads)).await;
        let all = "SELECT * FROM t";
        let columns = async || {
            fixture
                .engine
                .query(all)
                .await
                .unwrap()
                .schema()
                .fields()
                .len()
        };
        assert_eq!(columns().await, 7);
        let with = |columns: &str| format!(r#"{{"format":"json","columns":[{columns}]}}"#);
        fixture.set_schema("t", &with(r#"{"name":"a","type":"int32"}"#));
        assert_eq!(columns().await, 9);
        let ask = async |sql: &str| fixture.rows(sql).await;
        assert_eq!(
            ask("SELECT sum(a), count(_error) FROM t").await,
            ["10|0"],
            "{tier:?}"
        );
        // One more column: records that have none of it have NULL.
        fixture.set_schema(
            "t",
            &with(r#"{"name":"a","type":"int32"},{"name":"b","type":"string"}"#),
        );
        assert_eq!(
            ask("SELECT a, b, _error FROM t ORDER BY _offset").await,
            ["1|x|", "2||", "3|7|", "||b: 8 is no string"],
            "{tier:?}"
        );
        // Another type, another path: what does not fit says why.
        fixture.set_schema("t", &with(r#"{"name":"a","type":"int8","path":"b"}"#));
        assert_eq!(
            ask("SELECT a, _error FROM t ORDER BY _offset").await,
            ["|a: \"x\" is no int8", "|", "|a: \"7\" is no int8", "8|"],
            "{tier:?}"
        );
        fixture.set_schema("t", r#"{"format":"raw"}"#);
        assert_eq!(columns().await, 7);
    }
}

#[tokio::test]
async fn a_frame_of_lines_is_a_row_a_line() {
    let schema = r#"{"format":"ndjson","columns":[{"name":"n","type":"int64"}]}"#;
    let many: String = (0..2_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let frame = |payload: &'static [u8], count| {
        let mut frame = Frame::record(5, b"key", payload);
        frame.header.record_count = count;
        frame
    };
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        fixture.set_schema("t", schema);
        let mut long = Frame::record(6, b"", many.as_bytes());
        long.header.record_count = 2_000;
        let frames = [
            frame(b"{\"n\":1}\n{\"n\":\"two\"}\r\n{\"n\":3}\n", 3),
            frame(b"{\"n\":4}\n", 1),
            frame(b"{\"n\":5}\n{\"n\":6}", 3),
            long,
        ];
        fixture.place("t", tier, &frames).await;
        let ask = async |sql: &str| fixture.rows(sql).await;
        assert_eq!(
            ask("SELECT _offset, n, _record_count, _key, _error FROM t WHERE _offset < 8 ORDER BY _offset").await,
            [
                "0|1|1|6b6579|",
                "1||1|6b6579|n: \"two\" is no int64",
                "2|3|1|6b6579|",
                "3|4|1|6b6579|",
                "4||3|6b6579|2 lines for 3 records",
                "7|0|1||",
            ],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT _payload FROM t WHERE _offset = 1").await,
            [hex(b"{\"n\":\"two\"}")],
            "{tier:?}"
        );
        // The offset is none that stands in a file or a block.
        assert_eq!(
            ask("SELECT n FROM t WHERE _offset = 1507").await,
            ["1500"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT count(*), sum(n), min(_offset), max(_offset) FROM t WHERE _offset >= 7")
                .await,
            ["2000|1999000|7|2006"],
            "{tier:?}"
        );
        assert_eq!(ask("SELECT count(*) FROM t").await, ["2005"], "{tier:?}");
        assert_eq!(ask("SELECT n FROM t LIMIT 4").await.len(), 4);
        assert_eq!(
            ask("SELECT _offset FROM t ORDER BY _offset DESC LIMIT 1").await,
            ["2006"]
        );
    }
}

#[tokio::test]
async fn records_of_batches_are_rows_and_tombstones_have_no_error() {
    let schema = r#"{"format":"json","columns":[{"name":"n","type":"int64"}]}"#;
    let mut writer = BatchWriter::new(BatchFields::compressed(Compression::Zstd)).unwrap();
    for value in [Some(&b"{\"n\":1}"[..]), None, Some(b"[")] {
        let record = RecordToWrite {
            timestamp_ms: 1,
            key: Some(b"k"),
            value,
            headers: &[],
        };
        writer.push(&record).unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    for tier in [Tier::Hot, Tier::Cold] {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        fixture.set_schema("t", schema);
        fixture
            .place("t", tier, &[Frame::batch(1, &batch, 3)])
            .await;
        let rows = fixture
            .rows("SELECT _offset, n, _payload IS NULL, _error IS NULL FROM t ORDER BY _offset")
            .await;
        assert_eq!(
            rows,
            ["0|1|false|true", "1||true|true", "2||false|false"],
            "{tier:?}"
        );
    }
}

#[tokio::test]
async fn pub_typed_one_query_sees_one_schema() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    fixture.set_schema("t", ORDERS);
    fixture
        .place("t", Tier::Half, &frames(&[br#"{"id":1}"#, br#"{"id":2}"#]))
        .await;
    let joined = "SELECT a.id FROM t a JOIN t b ON a.id = b.id + 1 AND a._error IS NULL";
    assert_eq!(fixture.rows(joined).await, ["2"]);
    let error = fixture.error("SELECT nothing FROM t").await;
    assert!(error.to_string().contains("nothing"), "{error}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a file stores is what would be computed, and is read only where it is that (COL-26).
#[tokio::test]
async fn stored_columns_are_read_where_they_are_those_of_the_schema() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    let with = |columns: &str| format!(r#"{{"format":"json","columns":[{columns}]}}"#);
    let first = with(r#"{"name":"n","type":"int64"}"#);
    let second = with(r#"{"name":"n","type":"int64"},{"name":"s","type":"int64"}"#);
    let payloads: Vec<String> = (0..400_i64)
        .map(|n| match n % 10 {
            7 => "broken".to_owned(),
            8 => format!(r#"{{"n":{n},"s":"text"}}"#),
            _ => format!(r#"{{"n":{n},"s":{}}}"#, n * 2),
        })
        .collect();
    let frames: Vec<_> = payloads
        .iter()
        .map(|payload| Frame::record(1, b"", payload.as_bytes()))
        .collect();
    // Without a schema, by the first, by the second, and hot.
    for (part, schema) in frames
        .chunks(100)
        .zip([None, Some(&first), Some(&second), None])
    {
        if let Some(schema) = schema {
            fixture.set_schema("t", schema);
        }
        for frame in part {
            fixture.append("t", 0, std::slice::from_ref(frame)).await;
        }
        if part.last() != frames.last() {
            fixture.cool("t").await;
        }
    }
    let ask = async |sql: &str| fixture.rows(sql).await;
    let scans = async |sql: &str| {
        let plan = ask(&format!("EXPLAIN {sql}")).await.concat();
        plan.matches("TypedExec").count()
    };
    let sums = "SELECT count(*), count(n), sum(n), count(_error) FROM t";
    fixture.set_schema("t", &first);
    assert_eq!(ask(sums).await, ["400|360|71720|40"]);
    assert_eq!(
        scans("SELECT n FROM t").await,
        2,
        "cold files of other schemas, and hot records"
    );
    fixture.set_schema("t", &second);
    assert_eq!(ask(sums).await, ["400|320|63600|80"]);
    assert_eq!(
        ask("SELECT _offset, n, s FROM t WHERE n IN (106, 108, 206, 208, 306) ORDER BY 1").await,
        ["106|106|212", "206|206|412", "306|306|612"]
    );
    // Records that do not fit the second schema are whole by the first, wherever they lie.
    fixture.set_schema("t", &first);
    assert_eq!(
        ask("SELECT _offset, n, _error FROM t WHERE _offset % 100 = 8 ORDER BY 1").await,
        ["8|8|", "108|108|", "208|208|", "308|308|"]
    );
}

#[tokio::test]
async fn statistics_of_stored_columns_leave_row_groups_unread() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    fixture.set_schema("t", r#"{"format":"json","columns":[{"name":"n","type":"int64"},{"name":"d","type":"decimal(5, 1)"}]}"#);
    for round in 0..10_i64 {
        let payloads: Vec<String> = (0..50)
            .map(|n| format!(r#"{{"n":{},"d":{round}.5}}"#, round * 50 + n))
            .collect();
        let frames: Vec<_> = payloads
            .iter()
            .map(|payload| Frame::record(1, b"", payload.as_bytes()))
            .collect();
        fixture.append("t", 0, &frames).await;
        fixture.cool("t").await;
    }
    let scanned = async |sql: &str| {
        let (rows, sums) = super::pruning::metrics(&fixture, sql, &["bytes_scanned"]).await;
        (rows, sums[0])
    };
    let (rows, whole) = scanned("SELECT n FROM t").await;
    assert_eq!(rows, 500);
    for condition in ["n = 123", "d = 2.5 AND n < 101", "n > 499 OR n = 5"] {
        let (rows, some) = scanned(&format!("SELECT n FROM t WHERE {condition}")).await;
        assert_eq!(rows, 1, "{condition}");
        assert!(some * 2 < whole, "{condition}: {some} of {whole} bytes");
    }
    let (_, with_payload) = scanned("SELECT n, _payload FROM t").await;
    assert!(
        whole < with_payload,
        "payloads are not read: {whole} of {with_payload}"
    );
}

#[tokio::test]
async fn lines_with_a_large_key_are_handed_on_a_few_at_a_time() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 64 << 20).await;
    fixture.set_schema(
        "t",
        r#"{"format":"ndjson","columns":[{"name":"a","type":"int64"}]}"#,
    );
    let lines = "{\"a\":1}\n".repeat(100);
    // Each row has its key: of thousands there is no room for all of them in one batch.
    let key = vec![b'k'; 1 << 20];
    let mut frame = Frame::record(1, &key, lines.as_bytes());
    frame.header.record_count = 100;
    fixture.append("t", 0, &[frame]).await;
    let mut planned = fixture
        .engine
        .planner()
        .plan(&Query::plain("SELECT _key, a FROM t"))
        .await
        .unwrap();
    let plan = planned.physical_plan(0).await.unwrap();
    let shared = &fixture.engine.planner().template.runtime_env().memory_pool;
    let pool = Arc::new(QueryPool::new(Arc::clone(shared)));
    let batches = collect(plan, planned.task_context(&pool).unwrap())
        .await
        .unwrap();
    let rows: Vec<_> = batches.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(rows.iter().sum::<usize>(), 100);
    assert!(rows.iter().all(|rows| *rows <= 8), "{rows:?}");
}

#[tokio::test]
async fn a_topic_never_written_to_has_no_rows_and_no_sums() {
    let fixture = Fixture::new().await;
    fixture.create("t", 3, 1 << 20).await;
    let sums = "SELECT count(*), sum(_offset), min(_offset), max(_timestamp) FROM t";
    assert_eq!(fixture.rows(sums).await, ["0|||"]);
    fixture.append("t", 1, &[Frame::record(7, b"", b"x")]).await;
    assert_eq!(
        fixture.rows(sums).await,
        ["1|0|0|1970-01-01T00:00:00.000000007Z"]
    );
}

#[tokio::test]
async fn a_topic_made_again_has_nothing_of_the_old_one() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    let payloads = vec![&b"{}"[..]; 100];
    fixture.place("t", Tier::Cold, &frames(&payloads)).await;
    fixture.tiered.delete_topic(&name("t")).await.unwrap();
    fixture.create("t", 1, 1 << 20).await;
    fixture.place("t", Tier::Hot, &frames(&payloads[..3])).await;
    for _ in 0..2 {
        assert_eq!(
            fixture
                .rows("SELECT count(*), min(_offset), max(_offset) FROM t")
                .await,
            ["3|0|2"]
        );
        fixture.cool("t").await;
    }
    assert_eq!(
        fixture
            .rows("SELECT sum(rows) FROM sys.files WHERE topic = 't'")
            .await,
        ["3"]
    );
}
