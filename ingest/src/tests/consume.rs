//! Consumers and commits: where they begin, what they are sent, how they wait and end.

use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::{COMMIT_ACCEPTED, ErrorKind};

use super::*;

/// PUB-09: resume inside a frame of several records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_09_resume_inside_a_frame_begins_with_that_whole_frame() {
    let harness = Harness::start().await;
    let frames = [
        frame(0, b"", b"F0", 5),
        frame(0, b"", b"F1", 1),
        frame(0, b"", b"F2", 3),
        frame(0, b"", b"F3", 1),
    ];
    assert_eq!(harness.produce("t", &frames).await, [0, 5, 6, 9]);
    let names = ["F0", "F1", "F2", "F3"];
    for (committed, first) in [
        (0, 0),
        (3, 0),
        (4, 0),
        (5, 1),
        (6, 2),
        (7, 2),
        (8, 2),
        (9, 3),
    ] {
        let group = format!("g{committed}");
        harness.commit(&group, "t", committed).await;
        let mut consumer = harness.consumer(&group, "t").await;
        for name in &names[first..] {
            assert_eq!(
                consumer.frame().await.payload,
                name.as_bytes(),
                "committed {committed}"
            );
        }
        consumer
            .stays_open_and_silent(Duration::from_millis(20))
            .await;
    }
    harness.stop().await;
}

