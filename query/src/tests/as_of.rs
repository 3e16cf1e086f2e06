//! Reading a cut again.

use arrow::ipc::writer::StreamWriter;
use basalt_log::TopicConfig;
use basalt_proto::Frame;
use tonic::Code;

use super::{Fixture, name, rows_of};
use crate::{QueryError, SnapshotError};

/// Whatever depends on order, on batches or on both. `{}` is the token.
const STATEMENTS: [&str; 13] = [
    "SELECT * FROM t AS OF '{}'",
    "SELECT count(*) FROM t AS OF '{}'",
    "SELECT sum((_payload->'x')::double), avg(json_get_int(_payload, 'n')) FROM t AS OF '{}'",
    "SELECT _payload->>'g' g, sum((_payload->'x')::double), count(*) FROM t AS OF '{}' GROUP BY g",
    "SELECT DISTINCT _payload->>'g' FROM t AS OF '{}'",
    "SELECT _offset, _payload FROM t AS OF '{}' WHERE _offset > 10 AND _offset <= 90 AND _payload->>'g' <> 'g1'",
    "SELECT _partition, _offset FROM t AS OF '{}' ORDER BY _payload->>'g' LIMIT 7",
    "SELECT sum((_payload->'x')::double) FROM t AS OF '{}' WHERE _timestamp > TIMESTAMP '1970-01-01T00:00:00.00003Z'",
    "SELECT a._offset, b._offset FROM t AS OF '{}' a JOIN t AS OF '{}' b ON a._payload->>'g' = b._payload->>'g' WHERE a._partition = 1 LIMIT 50",
    "SELECT _offset FROM t AS OF '{}' UNION ALL SELECT -_offset FROM u AS OF '{}'",
    "SELECT g, sum(x) FROM (SELECT _payload->>'g' g, (_payload->'x')::double x FROM t AS OF '{}' UNION ALL SELECT _payload->>'g', 0.1 FROM u AS OF '{}') GROUP BY g",
    "SELECT _offset, sum((_payload->'x')::double) OVER (PARTITION BY _payload->>'g' ORDER BY _timestamp) FROM t AS OF '{}'",
    "SELECT array_agg(_offset), string_agg(_payload->>'g', ',') FROM t AS OF '{}' WHERE _partition = 0",
];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The token of what a query over both topics sees now.
async fn token(fixture: &Fixture) -> String {
    let sql = "SELECT count(*) FROM t, (SELECT count(*) FROM u)";
    let rows = fixture.engine.query(sql).await.unwrap();
    rows.snapshot().unwrap().to_owned()
}

/// The same of topics with declared columns, with lines, and with stamps that no column can say.
const TYPED: [&str; 8] = [
    "SELECT * FROM typed AS OF '{}'",
    "SELECT n, x, s, ok, tags, _timestamp, _error FROM typed AS OF '{}' WHERE _offset % 3 <> 1",
    "SELECT s, sum(x), avg(n) FROM typed AS OF '{}' GROUP BY s",
    "SELECT json_get_int(_payload, 'n'), json_get_bool(_payload, 'ok'), _payload->>'s' FROM typed AS OF '{}'",
    "SELECT * FROM lines AS OF '{}'",
    "SELECT _offset, _key, n FROM lines AS OF '{}' WHERE n > 3 LIMIT 11",
    "SELECT n, s FROM typed AS OF '{}' WHERE s < 'c' ORDER BY n NULLS FIRST, _offset LIMIT 9",
    "SELECT typed.n, lines._offset FROM typed AS OF '{}' JOIN lines AS OF '{}' ON typed.n = lines.n",
];

/// Everything a client gets, byte for byte.
async fn bytes(fixture: &Fixture, sql: &str) -> Vec<u8> {
    let batches = fixture.batches(sql).await;
    let batches = batches.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut bytes = Vec::new();
    if let Some(first) = batches.first() {
        let mut writer = StreamWriter::try_new(&mut bytes, &first.schema()).unwrap();
        for batch in &batches {
            writer.write(batch).unwrap();
        }
        writer.finish().unwrap();
    }
    bytes
}

async fn answers(fixture: &Fixture, token: &str) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for statement in STATEMENTS {
        answers.push(bytes(fixture, &statement.replace("{}", token)).await);
    }
    answers
}

