//! What members of groups ask: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. The rules are the coordinator's.

use std::time::Duration;

use basalt_proto::GroupName;
use bytes::Bytes;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::Waiting;
use super::coordinator::{Identity, Join, Joined, Name, Sync, Synced};
use super::error::code;
use super::request::{Head, Request};
use super::response::message;
use crate::connection::Connection;
use crate::error::Refusal;
use crate::shared::Shared;

/// Protocols a member may have: each is compared with every other member's.
const MAX_PROTOCOLS: usize = 32;
/// Bytes of a member's own names, at most: its client's is cut, another is refused.
pub(super) const MAX_NAME_BYTES: usize = 255;
/// The shortest that a rebalance waits for a member.
pub(super) const MIN_REBALANCE: Duration = Duration::from_secs(1);
/// From here on a member without an id is given one first.
const KNOWN_ID_FROM: i16 = 4;
/// From here on an answer may name no protocol.
const NO_PROTOCOL_FROM: i16 = 7;
/// From here on a leader can be told that nothing is to be assigned.
const SKIP_FROM: i16 = 9;
/// From here on several members can leave at once.
const LEAVING_MEMBERS_FROM: i16 = 3;

pub(super) fn name(text: &StrBytes) -> Name {
    Name::from(&**text)
}

pub(super) fn some_name(text: Option<&StrBytes>) -> Option<Name> {
    text.map(name)
}

pub(super) fn text(name: &Name) -> StrBytes {
    StrBytes::from_string(name.to_string())
}

fn some_text(name: Option<&Name>) -> Option<StrBytes> {
    name.map(text)
}

