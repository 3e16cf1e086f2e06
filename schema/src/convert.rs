//! Numbers and times from their text, and typed values into columns of another type, exactly or not at all (SCH-2).

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::types::{ColumnType, TimeScale};
use crate::value::{Misfit, Value};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A value whose own type is known.
#[derive(Debug, Clone)]
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float32(f32),
    Float64(f64),
    /// In units of the last of `scale` digits.
    Decimal {
        unscaled: i128,
        scale: u32,
    },
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    /// Days since 1970.
    Date(i32),
    /// So many units of `unit_ns` since 1970.
    Timestamp {
        units: i64,
        unit_ns: i64,
    },
}

impl Scalar<'_> {
    fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::UInt(value) => value.to_string(),
            Self::Float32(value) => value.to_string(),
            Self::Float64(value) => value.to_string(),
            Self::Decimal { unscaled, scale } => format!("{unscaled}e-{scale}"),
            Self::Text(text) => format!("{text:?}"),
            Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Self::Date(days) => format!("a date, day {days},"),
            Self::Timestamp { units, unit_ns } => {
                format!("a timestamp, {units} times {unit_ns} ns,")
            }
        }
    }
}

/// `scalar` as a value of `wanted`.
pub(crate) fn fit<'a>(wanted: &ColumnType, scalar: Scalar<'a>) -> Result<Value<'a>, Misfit> {
    let fitting = match (wanted, &scalar) {
        (_, Scalar::Null) => Some(Value::Null),
        (ColumnType::Bool, Scalar::Bool(value)) => Some(Value::Bool(*value)),
        (ColumnType::Decimal { precision, scale }, Scalar::Int(value)) => {
            rescaled((*value).into(), 0, *precision, *scale).map(Value::Decimal)
        }
        (ColumnType::Decimal { precision, scale }, Scalar::UInt(value)) => {
            rescaled((*value).into(), 0, *precision, *scale).map(Value::Decimal)
        }
        (
            ColumnType::Decimal { precision, scale },
            Scalar::Decimal {
                unscaled,
                scale: had,
            },
        ) => rescaled(*unscaled, *had, *precision, *scale).map(Value::Decimal),
        (ColumnType::Float32, Scalar::Float32(value)) => Some(Value::Float32(*value)),
        (ColumnType::Float64, Scalar::Float32(value)) => Some(Value::Float64((*value).into())),
        (ColumnType::Float64, Scalar::Float64(value)) => Some(Value::Float64(*value)),
        (ColumnType::Date, Scalar::Date(days)) => Some(Value::Int((*days).into())),
        (ColumnType::Timestamp(scale), Scalar::Timestamp { units, unit_ns }) => {
            moment(i128::from(*units) * i128::from(*unit_ns), *scale).map(Value::Int)
        }
        (ColumnType::Timestamp(scale), Scalar::Int(number)) => {
            epoch(*number, *scale).map(Value::Int)
        }
        (ColumnType::Timestamp(_) | ColumnType::Date, Scalar::Text(text)) => {
            return from_text(wanted, text);
        }
        (_, Scalar::Int(value)) => integer(wanted, (*value).into()),
        (_, Scalar::UInt(value)) => integer(wanted, (*value).into()),
        (ColumnType::String, Scalar::Text(_)) | (ColumnType::Binary, Scalar::Bytes(_)) => {
            return Ok(match scalar {
                Scalar::Text(text) => Value::Text(text),
                Scalar::Bytes(bytes) => Value::Bytes(bytes),
                _ => Value::Null,
            });
        }
        _ => None,
    };
    fitting.ok_or_else(|| Misfit::not(wanted, &scalar.shown()))
}

/// A whole number as a value of an integer type.
fn integer(wanted: &ColumnType, value: i128) -> Option<Value<'static>> {
    let signed = |min: i64, max: i64| {
        let value = i64::try_from(value).ok()?;
        (min..=max).contains(&value).then_some(Value::Int(value))
    };
    let unsigned = |max: u64| {
        let value = u64::try_from(value).ok()?;
        (value <= max).then_some(Value::UInt(value))
    };
    match wanted {
        ColumnType::Int8 => signed(i8::MIN.into(), i8::MAX.into()),
        ColumnType::Int16 => signed(i16::MIN.into(), i16::MAX.into()),
        ColumnType::Int32 => signed(i32::MIN.into(), i32::MAX.into()),
        ColumnType::Int64 => signed(i64::MIN, i64::MAX),
        ColumnType::UInt8 => unsigned(u8::MAX.into()),
        ColumnType::UInt16 => unsigned(u16::MAX.into()),
        ColumnType::UInt32 => unsigned(u32::MAX.into()),
        ColumnType::UInt64 => unsigned(u64::MAX),
        _ => None,
    }
}

