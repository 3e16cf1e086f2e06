//! DeleteRecords: an operator moves where partitions start.

use std::collections::BTreeSet;

use basalt_proto::{Offset, PartitionId, TopicName};
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};

use super::error::{Failure, code};
use super::request::Request;
use super::response::message;
use crate::error::Refusal;
use crate::shared::Shared;

/// What stands for the high watermark.
const ALL: i64 = -1;
const NO_OFFSET: i64 = -1;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn answer(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: DeleteRecordsRequest = request.decode()?;
    let mut named = BTreeSet::new();
    let mut topics = Vec::with_capacity(asked.topics.len());
    for topic in asked.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for partition in &topic.partitions {
            let index = partition.partition_index;
            let deleted = match named.insert((topic.name.clone(), index)) {
                true => delete(shared, &topic.name, index, partition.offset).await,
                false => Err(Failure::new(
                    code::INVALID_REQUEST,
                    "the partition is named more than once",
                )),
            };
            let result = DeleteRecordsPartitionResult::default().with_partition_index(index);
            partitions.push(match deleted {
                Ok(start) => result.with_low_watermark(start.0.cast_signed()),
                Err(failure) => result
                    .with_low_watermark(NO_OFFSET)
                    .with_error_code(failure.code),
            });
        }
        let topic = DeleteRecordsTopicResult::default().with_name(topic.name);
        topics.push(topic.with_partitions(partitions));
    }
    let body = DeleteRecordsResponse::default().with_topics(topics);
    message(&request.head, &body)
}

/// Where the partition starts then.
async fn delete(shared: &Shared, topic: &str, index: i32, before: i64) -> Result<Offset, Failure> {
    let topic = TopicName::new(topic).map_err(Refusal::from)?;
    let index = u32::try_from(index).map_err(|_| {
        let message = format!("there is no partition {index}");
        Failure::new(code::UNKNOWN_TOPIC_OR_PARTITION, message)
    })?;
    let partition = shared.existing_partition(&topic, PartitionId(index))?;
    if !shared.topic(&topic)?.config().cleanup_policy.deletes() {
        // Who reads a compacted topic counts on each key's latest record.
        let message = "records of a compacted topic are not deleted by offset";
        return Err(Failure::new(code::POLICY_VIOLATION, message));
    }
    let end = partition.offsets().high_watermark;
    let before = match before {
        ALL => Some(end),
        _ => u64::try_from(before).ok().map(Offset),
    };
    let before = before.filter(|before| *before <= end).ok_or_else(|| {
        let message = format!("the partition ends at {end}");
        Failure::new(code::OFFSET_OUT_OF_RANGE, message)
    })?;
    let start = partition.delete_before(before).await;
    start.map_err(|error| {
        let refusal = Refusal::from(error);
        shared.counters.refuse(refusal.kind, 1);
        refusal.into()
    })
}