/// Its own memory: what is a slice of the request would keep all of it.
fn owned(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn millis(count: i32) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

/// The client's name and its host, as operators are told.
pub(super) fn client_of(connection: &Connection<'_>, request: &Request<'_>) -> (Name, Name) {
    let mut id = String::from_utf8_lossy(request.client_id).into_owned();
    id.truncate(id.floor_char_boundary(MAX_NAME_BYTES));
    let host = format!("/{}", connection.peer.ip().to_canonical());
    (id.into(), host.into())
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn join(
    connection: &Connection<'_>,
    request: &Request<'_>,
) -> Result<Waiting<'static>, Refusal> {
    let asked: JoinGroupRequest = request.decode()?;
    let head = request.head;
    let member_id = name(&asked.member_id);
    let refused = |error| joined_message(&head, Joined::refused(error, member_id.clone()));
    let Ok(group) = GroupName::new(&asked.group_id) else {
        return Ok(Waiting::done(refused(code::INVALID_GROUP_ID)?));
    };
    let instance = asked.group_instance_id.as_deref().unwrap_or_default();
    if asked.protocols.len() > MAX_PROTOCOLS || instance.len() > MAX_NAME_BYTES {
        return Ok(Waiting::done(refused(code::INVALID_REQUEST)?));
    }
    let (client_id, client_host) = client_of(connection, request);
    let session = millis(asked.session_timeout_ms);
    // The first version has none of its own.
    let rebalance = match asked.rebalance_timeout_ms {
        ..0 => session,
        timeout => millis(timeout),
    };
    let protocols = asked.protocols.iter();
    let join = Join {
        instance_id: some_name(asked.group_instance_id.as_ref()),
        client_id,
        client_host,
        session,
        rebalance: rebalance.max(MIN_REBALANCE),
        protocol_type: name(&asked.protocol_type),
        protocols: protocols
            .map(|one| (name(&one.name), owned(&one.metadata)))
            .collect(),
        needs_known_id: head.version >= KNOWN_ID_FROM,
        can_skip_assignment: head.version >= SKIP_FROM,
        member_id: member_id.clone(),
    };
    let instead = refused(code::NOT_COORDINATOR)?;
    let joined = connection.shared.coordinator.join(&group, join);
    let answer = async move {
        let lost = |_| Joined::refused(code::NOT_COORDINATOR, member_id);
        joined_message(&head, joined.await.unwrap_or_else(lost))
    };
    Ok(Waiting::new(answer, Some(instead)))
}

fn joined_message(head: &Head, joined: Joined) -> Result<Vec<u8>, Refusal> {
    let members = joined.members.into_iter().map(|member| {
        JoinGroupResponseMember::default()
            .with_member_id(text(&member.member_id))
            .with_group_instance_id(some_text(member.instance_id.as_ref()))
            .with_metadata(member.metadata)
    });
    let protocol = match some_text(joined.protocol.as_ref()) {
        None if head.version < NO_PROTOCOL_FROM => Some(StrBytes::new()),
        protocol => protocol,
    };
    let body = JoinGroupResponse::default()
        .with_error_code(joined.error)
        .with_generation_id(joined.generation)
        .with_protocol_type(some_text(joined.protocol_type.as_ref()))
        .with_protocol_name(protocol)
        .with_leader(text(&joined.leader))
        .with_skip_assignment(joined.skip_assignment)
        .with_member_id(text(&joined.member_id))
        .with_members(members.collect());
    message(head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn sync(shared: &Shared, request: &Request<'_>) -> Result<Waiting<'static>, Refusal> {
    let asked: SyncGroupRequest = request.decode()?;
    let head = request.head;
    let refused = |error| synced_message(&head, Synced::refused(error));
    let Ok(group) = GroupName::new(&asked.group_id) else {
        return Ok(Waiting::done(refused(code::INVALID_GROUP_ID)?));
    };
    let assignments = asked.assignments.iter();
    let sync = Sync {
        who: Identity {
            member_id: name(&asked.member_id),
            instance_id: some_name(asked.group_instance_id.as_ref()),
            generation: asked.generation_id,
        },
        protocol_type: some_name(asked.protocol_type.as_ref()),
        protocol: some_name(asked.protocol_name.as_ref()),
        assignments: assignments
            .map(|one| (name(&one.member_id), owned(&one.assignment)))
            .collect(),
    };
    let instead = refused(code::NOT_COORDINATOR)?;
    let synced = shared.coordinator.sync(&group, sync);
    let answer = async move {
        let lost = |_| Synced::refused(code::NOT_COORDINATOR);
        synced_message(&head, synced.await.unwrap_or_else(lost))
    };
    Ok(Waiting::new(answer, Some(instead)))
}

fn synced_message(head: &Head, synced: Synced) -> Result<Vec<u8>, Refusal> {
    let body = SyncGroupResponse::default()
        .with_error_code(synced.error)
        .with_protocol_type(some_text(synced.protocol_type.as_ref()))
        .with_protocol_name(some_text(synced.protocol.as_ref()))
        .with_assignment(synced.assignment);
    message(head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn heartbeat(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: HeartbeatRequest = request.decode()?;
    let who = Identity {
        member_id: name(&asked.member_id),
        instance_id: some_name(asked.group_instance_id.as_ref()),
        generation: asked.generation_id,
    };
    let group = GroupName::new(&asked.group_id).map_err(|_| code::INVALID_GROUP_ID);
    let heard = group.and_then(|group| shared.coordinator.heartbeat(&group, &who));
    let error = heard.err().unwrap_or(code::NONE);
    message(
        &request.head,
        &HeartbeatResponse::default().with_error_code(error),
    )
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn leave(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: LeaveGroupRequest = request.decode()?;
    let group = GroupName::new(&asked.group_id).map_err(|_| code::INVALID_GROUP_ID);
    let leave = |members: &[(Name, Option<Name>)]| match &group {
        Ok(group) => shared.coordinator.leave(group, members),
        Err(code) => vec![Err(*code); members.len()],
    };
    let body = if request.head.version < LEAVING_MEMBERS_FROM {
        let left = leave(&[(name(&asked.member_id), None)]);
        let error = left.into_iter().find_map(Result::err);
        LeaveGroupResponse::default().with_error_code(error.unwrap_or(code::NONE))
    } else {
        let members = asked.members.iter().map(|member| {
            let instance = some_name(member.group_instance_id.as_ref());
            (name(&member.member_id), instance)
        });
        let left = leave(&members.collect::<Vec<_>>());
        let members = asked.members.into_iter().zip(left).map(|(member, left)| {
            MemberResponse::default()
                .with_error_code(left.err().unwrap_or(code::NONE))
                .with_member_id(member.member_id)
                .with_group_instance_id(member.group_instance_id)
        });
        let members = members.collect();
        let whole = group.as_ref().err().copied().unwrap_or(code::NONE);
        LeaveGroupResponse::default()
            .with_error_code(whole)
            .with_members(members)
    };
    message(&request.head, &body)
}
