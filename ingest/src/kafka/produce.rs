//! Produce: record batches in, each checked to its last record and stored as one batch frame.
//!
//! - **KAF-4**: a batch is stored byte for byte but for base offset and leader epoch, or not at all. The batches of one
//!   partition in one request are appended together. One whose latest stamp is less than its records' has theirs: Kafka's
//!   broker sets it, and so some producers leave that to it.
//!
//! A batch that its producer has numbered is stored once, however often it is sent, and answered with its offset each time (LOG-15);
//! each time once it is durable. A batch of a transaction is appended only while that is open (TXN-1).

use std::ops::Range;
use std::sync::Arc;

use basalt_columnar::TieredPartition;
use basalt_log::{AppendError, Durability, Sequence, Sequenced, crc32c};
use basalt_proto::batch::{
    BATCH_HEADER_BYTES, BatchError, BatchHeader, BatchReader, Compression, RecordBatch,
    patch_leader_epoch, patch_max_timestamp,
};
use basalt_proto::{
    ErrorKind, FRAME_HEADER_BYTES, Frame, FrameBatch, FrameError, FrameLimits, Offset, PartitionId,
    TopicName,
};
use kafka_protocol::messages::ProduceResponse;
use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::PARTITION_BYTES;
use super::error::{Failure, code};
use super::node::NO_LEADER_EPOCH;
use super::request::{Head, Request};
use super::response::message;
use super::transactions::Writer;
use super::wire::{Malformed, Reader};
use crate::commit_wait::CommitWait;
use crate::error::Refusal;
use crate::shared::Shared;

/// The first version whose clients can read zstd.
const ZSTD_FROM: i16 = 7;
const LENGTH_AT: Range<usize> = 8..12;
const MAGIC_AT: usize = 16;
const CRC_AT: Range<usize> = 17..21;
const CHECKED_FROM: usize = 21;
/// Bytes that a batch's length does not count.
const UNCOUNTED_BYTES: usize = 12;

/// What was appended for a request.
pub(super) struct Produced {
    head: Head,
    topics: Vec<(StrBytes, Vec<Partition>)>,
}

/// What became of one partition's batches.
struct Partition {
    index: i32,
    outcome: Result<Appended, Failure>,
}

struct Appended {
    partition: Arc<TieredPartition>,
    base_offset: Offset,
    end_offset: Offset,
    log_start_offset: Offset,
    /// Held until it is on the disk; `None` where that is not waited for.
    wait: Option<CommitWait>,
}

/// Appends what a request brings. `None` when it wants no answer.
///
/// # Errors
/// A [`Refusal`], with which the connection ends: it is malformed, or it failed and is not answered.
pub(super) async fn take(
    shared: &Shared,
    request: &Request<'_>,
) -> Result<Option<Produced>, Refusal> {
    let malformed = |error: Malformed| request.malformed(&error.to_string());
    let mut reader = Reader::new(request.body, request.head.is_flexible());
    let transactional_id = reader.text().map_err(malformed)?;
    let transactional_id = transactional_id.map(String::from_utf8_lossy);
    let acks = reader.i16().map_err(malformed)?;
    reader.take(4).map_err(malformed)?;
    // Walked over once before anything is stored, so that half a request is not.
    walk(&mut reader.clone()).map_err(malformed)?;
    let level = match acks {
        -1..=1 => Ok(acks),
        _ => Err(Failure::new(
            code::INVALID_REQUIRED_ACKS,
            format!("acks is {acks}, but takes -1, 0 or 1"),
        )),
    };
    let topic_count = reader.count(1).map_err(malformed)?;
    let mut topics = Vec::with_capacity(topic_count);
    for _ in 0..topic_count {
        let name = reader.text().map_err(malformed)?.unwrap_or_default();
        let partition_count = reader.count(1).map_err(malformed)?;
        let mut partitions = Vec::with_capacity(partition_count);
        for _ in 0..partition_count {
            let index = reader.i32().map_err(malformed)?;
            let records = reader.blob().map_err(malformed)?.unwrap_or_default();
            reader.tags().map_err(malformed)?;
            let outcome = match &level {
                Ok(acks) => {
                    let version = request.head.version;
                    let id = transactional_id.as_deref();
                    let records = Records {
                        records,
                        version,
                        id,
                    };
                    append(shared, name, index, &records, *acks).await
                }
                Err(failure) => Err(failure.clone()),
            };
            partitions.push(Partition { index, outcome });
        }
        reader.tags().map_err(malformed)?;
        let name = StrBytes::from_string(String::from_utf8_lossy(name).into_owned());
        topics.push((name, partitions));
    }
    let produced = Produced {
        head: request.head,
        topics,
    };
    if acks != 0 {
        return Ok(Some(produced));
    }
    match produced.first_failure() {
        None => Ok(None),
        // As Kafka does: the end of the connection is the one way to tell.
        Some(failure) => Err(Refusal::new(
            ErrorKind::InvalidRequest,
            format!(
                "produced without acknowledgement and failed with {}: {}",
                failure.code, failure.message
            ),
        )),
    }
}

