use crate::{Format, TopicSchema};

fn refused(text: &str) -> String {
    TopicSchema::parse(text).unwrap_err().to_string()
}

#[test]
fn a_schema_survives_the_way_through_its_text() {
    let text = r#"{
        "format": "json",
        "columns": [
            {"name": "id", "type": "BIGINT"},
            {"name": "lat", "type": "double", "path": "position.lat"},
            {"name": "tags", "type": "list<string>", "path": "/user/tags"},
            {"name": "whole", "type": "json", "path": ""}
        ]
    }"#;
    let schema = TopicSchema::parse(text).unwrap();
    assert_eq!(
        schema.text(),
        r#"{"format":"json","columns":[{"name":"id","type":"int64"},{"name":"lat","type":"float64","path":"/position/lat"},{"name":"tags","type":"list<string>","path":"/user/tags"},{"name":"whole","type":"json","path":""}]}"#
    );
    assert_eq!(TopicSchema::parse(&schema.text()).unwrap(), schema);
    assert_eq!(TopicSchema::parse(&schema.pretty_text()).unwrap(), schema);
    let names: Vec<_> = schema.fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["id", "lat", "tags", "whole", "_error"]);
}

#[test]
fn what_is_wrong_with_a_schema_is_named() {
    let columns = |columns: &str| refused(&format!(r#"{{"format":"json","columns":[{columns}]}}"#));
    for (error, named) in [
        (refused("{"), "line 1"),
        (refused(r#"{"format":"xml"}"#), "`xml`"),
        (refused(r#"{"format":"json","colums":[]}"#), "`colums`"),
        (refused(r#"{"format":"json"}"#), "columns: there are none"),
        (columns(r#"{"name":"a"}"#), "`type`"),
        (
            columns(r#"{"name":"a","type":"int7"}"#),
            "columns[0].type: `int7`",
        ),
        (columns(r#"{"name":"","type":"int8"}"#), "columns[0].name"),
        (
            columns(r#"{"name":"_offset","type":"int8"}"#),
            "columns[0].name: `_offset`",
        ),
        (
            columns(r#"{"name":"a","type":"int8","path":"b..c"}"#),
            "columns[0].path",
        ),
        (
            columns(r#"{"name":"a","type":"int8"},{"name":"A","type":"int8"}"#),
            "columns[1].name: `A` is the name of columns[0]",
        ),
        (
            columns(r#"{"name":"Payload.x","type":"int8"}"#),
            "columns[0].name: `Payload.x`",
        ),
        (
            columns(r#"{"name":"s","type":"list<struct<b: struct<a: int8, \"A\": int8>>>"}"#),
            "columns[0].type: the fields `a` and `A`",
        ),
        (
            refused(
                r#"{"format":"avro","avro":{"schema":{"type":"record","name":"R","fields":[{"name":"s","type":
                {"type":"record","name":"S","fields":[{"name":"a","type":"int"},{"name":"A","type":"int"}]}}]}}}"#,
            ),
            "the fields `a` and `A`",
        ),
        (
            refused(r#"{"format":"raw","columns":[{"name":"a","type":"int8"}]}"#),
            "has none",
        ),
        (refused(r#"{"format":"avro"}"#), "avro: it is missing"),
        (
            refused(r#"{"format":"json","avro":{"schema":"int"},"columns":[]}"#),
            "avro: it goes",
        ),
        (
            refused(r#"{"format":"avro","avro":{"schema":"nothing"}}"#),
            "avro.schema",
        ),
        (
            refused(r#"{"format":"protobuf","protobuf":{}}"#),
            "protobuf: it needs",
        ),
        (
            refused(r#"{"format":"protobuf","protobuf":{"proto":"syntax = proto3;"}}"#),
            "protobuf.proto",
        ),
        (
            refused(r#"{"format":"protobuf","protobuf":{"descriptor_set":"%"}}"#),
            "protobuf.descriptor_set",
        ),
        (refused(&" ".repeat(65_536)), "65536 bytes"),
    ] {
        assert!(error.contains(named), "{error} should name {named}");
    }
}

#[test]
fn there_are_at_most_a_thousand_columns() {
    let of = |count: usize| {
        let columns: Vec<_> = (0..count)
            .map(|at| format!(r#"{{"name":"c{at}","type":"int8"}}"#))
            .collect();
        format!(r#"{{"format":"json","columns":[{}]}}"#, columns.join(","))
    };
    assert!(TopicSchema::parse(&of(1_000)).is_ok());
    assert!(refused(&of(1_001)).contains("columns: there are 1001"));
}

#[test]
fn changes_are_told_apart() {
    let schema = |columns: &str| {
        TopicSchema::parse(&format!(r#"{{"format":"json","columns":[{columns}]}}"#)).unwrap()
    };
    let old = schema(r#"{"name":"a","type":"int32"},{"name":"b","type":"string"}"#);
    let more = schema(
        r#"{"name":"c","type":"bool"},{"name":"a","type":"int32"},{"name":"b","type":"string"}"#,
    );
    let changes = more.changes_since(&old);
    assert!(changes.is_additive());
    assert_eq!(changes.added, ["c"]);
    let other = schema(r#"{"name":"a","type":"int64","path":"x.a"}"#);
    let changes = other.changes_since(&old);
    assert!(!changes.is_additive());
    assert_eq!(changes.removed, ["b"]);
    assert_eq!(
        changes.changed,
        [(
            "a".to_owned(),
            "int32 at /a became int64 at /x/a".to_owned()
        )]
    );
    let lines = TopicSchema::of_lines(Format::Ndjson, old.columns()).unwrap();
    assert!(lines.changes_since(&old).encoding);
    assert!(!lines.changes_since(&lines).encoding);
}

#[test]
fn a_proposed_schema_fits_what_it_was_proposed_for() {
    use std::sync::Arc;

    use crate::{Decoder, Sample, infer};

    let payloads = [
        r#"{"id":1,"_id":"x","at":"2024-05-06T07:08:09.5Z","day":"2024-05-06","price":1,"tags":[],"user":{"name":"a","age":null},"mixed":1,"never":null}"#,
        r#"{"id":-2,"price":2.5,"tags":["a",null],"user":{"name":"b","age":5},"mixed":"one","big":18446744073709551615,"more":true,"cased":{"a":1,"A":2}}"#,
        "not JSON",
        "[1]",
    ];
    let samples = payloads.iter().map(|payload| Sample {
        payload: payload.as_bytes(),
        record_count: 1,
    });
    let schema = infer(samples).unwrap();
    let columns: Vec<_> = schema
        .columns()
        .iter()
        .map(|column| format!("{} {}", column.name, column.data_type))
        .collect();
    assert_eq!(
        columns,
        [
            "id int64",
            "id_2 string",
            "at timestamp(ns)",
            "day date",
            "price float64",
            "tags list<string>",
            "user struct<name: string, age: int64>",
            "mixed json",
            "never json",
            "big uint64",
            "more bool",
            "cased json",
        ]
    );
    assert_eq!(schema.format(), Format::Json);
    let mut decoder = Decoder::new(Arc::new(schema), Vec::new());
    decoder.push(Some(payloads[0].as_bytes()));
    decoder.push(Some(payloads[1].as_bytes()));
    assert_eq!(decoder.error_count(), 0);
    decoder.push(Some(payloads[2].as_bytes()));
    assert_eq!(decoder.error_count(), 1);

    let many = Sample {
        payload: b"{\"a\":1}\n{\"a\":2}\n",
        record_count: 2,
    };
    assert_eq!(infer([many]).unwrap().format(), Format::Ndjson);
    let none = Sample {
        payload: b"\xFF",
        record_count: 1,
    };
    assert_eq!(infer([none]).unwrap().format(), Format::Raw);
}
