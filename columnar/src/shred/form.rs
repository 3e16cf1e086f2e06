//! How the values of a column are stored and rendered.

use std::io::Write;

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};

use super::scan;
use super::strings;

/// The type of a shredded column, and how its values are rendered (the table in the module's documentation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Form {
    /// `true` and `false`.
    Bool,
    /// Whole numbers of 64 bits with a sign.
    Int,
    /// Whole numbers of 64 bits without one.
    Uint,
    /// Strings.
    String,
    /// Strings whose producer escapes all but ASCII.
    AsciiString,
    /// Doubles whose producer writes `1` for 1.0.
    DoubleShort,
    /// Doubles whose producer writes `1.0`.
    Double,
    /// Numbers with always so many digits behind the point, such as `12.50`: 1 to 9 of at most 18.
    Decimal(u8),
    /// Any value, as its text.
    Json,
}

/// Digits behind each other in a value that is kept as text.
const MAX_DIGITS: usize = 4096;
/// Digits of a decimal.
const PRECISION: u8 = 18;

/// A value that was read from a payload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Leaf {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    /// Times ten to the power of the column's scale.
    Decimal(i64),
    /// The payload's bytes from here to there.
    Text(usize, usize),
    /// The same of the scratch text: what had to be unescaped.
    Unescaped(usize, usize),
}

impl Form {
    /// All of them. Where two fit the same values, the earlier is the better.
    pub(super) const ALL: [Self; 13] = [
        Self::Bool,
        Self::Int,
        Self::Uint,
        Self::String,
        Self::AsciiString,
        Self::DoubleShort,
        Self::Double,
        Self::Decimal(1),
        Self::Decimal(2),
        Self::Decimal(3),
        Self::Decimal(4),
        Self::Decimal(6),
        Self::Json,
    ];

    /// The Arrow type of such a column.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::Uint => DataType::UInt64,
            Self::Double | Self::DoubleShort => DataType::Float64,
            Self::Decimal(scale) => DataType::Decimal128(PRECISION, scale.cast_signed()),
            Self::String | Self::AsciiString | Self::Json => DataType::Utf8,
        }
    }

    /// Reads the value that begins at `at`, and says where it ends; `None` unless it would be rendered as it stands there, and is to
    /// the JSON functions what the column holds.
    pub(super) fn read(
        self,
        payload: &str,
        at: usize,
        unescaped: &mut String,
    ) -> Option<(Leaf, usize)> {
        let bytes = payload.as_bytes();
        let rest = bytes.get(at..)?;
        if rest.starts_with(b"null") {
            return Some((Leaf::Null, at + 4));
        }
        match self {
            Self::Bool if rest.starts_with(b"true") => Some((Leaf::Bool(true), at + 4)),
            Self::Bool if rest.starts_with(b"false") => Some((Leaf::Bool(false), at + 5)),
            Self::Bool => None,
            Self::Int => {
                let (negative, digits, used) = whole_number(rest)?;
                let value = if negative {
                    0_i64.checked_sub_unsigned(digits)?
                } else {
                    i64::try_from(digits).ok()?
                };
                Some((Leaf::Int(value), at + used))
            }
            Self::Uint => match whole_number(rest)? {
                (false, digits, used) => Some((Leaf::Uint(digits), at + used)),
                _ => None,
            },
            Self::Double | Self::DoubleShort => {
                let end = scan::number_end(bytes, at);
                let text = payload.get(at..end)?;
                let value: f64 = text.parse().ok()?;
                let mut again = [0; 32];
                let mut room = &mut again[..];
                self.write_double(value, &mut room).ok()?;
                let unused = room.len();
                let same = again.get(..again.len() - unused) == Some(text.as_bytes());
                // Without a fraction it is a whole number to who reads the payload, and these have no `-0`.
                let is_other = self == Self::DoubleShort && text == "-0";
                (same && !is_other).then_some((Leaf::Double(value), end))
            }
            Self::Decimal(scale) => {
                let end = scan::number_end(bytes, at);
                let text = payload.get(at..end)?;
                let (whole, fraction) = text.split_once('.')?;
                let (negative, digits, used) = whole_number(whole.as_bytes())
                    .or_else(|| (whole == "-0").then_some((true, 0, 2)))?;
                let is_decimal = used == whole.len()
                    && fraction.len() == usize::from(scale)
                    && fraction.bytes().all(|digit| digit.is_ascii_digit());
                let digit_count = used - usize::from(negative) + usize::from(scale);
                if !is_decimal || digit_count > usize::from(PRECISION) {
                    return None;
                }
                let power = 10_i64.checked_pow(u32::from(scale))?;
                let digits = i64::try_from(digits).ok()?.checked_mul(power)?;
                let value = digits.checked_add(fraction.parse().ok()?)?;
                // Zero has no sign to render.
                (value > 0 || !negative)
                    .then_some((Leaf::Decimal(if negative { -value } else { value }), end))
            }
            Self::String => strings::read(payload, at, unescaped, false),
            Self::AsciiString => strings::read(payload, at, unescaped, true),
            Self::Json => {
                let end = scan::value_end(bytes, at)?;
                let text = payload.get(at..end)?;
                serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
                is_read_by_all(text, unescaped).then_some((Leaf::Text(at, end), end))
            }
        }
    }

    /// Whether a file may name it.
    pub(super) const fn is_valid(self) -> bool {
        !matches!(self, Self::Decimal(scale) if scale == 0 || scale > 9)
    }

    /// Writes a double in this form.
    pub(super) fn write_double(self, value: f64, out: &mut impl Write) -> std::io::Result<()> {
        if self == Self::DoubleShort {
            write!(out, "{value}")
        } else {
            write!(out, "{value:?}")
        }
    }
}

/// Whether well-formed JSON is taken by every reader: some refuse halves of characters, and numbers of thousands of digits. A reader
/// that stops there must not find the fields behind it in their columns.
fn is_read_by_all(text: &str, scratch: &mut String) -> bool {
    let length = scratch.len();
    let has_characters = !text.contains('\\') || strings::unescape(text, scratch).is_some();
    scratch.truncate(length);
    let mut numbers = text.as_bytes().split(|byte| !byte.is_ascii_digit());
    has_characters && (text.len() <= MAX_DIGITS || numbers.all(|digits| digits.len() <= MAX_DIGITS))
}

/// Writes a decimal of this scale.
pub(super) fn write_decimal(value: i128, scale: u8, out: &mut impl Write) -> std::io::Result<()> {
    let power = 10_u128.pow(u32::from(scale));
    let (whole, fraction) = (value.unsigned_abs() / power, value.unsigned_abs() % power);
    let sign = if value < 0 { "-" } else { "" };
    write!(
        out,
        "{sign}{whole}.{fraction:0width$}",
        width = usize::from(scale)
    )
}

/// Sign, digits and length of a whole number as it is rendered: no leading zeros, no `-0`.
fn whole_number(bytes: &[u8]) -> Option<(bool, u64, usize)> {
    let negative = bytes.first() == Some(&b'-');
    let first = usize::from(negative);
    let mut value = 0_u64;
    let mut at = first;
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')) {
        if digit > 9 {
            break;
        }
        // Eighteen digits always fit.
        value = if at - first < 18 {
            value * 10 + u64::from(digit)
        } else {
            value.checked_mul(10)?.checked_add(u64::from(digit))?
        };
        at += 1;
    }
    let zero = bytes.get(first) == Some(&b'0');
    (at > first && !(zero && (negative || at > first + 1))).then_some((negative, value, at))
}
