//! What a session asks.

use super::{Fields, SessionError, seal};
use crate::wire::{head, put_name};
use crate::{GroupName, Offset, PartitionId, TopicName};

/// The end offset of a fetch that has none.
pub const NO_END_OFFSET: Offset = Offset(u64::MAX);
/// The [`Request::Options::max_queue_wait_ms`] of a producer that waits as long as it takes.
pub const NO_MAX_QUEUE_WAIT: u32 = u32::MAX;

const PRODUCE: u8 = 1;
const FETCH: u8 = 2;
const LIST_OFFSETS: u8 = 3;
const METADATA: u8 = 4;
const COMMIT: u8 = 5;
const COMMITTED: u8 = 6;
const CREATE_TOPIC: u8 = 7;
const DELETE_TOPIC: u8 = 8;
const ALTER_TOPIC: u8 = 9;
const COOL_TOPIC: u8 = 10;
const GROUPS: u8 = 11;
const PING: u8 = 12;
const OPTIONS: u8 = 13;
const SEEK: u8 = 14;
const ADD_PARTITIONS: u8 = 15;
const AUTHENTICATE: u8 = 16;

/// Configuration as keys and values, in the sender's order. Keys are at most 255 bytes, values 65,535.
pub type ConfigPairs = Vec<(String, String)>;

/// When a produce request is answered. The weaker the level, the more an acknowledged record may still be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum AckLevel {
    /// Not at all: there is no response, not even to say that it failed.
    None = 0,
    /// Once the frames are in the server's page cache. Survives the server, not the machine.
    Os = 1,
    /// Once they are on disk.
    Fsync = 2,
    /// As the topic is configured, which is `fsync` unless somebody chose otherwise.
    #[default]
    TopicDefault = 255,
}

impl AckLevel {
    /// The level of a byte from the wire.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Os),
            2 => Some(Self::Fsync),
            255 => Some(Self::TopicDefault),
            _ => None,
        }
    }
}

/// Where reading starts. On the wire: u8 0 to 3, then u64 (0 where it means nothing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// At this offset.
    Offset(Offset),
    /// At the log start.
    Earliest,
    /// At the high watermark: only what comes from now on.
    Latest,
    /// At the first record whose timestamp (ns) is this or later.
    Timestamp(u64),
}

/// Store these frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProduceRequest<'a> {
    /// Where to.
    pub topic: TopicName,
    /// Which partition.
    pub partition: PartitionId,
    /// When to answer.
    pub ack: AckLevel,
    /// Whole frames, not yet checked: see [`crate::FrameBatch::parse`]. All are stored, or none.
    pub frames: &'a [u8],
}

/// Send frames, waiting for them if there are none yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// Where from.
    pub topic: TopicName,
    /// Which partition.
    pub partition: PartitionId,
    /// From where in it.
    pub start: Start,
    /// Send at most as much, but never less than one frame.
    pub max_bytes: u32,
    /// Wait until there is as much; 0 answers at once.
    pub min_bytes: u32,
    /// But do not wait longer.
    pub max_wait_ms: u32,
    /// Send nothing from this offset on; [`NO_END_OFFSET`] for everything.
    pub end_offset: Offset,
}

/// Where a start lies, and when the record there was stamped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOffsetsRequest {
    /// In which topic.
    pub topic: TopicName,
    /// In which partition.
    pub partition: PartitionId,
    /// What to look for.
    pub start: Start,
}

