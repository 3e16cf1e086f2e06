//! What must hold of any value, and of any bytes.

use basalt_proto::batch::{
    BatchError, BatchFields, BatchReader, BatchWriter, MAX_DECOMPRESSED_BYTES, RecordBatch,
    RecordHeader, RecordToWrite, patch_base_offset, patch_leader_epoch,
};
use basalt_proto::session::*;
use basalt_proto::*;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::support::{
    COMPRESSIONS, OwnedRecord, check, frames, groups, headers, offsets, partitions, payloads,
    records, topics,
};

#[test]
fn frame_headers_come_back() {
    check(headers(), |header| {
        prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        Ok(())
    });
}

#[test]
fn frames_come_back_and_every_cut_yields_the_whole_ones_before_it() {
    check(frames(), |(bytes, ends)| {
        let limits = FrameLimits::default();
        let batch = FrameBatch::parse(&bytes, &limits).unwrap();
        prop_assert_eq!(batch.frame_count(), ends.len());
        let mut again = Vec::new();
        for frame in batch.frames() {
            frame.unwrap().encode_into(&mut again);
        }
        prop_assert_eq!(&again, &bytes);

        for cut in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let prefix = FrameBatch::parse_prefix(&bytes[..cut], &limits);
            prop_assert_eq!(prefix.batch.map_or(0, |batch| batch.frame_count()), whole);
            let refused = FrameBatch::parse(&bytes[..cut], &limits);
            let start = ends.get(whole.wrapping_sub(1)).copied().unwrap_or(0);
            if cut == start {
                prop_assert_eq!(prefix.stop, FrameStop::End);
                prop_assert_eq!(refused.is_ok(), whole > 0);
            } else {
                let FrameStop::Incomplete {
                    needed_bytes,
                    available_bytes,
                } = prefix.stop
                else {
                    return Err(TestCaseError::fail(format!(
                        "cut at {cut}: {:?}",
                        prefix.stop
                    )));
                };
                prop_assert_eq!(available_bytes, cut - start);
                prop_assert!(needed_bytes > available_bytes as u64);
                prop_assert!(needed_bytes <= (ends[whole] - start) as u64);
                prop_assert_eq!(
                    refused.unwrap_err(),
                    FrameError::Incomplete {
                        position: start,
                        needed_bytes,
                        available_bytes
                    }
                );
            }
        }
        Ok(())
    });
}

#[test]
fn flipped_bits_never_lead_out_of_the_buffer_or_over_the_limits() {
    check((frames(), any::<Index>()), |((mut bytes, _), bit)| {
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let limits = FrameLimits {
            max_key_bytes: 1000,
            max_payload_bytes: 2000,
            max_records_bytes: 2000,
        };
        let mut walk = FrameWalk::new(&bytes, limits);
        let mut total = 0;
        let mut failed = false;
        for frame in &mut walk {
            let Ok(frame) = frame else {
                failed = true;
                continue;
            };
            prop_assert!(!failed, "a frame after an error");
            prop_assert!(frame.key.len() <= 1000 && frame.payload.len() <= 2000);
            prop_assert_eq!(frame.key.len(), frame.header.key_bytes as usize);
            prop_assert_eq!(frame.payload.len(), frame.header.payload_bytes as usize);
            prop_assert!(frame.header.end_offset() <= Offset::MAX);
            total += FRAME_HEADER_BYTES + frame.key.len() + frame.payload.len();
        }
        prop_assert_eq!(total, walk.position());
        prop_assert!(total <= bytes.len());
        let prefix = FrameBatch::parse_prefix(&bytes, &limits);
        if let FrameStop::Incomplete { needed_bytes, .. } = prefix.stop {
            prop_assert!(needed_bytes <= limits.max_frame_bytes());
        }
        Ok(())
    });
}

