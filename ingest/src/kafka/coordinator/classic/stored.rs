//! A stable group of the classic protocol as it is written down: its generation, its members, and what they were assigned.
//!
//! As [`crate::kafka::stored`] has it:
//!
//! | field | |
//! |---|---|
//! | version | 1 byte: 1 |
//! | generation | 4 bytes |
//! | protocol type, protocol, leader | texts, the last one empty for none |
//! | members | their count in 4 bytes, and for each: |
//! | | id, instance (empty for none), client's name, client's host: texts |
//! | | session and rebalance timeouts in milliseconds: 4 bytes each |
//! | | what it said for the protocol, its assignment: blobs |

use std::collections::BTreeMap;

use bytes::{Buf, BufMut};
use tokio::time::Instant;

use super::Group;
use super::member::Member;
use crate::kafka::coordinator::identity::Name;
use crate::kafka::stored::{
    BadStored, open, put_blob, put_count, put_millis, put_text, take_blob, take_millis, take_text,
};

const VERSION: u8 = 1;

pub(super) fn encode(group: &Group) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_i32(group.generation);
    let protocol = group.protocol.clone().unwrap_or_default();
    for text in [&group.protocol_type, &Some(protocol.clone()), &group.leader] {
        put_text(&mut out, text.as_deref().unwrap_or_default());
    }
    put_count(&mut out, group.members.len());
    for (id, member) in &group.members {
        put_text(&mut out, id);
        put_text(&mut out, member.instance_id.as_deref().unwrap_or_default());
        put_text(&mut out, &member.client_id);
        put_text(&mut out, &member.client_host);
        put_millis(&mut out, member.session);
        put_millis(&mut out, member.rebalance);
        put_blob(&mut out, &member.metadata(&protocol));
        put_blob(&mut out, &member.assignment);
    }
    out
}

/// The group as it was, whose members are heard of `now`.
pub(in crate::kafka::coordinator) fn decode(
    bytes: &[u8],
    now: Instant,
) -> Result<Group, BadStored> {
    let mut bytes = open(bytes, VERSION)?;
    let generation = bytes.try_get_i32()?;
    let protocol_type = take_text(&mut bytes)?.into();
    let protocol: Name = take_text(&mut bytes)?.into();
    let leader = some(take_text(&mut bytes)?);
    let mut members = BTreeMap::new();
    for order in 0..u64::from(bytes.try_get_u32()?) {
        let id = take_text(&mut bytes)?.into();
        let member = Member {
            instance_id: some(take_text(&mut bytes)?),
            client_id: take_text(&mut bytes)?.into(),
            client_host: take_text(&mut bytes)?.into(),
            session: take_millis(&mut bytes)?,
            rebalance: take_millis(&mut bytes)?,
            protocols: vec![(protocol.clone(), take_blob(&mut bytes)?)],
            assignment: take_blob(&mut bytes)?,
            order,
            is_new: false,
            has_part: true,
            expires: now,
            join: None,
            sync: None,
        };
        members.insert(id, member);
    }
    let group = Group::restored(now, generation, protocol_type, protocol, leader, members);
    Ok(group)
}

fn some(text: String) -> Option<Name> {
    (!text.is_empty()).then(|| text.into())
}
