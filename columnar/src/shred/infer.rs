//! Which fields of sampled payloads become columns, and of which form.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::form::Form;
use super::scan::{self, After};
use super::{MAX_COLUMNS, MAX_DEPTH, MAX_PAYLOAD_BYTES, PREFIX, ShreddedColumn};

/// Distinct fields that a sample is searched for; further ones count as absent.
const MAX_FIELDS: usize = 4096;
/// One in so many payloads must be an object for shredding to begin.
const OBJECTS_ONE_IN: usize = 10;
/// One in so many payloads must have a field for it to become a column.
const FIELD_ONE_IN: usize = 100;
/// So many in a hundred values must have a form for it to be the column's.
const FORM_PERCENT: usize = 95;
/// If more than one in so many values of an object have a field that is no column, the object is one as a whole.
const STRANGE_ONE_IN: usize = 10;
/// A column has hardly a value twice if so many in a hundred of the sampled ones are distinct.
const DISTINCT_PERCENT: usize = 90;

/// What a sample showed.
#[derive(Debug, Clone)]
pub(crate) struct Inferred {
    pub(crate) columns: Vec<ShreddedColumn>,
    /// For each column whether hardly a value comes twice: a dictionary of them would not pay.
    pub(crate) distinct: Vec<bool>,
    pub(super) tree: Tree,
}

/// The columns by the keys that lead to them.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    /// Where the field is a column. A field that is none is an object, or was always `null`.
    pub(super) column: Option<u32>,
    pub(super) fields: HashMap<String, Self>,
}

/// What was seen in a place.
#[derive(Debug, Default)]
struct Seen {
    /// Payloads, or values of the field, with and without those that are `null`.
    count: usize,
    values: usize,
    objects: usize,
    /// How many values each form would give back.
    fits: [usize; Form::ALL.len()],
    hashes: HashSet<u64>,
    /// In the order of their first appearance.
    fields: Vec<(String, Self)>,
    numbers: HashMap<String, usize>,
}

/// Looks at payloads, and then decides.
#[derive(Debug, Default)]
pub(crate) struct Inference {
    root: Seen,
    field_count: usize,
    unescaped: String,
}

impl Inference {
    /// Looks at a payload.
    pub(crate) fn observe(&mut self, payload: &[u8]) {
        self.root.count += 1;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return;
        }
        let Ok(payload) = std::str::from_utf8(payload) else {
            return;
        };
        let start = scan::skip_space(payload.as_bytes(), 0);
        let mut look = Look {
            payload,
            field_count: &mut self.field_count,
            unescaped: &mut self.unescaped,
        };
        // What is malformed further on was seen up to there, which does no harm.
        let _ = look.object(start, &mut self.root, MAX_DEPTH);
    }

    /// The columns; `None` where shredding would not pay.
    pub(crate) fn finish(self) -> Option<Inferred> {
        let root = self.root;
        if root.objects * OBJECTS_ONE_IN < root.count {
            return None;
        }
        let mut choice = Choice {
            inferred: Inferred {
                columns: Vec::new(),
                distinct: Vec::new(),
                tree: Tree::default(),
            },
            names: HashSet::new(),
            path: Vec::new(),
        };
        let tree = choice.object(&root);
        let Choice { mut inferred, .. } = choice;
        inferred.tree = tree;
        (!inferred.columns.is_empty()).then_some(inferred)
    }
}

struct Look<'a> {
    payload: &'a str,
    field_count: &'a mut usize,
    unescaped: &'a mut String,
}

impl Look<'_> {
    fn object(&mut self, at: usize, seen: &mut Seen, depth: usize) -> Option<usize> {
        let bytes = self.payload.as_bytes();
        let mut after = scan::first_field(bytes, at)?;
        seen.objects += 1;
        loop {
            let at = match after {
                After::End(end) => return Some(end),
                After::Field(at) => at,
            };
            let (key, value) = scan::key(self.payload, at)?;
            let end = scan::value_end(bytes, value)?;
            if let Some(field) = seen.field(key, self.field_count) {
                self.value(value, end, field, depth)?;
            }
            after = scan::after_value(bytes, end)?;
        }
    }

    fn value(&mut self, at: usize, end: usize, seen: &mut Seen, depth: usize) -> Option<()> {
        let text = self.payload.get(at..end)?;
        seen.count += 1;
        if text == "null" {
            return Some(());
        }
        seen.values += 1;
        if text.starts_with('{') && depth > 1 {
            self.object(at, seen, depth - 1)?;
        }
        for (form, fits) in Form::ALL.iter().zip(&mut seen.fits) {
            self.unescaped.clear();
            let read = form.read(self.payload, at, self.unescaped);
            *fits += usize::from(read.is_some_and(|(_, read_end)| read_end == end));
        }
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        seen.hashes.insert(hasher.finish());
        Some(())
    }
}