/// The lengths of each frame, one bit at a time: none is believed against the limits or the buffer.
#[test]
fn every_flipped_length_is_refused_or_stays_within_the_buffer() {
    check(frames(), |(bytes, _)| {
        let limits = FrameLimits {
            max_key_bytes: 250,
            max_payload_bytes: 250,
            max_records_bytes: 250,
        };
        for bit in 17 * 8..25 * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let prefix = FrameBatch::parse_prefix(&flipped, &limits);
            if let Some(batch) = prefix.batch {
                prop_assert!(batch.bytes().len() <= bytes.len());
            }
            let honest = FrameHeader::decode(bytes.first_chunk().unwrap()).unwrap();
            let header = FrameHeader::decode(flipped.first_chunk().unwrap()).unwrap();
            if header.key_bytes > 250 || header.payload_bytes > 250 {
                prop_assert!(
                    matches!(
                        prefix.stop,
                        FrameStop::Refused {
                            skip_bytes: None,
                            ..
                        }
                    ),
                    "bit {bit}"
                );
                prop_assert!(prefix.batch.is_none());
            } else {
                prop_assert_ne!(header.frame_bytes(), honest.frame_bytes());
            }
        }
        Ok(())
    });
}

#[test]
fn patches_change_their_field_alone() {
    check(
        (frames(), offsets(), any::<u32>()),
        |((bytes, _), offset, record_count)| {
            let mut patched = bytes.clone();
            patch_offset(&mut patched, offset);
            patch_record_count(&mut patched, record_count);
            let before = FrameHeader::decode(bytes.first_chunk().unwrap()).unwrap();
            let after = FrameHeader::decode(patched.first_chunk().unwrap()).unwrap();
            prop_assert_eq!(
                after,
                FrameHeader {
                    offset,
                    record_count,
                    ..before
                }
            );
            prop_assert_eq!(&patched[FRAME_HEADER_BYTES..], &bytes[FRAME_HEADER_BYTES..]);
            Ok(())
        },
    );
}

fn openings() -> impl Strategy<Value = Opening> {
    prop_oneof![
        (topics(), partitions())
            .prop_map(|(topic, partition)| Opening::Produce { topic, partition }),
        (groups(), topics(), partitions()).prop_map(|(group, topic, partition)| Opening::Consume {
            group,
            topic,
            partition
        }),
        (groups(), topics(), partitions(), offsets()).prop_map(
            |(group, topic, partition, offset)| Opening::Commit {
                group,
                topic,
                partition,
                offset
            }
        ),
        any::<u8>().prop_map(|version| Opening::Session { version }),
    ]
}

#[test]
fn openings_come_back_and_every_cut_asks_for_more() {
    check((openings(), payloads()), |(opening, behind)| {
        let mut bytes = Vec::new();
        opening.encode_into(&mut bytes);
        prop_assert!(bytes.len() <= MAX_OPENING_BYTES);
        let whole = bytes.len();
        for cut in 0..whole {
            prop_assert_eq!(Opening::parse(&bytes[..cut]), Ok(None));
        }
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(Opening::parse(&bytes), Ok(Some((opening, whole))));
        Ok(())
    });
}

#[test]
fn any_bytes_are_an_opening_or_refused_within_its_longest() {
    let bytes = prop::collection::vec(any::<u8>(), MAX_OPENING_BYTES);
    check((bytes, 0..6_u8), |(mut bytes, caller)| {
        bytes[0] = caller;
        let parsed = Opening::parse(&bytes);
        prop_assert!(
            !matches!(parsed, Ok(None)),
            "asks for more than the longest opening"
        );
        Ok(())
    });
}

#[test]
fn acks_come_back() {
    let refused =
        (prop::sample::select(ErrorKind::ALL), any::<u32>()).prop_map(|(kind, retry_after_ms)| {
            Ack::Refused {
                kind,
                retry_after_ms,
            }
        });
    check(
        prop_oneof![offsets().prop_map(Ack::Stored), refused],
        |ack| {
            prop_assert_eq!(Ack::decode(ack.encode()), Ok(ack));
            Ok(())
        },
    );
    check(any::<[u8; ACK_BYTES]>(), |bytes| {
        if let Ok(ack) = Ack::decode(bytes) {
            prop_assert_eq!(ack.encode(), bytes);
        }
        Ok(())
    });
}

fn configs() -> impl Strategy<Value = ConfigPairs> {
    prop::collection::vec(("[a-z_]{0,20}", "\\PC{0,40}"), 0..5)
}

fn starts() -> impl Strategy<Value = Start> {
    prop_oneof![
        offsets().prop_map(Start::Offset),
        Just(Start::Earliest),
        Just(Start::Latest),
        any::<u64>().prop_map(Start::Timestamp)
    ]
}

