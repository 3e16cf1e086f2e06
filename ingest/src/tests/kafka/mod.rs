//! The Kafka protocol over real sockets. Requests are made and answers read by the `kafka-protocol` crate, but for record
//! batches, which are this project's own or bytes that other implementations wrote.

mod admin;
mod compacted;
mod consumer_protocol;
mod crashed_transactions;
mod fetch;
mod groups;
mod hostile;
mod offsets;
mod produce;
mod transactions;
mod versions;

use basalt_proto::batch::{
    BatchFields, BatchReader, BatchWriter, MAX_DECOMPRESSED_BYTES, RecordToWrite,
};
use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    ApiKey, FetchRequest, FetchResponse, MetadataRequest, MetadataResponse, ProduceRequest,
    ProduceResponse, TopicName as KafkaName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use super::*;

/// A Kafka client's end of a connection.
pub(super) struct Client {
    pub(super) peer: Peer,
    next_id: i32,
}

fn name(topic: &str) -> KafkaName {
    StrBytes::from_string(topic.to_owned()).into()
}

impl Client {
    pub(super) async fn connect(harness: &Harness) -> Self {
        Self {
            peer: harness.connect().await,
            next_id: 7,
        }
    }

    /// Sends a request; its correlation id.
    pub(super) async fn send(&mut self, key: ApiKey, version: i16, body: &impl Encodable) -> i32 {
        let bytes = encoded(key, version, self.next_id, body);
        self.next_id += 1;
        self.peer.send(&bytes).await;
        self.next_id - 1
    }

    /// An answer without its length.
    pub(super) async fn answer(&mut self) -> Vec<u8> {
        let length = self.peer.exact(4).await;
        let length = u32::from_be_bytes(length.try_into().unwrap());
        self.peer.exact(length as usize).await
    }

    pub(super) async fn receive<T: Decodable>(&mut self, key: ApiKey, version: i16, id: i32) -> T {
        decoded(&self.answer().await, key, version, id)
    }

    pub(super) async fn call<T: Decodable>(
        &mut self,
        key: ApiKey,
        version: i16,
        body: &impl Encodable,
    ) -> T {
        let id = self.send(key, version, body).await;
        self.receive(key, version, id).await
    }

    async fn metadata(&mut self, version: i16, topic: &str) -> MetadataResponseTopic {
        let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![asked]))
            .with_allow_auto_topic_creation(true);
        let response: MetadataResponse = self.call(ApiKey::Metadata, version, &request).await;
        response.topics.into_iter().next().unwrap()
    }

    /// Produces batches to partition 0; what is said of it.
    async fn produce(
        &mut self,
        version: i16,
        topic: &str,
        batches: &[u8],
    ) -> PartitionProduceResponse {
        let request = produce_request(topic, 1, &[(0, batches)]);
        let response: ProduceResponse = self.call(ApiKey::Produce, version, &request).await;
        response.responses[0].partition_responses[0].clone()
    }

    /// Produces batches and fails unless they are stored; at which offset.
    async fn stored(&mut self, topic: &str, batches: &[u8]) -> i64 {
        let answer = self.produce(9, topic, batches).await;
        assert_eq!(answer.error_code, 0, "{answer:?}");
        answer.base_offset
    }

    async fn fetch(&mut self, version: i16, topic: &str, offset: i64) -> PartitionData {
        let request = fetch_request(&[(topic, &[(0, offset)])]);
        let response: FetchResponse = self.call(ApiKey::Fetch, version, &request).await;
        assert_eq!((response.error_code, response.session_id), (0, 0));
        response.responses[0].partitions[0].clone()
    }
}

pub(super) fn encoded(key: ApiKey, version: i16, id: i32, body: &impl Encodable) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend_from_slice(&(key as i16).to_be_bytes());
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(b"\0\x04test");
    if key.request_header_version(version) >= 2 {
        out.push(0);
    }
    body.encode(&mut out, version).unwrap();
    let length = u32::try_from(out.len() - 4).unwrap();
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