fn walk(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    for _ in 0..reader.count(1)? {
        reader.text()?;
        for _ in 0..reader.count(1)? {
            reader.i32()?;
            reader.blob()?;
            reader.tags()?;
        }
        reader.tags()?;
    }
    reader.tags()
}

/// What a partition is sent.
struct Records<'a> {
    records: &'a [u8],
    version: i16,
    /// The transactional id of the request.
    id: Option<&'a str>,
}

/// Checks the batches of one partition and appends them.
async fn append(
    shared: &Shared,
    topic: &[u8],
    index: i32,
    sent: &Records<'_>,
    acks: i16,
) -> Result<Appended, Failure> {
    let Records {
        records, version, ..
    } = *sent;
    let topic = TopicName::from_bytes(topic).map_err(Refusal::from)?;
    let unknown = |_| {
        Failure::new(
            code::UNKNOWN_TOPIC_OR_PARTITION,
            format!("topic {topic} has no partition {index}"),
        )
    };
    let partition = PartitionId(u32::try_from(index).map_err(unknown)?);
    let partition = shared.existing_partition(&topic, partition)?;
    let log = |failure: &Failure| {
        tracing::debug!(%topic, index, code = failure.code, "refused: {}", failure.message);
    };
    let verifier = &shared.verifier;
    let config = partition.hot().config();
    let limits = &shared.limits_of(&config);
    let mut frames = frames(records, limits, version).inspect_err(log)?;
    let mut checked = verifier
        .whole(shared.check_for(&frames, &config).with_transactions())
        .await;
    if let Err(FrameError::Batch {
        source: BatchError::MaxTimestamp { .. },
    }) = checked
    {
        let late = || restamped(records, limits, version);
        frames = verifier.beside(late).await.inspect_err(log)?;
        checked = verifier
            .whole(shared.check_for(&frames, &config).with_transactions())
            .await;
    }
    let batch = checked.map_err(|error| {
        shared.counters.refuse(error.kind(), 1);
        Failure::from(&error)
    })?;
    let durability = match acks {
        0 => Durability::None,
        _ => partition.hot().config().durability.into(),
    };
    let numbered = numbered(&batch)?;
    let writer = writer(shared, sent.id, numbered.as_ref())?;
    // Held until it is appended.
    let _writing = match (&writer, &numbered) {
        (Some(writer), Some((_, sequence))) => {
            let producer = (sequence.producer_id, sequence.epoch);
            let topic_id = partition.topic_id().0;
            let id = partition.id();
            let writing = writer.write(producer, &topic, topic_id, id).await;
            Some(writing.map_err(|code| {
                Failure::new(
                    code,
                    "the batch is of no open transaction of its producer that has the partition",
                )
            })?)
        }
        _ => None,
    };
    let wait = (durability == Durability::Fsync).then(|| shared.commits.enter(&partition));
    let sequence = numbered.map(|(_, sequence)| sequence);
    let appended = match &sequence {
        None => partition.append(&batch, durability).map(Sequenced::New),
        Some(sequence) => partition.append_sequenced(&batch, sequence, durability),
    };
    let appended = appended.map_err(|error| match error {
        AppendError::Sequence(error) => error.into(),
        error => {
            let refusal = shared.append_refusal(&partition, error);
            shared.counters.refuse(refusal.kind, 1);
            Failure::from(refusal)
        }
    })?;
    let appended = match appended {
        Sequenced::New(appended) => {
            shared.counters.stored(&batch);
            appended
        }
        Sequenced::Stored(appended) => appended,
    };
    if let Some(wait) = &wait {
        wait.appended(appended.end_offset);
    }
    Ok(Appended {
        base_offset: appended.base_offset,
        end_offset: appended.end_offset,
        log_start_offset: partition.offsets().log_start_offset,
        partition,
        wait,
    })
}

