//! What a session is answered.

use super::request::{ConfigPairs, config, put_config, put_text};
use super::{Fields, STATUS_OK, SessionError, seal};
use crate::wire::put_name;
use crate::{ErrorKind, GroupName, Offset, PartitionId, TopicName};

/// Bytes of a [`FetchResponseHeader`].
pub const FETCH_RESPONSE_HEADER_BYTES: usize = 25;

const END_REACHED: u8 = 1;

/// The body of a response that is no error.
pub trait ResponseBody: Sized {
    /// Appends the body.
    fn encode_body(&self, out: &mut Vec<u8>);

    /// Reads a whole body.
    ///
    /// # Errors
    /// [`SessionError`] names the field and what is wrong with it.
    fn decode(body: &[u8]) -> Result<Self, SessionError>;
}

/// Appends a response: header and body.
///
/// # Panics
/// If the message has 4 GiB or more.
pub fn encode_response(correlation_id: u32, body: &impl ResponseBody, out: &mut Vec<u8>) {
    let start = put_header(correlation_id, STATUS_OK, out);
    body.encode_body(out);
    seal(out, start, 0);
}

/// Appends a fetch response up to its frames, of which `frames_bytes` must be sent behind it.
///
/// # Panics
/// If the message has 4 GiB or more.
pub fn encode_fetch_header(
    correlation_id: u32,
    header: &FetchResponseHeader,
    frames_bytes: u32,
    out: &mut Vec<u8>,
) {
    let start = put_header(correlation_id, STATUS_OK, out);
    out.extend_from_slice(&header.encode());
    seal(out, start, frames_bytes);
}

/// Appends an error response.
pub fn encode_error(correlation_id: u32, error: &ErrorResponse, out: &mut Vec<u8>) {
    let start = put_header(correlation_id, error.kind.code(), out);
    out.extend_from_slice(&error.retry_after_ms.to_be_bytes());
    out.extend_from_slice(&error.log_start_offset.0.to_be_bytes());
    out.extend_from_slice(&error.high_watermark.0.to_be_bytes());
    put_text(out, &error.message);
    seal(out, start, 0);
}

fn put_header(correlation_id: u32, status: u8, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&correlation_id.to_be_bytes());
    out.push(status);
    start
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    /// What the caller should do about it. A code that this version does not know reads as [`ErrorKind::Internal`].
    pub kind: ErrorKind,
    /// When to try again, in milliseconds; 0 when waiting alone does not help.
    pub retry_after_ms: u32,
    /// With [`ErrorKind::OffsetOutOfRange`]: the first readable offset. Otherwise 0.
    pub log_start_offset: Offset,
    /// With [`ErrorKind::OffsetOutOfRange`]: the end of what is readable. Otherwise 0.
    pub high_watermark: Offset,
    /// For people.
    pub message: String,
}

impl ErrorResponse {
    /// A refusal without advice on waiting or offsets.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            retry_after_ms: 0,
            log_start_offset: Offset::ZERO,
            high_watermark: Offset::ZERO,
            message: message.into(),
        }
    }

    /// Reads the body of a response whose status was `status`.
    ///
    /// # Errors
    /// [`SessionError`] names the field and what is wrong with it.
    pub fn decode(status: u8, body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let error = Self {
            kind: ErrorKind::from_code(status).unwrap_or(ErrorKind::Internal),
            retry_after_ms: fields.u32("retry_after_ms")?,
            log_start_offset: Offset(fields.u64("log_start_offset")?),
            high_watermark: Offset(fields.u64("high_watermark")?),
            message: fields.long_text("message")?.to_owned(),
        };
        fields.end()?;
        Ok(error)
    }
}

/// Done, and nothing to say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyResponse;

impl ResponseBody for EmptyResponse {
    fn encode_body(&self, _out: &mut Vec<u8>) {}

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        Fields::new(body).end()?;
        Ok(Self)
    }
}

/// The frames are stored at `[base_offset, end_offset)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProduceResponse {
    /// Of the first record.
    pub base_offset: Offset,
    /// Behind the last record.
    pub end_offset: Offset,
}

impl ResponseBody for ProduceResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.base_offset.0.to_be_bytes());
        out.extend_from_slice(&self.end_offset.0.to_be_bytes());
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let response = Self {
            base_offset: Offset(fields.u64("base_offset")?),
            end_offset: Offset(fields.u64("end_offset")?),
        };
        fields.end()?;
        Ok(response)
    }
}

