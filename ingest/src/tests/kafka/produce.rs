use basalt_proto::batch::{Compression, RecordHeader};
use basalt_proto::{Frame, FrameKind, FrameLimits, FrameWalk};
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_is_stored_as_it_came_and_comes_back_so() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let mut end = 0;
    for (index, compression) in [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ]
    .into_iter()
    .enumerate()
    {
        let headers = [RecordHeader {
            key: b"h",
            value: None,
        }];
        let mut writer = BatchWriter::new(BatchFields::compressed(compression)).unwrap();
        for value in [Some(&b"one"[..]), None, Some(b"")] {
            let record = RecordToWrite {
                timestamp_ms: 5,
                key: Some(b"k"),
                value,
                headers: &headers,
            };
            writer.push(&record).unwrap();
        }
        let mut batch = Vec::new();
        writer.finish(&mut batch).unwrap();
        for version in [7, 9, 11] {
            let stored = client.produce(version, "t", &batch).await;
            assert_eq!((stored.error_code, stored.base_offset), (0, end));
            let data = client.fetch(12, "t", end).await;
            let (offsets, got) = batches(&data).swap_remove(0);
            assert_eq!(offsets.start, end.cast_unsigned());
            assert_eq!(got[12..], batch[12..], "{compression} in version {version}");
            end += 3;
        }
        assert_eq!(index as i64 + 1, end / 9);
    }
    assert_eq!(high_watermark(&harness, "t"), Offset(45));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_stores_and_answers_in_order() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let mut ids = Vec::new();
    let one = batch(&[(1, b"x")]);
    for version in 3..=11 {
        for acks in [1, -1] {
            let request = produce_request("t", acks, &[(0, &one)]);
            ids.push((
                version,
                client.send(ApiKey::Produce, version, &request).await,
            ));
        }
    }
    for (offset, (version, id)) in ids.into_iter().enumerate() {
        let answer: ProduceResponse = client.receive(ApiKey::Produce, version, id).await;
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset), (0, offset as i64));
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_acknowledgement_there_is_no_answer() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let one = batch(&[(1, b"x")]);
    let request = produce_request("t", 0, &[(0, &one)]);
    client.send(ApiKey::Produce, 9, &request).await;
    assert_eq!(client.stored("t", &one).await, 1);
    // A failure can only be told by the end of the connection.
    let request = produce_request("nowhere", 0, &[(0, &one)]);
    client.send(ApiKey::Produce, 9, &request).await;
    assert!(client.peer.rest().await.is_empty());
    harness.stop().await;
}

/// PUB-17: a damaged batch is refused by its own code, and by it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_17_damaged_batch_is_refused_and_the_other_partition_is_stored() {
    let harness = Harness::start().await;
    let topics = harness.shared.topics.clone();
    let topic = TopicName::new("t").unwrap();
    topics.create(topic, Some(2), Vec::new()).await.unwrap();
    let mut client = Client::connect(&harness).await;
    let good = batch(&[(1, b"x")]);
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() = 1;
    let all = [good.clone(), damaged, good.clone()].concat();
    let request = produce_request("t", -1, &[(0, &all), (1, &good)]);
    let answer: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    let partitions = &answer.responses[0].partition_responses;
    assert_eq!(
        (partitions[0].error_code, partitions[0].base_offset),
        (2, -1)
    );
    assert_eq!(
        (partitions[1].error_code, partitions[1].base_offset),
        (0, 0)
    );
    assert_eq!(high_watermark(&harness, "t"), Offset(0));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_batch_has_its_own_code() {
    let harness = Harness::start_with(|config| {
        config.limits.max_payload_bytes = 10_000;
        config.limits.max_records_bytes = 10_000;
    })
    .await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let good = batch(&[(1, b"x"), (2, b"y")]);
    let with = |at: usize, bytes: &[u8]| {
        let mut batch = good.clone();
        batch[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = basalt_log::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        batch
    };
    let numbered = |producer_epoch, base_sequence| BatchFields {
        producer_id: 1000,
        producer_epoch,
        base_sequence,
        ..BatchFields::default()
    };
    let large = vec![7; 10_001];
    let zeros = vec![0; 100_000];
    let bomb = BatchFields::compressed(Compression::Zstd);
    let cases = [
        ("no batch", 87_i16, Vec::new()),
        ("cut off", 2, good[..good.len() - 1].to_vec()),
        ("shorter than a header", 2, good[..30].to_vec()),
        ("magic 1", 87, with(16, &[1])),
        ("codec 5", 2, with(21, &[0, 5])),
        ("base offset 3", 87, with(0, &3_u64.to_be_bytes())),
        ("control", 87, with(21, &[0, 1 << 5])),
        ("transactional", 87, with(21, &[0, 1 << 4])),
        ("count 3", 87, with(57, &3_u32.to_be_bytes())),
        ("no epoch", 87, batch_with(numbered(-1, 0), &[(1, b"x")])),
        ("no sequence", 87, batch_with(numbered(0, -1), &[(1, b"x")])),
        (
            "two numbered at a time",
            87,
            batch_with(numbered(0, 0), &[(1, b"x")]).repeat(2),
        ),
        ("too large", 10, batch(&[(1, &large)])),
        ("too large unpacked", 10, batch_with(bomb, &[(1, &zeros)])),
        ("stamped by a broker", 32, with(21, &[0, 1 << 3])),
    ];
    for (what, code, bytes) in cases {
        let answer = client.produce(9, "t", &bytes).await;
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (code, -1),
            "{what}"
        );
    }
    // A count that a flipped bit made wrong is damage, not a wrong count.
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    assert_eq!(client.produce(9, "t", &flipped).await.error_code, 2);
    let packed = batch_with(BatchFields::compressed(Compression::Zstd), &[(1, b"x")]);
    assert_eq!(client.produce(3, "t", &packed).await.error_code, 76);
    assert_eq!(client.produce(9, "nowhere", &good).await.error_code, 3);
    let request = produce_request("t", 2, &[(0, &good)]);
    let answer: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 21);
    let request = produce_request("t", 1, &[(9, &good), (-1, &good)]);
    let answer: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    let codes: Vec<i16> = answer.responses[0]
        .partition_responses
        .iter()
        .map(|answer| answer.error_code)
        .collect();
    assert_eq!(codes, [3, 3]);
    assert_eq!(high_watermark(&harness, "t"), Offset(0));
    assert_eq!(client.stored("t", &good).await, 0);
    harness.stop().await;
}