async fn append(fixture: &Fixture, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let payloads: Vec<String> = (0..1 + random.below(40))
            .map(|_| {
                let (n, g) = (random.below(1_000), random.below(5));
                let x = n as f64 * 0.1 + 1e9 / (1.0 + random.below(7) as f64);
                match random.below(9) {
                    0 => "no json".to_owned(),
                    _ => format!(r#"{{"n":{n},"g":"g{g}","x":{x}}}"#),
                }
            })
            .collect();
        let frames: Vec<_> = payloads
            .iter()
            .map(|payload| Frame::record(random.below(100_000), b"k", payload.as_bytes()))
            .collect();
        let (topic, partition) = match random.below(4) {
            0 => ("u", 0),
            other => ("t", u32::try_from(other % 2).unwrap()),
        };
        fixture.append(topic, partition, &frames).await;
    }
}

async fn history(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut fixture = Fixture::new().await;
    fixture.create("t", 2, 4 << 10).await;
    fixture.create("u", 1, 4 << 10).await;
    append(&fixture, &mut random).await;
    let mut known: Vec<(String, Vec<Vec<u8>>)> = Vec::new();
    let mut merged = 0;
    for step in 0..12 {
        match random.below(5) {
            0 => fixture.cool("t").await,
            1 => fixture.cool("u").await,
            2 => {
                let report = fixture.tiered.maintain().await;
                assert!(report.errors.is_empty(), "{:?}", report.errors);
                merged += report.merged.files_in;
            }
            3 if step % 4 == 3 => fixture = fixture.restarted().await,
            _ => append(&fixture, &mut random).await,
        }
        if step % 4 == 1 {
            let token = token(&fixture).await;
            // The same rows as without a token, in whatever order.
            let sorted = async |sql: &str| {
                let mut rows = fixture.rows(sql).await;
                rows.sort_unstable();
                rows
            };
            let now = sorted("SELECT * FROM t").await;
            let then = sorted(&format!("SELECT * FROM t AS OF '{token}'")).await;
            assert_eq!(now, then, "seed {seed}, step {step}");
            let answers = answers(&fixture, &token).await;
            known.push((token, answers));
        }
        for (token, expected) in &known {
            for (found, (expected, sql)) in answers(&fixture, token)
                .await
                .iter()
                .zip(expected.iter().zip(STATEMENTS))
            {
                assert!(found == expected, "seed {seed}, step {step}: {sql}");
            }
        }
    }
    merged
}

#[tokio::test]
async fn qry_13_a_cut_is_read_again_byte_for_byte_after_cooling_merging_and_restarts() {
    let mut merged = 0;
    for seed in 1..=3 {
        merged += history(seed).await;
    }
    assert!(merged > 0, "nothing was merged, the test shows nothing");
}

#[tokio::test]
async fn a_cut_of_much_is_read_in_batches_of_one_size() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 64 << 10).await;
    fixture.create("u", 1, 64 << 10).await;
    for round in 0..10 {
        let frames = vec![Frame::record(round, b"", b"0123456789"); 2_000];
        fixture.append("t", 0, &frames).await;
        if round % 3 == 0 {
            fixture.cool("t").await;
        }
    }
    let token = token(&fixture).await;
    let sql = format!("SELECT _offset FROM t AS OF '{token}' WHERE _offset % 10 <> 3");
    let sizes = async || {
        let batches = fixture.batches(&sql).await.unwrap();
        batches
            .iter()
            .map(|batch| batch.num_rows())
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes().await, [8_192, 8_192, 1_616]);
    fixture
        .append("t", 0, &[Frame::record(1, b"", b"later")])
        .await;
    fixture.cool("t").await;
    assert_eq!(sizes().await, [8_192, 8_192, 1_616]);
}

