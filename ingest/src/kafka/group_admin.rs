//! What operators ask of groups: ListGroups, DescribeGroups, DeleteGroups, OffsetDelete. Told and done when what came before on the
//! connection is.

use basalt_log::Change;
use basalt_proto::{GroupName, PartitionId, TopicName};
use futures::future::join_all;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    ListGroupsRequest, ListGroupsResponse, OffsetDeleteRequest, OffsetDeleteResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::Waiting;
use super::coordinator::Described;
use super::error::{code, of_commit};
use super::membership::text;
use super::request::Request;
use super::response::message;
use crate::error::Refusal;
use crate::shared::Shared;

/// The type of groups whose members consume topics.
const CONSUMER: &str = "consumer";

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn list<'a>(shared: &'a Shared, request: &Request<'_>) -> Result<Waiting<'a>, Refusal> {
    let asked: ListGroupsRequest = request.decode()?;
    let head = request.head;
    let answer = async move {
        let wanted = |filter: &[StrBytes], is: &str| {
            filter.is_empty() || filter.iter().any(|one| one.eq_ignore_ascii_case(is))
        };
        let groups = shared.coordinator.list().into_iter();
        let groups = groups.filter(|(_, group)| {
            wanted(&asked.states_filter, group.state) && wanted(&asked.types_filter, group.kind)
        });
        let groups = groups.map(|(name, group)| {
            ListedGroup::default()
                .with_group_id(StrBytes::from_string(name.to_string()).into())
                .with_protocol_type(text(&group.protocol_type))
                .with_group_state(StrBytes::from_static_str(group.state))
                .with_group_type(StrBytes::from_static_str(group.kind))
        });
        let body = ListGroupsResponse::default().with_groups(groups.collect());
        message(&head, &body)
    };
    Ok(Waiting::new(answer, None))
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn describe<'a>(
    shared: &'a Shared,
    request: &Request<'_>,
) -> Result<Waiting<'a>, Refusal> {
    let asked: DescribeGroupsRequest = request.decode()?;
    let head = request.head;
    let answer = async move {
        let mut named = std::collections::BTreeSet::new();
        // Each once: what a group has is told in full for each time that it is named.
        let groups = asked
            .groups
            .into_iter()
            .filter(|id| named.insert(id.clone()));
        let groups = groups.map(|id| {
            let (error, described) = match GroupName::new(&id) {
                Ok(name) => (code::NONE, shared.coordinator.describe(&name)),
                Err(_) => (code::INVALID_GROUP_ID, Described::dead()),
            };
            let members = described.members.into_iter().map(|member| {
                DescribedGroupMember::default()
                    .with_member_id(text(&member.member_id))
                    .with_group_instance_id(member.instance_id.as_ref().map(text))
                    .with_client_id(text(&member.client_id))
                    .with_client_host(text(&member.client_host))
                    .with_member_metadata(member.metadata)
                    .with_member_assignment(member.assignment)
            });
            DescribedGroup::default()
                .with_error_code(error)
                .with_group_id(id)
                .with_group_state(StrBytes::from_static_str(described.state))
                .with_protocol_type(text(&described.protocol_type))
                .with_protocol_data(text(&described.protocol))
                .with_members(members.collect())
        });
        let body = DescribeGroupsResponse::default().with_groups(groups.collect());
        message(&head, &body)
    };
    Ok(Waiting::new(answer, None))
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn delete<'a>(
    shared: &'a Shared,
    request: &Request<'_>,
) -> Result<Waiting<'a>, Refusal> {
    let asked: DeleteGroupsRequest = request.decode()?;
    let head = request.head;
    let answer = async move {
        // All at a time: they share a sync.
        let results = join_all(asked.groups_names.into_iter().map(async |id| {
            let deleted = async {
                let name = GroupName::new(&id).map_err(|_| code::INVALID_GROUP_ID)?;
                let pending = shared.coordinator.delete(&name)?;
                durable(shared, pending).await
            };
            let error = deleted.await.err().unwrap_or(code::NONE);
            DeletableGroupResult::default()
                .with_group_id(id)
                .with_error_code(error)
        }));
        let body = DeleteGroupsResponse::default().with_results(results.await);
        message(&head, &body)
    };
    Ok(Waiting::new(answer, None))
}

async fn durable(shared: &Shared, pending: basalt_log::Pending) -> Result<(), i16> {
    pending.durable().await.map_err(|error| {
        let refusal = Refusal::from(error);
        shared.counters.refuse(refusal.kind, 1);
        of_commit(refusal.kind)
    })
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn delete_offsets<'a>(
    shared: &'a Shared,
    request: &Request<'_>,
) -> Result<Waiting<'a>, Refusal> {
    let asked: OffsetDeleteRequest = request.decode()?;
    let head = request.head;
    let answer = async move {
        let whole = |error| OffsetDeleteResponse::default().with_error_code(error);
        let Ok(name) = GroupName::new(&asked.group_id) else {
            return message(&head, &whole(code::INVALID_GROUP_ID));
        };
        let mut forgotten = Vec::new();
        let mut topics = Vec::new();
        for topic in asked.topics {
            let known = TopicName::new(&topic.name).ok();
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition_index;
                let error = match known.clone().zip(u32::try_from(index).ok()) {
                    None => code::UNKNOWN_TOPIC_OR_PARTITION,
                    Some((name, id)) => {
                        forgotten.push((name, PartitionId(id)));
                        code::NONE
                    }
                };
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(error)
            });
            let partitions = partitions.collect();
            let topic = OffsetDeleteResponseTopic::default().with_name(topic.name);
            topics.push(topic.with_partitions(partitions));
        }
        let forgotten = shared.coordinator.forget(&name, Change::Forget(forgotten));
        let body = match forgotten {
            Ok(pending) => match durable(shared, pending).await {
                Ok(()) => OffsetDeleteResponse::default().with_topics(topics),
                Err(error) => whole(error),
            },
            // What its members are subscribed to is theirs to say, and not looked into: a group that consumes keeps all it has.
            Err(described) if &*described.protocol_type == CONSUMER => {
                let partitions = topics.iter_mut().flat_map(|topic| &mut topic.partitions);
                partitions.for_each(|one| one.error_code = code::GROUP_SUBSCRIBED_TO_TOPIC);
                OffsetDeleteResponse::default().with_topics(topics)
            }
            Err(described) if described == Described::dead() => whole(code::GROUP_ID_NOT_FOUND),
            Err(_) => whole(code::NON_EMPTY_GROUP),
        };
        message(&head, &body)
    };
    Ok(Waiting::new(answer, None))
}
