//! Claims over the whole crate.

mod avro;
mod json;
mod protobuf;
mod schemas;

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, StructArray};
use arrow::datatypes::Field;
use serde_json::Value as Json;

use crate::{Decoder, TopicSchema};

/// The rows of payloads, each as JSON of its columns that are not NULL.
fn rows(schema: &TopicSchema, payloads: &[Option<&[u8]>]) -> Vec<Json> {
    let fields = schema.fields();
    let schema = Arc::new(TopicSchema::parse(&schema.text()).unwrap());
    let mut decoder = Decoder::new(schema, (0..fields.len()).collect());
    payloads.iter().for_each(|payload| decoder.push(*payload));
    let arrays = decoder.finish();
    for (array, field) in arrays.iter().zip(&fields) {
        assert_eq!(array.data_type(), field.data_type());
        assert_eq!(array.len(), payloads.len());
    }
    json_rows(&fields, &arrays)
}

fn json_rows(fields: &[Field], arrays: &[ArrayRef]) -> Vec<Json> {
    let columns = fields
        .iter()
        .cloned()
        .map(Arc::new)
        .zip(arrays.iter().cloned());
    let rows = StructArray::from(columns.collect::<Vec<_>>());
    let mut bytes = Vec::new();
    let mut writer = arrow::json::LineDelimitedWriter::new(&mut bytes);
    writer
        .write(&arrow::record_batch::RecordBatch::from(&rows))
        .unwrap();
    writer.finish().unwrap();
    let lines = String::from_utf8(bytes).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn row(schema: &TopicSchema, payload: &[u8]) -> Json {
    rows(schema, &[Some(payload)]).remove(0)
}

/// What `_error` says of one payload.
fn error(schema: &TopicSchema, payload: &[u8]) -> Option<String> {
    let fields = schema.fields();
    let schema = Arc::new(TopicSchema::parse(&schema.text()).unwrap());
    let mut decoder = Decoder::new(schema, (0..fields.len()).collect());
    decoder.push(Some(payload));
    let arrays = decoder.finish();
    let (error, columns) = arrays.split_last().unwrap();
    let error = error.as_string::<i32>();
    let reason = error.is_valid(0).then(|| error.value(0).to_owned());
    if reason.is_some() {
        assert!(columns.iter().all(|column| column.is_null(0)), "half a row");
    }
    reason
}
