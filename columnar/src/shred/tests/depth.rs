//! What nests deeper than the JSON functions' reader follows.

use jiter::{Jiter, NumberInt};

use super::super::Form;
use super::super::template::MAX_NESTING;
use super::shred;

/// Reads the field `b` as a JSON function does: over the fields before it.
fn field_b(payload: &str) -> Option<i64> {
    let mut jiter = Jiter::new(payload.as_bytes());
    let mut key = jiter.next_object().ok()??;
    while key != "b" {
        jiter.next_skip().ok()?;
        key = jiter.next_key().ok()??;
    }
    match jiter.next_int().ok()? {
        NumberInt::Int(value) => Some(value),
        NumberInt::BigInt(_) => None,
    }
}

/// Behind a value that nests too deep for their reader, JSON functions found nothing in hot rows and the column's value in cold ones.
#[test]
fn payloads_that_nest_deeper_than_json_functions_read_keep_their_bytes() {
    let lists = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let objects = |levels: usize| format!("{}1{}", "{\"k\":".repeat(levels), "}".repeat(levels));
    let sample = [r#"{"a":[1],"b":1}"#, r#"{"a":"x","b":2}"#].repeat(10);
    let inside = [r#"{"o":{"a":[1]},"b":1}"#, r#"{"o":{"a":"x"},"b":2}"#].repeat(10);
    for value in [lists, objects] {
        for levels in [MAX_NESTING - 1, MAX_NESTING, MAX_NESTING + 1] {
            let payload = format!("{{\"a\":{},\"b\":1}}", value(levels));
            let is_read = levels <= MAX_NESTING;
            assert_eq!(field_b(&payload), is_read.then_some(1), "{levels}");
            assert_eq!(shred(&sample, &[payload]).shredded(), [is_read], "{levels}");
        }
        for levels in [MAX_NESTING - 2, MAX_NESTING - 1, MAX_NESTING] {
            let payload = format!("{{\"o\":{{\"a\":{}}},\"b\":1}}", value(levels));
            let is_read = levels < MAX_NESTING;
            assert_eq!(field_b(&payload), is_read.then_some(1), "{levels}");
            let done = shred(&inside, &[payload]);
            assert_eq!(done.columns()[0], ("payload.o.a", Form::Json));
            assert_eq!(done.shredded(), [is_read], "{levels}");
        }
    }
    let brackets = format!("{{\"a\":[\"{}\\\"\"],\"b\":1}}", "[".repeat(300));
    assert_eq!(
        shred(&sample, &[brackets]).shredded(),
        [true],
        "in a string"
    );
    let wide = format!("{{\"a\":[{}1],\"b\":1}}", "[],{},".repeat(300));
    assert_eq!(
        shred(&sample, &[wide]).shredded(),
        [true],
        "beside each other"
    );
}
