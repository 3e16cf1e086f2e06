//! Producers: order, pipelining, refusals.

use basalt_proto::session::{AckLevel, ProduceRequest, ProduceResponse, Request};
use basalt_proto::{ErrorKind, Offset};

use super::consume::batch_frame;
use super::session::Session;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_frames_are_acknowledged_in_order_and_replayed_byte_exact() {
    let harness = Harness::start().await;
    let frames: Vec<Vec<u8>> = (0..2000_u64)
        .map(|number| {
            frame(
                number * 7,
                format!("k{}", number % 3).as_bytes(),
                &vec![b'x'; (number % 97) as usize],
                1,
            )
        })
        .collect();
    let mut producer = harness.producer("t").await;
    producer.send(&frames.concat()).await;
    for expected in 0..2000 {
        assert_eq!(producer.stored().await, expected);
    }
    let mut consumer = harness.consumer("g", "t").await;
    for (number, sent) in frames.iter().enumerate() {
        let received = consumer.frame().await;
        assert_eq!(received.offset, number as u64);
        let mut expected = sent.clone();
        expected[9..17].copy_from_slice(&(number as u64).to_be_bytes());
        assert_eq!(received.bytes, expected, "frame {number}");
    }
    let count = harness.count();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert_eq!(
        (count.frames_in, count.records_in, count.bytes_in),
        (2000, 2000, bytes as u64)
    );
    harness
        .until("all bytes sent by sendfile", |count| {
            count.bytes_sendfile == bytes as u64
        })
        .await;
    assert_eq!(
        harness.count().bytes_copied,
        0,
        "lean frames never pass through the process"
    );
    assert!(
        count.appends < 200,
        "frames that arrive together are appended together, not in {} appends",
        count.appends
    );
    assert!(
        count.ack_writes <= count.appends,
        "one write acknowledges a whole append: {count:?}"
    );
    drop((producer, consumer));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_and_frames_may_arrive_in_single_bytes() {
    let harness = Harness::start().await;
    let mut bytes = produce_opening("drip", 0);
    bytes.extend_from_slice(&frame(1000, b"k1", b"a", 1));
    let mut producer = harness.connect().await;
    producer.stream.set_nodelay(true).unwrap();
    for byte in bytes {
        producer.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(producer.stored().await, 0);
    drop(producer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_before_a_bad_one_are_stored_and_the_bad_one_is_refused_with_its_reason() {
    let harness = Harness::start().await;
    let mut producer = harness.producer("t").await;
    let mut bytes = numbered_frames(2).concat();
    bytes.extend_from_slice(&header(0x07, 0, 0, 1, 1));
    bytes.push(b'x');
    bytes.extend_from_slice(&frame(0, b"", b"after", 1));
    producer.send(&bytes).await;
    assert_eq!((producer.stored().await, producer.stored().await), (0, 1));
    assert_eq!(
        refused(producer.ack().await),
        (ErrorKind::InvalidFrame.code(), 0)
    );
    assert_eq!(
        producer.rest().await,
        b"",
        "the connection ends behind the refusal"
    );
    assert_eq!(high_watermark(&harness, "t"), Offset(2));
    assert_eq!(harness.count().refused(ErrorKind::InvalidFrame), 1);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_of_exactly_the_limit_passes_and_one_byte_more_is_refused_from_its_header() {
    let _memory = MEMORY.lock().await;
    let harness = Harness::start().await;
    let payload: Vec<u8> = (0..52_428_800_u32)
        .map(|at| (at % 251).to_be_bytes()[3])
        .collect();
    let mut producer = harness.producer("large").await;
    producer.send(&frame(5, b"key", &payload, 1)).await;
    assert_eq!(producer.stored().await, 0);
    producer.send(&header(0x01, 0, 0, 52_428_801, 1)).await;
    assert_eq!(
        refused(producer.ack().await),
        (ErrorKind::TooLarge.code(), 0)
    );
    assert_eq!(producer.rest().await, b"");
    let mut consumer = harness.consumer("g", "large").await;
    let received = consumer.frame().await;
    assert_eq!(
        (
            received.timestamp_ns,
            received.offset,
            received.key.as_slice()
        ),
        (5, 0, &b"key"[..])
    );
    assert!(
        received.payload == payload,
        "the payload comes back exactly"
    );
    drop(consumer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_several_records_take_as_many_offsets_and_zero_counts_as_one() {
    let harness = Harness::start().await;
    let frames = [
        frame(0, b"", b"a", 5),
        frame(0, b"", b"b", 0),
        frame(0, b"", b"c", 3),
        frame(0, b"", b"d", 1),
    ];
    assert_eq!(harness.produce("t", &frames).await, [0, 5, 6, 9]);
    assert_eq!(high_watermark(&harness, "t"), Offset(10));
    let mut consumer = harness.consumer("g", "t").await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(consumer.frame().await.record_count);
    }
    assert_eq!(counts, [5, 1, 3, 1], "0 is stored as 1");
    drop(consumer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_partition_is_refused_with_its_reason() {
    let harness = Harness::start().await;
    let mut producer = harness.connect().await;
    producer.send(&produce_opening("t", 1)).await;
    assert_eq!(
        refused(producer.ack().await),
        (ErrorKind::UnknownPartition.code(), 0)
    );
    assert_eq!(producer.rest().await, b"");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_that_closes_its_side_still_gets_its_acknowledgements() {
    let harness = Harness::start().await;
    let mut producer = harness.producer("t").await;
    producer.send(&numbered_frames(50).concat()).await;
    producer.stream.shutdown().await.unwrap();
    let acks = producer.rest().await;
    assert_eq!(acks.len(), 50 * 9);
    assert!(
        acks.chunks(9)
            .enumerate()
            .all(|(at, ack)| ack[0] == 0 && ack[8] as usize == at)
    );
    harness.stop().await;
}

/// Batch frames are read beside the threads that serve sockets, by few at a time; whoever sends record frames does not
/// wait for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_frames_wait_for_a_place_to_be_checked_and_record_frames_do_not() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    let mut batches = harness.producer("batches").await;
    let mut records = harness.producer("records").await;
    let places = harness.shared.verifier.take_all().await;
    batches.send(&batch_frame(4)).await;
    let frames = batch_frame(2);
    let produce = Request::Produce(ProduceRequest {
        topic: TopicName::new("session").unwrap(),
        partition: PartitionId(0),
        ack: AckLevel::Os,
        frames: &frames,
    });
    session.send(&produce).await;
    for offset in 0..20 {
        records.send(&frame(1, b"", &[0x02; 100], 1)).await;
        assert_eq!(records.stored().await, offset);
    }
    batches
        .stays_open_and_silent(Duration::from_millis(100))
        .await;
    assert_eq!(
        harness.count().frames_in,
        20,
        "no batch is stored unchecked"
    );
    drop(places);
    assert_eq!(batches.stored().await, 0);
    let response: ProduceResponse = session.receive().await.ok();
    assert_eq!(response.end_offset, Offset(2));
    drop((batches, records, session));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_run_of_batch_and_record_frames_is_acknowledged_in_order_up_to_a_bad_batch() {
    let harness = Harness::start().await;
    let one_round = [batch_frame(3), frame(1, b"", b"one", 1)].concat();
    let mut bad = batch_frame(3);
    *bad.last_mut().unwrap() ^= 1;
    let rounds = (400 << 10) / one_round.len();
    let mut producer = harness.producer("t").await;
    let bytes = [one_round.repeat(rounds), bad, one_round].concat();
    producer.try_send(&bytes).await;
    for round in 0..rounds as u64 {
        assert_eq!(producer.stored().await, round * 4);
        assert_eq!(producer.stored().await, round * 4 + 3);
    }
    assert_eq!(
        refused(producer.ack().await),
        (ErrorKind::InvalidFrame.code(), 0)
    );
    assert_eq!(producer.rest().await, b"");
    assert_eq!(
        high_watermark(&harness, "t"),
        Offset(rounds as u64 * 4),
        "what stands before the bad one is stored, nothing else"
    );
    harness.stop().await;
}
