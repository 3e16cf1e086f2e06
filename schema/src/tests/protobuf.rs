use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, Value};
use serde_json::json;

use super::{error, row};
use crate::{TopicSchema, protobuf};

const PROTO: &str = r#"syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { NEW = 0; PAID = 1; }
message Item { string sku = 1; uint32 count = 2; }
message Order {
    int64 id = 1;
    optional string note = 2;
    State state = 3;
    google.protobuf.Timestamp at = 4;
    repeated Item items = 5;
    map<string, int32> counts = 6;
    google.protobuf.Int64Value points = 7;
    bytes raw = 8;
    oneof how { string card = 9; int32 cash = 10; }
}"#;

fn schema(rest: &str) -> TopicSchema {
    let proto = serde_json::to_string(PROTO).unwrap();
    TopicSchema::parse(&format!(
        r#"{{"format":"protobuf","protobuf":{{"proto":{proto},"message":"shop.Order"{rest}"#
    ))
    .unwrap()
}

fn message(json: &serde_json::Value) -> Vec<u8> {
    let pool = protobuf::compile(PROTO).unwrap();
    let order = pool.get_message_by_name("shop.Order").unwrap();
    let mut message = DynamicMessage::new(order);
    message.set_field_by_name("id", Value::I64(json["id"].as_i64().unwrap()));
    message.set_field_by_name("state", Value::EnumNumber(1));
    let stamp = pool
        .get_message_by_name("google.protobuf.Timestamp")
        .unwrap();
    let mut at = DynamicMessage::new(stamp);
    at.set_field_by_name("seconds", Value::I64(1));
    at.set_field_by_name("nanos", Value::I32(5));
    message.set_field_by_name("at", Value::Message(at));
    let item = pool.get_message_by_name("shop.Item").unwrap();
    let mut first = DynamicMessage::new(item);
    first.set_field_by_name("sku", Value::String("x".into()));
    message.set_field_by_name("items", Value::List(vec![Value::Message(first)]));
    let key = |text: &str| prost_reflect::MapKey::String(text.into());
    let counts = [(key("b"), Value::I32(2)), (key("a"), Value::I32(1))];
    message.set_field_by_name("counts", Value::Map(counts.into()));
    message.set_field_by_name("cash", Value::I32(0));
    message.encode_to_vec()
}

#[test]
fn a_message_gives_its_columns_by_itself() {
    let schema = schema("}}");
    assert_eq!(
        row(&schema, &message(&json!({"id": 7}))),
        json!({
            "id": 7, "state": "PAID", "at": "1970-01-01T00:00:01.000000005Z",
            "items": [{"sku": "x", "count": 0}],
            "counts": [{"key": "a", "value": 1}, {"key": "b", "value": 2}],
            "raw": "", "cash": 0
        }),
        "what may be absent is NULL, what may not has its default"
    );
    assert_eq!(
        row(&schema, b""),
        json!({"id": 0, "state": "NEW", "items": [], "counts": [], "raw": ""})
    );
}

#[test]
fn columns_take_what_they_name() {
    let schema = schema(
        r#"},"columns":[{"name":"sku","type":"string","path":"/items/0/sku"},{"name":"b","type":"int64","path":"counts.b"},
            {"name":"state","type":"int32"},{"name":"none","type":"int8","path":"note.x"}]}"#,
    );
    assert_eq!(
        row(&schema, &message(&json!({"id": 7}))),
        json!({"sku": "x", "b": 2, "state": 1})
    );
}

#[test]
fn what_is_no_message_has_an_error() {
    let schema = schema("}}");
    let message = message(&json!({"id": 7}));
    assert!(
        error(&schema, &message[..message.len() - 1])
            .unwrap()
            .contains("shop.Order")
    );
    assert!(error(&schema, &[0xFF; 20]).is_some());
    // Far more nesting than there is stack for, were it followed.
    let deep = [0x2B].repeat(200_000);
    assert!(error(&schema, &deep).is_some());
    assert!(
        error(&schema, &vec![0; (16 << 20) + 1])
            .unwrap()
            .contains("more than")
    );
}

#[test]
fn repeated_messages_and_their_fields_are_bounded() {
    let schema = schema(r#"},"columns":[{"name":"items","type":"list<struct<sku: string>>"}]}"#);
    // Items without a field, two bytes each.
    let many = |items: usize| [0x2A, 0].repeat(items);
    assert_eq!(error(&schema, &many(500_000)), None);
    let found = error(&schema, &many(500_001)).unwrap();
    assert_eq!(found, "items: more than 1000000 list items");
}

#[test]
fn the_header_of_a_registry_is_skipped() {
    let plain = schema("}}");
    let framed = schema(r#","framing":"confluent"}}"#);
    let message = message(&json!({"id": 7}));
    let first = [&[0, 0, 0, 0, 1, 0], message.as_slice()].concat();
    let other = [&[0, 0, 0, 0, 1, 4, 2, 0], message.as_slice()].concat();
    assert_eq!(row(&framed, &first), row(&plain, &message));
    assert_eq!(row(&framed, &other), row(&plain, &message));
    assert!(error(&framed, &message).is_some());
}

#[test]
fn messages_are_named_and_files_from_elsewhere_are_not_read() {
    let refused = |proto: &str| {
        let proto = serde_json::to_string(proto).unwrap();
        TopicSchema::parse(&format!(
            r#"{{"format":"protobuf","protobuf":{{"proto":{proto}}}}}"#
        ))
        .map(|schema| schema.text())
        .map_err(|error| error.to_string())
    };
    assert!(refused(PROTO).unwrap_err().contains("shop.Item"));
    let foreign = refused("syntax = \"proto3\"; import \"other.proto\"; message M {}").unwrap_err();
    assert!(foreign.contains("protobuf.proto: "), "{foreign}");
    let only = refused("syntax = \"proto3\"; message M { int32 a = 1; }").unwrap();
    assert!(only.contains(r#""message":"M""#), "{only}");
    let nested = refused("syntax = \"proto3\"; message M { M inner = 1; }").unwrap_err();
    assert!(nested.contains("inner"), "{nested}");
}
