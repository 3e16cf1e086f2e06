//! `sys.files`: the cold files.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal128Array, Int32Builder, Int64Builder, StringBuilder,
    TimestampNanosecondBuilder,
};
use arrow::datatypes::DataType;
use basalt_columnar::sql_timestamp_ns;

use super::{bigint, int};
use crate::snapshot::QuerySnapshots;

pub(super) fn files(snapshots: &QuerySnapshots) -> Vec<ArrayRef> {
    let mut topics = StringBuilder::new();
    let mut partitions = Int32Builder::new();
    let mut paths = StringBuilder::new();
    let mut numbers: [Int64Builder; 5] = Default::default();
    let mut stamps: [TimestampNanosecondBuilder; 2] = Default::default();
    let mut raw: [Vec<i128>; 2] = Default::default();
    for name in snapshots.topic_names() {
        for partition in snapshots.topic(&name).iter() {
            for file in &partition.cold {
                topics.append_value(name.as_str());
                partitions.append_value(int(partition.partition.0));
                paths.append_value(file.path.as_ref());
                let values = [
                    file.base_offset.0,
                    file.end_offset.0,
                    file.rows,
                    file.frame_bytes,
                    file.file_bytes,
                ];
                for (column, value) in numbers.iter_mut().zip(values) {
                    column.append_value(bigint(value));
                }
                let bounds = [file.min_timestamp_ns, file.max_timestamp_ns];
                for (column, stamp) in stamps.iter_mut().zip(bounds) {
                    column.append_option(sql_timestamp_ns(stamp));
                }
                for (column, stamp) in raw.iter_mut().zip(bounds) {
                    column.push(i128::from(stamp));
                }
            }
        }
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(topics.finish()),
        Arc::new(partitions.finish()),
        Arc::new(paths.finish()),
    ];
    columns.extend(
        numbers
            .into_iter()
            .map(|mut column| Arc::new(column.finish()) as ArrayRef),
    );
    columns.extend(
        stamps
            .into_iter()
            .map(|mut column| Arc::new(column.finish().with_timezone("UTC")) as ArrayRef),
    );
    columns.extend(raw.map(|column| {
        let column = Decimal128Array::from(column).with_data_type(DataType::Decimal128(20, 0));
        Arc::new(column) as ArrayRef
    }));
    columns
}
