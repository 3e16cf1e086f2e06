//! Payloads to columns.
//!
//! **SCH-1**: a payload that does not fit as a whole, or has a value that does not fit its column, has NULL in *all* declared
//! columns and one reason in `_error`. Half a row would look like a whole one to who does not ask for `_error`. So each value
//! is looked at, whichever columns are wanted (**SCH-4**).
//!
//! A record without a payload has NULL in all columns and no error.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayBuilder as _, ArrayRef, StringBuilder};

use crate::avro::Avro;
use crate::builder::ColumnBuilder;
use crate::json;
use crate::protobuf::Protobuf;
use crate::topic_schema::{Encoding, TopicSchema};
use crate::value::{Misfit, Slot, Value};

/// Which version of the computation this is. A change of what any payload becomes raises it, so that columns that were stored before
/// are computed anew.
pub const DECODING: u32 = 2;

/// Bytes of values that a decoder holds before it is full, but for those of one payload.
const FULL_BYTES: usize = 32 << 20;

/// Makes columns of payloads, a row each.
///
/// **SCH-5**: whoever pushes asks [`Self::is_full`] before each payload, and calls [`Self::finish`] where it is. Bytes of payloads do not
/// tell: five of them may be a million items.
#[derive(Debug)]
pub struct Decoder {
    schema: Arc<TopicSchema>,
    /// For each declared column its builder, if it is wanted.
    builders: Vec<Option<ColumnBuilder>>,
    errors: StringBuilder,
    /// The wanted columns, in the order they are given.
    wanted: Vec<usize>,
    error_count: u64,
}

impl Decoder {
    /// A decoder for the columns of `schema` at these positions; the one behind the last declared column is `_error`.
    #[must_use]
    pub fn new(schema: Arc<TopicSchema>, wanted: Vec<usize>) -> Self {
        let builders = schema.types.iter().enumerate().map(|(at, data_type)| {
            let is_wanted = wanted.contains(&at);
            is_wanted.then(|| ColumnBuilder::new(data_type))
        });
        Self {
            builders: builders.collect(),
            errors: StringBuilder::new(),
            wanted,
            schema,
            error_count: 0,
        }
    }

    /// Whether its rows should be handed on before others are added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held_bytes() >= FULL_BYTES
    }

    /// About how many bytes the rows take that were added since the last [`Self::finish`].
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let errors = 5 * self.errors.len() + self.errors.values_slice().len();
        let columns = self.builders.iter().flatten();
        errors + columns.map(ColumnBuilder::held_bytes).sum::<usize>()
    }

    /// Adds the row of a payload.
    ///
    /// # Panics
    /// Items of a list pass 2^31, if it was full for thousands of payloads.
    pub fn push(&mut self, payload: Option<&[u8]>) {
        let Some(payload) = payload else {
            self.push_nulls(None);
            return;
        };
        let schema = Arc::clone(&self.schema);
        match row(&schema, payload) {
            Ok(row) => {
                for (builder, value) in self.builders.iter_mut().zip(row) {
                    if let Some(builder) = builder {
                        builder.append(value);
                    }
                }
                self.errors.append_null();
            }
            Err(Misfit(reason)) => self.push_nulls(Some(&reason)),
        }
    }

    /// Adds a row that does not fit, for a reason that its payload alone does not tell.
    pub fn push_error(&mut self, reason: &str) {
        self.push_nulls(Some(reason));
    }

    fn push_nulls(&mut self, error: Option<&str>) {
        self.error_count += u64::from(error.is_some());
        self.errors.append_option(error);
        self.builders
            .iter_mut()
            .flatten()
            .for_each(ColumnBuilder::append_null);
    }

    /// Rows that did not fit, since the decoder was made.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.error_count
    }

    /// The wanted columns of the rows since the last call.
    pub fn finish(&mut self) -> Vec<ArrayRef> {
        let errors: ArrayRef = Arc::new(self.errors.finish());
        let columns: Vec<Option<ArrayRef>> = self
            .builders
            .iter_mut()
            .map(|builder| builder.as_mut().map(ColumnBuilder::finish))
            .collect();
        let column = |at: &usize| match columns.get(*at) {
            Some(Some(column)) => Arc::clone(column),
            _ => Arc::clone(&errors),
        };
        debug_assert!(
            columns
                .iter()
                .flatten()
                .all(|column| column.len() == errors.len())
        );
        self.wanted.iter().map(column).collect()
    }
}

/// The values of a payload's columns, or why it has none.
fn row<'a>(schema: &'a TopicSchema, payload: &'a [u8]) -> Result<Vec<Value<'a>>, Misfit> {
    let mut row: Vec<Slot<'a>> = vec![Ok(Value::Null); schema.types.len()];
    match &schema.encoding {
        Encoding::Json => json::read(payload, &schema.tree, &schema.types, &mut row)?,
        Encoding::Avro(avro) => Avro::read(avro, payload, &schema.tree, &schema.types, &mut row)?,
        Encoding::Protobuf(protobuf) => {
            Protobuf::read(protobuf, payload, schema.columns(), &schema.types, &mut row)?;
        }
        Encoding::Raw => {}
    }
    let names = schema.columns().iter().map(|column| &column.name);
    row.into_iter()
        .zip(names)
        .map(|(slot, name)| slot.map_err(|Misfit(reason)| Misfit(format!("{name}: {reason}"))))
        .collect()
}