/// Requests without frames; those of a produce request are added by the tests.
fn requests() -> impl Strategy<Value = Request<'static>> {
    let levels = prop::sample::select(vec![
        AckLevel::None,
        AckLevel::Os,
        AckLevel::Fsync,
        AckLevel::TopicDefault,
    ]);
    let sizes = (any::<u32>(), any::<u32>(), any::<u32>());
    prop_oneof![
        (topics(), partitions(), levels).prop_map(|(topic, partition, ack)| Request::Produce(
            ProduceRequest {
                topic,
                partition,
                ack,
                frames: &[]
            }
        )),
        (topics(), partitions(), starts(), sizes, offsets()).prop_map(
            |(topic, partition, start, (max_bytes, min_bytes, max_wait_ms), end_offset)| {
                Request::Fetch(FetchRequest {
                    topic,
                    partition,
                    start,
                    max_bytes,
                    min_bytes,
                    max_wait_ms,
                    end_offset,
                })
            }
        ),
        (topics(), partitions(), starts()).prop_map(|(topic, partition, start)| {
            Request::ListOffsets(ListOffsetsRequest {
                topic,
                partition,
                start,
            })
        }),
        prop::collection::vec(topics(), 0..5).prop_map(|topics| Request::Metadata { topics }),
        (groups(), topics(), partitions(), offsets()).prop_map(
            |(group, topic, partition, offset)| Request::Commit {
                group,
                topic,
                partition,
                offset
            }
        ),
        (groups(), topics(), partitions(), offsets()).prop_map(
            |(group, topic, partition, offset)| Request::Seek {
                group,
                topic,
                partition,
                offset
            }
        ),
        (groups(), topics(), partitions()).prop_map(|(group, topic, partition)| {
            Request::Committed {
                group,
                topic,
                partition,
            }
        }),
        (topics(), any::<u32>(), configs()).prop_map(|(topic, partitions, config)| {
            Request::CreateTopic {
                topic,
                partitions,
                config,
            }
        }),
        topics().prop_map(|topic| Request::DeleteTopic { topic }),
        (topics(), configs()).prop_map(|(topic, config)| Request::AlterTopic { topic, config }),
        (topics(), any::<u32>())
            .prop_map(|(topic, partitions)| Request::AddPartitions { topic, partitions }),
        (topics(), any::<bool>()).prop_map(|(topic, wait)| Request::CoolTopic { topic, wait }),
        prop::option::of(groups()).prop_map(|group| Request::Groups { group }),
        Just(Request::Ping),
        any::<u32>().prop_map(|max_queue_wait_ms| Request::Options { max_queue_wait_ms }),
        proptest::sample::select(vec!["PLAIN", "SCRAM-SHA-256"]).prop_map(|mechanism| {
            Request::Authenticate {
                mechanism,
                message: b"n,,n=user,r=x",
            }
        }),
    ]
}

#[test]
fn requests_come_back_and_every_cut_is_refused() {
    check(
        (requests(), payloads(), any::<u32>()),
        |(request, frames, correlation_id)| {
            let request = match request {
                Request::Produce(request) => Request::Produce(ProduceRequest {
                    frames: &frames,
                    ..request
                }),
                other => other,
            };
            let mut bytes = Vec::new();
            request.encode_into(correlation_id, &mut bytes);
            let header = RequestHeader::decode(bytes.first_chunk().unwrap(), u32::MAX).unwrap();
            prop_assert_eq!(
                (header.kind, header.correlation_id),
                (request.kind(), correlation_id)
            );
            let body = &bytes[REQUEST_HEADER_BYTES..];
            prop_assert_eq!(header.body_bytes as usize, body.len());
            prop_assert_eq!(&Request::decode(header.kind, body).unwrap(), &request);

            // What is whatever is left cannot be cut off, only what stands before it.
            let rest = match &request {
                Request::Produce(request) => request.frames.len(),
                Request::Authenticate { message, .. } => message.len(),
                _ => 0,
            };
            let fixed = body.len() - rest;
            for cut in 0..fixed {
                let refused = Request::decode(header.kind, &body[..cut]);
                prop_assert!(
                    matches!(refused, Err(SessionError::Truncated { .. })),
                    "{cut}: {refused:?}"
                );
            }
            if !matches!(request, Request::Produce(_) | Request::Authenticate { .. }) {
                let longer = [body, &[0]].concat();
                prop_assert_eq!(
                    Request::decode(header.kind, &longer),
                    Err(SessionError::TrailingBytes { found_bytes: 1 })
                );
            }
            Ok(())
        },
    );
}

