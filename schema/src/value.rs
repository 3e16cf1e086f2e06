//! A value between a payload and a column.

use std::borrow::Cow;

use crate::types::ColumnType;

/// List items in one payload, at most: they take more memory than bytes of the payload.
pub(crate) const MAX_LIST_ITEMS: usize = 1_000_000;

/// A value that fits its column's type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    /// Of every integer type, of dates (days since 1970) and of timestamps (in the column's unit).
    Int(i64),
    UInt(u64),
    Float32(f32),
    Float64(f64),
    /// In units of the last digit.
    Decimal(i128),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    List(Vec<Value<'a>>),
    Struct(Vec<Value<'a>>),
}

/// Why a payload, or a value in it, does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misfit(pub(crate) String);

/// Characters of a value that `_error` shows.
const SHOWN_CHARS: usize = 40;

impl Misfit {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// `found`, shortened, is no value of the type.
    pub(crate) fn not(expected: &ColumnType, found: &str) -> Self {
        Self(format!("{} is no {expected}", shown(found)))
    }
}

/// The head of a text, on one line.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(SHOWN_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

/// What was found for one column: a value, NULL if nothing, or why it does not fit.
pub(crate) type Slot<'a> = Result<Value<'a>, Misfit>;
