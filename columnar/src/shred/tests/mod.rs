//! Shredding and rendering, without files.

mod columns;
mod damage;
mod depth;
mod fuzzed;
mod readers;
mod rows;

use arrow::array::{Array, AsArray};
use arrow::record_batch::RecordBatch;
use basalt_proto::{Frame, PartitionId};

use super::infer::Inference;
use super::{Form, Shredder, Shredding};
use crate::RowBuilder;
use crate::schema::column;

/// Payloads that were shredded, after a sample of all of them.
pub(super) struct Shredded {
    pub(super) rows: RecordBatch,
    pub(super) shredding: Shredding,
}

pub(super) fn rows_of(payloads: &[&[u8]]) -> RecordBatch {
    let mut builder = RowBuilder::new(PartitionId(0));
    for payload in payloads {
        builder.push(&Frame::record(1, b"", payload)).unwrap();
    }
    builder.finish()
}

/// Shreds `payloads` with the columns that `sample` suggests, and asserts that the same bytes come back. `None`: no columns.
pub(super) fn try_shred(sample: &[&[u8]], payloads: &[&[u8]]) -> Option<Shredded> {
    let mut inference = Inference::default();
    for payload in sample {
        inference.observe(payload);
    }
    let mut shredder = Shredder::new(inference.finish()?);
    let rows = shredder.shred(&rows_of(payloads));
    let shredding = shredder.shredding();
    let pairs = vec![shredding.to_metadata()];
    let read = Shredding::from_metadata(Some(&pairs)).unwrap().unwrap();
    assert_eq!(read, shredding, "the footer has all of it");
    let rendered = read.render(&rows).unwrap();
    for (row, payload) in payloads.iter().enumerate() {
        assert!(rendered.is_valid(row));
        assert_eq!(
            String::from_utf8_lossy(rendered.value(row)),
            String::from_utf8_lossy(payload),
            "row {row}"
        );
        assert_eq!(rendered.value(row), *payload, "row {row}");
    }
    Some(Shredded { rows, shredding })
}

pub(super) fn shred(sample: &[impl AsRef<str>], payloads: &[impl AsRef<str>]) -> Shredded {
    let sample: Vec<_> = sample.iter().map(|text| text.as_ref().as_bytes()).collect();
    let payloads: Vec<_> = payloads
        .iter()
        .map(|text| text.as_ref().as_bytes())
        .collect();
    try_shred(&sample, &payloads).unwrap()
}

impl Shredded {
    /// Which rows were shredded; the others have their payload.
    pub(super) fn shredded(&self) -> Vec<bool> {
        let payloads = self.rows.column(column::PAYLOAD);
        let templates = self.rows.column_by_name("_template").unwrap();
        (0..self.rows.num_rows())
            .map(|row| {
                assert_ne!(templates.is_valid(row), payloads.is_valid(row));
                templates.is_valid(row)
            })
            .collect()
    }

    pub(super) fn columns(&self) -> Vec<(&str, Form)> {
        let columns = self.shredding.columns().iter();
        columns
            .map(|column| (column.name.as_str(), column.form))
            .collect()
    }

    pub(super) fn texts(&self, name: &str) -> Vec<Option<String>> {
        let array = self.rows.column_by_name(name).unwrap();
        let texts = array.as_string::<i32>();
        texts.iter().map(|text| text.map(str::to_owned)).collect()
    }
}