/// PUB-10, native: committed offsets outside the log. Before it: fast-forward to its start. Beyond it: resume at the
/// end, so that everything produced from then on is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_10_committed_offsets_outside_the_log_resume_at_its_nearest_end() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(50)).await;
    harness.seal("t").await;
    harness.produce("t", &numbered_frames(10)).await;
    harness.expire("t", 50).await;
    let mut waiting = Vec::new();
    for (committed, first) in [
        (0, 50),
        (49, 50),
        (50, 50),
        (55, 55),
        (60, 60),
        (61, 60),
        (1000, 60),
    ] {
        let group = format!("g{committed}");
        harness.commit(&group, "t", committed).await;
        let mut consumer = harness.consumer(&group, "t").await;
        for offset in first..60 {
            assert_eq!(
                consumer.frame().await.offset,
                offset,
                "committed {committed}"
            );
        }
        waiting.push((committed, consumer));
    }
    for (_, consumer) in &mut waiting {
        consumer
            .stays_open_and_silent(Duration::from_millis(10))
            .await;
    }
    harness.produce("t", &numbered_frames(5)).await;
    for (committed, consumer) in &mut waiting {
        for offset in 60..65 {
            assert_eq!(
                consumer.frame().await.offset,
                offset,
                "committed {committed}"
            );
        }
    }
    drop(waiting);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_consumer_is_woken_by_an_append() {
    let harness = Harness::start().await;
    let mut consumer = harness.consumer("g", "t").await;
    let mut producer = harness.producer("t").await;
    for number in 0..100_u64 {
        producer
            .send(&frame(number, b"", &number.to_be_bytes(), 1))
            .await;
        assert_eq!(producer.stored().await, number);
        assert_eq!(consumer.frame().await.payload, number.to_be_bytes());
    }
    drop((producer, consumer));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_that_vanishes_while_waiting_frees_its_descriptor() {
    let harness = Harness::start().await;
    let mut consumers = Vec::new();
    for _ in 0..50 {
        consumers.push(harness.consumer("g", "t").await);
    }
    harness
        .until("all are open", |count| count.connections_open == 50)
        .await;
    drop(consumers);
    harness
        .until("none is open", |count| count.connections_open == 0)
        .await;
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_that_closed_its_side_gets_what_is_there_and_then_the_end() {
    let harness = Harness::start().await;
    let frames = numbered_frames(3);
    harness.produce("t", &frames).await;
    let mut consumer = harness.consumer("g", "t").await;
    consumer.stream.shutdown().await.unwrap();
    assert_eq!(consumer.rest().await.len(), frames.concat().len());
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_to_a_new_topic_makes_it_as_any_first_use_does() {
    let harness = Harness::start().await;
    let mut peer = harness.connect().await;
    peer.send(&commit_opening("g", "new", 0, 1)).await;
    assert_eq!(peer.rest().await, [COMMIT_ACCEPTED]);
    assert!(
        harness
            .log
            .log()
            .topic(&TopicName::new("new").unwrap())
            .is_some()
    );
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_commit_is_answered_by_no_byte_at_all() {
    let harness = Harness::start().await;
    harness.produce("there", &numbered_frames(1)).await;
    let mut peer = harness.connect().await;
    peer.send(&commit_opening("g", "there", 7, 1)).await;
    assert_eq!(
        peer.rest().await,
        b"",
        "any byte would mean success to a HermitMQ client"
    );
    let count = harness.count();
    assert_eq!(count.refused(ErrorKind::UnknownPartition), 1);
    harness.stop().await;
}

pub(super) fn batch_frame(count: u32) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields {
        attributes: 1,
        ..BatchFields::default()
    })
    .unwrap();
    for number in 0..count {
        let value = format!("value {number}");
        writer
            .push(&RecordToWrite {
                timestamp_ms: i64::from(number) + 1,
                key: (number % 2 == 0).then_some(&b"even"[..]),
                value: (number != 1).then_some(value.as_bytes()),
                headers: &[],
            })
            .unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    let mut out = header(
        0x02,
        1_000_000,
        0,
        u32::try_from(batch.len()).unwrap(),
        count,
    );
    out.extend_from_slice(&batch);
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_frames_reach_native_consumers_as_record_frames() {
    let harness = Harness::start().await;
    let frames = [
        frame(7, b"k", b"before", 1),
        batch_frame(4),
        frame(9, b"", b"after", 2),
    ];
    assert_eq!(harness.produce("t", &frames).await, [0, 1, 5]);
    let expected = [
        (0, 7, &b"k"[..], &b"before"[..], 1),
        (1, 1_000_000, b"even", b"value 0", 1),
        (2, 2_000_000, b"", b"", 1),
        (3, 3_000_000, b"even", b"value 2", 1),
        (4, 4_000_000, b"", b"value 3", 1),
        (5, 9, b"", b"after", 2),
    ];
    for start in [0_usize, 1, 3, 5] {
        let group = format!("g{start}");
        harness.commit(&group, "t", start as u64).await;
        let mut consumer = harness.consumer(&group, "t").await;
        for expected in &expected[start..] {
            let got = consumer.frame().await;
            let got = (
                got.offset,
                got.timestamp_ns,
                &got.key[..],
                &got.payload[..],
                got.record_count,
            );
            assert_eq!(got, *expected, "started at {start}");
        }
        consumer
            .stays_open_and_silent(Duration::from_millis(10))
            .await;
    }
    assert!(harness.count().bytes_copied > 0);
    harness.stop().await;
}

/// PUB-19: retention passes a reader that stands still inside a frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_19_reader_overtaken_by_retention_gets_the_rest_of_its_frame_and_then_a_next_one() {
    let harness = Harness::start().await;
    let payload = |number: u8| vec![number; 1 << 20];
    let frames: Vec<Vec<u8>> = (0..24)
        .map(|number| frame(0, b"", &payload(number), 1))
        .collect();
    harness.produce("t", &frames[..20]).await;
    harness.seal("t").await;
    harness.produce("t", &frames[20..]).await;
    let mut consumer = harness.consumer("g", "t").await;
    let first = consumer.exact(29 + 1000).await;
    assert!(first[29..].iter().all(|byte| *byte == 0));
    harness.expire("t", 20).await;
    harness
        .produce("t", &[frame(0, b"", &payload(99), 1)])
        .await;
    assert!(
        consumer
            .exact((1 << 20) - 1000)
            .await
            .iter()
            .all(|byte| *byte == 0),
        "the rest of the frame it was in"
    );
    let mut last = 0;
    while last < 24 {
        let next = consumer.frame().await;
        assert!(next.offset > last, "{} after {last}", next.offset);
        let expected = if next.offset == 24 {
            99
        } else {
            u8::try_from(next.offset).unwrap()
        };
        assert!(next.payload.len() == 1 << 20 && next.payload.iter().all(|byte| *byte == expected));
        last = next.offset;
    }
    drop(consumer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_frames_wait_for_a_place_to_be_expanded_and_record_frames_do_not() {
    let harness = Harness::start().await;
    harness.produce("batches", &[batch_frame(2)]).await;
    harness.produce("records", &numbered_frames(1)).await;
    let places = harness.shared.verifier.take_all().await;
    let mut batches = harness.consumer("g", "batches").await;
    let mut records = harness.consumer("g", "records").await;
    assert_eq!(records.frame().await.payload, b"0");
    batches
        .stays_open_and_silent(Duration::from_millis(100))
        .await;
    drop(places);
    assert_eq!(batches.frame().await.payload, b"value 0");
    drop((batches, records));
    harness.stop().await;
}