impl Client {
    async fn init_producer(&mut self, version: i16, transactional_id: Option<&str>) -> (i16, i64) {
        let id = transactional_id.map(|id| StrBytes::from_string(id.to_owned()).into());
        let request = InitProducerIdRequest::default().with_transactional_id(id);
        let told: InitProducerIdResponse =
            self.call(ApiKey::InitProducerId, version, &request).await;
        (told.error_code, told.producer_id.0)
    }

    /// Sends a batch of two records by its number; code and offset.
    async fn numbered(&mut self, producer_id: i64, epoch: i16, first: i32) -> (i16, i64) {
        let fields = BatchFields {
            producer_id,
            producer_epoch: epoch,
            base_sequence: first,
            ..BatchFields::default()
        };
        let batch = batch_with(fields, &[(1, b"x"), (2, b"y")]);
        let answer = self.produce(9, "t", &batch).await;
        (answer.error_code, answer.base_offset)
    }
}

/// PUB-21, the bytes of the case: the answer was lost with its connection, then the server stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_21_batch_whose_answer_was_lost_is_stored_once() {
    let bytes = hex(
        "00000000000000000000005effffffff02d01114f600000000000400000000000003e800000000000003e8\
         00000000000003e8000000000000000000051000000001046d30001000000201046d31001000000401046d\
         32001000000601046d33001000000801046d3400"
            .replace(' ', "")
            .as_str(),
    );
    let record = |first: i32| {
        let fields = BatchFields {
            producer_id: 1000,
            producer_epoch: 0,
            base_sequence: first,
            ..BatchFields::default()
        };
        batch_with(fields, &[(1000, b"m")])
    };
    let mut harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let request = produce_request("t", -1, &[(0, &bytes)]);
    client.send(ApiKey::Produce, 9, &request).await;
    drop(client);
    for _ in 0..3 {
        for _ in 0..2 {
            let mut client = Client::connect(&harness).await;
            assert_eq!(client.stored("t", &bytes).await, 0);
            assert_eq!(high_watermark(&harness, "t"), Offset(5));
        }
        let dir = harness.stop_and_keep().await;
        harness = Harness::start_in(dir, Arc::new(RealDisk::new()), |_| {}, None).await;
    }
    let mut client = Client::connect(&harness).await;
    let answer = client.produce(9, "t", &record(7)).await;
    assert_eq!((answer.error_code, answer.base_offset), (45, -1));
    assert_eq!(high_watermark(&harness, "t"), Offset(5));
    assert_eq!(client.stored("t", &record(5)).await, 5);
    assert_eq!(high_watermark(&harness, "t"), Offset(6));
    harness.stop().await;
}

/// A batch is there once, whatever happened between its two sendings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_21_batch_that_is_sent_again_is_stored_once() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let mut ids = Vec::new();
    for version in 0..=4 {
        let (code, id) = client.init_producer(version, None).await;
        assert!(code == 0 && id >= 0 && !ids.contains(&id), "{code} {id}");
        ids.push(id);
    }
    assert_eq!(client.init_producer(4, Some("t")).await, (50, -1));
    assert_eq!(client.init_producer(4, Some("")).await, (42, -1));
    let id = ids[0];
    for first in [0, 2, 4] {
        assert_eq!(client.numbered(id, 0, first).await, (0, first.into()));
    }
    let mut other = Client::connect(&harness).await;
    let again = async |client: &mut Client, what: &str| {
        for first in [0, 4, 2] {
            let told = client.numbered(id, 0, first).await;
            assert_eq!(told, (0, first.into()), "{what}");
        }
        assert_eq!(high_watermark(&harness, "t"), Offset(6), "{what}");
    };
    again(&mut client, "on the same connection").await;
    again(&mut other, "on another one").await;
    assert_eq!(client.numbered(id, 0, 8).await, (45, -1), "one is missing");
    harness.seal("t").await;
    again(&mut client, "sealed").await;
    let topic = TopicName::new("t").unwrap();
    harness.log.cool_topic(&topic, true).await.unwrap();
    assert_eq!(harness.partition("t").bounds().hot_bytes, 0);
    again(&mut client, "cold").await;
    // Another producer has its own numbers; the same one in a new epoch begins anew, and ends the old one.
    assert_eq!(client.numbered(ids[1], 0, 0).await, (0, 6));
    assert_eq!(client.numbered(id, 1, 0).await, (0, 8));
    assert_eq!(client.numbered(id, 0, 6).await, (47, -1));
    for first in [2, 4, 6, 8, 10] {
        assert_eq!(client.numbered(id, 1, first).await.0, 0);
    }
    assert_eq!(client.numbered(id, 1, 0).await, (46, -1), "long stored");
    harness.stop().await;
}