/// A request of any kind. The doc of each names its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// 1 -> [`super::ProduceResponse`], or none with [`AckLevel::None`].
    Produce(ProduceRequest<'a>),
    /// 2 -> [`super::FetchResponseHeader`] and frames.
    Fetch(FetchRequest),
    /// 3 -> [`super::ListOffsetsResponse`].
    ListOffsets(ListOffsetsRequest),
    /// 4 -> [`super::MetadataResponse`].
    Metadata {
        /// Of these topics; empty means all.
        topics: Vec<TopicName>,
    },
    /// 5 -> [`super::EmptyResponse`], once durable: the group will resume at this offset.
    Commit {
        /// Whose.
        group: GroupName,
        /// Of which topic.
        topic: TopicName,
        /// Which partition.
        partition: PartitionId,
        /// The next offset to read.
        offset: Offset,
    },
    /// 14 -> [`super::EmptyResponse`], once durable: as [`Self::Commit`], and members of the group that agree among themselves
    /// who reads what have to join again, so that they read from there.
    Seek {
        /// Whose.
        group: GroupName,
        /// Of which topic.
        topic: TopicName,
        /// Which partition.
        partition: PartitionId,
        /// The next offset to read.
        offset: Offset,
    },
    /// 6 -> [`super::CommittedResponse`].
    Committed {
        /// Whose.
        group: GroupName,
        /// Of which topic.
        topic: TopicName,
        /// Which partition.
        partition: PartitionId,
    },
    /// 7 -> [`super::EmptyResponse`].
    CreateTopic {
        /// Its name.
        topic: TopicName,
        /// How many partitions.
        partitions: u32,
        /// What differs from the defaults.
        config: ConfigPairs,
    },
    /// 8 -> [`super::EmptyResponse`].
    DeleteTopic {
        /// Its name.
        topic: TopicName,
    },
    /// 9 -> [`super::EmptyResponse`].
    AlterTopic {
        /// Its name.
        topic: TopicName,
        /// What changes; an empty value goes back to the default.
        config: ConfigPairs,
    },
    /// 15 -> [`super::EmptyResponse`].
    AddPartitions {
        /// The topic's name.
        topic: TopicName,
        /// How many it has then: more than before.
        partitions: u32,
    },
    /// 10 -> [`super::CoolTopicResponse`].
    CoolTopic {
        /// Its name.
        topic: TopicName,
        /// Whether to answer only when all of it is cold.
        wait: bool,
    },
    /// 11 -> [`super::GroupsResponse`].
    Groups {
        /// This one only; `None` means all. On the wire, an empty name.
        group: Option<GroupName>,
    },
    /// 12 -> [`super::EmptyResponse`].
    Ping,
    /// 13 -> [`super::EmptyResponse`]: how the requests behind it on this connection are served.
    Options {
        /// How long a produce request may wait for memory and for the disk before it is refused as busy, and not stored;
        /// [`NO_MAX_QUEUE_WAIT`] never refuses, which is where every connection begins.
        max_queue_wait_ms: u32,
    },
    /// 16 -> [`super::AuthenticateResponse`]: a step of a SASL exchange (RFC 4422), before any other request.
    Authenticate {
        /// Of the SASL registry, the same one in each step of an exchange; at most 255 bytes.
        mechanism: &'a str,
        /// The client's message.
        message: &'a [u8],
    },
}

