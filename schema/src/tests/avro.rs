use std::sync::Arc;

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use arrow::array::Array as _;
use serde_json::json;

use super::{error, row};
use crate::{Decoder, TopicSchema};

const SENSOR: &str = r#"{"type":"record","name":"Sensor","namespace":"a.b","fields":[
    {"name":"id","type":"long"},
    {"name":"name","type":["null","string"]},
    {"name":"kind","type":{"type":"enum","name":"Kind","symbols":["HOT","COLD"]}},
    {"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},
    {"name":"cost","type":{"type":"bytes","logicalType":"decimal","precision":10,"scale":2}},
    {"name":"values","type":{"type":"array","items":"double"}},
    {"name":"labels","type":{"type":"map","values":"string"}},
    {"name":"place","type":{"type":"record","name":"Place","fields":[{"name":"lat","type":"float"},{"name":"kind","type":"Kind"}]}},
    {"name":"flag","type":"boolean"}
]}"#;

fn schema(avro: &str, rest: &str) -> TopicSchema {
    TopicSchema::parse(&format!(
        r#"{{"format":"avro","avro":{{"schema":{avro}{rest}"#
    ))
    .unwrap()
}

fn datum() -> Vec<u8> {
    let record = Value::Record(vec![
        ("id".into(), Value::Long(-5)),
        (
            "name".into(),
            Value::Union(1, Box::new(Value::String("x".into()))),
        ),
        ("kind".into(), Value::Enum(1, "COLD".into())),
        ("at".into(), Value::TimestampMicros(1_500_000)),
        ("cost".into(), Value::Decimal(vec![0xFF, 0x85].into())),
        (
            "values".into(),
            Value::Array(vec![Value::Double(1.5), Value::Double(-2.0)]),
        ),
        (
            "labels".into(),
            Value::Map([("k".to_owned(), Value::String("v".into()))].into()),
        ),
        (
            "place".into(),
            Value::Record(vec![
                ("lat".into(), Value::Float(0.5)),
                ("kind".into(), Value::Enum(0, "HOT".into())),
            ]),
        ),
        ("flag".into(), Value::Boolean(true)),
    ]);
    let schema = Schema::parse_str(SENSOR).unwrap();
    let writer = GenericDatumWriter::builder(&schema).build().unwrap();
    writer.write_value_to_vec(record).unwrap()
}

#[test]
fn a_record_gives_its_columns_by_itself() {
    let schema = schema(SENSOR, "}}");
    assert_eq!(
        row(&schema, &datum()),
        json!({
            "id": -5, "name": "x", "kind": "COLD", "at": "1970-01-01T00:00:01.500Z", "cost": -1.23,
            "values": [1.5, -2.0], "labels": [{"key": "k", "value": "v"}],
            "place": {"lat": 0.5, "kind": "HOT"}, "flag": true
        })
    );
}

#[test]
fn columns_take_what_they_name_and_the_rest_is_skipped() {
    let schema = schema(
        SENSOR,
        r#"},"columns":[{"name":"lat","type":"float64","path":"place.lat"},{"name":"second","type":"float64","path":"/values/1"},
            {"name":"label","type":"string","path":"labels.k"},{"name":"cost","type":"decimal(4, 3)"},{"name":"none","type":"int8"}]}"#,
    );
    assert_eq!(
        row(&schema, &datum()),
        json!({"lat": 0.5, "second": -2.0, "label": "v", "cost": -1.23})
    );
}

#[test]
fn a_datum_that_ends_anywhere_does_not_fit() {
    let schema = schema(SENSOR, "}}");
    let datum = datum();
    for end in 0..datum.len() {
        assert!(error(&schema, &datum[..end]).is_some(), "cut at {end}");
    }
    assert_eq!(error(&schema, &datum), None);
    let longer = [datum.as_slice(), &[0]].concat();
    assert!(
        error(&schema, &longer)
            .unwrap()
            .contains("1 bytes are left")
    );
}

