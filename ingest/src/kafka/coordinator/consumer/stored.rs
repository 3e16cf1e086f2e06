//! A group of the consumer protocol as it is written down, at any time: its epoch, and where each member is on its way.
//!
//! As [`crate::kafka::stored`] has it:
//!
//! | field | |
//! |---|---|
//! | version | 1 byte: 2 |
//! | the group's epoch | 4 bytes |
//! | whether the next one is due | 1 byte: 0 or 1 |
//! | the topics that are assigned | their count in 4 bytes, and for each its id in 8 bytes and its partitions' count in 4 |
//! | members | their count in 4 bytes, and for each: |
//! | | id, instance, rack, client's name, client's host, pattern, assignor: texts, empty for none |
//! | | time to give up partitions in milliseconds: 4 bytes |
//! | | names of topics: their count in 4 bytes, texts |
//! | | epoch, the one before: 4 bytes each |
//! | | state: 1 byte, of which bits 0 and 1 are 0 stable, 1 unrevoked, 2 unreleased, and bit 2 is set while it is away |
//! | | what it has, what it is to give up, what it is to have: partitions |
//!
//! Partitions are the count of topics in 4 bytes, and for each its id in 8 bytes, the count of its partitions and their numbers in 4
//! bytes each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use basalt_log::TopicId;
use bytes::{Buf, BufMut, Bytes};
use tokio::time::Instant;

use super::assign::Assignor;
use super::member::{Member, Pattern, State};
use super::{Group, Partitions};
use crate::kafka::coordinator::identity::Name;
use crate::kafka::stored::{
    BadStored, open, put_count, put_millis, put_text, take_millis, take_text,
};

pub(in crate::kafka::coordinator) const VERSION: u8 = 2;

const STATES: [State; 3] = [State::Stable, State::Unrevoked, State::Unreleased];
const STATE_BITS: u8 = 0b11;
const IS_AWAY: u8 = 0b100;

pub(super) fn encode(group: &Group) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_i32(group.epoch);
    out.put_u8(u8::from(group.is_reassignment_due));
    put_count(&mut out, group.topics.len());
    for (topic, count) in &group.topics {
        out.put_u64(topic.0);
        out.put_u32(*count);
    }
    put_count(&mut out, group.members.len());
    for (id, member) in &group.members {
        let pattern = member.pattern.as_ref().map(|pattern| &pattern.text);
        put_text(&mut out, id);
        put_text(&mut out, member.instance_id.as_deref().unwrap_or_default());
        put_text(&mut out, member.rack_id.as_deref().unwrap_or_default());
        put_text(&mut out, &member.client_id);
        put_text(&mut out, &member.client_host);
        put_text(&mut out, pattern.map_or("", |text| text));
        put_text(&mut out, member.assignor.map_or("", Assignor::name));
        put_millis(&mut out, member.rebalance);
        put_count(&mut out, member.names.len());
        member
            .names
            .iter()
            .for_each(|name| put_text(&mut out, name));
        out.put_i32(member.epoch);
        out.put_i32(member.previous_epoch);
        let state = match member.state {
            State::Stable => 0,
            State::Unrevoked => 1,
            State::Unreleased => 2,
        };
        out.put_u8(state | if member.is_away { IS_AWAY } else { 0 });
        for parts in [&member.assigned, &member.revoking, &member.target] {
            put_partitions(&mut out, parts);
        }
    }
    out
}

fn put_partitions(out: &mut Vec<u8>, parts: &Partitions) {
    let mut by_topic = BTreeMap::<TopicId, Vec<u32>>::new();
    for (topic, id) in parts {
        by_topic.entry(*topic).or_default().push(*id);
    }
    put_count(out, by_topic.len());
    for (topic, ids) in by_topic {
        out.put_u64(topic.0);
        put_count(out, ids.len());
        ids.into_iter().for_each(|id| out.put_u32(id));
    }
}

fn take_partitions(bytes: &mut Bytes) -> Result<Partitions, BadStored> {
    let mut parts = Partitions::new();
    for _ in 0..bytes.try_get_u32()? {
        let topic = TopicId(bytes.try_get_u64()?);
        for _ in 0..bytes.try_get_u32()? {
            parts.insert((topic, bytes.try_get_u32()?));
        }
    }
    Ok(parts)
}

/// The group as it was, whose members are heard of `now`, and may be silent for `session` from then on.
pub(in crate::kafka::coordinator) fn decode(
    bytes: &[u8],
    now: Instant,
    session: Duration,
) -> Result<Group, BadStored> {
    let mut bytes = open(bytes, VERSION)?;
    let mut group = Group::new(session);
    group.epoch = bytes.try_get_i32()?;
    group.is_reassignment_due = bytes.try_get_u8()? != 0;
    for _ in 0..bytes.try_get_u32()? {
        let topic = TopicId(bytes.try_get_u64()?);
        group.topics.insert(topic, bytes.try_get_u32()?);
    }
    for _ in 0..bytes.try_get_u32()? {
        let id: Name = take_text(&mut bytes)?.into();
        let member = take_member(&mut bytes, now, session)?;
        group.insert(&id, member);
    }
    Ok(group)
}

fn take_member(bytes: &mut Bytes, now: Instant, session: Duration) -> Result<Member, BadStored> {
    let instance_id = some(take_text(bytes)?);
    let rack_id = some(take_text(bytes)?);
    let client_id = take_text(bytes)?.into();
    let client_host = take_text(bytes)?.into();
    let pattern = take_text(bytes)?.into();
    let assignor = take_text(bytes)?;
    let rebalance = take_millis(bytes)?;
    let mut names = BTreeSet::new();
    for _ in 0..bytes.try_get_u32()? {
        names.insert(take_text(bytes)?.into());
    }
    let epoch = bytes.try_get_i32()?;
    let previous_epoch = bytes.try_get_i32()?;
    let flags = bytes.try_get_u8()?;
    let state = STATES.get(usize::from(flags & STATE_BITS)).copied();
    let state = state.ok_or(BadStored::State(flags))?;
    Ok(Member {
        instance_id,
        rack_id,
        client_id,
        client_host,
        rebalance,
        names: Arc::new(names),
        // One that is none any more, in a newer version, matches nothing.
        pattern: Pattern::new(&pattern).unwrap_or_default(),
        assignor: Assignor::named(&assignor),
        epoch,
        previous_epoch,
        state,
        assigned: take_partitions(bytes)?,
        revoking: take_partitions(bytes)?,
        target: take_partitions(bytes)?,
        is_away: flags & IS_AWAY != 0,
        topics: Arc::default(),
        expires: now + session,
        revoke_until: (state == State::Unrevoked).then(|| now + rebalance),
        changed_in: 0,
        is_untold: false,
    })
}

fn some(text: String) -> Option<Name> {
    (!text.is_empty()).then(|| text.into())
}
