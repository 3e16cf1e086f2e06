//! Every oddity comes back as it was, and what is regular leaves its payload out.

use std::sync::Arc;

use arrow::array::{Array, AsArray, Int32Array, Int64Array};
use arrow::datatypes::{Decimal128Type, Float64Type, Int64Type};

use super::super::infer::Inference;
use super::super::{Form, MAX_PAYLOAD_BYTES, Shredder};
use super::{rows_of, shred, try_shred};
use crate::schema::column;

#[test]
fn values_are_columns_of_their_type_and_null_is_not_absent() {
    let plain = r#"{"id":7,"on":true,"x":0.5,"s":"é\n","far":{"deep":{"n":-1}},"list":[1, 2]}"#;
    let nulls = r#"{"id":null,"on":null,"x":null,"s":null,"far":{"deep":{"n":null}},"list":null}"#;
    let absent = r#"{"on":false,"s":"null","far":null}"#;
    let done = shred(&[plain; 20], &[plain, nulls, absent, plain]);
    assert_eq!(done.shredded(), [true; 4]);
    assert_eq!(
        done.columns(),
        [
            ("payload.id", Form::Int),
            ("payload.on", Form::Bool),
            ("payload.x", Form::DoubleShort),
            ("payload.s", Form::String),
            ("payload.far.deep.n", Form::Int),
            ("payload.list", Form::Json),
        ]
    );
    let column = |name| done.rows.column_by_name(name).unwrap();
    let ids: Vec<_> = column("payload.id")
        .as_primitive::<Int64Type>()
        .iter()
        .collect();
    assert_eq!(ids, [Some(7), None, None, Some(7)]);
    let doubles = column("payload.x").as_primitive::<Float64Type>();
    assert_eq!(doubles.iter().next().unwrap(), Some(0.5));
    assert_eq!(
        done.texts("payload.s"),
        [Some("é\n"), None, Some("null"), Some("é\n")].map(|text| text.map(str::to_owned))
    );
    assert_eq!(done.texts("payload.list")[0].as_deref(), Some("[1, 2]"));
    assert_eq!(done.shredding.templates.len(), 2, "null needs no template");
}

