//! Which columns a sample becomes.

use std::collections::HashSet;

use super::super::{Form, MAX_COLUMNS};
use super::{shred, try_shred};

fn form_of(values: &[&str]) -> Form {
    let payloads: Vec<String> = values
        .iter()
        .map(|value| format!("{{\"v\":{value}}}"))
        .collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let done = shred(&payloads, &payloads);
    assert!(done.shredded().iter().all(|yes| *yes), "{values:?}");
    done.shredding.columns()[0].form
}

#[test]
fn the_form_is_the_first_that_gives_back_nearly_all_values() {
    assert_eq!(form_of(&["1", "-2", "null"]), Form::Int);
    assert_eq!(form_of(&["1", "18446744073709551615"]), Form::Uint);
    assert_eq!(form_of(&["1", "2.5"]), Form::DoubleShort);
    assert_eq!(form_of(&["1.0", "2.5", "1e16"]), Form::Double);
    assert_eq!(form_of(&["true", "false"]), Form::Bool);
    assert_eq!(
        form_of(&["12.50", "-0.01", "7.00", "0.00"]),
        Form::Decimal(2)
    );
    assert_eq!(
        form_of(&["-0.500000", "999999999999.999999"]),
        Form::Decimal(6)
    );
    assert_eq!(form_of(&["1.5", "-0.1"]), Form::DoubleShort);
    assert_eq!(form_of(&["\"é\"", "\"\\n\""]), Form::String);
    assert_eq!(
        form_of(&["\"\\u00e9\"", "\"\\ud83d\\ude00\"", "\"\\u007f\""]),
        Form::AsciiString
    );
    for mixed in [
        &["1", "\"x\""][..],
        &["\"\\u00e9\"", "\"é\""],
        &["\"\\/\""],
        &["1.0", "1"],
        &["-1", "18446744073709551615"],
        &["123456789012345678901234567890"],
        &["1E5"],
        &["[]", "[{\"a\":[\"]\"]}]"],
        &["{\"k\":1}", "1"],
    ] {
        assert_eq!(form_of(mixed), Form::Json, "{mixed:?}");
    }
    let mut one_odd = vec!["1"; 99];
    one_odd.push("\"x\"");
    let payloads: Vec<String> = one_odd
        .iter()
        .map(|value| format!("{{\"v\":{value}}}"))
        .collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    assert_eq!(
        shred(&payloads, &payloads).columns(),
        [("payload.v", Form::Int)]
    );
}

#[test]
fn names_that_would_be_the_same_are_numbered() {
    let payload = r#"{"a.b":1,"a":{"b":2},"A":{"B":3},"_offset":4,"":5}"#;
    let done = shred(&[payload; 10], &[payload]);
    assert_eq!(done.shredded(), [true]);
    let names: Vec<_> = done.columns().iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "payload.a.b",
            "payload.a.b#2",
            "payload.A.B#3",
            "payload._offset",
            "payload."
        ]
    );
    let path = &done.shredding.columns()[1].path;
    assert_eq!(path, &["a", "b"]);
}

#[test]
fn rare_fields_get_no_column_and_objects_of_rare_fields_are_text() {
    let payloads: Vec<String> = (0..400)
        .map(|at| match at {
            0 => "{\"id\":0,\"map\":{\"k0\":1},\"rare\":1}".to_owned(),
            at => format!("{{\"id\":{at},\"map\":{{\"k{at}\":1}}}}"),
        })
        .collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let done = shred(&payloads, &payloads);
    assert_eq!(
        done.columns(),
        [("payload.id", Form::Int), ("payload.map", Form::Json)]
    );
    let raw = done.shredded().iter().filter(|yes| !**yes).count();
    assert_eq!(raw, 1, "the one with the rare field");
}

#[test]
fn columns_and_depth_are_limited() {
    let wide: Vec<String> = (0..400).map(|at| format!("\"k{at}\":{at}")).collect();
    let wide = format!("{{{}}}", wide.join(","));
    let narrow = r#"{"k0":1,"k255":2}"#;
    let done = shred(&[&wide; 10], &[wide.as_str(), narrow]);
    assert_eq!(done.columns().len(), MAX_COLUMNS);
    let names: HashSet<_> = done.columns().iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), MAX_COLUMNS);
    assert_eq!(done.shredded(), [false, true]);

    let deep = format!("{}1{}", "{\"a\":".repeat(50), "}".repeat(50));
    let done = shred(&[&deep; 10], &[&deep]);
    assert_eq!(done.columns(), [("payload.a.a.a.a.a.a.a.a", Form::Json)]);
    assert_eq!(done.shredded(), [true]);
    let deepest = format!("{}1{}", "{\"a\":".repeat(9000), "}".repeat(9000));
    assert_eq!(shred(&[&deep; 10], &[&deepest]).shredded(), [false]);
}

#[test]
fn payloads_that_are_no_objects_give_no_columns() {
    let lines: [&[u8]; 20] = [b"GET / HTTP/1.1"; 20];
    assert!(try_shred(&lines, &lines).is_none());
    assert!(try_shred(&[], &lines).is_none());
    let empty: [&[u8]; 20] = [b"{}"; 20];
    assert!(try_shred(&empty, &empty).is_none());
    let mut few = lines.to_vec();
    few[0] = b"{\"a\":1}";
    assert!(try_shred(&few, &few).is_none(), "one in twenty");
    few[1] = few[0];
    assert!(try_shred(&few, &few).is_some(), "one in ten");
}
