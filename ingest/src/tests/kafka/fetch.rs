use basalt_log::Durability;
use basalt_proto::{FrameBatch, FrameLimits};

use super::*;

/// Frames of all sorts in turn: small and large ones, ones of many records, and batches.
fn mixed(count: u32) -> Vec<Vec<u8>> {
    let sort = |number: u32| {
        let stamp = u64::from(number) * 1_000_000 + 999_999;
        let payload = number.to_string().into_bytes();
        match number % 40 {
            13 => frame(stamp, b"k", &vec![b'x'; 5000], 1),
            21 => frame(stamp, b"", &payload, 3),
            30 => batch_frame(stamp, 3, 10),
            31 => batch_frame(stamp, 2, 20_000),
            _ => frame(
                stamp,
                if number.is_multiple_of(2) { b"" } else { b"k" },
                &payload,
                1,
            ),
        }
    };
    (0..count).map(sort).collect()
}

fn batch_frame(stamp: u64, count: u32, value_bytes: usize) -> Vec<u8> {
    let value = vec![b'v'; value_bytes];
    let ms = (stamp / 1_000_000).cast_signed();
    let records: Vec<(i64, &[u8])> = (0..count).map(|_| (ms, &value[..])).collect();
    let batch = batch(&records);
    let bytes = u32::try_from(batch.len()).unwrap();
    [header(0x02, stamp, 0, bytes, count), batch].concat()
}

/// What a consumer that begins at `from` is given up to `end`, with the answers' first offsets left out: only records at or
/// behind its position count.
async fn consume(client: &mut Client, version: i16, from: u64, end: u64) -> Vec<Got> {
    let (mut position, mut got) = (from, Vec::new());
    while position < end {
        let data = client.fetch(version, "t", position.cast_signed()).await;
        assert_eq!(data.error_code, 0);
        let batches = batches(&data);
        let first = &batches.first().expect("there is more to read").0;
        assert!(
            first.end > position,
            "a batch that is over: {first:?} at {position}"
        );
        got.extend(
            records(&data)
                .into_iter()
                .filter(|record| record.offset >= position),
        );
        position = batches.last().unwrap().0.end;
    }
    assert_eq!(position, end);
    got
}

/// KAF-5, from every offset, hot, half cold and all cold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_comes_once_from_wherever_one_begins() {
    let harness = Harness::start().await;
    let frames = mixed(300);
    harness.produce("t", &frames[..200]).await;
    let mut client = Client::connect(&harness).await;
    let hot = consume(&mut client, 11, 0, high_watermark(&harness, "t").0).await;
    harness.seal("t").await;
    harness.produce("t", &frames[200..]).await;
    let end = high_watermark(&harness, "t").0;
    let all = consume(&mut client, 11, 0, end).await;
    assert_eq!(all[..hot.len()], hot);
    // One for each frame, and one for each record of a batch.
    assert_eq!(all.len(), 300 + 7 * 2 + 7);
    for (number, got) in all.iter().enumerate().take(13) {
        let key = (number % 2 == 1).then(|| b"k".to_vec());
        let value = Some(number.to_string().into_bytes());
        let offset = number as u64;
        assert_eq!(
            *got,
            Got {
                offset,
                timestamp_ms: number as i64,
                key,
                value
            }
        );
    }
    let check = async |client: &mut Client, what: &str| {
        for from in 0..end {
            let got = consume(client, 12, from, end).await;
            // The record of a frame that spans `from` is before it.
            let expected = all.iter().filter(|record| record.offset >= from);
            assert!(got.iter().eq(expected), "{what} from {from}");
        }
    };
    check(&mut client, "hot").await;
    let cooling = async || {
        let topic = TopicName::new("t").unwrap();
        harness.log.cool_topic(&topic, true).await.unwrap();
    };
    cooling().await;
    assert_eq!(harness.partition("t").bounds().hot_bytes, 0);
    check(&mut client, "cold").await;
    harness.produce("t", &numbered_frames(40)).await;
    let bounds = harness.partition("t").bounds();
    assert!(bounds.cold_end_offset.0 == end && bounds.high_watermark.0 == end + 40);
    let got = consume(&mut client, 12, 0, end + 40).await;
    assert_eq!(got.len(), all.len() + 40);
    harness.stop().await;
}

/// PROTO-12 through the whole path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_is_always_in_the_same_batch() {
    let harness = Harness::start().await;
    harness.produce("t", &mixed(300)).await;
    let mut client = Client::connect(&harness).await;
    let mut known = std::collections::BTreeMap::new();
    for from in 0..high_watermark(&harness, "t").0 {
        let data = client.fetch(12, "t", from.cast_signed()).await;
        let all = batches(&data);
        assert!(all[0].0.contains(&from));
        for (offsets, batch) in all {
            let first = known.entry(offsets.start).or_insert_with(|| batch.clone());
            assert!(*first == batch, "{offsets:?} from {from}");
        }
    }
    let mut next = 0;
    for (start, batch) in &known {
        assert_eq!(*start, next, "batches overlap");
        let delta = u32::from_be_bytes(batch[23..27].try_into().unwrap());
        next = start + u64::from(delta) + 1;
    }
    harness.stop().await;
}

