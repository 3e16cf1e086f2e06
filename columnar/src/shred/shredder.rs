//! Rows with payloads become rows with columns.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, Int32Builder};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::infer::{Inferred, Tree};
use super::template::{Templates, Values};
use super::values::ColumnBuilder;
use super::{MAX_PAYLOAD_BYTES, ShreddedColumn, Shredding};
use crate::schema::{column, shredded_schema};

/// Shreds the rows of one file, slice by slice.
#[derive(Debug)]
pub(crate) struct Shredder {
    columns: Arc<[ShreddedColumn]>,
    tree: Tree,
    schema: SchemaRef,
    builders: Vec<ColumnBuilder>,
    templates: Templates,
    values: Values,
    shredded_rows: u64,
}

impl Shredder {
    pub(crate) fn new(inferred: Inferred) -> Self {
        let columns: Arc<[ShreddedColumn]> = inferred.columns.into();
        Self {
            schema: shredded_schema(Some(&columns)),
            builders: columns
                .iter()
                .map(|column| ColumnBuilder::new(column.form))
                .collect(),
            columns,
            tree: inferred.tree,
            templates: Templates::default(),
            values: Values::default(),
            shredded_rows: 0,
        }
    }

    /// The columns of the file.
    pub(crate) const fn columns(&self) -> &Arc<[ShreddedColumn]> {
        &self.columns
    }

    /// Rows whose payload was left out so far.
    pub(crate) const fn shredded_rows(&self) -> u64 {
        self.shredded_rows
    }

    /// What the footer needs for all rows that were shredded so far.
    pub(crate) fn shredding(&self) -> Shredding {
        Shredding::new(Arc::clone(&self.columns), self.templates.all().to_vec())
    }

    /// The same rows with shredded columns. `rows` has the schema of [`crate::cold_schema`].
    pub(crate) fn shred(&mut self, rows: &RecordBatch) -> RecordBatch {
        let payloads = rows.column(column::PAYLOAD).as_binary::<i32>();
        let mut templates = Int32Builder::with_capacity(payloads.len());
        for row in 0..payloads.len() {
            let payload = payloads.is_valid(row).then(|| payloads.value(row));
            templates.append_option(payload.and_then(|payload| self.push(row, payload)));
        }
        let arrays = self
            .builders
            .iter_mut()
            .map(|builder| builder.finish(payloads.len()));
        let templates: ArrayRef = Arc::new(templates.finish());
        let arrays = std::iter::once(templates).chain(arrays).collect();
        self.proven(rows, arrays)
    }

    /// Puts a payload's values into the columns, and returns the number of its template.
    fn push(&mut self, row: usize, payload: &[u8]) -> Option<i32> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return None;
        }
        let payload = std::str::from_utf8(payload).ok()?;
        let Self {
            columns,
            tree,
            templates,
            values,
            ..
        } = self;
        let template = templates.read(payload, columns, tree, values)?;
        for (column, leaf) in &values.leaves {
            if let Some(builder) = self.builders.get_mut(*column as usize) {
                builder.set(row, *leaf, payload, &values.unescaped);
            }
        }
        i32::try_from(template).ok()
    }

    /// `rows` with the shredded columns `arrays`, if these give back its payloads, each of them; else without values in them
    /// (COL-24).
    pub(super) fn proven(&mut self, rows: &RecordBatch, arrays: Vec<ArrayRef>) -> RecordBatch {
        let payloads = rows.column(column::PAYLOAD).as_binary::<i32>();
        let shredded = self.with_columns(rows, raw_payloads(payloads, &arrays[0]), arrays);
        let rendered = self.shredding().render(&shredded);
        if rendered.is_ok_and(|rendered| rendered == *payloads) {
            let raw = shredded.column(column::COUNT).null_count();
            self.shredded_rows += (rows.num_rows() - raw) as u64;
            return shredded;
        }
        let fields = self.schema.fields().iter().skip(column::COUNT);
        let nulls =
            fields.map(|field| arrow::array::new_null_array(field.data_type(), rows.num_rows()));
        self.with_columns(rows, Arc::new(payloads.clone()), nulls.collect())
    }

    #[expect(
        clippy::expect_used,
        reason = "it cannot panic: the arrays are the schema's by construction"
    )]
    fn with_columns(
        &self,
        rows: &RecordBatch,
        payloads: ArrayRef,
        shredded: Vec<ArrayRef>,
    ) -> RecordBatch {
        let mut arrays = rows.columns().to_vec();
        arrays[column::PAYLOAD] = payloads;
        arrays.extend(shredded);
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
            .expect("the arrays have the schema's types and the same length")
    }
}

/// The payloads of rows without a template.
fn raw_payloads(payloads: &BinaryArray, templates: &ArrayRef) -> ArrayRef {
    let mut raw = BinaryBuilder::new();
    for row in 0..payloads.len() {
        let stays = templates.is_null(row) && payloads.is_valid(row);
        raw.append_option(stays.then(|| payloads.value(row)));
    }
    Arc::new(raw.finish())
}
