//! `sys.groups`: where consumer groups stand.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Builder, Int64Builder, StringBuilder};
use basalt_columnar::TieredLog;
use basalt_proto::{Offset, PartitionId, TopicName};

use super::{bigint, int};

pub(super) fn groups(log: &TieredLog) -> Vec<ArrayRef> {
    // Committed offsets first: an end that is read later is never behind what was committed below it.
    let mut committed = log.log().groups().list();
    committed.sort_unstable();
    let mut ends: HashMap<TopicName, Vec<(PartitionId, Offset)>> = HashMap::new();
    let mut groups = StringBuilder::new();
    let mut topics = StringBuilder::new();
    let mut partitions = Int32Builder::new();
    let mut numbers: [Int64Builder; 3] = Default::default();
    for (group, topic, partition, offset) in committed {
        let ends = ends
            .entry(topic.clone())
            .or_insert_with(|| high_watermarks(log, &topic));
        // A topic that went meanwhile has nothing left to be read.
        let Some((_, end)) = ends.iter().find(|(id, _)| *id == partition) else {
            continue;
        };
        groups.append_value(group.as_str());
        topics.append_value(topic.as_str());
        partitions.append_value(int(partition.0));
        let values = [offset.0, end.0, end.distance_from(offset)];
        for (column, value) in numbers.iter_mut().zip(values) {
            column.append_value(bigint(value));
        }
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(groups.finish()),
        Arc::new(topics.finish()),
        Arc::new(partitions.finish()),
    ];
    columns.extend(
        numbers
            .into_iter()
            .map(|mut column| Arc::new(column.finish()) as ArrayRef),
    );
    columns
}

fn high_watermarks(log: &TieredLog, topic: &TopicName) -> Vec<(PartitionId, Offset)> {
    let Some(topic) = log.log().topic(topic) else {
        return Vec::new();
    };
    let bounds = log.topic_bounds(&topic);
    bounds
        .map(|(id, bounds)| (id, bounds.high_watermark))
        .collect()
}