/// The number that `text`, a JSON number, spells.
pub(crate) fn from_number(wanted: &ColumnType, text: &str) -> Result<Value<'static>, Misfit> {
    let value = match wanted {
        ColumnType::Float32 => finite(text.parse().ok(), f32::is_finite).map(Value::Float32),
        ColumnType::Float64 => finite(text.parse().ok(), f64::is_finite).map(Value::Float64),
        ColumnType::Decimal { precision, scale } => {
            decimal(text, *precision, *scale).map(Value::Decimal)
        }
        ColumnType::Timestamp(scale) => whole(text)
            .and_then(|number| i64::try_from(number).ok())
            .and_then(|number| epoch(number, *scale))
            .map(Value::Int),
        _ => whole(text).and_then(|number| integer(wanted, number)),
    };
    value.ok_or_else(|| Misfit::not(wanted, text))
}

fn finite<T: Copy>(value: Option<T>, is_finite: impl FnOnce(T) -> bool) -> Option<T> {
    value.filter(|value| is_finite(*value))
}

/// A number without a fraction, however it is written: `100`, `1e2` and `100.0` are the same.
fn whole(text: &str) -> Option<i128> {
    match text.parse::<i64>() {
        Ok(number) => Some(number.into()),
        Err(_) => decimal(text, 38, 0),
    }
}

/// What `text`, a JSON string, means in a column that holds no text.
pub(crate) fn from_text(wanted: &ColumnType, text: &str) -> Result<Value<'static>, Misfit> {
    let value = match wanted {
        ColumnType::Decimal { precision, scale } => {
            decimal(text, *precision, *scale).map(Value::Decimal)
        }
        ColumnType::Timestamp(scale) => rfc3339_ns(text)
            .and_then(|ns| moment(ns, *scale))
            .map(Value::Int),
        ColumnType::Date => date(text.as_bytes()).map(Value::Int),
        ColumnType::Binary => BASE64
            .decode(text)
            .ok()
            .map(|bytes| Value::Bytes(bytes.into())),
        _ => None,
    };
    value.ok_or_else(|| Misfit::not(wanted, &format!("{text:?}")))
}

/// A number in units of the last of `scale` digits; `None` if it has more of them, or more than `precision` in all.
///
/// Takes what JSON takes for a number, and leading zeros.
pub(crate) fn decimal(text: &str, precision: u8, scale: u8) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], self::exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (units, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if units.is_empty() || (mantissa.len() > units.len() && fraction.is_empty()) {
        return None;
    }
    let (mut value, mut digits, mut zeros) = (0_i128, 0_i64, 0_i64);
    for byte in units.bytes().chain(fraction.bytes()) {
        match byte {
            b'0' if value == 0 => {}
            b'0' => zeros += 1,
            b'1'..=b'9' => {
                digits += zeros + 1;
                if digits > i64::from(precision) {
                    return None;
                }
                for _ in 0..=zeros {
                    value *= 10;
                }
                value += i128::from(byte - b'0');
                zeros = 0;
            }
            _ => return None,
        }
    }
    if value == 0 {
        return Some(0);
    }
    // The zeros at the end are not in `value`.
    let fraction_digits = i64::try_from(fraction.len()).ok()?;
    let shift = exponent
        .checked_sub(fraction_digits)?
        .checked_add(zeros)?
        .checked_add(scale.into())?;
    if shift < 0 || digits.checked_add(shift)? > precision.into() {
        return None;
    }
    for _ in 0..shift {
        value *= 10;
    }
    Some(if negative { -value } else { value })
}

fn exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Beyond that no digits could make up for it. A sign in front is as `parse` wants it.
    let beyond = if text.starts_with('-') {
        i64::MIN / 4
    } else {
        i64::MAX / 4
    };
    Some(match digits.trim_start_matches('0').len() <= 15 {
        true => text.parse().ok()?,
        false => beyond,
    })
}