/// As [`frames`], with the latest stamp of each batch's records in its header. Reads them all.
fn restamped(records: &[u8], limits: &FrameLimits, version: i16) -> Result<Vec<u8>, Failure> {
    let mut stamped = records.to_vec();
    let mut rest = stamped.as_mut_slice();
    while !rest.is_empty() {
        let bytes = split(rest)?.0.len();
        let (batch, behind) = std::mem::take(&mut rest).split_at_mut(bytes);
        rest = behind;
        let limit_bytes = limits.max_records_bytes.into();
        let reader =
            BatchReader::open(batch, limit_bytes).map_err(|error| Failure::from(&error))?;
        let mut latest_ms = reader.header().max_timestamp_ms;
        for record in reader.records() {
            let record = record.map_err(|error| Failure::from(&error))?;
            latest_ms = latest_ms.max(record.timestamp_ms);
        }
        drop(reader);
        patch_max_timestamp(batch, latest_ms);
    }
    frames(&stamped, limits, version)
}

/// The batches in `records` as frames; what only reading their records can tell is left to the check of those.
fn frames(mut records: &[u8], limits: &FrameLimits, version: i16) -> Result<Vec<u8>, Failure> {
    let mut frames = Vec::with_capacity(records.len() + FRAME_HEADER_BYTES);
    while !records.is_empty() {
        let (batch, rest) = split(records)?;
        records = rest;
        let header = admit(batch, limits, version)?;
        let at = frames.len();
        Frame::batch(header.max_timestamp_ns(), batch, header.record_count)
            .encode_into(&mut frames);
        patch_leader_epoch(&mut frames[at + FRAME_HEADER_BYTES..], NO_LEADER_EPOCH);
    }
    if frames.is_empty() {
        return Err(Failure::new(code::INVALID_RECORD, "there is no batch"));
    }
    Ok(frames)
}

/// The numbers of a batch, if it has any. Where a partition's batches are several, none may have: there is one offset to answer with.
fn numbered(batches: &FrameBatch<'_>) -> Result<Option<(BatchHeader, Sequence)>, Failure> {
    let headers = batches.frames().flatten();
    let mut headers = headers.filter_map(|frame| RecordBatch::header(frame.payload).ok());
    let is_numbered = |header: &BatchHeader| header.producer_id >= 0 || header.is_transactional();
    let Some(numbered) = headers.find(is_numbered) else {
        return Ok(None);
    };
    let sequence = Sequence::of(&numbered).filter(|_| batches.frame_count() == 1);
    sequence.map(|sequence| Some((numbered, sequence))).ok_or_else(|| {
        let message = format!(
            "a producer with an id sends one batch at a time, with an epoch and a sequence; there are {} of epoch {} from \
             sequence {} on",
            batches.frame_count(),
            numbered.producer_epoch,
            numbered.base_sequence
        );
        Failure::new(code::INVALID_RECORD, message)
    })
}

/// Whoever writes a batch of a transaction.
fn writer(
    shared: &Shared,
    id: Option<&str>,
    numbered: Option<&(BatchHeader, Sequence)>,
) -> Result<Option<Writer>, Failure> {
    if !numbered.is_some_and(|(header, _)| header.is_transactional()) {
        return Ok(None);
    }
    let refused = |code, message: &str| Failure::new(code, message);
    let id = id.ok_or_else(|| {
        let code = code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
        refused(
            code,
            "a batch of a transaction in a request without a transactional id",
        )
    })?;
    let writer = shared.transactions.writer(id);
    let unknown = |code| refused(code, "nobody was given that transactional id");
    writer.map(Some).map_err(unknown)
}

/// The first batch and what is behind it.
fn split(records: &[u8]) -> Result<(&[u8], &[u8]), Failure> {
    let length = records
        .get(LENGTH_AT)
        .and_then(|length| length.first_chunk())
        .map(|length| i32::from_be_bytes(*length));
    let bytes = length
        .and_then(|length| usize::try_from(length).ok())
        .map(|length| length + UNCOUNTED_BYTES)
        .filter(|bytes| *bytes >= BATCH_HEADER_BYTES);
    let split = bytes.and_then(|bytes| records.split_at_checked(bytes));
    split.ok_or_else(|| {
        let message = match length {
            Some(length) => format!(
                "a batch says it has {length} bytes behind its length, {} are there in all",
                records.len()
            ),
            None => format!("{} bytes are no batch", records.len()),
        };
        Failure::new(code::CORRUPT_MESSAGE, message)
    })
}