impl Seen {
    fn field(&mut self, key: &str, field_count: &mut usize) -> Option<&mut Self> {
        let number = match self.numbers.get(key) {
            Some(number) => *number,
            None => {
                if *field_count == MAX_FIELDS {
                    return None;
                }
                *field_count += 1;
                self.numbers.insert(key.to_owned(), self.fields.len());
                self.fields.push((key.to_owned(), Self::default()));
                self.fields.len() - 1
            }
        };
        self.fields.get_mut(number).map(|(_, seen)| seen)
    }

    /// Whether it is a level of names: nearly always an object, with fields that are columns.
    fn is_level(&self, records: usize) -> bool {
        let strange = self
            .fields
            .iter()
            .filter(|(_, field)| field.is_rare(records));
        let strange: usize = strange.map(|(_, field)| field.count).sum();
        self.objects * 100 >= self.values * FORM_PERCENT && strange * STRANGE_ONE_IN <= self.objects
    }

    const fn is_rare(&self, records: usize) -> bool {
        self.count * FIELD_ONE_IN < records
    }

    /// The first of the forms that fit most, if that is nearly all; else the text.
    fn form(&self) -> Form {
        let best = self.fits.iter().take(Form::ALL.len() - 1).max().copied();
        let best = best.unwrap_or_default();
        let fitting = Form::ALL.iter().zip(self.fits);
        let first = fitting
            .filter(|(_, fits)| *fits == best)
            .map(|(form, _)| *form);
        if best * 100 >= self.values * FORM_PERCENT {
            first
                .min_by_key(|form| *form == Form::Json)
                .unwrap_or(Form::Json)
        } else {
            Form::Json
        }
    }
}

/// The columns while they are chosen.
struct Choice {
    inferred: Inferred,
    /// Those that are taken, in lower case: some readers do not tell the cases apart.
    names: HashSet<String>,
    path: Vec<String>,
}

impl Choice {
    /// The tree of an object's fields. Rare ones and those beyond the limit are left out: payloads that have them stay as they are.
    fn object(&mut self, seen: &Seen) -> Tree {
        let mut tree = Tree::default();
        for (key, field) in &seen.fields {
            if field.is_rare(seen.objects) {
                continue;
            }
            self.path.push(key.clone());
            let below = if field.values == 0 {
                Some(Tree::default())
            } else if field.objects > 0 && field.is_level(field.objects) && self.has_room(field) {
                Some(self.object(field))
            } else {
                self.column(field)
            };
            self.path.pop();
            if let Some(below) = below {
                tree.fields.insert(key.clone(), below);
            }
        }
        tree
    }

    fn has_room(&self, seen: &Seen) -> bool {
        self.inferred.columns.len() + seen.fields.len() <= MAX_COLUMNS
    }

    fn column(&mut self, seen: &Seen) -> Option<Tree> {
        let number = self.inferred.columns.len();
        if number == MAX_COLUMNS {
            return None;
        }
        let name = self.name();
        self.inferred.columns.push(ShreddedColumn {
            name,
            path: self.path.clone(),
            form: seen.form(),
        });
        let distinct = seen.hashes.len() * 100 >= seen.values * DISTINCT_PERCENT;
        self.inferred.distinct.push(distinct && seen.values > 100);
        Some(Tree {
            column: u32::try_from(number).ok(),
            fields: HashMap::new(),
        })
    }

    fn name(&mut self) -> String {
        let plain = format!("{PREFIX}{}", self.path.join("."));
        let mut name = plain.clone();
        let mut number = 2;
        while !self.names.insert(name.to_lowercase()) {
            name = format!("{plain}#{number}");
            number += 1;
        }
        name
    }
}
