//! Committed offsets, of members of groups and of whoever assigns partitions to itself; native groups have the same ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use basalt_log::{Change, Commit, Committed};
use basalt_proto::{GroupName, Offset, PartitionId, TopicName};
use kafka_protocol::messages::find_coordinator_response::Coordinator;
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

use super::Waiting;
use super::coordinator::Identity;
use super::error::{code, of_commit};
use super::membership::name;
use super::node::{NO_LEADER_EPOCH, NODE_ID, Node};
use super::request::{Head, Request};
use super::response::message;
use crate::Counters;
use crate::error::Refusal;
use crate::shared::Shared;

/// Kinds of coordinators: of a group, of a transactional id.
const KINDS: [i8; 2] = [0, 1];
/// From here on several keys are asked for at a time.
const KEYS_FROM: i16 = 4;
/// From here on an answer as a whole has a place for an error.
const ERROR_FROM: i16 = 2;
/// From here on several groups are.
const GROUPS_FROM: i16 = 8;
/// From here on members of the consumer protocol commit.
const EPOCHS_FROM: i16 = 9;
const NO_OFFSET: i64 = -1;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn find_coordinator(node: &Node, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: FindCoordinatorRequest = request.decode()?;
    let failed = (!KINDS.contains(&asked.key_type)).then(|| {
        let text = "only consumer groups and transactional ids have a coordinator here";
        // Of share groups.
        (code::INVALID_REQUEST, StrBytes::from_static_str(text))
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
                    .with_error_message(None)
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
                .with_error_message(None)
                .with_node_id(NODE_ID)
                .with_host(node.host.clone())
                .with_port(node.port),
        }
    };
    message(&request.head, &body)
}

/// Has its place in the order when this returns; the answer is waited for.
///
/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn commit(shared: &Shared, request: &Request<'_>) -> Result<Waiting<'static>, Refusal> {
    let asked: OffsetCommitRequest = request.decode()?;
    let head = request.head;
    let mut commits = Vec::new();
    let checked = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let metadata = partition.committed_metadata.as_deref();
            let (index, offset) = (partition.partition_index, partition.committed_offset);
            let checked = check_offset(shared, &topic.name, index, offset, metadata);
            let code = checked.as_ref().err().copied().unwrap_or(code::NONE);
            commits.extend(checked);
            (partition.partition_index, code)
        });
        (topic.name.clone(), partitions.collect::<Vec<_>>())
    });
    let checked: Vec<_> = checked.collect();
    let who = Identity {
        member_id: name(&asked.member_id),
        instance_id: asked.group_instance_id.as_ref().map(name),
        generation: asked.generation_id_or_member_epoch,
    };
    let count = commits.len() as u64;
    let group = GroupName::new(&asked.group_id).map_err(|_| code::INVALID_GROUP_ID);
    let change = (!commits.is_empty()).then(|| Change::Commit(commits));
    let begun = group.and_then(|group| shared.coordinator.commit(&group, &who, change));
    // Whoever was its member is it no more. Clients that know epochs join again then, and may end with the older code.
    let begun = begun.map_err(|code| match code {
        code::GROUP_ID_NOT_FOUND if head.version >= EPOCHS_FROM => code::UNKNOWN_MEMBER_ID,
        code::GROUP_ID_NOT_FOUND => code::ILLEGAL_GENERATION,
        code => code,
    });
    let counters = Arc::clone(&shared.counters);
    let answer = async move {
        let stored = match begun {
            Err(code) => Err(code),
            Ok(None) => Ok(()),
            Ok(Some(pending)) => pending.durable().await.map_err(|error| {
                let kind = Refusal::from(error).kind;
                counters.refuse(kind, 1);
                of_commit(kind)
            }),
        };
        if stored.is_ok() {
            Counters::add(&counters.commits, count);
        }
        let topics = checked.into_iter().map(|(name, partitions)| {
            let partitions = partitions.into_iter().map(|(index, checked)| {
                OffsetCommitResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(stored.err().unwrap_or(checked))
            });
            OffsetCommitResponseTopic::default()
                .with_name(name)
                .with_partitions(partitions.collect())
        });
        let body = OffsetCommitResponse::default().with_topics(topics.collect());
        message(&head, &body)
    };
    Ok(Waiting::new(answer, None))
}

/// What is to be stored of a partition, if it may be.
pub(super) fn check_offset(
    shared: &Shared,
    topic: &str,
    partition: i32,
    offset: i64,
    metadata: Option<&str>,
) -> Result<Commit, i16> {
    let metadata = metadata.unwrap_or_default();
    if metadata.len() > shared.config.groups.max_metadata_bytes {
        return Err(code::OFFSET_METADATA_TOO_LARGE);
    }
    let unknown = code::UNKNOWN_TOPIC_OR_PARTITION;
    let topic = TopicName::new(topic).map_err(|_| unknown)?;
    let topic = shared.log.log().topic(&topic).ok_or(unknown)?;
    let partition = u32::try_from(partition).map_err(|_| unknown)?;
    if partition >= topic.partition_count() {
        return Err(unknown);
    }
    let offset = u64::try_from(offset);
    let offset = offset.map_err(|_| code::OFFSET_OUT_OF_RANGE)?;
    Ok(Commit {
        topic,
        partition: PartitionId(partition),
        offset: Offset(offset),
        metadata: metadata.to_owned(),
    })
}