/// Checks what a batch's header says of it, in the order in which Kafka does: damage first.
fn admit(batch: &[u8], limits: &FrameLimits, version: i16) -> Result<BatchHeader, Failure> {
    let invalid = |message: String| Err(Failure::new(code::INVALID_RECORD, message));
    if batch[MAGIC_AT] != 2 {
        return invalid(format!(
            "the batch has the magic {}, expected 2",
            batch[MAGIC_AT]
        ));
    }
    if batch.len() as u64 > u64::from(limits.max_payload_bytes) {
        let message = format!(
            "a batch of {} bytes, the limit is {}",
            batch.len(),
            limits.max_payload_bytes
        );
        return Err(Failure::new(code::MESSAGE_TOO_LARGE, message));
    }
    let header = RecordBatch::header(batch).map_err(|error| {
        // A count that contradicts another may be a damaged one.
        if batch[CRC_AT] == crc32c(&batch[CHECKED_FROM..]).to_be_bytes() {
            Failure::from(&error)
        } else {
            Failure::new(code::CORRUPT_MESSAGE, error.to_string())
        }
    })?;
    if header.base_offset != 0 {
        return invalid(format!(
            "the batch begins at offset {}, expected 0",
            header.base_offset
        ));
    }
    if header.is_log_append_time() {
        let message = "a producer sent the batch as stamped by a broker";
        return Err(Failure::new(code::INVALID_TIMESTAMP, message));
    }
    if header.is_control() {
        return invalid("a producer sent a control batch".to_owned());
    }
    if header.compression == Compression::Zstd && version < ZSTD_FROM {
        let message = format!("zstd takes version {ZSTD_FROM}, the request has {version}");
        return Err(Failure::new(code::UNSUPPORTED_COMPRESSION_TYPE, message));
    }
    Ok(header)
}

impl Produced {
    fn first_failure(&self) -> Option<&Failure> {
        let mut partitions = self.topics.iter().flat_map(|(_, partitions)| partitions);
        partitions.find_map(|partition| partition.outcome.as_ref().err())
    }

    /// What it holds while it waits, about.
    pub(super) fn held_bytes(&self) -> usize {
        let topics = self.topics.iter();
        topics
            .map(|(name, partitions)| name.len() + (partitions.len() + 1) * PARTITION_BYTES)
            .sum()
    }

    /// The answer, once all of it is as durable as it has to be (ING-1).
    pub(super) async fn settle(self, shared: &Shared) -> Result<Vec<u8>, Refusal> {
        let mut responses = Vec::with_capacity(self.topics.len());
        for (name, partitions) in self.topics {
            let mut settled = Vec::with_capacity(partitions.len());
            for partition in partitions {
                settled.push(partition.settle(shared).await);
            }
            let response = TopicProduceResponse::default().with_name(name.into());
            responses.push(response.with_partition_responses(settled));
        }
        message(
            &self.head,
            &ProduceResponse::default().with_responses(responses),
        )
    }
}

impl Partition {
    async fn settle(self, shared: &Shared) -> PartitionProduceResponse {
        let answer = PartitionProduceResponse::default()
            .with_index(self.index)
            .with_log_append_time_ms(-1)
            .with_log_start_offset(-1)
            .with_current_leader(LeaderIdAndEpoch::default());
        let outcome = match self.outcome {
            Ok(appended) => appended.settle(shared).await,
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok((base_offset, log_start_offset)) => answer
                .with_base_offset(base_offset.0.cast_signed())
                .with_log_start_offset(log_start_offset.0.cast_signed()),
            Err(failure) => answer
                .with_error_code(failure.code)
                .with_base_offset(-1)
                .with_error_message(Some(StrBytes::from_string(failure.message))),
        }
    }
}

impl Appended {
    async fn settle(self, shared: &Shared) -> Result<(Offset, Offset), Failure> {
        if self.wait.is_some() {
            let durable = self.partition.hot().wait_durable(self.end_offset).await;
            durable.map_err(|error| {
                let refusal = shared.append_refusal(&self.partition, error);
                shared.counters.refuse(refusal.kind, 1);
                refusal
            })?;
        }
        Ok((self.base_offset, self.log_start_offset))
    }
}
