//! `sys.queries`: the queries that are there, and the last ones that were.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, TimestampNanosecondArray};
use arrow::datatypes::{DataType, Field, TimeUnit};
use basalt_columnar::sql_timestamp_ns;

use super::bigint;
use crate::control::{Line, Registry};

pub(super) fn fields() -> Vec<Field> {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    let count = |name: &str| Field::new(name, DataType::Int64, false);
    let stamp = |name: &str| {
        let utc = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        Field::new(name, utc, true)
    };
    vec![
        text("query_id", false),
        text("state", false),
        text("client", true),
        text("sql", false),
        stamp("started_at"),
        stamp("ended_at"),
        count("rows"),
        count("bytes_scanned"),
        count("memory_bytes"),
        count("spilled_bytes"),
        Field::new("progress", DataType::Float64, true),
        text("snapshot", true),
        text("error", true),
    ]
}

pub(super) fn queries(registry: &Registry) -> Vec<ArrayRef> {
    let lines = registry.lines();
    let texts = |of: fn(&Line) -> Option<String>| {
        Arc::new(lines.iter().map(of).collect::<StringArray>()) as ArrayRef
    };
    let counts = |of: fn(&Line) -> u64| {
        let counts = lines.iter().map(|line| Some(bigint(of(line))));
        Arc::new(counts.collect::<Int64Array>()) as ArrayRef
    };
    let stamps = |of: fn(&Line) -> Option<u64>| {
        let stamps = lines.iter().map(|line| of(line).and_then(sql_timestamp_ns));
        let stamps = stamps.collect::<TimestampNanosecondArray>();
        Arc::new(stamps.with_timezone("UTC")) as ArrayRef
    };
    let progress = lines.iter().map(|line| line.progress);
    vec![
        texts(|line| Some(line.id.to_string())),
        texts(|line| Some(line.state.name().to_owned())),
        texts(|line| line.client.clone()),
        texts(|line| Some(line.sql.clone())),
        stamps(|line| Some(line.started_ns)),
        stamps(|line| line.ended_ns),
        counts(|line| line.rows),
        counts(|line| line.scanned_bytes),
        counts(|line| line.memory_bytes),
        counts(|line| line.spilled_bytes),
        Arc::new(progress.collect::<Float64Array>()),
        texts(|line| line.snapshot.clone()),
        texts(|line| line.error.clone()),
    ]
}
