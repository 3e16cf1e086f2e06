use super::*;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int16Type, Int64Type};
use basalt_proto::RecordHeader;
use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};

fn batch_frame(values: &[Option<&[u8]>], headers: &[RecordHeader<'_>]) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields {
        producer_epoch: 9,
        ..BatchFields::default()
    })
    .unwrap();
    for value in values {
        writer
            .push(&RecordToWrite {
                timestamp_ms: 5,
                key: None,
                value: *value,
                headers,
            })
            .unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    batch
}

#[test]
fn record_frames_and_batches_share_the_columns_and_nulls_stay_apart() {
    let mut builder = RowBuilder::new(PartitionId(4));
    builder.push(&Frame::record(7, b"", b"")).unwrap();
    let headers = [
        RecordHeader {
            key: b"a",
            value: None,
        },
        RecordHeader {
            key: b"\xff",
            value: Some(b""),
        },
    ];
    let batch = batch_frame(&[None, Some(b"")], &headers);
    let mut frame = Frame::batch(8, &batch, 2);
    frame.header.offset = Offset(10);
    builder.push(&frame).unwrap();
    builder.push(&Frame::record(9, b"k", b"v")).unwrap();
    let rows = builder.finish();
    assert_eq!(rows.num_rows(), 4);
    assert_eq!(rows.schema(), cold_schema());
    let payload = rows.column(column::PAYLOAD).as_binary::<i32>();
    assert!(
        payload.is_valid(0) && payload.value(0).is_empty(),
        "a record frame's payload is never null"
    );
    assert!(payload.is_null(1) && payload.is_valid(2));
    let key = rows.column(column::KEY).as_binary::<i32>();
    assert!(key.is_null(0) && key.value(3) == b"k");
    let base = rows
        .column(column::BATCH_BASE_OFFSET)
        .as_primitive::<Int64Type>();
    assert_eq!(
        (0..4).map(|row| base.is_valid(row)).collect::<Vec<_>>(),
        [false, true, true, false]
    );
    let epoch = rows
        .column(column::PRODUCER_EPOCH)
        .as_primitive::<Int16Type>();
    assert_eq!((epoch.value(1), epoch.is_null(3)), (9, true));
    let list = rows.column(column::HEADERS).as_list::<i32>();
    assert!(list.is_null(0) && list.value(1).len() == 2);
    let raw = rows.column(column::HEADER_KEYS).as_list::<i32>();
    assert_eq!(raw.value(1).as_binary::<i32>().value(1), b"\xff");
}

#[test]
fn a_projection_builds_its_columns_only_and_counts_batches_without_reading_them() {
    let batch = batch_frame(&[Some(b"x"), Some(b"y")], &[]);
    let frame = Frame::batch(8, &batch, 2);
    let mut none = RowBuilder::with_projection(PartitionId(0), Some(&[]));
    none.push(&frame).unwrap();
    none.push(&Frame::record(1, b"", b"z")).unwrap();
    let rows = none.finish();
    assert_eq!((rows.num_rows(), rows.num_columns()), (3, 0));
    assert_eq!(none.finish().num_rows(), 0);

    let mut some =
        RowBuilder::with_projection(PartitionId(0), Some(&[column::OFFSET, column::PARTITION]));
    some.push(&frame).unwrap();
    assert_eq!(some.value_bytes(), 0);
    let rows = some.finish();
    assert_eq!(
        rows.column(0).as_primitive::<Int64Type>().values()[..],
        [0, 1]
    );
    assert_eq!(rows.schema(), *some.schema());
}

#[test]
fn an_unreadable_batch_is_an_error_that_names_its_offset() {
    let mut batch = batch_frame(&[Some(b"x")], &[]);
    let last = batch.len() - 1;
    batch.truncate(last);
    let mut frame = Frame::batch(8, &batch, 1);
    frame.header.offset = Offset(77);
    let refused = RowBuilder::new(PartitionId(0)).push(&frame);
    assert!(
        matches!(
            refused,
            Err(RowError::Batch {
                offset: Offset(77),
                ..
            })
        ),
        "{refused:?}"
    );
}