#[test]
fn a_sealed_request_is_the_request_with_its_frames() {
    check(
        (topics(), partitions(), payloads(), any::<u32>()),
        |(topic, partition, frames, correlation_id)| {
            let request = ProduceRequest {
                topic,
                partition,
                ack: AckLevel::Os,
                frames: &[],
            };
            let mut grown = Vec::new();
            Request::Produce(request.clone()).encode_into(0, &mut grown);
            grown.extend_from_slice(&frames);
            seal_request(&mut grown, correlation_id);
            let mut whole = Vec::new();
            Request::Produce(ProduceRequest {
                frames: &frames,
                ..request
            })
            .encode_into(correlation_id, &mut whole);
            prop_assert_eq!(grown, whole);
            Ok(())
        },
    );
}

#[test]
fn any_bytes_are_a_request_or_refused() {
    check((0..14_u8, payloads()), |(kind, body)| {
        let _ = Request::decode(kind, &body);
        Ok(())
    });
    check((requests(), any::<Index>()), |(request, bit)| {
        let mut bytes = Vec::new();
        request.encode_into(1, &mut bytes);
        let body = &mut bytes[REQUEST_HEADER_BYTES..];
        if !body.is_empty() {
            let bit = bit.index(body.len() * 8);
            body[bit / 8] ^= 1 << (bit % 8);
            let _ = Request::decode(request.kind(), body);
        }
        Ok(())
    });
}

fn topic_metadata() -> impl Strategy<Value = TopicMetadata> {
    let partition = (
        partitions(),
        [offsets(), offsets(), offsets(), offsets()],
        any::<u64>(),
        any::<u64>(),
    )
        .prop_map(
            |(partition, [start, cold, high, end], hot_bytes, cold_bytes)| PartitionMetadata {
                partition,
                log_start_offset: start,
                cold_end_offset: cold,
                high_watermark: high,
                log_end_offset: end,
                hot_bytes,
                cold_bytes,
            },
        );
    (
        topics(),
        any::<u64>(),
        configs(),
        prop::collection::vec(partition, 0..4),
    )
        .prop_map(|(topic, topic_id, config, partitions)| TopicMetadata {
            topic,
            topic_id,
            config,
            partitions,
        })
}

fn response_comes_back<T: ResponseBody + PartialEq + std::fmt::Debug>(
    response: &T,
) -> Result<(), TestCaseError> {
    let mut bytes = Vec::new();
    encode_response(9, response, &mut bytes);
    let header = ResponseHeader::decode(bytes.first_chunk().unwrap(), u32::MAX).unwrap();
    let body = &bytes[RESPONSE_HEADER_BYTES..];
    prop_assert_eq!(
        header,
        ResponseHeader {
            body_bytes: u32::try_from(body.len()).unwrap(),
            correlation_id: 9,
            status: STATUS_OK
        }
    );
    prop_assert_eq!(&T::decode(body).unwrap(), response);
    for cut in 0..body.len() {
        prop_assert!(
            matches!(T::decode(&body[..cut]), Err(SessionError::Truncated { .. })),
            "{}",
            cut
        );
    }
    prop_assert_eq!(
        T::decode(&[body, &[0]].concat()),
        Err(SessionError::TrailingBytes { found_bytes: 1 })
    );
    Ok(())
}

#[test]
fn responses_come_back_and_every_cut_is_refused() {
    response_comes_back(&EmptyResponse).unwrap();
    check(
        (offsets(), offsets(), any::<u64>(), any::<bool>()),
        |(base_offset, end_offset, number, flag)| {
            response_comes_back(&ProduceResponse {
                base_offset,
                end_offset,
            })?;
            response_comes_back(&ListOffsetsResponse {
                offset: base_offset,
                timestamp_ns: number,
                found: flag,
            })?;
            response_comes_back(&CommittedResponse {
                offset: flag.then_some(base_offset),
            })?;
            response_comes_back(&CoolTopicResponse {
                segment_count: u32::try_from(number >> 32).unwrap(),
                row_count: number,
                bytes_in: base_offset.0,
                bytes_out: end_offset.0,
            })
        },
    );
    check(prop::collection::vec(topic_metadata(), 0..4), |topics| {
        response_comes_back(&MetadataResponse { topics })
    });
    let entry = (groups(), topics(), partitions(), offsets(), offsets()).prop_map(
        |(group, topic, partition, committed, high_watermark)| GroupEntry {
            group,
            topic,
            partition,
            committed,
            high_watermark,
        },
    );
    check(prop::collection::vec(entry, 0..4), |groups| {
        response_comes_back(&GroupsResponse { groups })
    });
}