/// PUB-09: whoever asks for the middle of a frame of many records gets the frame, and goes on behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_09_middle_of_a_frame_is_answered_with_the_frame() {
    let harness = Harness::start().await;
    let frames = [
        frame(0, b"", b"f0", 5),
        frame(0, b"", b"f1", 1),
        frame(0, b"", b"f2", 3),
        frame(0, b"", b"f3", 1),
    ];
    harness.produce("t", &frames).await;
    let mut client = Client::connect(&harness).await;
    for (from, first) in [
        (0, 0..5),
        (3, 0..5),
        (5, 5..6),
        (7, 6..9),
        (8, 6..9),
        (9, 9..10),
    ] {
        let all = batches(&client.fetch(12, "t", from).await);
        assert_eq!(all[0].0, first, "at {from}");
        assert_eq!(all.last().unwrap().0.end, 10);
    }
    assert!(batches(&client.fetch(12, "t", 10).await).is_empty());
    harness.stop().await;
}

/// PUB-10: positions outside the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_10_offset_outside_the_log_is_refused_with_its_bounds() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(50)).await;
    harness.seal("t").await;
    harness.produce("t", &numbered_frames(10)).await;
    harness.expire("t", 50).await;
    let mut client = Client::connect(&harness).await;
    for offset in [-1, 0, 49, 61, 1000] {
        let data = client.fetch(12, "t", offset).await;
        assert_eq!(data.error_code, 1, "{offset}");
        assert_eq!((data.log_start_offset, data.high_watermark), (50, 60));
    }
    let data = client.fetch(12, "t", 60).await;
    assert_eq!((data.error_code, records(&data).len()), (0, 0));
    harness.produce("t", &numbered_frames(5)).await;
    let mut got = records(&client.fetch(12, "t", 60).await);
    got.retain(|record| record.offset >= 60);
    assert_eq!(got.len(), 5);
    assert_eq!((got[0].offset, got[4].offset), (60, 64));
    // The batch of a small frame would begin before the log does.
    let got = records(&client.fetch(12, "t", 50).await);
    assert_eq!(got[0].offset, 50);
    harness.stop().await;
}

/// PUB-18: a record larger than every limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_18_first_batch_comes_however_large_and_every_partition_has_its_turn() {
    let harness = Harness::start().await;
    let topics = harness.shared.topics.clone();
    let topic = TopicName::new("t").unwrap();
    topics.create(topic, Some(2), Vec::new()).await.unwrap();
    let mut client = Client::connect(&harness).await;
    let (small, large) = (vec![1; 10], vec![2; 1 << 20]);
    for value in [&small, &large, &small] {
        let one = batch(&[(1, value)]);
        let request = produce_request("t", 1, &[(0, &one), (1, &one)]);
        let _: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    }
    for version in 4..=12 {
        for offset in 0..3 {
            let mut request = fetch_request(&[("t", &[(0, offset)])]).with_max_bytes(1);
            request.topics[0].partitions[0].partition_max_bytes = 1;
            let answer: FetchResponse = client.call(ApiKey::Fetch, version, &request).await;
            let got = records(&answer.responses[0].partitions[0]);
            assert_eq!(got.len(), 1, "version {version} at {offset}");
            assert_eq!(got[0].offset, offset.cast_unsigned());
        }
    }
    // In the same order each time, and by a client that begins with another one each time.
    let mut served = [0, 0];
    for (at, turns) in [false, false, false, false, true, true, true, true]
        .into_iter()
        .enumerate()
    {
        if at == 4 {
            assert!(served[0] >= 2 && served[1] >= 2, "{served:?}");
            served = [0, 0];
        }
        let mut request = fetch_request(&[("t", &[(0, 1), (1, 1)])]).with_max_bytes(1);
        if turns && at % 2 == 1 {
            request.topics[0].partitions.reverse();
        }
        let answer: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
        for data in &answer.responses[0].partitions {
            served[usize::try_from(data.partition_index).unwrap()] += records(data).len();
        }
    }
    assert!(served[0] >= 2 && served[1] >= 2, "{served:?}");
    assert!(
        harness.count().bytes_sendfile > 9 << 20,
        "large batches are not copied"
    );
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_waits_for_what_comes_and_no_longer_than_asked() {
    let harness = Harness::start().await;
    let mut producer = Client::connect(&harness).await;
    let mut client = Client::connect(&harness).await;
    producer.metadata(9, "t").await;
    let waiting = fetch_request(&[("t", &[(0, 0)])])
        .with_min_bytes(1)
        .with_max_wait_ms(60_000);
    let id = client.send(ApiKey::Fetch, 12, &waiting).await;
    // Done before the fetch, answered behind it.
    let one = batch(&[(1, b"x")]);
    let produce = produce_request("t", 1, &[(0, &one)]);
    let second = client.send(ApiKey::Produce, 9, &produce).await;
    let answer: FetchResponse = client.receive(ApiKey::Fetch, 12, id).await;
    assert_eq!(records(&answer.responses[0].partitions[0]).len(), 1);
    let _: ProduceResponse = client.receive(ApiKey::Produce, 9, second).await;

    let request = waiting.clone().with_max_wait_ms(50).with_min_bytes(1 << 20);
    let answer: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
    assert_eq!(records(&answer.responses[0].partitions[0]).len(), 1);
    // Nothing is asked for, so nothing is waited for.
    let request = fetch_request(&[])
        .with_min_bytes(1)
        .with_max_wait_ms(60_000);
    let _: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
    // Nor where a read ends before what there is does.
    harness.seal("t").await;
    client.stored("t", &one).await;
    let request = waiting.with_min_bytes(1 << 20);
    let answer: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
    assert!(!records(&answer.responses[0].partitions[0]).is_empty());

    let request = fetch_request(&[("t", &[(0, 2)])])
        .with_min_bytes(1)
        .with_max_wait_ms(60_000);
    let id = client.send(ApiKey::Fetch, 12, &request).await;
    let topics = harness.shared.topics.clone();
    topics.delete(TopicName::new("t").unwrap()).await.unwrap();
    let answer: FetchResponse = client.receive(ApiKey::Fetch, 12, id).await;
    assert_eq!(answer.responses[0].partitions[0].error_code, 3);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_fetched_by_id_and_sessions_are_declined() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let topic_id = client.metadata(12, "t").await.topic_id;
    client.stored("t", &batch(&[(1, b"x")])).await;
    for version in 13..=16 {
        let mut request = fetch_request(&[("", &[(0, 0)])]).with_session_epoch(0);
        request.topics[0].topic_id = topic_id;
        let answer: FetchResponse = client.call(ApiKey::Fetch, version, &request).await;
        assert_eq!(answer.session_id, 0);
        assert_eq!(answer.responses[0].topic_id, topic_id);
        assert_eq!(records(&answer.responses[0].partitions[0]).len(), 1);
        request.topics[0].topic_id = Default::default();
        let answer: FetchResponse = client.call(ApiKey::Fetch, version, &request).await;
        assert_eq!(answer.responses[0].partitions[0].error_code, 100);
    }
    for (id, epoch, code) in [(5, 1, 70), (0, 1, 71)] {
        let request = fetch_request(&[("t", &[(0, 0)])])
            .with_session_id(id)
            .with_session_epoch(epoch);
        let answer: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
        assert_eq!(answer.error_code, code);
    }
    harness.stop().await;
}

