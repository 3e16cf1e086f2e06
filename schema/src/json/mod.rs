//! JSON payloads (RFC 8259).
//!
//! A payload is read once, and all of it is looked at: what is not JSON anywhere does not fit. A missing value and `null`
//! are NULL. Of two values under one key the last one counts, as for most readers of JSON. A number counts by its text, so
//! that no digit is lost on the way through a floating-point number.

use std::borrow::Cow;

use jiter::{Jiter, JiterError, Peek};

use crate::convert::{from_number, from_text};
use crate::tree::{Node, NodeId, ROOT, Tree};
use crate::types::{ColumnType, StructField};
use crate::value::{ListItems, Misfit, Slot, Value};

/// Reads `payload`, a JSON text, into `row`, whose columns have these types and the paths of `tree`.
///
/// # Errors
/// The payload does not fit as a whole; what is in `row` then means nothing.
pub(crate) fn read<'a>(
    payload: &'a [u8],
    tree: &'a Tree,
    types: &'a [ColumnType],
    row: &mut [Slot<'a>],
) -> Result<(), Misfit> {
    if payload.is_empty() {
        return Err(Misfit::new("the payload is empty"));
    }
    let text = std::str::from_utf8(payload)
        .map_err(|error| Misfit::new(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    let mut reader = Reader {
        text,
        jiter: Jiter::new(payload),
        tree,
        types,
        list_items: ListItems::default(),
    };
    let peek = reader.jiter.peek().map_err(syntax)?;
    let root = tree.node(ROOT);
    let is_read = match peek {
        Peek::Object => true,
        Peek::Array => root.leads_into_lists(),
        _ => false,
    };
    if root.columns.is_empty() && !is_read {
        reader.jiter.known_skip(peek).map_err(syntax)?;
        reader.jiter.finish().map_err(syntax)?;
        return Err(Misfit::new("the payload is no object"));
    }
    reader.visit(peek, ROOT, row)?;
    reader.jiter.finish().map_err(syntax)
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn syntax(error: JiterError) -> Misfit {
    Misfit(format!("not JSON: {error}"))
}

/// Errors of its methods are of the payload as a whole; that a value does not fit is in its slot.
struct Reader<'a> {
    text: &'a str,
    jiter: Jiter<'a>,
    tree: &'a Tree,
    types: &'a [ColumnType],
    list_items: ListItems,
}

impl<'a> Reader<'a> {
    /// Reads the value that begins with `peek`, to which the paths lead that `node` stands for.
    fn visit(&mut self, peek: Peek, node: NodeId, row: &mut [Slot<'a>]) -> Result<(), Misfit> {
        let types = self.types;
        let node = self.tree.node(node);
        // What an earlier value under the same key has left.
        for column in &node.below {
            row[*column] = Ok(Value::Null);
        }
        if node.is_leaf()
            && let [column] = node.columns.as_slice()
        {
            row[*column] = self.value(peek, &types[*column])?;
            return Ok(());
        }
        for column in &node.columns {
            let start = self.jiter.clone();
            row[*column] = self.value(peek, &types[*column])?;
            self.jiter = start;
        }
        match peek {
            Peek::Object if !node.is_leaf() => self.visit_object(node, row),
            Peek::Array if !node.is_leaf() => self.visit_array(node, row),
            _ => self.skip(peek),
        }
    }

    fn visit_object(&mut self, node: &'a Node, row: &mut [Slot<'a>]) -> Result<(), Misfit> {
        let mut expected = 0;
        let key = self.jiter.known_object().map_err(syntax)?;
        let mut child = key.map(|key| node.child(key, &mut expected));
        while let Some(found) = child {
            let peek = self.jiter.peek().map_err(syntax)?;
            match found {
                Some(found) => self.visit(peek, found, row)?,
                None => self.skip(peek)?,
            }
            let key = self.jiter.next_key().map_err(syntax)?;
            child = key.map(|key| node.child(key, &mut expected));
        }
        Ok(())
    }

    fn visit_array(&mut self, node: &'a Node, row: &mut [Slot<'a>]) -> Result<(), Misfit> {
        let mut next = self.jiter.known_array().map_err(syntax)?;
        let mut index = 0;
        while let Some(peek) = next {
            match node.item(index) {
                Some(found) => self.visit(peek, found, row)?,
                None => self.skip(peek)?,
            }
            index += 1;
            next = self.jiter.array_step().map_err(syntax)?;
        }
        Ok(())
    }

    fn skip(&mut self, peek: Peek) -> Result<(), Misfit> {
        self.jiter.known_skip(peek).map_err(syntax)
    }

    /// Reads the value that begins with `peek` as one of `wanted`.
    fn value(&mut self, peek: Peek, wanted: &'a ColumnType) -> Result<Slot<'a>, Misfit> {
        let start = self.jiter.current_index();
        if peek == Peek::Null {
            self.jiter.known_null().map_err(syntax)?;
            return Ok(Ok(Value::Null));
        }
        if *wanted == ColumnType::Json {
            self.skip(peek)?;
            return Ok(Ok(Value::Text(Cow::Borrowed(self.since(start)))));
        }
        match (peek, wanted) {
            (Peek::True | Peek::False, ColumnType::Bool) => {
                let value = self.jiter.known_bool(peek).map_err(syntax)?;
                Ok(Ok(Value::Bool(value)))
            }
            (Peek::String, _) => {
                let text = self.string()?;
                Ok(match wanted {
                    ColumnType::String => Ok(Value::Text(text)),
                    _ => from_text(wanted, &text),
                })
            }
            (Peek::Array, ColumnType::List(item)) => self.list(item),
            (Peek::Object, ColumnType::Struct(fields)) => self.fields(fields),
            _ => {
                self.skip(peek)?;
                let found = self.since(start);
                Ok(match peek.is_num() {
                    true => from_number(wanted, found),
                    false => Err(Misfit::not(wanted, found)),
                })
            }
        }
    }

    fn since(&self, start: usize) -> &'a str {
        // Values begin and end with ASCII, so this is always some.
        self.text
            .get(start..self.jiter.current_index())
            .unwrap_or_default()
    }

    /// The string that comes next: its place in the payload if it has no escapes.
    fn string(&mut self) -> Result<Cow<'a, str>, Misfit> {
        let start = self.jiter.current_index();
        let bytes = self.jiter.known_str().map_err(syntax)?.len();
        let written = self.since(start);
        let between = written.get(1..written.len() - 1).unwrap_or_default();
        if between.len() == bytes {
            // An escape is longer than what it stands for.
            return Ok(Cow::Borrowed(between));
        }
        let mut again = Jiter::new(written.as_bytes());
        let unescaped = again.next_str().map_err(syntax)?;
        Ok(Cow::Owned(unescaped.to_owned()))
    }

    fn list(&mut self, item: &'a ColumnType) -> Result<Slot<'a>, Misfit> {
        let mut values = Vec::new();
        let mut misfit = None;
        let mut next = self.jiter.known_array().map_err(syntax)?;
        // Lists may be many, and most of them empty: not before it is needed.
        let mut weight = None;
        while let Some(peek) = next {
            let weight = *weight.get_or_insert_with(|| item.weight());
            self.list_items.add(1, weight)?;
            match self.value(peek, item)? {
                Ok(value) => values.push(value),
                Err(reason) => misfit = misfit.or(Some(reason)),
            }
            next = self.jiter.array_step().map_err(syntax)?;
        }
        Ok(misfit.map_or(Ok(Value::List(values)), Err))
    }

    fn fields(&mut self, fields: &'a [StructField]) -> Result<Slot<'a>, Misfit> {
        let mut values: Vec<Slot<'a>> = vec![Ok(Value::Null); fields.len()];
        let find = |key: &str| fields.iter().position(|field| field.name == key);
        let mut field = self.jiter.known_object().map_err(syntax)?.map(find);
        while let Some(found) = field {
            let peek = self.jiter.peek().map_err(syntax)?;
            match found {
                Some(at) => values[at] = self.value(peek, &fields[at].data_type)?,
                None => self.skip(peek)?,
            }
            field = self.jiter.next_key().map_err(syntax)?.map(find);
        }
        Ok(values
            .into_iter()
            .collect::<Result<_, _>>()
            .map(Value::Struct))
    }
}
