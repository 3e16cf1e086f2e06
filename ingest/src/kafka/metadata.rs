//! Metadata and DescribeCluster: which topics there are, and that this node leads all of them.

use std::collections::HashSet;
use std::sync::Arc;

use basalt_log::Topic;
use basalt_proto::TopicName;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    DescribeClusterRequest, DescribeClusterResponse, MetadataRequest, MetadataResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::PARTITION_BYTES;
use super::error::{code, of_kind};
use super::node::{CLUSTER_ID, NO_LEADER_EPOCH, NODE_ID, Node, TopicsById, topic_uuid};
use super::request::Request;
use super::response::message;
use crate::error::Refusal;
use crate::shared::Shared;

/// Below it an empty list stands for all topics.
const NULL_IS_ALL_FROM: i16 = 1;
/// Where the endpoints of DescribeCluster are brokers.
const BROKERS: i8 = 1;
/// From here on what is asked for by id and not there has no name.
const NAME_OR_NULL_FROM: i16 = 12;
/// What a client may do is not told.
const UNKNOWN_OPERATIONS: i32 = i32::MIN;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn answer(
    shared: &Shared,
    node: &Node,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let version = request.head.version;
    let asked: MetadataRequest = request.decode()?;
    let found = match asked.topics {
        Some(topics) if version >= NULL_IS_ALL_FROM || !topics.is_empty() => {
            let may_create = asked.allow_auto_topic_creation;
            let mut by_id = TopicsById::new(shared);
            // Each once, as Kafka does.
            let mut named = HashSet::new();
            let mut found = Vec::with_capacity(topics.len());
            for topic in topics {
                if named.insert((topic.name.clone(), topic.topic_id)) {
                    found.push(asked_for(shared, &mut by_id, topic, may_create, version).await);
                }
            }
            found
        }
        _ => {
            let mut topics = shared.log.log().topics();
            topics.sort_by(|a, b| a.name().cmp(b.name()));
            topics.into_iter().map(Ok).collect()
        }
    };
    let partitions = found.iter().flatten();
    let partitions: usize = partitions
        .map(|topic| usize::try_from(topic.partition_count()).unwrap_or(usize::MAX))
        .sum();
    let bytes = (partitions + found.len()).saturating_mul(PARTITION_BYTES);
    let _share = shared.answers.take(bytes.min(shared.answers.bytes())).await;
    let mut topics = Vec::with_capacity(found.len());
    for topic in found {
        topics.push(topic.map_or_else(|missing| missing, |topic| describe(&topic)));
        tokio::task::consume_budget().await;
    }
    let broker = MetadataResponseBroker::default()
        .with_node_id(NODE_ID)
        .with_host(node.host.clone())
        .with_port(node.port);
    let body = MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_cluster_id(Some(StrBytes::from_static_str(CLUSTER_ID)))
        .with_controller_id(NODE_ID)
        .with_cluster_authorized_operations(UNKNOWN_OPERATIONS)
        .with_topics(topics);
    message(&request.head, &body)
}

/// A topic that was named, or whose id was given. One that does not exist is made if the client and the log's
/// configuration allow it: it is there with this answer, so that clients need not ask again.
async fn asked_for(
    shared: &Shared,
    by_id: &mut TopicsById<'_>,
    asked: MetadataRequestTopic,
    may_create: bool,
    version: i16,
) -> Result<Arc<Topic>, MetadataResponseTopic> {
    let missing = |error_code| {
        let needs_name = asked.name.is_none() && version < NAME_OR_NULL_FROM;
        MetadataResponseTopic::default()
            .with_name(if needs_name {
                Some(Default::default())
            } else {
                asked.name.clone()
            })
            .with_topic_id(asked.topic_id)
            .with_topic_authorized_operations(UNKNOWN_OPERATIONS)
            .with_error_code(error_code)
    };
    // With an id some clients send an empty name.
    let by_name = asked.name.as_ref();
    let by_name = by_name.filter(|_| asked.topic_id.as_bytes() == &[0; 16]);
    let Some(asked_name) = by_name else {
        let found = by_id.topic(asked.topic_id.as_bytes());
        return found.ok_or_else(|| missing(code::UNKNOWN_TOPIC_ID));
    };
    let name = TopicName::new(asked_name).map_err(|_| missing(code::INVALID_TOPIC))?;
    let found = find(shared, &name, may_create).await;
    found.map_err(|refusal| missing(of_kind(refusal.kind)))
}

async fn find(shared: &Shared, name: &TopicName, may_create: bool) -> Result<Arc<Topic>, Refusal> {
    if let Some(topic) = shared.log.log().topic(name) {
        return Ok(topic);
    }
    if may_create {
        shared
            .partition_or_create(name, basalt_proto::PartitionId(0))
            .await?;
    }
    shared.topic(name)
}

fn describe(topic: &Topic) -> MetadataResponseTopic {
    let partition = |index: u32| {
        MetadataResponsePartition::default()
            .with_partition_index(index.cast_signed())
            .with_leader_id(NODE_ID)
            .with_leader_epoch(NO_LEADER_EPOCH)
            .with_replica_nodes(vec![NODE_ID])
            .with_isr_nodes(vec![NODE_ID])
    };
    MetadataResponseTopic::default()
        .with_name(Some(kafka_name(topic.name())))
        .with_topic_id(topic_uuid(topic.id()))
        .with_topic_authorized_operations(UNKNOWN_OPERATIONS)
        .with_partitions((0..topic.partition_count()).map(partition).collect())
}

/// A name as Kafka's structs have it.
pub(super) fn kafka_name(name: &TopicName) -> kafka_protocol::messages::TopicName {
    StrBytes::from_string(name.to_string()).into()
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn describe_cluster(node: &Node, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: DescribeClusterRequest = request.decode()?;
    let broker = DescribeClusterBroker::default()
        .with_broker_id(NODE_ID)
        .with_host(node.host.clone())
        .with_port(node.port);
    let mut body = DescribeClusterResponse::default()
        .with_cluster_id(StrBytes::from_static_str(CLUSTER_ID))
        .with_controller_id(NODE_ID)
        .with_endpoint_type(asked.endpoint_type)
        .with_cluster_authorized_operations(UNKNOWN_OPERATIONS)
        .with_brokers(vec![broker]);
    if asked.endpoint_type != BROKERS {
        body = DescribeClusterResponse::default()
            .with_error_code(code::INVALID_REQUEST)
            .with_endpoint_type(asked.endpoint_type)
            .with_error_message(Some(StrBytes::from_static_str(
                "there are no endpoints but those of brokers",
            )));
    }
    message(&request.head, &body)
}
