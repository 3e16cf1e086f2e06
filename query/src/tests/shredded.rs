//! Payloads that were shredded are the payloads that were produced, to every statement.

use arrow::datatypes::DataType;
use basalt_columnar::ColdConfig;
use basalt_proto::batch::{BatchFields, BatchWriter, Compression, RecordToWrite};
use basalt_proto::{Frame, PartitionId};

use super::pruning::metrics;
use super::{Fixture, TIERS, Tier, name, rows_of};
use crate::QueryConfig;

/// Shreds, in row groups of some hundred records.
async fn fixture() -> Fixture {
    let config = QueryConfig {
        target_partitions: 2,
        batch_rows: 64,
        ..QueryConfig::default()
    };
    Fixture::with_configs(config, |cold| ColdConfig {
        shred_json: true,
        row_group_bytes: 16 << 10,
        ..cold
    })
    .await
}

/// What one pen writes, and now and then what it never writes.
fn payload(n: u64) -> Vec<u8> {
    let id = n * 7;
    match n % 23 {
        3 => format!(r#"{{"id":{id},"user":{{"name":"n{n}","age":null}},"ratio":{n}.5,"tags":[1,"x"]}}"#),
        5 => format!(r#"{{"id":{id}.0,"user":{{"name":"\u00e9\n{n}","age":{n}}},"ratio":1e5,"tags":[]}}"#),
        7 => format!(r#"{{ "id" : {id}, "user": {{"age":{n},"name":"n{n}"}},"ratio":-0,"tags":{{"deep":[{n}]}} }}"#),
        9 => format!(r#"{{"id":{id},"user":null,"ratio":{n}.25}}"#),
        11 => format!(r#"{{"id":"{id}","id":{id},"user":{{}}}}"#),
        13 if n.is_multiple_of(10) => format!(r#"{{"id":1e9,"user":{{"name":"far","age":{n}}},"ratio":0.5,"tags":[]}}"#),
        13 => "not json".to_owned(),
        19 => format!(r#"{{"id":{id},"user":{{"name":"n{n}"}},"user":{{"age":{n}}},"ratio":1.5,"tags":[]}}"#),
        15 => String::new(),
        17 => return vec![b'{', 0xff, n.to_be_bytes()[7]],
        _ => format!(r#"{{"id":{id},"user":{{"name":"n{n}","age":{n}}},"ratio":{}.5,"tags":[{n}]}}"#, n % 10),
    }
    .into_bytes()
}

/// A batch frame of `payloads`, each third of them null.
fn batch(payloads: &[Vec<u8>]) -> (Vec<u8>, u32) {
    let mut writer = BatchWriter::new(BatchFields::compressed(Compression::None)).unwrap();
    for (index, payload) in payloads.iter().enumerate() {
        let record = RecordToWrite {
            timestamp_ms: 5,
            key: None,
            value: (index % 3 > 0).then_some(payload.as_slice()),
            headers: &[],
        };
        writer.push(&record).unwrap();
    }
    let count = writer.record_count();
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    (bytes, count)
}

/// The same records in `tier`.
async fn filled(tier: Tier) -> Fixture {
    let fixture = fixture().await;
    fixture.create("t", 1, 64 << 10).await;
    let payloads: Vec<_> = (0..1_200).map(payload).collect();
    let (batch, count) = batch(&payloads[..90]);
    let mut frames: Vec<_> = payloads
        .iter()
        .map(|payload| Frame::record(1_000, b"k", payload))
        .collect();
    frames.insert(300, Frame::batch(9, &batch, count));
    fixture.place("t", tier, &frames).await;
    if tier != Tier::Hot {
        let shredded = "SELECT count(*) > 0 FROM sys.segments WHERE tier = 'cold'";
        assert_eq!(fixture.rows(shredded).await, ["true"]);
        assert!(is_shredded(&fixture), "nothing is shredded");
    }
    fixture
}

fn is_shredded(fixture: &Fixture) -> bool {
    let partition = fixture
        .tiered
        .partition(&name("t"), PartitionId(0))
        .unwrap();
    let cold = partition.snapshot().cold;
    !cold.is_empty() && cold.iter().all(|file| file.shredded.is_some())
}

const STATEMENTS: [&str; 14] = [
    "SELECT * FROM t ORDER BY _offset",
    "SELECT _offset, _payload, _payload IS NULL FROM t ORDER BY _offset",
    "SELECT count(*), count(_payload), count(DISTINCT _payload), max(encode(_payload, 'hex')) FROM t",
    "SELECT min(_payload), max(_payload) FROM t",
    "SELECT _offset FROM t WHERE _payload IS NULL ORDER BY 1",
    "SELECT _offset FROM t WHERE _payload LIKE '%\"name\":\"n1%' ORDER BY 1",
    "SELECT _offset FROM t WHERE _payload NOT LIKE '{\"id\"%' ORDER BY 1",
    "SELECT _offset FROM t WHERE _payload ~ '5,\"user' ORDER BY 1",
    r#"SELECT _offset FROM t WHERE _payload = '{"id":63,"user":null,"ratio":9.25}' ORDER BY 1"#,
    "SELECT _offset, encode(_payload, 'hex') FROM t WHERE _offset BETWEEN 290 AND 500 ORDER BY 1",
    "SELECT _offset, TRY_CAST(_payload AS VARCHAR), json_length(_payload), json_object_keys(_payload) FROM t ORDER BY 1",
    "SELECT a._offset, b._offset FROM t a JOIN t b ON a._payload = b._payload WHERE a._offset < 200 ORDER BY 1, 2",
    "SELECT _payload, count(*) c FROM t GROUP BY _payload ORDER BY c DESC, _payload LIMIT 7",
    "SELECT _payload FROM t WHERE _offset % 50 = 3 ORDER BY _offset DESC LIMIT 20",
];

#[tokio::test]
async fn statements_are_answered_alike_in_every_tier() {
    let mut answers: Vec<Vec<Vec<String>>> = Vec::new();
    for tier in TIERS {
        let fixture = filled(tier).await;
        let mut rows = Vec::new();
        for statement in STATEMENTS {
            rows.push(fixture.rows(statement).await);
        }
        answers.push(rows);
    }
    let [hot, others @ ..] = answers.as_slice() else {
        panic!("no answers")
    };
    assert_eq!(hot[0].len(), 1_290);
    for (index, statement) in STATEMENTS.iter().enumerate() {
        assert!(!hot[index].is_empty(), "{statement} shows nothing");
        for (tier, other) in TIERS[1..].iter().zip(others) {
            assert_eq!(other[index], hot[index], "{tier:?}: {statement}");
        }
    }
}

#[tokio::test]
async fn a_limit_gives_payloads_that_were_produced() {
    for tier in TIERS {
        let fixture = filled(tier).await;
        let rows = fixture
            .rows("SELECT _payload = (SELECT _payload FROM t b WHERE b._offset = 250) FROM t WHERE _offset >= 250 LIMIT 1")
            .await;
        assert_eq!(rows.len(), 1, "{tier:?}");
        let rows = fixture.rows("SELECT count(*), count(p) FROM (SELECT _payload p FROM t WHERE _offset < 300 LIMIT 130)").await;
        assert_eq!(rows, ["130|130"], "{tier:?}");
    }
}

#[tokio::test]
async fn files_with_and_without_columns_and_with_different_ones_are_one_table() {
    let fixture = fixture().await;
    fixture.create("t", 1, 1 << 20).await;
    let mut expected = Vec::new();
    for round in 0..4_u64 {
        for n in 0..50 {
            let payload = match round {
                0 => format!(r#"{{"a":{n}}}"#),
                1 => format!("plain {n}"),
                2 => format!(r#"{{"a":"{n}","A":[{n}]}}"#),
                _ => format!(r#"{{"b":{{"c":{n}.50}},"a":null}}"#),
            };
            fixture
                .append("t", 0, &[Frame::record(1, b"", payload.as_bytes())])
                .await;
            expected.push(payload);
        }
        if round < 3 {
            fixture.cool("t").await;
        }
    }
    let partition = fixture
        .tiered
        .partition(&name("t"), PartitionId(0))
        .unwrap();
    let shredded: Vec<_> = partition
        .snapshot()
        .cold
        .iter()
        .map(|file| file.shredded.is_some())
        .collect();
    assert_eq!(shredded, [true, false, true]);
    for cool in [false, true] {
        if cool {
            fixture.cool("t").await;
        }
        let rows = fixture
            .rows("SELECT CAST(_payload AS VARCHAR) FROM t ORDER BY _offset")
            .await;
        assert_eq!(rows, expected);
    }
}

#[tokio::test]
async fn payloads_are_read_and_rendered_only_when_they_are_asked_for() {
    let fixture = filled(Tier::Cold).await;
    let bytes = async |statement: &str| {
        let (_, sums) = metrics(&fixture, statement, &["bytes_scanned"]).await;
        sums[0]
    };
    let all = bytes("SELECT _payload FROM t").await;
    let offsets = bytes("SELECT _offset FROM t").await;
    let both = bytes("SELECT _offset, _payload FROM t").await;
    assert!(
        offsets * 4 < all,
        "{offsets} of {all} bytes for the offsets alone"
    );
    assert_eq!(both, all + offsets);
}

/// Functions and paths; `{p}` stands for the payload.
fn json_expressions() -> Vec<String> {
    let paths = [
        "'id'",
        "'user'",
        "'user', 'name'",
        "'user', 'age'",
        "'ratio'",
        "'tags'",
        "'tags', 0",
        "'tags', -1",
        "'tags', '0'",
        "'tags', 'deep', 0",
        "'user', 0",
        "'id', 'x'",
        "'nothing'",
        "'Id'",
        "''",
        "0",
    ];
    let functions = [
        "json_as_text",
        "json_contains",
        "json_get_array",
        "json_get_bool",
        "json_get_float",
        "json_get_int",
        "json_get_json",
        "json_get_str",
        "json_get",
        "json_length",
        "json_object_keys",
    ];
    let calls = paths
        .iter()
        .flat_map(|path| functions.map(|function| format!("{function}(_payload, {path})")));
    let operators = [
        "_payload->>'id'",
        "_payload->'user'->>'name'",
        "_payload->'user'",
        "_payload #>> array['user','age']",
        "_payload #> array['tags','0']",
        "_payload ? 'user'",
        "(_payload->'id')::int",
        "(_payload->'ratio')::double",
        "(_payload->'ratio')::text",
        "(_payload->>'id')",
    ];
    calls.chain(operators.map(str::to_owned)).collect()
}

/// QRY-10.
#[tokio::test]
async fn json_functions_give_over_columns_what_they_give_over_bytes() {
    let hot = filled(Tier::Hot).await;
    let cold = filled(Tier::Cold).await;
    let expressions = json_expressions();
    // Several in a statement, as they share columns and templates.
    for some in expressions.chunks(11) {
        let named = |(index, expression)| format!("{expression} AS e{index}");
        let some: Vec<_> = some.iter().enumerate().map(named).collect();
        let statement = format!("SELECT _offset, {} FROM t ORDER BY 1", some.join(", "));
        let expected = hot.rows(&statement).await;
        let found = cold.rows(&statement).await;
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{statement}");
        }
        assert_eq!(found.len(), expected.len());
    }
}

/// As above, with the conditions that statistics of columns answer.
#[tokio::test]
async fn conditions_on_fields_are_answered_alike_in_every_tier() {
    let conditions = [
        "_payload->>'id' = '63'",
        "json_get_int(_payload, 'id') BETWEEN 700 AND 800",
        "json_get_int(_payload, 'id') IN (7, 14, 4000)",
        "json_get_int(_payload, 'id') = 1000000000",
        "json_get_int(_payload, 'id') IS NULL",
        "json_get_int(_payload, 'id') IS NOT NULL AND _offset > 900",
        "NOT json_get_int(_payload, 'id') < 8000",
        "_payload->'user'->>'name' LIKE 'n11%'",
        "_payload->'user'->>'name' IS NULL",
        "json_get_str(_payload, 'user', 'name') > 'n97'",
        "json_get_float(_payload, 'ratio') = 9.5",
        "json_get_float(_payload, 'id') < 30",
        "_payload->>'ratio' = '-0'",
        "_payload->>'user' IS NULL AND _payload IS NOT NULL",
        "json_get_int(_payload, 'user', 'age') > json_get_int(_payload, 'id') - 3000 AND _payload->>'id' <> '7'",
        "_payload ? 'user' AND _payload->>'ratio' < '4'",
    ];
    let mut fixtures = Vec::new();
    for tier in TIERS {
        fixtures.push(filled(tier).await);
    }
    for condition in conditions {
        for columns in [
            "_offset, _payload",
            "count(*), sum(json_get_int(_payload, 'id')), min(_payload->>'id')",
        ] {
            let statement = format!("SELECT {columns} FROM t WHERE {condition} ORDER BY 1");
            let expected = fixtures[0].rows(&statement).await;
            assert!(!expected.is_empty(), "{condition} shows nothing");
            for (fixture, tier) in fixtures.iter().zip(TIERS) {
                assert_eq!(
                    fixture.rows(&statement).await,
                    expected,
                    "{tier:?}: {statement}"
                );
            }
        }
    }
}

/// Flights as their producers write them, in one template.
async fn flights(shred_json: bool) -> Fixture {
    let fixture = Fixture::with_configs(QueryConfig::default(), |cold| ColdConfig {
        shred_json,
        row_group_bytes: 64 << 10,
        ..cold
    })
    .await;
    fixture.create("t", 1, 64 << 20).await;
    let payloads: Vec<_> = (0..24_000)
        .map(|n| {
            let carrier = ["UA", "B6", "AA", "DL"][n % 4];
            format!(
                r#"{{"year":2013,"carrier":"{carrier}","flight":{},"origin":"EWR","dest":"IAH","dep_delay":{},"distance":1400,"time_hour":"2013-01-01T{:02}:00:00Z","number":{n},"tail":"{:016x}"}}"#,
                n * 7919 % 8000,
                n % 60,
                n % 24,
                (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            )
        })
        .collect();
    let frames: Vec<_> = payloads
        .iter()
        .map(|payload| Frame::record(1, b"", payload.as_bytes()))
        .collect();
    for some in frames.chunks(1_000) {
        fixture.append("t", 0, some).await;
    }
    fixture.cool("t").await;
    fixture
}

#[tokio::test]
async fn a_field_is_read_without_the_payload_and_its_statistics_skip_row_groups() {
    let fixture = flights(true).await;
    let names = [
        "bytes_scanned",
        "row_groups_pruned_statistics",
        "output_rows",
    ];
    let ask = async |statement: &str| metrics(&fixture, statement, &names).await;
    let (_, all) = ask("SELECT _payload FROM t").await;
    let aggregate =
        "SELECT _payload->>'carrier' c, avg(json_get_int(_payload, 'dep_delay')) FROM t GROUP BY c";
    let (rows, sums) = ask(aggregate).await;
    assert_eq!(rows, 4);
    assert!(sums[0] * 5 < all[0], "{} of {} bytes", sums[0], all[0]);
    let (rows, sums) =
        ask("SELECT _offset FROM t WHERE json_get_int(_payload, 'number') = 15000").await;
    assert_eq!(rows, 1);
    let (_, unfiltered) = ask("SELECT _offset, json_get_int(_payload, 'number') FROM t").await;
    assert!(
        sums[0] * 10 < unfiltered[0],
        "{} of {} bytes: no row group was skipped",
        sums[0],
        unfiltered[0]
    );
    assert_eq!(
        fixture.rows(&format!("{aggregate} ORDER BY c")).await,
        ["AA|30.0", "B6|29.0", "DL|31.0", "UA|28.0"]
    );
}

#[tokio::test]
async fn inferred_columns_are_there_when_they_are_named() {
    for tier in [Tier::Cold, Tier::Half] {
        let fixture = filled(tier).await;
        let fields = [
            ("id", "'id'"),
            ("user.name", "'user', 'name'"),
            ("user.age", "'user', 'age'"),
            ("ratio", "'ratio'"),
            ("tags", "'tags'"),
        ];
        let names: Vec<_> = fields
            .iter()
            .map(|(name, _)| format!(r#""payload.{name}""#))
            .collect();
        let named = format!(
            "SELECT {}, _offset FROM t ORDER BY _offset",
            names.join(", ")
        );
        let batches = fixture.batches(&named).await.unwrap();
        let schema = batches[0].schema();
        let call = |((_, path), field): (&(&str, &str), &arrow::datatypes::FieldRef)| {
            let function = match field.data_type() {
                DataType::Int64 => "json_get_int",
                DataType::Float64 => "json_get_float",
                other => {
                    assert_eq!(*other, DataType::Utf8);
                    "json_as_text"
                }
            };
            format!("{function}(_payload, {path})")
        };
        let calls: Vec<_> = fields.iter().zip(schema.fields()).map(call).collect();
        let called = format!(
            "SELECT {}, _offset FROM t ORDER BY _offset",
            calls.join(", ")
        );
        let called_rows = fixture.rows(&called).await;
        assert_eq!(rows_of(&batches), called_rows, "{tier:?} {calls:?}");
        // A name with a line break takes two lines of the table.
        assert!(called_rows.len() >= 1_290, "{}", called_rows.len());
    }
    let fixture = flights(true).await;
    assert_eq!(
        fixture
            .rows(r#"SELECT "payload.carrier" c, avg("payload.dep_delay") FROM t WHERE "payload.number" < 12000 GROUP BY c ORDER BY c"#)
            .await,
        ["AA|30.0", "B6|29.0", "DL|31.0", "UA|28.0"]
    );
    let columns = |statement: &'static str| {
        let engine = std::sync::Arc::clone(&fixture.engine);
        async move {
            engine
                .query(statement)
                .await
                .unwrap()
                .schema()
                .fields()
                .len()
        }
    };
    assert_eq!(columns("SELECT * FROM t").await, 7);
    assert_eq!(
        columns(r#"SELECT * FROM t WHERE "payload.year" = 2013"#).await,
        8
    );
    let types =
        r#"SELECT arrow_typeof("payload.number"), arrow_typeof("payload.carrier") FROM t LIMIT 1"#;
    assert_eq!(fixture.rows(types).await, ["Int64|Utf8View"]);
    let error = fixture.error(r#"SELECT "payload.nothing" FROM t"#).await;
    assert_eq!(error.status().code(), tonic::Code::InvalidArgument);
}

/// A row group with rows that keep their payload is not judged by the columns of the others.
#[tokio::test]
async fn statistics_of_a_column_say_nothing_of_payloads_that_are_not_in_it() {
    let fixture = fixture().await;
    fixture.create("t", 1, 1 << 20).await;
    for n in 0..400 {
        let payload = match n {
            50 => r#"{"id":1e9,"name":"zoe"}"#.to_owned(),
            150 => r#"{"name":"zoe"  }"#.to_owned(),
            _ => format!(r#"{{"id":{n},"name":"ann"}}"#),
        };
        let frame = Frame::record(1, b"", payload.as_bytes());
        fixture.append("t", 0, &[frame]).await;
    }
    fixture.cool("t").await;
    assert!(is_shredded(&fixture));
    for (condition, offsets) in [
        ("json_get_int(_payload, 'id') = 1000000000", vec!["50"]),
        ("json_get_int(_payload, 'id') > 399", vec!["50"]),
        ("_payload->>'name' = 'zoe'", vec!["50", "150"]),
        ("_payload->>'name' IN ('bob', 'zoe')", vec!["50", "150"]),
        ("json_get_int(_payload, 'id') IS NULL", vec!["150"]),
        ("json_get_int(_payload, 'id') = 200", vec!["200"]),
    ] {
        let statement = format!("SELECT _offset FROM t WHERE {condition} ORDER BY 1");
        assert_eq!(fixture.rows(&statement).await, offsets, "{condition}");
    }
}
