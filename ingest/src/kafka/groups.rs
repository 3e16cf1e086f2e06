//! Committed offsets of consumers that are no members of a group: whoever assigns partitions to itself.
//!
//! The store keeps an offset and nothing else, the same for native groups. A commit with a metadata text is refused (12)
//! rather than stored without it. Membership is not served: a commit with a generation is refused (22).

use std::collections::{BTreeMap, BTreeSet};

use basalt_proto::{GroupName, Offset, PartitionId, TopicName};
use futures::future::join_all;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    FindCoordinatorRequest, FindCoordinatorResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::error::{code, of_commit};
use super::node::{NO_LEADER_EPOCH, NODE_ID, Node};
use super::request::Request;
use super::response::message;
use crate::Counters;
use crate::error::Refusal;
use crate::shared::Shared;

/// The one kind of coordinator there is.
const GROUP: i8 = 0;
/// From here on several keys are asked for at a time.
const KEYS_FROM: i16 = 4;
/// From here on an answer as a whole has a place for an error.
const ERROR_FROM: i16 = 2;
/// From here on several groups are.
const GROUPS_FROM: i16 = 8;
/// Of whoever is no member.
const NO_GENERATION: i32 = -1;
const NO_OFFSET: i64 = -1;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn find_coordinator(node: &Node, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: FindCoordinatorRequest = request.decode()?;
    let failed = (asked.key_type != GROUP).then(|| {
        let text = "only consumer groups have a coordinator here";
        // Of transactional ids: clients then give up at once.
        (
            code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            StrBytes::from_static_str(text),
        )
    });
    let body = if request.head.version >= KEYS_FROM {
        let coordinators = asked.coordinator_keys.into_iter().map(|key| {
            let found = Coordinator::default().with_key(key);
            match &failed {
                Some((code, text)) => found
                    .with_node_id((-1).into())
                    .with_port(-1)
                    .with_error_code(*code)
                    .with_error_message(Some(text.clone())),
                None => found
                    .with_node_id(NODE_ID)
                    .with_host(node.host.clone())
                    .with_port(node.port),
            }
        });
        FindCoordinatorResponse::default().with_coordinators(coordinators.collect())
    } else {
        match failed {
            Some((code, text)) => FindCoordinatorResponse::default()
                .with_node_id((-1).into())
                .with_port(-1)
                .with_error_code(code)
                .with_error_message(Some(text)),
            None => FindCoordinatorResponse::default()
                .with_node_id(NODE_ID)
                .with_host(node.host.clone())
                .with_port(node.port),
        }
    };
    message(&request.head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn commit(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: OffsetCommitRequest = request.decode()?;
    let group = GroupName::new(&asked.group_id).map_err(|_| code::INVALID_GROUP_ID);
    // Whoever is no member may call itself whatever it likes.
    let group = match group {
        Ok(_) if asked.generation_id_or_member_epoch != NO_GENERATION => {
            Err(code::ILLEGAL_GENERATION)
        }
        group => group,
    };
    // All at a time: commits that wait together share a sync.
    let topics = join_all(asked.topics.iter().map(async |topic| {
        let partitions = join_all(topic.partitions.iter().map(async |partition| {
            let stored = match &group {
                Ok(group) => store(shared, group, &topic.name, partition).await,
                Err(code) => Err(*code),
            };
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(stored.err().unwrap_or(code::NONE))
        }));
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.await)
    }))
    .await;
    let body = OffsetCommitResponse::default().with_topics(topics);
    message(&request.head, &body)
}

/// Stores one offset; durable on return.
async fn store(
    shared: &Shared,
    group: &GroupName,
    topic: &str,
    commit: &OffsetCommitRequestPartition,
) -> Result<(), i16> {
    let metadata = commit.committed_metadata.as_deref().unwrap_or_default();
    if !metadata.is_empty() {
        return Err(code::OFFSET_METADATA_TOO_LARGE);
    }
    let unknown = code::UNKNOWN_TOPIC_OR_PARTITION;
    let topic = TopicName::new(topic).map_err(|_| unknown)?;
    let partition = u32::try_from(commit.partition_index).map_err(|_| unknown)?;
    let partition = PartitionId(partition);
    let failed = |refusal: Refusal| {
        shared.counters.refuse(refusal.kind, 1);
        of_commit(refusal.kind)
    };
    shared
        .existing_partition(&topic, partition)
        .map_err(failed)?;
    let offset = u64::try_from(commit.committed_offset);
    let offset = offset.map_err(|_| code::OFFSET_OUT_OF_RANGE)?;
    let groups = shared.log.log().groups();
    let stored = groups.commit(group, &topic, partition, Offset(offset));
    stored.await.map_err(|error| failed(error.into()))?;
    Counters::increment(&shared.counters.commits);
    Ok(())
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn fetch(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: OffsetFetchRequest = request.decode()?;
    if request.head.version >= GROUPS_FROM {
        // Each once: what a group has is told in full for each time that it is named.
        let mut named = BTreeSet::new();
        let groups = asked.groups.into_iter();
        let groups = groups.filter(|group| named.insert(group.group_id.clone()));
        let groups = groups.map(|group| {
            let topics = group.topics.map(|topics| {
                let named = topics.into_iter();
                named
                    .map(|topic| (topic.name.to_string(), topic.partition_indexes))
                    .collect()
            });
            let (error_code, topics) = committed(shared, &group.group_id, topics);
            let topics = topics.into_iter().map(|(name, offsets)| {
                let partitions = offsets.into_iter().map(|(index, offset)| {
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(index)
                        .with_committed_offset(offset)
                        .with_committed_leader_epoch(NO_LEADER_EPOCH)
                        .with_metadata(Some(StrBytes::new()))
                });
                OffsetFetchResponseTopics::default()
                    .with_name(StrBytes::from_string(name).into())
                    .with_partitions(partitions.collect())
            });
            OffsetFetchResponseGroup::default()
                .with_group_id(group.group_id)
                .with_error_code(error_code)
                .with_topics(topics.collect())
        });
        let body = OffsetFetchResponse::default().with_groups(groups.collect());
        return message(&request.head, &body);
    }
    let topics = asked.topics.map(|topics| {
        let named = topics.into_iter();
        named
            .map(|topic| (topic.name.to_string(), topic.partition_indexes))
            .collect()
    });
    let (error_code, topics) = committed(shared, &asked.group_id, topics);
    let topics = topics.into_iter().map(|(name, offsets)| {
        let partitions = offsets.into_iter().map(|(index, offset)| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(index)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(NO_LEADER_EPOCH)
                .with_metadata(Some(StrBytes::new()))
                // Version 1 has no other place for it.
                .with_error_code(error_code)
        });
        OffsetFetchResponseTopic::default()
            .with_name(StrBytes::from_string(name).into())
            .with_partitions(partitions.collect())
    });
    let whole = match request.head.version {
        ERROR_FROM.. => error_code,
        _ => code::NONE,
    };
    let body = OffsetFetchResponse::default()
        .with_error_code(whole)
        .with_topics(topics.collect());
    message(&request.head, &body)
}

/// Partitions by topic, of those asked for or of all that have an offset, with -1 for none.
type Committed = Vec<(String, Vec<(i32, i64)>)>;

fn committed(
    shared: &Shared,
    group: &str,
    asked: Option<Vec<(String, Vec<i32>)>>,
) -> (i16, Committed) {
    let groups = shared.log.log().groups();
    let group = GroupName::new(group);
    let error_code = match &group {
        Ok(_) => code::NONE,
        Err(_) => code::INVALID_GROUP_ID,
    };
    let Some(asked) = asked else {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (topic, partition, offset) in group.iter().flat_map(|group| groups.of(group)) {
            let offset = (partition.0.cast_signed(), offset.0.cast_signed());
            all.entry(topic.to_string()).or_default().push(offset);
        }
        return (error_code, all.into_iter().collect());
    };
    let of_topic = |(topic, indexes): (String, Vec<i32>)| {
        let name = TopicName::new(&topic);
        let of_partition = |index: i32| {
            let found = match (&group, &name, u32::try_from(index)) {
                (Ok(group), Ok(name), Ok(index)) => {
                    groups.committed(group, name, PartitionId(index))
                }
                _ => None,
            };
            let offset = found.map_or(NO_OFFSET, |offset| offset.0.cast_signed());
            (index, offset)
        };
        let offsets = indexes.into_iter().map(of_partition).collect();
        (topic, offsets)
    };
    (error_code, asked.into_iter().map(of_topic).collect())
}
