//! Reading a datum: a walk over its bytes by the schema, which takes what the columns want and skips the rest.

use std::borrow::Cow;

use super::compile::AvroType;
use crate::convert::{Scalar, fit};
use crate::framing::zigzag;
use crate::tree::{NodeId, ROOT, Tree};
use crate::types::ColumnType;
use crate::value::{ListItems, Misfit, Slot, Value};

/// Reads `datum` into `row`, whose columns have these types and the paths of `tree`.
pub(super) fn read<'a>(
    datum: &'a [u8],
    written: &'a AvroType,
    tree: &'a Tree,
    types: &'a [ColumnType],
    row: &mut [Slot<'a>],
) -> Result<(), Misfit> {
    let mut reader = Reader {
        rest: datum,
        list_items: ListItems::default(),
    };
    let places = Places { tree, types };
    reader.visit(written, Some(ROOT), &places, row)?;
    match reader.rest.len() {
        0 => Ok(()),
        left => Err(Misfit(format!("{left} bytes are left behind the datum"))),
    }
}

struct Places<'a> {
    tree: &'a Tree,
    types: &'a [ColumnType],
}

/// Errors of its methods are of the payload as a whole; that a value does not fit is in its slot.
#[derive(Clone, Copy)]
struct Reader<'a> {
    rest: &'a [u8],
    list_items: ListItems,
}

fn cut_off() -> Misfit {
    Misfit::new("the payload ends within the datum")
}

impl<'a> Reader<'a> {
    fn visit(
        &mut self,
        written: &'a AvroType,
        node: Option<NodeId>,
        places: &Places<'a>,
        row: &mut [Slot<'a>],
    ) -> Result<(), Misfit> {
        let Some(node) = node.map(|node| places.tree.node(node)) else {
            return self.skip(written);
        };
        for column in &node.columns {
            let mut fork = *self;
            row[*column] = fork.value(written, &places.types[*column])?;
            // What one column holds is there while the next is read.
            self.list_items = fork.list_items;
            if node.is_leaf() && node.columns.len() == 1 {
                *self = fork;
                return Ok(());
            }
        }
        if node.is_leaf() {
            return self.skip(written);
        }
        match written {
            AvroType::Union(variants) => {
                let variant = self.variant(variants)?;
                // The columns have been read, children are the same for each variant.
                self.visit_below(variant, node, places, row)
            }
            other => self.visit_below(other, node, places, row),
        }
    }

    fn visit_below(
        &mut self,
        written: &'a AvroType,
        node: &'a crate::tree::Node,
        places: &Places<'a>,
        row: &mut [Slot<'a>],
    ) -> Result<(), Misfit> {
        match written {
            AvroType::Record(fields) => {
                let mut expected = 0;
                for (name, field) in fields {
                    self.visit(field, node.child(name, &mut expected), places, row)?;
                }
                Ok(())
            }
            AvroType::Array(item) => {
                let mut index = 0;
                while let Some(count) = self.block()? {
                    for _ in 0..self.items(count, 1)? {
                        self.visit(item, node.item(index), places, row)?;
                        index += 1;
                    }
                }
                Ok(())
            }
            AvroType::Map(value) => {
                while let Some(count) = self.block()? {
                    for _ in 0..self.items(count, 1)? {
                        let key = self.text()?;
                        let child = node.child(&key, &mut 0);
                        for column in child
                            .iter()
                            .flat_map(|child| &places.tree.node(*child).below)
                        {
                            row[*column] = Ok(Value::Null);
                        }
                        self.visit(value, child, places, row)?;
                    }
                }
                Ok(())
            }
            other => self.skip(other),
        }
    }

    fn value(&mut self, written: &'a AvroType, wanted: &'a ColumnType) -> Result<Slot<'a>, Misfit> {
        match (written, wanted) {
            (AvroType::Union(variants), _) => {
                let variant = self.variant(variants)?;
                self.value(variant, wanted)
            }
            (AvroType::Array(item), ColumnType::List(wanted)) => {
                let mut list = Items::default();
                while let Some(count) = self.block()? {
                    for _ in 0..self.items(count, wanted.weight())? {
                        list.push(self.value(item, wanted)?);
                    }
                }
                Ok(list.finish())
            }
            (AvroType::Map(value), ColumnType::List(wanted)) => self.map(value, wanted),
            (AvroType::Record(fields), ColumnType::Struct(wanted)) => {
                let mut values: Vec<Slot<'a>> = vec![Ok(Value::Null); wanted.len()];
                for (name, field) in fields {
                    match wanted.iter().position(|wanted| wanted.name == *name) {
                        Some(at) => values[at] = self.value(field, &wanted[at].data_type)?,
                        None => self.skip(field)?,
                    }
                }
                let values: Result<Vec<_>, _> = values.into_iter().collect();
                Ok(values.map(Value::Struct))
            }
            (AvroType::Array(_), _) => self.other(written, wanted, "an array"),
            (AvroType::Map(_), _) => self.other(written, wanted, "a map"),
            (AvroType::Record(_), _) => self.other(written, wanted, "a record"),
            _ => Ok(fit(wanted, self.scalar(written)?)),
        }
    }

    fn other(
        &mut self,
        written: &'a AvroType,
        wanted: &ColumnType,
        found: &str,
    ) -> Result<Slot<'a>, Misfit> {
        self.skip(written)?;
        Ok(Err(Misfit::not(wanted, found)))
    }

