//! A stable group as it is written down: its generation, its members, and what they were assigned.
//!
//! Big-endian; a text is its length in two bytes and itself, a blob the same with four bytes.
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
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, TryGetError};
use tokio::time::Instant;

use super::group::Group;
use super::member::{Member, Name};

const VERSION: u8 = 1;

/// Why bytes are no group.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadGroup {
    #[error("version {0}, {VERSION} is known")]
    Version(u8),
    #[error("{0}")]
    Short(#[from] TryGetError),
    #[error("{needed} bytes are needed, {available} are there")]
    Cut { needed: usize, available: usize },
    #[error("{0}")]
    Text(#[from] std::str::Utf8Error),
}

pub(super) fn encode(group: &Group) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_i32(group.generation);
    let protocol = group.protocol.clone().unwrap_or_default();
    for text in [&group.protocol_type, &Some(protocol.clone()), &group.leader] {
        put_text(&mut out, text.as_deref().unwrap_or_default());
    }
    out.put_u32(u32::try_from(group.members.len()).unwrap_or(u32::MAX));
    for (id, member) in &group.members {
        put_text(&mut out, id);
        put_text(&mut out, member.instance_id.as_deref().unwrap_or_default());
        put_text(&mut out, &member.client_id);
        put_text(&mut out, &member.client_host);
        for timeout in [member.session, member.rebalance] {
            out.put_u32(u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX));
        }
        put_blob(&mut out, &member.metadata(&protocol));
        put_blob(&mut out, &member.assignment);
    }
    out
}

/// The group as it was, whose members are heard of `now`.
pub(super) fn decode(bytes: &[u8], now: Instant) -> Result<Group, BadGroup> {
    let mut bytes = Bytes::copy_from_slice(bytes);
    let version = bytes.try_get_u8()?;
    if version != VERSION {
        return Err(BadGroup::Version(version));
    }
    let generation = bytes.try_get_i32()?;
    let protocol_type = take_text(&mut bytes)?;
    let protocol = take_text(&mut bytes)?;
    let leader = some(take_text(&mut bytes)?);
    let mut members = BTreeMap::new();
    for order in 0..u64::from(bytes.try_get_u32()?) {
        let id = take_text(&mut bytes)?;
        let member = Member {
            instance_id: some(take_text(&mut bytes)?),
            client_id: take_text(&mut bytes)?,
            client_host: take_text(&mut bytes)?,
            session: take_timeout(&mut bytes)?,
            rebalance: take_timeout(&mut bytes)?,
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

fn some(text: Name) -> Option<Name> {
    (!text.is_empty()).then_some(text)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // What came over the wire is no longer than that.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.put_u16(length);
    out.put_slice(&text.as_bytes()[..usize::from(length)]);
}

fn put_blob(out: &mut Vec<u8>, blob: &[u8]) {
    out.put_u32(u32::try_from(blob.len()).unwrap_or(u32::MAX));
    out.put_slice(blob);
}

fn take(bytes: &mut Bytes, needed: usize) -> Result<Bytes, BadGroup> {
    let available = bytes.len();
    match needed <= available {
        true => Ok(bytes.split_to(needed)),
        false => Err(BadGroup::Cut { needed, available }),
    }
}

fn take_text(bytes: &mut Bytes) -> Result<Name, BadGroup> {
    let length = usize::from(bytes.try_get_u16()?);
    Ok(std::str::from_utf8(&take(bytes, length)?)?.into())
}

fn take_blob(bytes: &mut Bytes) -> Result<Bytes, BadGroup> {
    let length = bytes.try_get_u32()? as usize;
    // Its own memory: all of a group would be kept for one blob otherwise.
    Ok(Bytes::copy_from_slice(&take(bytes, length)?))
}

fn take_timeout(bytes: &mut Bytes) -> Result<Duration, BadGroup> {
    Ok(Duration::from_millis(u64::from(bytes.try_get_u32()?)))
}
