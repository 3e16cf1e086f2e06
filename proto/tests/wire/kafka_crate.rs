//! Record batches against the `kafka-protocol` crate, both ways. Its header map drops repeated keys and takes text only,
//! so those cases are left to the other tests.

use std::collections::BTreeMap;

use basalt_proto::batch::{
    BatchFields, BatchReader, BatchWriter, Compression, RecordBatch, RecordHeader, RecordToWrite,
};
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression as TheirCompression, Record, RecordBatchDecoder, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use proptest::prelude::*;

use crate::support::{COMPRESSIONS, OwnedRecord, check, records};

fn theirs(compression: Compression) -> TheirCompression {
    match compression {
        Compression::None => TheirCompression::None,
        Compression::Gzip => TheirCompression::Gzip,
        Compression::Snappy => TheirCompression::Snappy,
        Compression::Lz4 => TheirCompression::Lz4,
        Compression::Zstd => TheirCompression::Zstd,
    }
}

/// Headers that both sides can say: text keys, each once, in some order.
fn sayable(records: Vec<OwnedRecord>) -> Vec<OwnedRecord> {
    let once = |headers: Vec<(Vec<u8>, Option<Vec<u8>>)>| {
        let text = headers
            .into_iter()
            .filter(|(key, _)| str::from_utf8(key).is_ok());
        text.collect::<BTreeMap<_, _>>().into_iter().rev().collect()
    };
    records
        .into_iter()
        .map(|record| OwnedRecord {
            headers: once(record.headers),
            ..record
        })
        .collect()
}

fn their_record(index: usize, record: &OwnedRecord) -> Record {
    let index = i64::try_from(index).unwrap();
    Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 3,
        producer_id: 1000,
        producer_epoch: 7,
        timestamp_type: TimestampType::Creation,
        offset: 50 + index,
        sequence: 20 + i32::try_from(index).unwrap(),
        timestamp: record.timestamp_ms,
        key: record.key.clone().map(Bytes::from),
        value: record.value.clone().map(Bytes::from),
        headers: record
            .headers
            .iter()
            .map(|(key, value)| {
                let key = StrBytes::from_string(String::from_utf8(key.clone()).unwrap());
                (key, value.clone().map(Bytes::from))
            })
            .collect(),
    }
}

fn our_record(record: &Record) -> OwnedRecord {
    OwnedRecord {
        timestamp_ms: record.timestamp,
        key: record.key.as_deref().map(<[u8]>::to_vec),
        value: record.value.as_deref().map(<[u8]>::to_vec),
        headers: record
            .headers
            .iter()
            .map(|(key, value)| {
                (
                    key.as_bytes().to_vec(),
                    value.as_deref().map(<[u8]>::to_vec),
                )
            })
            .collect(),
    }
}

#[test]
fn we_read_what_the_crate_writes() {
    check(records().prop_map(sayable), |records| {
        for compression in COMPRESSIONS {
            let written: Vec<_> = records
                .iter()
                .enumerate()
                .map(|(index, r)| their_record(index, r))
                .collect();
            let options = RecordEncodeOptions {
                version: 2,
                compression: theirs(compression),
            };
            let mut batch = BytesMut::new();
            RecordBatchEncoder::encode(&mut batch, &written, &options).unwrap();

            let header = RecordBatch::validate(&batch).unwrap();
            RecordBatch::verify_records(&batch, 1 << 20).unwrap();
            prop_assert_eq!(header.compression, compression);
            prop_assert_eq!((header.base_offset, header.partition_leader_epoch), (50, 3));
            prop_assert_eq!(
                (
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence
                ),
                (1000, 7, 20)
            );
            prop_assert!(
                header.is_transactional() && !header.is_control() && !header.is_log_append_time()
            );
            let reader = BatchReader::open(&batch, 1 << 20).unwrap();
            let read: Vec<_> = reader.records().map(Result::unwrap).collect();
            prop_assert_eq!(read.len(), records.len());
            for (read, written) in read.iter().zip(&records) {
                prop_assert_eq!(read.timestamp_ms, written.timestamp_ms);
                prop_assert_eq!(
                    (read.key, read.value),
                    (written.key.as_deref(), written.value.as_deref())
                );
                let headers: Vec<_> = read
                    .headers
                    .iter()
                    .map(|h| (h.key.to_vec(), h.value.map(<[u8]>::to_vec)))
                    .collect();
                prop_assert_eq!(&headers, &written.headers);
            }
        }
        Ok(())
    });
}

#[test]
fn the_crate_reads_what_we_write() {
    check(records().prop_map(sayable), |records| {
        for compression in COMPRESSIONS {
            let fields = BatchFields {
                base_offset: 50,
                partition_leader_epoch: 3,
                producer_id: 1000,
                producer_epoch: 7,
                base_sequence: 20,
                ..BatchFields::compressed(compression)
            };
            let fields = BatchFields {
                attributes: fields.attributes | 1 << 4,
                ..fields
            };
            let mut writer = BatchWriter::new(fields).unwrap();
            for record in &records {
                let headers: Vec<_> = record
                    .headers
                    .iter()
                    .map(|(key, value)| RecordHeader {
                        key,
                        value: value.as_deref(),
                    })
                    .collect();
                let record = RecordToWrite {
                    timestamp_ms: record.timestamp_ms,
                    key: record.key.as_deref(),
                    value: record.value.as_deref(),
                    headers: &headers,
                };
                writer.push(&record).unwrap();
            }
            let mut batch = Vec::new();
            writer.finish(&mut batch).unwrap();

            let sets = RecordBatchDecoder::decode_all(&mut Bytes::from(batch)).unwrap();
            prop_assert_eq!(sets.len(), 1);
            let read = &sets[0].records;
            prop_assert_eq!(read.len(), records.len());
            for (index, (read, written)) in read.iter().zip(&records).enumerate() {
                prop_assert_eq!(&our_record(read), written);
                prop_assert_eq!(read.offset, 50 + i64::try_from(index).unwrap());
                prop_assert_eq!(read.sequence, 20 + i32::try_from(index).unwrap());
                prop_assert!(read.transactional);
                prop_assert_eq!(read.producer_id, 1000);
            }
        }
        Ok(())
    });
}
