//! ListOffsets: where a partition begins and ends, and where a time lies in it.

use std::collections::HashSet;

use basalt_columnar::TieredPartition;
use basalt_log::Isolation;
use basalt_proto::{ErrorKind, Offset, PartitionId, TopicName};
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};

use super::error::{Failure, code, of_fetch};
use super::node::NO_LEADER_EPOCH;
use super::request::Request;
use super::response::message;
use super::timestamps::{self, Found};
use crate::connection::Connection;
use crate::error::Refusal;

/// Of the records of transactions that were committed, and of none.
const READ_COMMITTED: i8 = 1;
/// What is asked for instead of a time.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const LATEST_TIME: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
/// The versions from which on the latter two may be.
const LATEST_TIME_FROM: i16 = 7;
const EARLIEST_LOCAL_FROM: i16 = 8;
/// Neither an offset nor a time.
const NONE: i64 = -1;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn answer(
    connection: &Connection<'_>,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let version = request.head.version;
    let asked: ListOffsetsRequest = request.decode()?;
    let mut named = HashSet::new();
    let mut topics = Vec::with_capacity(asked.topics.len());
    for topic in asked.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let is_first = named.insert((topic.name.clone(), partition.partition_index));
            let answer = ListOffsetsPartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_leader_epoch(NO_LEADER_EPOCH);
            let found = match is_first {
                true => {
                    let isolation = match asked.isolation_level {
                        READ_COMMITTED => Isolation::Committed,
                        _ => Isolation::Uncommitted,
                    };
                    find(connection, &topic.name, &partition, version, isolation).await
                }
                false => Err(Failure::new(
                    code::INVALID_REQUEST,
                    "the partition is named more than once",
                )),
            };
            partitions.push(match found {
                Ok(Some(found)) => answer
                    .with_offset(found.offset.0.cast_signed())
                    .with_timestamp(found.timestamp_ms),
                Ok(None) => answer.with_offset(NONE).with_timestamp(NONE),
                Err(failure) => answer
                    .with_error_code(failure.code)
                    .with_offset(NONE)
                    .with_timestamp(NONE),
            });
        }
        let answer = ListOffsetsTopicResponse::default().with_name(topic.name);
        topics.push(answer.with_partitions(partitions));
    }
    let body = ListOffsetsResponse::default().with_topics(topics);
    message(&request.head, &body)
}

async fn find(
    connection: &Connection<'_>,
    topic: &str,
    asked: &ListOffsetsPartition,
    version: i16,
    isolation: Isolation,
) -> Result<Option<Found>, Failure> {
    let shared = connection.shared;
    let topic = TopicName::new(topic).map_err(Refusal::from)?;
    let index = u32::try_from(asked.partition_index).map_err(|_| {
        let message = format!("there is no partition {}", asked.partition_index);
        Failure::new(code::UNKNOWN_TOPIC_OR_PARTITION, message)
    })?;
    let partition = shared.existing_partition(&topic, PartitionId(index))?;
    // What is beyond is not there for whoever asks.
    let end = || match isolation {
        Isolation::Uncommitted => partition.offsets().high_watermark,
        Isolation::Committed => partition.offsets().stable_offset,
    };
    let bound = |offset: Offset| {
        Ok(Some(Found {
            offset,
            timestamp_ms: NONE,
        }))
    };
    let found = match asked.timestamp {
        LATEST => return bound(end()),
        EARLIEST => return bound(partition.offsets().log_start_offset),
        EARLIEST_LOCAL if version >= EARLIEST_LOCAL_FROM => {
            return bound(earliest_local(&partition));
        }
        LATEST_TIME if version >= LATEST_TIME_FROM => {
            unless_stopped(connection, timestamps::latest(connection, &partition)).await
        }
        time if time < 0 => {
            let message = format!("version {version} has no time {time}");
            return Err(Failure::new(code::UNSUPPORTED_VERSION, message));
        }
        time => {
            let first = timestamps::first_from(connection, &partition, time);
            unless_stopped(connection, first).await
        }
    };
    let found = found.map(|found| found.filter(|found| found.offset < end()));
    found.map_err(|refusal| {
        shared.counters.refuse(refusal.kind, 1);
        Failure::new(of_fetch(refusal.kind), refusal.message)
    })
}

/// A lookup may read much: it ends when the server does.
async fn unless_stopped<T>(
    connection: &Connection<'_>,
    lookup: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    tokio::select! {
        found = lookup => found,
        () = connection.shutdown.wait() => Err(Refusal::new(
            ErrorKind::ShuttingDown,
            "the server is shutting down",
        )),
    }
}

/// The first offset that is in a segment. What is cold is in the store, wherever that is.
fn earliest_local(partition: &TieredPartition) -> Offset {
    let bounds = partition.bounds();
    bounds.cold_end_offset.min(bounds.high_watermark)
}
