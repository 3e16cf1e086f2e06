//! A value between a payload and a column.

use std::borrow::Cow;

use crate::types::ColumnType;

/// List items in one payload, at most, the fields of structs among them counted: they take more memory than bytes of the payload.
pub(crate) const MAX_LIST_ITEMS: usize = 1_000_000;
/// Bytes of text that count as an item where a payload has them only by number.
const TEXT_BYTES_AN_ITEM: usize = 64;

/// What the lists of one payload's columns hold so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListItems(usize);

impl ListItems {
    /// Lets `count` more items through, of which each counts as `weight`, if there is room for them.
    pub(crate) fn add(&mut self, count: usize, weight: usize) -> Result<(), Misfit> {
        self.0 = self.0.saturating_add(count.saturating_mul(weight));
        match self.0 > MAX_LIST_ITEMS {
            true => Err(Misfit(format!("more than {MAX_LIST_ITEMS} list items"))),
            false => Ok(()),
        }
    }

    /// The same for the name of an enum's value, which the schema has and the payload has not.
    pub(crate) fn add_symbol(&mut self, symbol: &str) -> Result<(), Misfit> {
        self.add(symbol.len() / TEXT_BYTES_AN_ITEM, 1)
    }
}

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
