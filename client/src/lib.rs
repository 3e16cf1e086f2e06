//! The async client of Basalt's native protocol: produce with batching and pipelining, consume with long polls and a
//! bounded end, and the administrative calls.
//!
//! It speaks the session protocol of [`basalt_proto::session`] and nothing else. It is deliberately *not* a consumer
//! group manager, and keeps nothing on disk.
//!
//! Start with [`Client::connect`]; then [`Client::producer`] and [`Client::consumer`], each with a connection of its own,
//! so that a slow reader never holds up a writer.
//!
//! Invariants:
//! - **CLI-1**: every record that [`Producer::send`] took ends in exactly one outcome: an offset, a refusal, or
//!   [`SendError::OutcomeUnknown`]; never in silence.
//! - **CLI-2**: a batch whose request may have reached a server is sent again only with
//!   [`ProducerConfig::retry_lost`].
//! - **CLI-3**: what a producer holds in memory is bounded by [`ProducerConfig::queue_bytes`], what a consumer holds by
//!   two responses.
//! - **CLI-4**: records of one producer are sent in the order in which `send` took them, also after a reconnect.
#![forbid(unsafe_code)]

mod admin;
mod authenticate;
mod client;
mod config;
mod connection;
mod consumer;
mod error;
mod producer;
#[cfg(test)]
mod testing;

pub use basalt_proto::session::{
    AckLevel, ConfigPairs, CoolTopicResponse, ErrorResponse, FetchRequest, GroupEntry,
    PartitionMetadata, Start, TopicMetadata,
};
pub use basalt_proto::{ErrorKind, GroupName, Offset, PartitionId, TopicName};

pub use admin::ListedOffset;
pub use client::Client;
pub use config::{ClientConfig, ConsumerConfig, Credentials, ProducerConfig, Reconnect, WhenFull};
pub use consumer::{Consumer, FetchedFrames};
pub use error::{ClientError, ConnectError, ConnectionLost, SendError};
pub use producer::{Delivery, Producer, RecordToSend};