#[test]
fn fetch_headers_and_errors_come_back() {
    let bounds = (offsets(), offsets(), offsets(), any::<bool>());
    check(
        (bounds, payloads()),
        |((log_start_offset, high_watermark, next_offset, end_reached), frames)| {
            let header = FetchResponseHeader {
                log_start_offset,
                high_watermark,
                next_offset,
                end_reached,
            };
            let body = [&header.encode()[..], &frames].concat();
            prop_assert_eq!(
                FetchResponseHeader::decode_prefix(&body),
                Ok((header, &frames[..]))
            );
            for cut in 0..FETCH_RESPONSE_HEADER_BYTES {
                prop_assert!(FetchResponseHeader::decode_prefix(&body[..cut]).is_err());
            }
            Ok(())
        },
    );
    let kinds = prop::sample::select(ErrorKind::ALL);
    check(
        (kinds, any::<u32>(), offsets(), offsets(), "\\PC{0,80}"),
        |(kind, retry, start, high, message)| {
            let error = ErrorResponse {
                kind,
                retry_after_ms: retry,
                log_start_offset: start,
                high_watermark: high,
                message,
            };
            let mut bytes = Vec::new();
            encode_error(3, &error, &mut bytes);
            let body = &bytes[RESPONSE_HEADER_BYTES..];
            prop_assert_eq!(&ErrorResponse::decode(kind.code(), body).unwrap(), &error);
            for cut in 0..body.len() {
                prop_assert!(ErrorResponse::decode(kind.code(), &body[..cut]).is_err());
            }
            Ok(())
        },
    );
}

/// The records as a batch.
fn write(fields: BatchFields, records: &[OwnedRecord]) -> Vec<u8> {
    let mut writer = BatchWriter::new(fields).unwrap();
    for record in records {
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(key, value)| RecordHeader {
                key,
                value: value.as_deref(),
            })
            .collect();
        writer
            .push(&RecordToWrite {
                timestamp_ms: record.timestamp_ms,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &headers,
            })
            .unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    assert_eq!(writer.record_count(), 0);
    batch
}

