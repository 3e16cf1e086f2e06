//! Every vector in `tests/golden` that belongs to this crate: it decodes to the value written here, and the value
//! encodes to it. Vectors are added to, never edited.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use basalt_proto::batch::{
    BatchFields, BatchHeader, BatchReader, BatchWriter, MAX_DECOMPRESSED_BYTES, RecordBatch,
    RecordToWrite,
};
use basalt_proto::session::*;
use basalt_proto::*;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");

/// The bytes of a vector. Lines that start with `#` are for people.
fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(GOLDEN).join(format!("{name}.hex"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let data: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    hex(&data)
}

/// The bytes that hexadecimal digits, spaced at will, stand for.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|digit| u8::try_from(char::from(digit).to_digit(16).unwrap()).unwrap())
        .collect();
    assert_eq!(digits.len() % 2, 0, "{text}");
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn topic(name: &str) -> TopicName {
    name.parse().unwrap()
}

fn group(name: &str) -> GroupName {
    name.parse().unwrap()
}

fn frame_case(name: &str, header: FrameHeader, key: &[u8], payload: &[u8]) {
    let bytes = golden(name);
    let expected = Frame {
        header,
        key,
        payload,
    };
    let mut walk = FrameWalk::new(&bytes, FrameLimits::default());
    assert_eq!(walk.next(), Some(Ok(expected)), "{name}");
    assert_eq!(walk.next(), None);
    assert_eq!(walk.position(), bytes.len());
    let mut out = Vec::new();
    expected.encode_into(&mut out);
    assert_eq!(out, bytes, "{name}");
}

#[test]
fn frames() {
    let record = |timestamp_ns, offset, key_bytes, payload_bytes, record_count| FrameHeader {
        kind: FrameKind::Record,
        timestamp_ns,
        offset: Offset(offset),
        key_bytes,
        payload_bytes,
        record_count,
    };
    frame_case("frame-v1-good", record(1000, 0, 2, 1, 1), b"k1", b"a");
    frame_case("frame-v1-empty", record(u64::MAX, 7, 0, 0, 0), b"", b"");
    frame_case(
        "frame-v1-opaque",
        record(5, (1 << 63) - 6, 0, 3, 5),
        b"",
        b"xyz",
    );
    let batch = golden("batch-v1-nulls");
    let header = FrameHeader {
        kind: FrameKind::Batch,
        ..record(1_000_000_000, 0, 0, 93, 4)
    };
    frame_case("frame-v1-batch", header, b"", &batch);
    assert_eq!(Frame::batch(1_000_000_000, &batch, 4).header, header);
    assert_eq!(
        Frame::record(1000, b"k1", b"a").header,
        record(1000, 0, 2, 1, 1)
    );
}

#[test]
fn openings() {
    let cases = [
        (
            "opening-v1-produce",
            Opening::Produce {
                topic: topic("t"),
                partition: PartitionId(0),
            },
        ),
        (
            "opening-v1-consume",
            Opening::Consume {
                group: group("g1"),
                topic: topic("a.b"),
                partition: PartitionId(2),
            },
        ),
        (
            "opening-v1-commit",
            Opening::Commit {
                group: group("g1"),
                topic: topic("a.b"),
                partition: PartitionId(2),
                offset: Offset(300),
            },
        ),
        (
            "opening-v1-session",
            Opening::Session {
                version: SESSION_VERSION,
            },
        ),
    ];
    for (name, opening) in cases {
        let bytes = golden(name);
        assert_eq!(
            Opening::parse(&bytes),
            Ok(Some((opening.clone(), bytes.len()))),
            "{name}"
        );
        let mut out = Vec::new();
        opening.encode_into(&mut out);
        assert_eq!(out, bytes, "{name}");
    }
}

#[test]
fn acks() {
    let cases = [
        ("ack-v1-stored", Ack::Stored(Offset(258))),
        (
            "ack-v1-refused",
            Ack::Refused {
                kind: ErrorKind::StorageFull,
                retry_after_ms: 1500,
            },
        ),
    ];
    for (name, ack) in cases {
        let bytes: [u8; ACK_BYTES] = golden(name).try_into().unwrap();
        assert_eq!(Ack::decode(bytes), Ok(ack), "{name}");
        assert_eq!(ack.encode(), bytes, "{name}");
    }
}

type Pair = (Option<&'static [u8]>, Option<&'static [u8]>);

/// Reads the batch's keys and values, and writes the batch again from them.
fn batch_case(name: &str, timestamp_ms: i64, fields: BatchFields, pairs: &[Pair]) -> BatchHeader {
    let bytes = golden(name);
    let header = RecordBatch::validate(&bytes).unwrap();
    RecordBatch::verify_records(&bytes, MAX_DECOMPRESSED_BYTES).unwrap();
    let reader = BatchReader::open(&bytes, MAX_DECOMPRESSED_BYTES).unwrap();
    let records: Vec<_> = reader.records().map(Result::unwrap).collect();
    let found: Vec<_> = records
        .iter()
        .map(|record| (record.key, record.value))
        .collect();
    assert_eq!(found, pairs, "{name}");
    assert!(
        records
            .iter()
            .all(|record| record.timestamp_ms == timestamp_ms && record.headers.is_empty())
    );

    let mut writer = BatchWriter::new(fields).unwrap();
    for (key, value) in pairs {
        writer
            .push(&RecordToWrite {
                timestamp_ms,
                key: *key,
                value: *value,
                headers: &[],
            })
            .unwrap();
    }
    let mut out = Vec::new();
    writer.finish(&mut out).unwrap();
    assert_eq!(out, bytes, "{name}");
    header
}

// PUB-11: null, empty and absent are three things. PUB-21: sequence numbers survive. PUB-07: absurd stamps too.
#[test]
fn batches() {
    let nulls: [Pair; 4] = [
        (Some(b"k"), None),
        (Some(b"k"), Some(b"")),
        (None, Some(b"v")),
        (Some(b""), Some(b"v")),
    ];
    batch_case("batch-v1-nulls", 1000, BatchFields::default(), &nulls);

    let values: [Pair; 5] = [
        (None, Some(b"m0")),
        (None, Some(b"m1")),
        (None, Some(b"m2")),
        (None, Some(b"m3")),
        (None, Some(b"m4")),
    ];
    let idempotent = BatchFields {
        producer_id: 1000,
        producer_epoch: 0,
        base_sequence: 0,
        ..BatchFields::default()
    };
    let header = batch_case("batch-v1-idempotent", 1000, idempotent, &values);
    assert_eq!(
        (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence
        ),
        (1000, 0, 0)
    );
    assert_eq!(header.record_count, 5);

    let future_ms = 1_755_933_141_855_875;
    let header = batch_case(
        "batch-v1-far-future",
        future_ms,
        BatchFields::default(),
        &[(Some(b"a"), Some(b"1"))],
    );
    assert_eq!(header.max_timestamp_ns(), u64::MAX);
}

fn request_case(name: &str, request: &Request<'_>) {
    let bytes = golden(name);
    let header = RequestHeader::decode(bytes.first_chunk().unwrap(), 1 << 20).unwrap();
    assert_eq!(
        header.body_bytes as usize,
        bytes.len() - REQUEST_HEADER_BYTES,
        "{name}"
    );
    assert_eq!(
        (header.kind, header.correlation_id),
        (request.kind(), 7),
        "{name}"
    );
    assert_eq!(
        Request::decode(header.kind, &bytes[REQUEST_HEADER_BYTES..]).as_ref(),
        Ok(request),
        "{name}"
    );
    let mut out = Vec::new();
    request.encode_into(7, &mut out);
    assert_eq!(out, bytes, "{name}");
}

#[test]
fn requests_that_move_records() {
    let good = golden("frame-v1-good");
    let produce = |ack| {
        Request::Produce(ProduceRequest {
            topic: topic("t"),
            partition: PartitionId(3),
            ack,
            frames: &good,
        })
    };
    request_case("request-v1-produce", &produce(AckLevel::Fsync));
    request_case("request-v1-produce-unanswered", &produce(AckLevel::None));
    let fetch = FetchRequest {
        topic: topic("t"),
        partition: PartitionId(3),
        start: Start::Offset(Offset(9)),
        max_bytes: 1 << 20,
        min_bytes: 1,
        max_wait_ms: 500,
        end_offset: Offset(1000),
    };
    request_case("request-v1-fetch", &Request::Fetch(fetch.clone()));
    let earliest = FetchRequest {
        start: Start::Earliest,
        max_bytes: 100,
        min_bytes: 0,
        max_wait_ms: 0,
        end_offset: NO_END_OFFSET,
        ..fetch
    };
    request_case("request-v1-fetch-earliest", &Request::Fetch(earliest));
    let list = |start| {
        Request::ListOffsets(ListOffsetsRequest {
            topic: topic("t"),
            partition: PartitionId(3),
            start,
        })
    };
    request_case(
        "request-v1-list-offsets",
        &list(Start::Timestamp(1_700_000_000_123_456_789)),
    );
    request_case("request-v1-list-offsets-latest", &list(Start::Latest));
    let (g1, t, partition) = (group("g1"), topic("t"), PartitionId(3));
    let commit = Request::Commit {
        group: g1.clone(),
        topic: t.clone(),
        partition,
        offset: Offset(300),
    };
    request_case("request-v1-commit", &commit);
    let seek = Request::Seek {
        group: g1.clone(),
        topic: t.clone(),
        partition,
        offset: Offset(300),
    };
    request_case("request-v1-seek", &seek);
    request_case(
        "request-v1-committed",
        &Request::Committed {
            group: g1,
            topic: t,
            partition,
        },
    );
}

#[test]
fn requests_that_administer() {
    let t = topic("t");
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    request_case(
        "request-v1-metadata",
        &Request::Metadata {
            topics: vec![t.clone(), topic("a.b")],
        },
    );
    request_case(
        "request-v1-metadata-all",
        &Request::Metadata { topics: vec![] },
    );
    let config = vec![pair("durability", "os"), pair("hot_bytes", "")];
    request_case(
        "request-v1-create-topic",
        &Request::CreateTopic {
            topic: t.clone(),
            partitions: 4,
            config,
        },
    );
    let schema = r#"{"format":"json","columns":[{"name":"n","type":"int64"}]}"#;
    request_case(
        "request-v1-create-topic-schema",
        &Request::CreateTopic {
            topic: t.clone(),
            partitions: 1,
            config: vec![pair("schema", schema)],
        },
    );
    request_case(
        "request-v1-delete-topic",
        &Request::DeleteTopic { topic: t.clone() },
    );
    let config = vec![pair("retention_bytes", "1000")];
    request_case(
        "request-v1-alter-topic",
        &Request::AlterTopic {
            topic: t.clone(),
            config,
        },
    );
    request_case(
        "request-v1-add-partitions",
        &Request::AddPartitions {
            topic: t.clone(),
            partitions: 5,
        },
    );
    request_case(
        "request-v1-cool-topic",
        &Request::CoolTopic {
            topic: t,
            wait: true,
        },
    );
    request_case(
        "request-v1-groups",
        &Request::Groups {
            group: Some(group("g1")),
        },
    );
    request_case("request-v1-groups-all", &Request::Groups { group: None });
    request_case("request-v1-ping", &Request::Ping);
    request_case(
        "request-v1-options",
        &Request::Options {
            max_queue_wait_ms: 250,
        },
    );
    request_case(
        "request-v1-authenticate",
        &Request::Authenticate {
            mechanism: "SCRAM-SHA-256",
            message: b"n,,n=user,r=x",
        },
    );
}

/// The body of a response vector, once its header is checked.
fn response_body(bytes: &[u8], status: u8) -> &[u8] {
    let header = ResponseHeader::decode(bytes.first_chunk().unwrap(), 1 << 20).unwrap();
    let body_bytes = u32::try_from(bytes.len() - RESPONSE_HEADER_BYTES).unwrap();
    assert_eq!(
        header,
        ResponseHeader {
            body_bytes,
            correlation_id: 7,
            status
        }
    );
    &bytes[RESPONSE_HEADER_BYTES..]
}

fn response_case<T: ResponseBody + PartialEq + std::fmt::Debug>(name: &str, response: &T) {
    let bytes = golden(name);
    assert_eq!(
        T::decode(response_body(&bytes, STATUS_OK)).as_ref(),
        Ok(response),
        "{name}"
    );
    let mut out = Vec::new();
    encode_response(7, response, &mut out);
    assert_eq!(out, bytes, "{name}");
}

fn fetch_case(name: &str, header: FetchResponseHeader, frames: &[u8]) {
    let bytes = golden(name);
    let body = response_body(&bytes, STATUS_OK);
    assert_eq!(
        FetchResponseHeader::decode_prefix(body),
        Ok((header, frames)),
        "{name}"
    );
    let mut out = Vec::new();
    encode_fetch_header(7, &header, u32::try_from(frames.len()).unwrap(), &mut out);
    out.extend_from_slice(frames);
    assert_eq!(out, bytes, "{name}");
}

#[test]
fn responses() {
    response_case("response-v1-empty", &EmptyResponse);
    let asked_on = AuthenticateResponse {
        done: false,
        message: b"r=xy,s=QQ==,i=4096".to_vec(),
    };
    response_case("response-v1-authenticate", &asked_on);
    let produced = ProduceResponse {
        base_offset: Offset(40),
        end_offset: Offset(42),
    };
    response_case("response-v1-produce", &produced);
    let fetched = FetchResponseHeader {
        log_start_offset: Offset(1),
        high_watermark: Offset(10),
        next_offset: Offset(3),
        end_reached: false,
    };
    fetch_case("response-v1-fetch", fetched, &golden("frame-v1-good"));
    fetch_case(
        "response-v1-fetch-end",
        FetchResponseHeader {
            next_offset: Offset(10),
            end_reached: true,
            ..fetched
        },
        &[],
    );
    let listed = ListOffsetsResponse {
        offset: Offset(5),
        timestamp_ns: 1000,
        found: true,
    };
    response_case("response-v1-list-offsets", &listed);
    let partition = PartitionMetadata {
        partition: PartitionId(0),
        log_start_offset: Offset(1),
        cold_end_offset: Offset(2),
        high_watermark: Offset(3),
        log_end_offset: Offset(4),
        hot_bytes: 5,
        cold_bytes: 6,
    };
    let metadata = TopicMetadata {
        topic: topic("t"),
        topic_id: 2,
        config: vec![("durability".to_owned(), "fsync".to_owned())],
        partitions: vec![partition],
    };
    response_case(
        "response-v1-metadata",
        &MetadataResponse {
            topics: vec![metadata],
        },
    );
    response_case(
        "response-v1-committed",
        &CommittedResponse {
            offset: Some(Offset(300)),
        },
    );
    response_case(
        "response-v1-committed-never",
        &CommittedResponse { offset: None },
    );
    let cooled = CoolTopicResponse {
        segment_count: 2,
        row_count: 100,
        bytes_in: 5000,
        bytes_out: 900,
    };
    response_case("response-v1-cool-topic", &cooled);
    let entry = GroupEntry {
        group: group("g1"),
        topic: topic("t"),
        partition: PartitionId(3),
        committed: Offset(5),
        high_watermark: Offset(9),
    };
    assert_eq!(entry.lag_records(), 4);
    response_case(
        "response-v1-groups",
        &GroupsResponse {
            groups: vec![entry],
        },
    );

    let bytes = golden("response-v1-error");
    let error = ErrorResponse {
        log_start_offset: Offset(50),
        high_watermark: Offset(60),
        ..ErrorResponse::new(ErrorKind::OffsetOutOfRange, "gone")
    };
    let status = ErrorKind::OffsetOutOfRange.code();
    assert_eq!(
        ErrorResponse::decode(status, response_body(&bytes, status)).as_ref(),
        Ok(&error)
    );
    let mut out = Vec::new();
    encode_error(7, &error, &mut out);
    assert_eq!(out, bytes);
}

/// The example that `SESSION.md` ends with is what the code says.
#[test]
fn the_documented_example_is_true() {
    let example: Vec<Vec<u8>> = include_str!("../../SESSION.md")
        .split("    -> ")
        .skip(1)
        .flat_map(|exchange| {
            exchange
                .split("    <- ")
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|message| hex(message.split("\n\n").next().unwrap()))
        .collect();
    let frames = golden("frame-v1-good");
    let (topic, partition, ack) = (topic("t"), PartitionId(3), AckLevel::Fsync);
    let mut opening = Vec::new();
    Opening::Session {
        version: SESSION_VERSION,
    }
    .encode_into(&mut opening);
    let mut request = Vec::new();
    Request::Produce(ProduceRequest {
        topic,
        partition,
        ack,
        frames: &frames,
    })
    .encode_into(7, &mut request);
    let mut response = Vec::new();
    let stored = ProduceResponse {
        base_offset: Offset(40),
        end_offset: Offset(41),
    };
    encode_response(7, &stored, &mut response);
    assert_eq!(example, [opening, vec![SESSION_VERSION], request, response]);
}

#[test]
fn every_vector_of_this_crate_is_used_above() {
    let source = include_str!("golden.rs");
    let names: BTreeSet<String> = fs::read_dir(GOLDEN)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".hex").map(str::to_owned))
        .filter(|name| {
            [
                "frame-",
                "opening-",
                "ack-",
                "batch-",
                "request-",
                "response-",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        })
        .collect();
    assert!(names.len() >= 41, "{names:?}");
    for name in names {
        assert!(
            source.contains(&format!("\"{name}\"")),
            "{name} is not used"
        );
    }
}
