//! Groups as operators see them, whatever their protocol.

use std::collections::{BTreeMap, HashMap};

use basalt_log::TopicId;
use basalt_proto::TopicName;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition;
use kafka_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use kafka_protocol::protocol::{Encodable, StrBytes};

use super::classic::{self, Phase};
use super::consumer::{self, Partitions};
use super::group::Group;
use super::identity::Name;

/// Kinds of groups, and the type of those whose members consume topics.
const CLASSIC: &str = "classic";
const CONSUMER: &str = "consumer";

/// A group as it is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct Described {
    /// In Kafka's words.
    pub(in crate::kafka) state: &'static str,
    pub(in crate::kafka) protocol_type: Name,
    pub(in crate::kafka) protocol: Name,
    pub(in crate::kafka) members: Vec<DescribedMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct DescribedMember {
    pub(in crate::kafka) member_id: Name,
    pub(in crate::kafka) instance_id: Option<Name>,
    pub(in crate::kafka) client_id: Name,
    pub(in crate::kafka) client_host: Name,
    pub(in crate::kafka) metadata: Bytes,
    pub(in crate::kafka) assignment: Bytes,
}

impl Described {
    /// Of a group that has committed offsets and no members.
    pub(in crate::kafka) fn empty() -> Self {
        Self::without_members("Empty")
    }

    /// Of a group that does not exist.
    pub(in crate::kafka) fn dead() -> Self {
        Self::without_members("Dead")
    }

    fn without_members(state: &'static str) -> Self {
        Self {
            state,
            protocol_type: Name::default(),
            protocol: Name::default(),
            members: Vec::new(),
        }
    }

    pub(super) fn of(group: &Group) -> Self {
        match group {
            Group::Classic(group) => Self::of_classic(group),
            Group::Consumer(group) => Self::of_consumers(group.describe(), &HashMap::new()),
        }
    }

    /// A group of the consumer protocol in the classic one's words, for operators whose tools know no other. Topics that have no name
    /// there are left out.
    pub(super) fn of_consumers(
        group: consumer::Described,
        names: &HashMap<TopicId, TopicName>,
    ) -> Self {
        let members = group.members.into_iter().map(|member| DescribedMember {
            metadata: subscription(&member.names),
            assignment: assignment(&member.assigned, names),
            member_id: member.member_id,
            instance_id: member.instance_id,
            client_id: member.client_id,
            client_host: member.client_host,
        });
        Self {
            state: group.state,
            protocol_type: CONSUMER.into(),
            protocol: group.assignor.into(),
            members: members.collect(),
        }
    }

    fn of_classic(group: &classic::Group) -> Self {
        let protocol = group.protocol.clone().unwrap_or_default();
        // What is not agreed on is not told.
        let is_stable = group.phase == Phase::Stable;
        let members = group.members.iter().map(|(id, member)| {
            let (metadata, assignment) = match is_stable {
                true => (member.metadata(&protocol), member.assignment.clone()),
                false => Default::default(),
            };
            DescribedMember {
                member_id: id.clone(),
                instance_id: member.instance_id.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                metadata,
                assignment,
            }
        });
        let members = members.collect();
        Self {
            state: state_name(group.phase),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            protocol: match is_stable {
                true => protocol,
                false => Name::default(),
            },
            members,
        }
    }
}

const fn state_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Empty => "Empty",
        Phase::Joining { .. } => "PreparingRebalance",
        Phase::Assigning { .. } => "CompletingRebalance",
        Phase::Stable => "Stable",
    }
}

/// What members of the classic protocol say of themselves, and are told, begins with its version.
const CLASSIC_VERSION: i16 = 0;

fn subscription(names: &[Name]) -> Bytes {
    let topics = names.iter();
    let topics = topics.map(|name| StrBytes::from_string(name.to_string()));
    encoded(&ConsumerProtocolSubscription::default().with_topics(topics.collect()))
}

fn assignment(assigned: &Partitions, names: &HashMap<TopicId, TopicName>) -> Bytes {
    let mut by_topic = BTreeMap::<_, Vec<_>>::new();
    for (topic, id) in assigned {
        if let Some(name) = names.get(topic) {
            by_topic.entry(name).or_default().push(id.cast_signed());
        }
    }
    let topics = by_topic.into_iter().map(|(name, ids)| {
        let name = StrBytes::from_string(name.to_string());
        TopicPartition::default()
            .with_topic(name.into())
            .with_partitions(ids)
    });
    encoded(&ConsumerProtocolAssignment::default().with_assigned_partitions(topics.collect()))
}

fn encoded(message: &impl Encodable) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(CLASSIC_VERSION);
    match message.encode(&mut out, CLASSIC_VERSION) {
        Ok(()) => out.freeze(),
        // Names and numbers always have a form; nothing is better than half of it.
        Err(_) => Bytes::new(),
    }
}

/// A group in a list of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kafka) struct Listed {
    /// Of the protocol: `classic` or `consumer`.
    pub(in crate::kafka) kind: &'static str,
    pub(in crate::kafka) protocol_type: Name,
    pub(in crate::kafka) state: &'static str,
}

impl Listed {
    pub(super) fn empty() -> Self {
        Self {
            kind: CLASSIC,
            protocol_type: Name::default(),
            state: state_name(Phase::Empty),
        }
    }

    pub(super) fn of(group: &Group) -> Self {
        match group {
            Group::Classic(group) => Self {
                kind: CLASSIC,
                protocol_type: group.protocol_type.clone().unwrap_or_default(),
                state: state_name(group.phase),
            },
            Group::Consumer(group) => Self {
                kind: CONSUMER,
                protocol_type: CONSUMER.into(),
                state: group.state(),
            },
        }
    }
}
