//! CreateTopics, CreatePartitions and DeleteTopics.

use std::collections::{BTreeMap, BTreeSet};

use basalt_log::TopicId;
use basalt_proto::session::ConfigPairs;
use basalt_proto::{ErrorKind, TopicName};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::configs::{check, to_own};
use super::error::{Failure, code};
use super::metadata::kafka_name;
use super::node::{NODE_ID, TopicsById, topic_uuid};
use super::request::Request;
use super::response::message;
use crate::error::Refusal;
use crate::shared::Shared;

/// Stands for the server's default, or for what an assignment says.
const DEFAULT: i32 = -1;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn create(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: CreateTopicsRequest = request.decode()?;
    let mut named = BTreeMap::<_, u32>::new();
    for topic in &asked.topics {
        *named.entry(topic.name.clone()).or_default() += 1;
    }
    let mut results = Vec::with_capacity(asked.topics.len());
    for topic in asked.topics {
        let created = if named.get(&topic.name).is_some_and(|count| *count > 1) {
            let message = format!("the request names topic `{}` more than once", *topic.name);
            Err(Failure::new(code::INVALID_REQUEST, message))
        } else {
            create_one(shared, &topic, asked.validate_only).await
        };
        let result = CreatableTopicResult::default()
            .with_error_message(None)
            .with_name(topic.name)
            .with_configs(Some(Vec::new()));
        results.push(match created {
            Ok(made) => result
                .with_num_partitions(made.partitions.cast_signed())
                .with_replication_factor(1)
                .with_topic_id(made.id.map(topic_uuid).unwrap_or_default()),
            Err(failure) => result
                .with_error_code(failure.code)
                .with_error_message(Some(StrBytes::from_string(failure.message)))
                .with_num_partitions(DEFAULT)
                .with_replication_factor(-1),
        });
    }
    let body = CreateTopicsResponse::default().with_topics(results);
    message(&request.head, &body)
}

/// A topic that was made, or would be.
struct Made {
    partitions: u32,
    id: Option<TopicId>,
}

/// Makes a topic.
async fn create_one(
    shared: &Shared,
    topic: &CreatableTopic,
    validate_only: bool,
) -> Result<Made, Failure> {
    let name = TopicName::new(&topic.name).map_err(Refusal::from)?;
    if shared.log.log().topic(&name).is_some() {
        let message = format!("topic `{name}` exists already");
        return Err(Failure::new(code::TOPIC_ALREADY_EXISTS, message));
    }
    let partitions = partition_count(shared, topic)?;
    let mut pairs = ConfigPairs::new();
    for config in &topic.configs {
        let value = config.value.as_deref().unwrap_or_default();
        pairs.extend(to_own(shared, &config.name, value)?);
    }
    check(&shared.log.log().config().topic_defaults, &pairs)?;
    let mut id = None;
    if !validate_only {
        shared
            .topics
            .create(name.clone(), Some(partitions), pairs)
            .await?;
        id = shared.log.log().topic(&name).map(|topic| topic.id());
    }
    Ok(Made { partitions, id })
}

/// How many partitions are asked for, be it by number or by an assignment to this node.
fn partition_count(shared: &Shared, topic: &CreatableTopic) -> Result<u32, Failure> {
    if !topic.assignments.is_empty() {
        let mut indexes: Vec<i32> = topic
            .assignments
            .iter()
            .map(|assignment| assignment.partition_index)
            .collect();
        indexes.sort_unstable();
        let to_this_node = topic
            .assignments
            .iter()
            .all(|assignment| assignment.broker_ids == [NODE_ID]);
        let dense = indexes
            .iter()
            .copied()
            .zip(0..)
            .all(|(index, at)| index == at);
        if !to_this_node || !dense {
            let message = "each partition from 0 on takes this node and no other";
            return Err(Failure::new(code::INVALID_REPLICA_ASSIGNMENT, message));
        }
        if (topic.num_partitions, topic.replication_factor) != (DEFAULT, -1) {
            let message = "with an assignment go neither partitions nor a replication factor";
            return Err(Failure::new(code::INVALID_REQUEST, message));
        }
        return Ok(u32::try_from(indexes.len()).unwrap_or(u32::MAX));
    }
    if !matches!(topic.replication_factor, -1 | 1) {
        let message = format!(
            "{} replicas are asked for, and there is one node",
            topic.replication_factor
        );
        return Err(Failure::new(code::INVALID_REPLICATION_FACTOR, message));
    }
    let log = shared.log.log();
    match topic.num_partitions {
        DEFAULT => Ok(log.config().default_partitions),
        count => u32::try_from(count)
            .ok()
            .filter(|count| (1..=basalt_log::MAX_PARTITIONS).contains(count))
            .ok_or_else(|| {
                let message = format!(
                    "a topic takes 1 to {} partitions, not {count}",
                    basalt_log::MAX_PARTITIONS
                );
                Failure::new(code::INVALID_PARTITIONS, message)
            }),
    }
}