fn read(batch: &[u8], max_bytes: u64) -> Result<Vec<OwnedRecord>, BatchError> {
    let reader = BatchReader::open(batch, max_bytes)?;
    let records = reader.records().map(|record| {
        record.map(|record| OwnedRecord {
            timestamp_ms: record.timestamp_ms,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: record
                .headers
                .iter()
                .map(|header| (header.key.to_vec(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        })
    });
    records.collect()
}

#[test]
fn batches_come_back_in_every_compression() {
    let fields = (
        any::<i64>(),
        any::<i32>(),
        any::<i64>(),
        any::<i16>(),
        any::<i32>(),
        -50_000..50_000_i64,
    );
    check(
        (records(), fields),
        |(records, (offset, epoch, producer_id, producer_epoch, sequence, base_ms))| {
            for compression in COMPRESSIONS {
                let fields = BatchFields {
                    base_offset: offset,
                    partition_leader_epoch: epoch,
                    base_timestamp_ms: Some(base_ms),
                    producer_id,
                    producer_epoch,
                    base_sequence: sequence,
                    ..BatchFields::compressed(compression)
                };
                let mut batch = write(fields, &records);
                let header = RecordBatch::validate(&batch).unwrap();
                prop_assert_eq!(header.compression, compression);
                prop_assert_eq!(header.record_count as usize, records.len());
                prop_assert_eq!(
                    (header.base_offset, header.partition_leader_epoch),
                    (offset, epoch)
                );
                prop_assert_eq!(
                    (
                        header.producer_id,
                        header.producer_epoch,
                        header.base_sequence
                    ),
                    (producer_id, producer_epoch, sequence)
                );
                prop_assert_eq!(header.base_timestamp_ms, base_ms);
                prop_assert_eq!(
                    Some(header.max_timestamp_ms),
                    records.iter().map(|record| record.timestamp_ms).max()
                );
                RecordBatch::verify_records(&batch, MAX_DECOMPRESSED_BYTES).unwrap();
                prop_assert_eq!(
                    read(&batch, MAX_DECOMPRESSED_BYTES).unwrap(),
                    records.clone()
                );

                patch_base_offset(&mut batch, Offset(77));
                patch_leader_epoch(&mut batch, 5);
                let patched = RecordBatch::validate(&batch).unwrap();
                prop_assert_eq!(
                    (patched.base_offset, patched.partition_leader_epoch),
                    (77, 5)
                );
            }
            Ok(())
        },
    );
}

#[test]
fn cut_and_flipped_batches_are_refused() {
    check(
        (records(), any::<Index>(), 0..5_usize),
        |(records, bit, compression)| {
            let batch = write(BatchFields::compressed(COMPRESSIONS[compression]), &records);
            for cut in 0..batch.len() {
                prop_assert!(
                    RecordBatch::validate(&batch[..cut]).is_err(),
                    "cut at {cut}"
                );
            }
            // The base offset and the leader epoch lie outside the checksum; every other bit is covered by a check.
            let bit = bit.index(batch.len() * 8);
            if (8..12).contains(&(bit / 8)) || bit / 8 >= 16 {
                let mut flipped = batch;
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(RecordBatch::validate(&flipped).is_err(), "bit {bit}");
            }
            Ok(())
        },
    );
}

/// A producer can compute a right checksum over wrong records: then what is inside must be refused or read, and never
/// leads out of the batch or over the limit.
#[test]
fn wrong_records_under_a_right_checksum_are_refused_or_read() {
    check(
        (
            records(),
            prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
            0..5_usize,
        ),
        |(records, changes, compression)| {
            let mut batch = write(BatchFields::compressed(COMPRESSIONS[compression]), &records);
            for (at, byte) in changes {
                let at = 61 + at.index(batch.len() - 61);
                batch[at] = byte;
            }
            let crc = crc32c(&batch[21..]);
            batch[17..21].copy_from_slice(&crc.to_be_bytes());
            RecordBatch::validate(&batch).unwrap();
            let limit = 64 << 10;
            let found = read(&batch, limit);
            if let Ok(found) = &found {
                prop_assert_eq!(found.len(), records.len());
            }
            // What is admitted can be read, and what cannot be read is not admitted.
            let mut frame_bytes = Vec::new();
            let count = u32::try_from(records.len()).unwrap();
            Frame::batch(0, &batch, count).encode_into(&mut frame_bytes);
            let limits = FrameLimits {
                max_payload_bytes: 64 << 10,
                max_records_bytes: 64 << 10,
                ..FrameLimits::default()
            };
            let admitted = FrameBatch::parse(&frame_bytes, &limits).is_ok();
            prop_assert!(!admitted || found.is_ok());
            Ok(())
        },
    );
}

/// CRC-32C bit by bit, so that the tests do not use what they test.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82F6_3B78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

#[test]
fn expanding_a_batch_frame_gives_its_records_at_the_frames_offsets() {
    check(
        (records(), 0..1_u64 << 40, 0..5_usize),
        |(records, offset, compression)| {
            let batch = write(BatchFields::compressed(COMPRESSIONS[compression]), &records);
            let mut bytes = Vec::new();
            Frame::batch(5, &batch, u32::try_from(records.len()).unwrap()).encode_into(&mut bytes);
            patch_offset(&mut bytes, Offset(offset));
            let parsed = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
            prop_assert_eq!(parsed.record_count(), records.len() as u64);
            let frame = parsed.frames().next().unwrap().unwrap();
            let mut next = 0;
            let flow = expand(&frame, |record| {
                let expected = &records[next];
                assert_eq!(record.offset, Offset(offset + next as u64));
                assert_eq!(record.timestamp_ms, Some(expected.timestamp_ms));
                let ns = u64::try_from(expected.timestamp_ms)
                    .ok()
                    .and_then(|ms| ms.checked_mul(1_000_000));
                assert_eq!(record.timestamp_ns, ns);
                assert_eq!(
                    (record.key, record.payload),
                    (expected.key.as_deref(), expected.value.as_deref())
                );
                assert_eq!(record.headers.len(), expected.headers.len());
                for (found, (key, value)) in record.headers.iter().zip(&expected.headers) {
                    assert_eq!((found.key, found.value), (&key[..], value.as_deref()));
                }
                next += 1;
                std::ops::ControlFlow::<()>::Continue(())
            });
            prop_assert!(flow.unwrap().is_continue());
            prop_assert_eq!(next, records.len());
            Ok(())
        },
    );
}
