use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{error, row, rows};
use crate::{Path, TopicSchema};

fn schema(columns: &str) -> TopicSchema {
    TopicSchema::parse(&format!(r#"{{"format":"json","columns":[{columns}]}}"#)).unwrap()
}

#[test]
fn every_type_is_read_from_json() {
    let schema = schema(
        r#"{"name":"b","type":"bool"},{"name":"i","type":"int64"},{"name":"u","type":"uint64"},
        {"name":"f","type":"float64"},{"name":"d","type":"decimal(38, 2)"},{"name":"s","type":"string"},
        {"name":"bin","type":"binary"},{"name":"t","type":"timestamp(ms)"},{"name":"n","type":"timestamp(s)"},
        {"name":"day","type":"date"},{"name":"l","type":"list<struct<x: int8, y: list<string>>>"},
        {"name":"j","type":"json"},{"name":"deep","type":"int32","path":"/o/p/1/q"}"#,
    );
    let payload = br#" {"o":{"p":[0,{"q":7}]}, "b":true, "i":-9223372036854775808, "u":18446744073709551615,
        "f":1e-2, "d":123456789012345678901234567890123456.78, "s":"a\u00e9\n\ud83d\ude00", "bin":"AQI",
        "t":"2024-01-02T03:04:05.678+01:00", "n":5, "day":"2024-01-02",
        "l":[{"y":["a",null],"x":-1,"z":0},null], "j": {"a" : [1, 2.50]}} "#;
    assert_eq!(
        row(&schema, payload),
        json!({
            "b": true, "i": i64::MIN, "u": u64::MAX, "f": 0.01,
            "d": "123456789012345678901234567890123456.78", "s": "a\u{e9}\n\u{1F600}", "bin": "0102",
            "t": "2024-01-02T02:04:05.678Z", "n": "1970-01-01T00:00:05Z", "day": "2024-01-02",
            "l": [{"x": -1, "y": ["a", null]}, null], "j": "{\"a\" : [1, 2.50]}", "deep": 7
        })
        .as_object()
        .map(|wanted| {
            // A decimal is printed as a number without quotes, which this reader of JSON rounds.
            let mut wanted = wanted.clone();
            wanted["d"] = serde_json::from_str("123456789012345678901234567890123456.78").unwrap();
            Json::Object(wanted)
        })
        .unwrap()
    );
}

#[test]
fn missing_and_null_are_null_and_no_error() {
    let schema = schema(
        r#"{"name":"a","type":"int8"},{"name":"x","type":"int8","path":"o.x"},{"name":"y","type":"int8","path":"l.1"}"#,
    );
    for payload in [
        "{}",
        r#"{"a":null,"o":null,"l":null}"#,
        r#"{"o":5,"l":[1]}"#,
    ] {
        assert_eq!(row(&schema, payload.as_bytes()), json!({}), "{payload}");
        assert_eq!(error(&schema, payload.as_bytes()), None, "{payload}");
    }
    assert_eq!(rows(&schema, &[None]), [json!({})]);
}

/// `[1,2]` was a row of NULLs without a reason, as if it had been `{}`.
#[test]
fn a_list_is_read_where_a_path_leads_into_one_and_is_no_object_elsewhere() {
    let first = schema(r#"{"name":"a","type":"int8"},{"name":"x","type":"int8","path":"/1"}"#);
    assert_eq!(row(&first, b"[1,2]"), json!({"x": 2}));
    assert_eq!(error(&first, b"[]"), None);
    let whole = schema(r#"{"name":"j","type":"json","path":""}"#);
    assert_eq!(row(&whole, b"[1,2]"), json!({"j": "[1,2]"}));
    for path in ["a", "/+1", "/-1", "/1x"] {
        let keys = schema(&format!(r#"{{"name":"a","type":"int8","path":"{path}"}}"#));
        assert_eq!(
            error(&keys, b"[1,2]").unwrap(),
            "the payload is no object",
            "{path}"
        );
    }
}

#[test]
fn one_value_that_does_not_fit_makes_the_whole_row_null() {
    let schema = schema(
        r#"{"name":"a","type":"int8"},{"name":"s","type":"string"},{"name":"l","type":"list<int8>"}"#,
    );
    for (payload, reason) in [
        (&br#"{"s":"x","a":128}"#[..], "a: 128 is no int8"),
        (br#"{"s":"x","a":"1"}"#, "a: \"1\" is no int8"),
        (br#"{"a":1,"s":5}"#, "s: 5 is no string"),
        (br#"{"a":1,"s":{"b":[1]}}"#, "s: {\"b\":[1]} is no string"),
        (br#"{"a":1,"l":[1,2,"3"]}"#, "l: \"3\" is no int8"),
        (br#"{"a":1,"l":{}}"#, "l: {} is no list<int8>"),
        (b"", "the payload is empty"),
        (b"5", "the payload is no object"),
        (b"null", "the payload is no object"),
        (b"[]", "the payload is no object"),
        (br#"[{"a":1}]"#, "the payload is no object"),
        (b"[1", "not JSON: "),
        (br#"{"a":1"#, "not JSON: "),
        (br#"{"a":1}x"#, "not JSON: "),
        (br#"{"a":1,"z":nul}"#, "not JSON: "),
        (br#"{"a":01}"#, "not JSON: "),
        (br#"{"a":NaN}"#, "not JSON: "),
        (br#"{"a":1,"z":"\ud800"}"#, "not JSON: "),
        (b"{\"a\":1,\"z\":\"\n\"}", "not JSON: "),
        (b"{\"a\":1,\"z\":\"\xFF\"}", "not UTF-8 at byte 12"),
    ] {
        let found = error(&schema, payload).unwrap_or_default();
        assert!(found.starts_with(reason), "{found} should be {reason}");
    }
}

#[test]
fn the_last_of_two_values_under_one_key_counts() {
    let schema = schema(
        r#"{"name":"a","type":"int8"},{"name":"x","type":"int8","path":"o.x"},{"name":"o","type":"struct<x: int8>"}"#,
    );
    let doubled = |payload: &str| row(&schema, payload.as_bytes());
    assert_eq!(doubled(r#"{"a":"bad","a":1}"#), json!({"a": 1}));
    assert!(error(&schema, br#"{"a":1,"a":"bad"}"#).is_some());
    assert_eq!(
        doubled(r#"{"o":{"x":1},"o":{"y":1}}"#),
        json!({"o": {}}),
        "the first object is gone with all that was in it"
    );
    assert_eq!(
        doubled(r#"{"o":{"x":1,"x":2}}"#),
        json!({"o": {"x": 2}, "x": 2})
    );
}

#[test]
fn depth_and_lists_are_bounded() {
    let schema = schema(r#"{"name":"a","type":"list<int8>"}"#);
    let deep = format!("{{\"z\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(
        error(&schema, deep.as_bytes())
            .unwrap()
            .contains("not JSON")
    );
    let long = |items: usize| format!("{{\"a\":[1{}]}}", ",1".repeat(items - 1));
    assert_eq!(error(&schema, long(1_000_000).as_bytes()), None);
    assert_eq!(
        error(&schema, long(1_000_001).as_bytes()).unwrap(),
        "more than 1000000 list items"
    );
}

/// Three megabytes of `{}` were a hundred million values.
#[test]
fn the_fields_of_structs_in_lists_count_whether_they_are_there_or_not() {
    let fields: Vec<_> = (0..99).map(|at| format!("f{at}: int8")).collect();
    let schema = schema(&format!(
        r#"{{"name":"a","type":"list<struct<{}>>"}},{{"name":"n","type":"list<struct<s: struct<x: int8, y: int8>>>"}}"#,
        fields.join(", ")
    ));
    for item in ["{}", "null"] {
        let list = |key: &str, items: usize| {
            let more = format!(",{item}").repeat(items - 1);
            format!("{{\"{key}\":[{item}{more}]}}")
        };
        let reason = "more than 1000000 list items";
        assert_eq!(error(&schema, list("a", 10_000).as_bytes()), None);
        let found = error(&schema, list("a", 10_001).as_bytes());
        assert_eq!(found.as_deref(), Some(reason), "{item}");
        assert_eq!(error(&schema, list("n", 250_000).as_bytes()), None);
        let found = error(&schema, list("n", 250_001).as_bytes());
        assert_eq!(found.as_deref(), Some(reason), "{item}");
    }
}

#[test]
fn rows_behind_a_bad_one_are_whole() {
    let schema =
        schema(r#"{"name":"l","type":"list<struct<s: string>>"},{"name":"n","type":"int8"}"#);
    let good: &[u8] = br#"{"l":[{"s":"x"},{}],"n":1}"#;
    let bad: &[u8] = br#"{"l":[{"s":"y"},{"s":"z"},{"s":3}],"n":1}"#;
    let found = rows(&schema, &[Some(good), Some(bad), None, Some(good)]);
    assert_eq!(found[0], json!({"l": [{"s": "x"}, {}], "n": 1}));
    assert_eq!(found[1], json!({"_error": "l: 3 is no string"}));
    assert_eq!(found[2], json!({}));
    assert_eq!(found[3], found[0]);
}

/// Values of all kinds, with keys that meet the schema's often.
fn values() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-300_i64..300).prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        (-1000_i32..1000).prop_map(|n| json!(f64::from(n) / 4.0)),
        "[a-c\"\\\\\u{e9}\n]{0,4}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::vec(("[abcd]", inner), 0..5)
                .prop_map(|fields| Json::Object(fields.into_iter().collect())),
        ]
    })
}

/// What a column should hold, by the model: `None` if the value does not fit.
fn modelled(value: Option<&Json>, data_type: &str) -> Option<Json> {
    let value = match value {
        None | Some(Json::Null) => return Some(Json::Null),
        Some(value) => value,
    };
    let fits = match data_type {
        "int64" => {
            // Fractions of the model are quarters: their text says whether there is one.
            let text = value.to_string();
            let whole = text
                .strip_suffix(".0")
                .and_then(|whole| whole.parse::<i64>().ok());
            return value.as_i64().or(whole).map(Json::from);
        }
        "float64" => value.is_number(),
        "bool" => value.is_boolean(),
        "string" => value.is_string(),
        "list<string>" => value
            .as_array()
            .is_some_and(|items| items.iter().all(|item| item.is_null() || item.is_string())),
        _ => unreachable!(),
    };
    match value.as_f64().filter(|_| data_type == "float64") {
        // As printed and read again, which this reader of JSON does not do exactly.
        Some(number) => serde_json::from_str(&json!(number).to_string()).ok(),
        None => fits.then(|| value.clone()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The decoder against serde_json, over documents of all shapes.
    #[test]
    fn decoding_agrees_with_a_model(
        document in values(),
        pretty in any::<bool>(),
        paths in prop::collection::vec(prop::collection::vec("[abcd0]", 0..4), 1..5),
        types in prop::collection::vec(0_usize..5, 5),
    ) {
        const TYPES: [&str; 5] = ["int64", "float64", "bool", "string", "list<string>"];
        let columns: Vec<_> = paths
            .iter()
            .zip(&types)
            .enumerate()
            .map(|(at, (path, kind))| {
                let pointer: String = path.iter().map(|step| format!("/{step}")).collect();
                let parsed = Path::parse(&pointer).unwrap();
                prop_assert_eq!(parsed.steps(), path.as_slice());
                Ok((format!("c{at}"), TYPES[*kind], pointer))
            })
            .collect::<Result<_, TestCaseError>>()?;
        let text: Vec<_> = columns
            .iter()
            .map(|(name, kind, pointer)| json!({"name": name, "type": kind, "path": pointer}).to_string())
            .collect();
        let schema = schema(&text.join(","));
        let payload = match pretty {
            true => serde_json::to_vec_pretty(&document).unwrap(),
            false => serde_json::to_vec(&document).unwrap(),
        };
        let mut wanted = serde_json::Map::new();
        let takes_lists = paths.iter().any(|path| path.first().is_some_and(|step| step == "0"));
        let mut fits = document.is_object()
            || (document.is_array() && takes_lists)
            || columns.iter().any(|c| c.2.is_empty());
        for (name, kind, pointer) in &columns {
            match modelled(document.pointer(pointer), kind) {
                Some(Json::Null) => {}
                Some(value) => drop(wanted.insert(name.clone(), value)),
                None => fits = false,
            }
        }
        let found = row(&schema, &payload);
        if fits {
            prop_assert_eq!(found, Json::Object(wanted));
        } else {
            let found = found.as_object().unwrap();
            prop_assert_eq!(found.len(), 1);
            prop_assert!(found.contains_key("_error"));
        }
    }

    /// Bytes of any kind, and documents cut or changed anywhere, are a row each; what serde_json does not take has an error.
    #[test]
    fn any_bytes_are_a_row(
        document in values(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let schema = schema(r#"{"name":"a","type":"json"},{"name":"b","type":"json","path":"b.a"}"#);
        let mut payload = serde_json::to_vec(&json!({"b": document})).unwrap();
        let at = at.index(payload.len());
        match cut {
            true => payload.truncate(at),
            false => payload[at] = byte,
        }
        let is_json = match serde_json::from_slice::<Json>(&payload) {
            // Only where a number must become a float it can be too large.
            Err(error) => error.to_string().contains("out of range"),
            Ok(_) => true,
        };
        let is_object = payload.first() == Some(&b'{');
        let found = error(&schema, &payload);
        prop_assert_eq!(found.is_none(), is_json && is_object, "{:?} {:?}", found, payload);
    }
}