/// Told as it is when commits before it on the connection are done.
///
/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn fetch<'a>(shared: &'a Shared, request: &Request<'_>) -> Result<Waiting<'a>, Refusal> {
    let asked: OffsetFetchRequest = request.decode()?;
    let head = request.head;
    Ok(Waiting::new(
        async move { fetched(shared, &head, asked) },
        None,
    ))
}

fn fetched(shared: &Shared, head: &Head, asked: OffsetFetchRequest) -> Result<Vec<u8>, Refusal> {
    if head.version >= GROUPS_FROM {
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
            let who = Identity {
                member_id: group.member_id.as_ref().map(name).unwrap_or_default(),
                instance_id: None,
                generation: group.member_epoch,
            };
            let may_ask = match GroupName::new(&group.group_id) {
                Ok(group) => shared.coordinator.may_ask(&group, &who),
                // It is said below.
                Err(_) => Ok(()),
            };
            let (error_code, topics) = match may_ask {
                Ok(()) => committed(shared, &group.group_id, topics, asked.require_stable),
                Err(error) => (error, Vec::new()),
            };
            let topics = topics.into_iter().map(|(name, offsets)| {
                let partitions = offsets.into_iter().map(|(index, found)| {
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(index)
                        .with_committed_offset(offset_of(&found))
                        .with_committed_leader_epoch(NO_LEADER_EPOCH)
                        .with_metadata(Some(metadata_of(&found)))
                        .with_error_code(found.err().unwrap_or(code::NONE))
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
        return message(head, &body);
    }
    let topics = asked.topics.map(|topics| {
        let named = topics.into_iter();
        named
            .map(|topic| (topic.name.to_string(), topic.partition_indexes))
            .collect()
    });
    let (error_code, topics) = committed(shared, &asked.group_id, topics, asked.require_stable);
    let topics = topics.into_iter().map(|(name, offsets)| {
        let partitions = offsets.into_iter().map(|(index, found)| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(index)
                .with_committed_offset(offset_of(&found))
                .with_committed_leader_epoch(NO_LEADER_EPOCH)
                .with_metadata(Some(metadata_of(&found)))
                // Version 1 has no other place for it.
                .with_error_code(found.err().unwrap_or(error_code))
        });
        OffsetFetchResponseTopic::default()
            .with_name(StrBytes::from_string(name).into())
            .with_partitions(partitions.collect())
    });
    let whole = match head.version {
        ERROR_FROM.. => error_code,
        _ => code::NONE,
    };
    let body = OffsetFetchResponse::default()
        .with_error_code(whole)
        .with_topics(topics.collect());
    message(head, &body)
}

fn offset_of(committed: &Result<Option<Committed>, i16>) -> i64 {
    let committed = committed.as_ref().ok().and_then(Option::as_ref);
    committed.map_or(NO_OFFSET, |committed| committed.offset.0.cast_signed())
}

fn metadata_of(committed: &Result<Option<Committed>, i16>) -> StrBytes {
    let committed = committed.as_ref().ok().and_then(Option::as_ref);
    let metadata = committed.map(|committed| committed.metadata.to_string());
    StrBytes::from_string(metadata.unwrap_or_default())
}

/// Partitions by topic, of those asked for or of all that have an offset.
type ByTopic = Vec<(String, Vec<(i32, Result<Option<Committed>, i16>)>)>;

fn committed(
    shared: &Shared,
    group: &str,
    asked: Option<Vec<(String, Vec<i32>)>>,
    require_stable: bool,
) -> (i16, ByTopic) {
    let groups = shared.log.log().groups();
    let group = GroupName::new(group);
    let error_code = match &group {
        Ok(_) => code::NONE,
        Err(_) => code::INVALID_GROUP_ID,
    };
    // An open transaction is about to say otherwise, or not.
    let pending = match (&group, require_stable) {
        (Ok(group), true) => shared.transactions.pending(group),
        _ => HashSet::new(),
    };
    let stable = |topic: &TopicName, partition, found| match !pending.is_empty()
        && pending.contains(&(topic.clone(), partition))
    {
        true => Err(code::UNSTABLE_OFFSET_COMMIT),
        false => Ok(found),
    };
    let Some(asked) = asked else {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (topic, partition, committed) in group.iter().flat_map(|group| groups.of(group)) {
            let committed = stable(&topic, partition, Some(committed));
            let committed = (partition.0.cast_signed(), committed);
            all.entry(topic.to_string()).or_default().push(committed);
        }
        return (error_code, all.into_iter().collect());
    };
    let of_topic = |(topic, indexes): (String, Vec<i32>)| {
        let name = TopicName::new(&topic);
        let of_partition = |index: i32| {
            let found = match (&group, &name, u32::try_from(index)) {
                (Ok(group), Ok(name), Ok(index)) => {
                    let partition = PartitionId(index);
                    stable(name, partition, groups.committed(group, name, partition))
                }
                _ => Ok(None),
            };
            (index, found)
        };
        let offsets = indexes.into_iter().map(of_partition).collect();
        (topic, offsets)
    };
    (error_code, asked.into_iter().map(of_topic).collect())
}
