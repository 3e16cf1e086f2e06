//! Avro payloads: one datum of the declared schema.
//!
//! The schema is read by the `apache-avro` crate and then made into [`AvroType`], which is small, has no references, and
//! nests within bounds. The datum is read by [`datum`]: the crate's own reader takes a datum that ends too early for one
//! with NULLs at its end, and makes room for lengths before it has seen the bytes.
//!
//! A payload in single-object encoding is known by the fingerprint of the declared schema. The header of a schema registry is
//! looked for where the schema says so (`framing`), since a plain datum may begin with the same bytes.

mod compile;
mod datum;

use apache_avro::Schema;
use apache_avro::headers::{HeaderBuilder as _, RabinFingerprintHeader};

use crate::columns::{Column, Proposal};
use crate::framing::{Framing, behind_confluent};
use crate::tree::Tree;
use crate::types::ColumnType;
use crate::value::{Misfit, Slot};

use compile::AvroType;

/// A writer's schema, ready to read with.
#[derive(Debug)]
pub(crate) struct Avro {
    written: AvroType,
    framing: Framing,
    /// What single-object encoding begins with.
    single_object: Vec<u8>,
}

impl Avro {
    /// Reads the schema's text.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn new(schema: &str, framing: Framing) -> Result<Self, String> {
        let schema = Schema::parse_str(schema).map_err(|error| error.to_string())?;
        Ok(Self {
            written: compile::compile(&schema)?,
            framing,
            single_object: RabinFingerprintHeader::from_schema(&schema).build_header(),
        })
    }

    /// A column for each field of the record.
    ///
    /// # Errors
    /// The field that has no type of ours, in words.
    pub(crate) fn columns(&self) -> Result<Vec<Column>, String> {
        let AvroType::Record(fields) = &self.written else {
            return Err("the schema is no record: name the columns".to_owned());
        };
        let mut proposal = Proposal::default();
        for (name, field) in fields {
            proposal.push(name, field.column_type());
        }
        proposal.finish()
    }

    /// Reads `payload` into `row`.
    ///
    /// # Errors
    /// The payload does not fit as a whole.
    pub(crate) fn read<'a>(
        &'a self,
        payload: &'a [u8],
        tree: &'a Tree,
        types: &'a [ColumnType],
        row: &mut [Slot<'a>],
    ) -> Result<(), Misfit> {
        let datum = match self.framing {
            Framing::Confluent => behind_confluent(payload)?,
            Framing::Plain => payload
                .strip_prefix(self.single_object.as_slice())
                .unwrap_or(payload),
        };
        datum::read(datum, &self.written, tree, types, row)
    }
}