/// `unscaled`, in units of the last of `had` digits, with `scale` of them.
fn rescaled(unscaled: i128, had: u32, precision: u8, scale: u8) -> Option<i128> {
    let wanted = u32::from(scale);
    let value = match wanted.checked_sub(had) {
        Some(more) => unscaled.checked_mul(10_i128.checked_pow(more)?)?,
        None if unscaled == 0 => 0,
        None => {
            let divisor = 10_i128.checked_pow(had - wanted)?;
            (unscaled % divisor == 0).then(|| unscaled / divisor)?
        }
    };
    (value.unsigned_abs() < 10_u128.checked_pow(precision.into())?).then_some(value)
}

/// A number of the unit that timestamps of `scale` are written in.
fn epoch(number: i64, scale: TimeScale) -> Option<i64> {
    match scale {
        TimeScale::Seconds => number.checked_mul(1_000),
        _ => Some(number),
    }
}

/// A moment in the units of `scale`, if it is one of them exactly.
fn moment(ns: i128, scale: TimeScale) -> Option<i64> {
    let unit = i128::from(scale.unit_ns());
    match ns % unit {
        0 => i64::try_from(ns / unit).ok(),
        _ => None,
    }
}

/// Nanoseconds since 1970 of a moment as RFC 3339 writes it; a blank for the `T` is fine, a missing offset from UTC is not.
pub(crate) fn rfc3339_ns(text: &str) -> Option<i128> {
    let bytes = text.as_bytes();
    let days = date(bytes.get(..10)?)?;
    if !matches!(bytes.get(10)?, b'T' | b't' | b' ') || bytes.get(13)? != &b':' {
        return None;
    }
    let clock = |at: usize, below: i64| {
        let value = digits(bytes.get(at..at + 2)?)?;
        (value < below).then_some(value)
    };
    if bytes.get(16)? != &b':' {
        return None;
    }
    let seconds = clock(11, 24)? * 3_600 + clock(14, 60)? * 60 + clock(17, 60)?;
    let mut at = 19;
    let mut fraction_ns = 0;
    if bytes.get(at) == Some(&b'.') {
        let end = at
            + 1
            + bytes[at + 1..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count();
        // Beyond nanoseconds only zeros can be kept.
        let (kept, rest) = bytes[at + 1..end].split_at((end - at - 1).min(9));
        if kept.is_empty() || rest.iter().any(|digit| *digit != b'0') {
            return None;
        }
        fraction_ns = (kept.len()..9).fold(digits(kept)?, |ns, _| ns * 10);
        at = end;
    }
    let offset = match bytes.get(at)? {
        b'Z' | b'z' => {
            at += 1;
            0
        }
        sign @ (b'+' | b'-') => {
            if bytes.get(at + 3)? != &b':' {
                return None;
            }
            let offset = clock(at + 1, 24)? * 3_600 + clock(at + 4, 60)? * 60;
            at += 6;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    if at != bytes.len() {
        return None;
    }
    let seconds = days * 86_400 + seconds - offset;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(fraction_ns))
}

/// Days since 1970 of `YYYY-MM-DD`.
pub(crate) fn date(text: &[u8]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = *text else {
        return None;
    };
    let (year, month, day) = (
        digits(&[y1, y2, y3, y4])?,
        digits(&[m1, m2])?,
        digits(&[d1, d2])?,
    );
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if !(1..=month_days).contains(&day) {
        return None;
    }
    // Years that begin in March have their odd day at the end.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit()
            .then(|| value * 10 + i64::from(byte - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_or_refused() {
        for (text, precision, scale, value) in [
            ("0", 1, 0, Some(0)),
            ("-0.00", 3, 2, Some(0)),
            ("12.34", 4, 2, Some(1_234)),
            ("12.340", 4, 2, Some(1_234)),
            ("-12.345", 5, 2, None),
            ("123.4", 4, 2, None),
            ("1e2", 5, 2, Some(10_000)),
            ("1.5E-1", 3, 2, Some(15)),
            ("100", 3, 0, Some(100)),
            ("1000", 3, 0, None),
            ("0.1", 38, 37, Some(10_i128.pow(36))),
            (
                "99999999999999999999999999999999999999",
                38,
                0,
                Some(10_i128.pow(38) - 1),
            ),
            ("100000000000000000000000000000000000000", 38, 0, None),
            ("1e99999999999999999999", 38, 0, None),
            ("0e99999999999999999999", 38, 0, Some(0)),
            ("1e-99999999999999999999", 38, 0, None),
            ("", 5, 2, None),
            ("-", 5, 2, None),
            (".5", 5, 2, None),
            ("5.", 5, 2, None),
            ("1e", 5, 2, None),
            ("1x", 5, 2, None),
            ("--1", 5, 2, None),
        ] {
            assert_eq!(decimal(text, precision, scale), value, "{text}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (text, days) in [
            ("1970-01-01", Some(0)),
            ("1969-12-31", Some(-1)),
            ("2000-02-29", Some(11_016)),
            ("2013-01-01", Some(15_706)),
            ("0000-01-01", Some(-719_528)),
            ("9999-12-31", Some(2_932_896)),
            ("1900-02-29", None),
            ("2001-04-31", None),
            ("2001-00-01", None),
            ("2001-1-01", None),
        ] {
            assert_eq!(date(text.as_bytes()), days, "{text}");
        }
    }

    #[test]
    fn moments_have_an_offset_and_whole_nanoseconds() {
        for (text, ns) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01 01:00:00.5+01:00", Some(500_000_000)),
            ("1969-12-31T23:59:59.999999999Z", Some(-1)),
            ("2013-01-01T05:00:00-05:30", Some(1_357_036_200_000_000_000)),
            ("1970-01-01T00:00:00.1234567890Z", Some(123_456_789)),
            ("1970-01-01T00:00:00.1234567891Z", None),
            ("1970-01-01T00:00:00", None),
            ("1970-01-01T24:00:00Z", None),
            ("1970-01-01T00:00:60Z", None),
            ("1970-01-01T00:00:00.Z", None),
            ("1970-01-01T00:00:00Zx", None),
            ("1970-01-01T00:00:00+0100", None),
            ("1970-01-01", None),
            ("", None),
        ] {
            assert_eq!(rfc3339_ns(text), ns, "{text}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_and_never_wrapped() {
        let int = |wanted, text| from_number(&wanted, text).ok();
        assert_eq!(int(ColumnType::Int8, "-128"), Some(Value::Int(-128)));
        assert_eq!(int(ColumnType::Int8, "128"), None);
        assert_eq!(int(ColumnType::UInt8, "-1"), None);
        assert_eq!(
            int(ColumnType::UInt64, "18446744073709551615"),
            Some(Value::UInt(u64::MAX))
        );
        assert_eq!(int(ColumnType::UInt64, "18446744073709551616"), None);
        assert_eq!(int(ColumnType::Int64, "9223372036854775808"), None);
        assert_eq!(int(ColumnType::Int32, "1.0e2"), Some(Value::Int(100)));
        assert_eq!(int(ColumnType::Int32, "1.5"), None);
        assert_eq!(int(ColumnType::Float64, "1e999"), None);
        assert_eq!(int(ColumnType::Float32, "1e39"), None);
        let seconds = ColumnType::Timestamp(TimeScale::Seconds);
        assert_eq!(int(seconds.clone(), "5"), Some(Value::Int(5_000)));
        assert_eq!(int(seconds, "9223372036854775807"), None);
        assert_eq!(int(ColumnType::String, "5"), None);
    }

    #[test]
    fn typed_values_go_where_they_fit() {
        let decimal = Scalar::Decimal {
            unscaled: 12_300,
            scale: 3,
        };
        let wanted = |precision, scale| ColumnType::Decimal { precision, scale };
        assert_eq!(fit(&wanted(5, 1), decimal.clone()), Ok(Value::Decimal(123)));
        assert!(fit(&wanted(5, 0), decimal.clone()).is_err());
        assert!(fit(&wanted(5, 4), decimal).is_err());
        let stamp = Scalar::Timestamp {
            units: 1_500,
            unit_ns: 1_000,
        };
        let scale = |scale| ColumnType::Timestamp(scale);
        assert_eq!(
            fit(&scale(TimeScale::Nanos), stamp.clone()),
            Ok(Value::Int(1_500_000))
        );
        assert!(fit(&scale(TimeScale::Millis), stamp).is_err());
        assert!(fit(&ColumnType::Float32, Scalar::Float64(0.1)).is_err());
        assert!(fit(&ColumnType::String, Scalar::Bytes(Cow::Borrowed(b"x"))).is_err());
    }
}