/// CreatePartitions.
///
/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn add_partitions(
    shared: &Shared,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asked: CreatePartitionsRequest = request.decode()?;
    let mut results = Vec::with_capacity(asked.topics.len());
    let mut named = BTreeSet::new();
    for topic in asked.topics {
        let added = if named.insert(topic.name.clone()) {
            add_partitions_to(shared, &topic, asked.validate_only).await
        } else {
            let message = format!("the request names topic `{}` more than once", *topic.name);
            Err(Failure::new(code::INVALID_REQUEST, message))
        };
        let result = CreatePartitionsTopicResult::default().with_name(topic.name);
        results.push(match added {
            Ok(()) => result,
            Err(failure) => result
                .with_error_code(failure.code)
                .with_error_message(Some(StrBytes::from_string(failure.message))),
        });
    }
    let body = CreatePartitionsResponse::default().with_results(results);
    message(&request.head, &body)
}

async fn add_partitions_to(
    shared: &Shared,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), Failure> {
    let name = TopicName::new(&topic.name).map_err(Refusal::from)?;
    let before = shared.topic(&name)?.partition_count();
    let partitions = u32::try_from(topic.count)
        .ok()
        .filter(|count| *count > before && *count <= basalt_log::MAX_PARTITIONS);
    let partitions = partitions.ok_or_else(|| {
        let message = format!(
            "topic `{name}` has {before} partitions and takes up to {}, not {}",
            basalt_log::MAX_PARTITIONS,
            topic.count
        );
        Failure::new(code::INVALID_PARTITIONS, message)
    })?;
    if let Some(assignments) = &topic.assignments {
        let to_this_node = assignments
            .iter()
            .all(|assignment| assignment.broker_ids == [NODE_ID]);
        if !to_this_node || assignments.len() != (partitions - before) as usize {
            let message = "each new partition takes this node and no other";
            return Err(Failure::new(code::INVALID_REPLICA_ASSIGNMENT, message));
        }
    }
    if !validate_only {
        shared.topics.add_partitions(name, partitions).await?;
    }
    Ok(())
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn delete(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: DeleteTopicsRequest = request.decode()?;
    let named = asked
        .topic_names
        .into_iter()
        .map(|name| DeleteTopicState::default().with_name(Some(name)));
    let mut by_id = TopicsById::new(shared);
    let mut responses = Vec::new();
    for topic in asked.topics.into_iter().chain(named) {
        let result = DeletableTopicResult::default()
            .with_name(topic.name.clone())
            .with_topic_id(topic.topic_id);
        responses.push(match delete_one(shared, &mut by_id, &topic).await {
            Ok((name, id)) => result
                .with_name(Some(kafka_name(&name)))
                .with_topic_id(topic_uuid(id)),
            Err(failure) => result
                .with_error_code(failure.code)
                .with_error_message(Some(StrBytes::from_string(failure.message))),
        });
    }
    let body = DeleteTopicsResponse::default().with_responses(responses);
    message(&request.head, &body)
}

async fn delete_one(
    shared: &Shared,
    by_id: &mut TopicsById<'_>,
    topic: &DeleteTopicState,
) -> Result<(TopicName, TopicId), Failure> {
    let found = match &topic.name {
        Some(name) => shared.topic(&TopicName::new(name).map_err(Refusal::from)?)?,
        None => by_id.topic(topic.topic_id.as_bytes()).ok_or_else(|| {
            let message = format!("there is no topic with the id {}", topic.topic_id);
            Failure::new(code::UNKNOWN_TOPIC_ID, message)
        })?,
    };
    let (name, id) = (found.name().clone(), found.id());
    let deleted = shared.topics.delete_with_id(name.clone(), id).await;
    deleted.map_err(|refusal| match refusal.kind {
        ErrorKind::UnknownTopic if topic.name.is_none() => {
            Failure::new(code::UNKNOWN_TOPIC_ID, refusal.message)
        }
        _ => refusal.into(),
    })?;
    Ok((name, id))
}