#[test]
fn lengths_from_outside_are_not_believed() {
    let of = |items: &str| {
        schema(
            &format!(r#"{{"type":"record","name":"R","fields":[{{"name":"a","type":{items}}}]}}"#),
            "}}",
        )
    };
    let bytes = of(r#""bytes""#);
    // 2^62 bytes, none of which is there.
    let long = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1];
    assert!(error(&bytes, &long).unwrap().contains("ends within"));
    let list = of(r#"{"type":"array","items":"int"}"#);
    assert!(error(&list, &long).unwrap().contains("list items"));
    let empty = schema(
        r#"{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"null"}},{"name":"b","type":"int"}]}"#,
        r#"},"columns":[{"name":"b","type":"int32"}]}"#,
    );
    let many = [&long[..], &[0, 2]].concat();
    assert_eq!(row(&empty, &many), json!({"b": 1}));
}

/// A payload of five bytes is a million items, and two thousand columns could each have taken them from it.
#[test]
fn items_are_bounded_over_all_columns_and_the_fields_of_structs_count() {
    let of = |items: &str, columns: &str| {
        schema(
            &format!(r#"{{"type":"record","name":"R","fields":[{{"name":"a","type":{items}}}]}}"#),
            &format!(r#"}},"columns":[{columns}]}}"#),
        )
    };
    let many = |items: i64| {
        let mut datum = Vec::new();
        let mut rest = (items * 2).unsigned_abs();
        while rest > 0x7F {
            datum.push(u8::try_from(rest & 0x7F).unwrap() | 0x80);
            rest >>= 7;
        }
        datum.extend([u8::try_from(rest).unwrap(), 0]);
        datum
    };
    let reason = "more than 1000000 list items";
    let nulls = r#"{"type":"array","items":"null"}"#;
    let one = r#"{"name":"x","type":"list<int8>","path":"a"}"#;
    let two = format!(r#"{one},{{"name":"y","type":"list<int8>","path":"a"}}"#);
    for (columns, limit) in [(one, 1_000_000), (two.as_str(), 500_000)] {
        let schema = of(nulls, columns);
        assert_eq!(error(&schema, &many(limit)), None);
        assert!(error(&schema, &many(limit + 1)).unwrap().contains(reason));
    }
    let records = r#"{"type":"array","items":{"type":"record","name":"E","fields":[]}}"#;
    let structs = r#"{"name":"x","type":"list<struct<x: int8, y: int8, z: int8>>","path":"a"}"#;
    let schema = of(records, structs);
    assert_eq!(error(&schema, &many(250_000)), None);
    assert!(error(&schema, &many(250_001)).unwrap().contains(reason));
}

/// A symbol is a byte in the payload, and sixty thousand in the column.
#[test]
fn long_symbols_of_enums_count_as_several_items() {
    let symbol = "S".repeat(6_400);
    let schema = schema(
        &format!(
            r#"{{"type":"record","name":"R","fields":[{{"name":"a","type":{{"type":"array","items":
            {{"type":"enum","name":"E","symbols":["{symbol}"]}}}}}}]}}"#
        ),
        "}}",
    );
    // Blocks of 32 items.
    let many = |blocks: usize| [[&[64][..], &[0; 32]].concat().repeat(blocks), vec![0]].concat();
    assert_eq!(error(&schema, &many(309)), None);
    let found = error(&schema, &many(310)).unwrap();
    assert!(found.contains("more than 1000000 list items"), "{found}");
}

#[test]
fn a_decoder_says_when_it_holds_enough() {
    let schema = schema(
        r#"{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}"#,
        r#"},"columns":[{"name":"a","type":"list<int64>"}]}"#,
    );
    // A million items.
    let payload = [0x80, 0x89, 0x7A, 0];
    let mut decoder = Decoder::new(Arc::new(schema), vec![0, 1]);
    let mut rows = 0;
    while !decoder.is_full() {
        decoder.push(Some(&payload));
        rows += 1;
    }
    assert_eq!(rows, 4, "32 MiB of 9 bytes an item");
    assert!(decoder.held_bytes() >= 32 << 20);
    assert_eq!(decoder.finish()[0].len(), 4);
    assert!(!decoder.is_full());
    while !decoder.is_full() {
        decoder.push(Some(b"bad"));
        rows += 1;
    }
    assert!(rows > 100_000, "reasons are held as well");
}

#[test]
fn headers_are_known() {
    let plain = schema(SENSOR, "}}");
    let parsed = Schema::parse_str(SENSOR).unwrap();
    let fingerprint = parsed.fingerprint::<apache_avro::rabin::Rabin>();
    let single = [&[0xC3, 1], fingerprint.bytes.as_slice(), &datum()].concat();
    assert_eq!(row(&plain, &single), row(&plain, &datum()));
    let registry = schema(SENSOR, r#","framing":"confluent"}}"#);
    let framed = [&[0, 0, 0, 0, 9], datum().as_slice()].concat();
    assert_eq!(row(&registry, &framed), row(&plain, &datum()));
    assert!(error(&registry, &datum()).unwrap().contains("zero byte"));
}

#[test]
fn a_type_that_holds_itself_is_refused() {
    let text = r#"{"format":"avro","avro":{"schema":{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}}}"#;
    let error = TopicSchema::parse(text).unwrap_err().to_string();
    assert!(error.contains("Node holds itself"), "{error}");
}
