//! More than the server can do at once: producers that wait or are refused as they chose, peers that do not read.

use std::collections::BTreeSet;

use basalt_proto::ErrorKind;
use basalt_proto::session::{
    AckLevel, EmptyResponse, ProduceRequest, ProduceResponse, REQUEST_HEADER_BYTES, Request,
};

use super::durability::{Hold, start_gated, start_gated_with};
use super::session::Session;
use super::*;

fn produce(ack: AckLevel, frames: &[u8]) -> Request<'_> {
    Request::Produce(ProduceRequest {
        topic: TopicName::new("t").unwrap(),
        partition: PartitionId(0),
        ack,
        frames,
    })
}

async fn session_that_waits(harness: &Harness, max_queue_wait_ms: u32) -> Session {
    let mut session = Session::open(harness).await;
    let options = Request::Options { max_queue_wait_ms };
    session.ask(&options).await.ok::<EmptyResponse>();
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_that_would_not_wait_for_the_disk_is_refused_and_nothing_of_it_is_stored() {
    let (harness, gate) = start_gated().await;
    let frame = frame(1, b"", b"x", 1);
    let fsync = produce(AckLevel::Fsync, &frame);
    let mut hasty = session_that_waits(&harness, 0).await;
    let mut patient = session_that_waits(&harness, 60_000).await;
    let mut default = Session::open(&harness).await;
    let stored = hasty.ask(&fsync).await.ok::<ProduceResponse>();
    assert_eq!(
        stored.base_offset,
        Offset(0),
        "nothing has to be waited for"
    );

    let hold = Hold::on(&gate);
    let waiting = patient.send(&fsync).await;
    harness
        .until("it is appended", |count| count.frames_in == 2)
        .await;
    let refused = hasty.ask(&fsync).await.refused();
    assert_eq!(refused.kind, ErrorKind::Busy);
    assert!((10..=1000).contains(&refused.retry_after_ms), "{refused:?}");
    // Other levels wait for nothing, and other producers wait as they chose.
    let os = produce(AckLevel::Os, &frame);
    let stored = hasty.ask(&os).await.ok::<ProduceResponse>();
    assert_eq!(stored.base_offset, Offset(2));
    let waiting_too = default.send(&fsync).await;
    harness
        .until("it is appended", |count| count.frames_in == 4)
        .await;

    drop(hold);
    for (session, id, offset) in [(&mut patient, waiting, 1), (&mut default, waiting_too, 3)] {
        let answer = session.receive().await;
        let stored = answer.ok::<ProduceResponse>();
        assert_eq!((answer.id, stored.base_offset), (id, Offset(offset)));
    }
    let stored = hasty.ask(&fsync).await.ok::<ProduceResponse>();
    assert_eq!(
        stored.base_offset,
        Offset(4),
        "the refused one took no offset"
    );
    assert_eq!(harness.count().refused(ErrorKind::Busy), 1);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_that_would_not_wait_for_a_place_is_refused() {
    let gate = Arc::default();
    let harness = start_gated_with(&gate, |config| {
        config.max_in_flight_requests = 2;
    })
    .await;
    let frame = frame(1, b"", b"x", 1);
    let fsync = produce(AckLevel::Fsync, &frame);
    let hold = Hold::on(&gate);
    let mut session = session_that_waits(&harness, 100).await;
    let first = session.send(&fsync).await;
    let second = session.send(&fsync).await;
    let third = session.send(&fsync).await;
    let refused = session.receive().await;
    assert_eq!(
        (refused.id, refused.refused().kind),
        (third, ErrorKind::Busy)
    );
    drop(hold);
    for id in [first, second] {
        let stored = session.receive().await;
        stored.ok::<ProduceResponse>();
        assert_eq!(stored.id, id);
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_request_for_which_there_is_no_memory_is_passed_over_by_who_would_not_wait() {
    let _memory = MEMORY.lock().await;
    let harness = Harness::start().await;
    let all = harness
        .shared
        .large_frames
        .take(harness.shared.large_frames.bytes());
    let all = all.await.unwrap();
    let large = frame(1, b"", &vec![7; 3 << 20], 1);
    let mut session = session_that_waits(&harness, 1).await;
    let refused = session.ask(&produce(AckLevel::Os, &large)).await.refused();
    assert_eq!(refused.kind, ErrorKind::Busy);
    session.send(&produce(AckLevel::None, &large)).await;
    session.ask(&Request::Ping).await.ok::<EmptyResponse>();
    assert_eq!(harness.count().refused(ErrorKind::Busy), 2);
    assert_eq!(harness.count().frames_in, 0);
    drop(all);
    let stored = session.ask(&produce(AckLevel::Os, &large)).await;
    assert_eq!(stored.ok::<ProduceResponse>().base_offset, Offset(0));
    harness.stop().await;
}

/// Answers that are ready and answers that come later share the socket of a peer that takes them in pieces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_a_peer_that_does_not_read_for_long_all_come_whole() {
    const REQUESTS: u32 = 150_000;
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    let mut bytes = Vec::new();
    for id in 0..REQUESTS {
        if id % 3 == 0 {
            Request::Ping.encode_into(id, &mut bytes);
        } else {
            // Without a frame it is refused at once.
            produce(AckLevel::Os, &[]).encode_into(id, &mut bytes);
        }
    }
    assert!(bytes.len() > REQUEST_HEADER_BYTES);
    let (mut read, mut write) = session.peer.stream.split();
    let writing = async {
        // More than the buffers on the way hold: it ends only when the answers are read.
        write.write_all(&bytes).await.unwrap();
    };
    let counters = Arc::clone(&harness.counters);
    let reading = async {
        let mut last = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let requests = counters.snapshot().requests;
            if requests == last && requests > 0 {
                break;
            }
            last = requests;
        }
        assert!(
            last < u64::from(REQUESTS),
            "the server reads on without end"
        );
        let mut ids = BTreeSet::new();
        let mut head = [0; 9];
        let mut body = Vec::new();
        while ids.len() < REQUESTS as usize {
            read.read_exact(&mut head).await.unwrap();
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let (length, id, status) = (number(0), number(4), head[8]);
            assert_eq!(status == 0, id % 3 == 0, "request {id} has status {status}");
            assert!(ids.insert(id), "request {id} is answered twice");
            body.resize(length as usize - 5, 0);
            read.read_exact(&mut body).await.unwrap();
        }
    };
    patient(async { tokio::join!(writing, reading) }).await;
    harness.stop().await;
}