impl<'a> Request<'a> {
    /// The byte in the header.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Produce(_) => PRODUCE,
            Self::Fetch(_) => FETCH,
            Self::ListOffsets(_) => LIST_OFFSETS,
            Self::Metadata { .. } => METADATA,
            Self::Commit { .. } => COMMIT,
            Self::Committed { .. } => COMMITTED,
            Self::CreateTopic { .. } => CREATE_TOPIC,
            Self::DeleteTopic { .. } => DELETE_TOPIC,
            Self::AlterTopic { .. } => ALTER_TOPIC,
            Self::AddPartitions { .. } => ADD_PARTITIONS,
            Self::CoolTopic { .. } => COOL_TOPIC,
            Self::Groups { .. } => GROUPS,
            Self::Ping => PING,
            Self::Options { .. } => OPTIONS,
            Self::Seek { .. } => SEEK,
            Self::Authenticate { .. } => AUTHENTICATE,
        }
    }

    /// Reads the body of a request whose header had this `kind`.
    ///
    /// # Errors
    /// [`SessionError`] names the field and what is wrong with it. The connection can go on: the body's length is known.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let request = match kind {
            PRODUCE => Self::Produce(ProduceRequest {
                topic: fields.topic()?,
                partition: partition(&mut fields)?,
                ack: ack_level(&mut fields)?,
                frames: fields.rest(),
            }),
            FETCH => Self::Fetch(FetchRequest {
                topic: fields.topic()?,
                partition: partition(&mut fields)?,
                start: start(&mut fields)?,
                max_bytes: fields.u32("max_bytes")?,
                min_bytes: fields.u32("min_bytes")?,
                max_wait_ms: fields.u32("max_wait_ms")?,
                end_offset: Offset(fields.u64("end_offset")?),
            }),
            LIST_OFFSETS => Self::ListOffsets(ListOffsetsRequest {
                topic: fields.topic()?,
                partition: partition(&mut fields)?,
                start: start(&mut fields)?,
            }),
            METADATA => Self::Metadata {
                topics: topics(&mut fields)?,
            },
            COMMIT => Self::Commit {
                group: fields.group()?,
                topic: fields.topic()?,
                partition: partition(&mut fields)?,
                offset: Offset(fields.u64("offset")?),
            },
            SEEK => Self::Seek {
                group: fields.group()?,
                topic: fields.topic()?,
                partition: partition(&mut fields)?,
                offset: Offset(fields.u64("offset")?),
            },
            COMMITTED => Self::Committed {
                group: fields.group()?,
                topic: fields.topic()?,
                partition: partition(&mut fields)?,
            },
            CREATE_TOPIC => Self::CreateTopic {
                topic: fields.topic()?,
                partitions: fields.u32("partitions")?,
                config: config(&mut fields)?,
            },
            DELETE_TOPIC => Self::DeleteTopic {
                topic: fields.topic()?,
            },
            ALTER_TOPIC => Self::AlterTopic {
                topic: fields.topic()?,
                config: config(&mut fields)?,
            },
            ADD_PARTITIONS => Self::AddPartitions {
                topic: fields.topic()?,
                partitions: fields.u32("partitions")?,
            },
            COOL_TOPIC => Self::CoolTopic {
                topic: fields.topic()?,
                wait: fields.flag("wait")?,
            },
            GROUPS => Self::Groups {
                group: optional_group(&mut fields)?,
            },
            PING => Self::Ping,
            OPTIONS => Self::Options {
                max_queue_wait_ms: fields.u32("max_queue_wait_ms")?,
            },
            AUTHENTICATE => Self::Authenticate {
                mechanism: fields.short_text("mechanism")?,
                message: fields.rest(),
            },
            found => return Err(SessionError::UnknownRequest { found }),
        };
        fields.end()?;
        Ok(request)
    }

    /// Appends header and body. Configuration beyond its lengths is cut.
    ///
    /// # Panics
    /// If the message has 4 GiB or more.
    pub fn encode_into(&self, correlation_id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(self.kind());
        out.extend_from_slice(&correlation_id.to_be_bytes());
        self.encode_body(out);
        seal(out, start, 0);
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Produce(request) => {
                put_place(out, &request.topic, request.partition);
                out.push(request.ack as u8);
                out.extend_from_slice(request.frames);
            }
            Self::Fetch(request) => {
                put_place(out, &request.topic, request.partition);
                put_start(out, request.start);
                out.extend_from_slice(&request.max_bytes.to_be_bytes());
                out.extend_from_slice(&request.min_bytes.to_be_bytes());
                out.extend_from_slice(&request.max_wait_ms.to_be_bytes());
                out.extend_from_slice(&request.end_offset.0.to_be_bytes());
            }
            Self::ListOffsets(request) => {
                put_place(out, &request.topic, request.partition);
                put_start(out, request.start);
            }
            Self::Metadata { topics } => {
                let count = u16::try_from(topics.len()).unwrap_or(u16::MAX);
                out.extend_from_slice(&count.to_be_bytes());
                topics
                    .iter()
                    .take(usize::from(count))
                    .for_each(|topic| put_name(out, topic.as_str()));
            }
            Self::Commit {
                group,
                topic,
                partition,
                offset,
            }
            | Self::Seek {
                group,
                topic,
                partition,
                offset,
            } => {
                put_name(out, group.as_str());
                put_place(out, topic, *partition);
                out.extend_from_slice(&offset.0.to_be_bytes());
            }
            Self::Committed {
                group,
                topic,
                partition,
            } => {
                put_name(out, group.as_str());
                put_place(out, topic, *partition);
            }
            Self::CreateTopic {
                topic,
                partitions,
                config,
            } => {
                put_name(out, topic.as_str());
                out.extend_from_slice(&partitions.to_be_bytes());
                put_config(out, config);
            }
            Self::DeleteTopic { topic } => put_name(out, topic.as_str()),
            Self::AlterTopic { topic, config } => {
                put_name(out, topic.as_str());
                put_config(out, config);
            }
            Self::AddPartitions { topic, partitions } => {
                put_name(out, topic.as_str());
                out.extend_from_slice(&partitions.to_be_bytes());
            }
            Self::CoolTopic { topic, wait } => {
                put_name(out, topic.as_str());
                out.push(u8::from(*wait));
            }
            Self::Groups { group } => put_name(out, group.as_ref().map_or("", GroupName::as_str)),
            Self::Ping => {}
            Self::Options { max_queue_wait_ms } => {
                out.extend_from_slice(&max_queue_wait_ms.to_be_bytes());
            }
            Self::Authenticate { mechanism, message } => {
                put_name(out, head(mechanism, usize::from(u8::MAX)));
                out.extend_from_slice(message);
            }
        }
    }
}

