//! What members of groups of the consumer protocol (KIP-848) ask, and operators of them: ConsumerGroupHeartbeat,
//! ConsumerGroupDescribe. The rules are the coordinator's.

use std::sync::Arc;
use std::time::Duration;

use basalt_proto::GroupName;
use kafka_protocol::messages::consumer_group_describe_response::{
    self as described, DescribedGroup, Member,
};
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::Waiting;
use super::coordinator::{Assignor, Beat, DescribedConsumers, Partitions, Pattern, Told};
use super::error::{Failure, code};
use super::membership::{MAX_NAME_BYTES, MIN_REBALANCE, client_of, name, some_name, text};
use super::node::{TopicsById, topic_id, topic_uuid};
use super::request::{Head, Request};
use super::response::message;
use crate::connection::Connection;
use crate::error::Refusal;
use crate::shared::Shared;

/// The lowest epoch: of a static member that leaves and will be back.
const MIN_EPOCH: i32 = -2;
/// Of members of the consumer protocol.
const CONSUMER_MEMBER: i8 = 1;

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn heartbeat(
    connection: &Connection<'_>,
    request: &Request<'_>,
) -> Result<Waiting<'static>, Refusal> {
    let asked: ConsumerGroupHeartbeatRequest = request.decode()?;
    let head = request.head;
    let limits = &connection.shared.config.groups;
    let interval = i32::try_from(limits.consumer_heartbeat.as_millis()).unwrap_or(i32::MAX);
    let member_id = asked.member_id.clone();
    let told = move |told| heartbeat_message(&head, interval, member_id.clone(), told);
    let group = match check(&asked) {
        Ok(group) => group,
        Err(failure) => return Ok(Waiting::done(told(Err(failure))?)),
    };
    let owned = asked.topic_partitions.as_ref().map(|topics| {
        let parts = topics.iter().flat_map(|topic| {
            // What no topic here ever had nobody has.
            let id = topic_id(topic.topic_id.as_bytes());
            let parts = topic.partitions.iter();
            parts.filter_map(move |part| Some((id?, u32::try_from(*part).ok()?)))
        });
        parts.collect()
    });
    let said = asked.subscribed_topic_regex.as_ref();
    // Compiled here, where nobody waits for it.
    let pattern = match said.map(|text| Pattern::new(&name(text))).transpose() {
        Ok(pattern) => pattern,
        Err(failure) => return Ok(Waiting::done(told(Err(failure))?)),
    };
    let assignor = match asked.server_assignor.as_deref().map(assignor).transpose() {
        Ok(assignor) => assignor,
        Err(failure) => return Ok(Waiting::done(told(Err(failure))?)),
    };
    let names = asked.subscribed_topic_names.as_ref();
    let names = names.map(|names| Arc::new(names.iter().map(|topic| name(topic)).collect()));
    let rebalance = u64::try_from(asked.rebalance_timeout_ms).ok();
    let (client_id, client_host) = client_of(connection, request);
    let beat = Beat {
        member_id: name(&asked.member_id),
        epoch: asked.member_epoch,
        instance_id: some_name(asked.instance_id.as_ref()),
        rack_id: some_name(asked.rack_id.as_ref()),
        client_id,
        client_host,
        rebalance: rebalance.map(|ms| Duration::from_millis(ms).max(MIN_REBALANCE)),
        names,
        pattern,
        assignor,
        owned,
    };
    let gone = || {
        let message = "the server is stopping";
        Failure::new(code::NOT_COORDINATOR, message)
    };
    let instead = told(Err(gone()))?;
    let beaten = connection.shared.coordinator.beat(&group, &beat);
    let answer = async move { told(beaten.await.unwrap_or_else(|_| Err(gone()))) };
    Ok(Waiting::new(answer, Some(instead)))
}

fn assignor(name: &str) -> Result<Assignor, Failure> {
    Assignor::named(name).ok_or_else(|| {
        let known = Assignor::ALL.map(Assignor::name).join(", ");
        let message = format!("there is no assignor {name:?}; there are {known}");
        Failure::new(code::UNSUPPORTED_ASSIGNOR, message)
    })
}

/// Whether a heartbeat says what one must, and nothing that one cannot.
fn check(asked: &ConsumerGroupHeartbeatRequest) -> Result<GroupName, Failure> {
    let group = GroupName::new(&asked.group_id);
    let group = group.map_err(|error| Failure::new(code::INVALID_GROUP_ID, error.to_string()))?;
    let invalid = |message: &str| Err(Failure::new(code::INVALID_REQUEST, message));
    let is_long = |text: &Option<StrBytes>| text.as_ref().is_some_and(|t| t.len() > MAX_NAME_BYTES);
    let is_blank = |text: &Option<StrBytes>| text.as_ref().is_some_and(|t| t.trim().is_empty());
    if asked.member_id.is_empty() || asked.member_id.len() > MAX_NAME_BYTES {
        return invalid("a member needs an id of its own making, of at most 255 bytes");
    }
    if is_long(&asked.instance_id) || is_long(&asked.rack_id) || is_long(&asked.server_assignor) {
        return invalid("names are of at most 255 bytes");
    }
    if is_blank(&asked.instance_id) || is_blank(&asked.rack_id) || is_blank(&asked.server_assignor)
    {
        return invalid("names that are given must not be empty");
    }
    match asked.member_epoch {
        ..MIN_EPOCH => invalid("an epoch is -2 or more"),
        MIN_EPOCH if asked.instance_id.is_none() => {
            invalid("only a static member, which has an instance id, may go for a while")
        }
        0 if asked.rebalance_timeout_ms < 0 => invalid("whoever joins says its rebalance timeout"),
        0 if !asked.topic_partitions.as_ref().is_some_and(Vec::is_empty) => {
            invalid("whoever joins has no partitions, and says so")
        }
        0 if asked.subscribed_topic_names.is_none() && asked.subscribed_topic_regex.is_none() => {
            invalid("whoever joins says what it subscribes to")
        }
        _ => Ok(group),
    }
}