/// What stands before the frames of a fetch response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchResponseHeader {
    /// The first readable offset.
    pub log_start_offset: Offset,
    /// The end of what is readable.
    pub high_watermark: Offset,
    /// Ask for this next.
    pub next_offset: Offset,
    /// Nothing more will come before the request's end offset.
    pub end_reached: bool,
}

impl FetchResponseHeader {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; FETCH_RESPONSE_HEADER_BYTES] {
        let mut out = [0; FETCH_RESPONSE_HEADER_BYTES];
        out[..8].copy_from_slice(&self.log_start_offset.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.high_watermark.0.to_be_bytes());
        out[16..24].copy_from_slice(&self.next_offset.0.to_be_bytes());
        out[24] = if self.end_reached { END_REACHED } else { 0 };
        out
    }

    /// Reads the header at the start of a fetch response's body, and gives back the frames behind it.
    ///
    /// # Errors
    /// [`SessionError`] names the field and what is wrong with it.
    pub fn decode_prefix(body: &[u8]) -> Result<(Self, &[u8]), SessionError> {
        let mut fields = Fields::new(body);
        let header = Self {
            log_start_offset: Offset(fields.u64("log_start_offset")?),
            high_watermark: Offset(fields.u64("high_watermark")?),
            next_offset: Offset(fields.u64("next_offset")?),
            end_reached: fields.flag("flags")?,
        };
        Ok((header, fields.rest()))
    }
}

/// Where a start lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListOffsetsResponse {
    /// The offset; the high watermark when nothing was found.
    pub offset: Offset,
    /// The stamp of the record there, in ns; 0 where there is none to tell.
    pub timestamp_ns: u64,
    /// Whether there is such a place: always for an offset in range, earliest and latest; for a timestamp only if a record
    /// is as late.
    pub found: bool,
}

impl ResponseBody for ListOffsetsResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.0.to_be_bytes());
        out.extend_from_slice(&self.timestamp_ns.to_be_bytes());
        out.push(u8::from(self.found));
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let response = Self {
            offset: Offset(fields.u64("offset")?),
            timestamp_ns: fields.u64("timestamp_ns")?,
            found: fields.flag("found")?,
        };
        fields.end()?;
        Ok(response)
    }
}

/// One partition as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// Its number.
    pub partition: PartitionId,
    /// The first readable offset.
    pub log_start_offset: Offset,
    /// Where cold ends and hot begins.
    pub cold_end_offset: Offset,
    /// The end of what is readable.
    pub high_watermark: Offset,
    /// The next offset to be written.
    pub log_end_offset: Offset,
    /// Bytes in segments.
    pub hot_bytes: u64,
    /// Bytes in Parquet.
    pub cold_bytes: u64,
}

/// One topic as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicMetadata {
    /// Its name.
    pub topic: TopicName,
    /// Tells it from an earlier topic of the same name.
    pub topic_id: u64,
    /// Its configuration.
    pub config: ConfigPairs,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionMetadata>,
}

/// The topics asked for. On the wire: u32 count; each: u8 + name, u64 id, configuration, u32 count and partitions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetadataResponse {
    /// By name.
    pub topics: Vec<TopicMetadata>,
}

impl ResponseBody for MetadataResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        put_count(out, self.topics.len());
        for topic in &self.topics {
            put_name(out, topic.topic.as_str());
            out.extend_from_slice(&topic.topic_id.to_be_bytes());
            put_config(out, &topic.config);
            put_count(out, topic.partitions.len());
            for partition in &topic.partitions {
                put_partition(out, partition);
            }
        }
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let mut topics = Vec::new();
        for _ in 0..fields.u32("topic count")? {
            let topic = fields.topic()?;
            let topic_id = fields.u64("topic id")?;
            let config = config(&mut fields)?;
            let mut partitions = Vec::new();
            for _ in 0..fields.u32("partition count")? {
                partitions.push(partition(&mut fields)?);
            }
            topics.push(TopicMetadata {
                topic,
                topic_id,
                config,
                partitions,
            });
        }
        fields.end()?;
        Ok(Self { topics })
    }
}

