//! `sys.cooling`: what cooling and merging have done since the start of the server, and have left to do.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, StringArray,
    TimestampNanosecondArray,
};
use arrow::datatypes::{DataType, Field, TimeUnit};
use basalt_columnar::{CoolingStatus, TieredLog, sql_timestamp_ns};

use super::{bigint, int};

pub(super) fn fields() -> Vec<Field> {
    let count = |name: &str| Field::new(name, DataType::Int64, false);
    let flag = |name: &str| Field::new(name, DataType::Boolean, false);
    let rate = |name: &str| Field::new(name, DataType::Float64, true);
    let stamp = |name: &str| {
        let utc = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        Field::new(name, utc, true)
    };
    vec![
        Field::new("topic", DataType::Utf8, false),
        Field::new("partition", DataType::Int32, false),
        count("backlog_segments"),
        count("backlog_bytes"),
        flag("cooling"),
        flag("merging"),
        count("cooled_segments"),
        count("cooled_frame_bytes"),
        count("cooled_file_bytes"),
        rate("cooled_bytes_per_second"),
        count("merged_files"),
        count("merged_bytes"),
        rate("merged_bytes_per_second"),
        Field::new("last_error", DataType::Utf8, true),
        stamp("last_error_at"),
        stamp("retry_at"),
    ]
}

struct Row {
    topic: String,
    partition: i32,
    status: CoolingStatus,
}

pub(super) fn cooling(log: &TieredLog) -> Vec<ArrayRef> {
    let mut rows: Vec<_> = log
        .all_partitions()
        .iter()
        .map(|partition| Row {
            topic: partition.topic().as_str().to_owned(),
            partition: int(partition.id().0),
            status: partition.cooling_status(),
        })
        .collect();
    rows.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    columns(&rows)
}

fn columns(rows: &[Row]) -> Vec<ArrayRef> {
    let counts = |of: fn(&CoolingStatus) -> u64| {
        let counts = rows.iter().map(|row| Some(bigint(of(&row.status))));
        Arc::new(counts.collect::<Int64Array>()) as ArrayRef
    };
    let flags = |of: fn(&CoolingStatus) -> bool| {
        let flags = rows.iter().map(|row| Some(of(&row.status)));
        Arc::new(flags.collect::<BooleanArray>()) as ArrayRef
    };
    let rates = |of: fn(&CoolingStatus) -> (u64, u64)| {
        let rates = rows.iter().map(|row| per_second(of(&row.status)));
        Arc::new(rates.collect::<Float64Array>()) as ArrayRef
    };
    let stamps = |of: fn(&CoolingStatus) -> Option<u64>| {
        let stamps = rows
            .iter()
            .map(|row| of(&row.status).and_then(sql_timestamp_ns));
        let stamps = stamps.collect::<TimestampNanosecondArray>();
        Arc::new(stamps.with_timezone("UTC")) as ArrayRef
    };
    let topics = rows.iter().map(|row| Some(row.topic.as_str()));
    let errors = rows.iter().map(|row| row.status.last_error.as_deref());
    vec![
        Arc::new(topics.collect::<StringArray>()),
        Arc::new(
            rows.iter()
                .map(|row| Some(row.partition))
                .collect::<Int32Array>(),
        ),
        counts(|status| status.backlog_segments),
        counts(|status| status.backlog_bytes),
        flags(|status| status.cooling),
        flags(|status| status.merging),
        counts(|status| status.cooled_segments),
        counts(|status| status.cooled_frame_bytes),
        counts(|status| status.cooled_file_bytes),
        rates(|status| (status.cooled_frame_bytes, status.cooling_ns)),
        counts(|status| status.merged_files),
        counts(|status| status.merged_bytes),
        rates(|status| (status.merged_bytes, status.merging_ns)),
        Arc::new(errors.collect::<StringArray>()),
        stamps(|status| status.last_error_at_ns),
        stamps(|status| status.retry_at_ns),
    ]
}

/// While it was at work; nothing where it never was.
fn per_second((bytes, ns): (u64, u64)) -> Option<f64> {
    (ns > 0).then(|| bytes as f64 * 1e9 / ns as f64)
}
