//! What this server is to Kafka's clients: the one node of a cluster, whose topics have ids.
//!
//! - **KAF-6**: a topic's id in Kafka is [`ID_PREFIX`] and the log's own id, which is never given twice in a data folder.

use std::collections::HashMap;
use std::sync::Arc;

use basalt_log::{Topic, TopicId};
use basalt_proto::TopicName;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;

use crate::config::Advertised;
use crate::connection::Connection;
use crate::error::ConnectionError;
use crate::shared::Shared;

/// Its number.
pub(super) const NODE_ID: BrokerId = BrokerId(0);
/// The cluster's name.
pub(super) const CLUSTER_ID: &str = "basalt";
/// There are no epochs.
pub(super) const NO_LEADER_EPOCH: i32 = -1;
/// What a topic's id begins with. Not zero: that id is nobody's.
const ID_PREFIX: [u8; 8] = *b"basalt\0\x01";

/// More than a client reads from at a time.
const MAX_KNOWN_IDS: usize = 4096;

/// Where clients find it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) host: StrBytes,
    pub(super) port: i32,
}

impl Node {
    /// As it is configured, or the address that the connection came in at, which its peer can reach for sure.
    ///
    /// # Errors
    /// When the socket does not know its own address.
    pub(super) fn of(connection: &Connection<'_>) -> Result<Self, ConnectionError> {
        let (host, port) = match &connection.shared.config.advertised {
            Some(Advertised { host, port }) => (host.clone(), *port),
            None => {
                let local = connection.stream.local_addr()?;
                (local.ip().to_canonical().to_string(), local.port())
            }
        };
        Ok(Self {
            host: StrBytes::from_string(host),
            port: i32::from(port),
        })
    }
}

/// A topic's id as Kafka has it; `U` is the 16 bytes' own type.
pub(super) fn topic_uuid<U: TryFrom<Vec<u8>> + Default>(id: TopicId) -> U {
    let mut bytes = ID_PREFIX.to_vec();
    bytes.extend_from_slice(&id.0.to_be_bytes());
    U::try_from(bytes).unwrap_or_default()
}

/// The log's id in a topic's id; `None` for one that no topic here ever had.
pub(super) fn topic_id(uuid: &[u8; 16]) -> Option<TopicId> {
    let (prefix, id) = uuid.split_at(ID_PREFIX.len());
    let id = id.first_chunk()?;
    (prefix == ID_PREFIX).then(|| TopicId(u64::from_be_bytes(*id)))
}

/// Names of topics that were asked for by id, of one connection.
#[derive(Debug, Default)]
pub(super) struct KnownIds {
    names: HashMap<[u8; 16], TopicName>,
}

impl KnownIds {
    /// As [`TopicsById::topic`] of `all`, which a request makes anew; without it for what was asked for before.
    pub(super) fn topic(
        &mut self,
        shared: &Shared,
        all: &mut TopicsById<'_>,
        uuid: &[u8; 16],
    ) -> Option<Arc<Topic>> {
        let known = self.names.get(uuid);
        let known = known.and_then(|name| shared.log.log().topic(name));
        if let Some(topic) = known.filter(|topic| topic_id(uuid) == Some(topic.id())) {
            return Some(topic);
        }
        let found = all.topic(uuid)?;
        if self.names.len() >= MAX_KNOWN_IDS {
            self.names.clear();
        }
        self.names.insert(*uuid, found.name().clone());
        Some(found)
    }
}

/// All topics by their ids, for one request: they are looked through once, when the first id is asked for.
#[derive(Debug)]
pub(super) struct TopicsById<'a> {
    shared: &'a Shared,
    topics: Option<HashMap<TopicId, Arc<Topic>>>,
}

impl<'a> TopicsById<'a> {
    pub(super) const fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            topics: None,
        }
    }

    /// The topic of that id.
    pub(super) fn topic(&mut self, uuid: &[u8; 16]) -> Option<Arc<Topic>> {
        let id = topic_id(uuid)?;
        let topics = self.topics.get_or_insert_with(|| {
            let topics = self.shared.log.log().topics().into_iter();
            topics.map(|topic| (topic.id(), topic)).collect()
        });
        topics.get(&id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_and_others_are_nobodys() {
        for id in [0, 1, u64::MAX] {
            let uuid: [u8; 16] = topic_uuid::<Vec<u8>>(TopicId(id)).try_into().unwrap();
            assert_eq!(topic_id(&uuid), Some(TopicId(id)));
        }
        assert_eq!(topic_id(&[0; 16]), None);
        assert_eq!(topic_id(&[0xFF; 16]), None);
    }
}