fn put_partition(out: &mut Vec<u8>, partition: &PartitionMetadata) {
    out.extend_from_slice(&partition.partition.0.to_be_bytes());
    let numbers = [
        partition.log_start_offset.0,
        partition.cold_end_offset.0,
        partition.high_watermark.0,
        partition.log_end_offset.0,
        partition.hot_bytes,
        partition.cold_bytes,
    ];
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn partition(fields: &mut Fields<'_>) -> Result<PartitionMetadata, SessionError> {
    Ok(PartitionMetadata {
        partition: PartitionId(fields.u32("partition")?),
        log_start_offset: Offset(fields.u64("log_start_offset")?),
        cold_end_offset: Offset(fields.u64("cold_end_offset")?),
        high_watermark: Offset(fields.u64("high_watermark")?),
        log_end_offset: Offset(fields.u64("log_end_offset")?),
        hot_bytes: fields.u64("hot_bytes")?,
        cold_bytes: fields.u64("cold_bytes")?,
    })
}

/// Where a group will resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedResponse {
    /// The next offset it will read; `None` when it never committed. On the wire: u8 found, u64 offset.
    pub offset: Option<Offset>,
}

impl ResponseBody for CommittedResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.offset.is_some()));
        out.extend_from_slice(&self.offset.unwrap_or_default().0.to_be_bytes());
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let found = fields.flag("found")?;
        let offset = Offset(fields.u64("offset")?);
        fields.end()?;
        Ok(Self {
            offset: found.then_some(offset),
        })
    }
}

/// What cooling has moved. Zeros when it was only queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoolTopicResponse {
    /// Segments rewritten, or queued.
    pub segment_count: u32,
    /// Rows written.
    pub row_count: u64,
    /// Bytes of frames read.
    pub bytes_in: u64,
    /// Bytes of Parquet written.
    pub bytes_out: u64,
}

impl ResponseBody for CoolTopicResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.segment_count.to_be_bytes());
        for number in [self.row_count, self.bytes_in, self.bytes_out] {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let response = Self {
            segment_count: fields.u32("segment count")?,
            row_count: fields.u64("row count")?,
            bytes_in: fields.u64("bytes in")?,
            bytes_out: fields.u64("bytes out")?,
        };
        fields.end()?;
        Ok(response)
    }
}

/// Where one group stands in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupEntry {
    /// The group.
    pub group: GroupName,
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The next offset it will read.
    pub committed: Offset,
    /// The end of what it could read.
    pub high_watermark: Offset,
}

impl GroupEntry {
    /// How many records it has still to read.
    #[must_use]
    pub const fn lag_records(&self) -> u64 {
        self.high_watermark.distance_from(self.committed)
    }
}

/// The groups asked for. On the wire: u32 count; each: u8 + group, u8 + topic, u32 partition, u64 committed, u64 high
/// watermark.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupsResponse {
    /// By group, topic and partition.
    pub groups: Vec<GroupEntry>,
}

impl ResponseBody for GroupsResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        put_count(out, self.groups.len());
        for entry in &self.groups {
            put_name(out, entry.group.as_str());
            put_name(out, entry.topic.as_str());
            out.extend_from_slice(&entry.partition.0.to_be_bytes());
            out.extend_from_slice(&entry.committed.0.to_be_bytes());
            out.extend_from_slice(&entry.high_watermark.0.to_be_bytes());
        }
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        let mut groups = Vec::new();
        for _ in 0..fields.u32("group count")? {
            groups.push(GroupEntry {
                group: fields.group()?,
                topic: fields.topic()?,
                partition: PartitionId(fields.u32("partition")?),
                committed: Offset(fields.u64("committed")?),
                high_watermark: Offset(fields.u64("high_watermark")?),
            });
        }
        fields.end()?;
        Ok(Self { groups })
    }
}

/// The server's part of a step of an exchange. On the wire: u8 done, then the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticateResponse {
    /// Whether the client has proved who it is; if not, it is to answer.
    pub done: bool,
    /// The server's message.
    pub message: Vec<u8>,
}

impl ResponseBody for AuthenticateResponse {
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.done));
        out.extend_from_slice(&self.message);
    }

    fn decode(body: &[u8]) -> Result<Self, SessionError> {
        let mut fields = Fields::new(body);
        Ok(Self {
            done: fields.flag("done")?,
            message: fields.rest().to_vec(),
        })
    }
}

/// Writes a 4-byte count. Lists live in memory, where 2^32 entries of these do not fit.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}