fn partition(fields: &mut Fields<'_>) -> Result<PartitionId, SessionError> {
    fields.u32("partition").map(PartitionId)
}

fn ack_level(fields: &mut Fields<'_>) -> Result<AckLevel, SessionError> {
    let field = "ack level";
    let found = fields.u8(field)?;
    AckLevel::from_code(found).ok_or(SessionError::Value { field, found })
}

fn start(fields: &mut Fields<'_>) -> Result<Start, SessionError> {
    let field = "start";
    let kind = fields.u8(field)?;
    let value = fields.u64(field)?;
    match kind {
        0 => Ok(Start::Offset(Offset(value))),
        1 => Ok(Start::Earliest),
        2 => Ok(Start::Latest),
        3 => Ok(Start::Timestamp(value)),
        found => Err(SessionError::Value { field, found }),
    }
}

fn topics(fields: &mut Fields<'_>) -> Result<Vec<TopicName>, SessionError> {
    let count = fields.u16("topic count")?;
    let mut topics = Vec::new();
    for _ in 0..count {
        topics.push(fields.topic()?);
    }
    Ok(topics)
}

pub(super) fn config(fields: &mut Fields<'_>) -> Result<ConfigPairs, SessionError> {
    let count = fields.u16("configuration count")?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let key = fields.short_text("configuration key")?.to_owned();
        pairs.push((key, fields.long_text("configuration value")?.to_owned()));
    }
    Ok(pairs)
}

fn optional_group(fields: &mut Fields<'_>) -> Result<Option<GroupName>, SessionError> {
    let field = "group";
    match fields.short_bytes(field)? {
        [] => Ok(None),
        name => GroupName::from_bytes(name)
            .map(Some)
            .map_err(|source| SessionError::Name { field, source }),
    }
}

fn put_place(out: &mut Vec<u8>, topic: &TopicName, partition: PartitionId) {
    put_name(out, topic.as_str());
    out.extend_from_slice(&partition.0.to_be_bytes());
}

fn put_start(out: &mut Vec<u8>, start: Start) {
    let (kind, value) = match start {
        Start::Offset(Offset(offset)) => (0, offset),
        Start::Earliest => (1, 0),
        Start::Latest => (2, 0),
        Start::Timestamp(timestamp_ns) => (3, timestamp_ns),
    };
    out.push(kind);
    out.extend_from_slice(&u64::to_be_bytes(value));
}

pub(super) fn put_config(out: &mut Vec<u8>, config: &[(String, String)]) {
    let count = u16::try_from(config.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_be_bytes());
    for (key, value) in config.iter().take(usize::from(count)) {
        let key = head(key, usize::from(u8::MAX));
        out.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(key.as_bytes());
        put_text(out, value);
    }
}

/// Writes a 2-byte length and the head of `text` that it can say.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = head(text, usize::from(u16::MAX));
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