#[test]
fn key_order_spacing_and_missing_keys_are_templates() {
    let sample = [r#"{"a":1,"b":"x"}"#; 10];
    let payloads = [
        r#"{"a":1,"b":"x"}"#,
        r#"{"b":"x","a":1}"#,
        r#"{"a":1}"#,
        r#"{}"#,
        r#"{ "a" : 1 , "b" : "x" }"#,
        " {\t\"a\":\r\n1}\n",
        r#"{"a":2,"b":"y"}"#,
    ];
    let done = shred(&sample, &payloads);
    assert_eq!(done.shredded(), [true; 7]);
    assert_eq!(done.shredding.templates.len(), 6);
}

#[test]
fn what_is_not_as_the_column_keeps_its_payload() {
    let sample = [r#"{"n":1,"d":1.0,"s":"x","o":{"k":1},"b":true}"#; 10];
    for odd in [
        r#"{"n":1.0}"#,
        r#"{"n":-0}"#,
        r#"{"n":1e5}"#,
        r#"{"n":01}"#,
        r#"{"n":+1}"#,
        r#"{"n":"1"}"#,
        r#"{"n":9223372036854775808}"#,
        r#"{"n":123456789012345678901234567890}"#,
        r#"{"n":}"#,
        r#"{"d":1}"#,
        r#"{"d":1e5}"#,
        r#"{"d":1.00}"#,
        r#"{"d":0.1000000000000000055511151231257827}"#,
        r#"{"d":1e400}"#,
        r#"{"d":NaN}"#,
        r#"{"d":inf}"#,
        r#"{"d":.5}"#,
        r#"{"d":1E16}"#,
        r#"{"s":"\u00e9"}"#,
        r#"{"s":"\/"}"#,
        r#"{"s":"\ud800"}"#,
        r#"{"s":"\x"}"#,
        "{\"s\":\"a\tb\"}",
        r#"{"s":"x}"#,
        r#"{"n":1,"n":2}"#,
        r#"{"o":{"k":1,"k":1}}"#,
        r#"{"o":{"z":1}}"#,
        r#"{"o":[]}"#,
        r#"{"o":1}"#,
        r#"{"z":1}"#,
        r#"{"b":1}"#,
        r#"{"b":True}"#,
        r#"{"b":nul}"#,
        r#"{"\u006e":1}"#,
        r#"{"n":1,}"#,
        r#"{"n":1}}"#,
        r#"{"n":1"#,
        r#"{"n" 1}"#,
        r#"{"n":1 "d":1.0}"#,
        r#"{"#,
        r#"["n"]"#,
        r#""n""#,
        "1",
        "null",
        "",
        " ",
        "plain text",
        "\u{feff}{}",
        "{}{}",
    ] {
        let done = shred(&sample, &[sample[0], odd, sample[0]]);
        assert_eq!(done.shredded(), [true, false, true], "{odd}");
    }
    for fine in [
        r#"{"n":0}"#,
        r#"{"n":-9223372036854775808}"#,
        r#"{"n":9223372036854775807}"#,
        r#"{"d":-0.0}"#,
        r#"{"d":1e16}"#,
        r#"{"d":5e-324}"#,
        r#"{"d":0.1}"#,
        r#"{"s":"\"\\\b\f\n\r\t\u001f\u0000/é😀"}"#,
        r#"{"o":{}}"#,
        r#"{"o":null}"#,
        "{}",
    ] {
        assert_eq!(shred(&sample, &[fine]).shredded(), [true], "{fine}");
    }
}

#[test]
fn decimals_keep_their_digits() {
    let sample = [r#"{"v":12.50}"#; 10];
    let done = shred(&sample, &[sample[0], r#"{"v":-3.07}"#]);
    assert_eq!(done.columns(), [("payload.v", Form::Decimal(2))]);
    let values = done.rows.column_by_name("payload.v").unwrap();
    let values = values.as_primitive::<Decimal128Type>();
    assert_eq!((values.value(0), values.value(1)), (1250, -307));
    for odd in [
        "12.5",
        "12",
        "12.500",
        "-0.00",
        "00.50",
        "-00.50",
        ".50",
        "1.5e",
        "1.-5",
        "+1.50",
        "1e2",
        "1.+5",
        "--1.50",
        "9999999999999999999.50",
        "12345678901234567.50",
    ] {
        let odd = format!("{{\"v\":{odd}}}");
        assert_eq!(
            shred(&sample, &[sample[0], &odd]).shredded(),
            [true, false],
            "{odd}"
        );
    }
    for fine in ["0.00", "-0.01", "null", "123456789012345.99", "0.09"] {
        let fine = format!("{{\"v\":{fine}}}");
        assert_eq!(
            shred(&sample, &[fine.as_str()]).shredded(),
            [true],
            "{fine}"
        );
    }
}

#[test]
fn payloads_that_are_not_utf_8_or_large_keep_their_bytes() {
    let sample: [&[u8]; 10] = [br#"{"s":"x"}"#; 10];
    let large = format!(r#"{{"s":"{}"}}"#, "x".repeat(MAX_PAYLOAD_BYTES));
    let payloads: [&[u8]; 5] = [
        b"{\"s\":\"\xff\"}",
        b"{\"s\":\"\xc3\"}",
        b"{\"\xc3\x28\":1}",
        large.as_bytes(),
        sample[0],
    ];
    let done = try_shred(&sample, &payloads).unwrap();
    assert_eq!(done.shredded(), [false, false, false, false, true]);
}

#[test]
fn one_odd_record_among_many_is_the_only_one_with_a_payload() {
    let many: Vec<String> = (0..8000)
        .map(|at| {
            if at == 4321 {
                "{\"at\":\"here\"}".to_owned()
            } else {
                format!("{{\"at\":{at}}}")
            }
        })
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let raw = shred(&many[..100], &many).shredded();
    assert!((0..8000).all(|at| raw[at] == (at != 4321)));
}

#[test]
fn templates_are_limited_and_payloads_beyond_them_are_kept() {
    let keys: Vec<String> = (0..9).map(|key| format!("\"k{key}\":1")).collect();
    let payloads: Vec<String> = (0..512_usize)
        .map(|bits| {
            let chosen = (0..9).filter(|key| bits & (1 << key) != 0);
            let fields: Vec<&str> = chosen.map(|key| keys[key].as_str()).collect();
            format!("{{{}}}", fields.join(","))
        })
        .collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let done = shred(&payloads, &payloads);
    assert_eq!(done.shredding.templates.len(), 256);
    let shredded = done.shredded();
    assert!((0..512).all(|at| shredded[at] == (at < 256)));

    let wide = |space: usize| format!("{{{}\"k0\":1}}", " ".repeat(space));
    let wide: Vec<String> = (60_000..60_008).map(wide).collect();
    let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
    let shredded = shred(&wide, &wide).shredded();
    assert_eq!(
        shredded.iter().filter(|yes| **yes).count(),
        4,
        "256 KiB of text"
    );
}

/// COL-24: whatever the columns hold, a payload that they do not give back stays.
#[test]
fn rows_whose_columns_give_back_other_bytes_keep_their_payloads() {
    let sample: [&[u8]; 10] = [br#"{"n":1}"#; 10];
    let mut inference = Inference::default();
    sample.iter().for_each(|payload| inference.observe(payload));
    let mut shredder = Shredder::new(inference.finish().unwrap());
    let rows = rows_of(&[br#"{"n":1}"#, br#"{"n":2}"#]);
    let right = shredder.shred(&rows);
    assert_eq!(right.column(column::PAYLOAD).null_count(), 2);
    let wrong = vec![
        Arc::new(Int32Array::from(vec![0, 0])) as _,
        Arc::new(Int64Array::from(vec![1, 3])) as _,
    ];
    let kept = shredder.proven(&rows, wrong);
    assert_eq!(kept.column(column::PAYLOAD), rows.column(column::PAYLOAD));
    assert_eq!(kept.column_by_name("_template").unwrap().null_count(), 2);
    assert_eq!(kept.column_by_name("payload.n").unwrap().null_count(), 2);
    assert_eq!(shredder.shredded_rows(), 2);
}