/// Its length begins as an opening does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_that_begins_with_a_large_request_is_kafkas() {
    let _alone = MEMORY.lock().await;
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    for (offset, (mebibytes, version)) in (0..).zip([(17, 3), (33, 7), (49, 11)]) {
        let value = vec![b'v'; mebibytes << 20];
        let mut client = Client::connect(&harness).await;
        let answer = client.produce(version, "t", &batch(&[(1, &value)])).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, offset));
    }
    harness.stop().await;
}

/// Some producers leave it to the broker to say how late the latest record is: Kafka's does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_whose_records_are_later_than_it_says_is_stored_with_their_latest_stamp() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    for (compression, base) in [(Compression::None, 0), (Compression::Zstd, 6)] {
        let fields = BatchFields {
            max_timestamp_ms: Some(-1),
            ..BatchFields::compressed(compression)
        };
        let late = batch_with(fields, &[(5, b"x"), (9, b"y"), (7, b"z")]);
        let own = batch(&[(1, b"a"), (2, b"b"), (3, b"c")]);
        assert_eq!(
            client
                .stored("t", &[late.clone(), own.clone()].concat())
                .await,
            base
        );
        let data = client.fetch(12, "t", base).await;
        let all = batches(&data);
        let mut said = late.clone();
        basalt_proto::batch::patch_max_timestamp(&mut said, 9);
        assert_eq!(all[0].1[12..], said[12..], "{compression}");
        assert_eq!(all[1].1[12..], own[12..]);
        let got: Vec<i64> = records(&data).iter().map(|got| got.timestamp_ms).collect();
        assert_eq!(got, [5, 9, 7, 1, 2, 3]);
    }
    assert_eq!(client.at(8, "t", 8).await, (1, 9, 0));
    harness.stop().await;
}

/// PUB-07: microseconds where milliseconds were meant, more than u64 nanoseconds hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_07_stamp_beyond_nanoseconds_comes_back_exactly() {
    let bytes = hex(
        "00000000000000000000003affffffff028990940900000000000000063d030b2b6e8300063d030b2b6e83\
         ffffffffffffffffffffffffffff00000001100000000261023100"
            .replace(' ', "")
            .as_str(),
    );
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    assert_eq!(client.stored("t", &bytes).await, 0);
    let got = records(&client.fetch(12, "t", 0).await);
    assert_eq!(got[0].timestamp_ms, 1_755_933_141_855_875);
    harness.stop().await;
}

/// PUB-11: null, empty and absent are three things. As stored: the frame holds the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_11_null_and_empty_stay_apart() {
    let bytes = hex(
        "000000000000000000000051ffffffff02c9a2a63600000000000300000000000003e800000000000003e8\
         ffffffffffffffffffffffffffff000000040e000000026b01000e000002026b00000e000004010276000e\
         00000600027600"
            .replace(' ', "")
            .as_str(),
    );
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    assert_eq!(client.stored("t", &bytes).await, 0);
    let check = async |client: &mut Client| {
        let got = records(&client.fetch(12, "t", 0).await);
        let pairs: Vec<_> = got
            .iter()
            .map(|got| (got.key.as_deref(), got.value.as_deref()))
            .collect();
        let (k, v, empty) = (Some(&b"k"[..]), Some(&b"v"[..]), Some(&b""[..]));
        assert_eq!(pairs, [(k, None), (k, empty), (None, v), (empty, v)]);
    };
    check(&mut client).await;
    let topic = TopicName::new("t").unwrap();
    harness.log.cool_topic(&topic, true).await.unwrap();
    assert_eq!(harness.partition("t").bounds().hot_bytes, 0);
    check(&mut client).await;

    let slice = harness
        .partition("t")
        .read(Offset(0), Offset(4), 1 << 20)
        .await
        .unwrap();
    let frames: Vec<Frame<'_>> = FrameWalk::new(slice.bytes(), FrameLimits::default())
        .map(Result::unwrap)
        .collect();
    assert_eq!((frames.len(), frames[0].header.kind), (1, FrameKind::Batch));
    harness.stop().await;
}