#[tokio::test]
async fn qry_14_a_cut_that_is_not_all_there_is_refused_with_what_is_missing() {
    let fixture = Fixture::new().await;
    let config = TopicConfig {
        segment_bytes: Some(4 << 10),
        retention_bytes: Some(8 << 10),
        ..TopicConfig::default()
    };
    fixture.tiered.create_topic(&name("t"), 1, config).unwrap();
    fixture.create("u", 1, 4 << 10).await;
    fixture
        .append("t", 0, &[Frame::record(1, b"", &[b'x'; 100])])
        .await;
    let first = token(&fixture).await;
    let sql = format!("SELECT count(*) FROM t AS OF '{first}'");
    assert_eq!(fixture.rows(&sql).await, ["1"]);
    for _ in 0..40 {
        fixture
            .append("t", 0, &[Frame::record(1, b"", &[b'x'; 1_000])])
            .await;
        fixture.cool("t").await;
        fixture.tiered.maintain().await;
    }
    let error = fixture.error(&sql).await;
    let QueryError::Snapshot(SnapshotError::Expired { topic, gone, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!((topic.as_str(), gone.start.0, gone.end.0), ("t", 0, 1));
    assert_eq!(error.status().code(), Code::OutOfRange);
    assert!(
        error
            .to_string()
            .contains("offsets 0 to 0 of partition 0 of topic t are gone"),
        "{error}"
    );
    // What is still there is still read, and the other topic of an old cut, too.
    let fresh = token(&fixture).await;
    let count = fixture.rows("SELECT count(*) FROM t").await;
    assert_eq!(
        fixture
            .rows(&format!("SELECT count(*) FROM t AS OF '{fresh}'"))
            .await,
        count
    );
    assert_eq!(
        fixture
            .rows(&format!("SELECT count(*) FROM u AS OF '{first}'"))
            .await,
        ["0"]
    );

    // Part of a cut is not the cut.
    for _ in 0..3 {
        fixture
            .append("t", 0, &[Frame::record(1, b"", &[b'x'; 1_000])])
            .await;
        fixture.cool("t").await;
        fixture.tiered.maintain().await;
    }
    let sql = format!("SELECT count(*) FROM t AS OF '{fresh}' WHERE _offset = 40");
    let error = fixture.error(&sql).await;
    let QueryError::Snapshot(SnapshotError::Expired { gone, .. }) = &error else {
        panic!("{error}");
    };
    assert!(gone.start < gone.end && gone.end.0 <= 40, "{gone:?}");

    fixture.tiered.delete_topic(&name("t")).await.unwrap();
    let sql = format!("SELECT count(*) FROM t AS OF '{fresh}'");
    assert_eq!(
        fixture.error(&sql).await.status().code(),
        Code::InvalidArgument
    );
    fixture.create("t", 1, 4 << 10).await;
    fixture
        .append("t", 0, &[Frame::record(1, b"", b"new")])
        .await;
    let error = fixture.error(&sql).await;
    assert!(
        matches!(&error, QueryError::Snapshot(SnapshotError::Remade { .. })),
        "{error}"
    );
    fixture.create("v", 1, 4 << 10).await;
    let error = fixture
        .error(&format!("SELECT count(*) FROM v AS OF '{fresh}'"))
        .await;
    assert!(
        matches!(
            &error,
            QueryError::Snapshot(SnapshotError::NotIncluded { .. })
        ),
        "{error}"
    );
    for strange in ["", "x", &fresh[1..], &format!("{fresh}A")] {
        let error = fixture
            .error(&format!("SELECT count(*) FROM u AS OF '{strange}'"))
            .await;
        assert!(
            matches!(&error, QueryError::Snapshot(SnapshotError::Token { .. })),
            "{error}"
        );
        assert_eq!(error.status().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_cut_has_nothing_that_came_later_and_sys_tables_are_as_they_are() {
    let fixture = Fixture::new().await;
    fixture.create("t", 3, 1 << 20).await;
    fixture.create("u", 1, 1 << 20).await;
    let empty = token(&fixture).await;
    fixture.append("t", 2, &[Frame::record(1, b"", b"a")]).await;
    let one = token(&fixture).await;
    fixture.append("t", 2, &[Frame::record(1, b"", b"b")]).await;
    fixture.append("t", 0, &[Frame::record(1, b"", b"c")]).await;
    let at = async |token: &str| {
        let sql = format!(
            "SELECT count(*), (SELECT sum(high_watermark) FROM sys.partitions WHERE topic = 't') FROM t AS OF '{token}'"
        );
        rows_of(&fixture.batches(&sql).await.unwrap())
    };
    assert_eq!(at(&empty).await, ["0|3"]);
    assert_eq!(at(&one).await, ["1|3"]);
    // A query as of a cut hands on the cut's own token.
    let sql = format!("SELECT * FROM t AS OF '{one}'");
    let rows = fixture.engine.query(&sql).await.unwrap();
    assert_eq!(rows.snapshot(), Some(one.as_str()));
}

#[tokio::test]
async fn a_cut_of_typed_topics_is_read_again_byte_for_byte() {
    let columns = r#"[{"name":"n","type":"int64"},{"name":"x","type":"float64"},{"name":"s","type":"string"},
        {"name":"ok","type":"bool"},{"name":"tags","type":"list<string>"}]"#;
    let mut random = Random(11);
    let mut fixture = Fixture::with_configs(crate::QueryConfig::default(), |cold| {
        basalt_columnar::ColdConfig {
            shred_json: true,
            ..cold
        }
    })
    .await;
    for (topic, format) in [("typed", "json"), ("lines", "ndjson")] {
        fixture.create(topic, 1, 8 << 10).await;
        fixture.set_schema(
            topic,
            &format!(r#"{{"format":"{format}","columns":{columns}}}"#),
        );
    }
    let write = async |fixture: &Fixture, random: &mut Random| {
        for index in 0..60 {
            let n = random.below(9);
            let value = |random: &mut Random, text: String| match random.below(4) {
                0 => "null".to_owned(),
                _ => text,
            };
            let s = value(
                random,
                format!("\"{}\"", ["a", "b", "c"][n.to_le_bytes()[0] as usize % 3]),
            );
            let number = value(random, n.to_string());
            let ok = value(random, n.is_multiple_of(2).to_string());
            let payload = match random.below(11) {
                0 => "no json".to_owned(),
                1 => "{}".to_owned(),
                _ => format!(r#"{{"n":{number},"s":{s},"ok":{ok},"x":{n}.5,"tags":["t",null]}}"#),
            };
            let stamp = match random.below(5) {
                0 => u64::MAX,
                _ => index,
            };
            let frame = Frame::record(stamp, b"key", payload.as_bytes());
            fixture.append("typed", 0, &[frame]).await;
            let lines = format!("{payload}\n{{\"n\":{n}}}\n");
            let mut frame = Frame::record(stamp, b"key", lines.as_bytes());
            frame.header.record_count = 2;
            fixture.append("lines", 0, &[frame]).await;
        }
    };
    write(&fixture, &mut random).await;
    let sql = "SELECT count(*) FROM typed, (SELECT count(*) FROM lines)";
    let rows = fixture.engine.query(sql).await.unwrap();
    let token = rows.snapshot().unwrap().to_owned();
    drop(rows);
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for statement in TYPED {
        expected.push(bytes(&fixture, &statement.replace("{}", &token)).await);
    }
    for step in 0..5 {
        match step {
            0 => write(&fixture, &mut random).await,
            1 | 3 => {
                fixture.cool("typed").await;
                fixture.cool("lines").await;
                write(&fixture, &mut random).await;
            }
            2 => fixture = fixture.restarted().await,
            _ => {
                fixture.cool("typed").await;
                fixture.cool("lines").await;
                let report = fixture.tiered.maintain().await;
                assert!(report.merged.files_in > 0, "{report:?}");
            }
        }
        for (statement, expected) in TYPED.iter().zip(&expected) {
            let found = bytes(&fixture, &statement.replace("{}", &token)).await;
            assert!(found == *expected, "step {step}: {statement}");
        }
    }
}

#[tokio::test]
async fn columns_whose_types_follow_files_are_refused_as_of_a_token() {
    let fixture = Fixture::with_configs(crate::QueryConfig::default(), |cold| {
        basalt_columnar::ColdConfig {
            shred_json: true,
            ..cold
        }
    })
    .await;
    fixture.create("t", 1, 1 << 20).await;
    fixture.create("u", 1, 1 << 20).await;
    let payload = &br#"{"a":{"b":1}}"#[..];
    fixture.append_payloads("t", 0, &[payload; 200]).await;
    fixture.cool("t").await;
    assert_eq!(
        fixture.rows("SELECT sum(\"payload.a.b\") FROM t").await,
        ["200"]
    );
    let token = token(&fixture).await;
    let error = fixture
        .error(&format!(
            "SELECT sum(\"payload.a.b\") FROM t AS OF '{token}'"
        ))
        .await;
    assert_eq!(error.status().code(), Code::InvalidArgument);
    let text = error.to_string();
    assert!(text.contains("json_get_int(_payload, 'a', 'b')"), "{text}");
    assert_eq!(
        fixture
            .rows(&format!(
                "SELECT sum(json_get_int(_payload, 'a', 'b')) FROM t AS OF '{token}'"
            ))
            .await,
        ["200"]
    );
}
