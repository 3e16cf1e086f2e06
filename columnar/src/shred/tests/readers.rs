//! What a column holds is what the JSON functions read, whose reader is `jiter`: a row must not change its answer as it cools.

use jiter::{Jiter, NumberAny, NumberInt};
use proptest::prelude::*;

use super::super::Form;
use super::super::form::Leaf;
use super::shred;

/// What a form takes from the value of `{"v":<text>}`, with the text that had to be unescaped.
fn taken(form: Form, text: &str) -> Option<(Leaf, String)> {
    let payload = format!("{{\"v\":{text}}}");
    let mut unescaped = String::new();
    let (leaf, end) = form.read(&payload, 5, &mut unescaped)?;
    (end == payload.len() - 1).then_some((leaf, unescaped))
}

fn read(text: &str) -> Option<NumberAny> {
    let mut jiter = Jiter::new(text.as_bytes());
    let number = jiter.next_number().ok()?;
    jiter.finish().ok()?;
    Some(number)
}

/// Asserts that `form` leaves the number `text` alone or holds what is read; whether it takes it.
fn number_is_the_same(form: Form, text: &str) -> bool {
    let Some((leaf, _)) = taken(form, text) else {
        return false;
    };
    let number = read(text);
    let what = || format!("{text} as {form:?}: {leaf:?}, read as {number:?}");
    let float =
        |number: &Option<NumberAny>| number.clone().map(|number| f64::from(number).to_bits());
    let is_whole = match &number {
        Some(NumberAny::Int(NumberInt::Int(value))) => Some(value.to_string()),
        Some(NumberAny::Int(NumberInt::BigInt(value))) => Some(value.to_string()),
        _ => None,
    };
    match leaf {
        Leaf::Int(value) => {
            assert_eq!(is_whole, Some(value.to_string()), "{}", what());
            let cast = (value as f64).to_bits();
            assert_eq!(float(&number), Some(cast), "{}", what());
        }
        Leaf::Uint(value) => assert_eq!(is_whole, Some(value.to_string()), "{}", what()),
        Leaf::Double(value) => assert_eq!(float(&number), Some(value.to_bits()), "{}", what()),
        Leaf::Decimal(_) => assert!(matches!(number, Some(NumberAny::Float(_))), "{}", what()),
        Leaf::Text(..) => assert!(number.is_some(), "{}", what()),
        _ => panic!("{}", what()),
    }
    true
}

/// `-0` was -0.0 in a column of doubles, and 0 to who read the payload: `json_get_float(...) = 0` was false of the cold row only.
#[test]
fn numbers_are_in_columns_what_json_functions_read() {
    use Form::{Decimal, Double, DoubleShort, Int, Uint};
    for (text, forms) in [
        ("0", &[Int, Uint, DoubleShort][..]),
        ("-0", &[]),
        ("-0.0", &[Double]),
        ("0.0", &[Double, Decimal(1)]),
        ("0.00", &[Decimal(2)]),
        ("-0.00", &[]),
        ("0e0", &[]),
        ("-0e1", &[]),
        ("1e5", &[]),
        ("1E5", &[]),
        ("1e16", &[Double]),
        ("1e+16", &[]),
        ("1e-7", &[Double]),
        ("1E16", &[]),
        ("1.0", &[Double, Decimal(1)]),
        ("-1", &[Int, DoubleShort]),
        ("9007199254740993", &[Int, Uint]),
        ("9007199254740992", &[Int, Uint, DoubleShort]),
        ("9223372036854775807", &[Int, Uint]),
        ("-9223372036854775808", &[Int]),
        ("9223372036854775808", &[Uint]),
        ("9223372036854776000", &[Uint, DoubleShort]),
        ("18446744073709551615", &[Uint]),
        ("18446744073709552000", &[DoubleShort]),
        ("18446744073709551616", &[]),
        ("-18446744073709552000", &[DoubleShort]),
        ("100000000000000000000", &[DoubleShort]),
        ("0.1", &[Double, DoubleShort, Decimal(1)]),
        ("0.1000000000000000055511151231257827", &[]),
        ("5e-324", &[Double]),
        ("1e400", &[]),
        ("-1e400", &[]),
        ("999999999999999.999", &[Decimal(3)]),
    ] {
        let all = Form::ALL.iter().filter(|form| **form != Form::Json);
        let found: Vec<_> = all
            .filter(|form| number_is_the_same(**form, text))
            .collect();
        let mut expected: Vec<_> = forms.iter().collect();
        expected.sort_by_key(|form| Form::ALL.iter().position(|of_all| of_all == *form));
        assert_eq!(found, expected, "{text}");
        assert!(number_is_the_same(Form::Json, text), "{text}");
    }
    let sample = [r#"{"v":0.5}"#; 10];
    let done = shred(&sample, &[sample[0], r#"{"v":-0}"#, r#"{"v":0}"#]);
    assert_eq!(done.columns(), [("payload.v", Form::DoubleShort)]);
    assert_eq!(done.shredded(), [true, false, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn any_number_is_in_columns_what_json_functions_read(
        text in r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        bits in any::<u64>(),
        whole in any::<i128>(),
        shift in 0_u32..127,
    ) {
        let value = f64::from_bits(bits);
        let texts = [text, format!("{value}"), format!("{value:?}"), (whole >> shift).to_string()];
        for text in texts.iter().filter(|text| read(text).is_some()) {
            for form in Form::ALL {
                number_is_the_same(form, text);
            }
        }
    }

    #[test]
    fn any_text_is_in_columns_what_json_functions_read(
        text in r#"([a\x01\x7f\u{e9}\u{2028}\u{1f600}]|\\["\\/bfnrtx]|\\u(0000|001f|00e9|00E9|2028|d83d\\ude00|d83d|ude00|ffff)){0,6}"#,
    ) {
        let text = format!("\"{text}\"");
        for form in [Form::String, Form::AsciiString, Form::Json] {
            let Some((leaf, unescaped)) = taken(form, &text) else { continue };
            let mut jiter = Jiter::new(text.as_bytes());
            let read = jiter.next_str().unwrap();
            let payload = format!("{{\"v\":{text}}}");
            match leaf {
                Leaf::Text(from, to) if form == Form::Json => prop_assert_eq!(&payload[from..to], &text),
                Leaf::Text(from, to) => prop_assert_eq!(&payload[from..to], read),
                Leaf::Unescaped(from, to) => prop_assert_eq!(&unescaped[from..to], read),
                _ => prop_assert!(false, "{leaf:?}"),
            }
        }
    }
}
