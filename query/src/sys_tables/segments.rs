//! `sys.segments`: hot segments and cold files.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Int32Builder, Int64Builder, StringBuilder, TimestampNanosecondBuilder,
};
use basalt_columnar::{ColdFile, PartitionSnapshot, sql_timestamp_ns};
use basalt_log::SegmentView;

use super::{bigint, int};
use crate::snapshot::QuerySnapshots;

pub(super) fn segments(snapshots: &QuerySnapshots) -> Vec<ArrayRef> {
    let mut rows = SegmentRows::default();
    for name in snapshots.topic_names() {
        for partition in snapshots.whole(&name).iter() {
            for file in &partition.cold {
                rows.push_cold(partition, file);
            }
            for view in &partition.hot {
                rows.push_hot(partition, view);
            }
        }
    }
    rows.finish()
}

#[derive(Default)]
struct SegmentRows {
    topics: StringBuilder,
    partitions: Int32Builder,
    tiers: StringBuilder,
    numbers: [Int64Builder; 4],
    stamps: [TimestampNanosecondBuilder; 3],
    sealed: BooleanBuilder,
    paths: StringBuilder,
}

impl SegmentRows {
    fn push_cold(&mut self, partition: &PartitionSnapshot, file: &ColdFile) {
        self.push(
            partition,
            "cold",
            [
                file.base_offset.0,
                file.end_offset.0,
                file.frame_bytes,
                file.file_bytes,
            ],
        );
        self.push_stamps([
            Some(file.min_timestamp_ns),
            Some(file.max_timestamp_ns),
            Some(file.appended_at_ns),
        ]);
        self.sealed.append_value(true);
        self.paths.append_value(file.path.as_ref());
    }

    fn push_hot(&mut self, partition: &PartitionSnapshot, view: &SegmentView) {
        let frame_bytes = view.frame_bytes();
        self.push(
            partition,
            "hot",
            [
                view.base_offset.0,
                view.end_offset.0,
                frame_bytes,
                frame_bytes,
            ],
        );
        let min = view
            .blocks()
            .iter()
            .map(|block| block.min_timestamp_ns)
            .min();
        let max = view
            .blocks()
            .iter()
            .map(|block| block.max_timestamp_ns)
            .max();
        self.push_stamps([min, max, Some(view.appended_at_ns())]);
        self.sealed.append_value(view.sealed());
        self.paths.append_value(view.path().to_string_lossy());
    }

    fn push(&mut self, partition: &PartitionSnapshot, tier: &str, numbers: [u64; 4]) {
        self.topics.append_value(partition.topic.as_str());
        self.partitions.append_value(int(partition.partition.0));
        self.tiers.append_value(tier);
        for (column, value) in self.numbers.iter_mut().zip(numbers) {
            column.append_value(bigint(value));
        }
    }

    fn push_stamps(&mut self, stamps: [Option<u64>; 3]) {
        for (column, stamp) in self.stamps.iter_mut().zip(stamps) {
            column.append_option(stamp.and_then(sql_timestamp_ns));
        }
    }

    fn finish(mut self) -> Vec<ArrayRef> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.topics.finish()),
            Arc::new(self.partitions.finish()),
            Arc::new(self.tiers.finish()),
        ];
        columns.extend(
            self.numbers
                .iter_mut()
                .map(|column| Arc::new(column.finish()) as ArrayRef),
        );
        columns.extend(
            self.stamps
                .iter_mut()
                .map(|column| Arc::new(column.finish().with_timezone("UTC")) as ArrayRef),
        );
        columns.push(Arc::new(self.sealed.finish()));
        columns.push(Arc::new(self.paths.finish()));
        columns
    }
}