/// PUB-23: after a restart the log may go on behind offsets that nobody has. Who has read all there is gets to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_23_hole_at_the_end_is_stepped_over() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("data");
    let log = open_log(&root, Arc::new(RealDisk::new())).await;
    let topic = TopicName::new("t").unwrap();
    log.topic_or_create(&topic).unwrap();
    let bytes = numbered_frames(90).concat();
    let frames = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
    let partition = log.partition(&topic, PartitionId(0)).unwrap();
    partition.append(&frames, Durability::None).unwrap();
    drop((partition, log));
    // Reserved up to 1000, in a boot of the machine that is over.
    let mut reserved = b"BSLTRSV1".to_vec();
    reserved.extend(1000_u64.to_be_bytes().repeat(2));
    reserved.resize(60, 0);
    reserved.extend(basalt_log::crc32c(&reserved).to_be_bytes());
    std::fs::write(root.join("topics/t/0/reserved"), reserved).unwrap();

    let harness = Harness::start_in(dir, Arc::new(RealDisk::new()), |_| {}, None).await;
    assert_eq!(high_watermark(&harness, "t"), Offset(1000));
    let mut client = Client::connect(&harness).await;
    for version in [4, 11, 12] {
        for from in [0, 89, 90, 500, 999] {
            assert_eq!(
                consume(&mut client, version, from, 1000).await.len() as u64,
                90_u64.saturating_sub(from)
            );
        }
    }
    // There is nothing to wait for.
    let request = fetch_request(&[("t", &[(0, 90)])])
        .with_min_bytes(1 << 20)
        .with_max_wait_ms(60_000);
    let answer: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
    // Told by what stands at the last of them.
    let told = batches(&answer.responses[0].partitions[0]);
    assert_eq!((told.len(), told[0].0.clone()), (1, 999..1000));
    harness.stop().await;
}

/// PUB-23: offsets that no record has, at the seam of hot and cold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_23_behind_the_last_cold_record_comes_the_first_hot_one() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(89)).await;
    harness.produce("t", &[frame(0, b"", b"wide", 11)]).await;
    harness.seal("t").await;
    let topic = TopicName::new("t").unwrap();
    harness.log.cool_topic(&topic, true).await.unwrap();
    harness.produce("t", &[frame(0, b"", b"hot", 1)]).await;
    assert_eq!(harness.partition("t").bounds().cold_end_offset, Offset(100));
    let mut client = Client::connect(&harness).await;
    for from in [85, 90, 95, 99, 100] {
        let all = consume(&mut client, 12, from, 101).await;
        assert_eq!(all.last().unwrap().value.as_deref(), Some(&b"hot"[..]));
    }
    harness.stop().await;
}
