//! Templates: payloads in pieces of text and columns.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::form::{Form, Leaf};
use super::infer::Tree;
use super::scan::{self, After};
use super::{MAX_DEPTH, ShreddedColumn};

/// Templates of a file, and bytes of text in them.
const MAX_TEMPLATES: usize = 256;
const MAX_TEXT_BYTES: usize = 256 << 10;
/// Levels of a field's value that the JSON functions read, or pass over on their way to another field: behind a deeper one they find
/// nothing.
pub(super) const MAX_NESTING: usize = 200;

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Part {
    Text(String),
    Column(u32),
}

/// The text between the values of a payload, and the columns that hold these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Template(pub(super) Vec<Part>);

impl Template {
    pub(super) fn columns(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Column(column) => Some(*column),
        })
    }

    pub(super) fn highest_column(&self) -> Option<u32> {
        self.columns().max()
    }

    fn text_bytes(&self) -> usize {
        let bytes = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Column(_) => 0,
        };
        self.0.iter().map(bytes).sum()
    }

    /// The template of a payload; `None` where it is no object, has a field that is no column, or one twice.
    fn of(payload: &str, tree: &Tree) -> Option<Self> {
        let start = scan::skip_space(payload.as_bytes(), 0);
        let mut cut = Cut {
            payload,
            text_from: 0,
            parts: Vec::new(),
        };
        let end = cut.object(start, tree, MAX_DEPTH)?;
        if scan::skip_space(payload.as_bytes(), end) != payload.len() {
            return None;
        }
        cut.text(payload.len())?;
        let template = Self(cut.parts);
        let mut columns: Vec<_> = template.columns().collect();
        let count = columns.len();
        columns.sort_unstable();
        columns.dedup();
        (columns.len() == count).then_some(template)
    }

    /// Reads a payload's values, if it is of this template. They are the last of `values` where it is.
    fn read(&self, payload: &str, columns: &[ShreddedColumn], values: &mut Values) -> Option<()> {
        values.leaves.clear();
        values.unescaped.clear();
        let mut at = 0;
        for part in &self.0 {
            match part {
                Part::Text(text) => {
                    let found = payload.as_bytes().get(at..at + text.len())?;
                    if found != text.as_bytes() {
                        return None;
                    }
                    at += text.len();
                }
                Part::Column(number) => {
                    let column = columns.get(*number as usize)?;
                    let (leaf, end) = column.form.read(payload, at, &mut values.unescaped)?;
                    // Who passes over an object counts the levels above the value, too.
                    let levels = MAX_NESTING.saturating_sub(column.path.len().saturating_sub(1));
                    let text = payload.as_bytes().get(at..end)?;
                    if column.form == Form::Json && !scan::nests_within(text, levels) {
                        return None;
                    }
                    values.leaves.push((*number, leaf));
                    at = end;
                }
            }
        }
        (at == payload.len()).then_some(())
    }
}

/// The values of one payload, by their columns.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) leaves: Vec<(u32, Leaf)>,
    pub(super) unescaped: String,
}

/// A payload that is being cut into a template's parts.
struct Cut<'a> {
    payload: &'a str,
    text_from: usize,
    parts: Vec<Part>,
}

impl Cut<'_> {
    fn object(&mut self, at: usize, tree: &Tree, depth: usize) -> Option<usize> {
        let bytes = self.payload.as_bytes();
        let mut after = scan::first_field(bytes, at)?;
        loop {
            let at = match after {
                After::End(end) => return Some(end),
                After::Field(at) => at,
            };
            let (key, value) = scan::key(self.payload, at)?;
            let field = tree.fields.get(key)?;
            let end = match field.column {
                Some(column) => {
                    let end = scan::value_end(bytes, value)?;
                    self.text(value)?;
                    self.parts.push(Part::Column(column));
                    self.text_from = end;
                    end
                }
                None if bytes.get(value..)?.starts_with(b"null") => value + 4,
                None => self.object(value, field, depth.checked_sub(1)?)?,
            };
            after = scan::after_value(bytes, end)?;
        }
    }

    fn text(&mut self, to: usize) -> Option<()> {
        let text = self.payload.get(self.text_from..to)?;
        if !text.is_empty() {
            self.parts.push(Part::Text(text.to_owned()));
        }
        Some(())
    }
}

/// The templates of a file that is being written.
#[derive(Debug, Default)]
pub(super) struct Templates {
    all: Vec<Template>,
    numbers: HashMap<Template, u32>,
    /// Which template came after each one the last time.
    followers: Vec<u32>,
    last: u32,
    text_bytes: usize,
}

impl Templates {
    /// Reads a payload by one of the templates, or by a new one. Its number; `None` leaves the payload as it is.
    pub(super) fn read(
        &mut self,
        payload: &str,
        columns: &[ShreddedColumn],
        tree: &Tree,
        values: &mut Values,
    ) -> Option<u32> {
        let last = self.last;
        let follower = self.followers.get(last as usize).copied();
        let last_again = Some(last).filter(|_| follower != Some(last));
        for guess in [follower, last_again].into_iter().flatten() {
            let template = self.all.get(guess as usize);
            if template.is_some_and(|template| template.read(payload, columns, values).is_some()) {
                return Some(self.follow(guess));
            }
        }
        let template = Template::of(payload, tree)?;
        template.read(payload, columns, values)?;
        let number = match self.numbers.get(&template) {
            Some(number) => *number,
            None => self.add(template)?,
        };
        Some(self.follow(number))
    }

    fn add(&mut self, template: Template) -> Option<u32> {
        let text_bytes = self.text_bytes + template.text_bytes();
        if self.all.len() == MAX_TEMPLATES || text_bytes > MAX_TEXT_BYTES {
            return None;
        }
        self.text_bytes = text_bytes;
        let number = u32::try_from(self.all.len()).ok()?;
        self.numbers.insert(template.clone(), number);
        self.all.push(template);
        self.followers.push(number);
        Some(number)
    }

    fn follow(&mut self, number: u32) -> u32 {
        if let Some(follower) = self.followers.get_mut(self.last as usize) {
            *follower = number;
        }
        self.last = number;
        number
    }

    pub(super) fn all(&self) -> &[Template] {
        &self.all
    }
}
