//! JSON over bytes, through SQL on a table in memory.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow::util::pretty::pretty_format_batches;
use datafusion::config::Dialect;
use datafusion::prelude::{SessionConfig, SessionContext};

const ROWS: [&[u8]; 7] = [
    br#"{"carrier":"UA","dep_delay":2,"ratio":0.5,"ok":true,"at":{"gate":"B7","n":[1,2,3]},"none":null}"#,
    br#"{"carrier":"B6","dep_delay":-4}"#,
    b"not json",
    b"\xff\xfe\x00",
    b"",
    b"{\"carrier\":\"\xff\"}",
    br#"{"carrier":7}"#,
];

async fn rows(select: &str) -> Vec<String> {
    let mut config = SessionConfig::new();
    config.options_mut().sql_parser.dialect = Dialect::PostgreSQL;
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    let mut context = SessionContext::new_with_config(config);
    super::register(&mut context).unwrap();
    let payload: ArrayRef = Arc::new(BinaryArray::from_iter(
        ROWS.iter().copied().map(Some).chain([None]),
    ));
    let offset: ArrayRef = Arc::new(Int64Array::from_iter_values(0..8));
    let batch = RecordBatch::try_from_iter([("_offset", offset), ("_payload", payload)]).unwrap();
    context.register_batch("t", batch).unwrap();
    let batches = context.sql(select).await.unwrap().collect().await.unwrap();
    let table = pretty_format_batches(&batches).unwrap().to_string();
    let lines: Vec<&str> = table.lines().collect();
    lines[3..lines.len() - 1]
        .iter()
        .map(|line| line.trim_matches(['|', ' ']).to_owned())
        .collect()
}

async fn plan(select: &str) -> String {
    let mut config = SessionConfig::new();
    config.options_mut().sql_parser.dialect = Dialect::PostgreSQL;
    let mut context = SessionContext::new_with_config(config);
    super::register(&mut context).unwrap();
    let payload: ArrayRef = Arc::new(BinaryArray::from_iter_values([b"{}"]));
    context
        .register_batch(
            "t",
            RecordBatch::try_from_iter([("_payload", payload)]).unwrap(),
        )
        .unwrap();
    let plan = context
        .state()
        .optimize(context.sql(select).await.unwrap().logical_plan())
        .unwrap();
    plan.display_indent().to_string()
}

#[tokio::test]
async fn functions_and_operators_read_bytes_and_give_null_where_there_is_nothing() {
    let expected = ["UA", "B6", "", "", "", "", "7", ""];
    assert_eq!(
        rows("SELECT _payload->>'carrier' FROM t ORDER BY _offset").await,
        expected
    );
    let expected = ["UA", "B6", "", "", "", "", "", ""];
    assert_eq!(
        rows("SELECT json_get_str(_payload, 'carrier') FROM t ORDER BY _offset").await,
        expected
    );
    assert_eq!(
        rows("SELECT avg(json_get_int(_payload, 'dep_delay')) FROM t").await,
        ["-1.0"]
    );
    assert_eq!(
        rows("SELECT count(*) FROM t WHERE _payload ? 'carrier'").await,
        ["3"]
    );
    assert_eq!(
        rows("SELECT _payload->'at'->>'gate' FROM t WHERE _offset = 0").await,
        ["B7"]
    );
    assert_eq!(
        rows("SELECT _payload->'at'->'n'->>1 FROM t WHERE _offset = 0").await,
        ["2"]
    );
    assert_eq!(
        rows("SELECT _payload #>> array['at','gate'] FROM t WHERE _offset = 0").await,
        ["B7"]
    );
    assert_eq!(
        rows("SELECT json_length(_payload, 'at', 'n') FROM t WHERE _offset = 0").await,
        ["3"]
    );
    assert_eq!(
        rows("SELECT _payload->>'none' FROM t WHERE _offset = 0").await,
        [""]
    );
}

#[tokio::test]
async fn a_literal_of_bytes_is_read_too() {
    assert_eq!(
        rows(r#"SELECT json_get_int(arrow_cast('{"a":3}', 'Binary'), 'a')"#).await,
        ["3"]
    );
    assert_eq!(rows("SELECT json_get_int(X'ff', 'a')").await, [""]);
}

#[tokio::test]
async fn casts_read_the_typed_value_and_build_no_union() {
    assert_eq!(
        rows("SELECT (_payload->'dep_delay')::int FROM t WHERE _offset < 3 ORDER BY _offset").await,
        ["2", "-4", ""]
    );
    assert_eq!(
        rows("SELECT (_payload->'ratio')::double FROM t WHERE _offset = 0").await,
        ["0.5"]
    );
    for (cast, accessor) in [
        ("int", "json_get_int"),
        ("double", "json_get_float"),
        ("boolean", "json_get_bool"),
        ("text", "json_as_text"),
    ] {
        let plan = plan(&format!("SELECT (_payload->'a'->'b')::{cast} FROM t")).await;
        assert!(
            plan.contains(&format!("{accessor}(t._payload, Utf8(\"a\"), Utf8(\"b\"))")),
            "{plan}"
        );
        assert!(!plan.contains("json_get("), "{plan}");
    }
}

#[tokio::test]
async fn a_long_path_is_planned_in_no_time() {
    // Each step doubled the time once: 40 of them would not end.
    let sql = format!("SELECT _payload{}->>'b' FROM t", "->'a'".repeat(40));
    let plan = plan(&sql).await;
    assert!(
        plan.contains("json_as_text(t._payload, Utf8(\"a\")"),
        "{plan}"
    );
    assert!(!plan.contains("json_get("), "{plan}");
}