    /// A map as a list of its entries, in the order they stand in.
    fn map(&mut self, value: &'a AvroType, wanted: &'a ColumnType) -> Result<Slot<'a>, Misfit> {
        let ColumnType::Struct(fields) = wanted else {
            let mut ignored = Items::default();
            while let Some(count) = self.block()? {
                for _ in 0..self.items(count, 1)? {
                    self.text()?;
                    self.skip(value)?;
                    ignored.push(Err(Misfit::not(wanted, "an entry of a map")));
                }
            }
            return Ok(ignored.finish());
        };
        let mut list = Items::default();
        while let Some(count) = self.block()? {
            for _ in 0..self.items(count, wanted.weight())? {
                let key = self.text()?;
                let start = *self;
                let mut entry = Items::default();
                self.skip(value)?;
                for field in fields {
                    entry.push(match field.name.as_str() {
                        "key" => fit(&field.data_type, Scalar::Text(key.clone())),
                        "value" => {
                            let mut fork = start;
                            fork.list_items = self.list_items;
                            let read = fork.value(value, &field.data_type)?;
                            self.list_items = fork.list_items;
                            read
                        }
                        _ => Ok(Value::Null),
                    });
                }
                list.push(entry.finish_as(Value::Struct));
            }
        }
        Ok(list.finish())
    }

    fn scalar(&mut self, written: &'a AvroType) -> Result<Scalar<'a>, Misfit> {
        Ok(match written {
            AvroType::Null => Scalar::Null,
            AvroType::Bool => match self.take(1)? {
                [0] => Scalar::Bool(false),
                [1] => Scalar::Bool(true),
                other => return Err(Misfit(format!("{other:?} is no boolean of Avro"))),
            },
            AvroType::Int => Scalar::Int(self.int()?.into()),
            AvroType::Long => Scalar::Int(self.long()?),
            AvroType::Float => Scalar::Float32(f32::from_le_bytes(self.array()?)),
            AvroType::Double => Scalar::Float64(f64::from_le_bytes(self.array()?)),
            AvroType::Bytes => Scalar::Bytes(Cow::Borrowed(self.bytes()?)),
            AvroType::Fixed(size) => Scalar::Bytes(Cow::Borrowed(self.take(*size)?)),
            AvroType::String => Scalar::Text(self.text()?),
            AvroType::Enum(symbols) => {
                let index = self.int()?;
                let symbol = usize::try_from(index).ok().and_then(|at| symbols.get(at));
                let symbol = symbol
                    .ok_or_else(|| Misfit(format!("there is no symbol {index} of an enum")))?;
                self.list_items.add_symbol(symbol)?;
                Scalar::Text(Cow::Borrowed(symbol))
            }
            AvroType::Date => Scalar::Date(self.int()?),
            AvroType::Timestamp(unit_ns) => Scalar::Timestamp {
                units: self.long()?,
                unit_ns: *unit_ns,
            },
            AvroType::Decimal { scale, fixed, .. } => {
                let bytes = match fixed {
                    Some(size) => self.take(*size)?,
                    None => self.bytes()?,
                };
                Scalar::Decimal {
                    unscaled: unscaled(bytes)?,
                    scale: *scale,
                }
            }
            AvroType::Uuid => Scalar::Text(Cow::Owned(uuid(self.take(16)?))),
            AvroType::Array(_) | AvroType::Map(_) | AvroType::Union(_) | AvroType::Record(_) => {
                self.skip(written)?;
                Scalar::Null
            }
        })
    }

    fn skip(&mut self, written: &'a AvroType) -> Result<(), Misfit> {
        match written {
            AvroType::Record(fields) => fields.iter().try_for_each(|(_, field)| self.skip(field)),
            AvroType::Union(variants) => {
                let variant = self.variant(variants)?;
                self.skip(variant)
            }
            AvroType::Array(item) => {
                while let Some(count) = self.block()? {
                    // Items that take no bytes are as many as anybody claims.
                    for _ in 0..if item.is_empty() { 0 } else { count } {
                        self.skip(item)?;
                    }
                }
                Ok(())
            }
            AvroType::Map(value) => {
                while let Some(count) = self.block()? {
                    for _ in 0..count {
                        self.bytes()?;
                        self.skip(value)?;
                    }
                }
                Ok(())
            }
            AvroType::String => self.bytes().map(drop),
            other => self.scalar(other).map(drop),
        }
    }

    fn variant(&mut self, variants: &'a [AvroType]) -> Result<&'a AvroType, Misfit> {
        let index = self.long()?;
        let variant = usize::try_from(index).ok().and_then(|at| variants.get(at));
        variant.ok_or_else(|| Misfit(format!("there is no variant {index} of a union")))
    }

    /// How many items the next block of an array or a map has; `None` at its end.
    fn block(&mut self) -> Result<Option<u64>, Misfit> {
        let count = self.long()?;
        if count < 0 {
            // The block's size in bytes, for who skips it.
            self.long()?;
        }
        Ok((count != 0).then_some(count.unsigned_abs()))
    }

    /// Lets `count` more items of this weight through, if there is room for them.
    fn items(&mut self, count: u64, weight: usize) -> Result<u64, Misfit> {
        let count_here = usize::try_from(count).unwrap_or(usize::MAX);
        self.list_items.add(count_here, weight)?;
        Ok(count)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Misfit> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Misfit> {
        self.take(N)?.try_into().map_err(|_| cut_off())
    }

    fn long(&mut self) -> Result<i64, Misfit> {
        zigzag(&mut self.rest).ok_or_else(cut_off)
    }

    fn int(&mut self) -> Result<i32, Misfit> {
        let number = self.long()?;
        i32::try_from(number).map_err(|_| Misfit(format!("{number} is no int of Avro")))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Misfit> {
        let length = usize::try_from(self.long()?).map_err(|_| cut_off())?;
        self.take(length)
    }

    fn text(&mut self) -> Result<Cow<'a, str>, Misfit> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(bytes).map_err(|_| Misfit::new("a string is not UTF-8"))?;
        Ok(Cow::Borrowed(text))
    }
}

/// Values of a list, or the reason of the first that does not fit.
#[derive(Default)]
struct Items<'a> {
    values: Vec<Value<'a>>,
    misfit: Option<Misfit>,
}

impl<'a> Items<'a> {
    fn push(&mut self, slot: Slot<'a>) {
        match slot {
            Ok(value) => self.values.push(value),
            Err(reason) => self.misfit = self.misfit.take().or(Some(reason)),
        }
    }

    fn finish(self) -> Slot<'a> {
        self.finish_as(Value::List)
    }

    fn finish_as(self, of: impl FnOnce(Vec<Value<'a>>) -> Value<'a>) -> Slot<'a> {
        self.misfit.map_or_else(|| Ok(of(self.values)), Err)
    }
}

/// A big-endian number in two's complement.
fn unscaled(bytes: &[u8]) -> Result<i128, Misfit> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let filler = if negative { 0xFF } else { 0 };
    let significant = bytes.iter().skip_while(|byte| **byte == filler).count();
    let kept = &bytes[bytes.len() - significant..];
    let mut number = [filler; 16];
    let fits = kept.len() < 16 || (kept.len() == 16 && (kept[0] & 0x80 != 0) == negative);
    if !fits {
        return Err(Misfit::new("a decimal has more than 38 digits"));
    }
    number[16 - kept.len()..].copy_from_slice(kept);
    Ok(i128::from_be_bytes(number))
}

fn uuid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