fn decoded<T: Decodable>(answer: &[u8], key: ApiKey, version: i16, id: i32) -> T {
    let mut rest = Bytes::copy_from_slice(answer);
    assert_eq!(rest.split_to(4)[..], id.to_be_bytes(), "in order");
    if key.response_header_version(version) >= 1 {
        assert_eq!(rest.split_to(1)[..], [0], "no tagged fields");
    }
    let body = T::decode(&mut rest, version).unwrap();
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    body
}

fn produce_request(topic: &str, acks: i16, partitions: &[(i32, &[u8])]) -> ProduceRequest {
    let partitions = partitions.iter().map(|(index, batches)| {
        PartitionProduceData::default()
            .with_index(*index)
            .with_records(Some(Bytes::copy_from_slice(batches)))
    });
    let data = TopicProduceData::default()
        .with_name(name(topic))
        .with_partition_data(partitions.collect());
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(1000)
        .with_topic_data(vec![data])
}

fn fetch_request(topics: &[(&str, &[(i32, i64)])]) -> FetchRequest {
    let topics = topics.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|(index, offset)| {
            FetchPartition::default()
                .with_partition(*index)
                .with_fetch_offset(*offset)
                .with_partition_max_bytes(1 << 20)
        });
        FetchTopic::default()
            .with_topic(name(topic))
            .with_partitions(partitions.collect())
    });
    FetchRequest::default()
        .with_max_bytes(50 << 20)
        .with_min_bytes(0)
        .with_topics(topics.collect())
}

/// A record as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Got {
    offset: u64,
    timestamp_ms: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
}

/// The batches of an answer, each with its offsets.
fn batches(data: &PartitionData) -> Vec<(std::ops::Range<u64>, Vec<u8>)> {
    let mut rest = &data.records.as_ref().expect("not null")[..];
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (batch, behind) = rest.split_at(12 + length);
        let base = u64::from_be_bytes(batch[..8].try_into().unwrap());
        let delta = u32::from_be_bytes(batch[23..27].try_into().unwrap());
        let crc = u32::from_be_bytes(batch[17..21].try_into().unwrap());
        assert_eq!(crc, basalt_log::crc32c(&batch[21..]));
        batches.push((base..base + u64::from(delta) + 1, batch.to_vec()));
        rest = behind;
    }
    batches
}

/// The records of an answer, with those that the client would drop.
fn records(data: &PartitionData) -> Vec<Got> {
    let mut got = Vec::new();
    for (offsets, mut batch) in batches(data) {
        if batch[57..61] == [0; 4] || batch[22] & (1 << 5) != 0 {
            // A hole, or what a broker says.
            continue;
        }
        if batch[57..61] == [0, 0, 0, 1] {
            // One record that stands for all of them.
            batch[23..27].fill(0);
        }
        let reader = BatchReader::open(&batch, MAX_DECOMPRESSED_BYTES).unwrap();
        got.extend(reader.records().map(|record| {
            let record = record.unwrap();
            Got {
                offset: offsets.start + u64::try_from(record.offset_delta).unwrap(),
                timestamp_ms: record.timestamp_ms,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
            }
        }));
    }
    got
}

/// A batch of records without keys.
fn batch_with(fields: BatchFields, records: &[(i64, &[u8])]) -> Vec<u8> {
    let mut writer = BatchWriter::new(fields).unwrap();
    for (timestamp_ms, value) in records {
        writer
            .push(&RecordToWrite {
                timestamp_ms: *timestamp_ms,
                key: None,
                value: Some(value),
                headers: &[],
            })
            .unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    batch
}

fn batch(records: &[(i64, &[u8])]) -> Vec<u8> {
    batch_with(BatchFields::default(), records)
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().as_chunks::<2>().0;
    let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    digits.iter().map(byte).collect()
}