fn heartbeat_message(
    head: &Head,
    interval: i32,
    member_id: StrBytes,
    told: Told,
) -> Result<Vec<u8>, Refusal> {
    let body = ConsumerGroupHeartbeatResponse::default().with_heartbeat_interval_ms(interval);
    let body = match told {
        Ok(beaten) => {
            let assignment = beaten.assignment.map(|parts| {
                let topics = by_topic(&parts).into_iter().map(|(topic, ids)| {
                    TopicPartitions::default()
                        .with_topic_id(topic_uuid(topic))
                        .with_partitions(ids)
                });
                Assignment::default().with_topic_partitions(topics.collect())
            });
            body.with_member_id(Some(member_id))
                .with_member_epoch(beaten.epoch)
                .with_assignment(assignment)
        }
        Err(failure) => body
            .with_heartbeat_interval_ms(0)
            .with_error_code(failure.code)
            .with_error_message(Some(StrBytes::from_string(failure.message))),
    };
    message(head, &body)
}

fn by_topic(parts: &Partitions) -> Vec<(basalt_log::TopicId, Vec<i32>)> {
    let mut topics: Vec<(_, Vec<_>)> = Vec::new();
    for (topic, id) in parts {
        let id = id.cast_signed();
        match topics.last_mut() {
            Some((last, ids)) if last == topic => ids.push(id),
            _ => topics.push((*topic, vec![id])),
        }
    }
    topics
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn describe<'a>(
    shared: &'a Shared,
    request: &Request<'_>,
) -> Result<Waiting<'a>, Refusal> {
    let asked: ConsumerGroupDescribeRequest = request.decode()?;
    let head = request.head;
    let answer = async move {
        let mut named = std::collections::BTreeSet::new();
        // Each once: what a group has is told in full for each time that it is named.
        let ids = asked.group_ids.into_iter();
        let ids = ids.filter(|id| named.insert(id.clone()));
        let mut topics = TopicsById::new(shared);
        let groups = ids.map(|id| {
            let failed = |failure: Failure| {
                DescribedGroup::default()
                    .with_group_id(id.clone())
                    .with_error_code(failure.code)
                    .with_error_message(Some(StrBytes::from_string(failure.message)))
            };
            let Ok(name) = GroupName::new(&id) else {
                let message = format!("{:?} is no name of a group", &**id);
                return failed(Failure::new(code::INVALID_GROUP_ID, message));
            };
            match shared.coordinator.describe_consumers(&name) {
                Some(group) => described(&mut topics, group).with_group_id(id),
                // Clients ask DescribeGroups then.
                None => failed(Failure::new(
                    code::GROUP_ID_NOT_FOUND,
                    format!("{name} is no group of the consumer protocol with members"),
                )),
            }
        });
        let body = ConsumerGroupDescribeResponse::default().with_groups(groups.collect());
        message(&head, &body)
    };
    Ok(Waiting::new(answer, None))
}

fn described(topics: &mut TopicsById<'_>, group: DescribedConsumers) -> DescribedGroup {
    let mut assignment = |parts: &Partitions| {
        let topics = by_topic(parts).into_iter().filter_map(|(topic, ids)| {
            let uuid = topic_uuid::<Vec<u8>>(topic).try_into().ok()?;
            // One that was deleted has no name.
            let name = topics.topic(&uuid)?.name().to_string();
            let topic = described::TopicPartitions::default()
                .with_topic_id(topic_uuid(topic))
                .with_topic_name(StrBytes::from_string(name).into())
                .with_partitions(ids);
            Some(topic)
        });
        described::Assignment::default().with_topic_partitions(topics.collect())
    };
    let members = group.members.into_iter().map(|member| {
        let names = member.names.iter().map(|name| text(name).into());
        Member::default()
            .with_member_id(text(&member.member_id))
            .with_instance_id(member.instance_id.as_ref().map(text))
            .with_rack_id(member.rack_id.as_ref().map(text))
            .with_member_epoch(member.epoch)
            .with_client_id(text(&member.client_id))
            .with_client_host(text(&member.client_host))
            .with_subscribed_topic_names(names.collect())
            .with_subscribed_topic_regex(member.pattern.as_ref().map(text))
            .with_assignment(assignment(&member.assigned))
            .with_target_assignment(assignment(&member.target))
            .with_member_type(CONSUMER_MEMBER)
    });
    DescribedGroup::default()
        .with_group_state(StrBytes::from_static_str(group.state))
        .with_group_epoch(group.epoch)
        .with_assignment_epoch(group.epoch)
        .with_assignor_name(StrBytes::from_static_str(group.assignor))
        .with_members(members.collect())
}
