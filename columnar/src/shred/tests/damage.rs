//! COL-25: what contradicts itself is refused.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use parquet::file::metadata::KeyValue;

use super::super::{METADATA_KEY, ShredError, Shredding};
use super::shred;
use crate::schema::column;

fn metadata(text: &str) -> Result<Option<Shredding>, ShredError> {
    let pairs = vec![KeyValue::new(METADATA_KEY.to_owned(), text.to_owned())];
    Shredding::from_metadata(Some(&pairs))
}

/// `rows` with another column in place of `name`.
fn with(rows: &RecordBatch, name: &str, array: ArrayRef) -> RecordBatch {
    let at = rows.schema().index_of(name).unwrap();
    let mut fields: Vec<_> = rows.schema().fields().iter().cloned().collect();
    fields[at] = Arc::new(Field::new(name, array.data_type().clone(), true));
    let mut arrays = rows.columns().to_vec();
    arrays[at] = array;
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// The documented format, as another program would read it.
#[test]
fn the_metadata_is_as_documented() {
    let payload = r#"{"id":7,"user":{"name":"x"}}"#;
    let done = shred(&[payload; 10], &[payload, r#"{"id":8}"#]);
    assert_eq!(
        done.shredding.to_metadata().value.unwrap(),
        concat!(
            r#"{"version":1,"#,
            r#""columns":[{"name":"payload.id","path":["id"],"form":"int"},"#,
            r#"{"name":"payload.user.name","path":["user","name"],"form":"string"}],"#,
            r#""templates":[["{\"id\":",0,",\"user\":{\"name\":",1,"}}"],["{\"id\":",0,"}"]]}"#
        )
    );
    assert_eq!(
        done.shredding.payload_columns(),
        [column::PAYLOAD, 19, 20, 21]
    );
    let names = [5, 19, 20, 21].map(|at| done.rows.schema().field(at).name().clone());
    assert_eq!(
        names,
        ["_payload", "_template", "payload.id", "payload.user.name"]
    );
}

#[test]
fn metadata_that_cannot_be_right_is_refused() {
    assert_eq!(Shredding::from_metadata(None).unwrap(), None);
    assert_eq!(Shredding::from_metadata(Some(&Vec::new())).unwrap(), None);
    assert!(
        metadata(r#"{"version":1,"columns":[],"templates":[["{}"]]}"#)
            .unwrap()
            .is_some()
    );
    for bad in [
        "",
        "{}",
        r#"{"version":2,"columns":[],"templates":[]}"#,
        r#"{"version":1,"columns":[]}"#,
        r#"{"version":1,"columns":[],"templates":[[0]]}"#,
        r#"{"version":1,"columns":[],"templates":[[-1]]}"#,
        r#"{"version":1,"columns":[{"name":"a","path":[],"form":"later"}],"templates":[]}"#,
        r#"{"version":1,"columns":[{"name":"a","path":[],"form":{"decimal":0}}],"templates":[]}"#,
        r#"{"version":1,"columns":[{"name":"a","path":[],"form":{"decimal":10}}],"templates":[]}"#,
    ] {
        let refused = metadata(bad);
        assert!(
            matches!(refused, Err(ShredError::Metadata { .. })),
            "{bad}: {refused:?}"
        );
    }
}

#[test]
fn rows_that_do_not_belong_to_the_metadata_are_refused() {
    let payload = r#"{"id":7,"s":"x"}"#;
    let done = shred(&[payload; 10], &[payload]);
    for number in [1, -1, i32::MAX] {
        let rows = with(
            &done.rows,
            "_template",
            Arc::new(Int32Array::from(vec![number])),
        );
        assert_eq!(
            done.shredding.render(&rows),
            Err(ShredError::Template {
                row: 0,
                found: number,
                templates: 1
            })
        );
    }
    for missing in ["_payload", "_template", "payload.id"] {
        let mut rows = done.rows.clone();
        rows.remove_column(rows.schema().index_of(missing).unwrap());
        assert_eq!(
            done.shredding.render(&rows),
            Err(ShredError::Column {
                name: missing.to_owned()
            })
        );
    }
    for other in [DataType::Float64, DataType::Utf8, DataType::UInt64] {
        let array = cast(done.rows.column_by_name("payload.id").unwrap(), &other).unwrap();
        let rows = with(&done.rows, "payload.id", array);
        let name = "payload.id".to_owned();
        assert_eq!(
            done.shredding.render(&rows),
            Err(ShredError::Column { name }),
            "7 is not {other}"
        );
    }
}

#[test]
fn readers_may_ask_for_views_and_any_order_of_columns() {
    let payload = r#"{"id":7,"s":"x"}"#;
    let done = shred(&[payload; 10], &[payload, "raw"]);
    let view = |name, kind| cast(done.rows.column_by_name(name).unwrap(), &kind).unwrap();
    let rows = with(
        &done.rows,
        "payload.s",
        view("payload.s", DataType::Utf8View),
    );
    let rows = with(&rows, "_payload", view("_payload", DataType::BinaryView));
    let rows = rows.project(&[21, 20, 19, 5]).unwrap();
    let rendered = done.shredding.render(&rows).unwrap();
    let rendered: &arrow::array::BinaryArray = (&rendered as &dyn arrow::array::Array).as_binary();
    assert_eq!(rendered.value(0), payload.as_bytes());
    assert_eq!(rendered.value(1), b"raw");
}
