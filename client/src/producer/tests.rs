#![allow(clippy::unwrap_used)]

use std::time::Duration;

use basalt_proto::ErrorKind;
use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::session::{AckLevel, EmptyResponse, ErrorResponse};

use super::*;
use crate::error::{ConnectError, ConnectionLost};
use crate::testing::{PARTITION, TestServer, soon, topic};

/// Each record is a batch of its own, and goes out at once.
fn one_by_one() -> ProducerConfig {
    ProducerConfig {
        linger: Duration::ZERO,
        batch_bytes: 1,
        ..ProducerConfig::default()
    }
}

fn patient() -> ProducerConfig {
    ProducerConfig {
        linger: Duration::from_secs(3600),
        ..ProducerConfig::default()
    }
}

fn record(payload: &'static str) -> RecordToSend {
    RecordToSend {
        timestamp_ns: 1,
        key: None,
        payload: Bytes::from_static(payload.as_bytes()),
    }
}

fn producer(server: &TestServer, config: ProducerConfig) -> Producer {
    Producer::start(Arc::new(server.config()), topic(), PARTITION, config)
}

async fn send(producer: &Producer, payload: &'static str) -> Delivery {
    soon(producer.send(record(payload))).await.unwrap()
}

#[tokio::test]
async fn batches_are_under_way_together_in_order_and_answers_find_theirs() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            max_in_flight: 3,
            ..one_by_one()
        },
    );
    let mut deliveries = Vec::new();
    for payload in ["a", "b", "c", "d"] {
        deliveries.push(send(&producer, payload).await);
    }
    let mut peer = server.accept().await;
    let mut ids = Vec::new();
    for payload in ["a", "b", "c"] {
        let received = peer.receive().await;
        assert_eq!(received.payloads(), [payload]);
        assert_eq!(
            (received.produce().topic, received.produce().partition),
            (topic(), PARTITION)
        );
        ids.push(received.id);
    }
    // The fourth comes when one of the three is answered, whichever.
    peer.stored(ids[1], 11, 1).await;
    let last = peer.receive().await;
    assert_eq!(last.payloads(), ["d"]);
    peer.stored(last.id, 13, 1).await;
    peer.stored(ids[2], 12, 1).await;
    peer.stored(ids[0], 10, 1).await;
    for (delivery, offset) in deliveries.into_iter().zip(10..) {
        assert_eq!(soon(delivery).await.unwrap(), Some(Offset(offset)));
    }
}

#[tokio::test]
async fn no_more_batches_are_under_way_than_allowed() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            max_in_flight: 2,
            ..one_by_one()
        },
    );
    for payload in ["a", "b", "c", "d"] {
        drop(send(&producer, payload).await);
    }
    let mut peer = server.accept().await;
    let (first, second) = (peer.receive().await, peer.receive().await);
    peer.stored(first.id, 0, 1).await;
    let third = peer.receive().await;
    assert_eq!(third.payloads(), ["c"]);
    let waiting = producer.queue.ready_count();
    assert_eq!(
        waiting, 1,
        "the fourth waits while the second and the third are open"
    );
    peer.stored(second.id, 1, 1).await;
    assert_eq!(peer.receive().await.payloads(), ["d"]);
}

#[tokio::test]
async fn what_lingers_goes_out_together_on_flush() {
    let server = TestServer::start().await;
    let producer = producer(&server, patient());
    let deliveries = [
        send(&producer, "a").await,
        send(&producer, "b").await,
        send(&producer, "c").await,
    ];
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        assert_eq!(received.payloads(), ["a", "b", "c"]);
        peer.stored(received.id, 40, 3).await;
        peer
    };
    let (flushed, _peer) = soon(async { tokio::join!(producer.flush(), serve) }).await;
    flushed.unwrap();
    for (delivery, offset) in deliveries.into_iter().zip(40..) {
        assert_eq!(soon(delivery).await.unwrap(), Some(Offset(offset)));
    }
}

#[tokio::test]
async fn what_lingers_goes_out_by_itself_in_time_and_when_full() {
    let server = TestServer::start().await;
    let short = ProducerConfig {
        linger: Duration::from_millis(1),
        ..ProducerConfig::default()
    };
    let lingering = producer(&server, short);
    drop(send(&lingering, "a").await);
    assert_eq!(server.accept().await.receive().await.payloads(), ["a"]);

    let full = producer(
        &server,
        ProducerConfig {
            batch_bytes: 2 * 30,
            ..patient()
        },
    );
    for payload in ["a", "b", "c"] {
        drop(send(&full, payload).await);
    }
    assert_eq!(server.accept().await.receive().await.payloads(), ["a", "b"]);
}

#[tokio::test]
async fn offsets_count_the_records_of_opaque_frames_and_batches_before_them() {
    let server = TestServer::start().await;
    let producer = producer(&server, patient());
    let mut writer = BatchWriter::new(BatchFields::default()).unwrap();
    for _ in 0..2 {
        writer
            .push(&RecordToWrite {
                timestamp_ms: 0,
                key: None,
                value: None,
                headers: &[],
            })
            .unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    let deliveries = [
        soon(producer.send_opaque(record("xyz"), 5)).await.unwrap(),
        soon(producer.send_batch(7, &batch)).await.unwrap(),
        send(&producer, "a").await,
    ];
    batch[61] ^= 1;
    assert!(matches!(
        producer.send_batch(7, &batch).await,
        Err(SendError::Batch { .. })
    ));
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        let frames = received.produce().frames;
        let batch =
            basalt_proto::FrameBatch::parse(frames, &basalt_proto::FrameLimits::default()).unwrap();
        assert_eq!((batch.frame_count(), batch.record_count()), (3, 8));
        peer.stored(received.id, 100, 8).await;
        peer
    };
    let (flushed, _peer) = soon(async { tokio::join!(producer.flush(), serve) }).await;
    flushed.unwrap();
    for (delivery, offset) in deliveries.into_iter().zip([100, 105, 107]) {
        assert_eq!(soon(delivery).await.unwrap(), Some(Offset(offset)));
    }
}

#[tokio::test]
async fn a_lost_connection_leaves_the_outcome_of_what_was_sent_unknown_and_the_rest_goes_on() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            max_in_flight: 2,
            ..one_by_one()
        },
    );
    let [a, b, c] = [
        send(&producer, "a").await,
        send(&producer, "b").await,
        send(&producer, "c").await,
    ];
    let mut peer = server.accept().await;
    let first = peer.receive().await;
    assert_eq!(peer.receive().await.payloads(), ["b"]);
    drop(peer);
    for delivery in [a, b] {
        let error = soon(delivery).await.unwrap_err();
        assert!(matches!(error, SendError::OutcomeUnknown { .. }), "{error}");
        assert_eq!(error.kind(), None);
    }
    let mut peer = server.accept().await;
    let received = peer.receive().await;
    assert_eq!(
        received.payloads(),
        ["c"],
        "what was sent is not sent again, what was not is"
    );
    assert_ne!(received.id, first.id);
    peer.stored(received.id, 7, 1).await;
    assert_eq!(soon(c).await.unwrap(), Some(Offset(7)));
    assert!(
        matches!(
            soon(producer.flush()).await,
            Err(SendError::OutcomeUnknown { .. })
        ),
        "told once"
    );
    soon(producer.flush()).await.unwrap();
}

#[tokio::test]
async fn an_answer_before_the_loss_counts() {
    let server = TestServer::start().await;
    let producer = producer(&server, one_by_one());
    let [a, b] = [send(&producer, "a").await, send(&producer, "b").await];
    let mut peer = server.accept().await;
    let first = peer.receive().await;
    let _second = peer.receive().await;
    peer.stored(first.id, 3, 1).await;
    drop(peer);
    assert_eq!(soon(a).await.unwrap(), Some(Offset(3)));
    assert!(matches!(
        soon(b).await,
        Err(SendError::OutcomeUnknown {
            source: ConnectionLost::Closed
        })
    ));
}

#[tokio::test]
async fn with_retry_lost_what_was_sent_goes_again_in_its_order_before_the_rest() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            max_in_flight: 2,
            retry_lost: true,
            ..one_by_one()
        },
    );
    let mut deliveries = Vec::new();
    for payload in ["a", "b", "c"] {
        deliveries.push(send(&producer, payload).await);
    }
    let mut peer = server.accept().await;
    assert_eq!(peer.receive().await.payloads(), ["a"]);
    assert_eq!(peer.receive().await.payloads(), ["b"]);
    drop(peer);
    let mut peer = server.accept().await;
    for (payload, offset) in ["a", "b", "c"].into_iter().zip(20..) {
        let received = peer.receive().await;
        assert_eq!(received.payloads(), [payload]);
        peer.stored(received.id, offset, 1).await;
    }
    for (delivery, offset) in deliveries.into_iter().zip(20..) {
        assert_eq!(soon(delivery).await.unwrap(), Some(Offset(offset)));
    }
}

#[tokio::test]
async fn retrying_ends_and_then_the_outcome_is_unknown() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            max_in_flight: 1,
            retry_lost: true,
            ..one_by_one()
        },
    );
    let [a, b] = [send(&producer, "a").await, send(&producer, "b").await];
    for _ in 0..6 {
        let mut peer = server.accept().await;
        assert_eq!(peer.receive().await.payloads(), ["a"]);
    }
    assert!(matches!(
        soon(a).await,
        Err(SendError::OutcomeUnknown { .. })
    ));
    assert!(matches!(soon(b).await, Err(SendError::NotSent { .. })));
}

#[tokio::test]
async fn a_full_queue_fails_at_once_if_so_chosen_and_has_room_again_after_an_answer() {
    let server = TestServer::start().await;
    let config = ProducerConfig {
        queue_bytes: 2 * 30,
        when_full: WhenFull::Fail,
        ..one_by_one()
    };
    let producer = producer(&server, config);
    let [a, b] = [send(&producer, "a").await, send(&producer, "b").await];
    let full = producer.send(record("c")).await.unwrap_err();
    assert!(
        matches!(full, SendError::QueueFull { queue_bytes: 60 }),
        "{full}"
    );
    let mut peer = server.accept().await;
    let first = peer.receive().await;
    peer.stored(first.id, 0, 1).await;
    soon(a).await.unwrap();
    // The room comes with the outcome, perhaps a moment after it: the queue says when.
    drop(soon(producer.queue.room.acquire_many(30)).await.unwrap());
    drop(send(&producer, "c").await);
    drop(b);
}

#[tokio::test]
async fn a_full_queue_makes_send_wait_until_an_answer_comes() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            queue_bytes: 30,
            ..patient()
        },
    );
    drop(send(&producer, "a").await);
    // The open batch lingers for an hour, but not while it takes the room that is waited for.
    let waiting = producer.send(record("b"));
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        assert_eq!(received.payloads(), ["a"]);
        peer.stored(received.id, 0, 1).await;
        peer
    };
    let (sent, _peer) = soon(async { tokio::join!(waiting, serve) }).await;
    drop(sent.unwrap());
}

#[tokio::test]
async fn a_record_larger_than_the_queue_is_refused() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            queue_bytes: 30,
            ..patient()
        },
    );
    let error = producer.send(record("ab")).await.unwrap_err();
    assert!(
        matches!(
            error,
            SendError::TooLarge {
                found_bytes: 31,
                limit_bytes: 30
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_refusal_brings_the_servers_words_and_holds_nothing_else_back() {
    let server = TestServer::start().await;
    let producer = producer(&server, one_by_one());
    let [a, b] = [send(&producer, "a").await, send(&producer, "b").await];
    let mut peer = server.accept().await;
    let (first, second) = (peer.receive().await, peer.receive().await);
    let refusal = ErrorResponse {
        retry_after_ms: 1500,
        ..ErrorResponse::new(ErrorKind::StorageFull, "3 GiB are missing")
    };
    peer.refuse(first.id, &refusal).await;
    peer.stored(second.id, 0, 1).await;
    let error = soon(a).await.unwrap_err();
    assert_eq!(error.to_string(), "storage full: 3 GiB are missing");
    assert_eq!(error.kind(), Some(ErrorKind::StorageFull));
    assert!(matches!(error, SendError::Refused { response } if response == refusal));
    soon(b).await.unwrap();
}

#[tokio::test]
async fn without_acknowledgement_nothing_is_waited_for_but_the_end() {
    let server = TestServer::start().await;
    let producer = producer(
        &server,
        ProducerConfig {
            ack: AckLevel::None,
            max_in_flight: 1,
            ..one_by_one()
        },
    );
    let mut peer = {
        let (sent, peer) = tokio::join!(producer.send(record("a")), server.accept());
        assert_eq!(
            soon(sent.unwrap()).await.unwrap(),
            None,
            "no answer, so no offset"
        );
        peer
    };
    assert_eq!(soon(send(&producer, "b").await).await.unwrap(), None);
    let serve = async {
        for payload in ["a", "b"] {
            let received = peer.receive().await;
            assert_eq!(received.produce().ack, AckLevel::None);
            assert_eq!(received.payloads(), [payload]);
        }
        let ping = peer.receive().await;
        assert_eq!(ping.request(), Request::Ping);
        peer.reply(ping.id, &EmptyResponse).await;
        assert!(peer.receive_or_end().await.is_none());
    };
    let (closed, ()) = soon(async { tokio::join!(producer.close(), serve) }).await;
    closed.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_what_waits_and_is_tried_again_for_what_comes_later() {
    let server = TestServer::start().await;
    let config = Arc::new(server.config());
    drop(server);
    let producer = Producer::start(config, topic(), PARTITION, one_by_one());
    for _ in 0..2 {
        let error = soon(send(&producer, "a").await).await.unwrap_err();
        assert!(
            matches!(error, SendError::Connect(ConnectError::Unreachable { .. })),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_leaves_the_outcome_unknown() {
    let server = TestServer::start().await;
    let config = ClientConfig {
        request_timeout: Duration::from_millis(10),
        ..server.config()
    };
    let producer = Producer::start(Arc::new(config), topic(), PARTITION, one_by_one());
    let delivery = send(&producer, "a").await;
    let mut peer = server.accept().await;
    let _unanswered = peer.receive().await;
    let error = soon(delivery).await.unwrap_err();
    assert!(
        matches!(
            error,
            SendError::OutcomeUnknown {
                source: ConnectionLost::TimedOut { .. }
            }
        ),
        "{error}"
    );
    assert!(
        peer.receive_or_end().await.is_none(),
        "the connection is given up"
    );
}

#[tokio::test]
async fn a_response_to_nothing_and_a_response_that_is_none_end_the_connection() {
    let server = TestServer::start().await;
    let producer = producer(&server, one_by_one());
    let delivery = send(&producer, "a").await;
    let mut peer = server.accept().await;
    let received = peer.receive().await;
    peer.stored(received.id + 1000, 0, 1).await;
    let error = soon(delivery).await.unwrap_err();
    assert!(
        matches!(
            error,
            SendError::OutcomeUnknown {
                source: ConnectionLost::UnknownRequest { .. }
            }
        ),
        "{error}"
    );

    let delivery = send(&producer, "b").await;
    let mut peer = server.accept().await;
    let received = peer.receive().await;
    peer.reply(received.id, &EmptyResponse).await;
    let error = soon(delivery).await.unwrap_err();
    assert!(
        matches!(
            error,
            SendError::OutcomeUnknown {
                source: ConnectionLost::Garbled { .. }
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn closing_settles_everything_and_takes_nothing_more() {
    let server = TestServer::start().await;
    let producer = producer(&server, patient());
    let delivery = send(&producer, "a").await;
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        peer.stored(received.id, 5, 1).await;
        assert!(peer.receive_or_end().await.is_none());
    };
    let (closed, ()) = soon(async { tokio::join!(producer.close(), serve) }).await;
    closed.unwrap();
    assert_eq!(soon(delivery).await.unwrap(), Some(Offset(5)));
    assert!(matches!(
        producer.send(record("b")).await,
        Err(SendError::Closed)
    ));
    assert_eq!(
        producer.queue.room.available_permits(),
        producer.queue.config.queue_bytes as usize
    );
    soon(producer.close()).await.unwrap();
}

#[tokio::test]
async fn dropping_lets_what_was_sent_finish() {
    let server = TestServer::start().await;
    let producer = producer(&server, patient());
    let delivery = send(&producer, "a").await;
    drop(producer);
    let mut peer = server.accept().await;
    let received = peer.receive().await;
    peer.stored(received.id, 5, 1).await;
    assert_eq!(soon(delivery).await.unwrap(), Some(Offset(5)));
    assert!(peer.receive_or_end().await.is_none());
}

#[tokio::test]
async fn queue_wait_is_told_to_each_connection_before_anything_is_sent() {
    let server = TestServer::start().await;
    let config = ProducerConfig {
        max_queue_wait: Some(Duration::from_millis(250)),
        ..one_by_one()
    };
    let producer = producer(&server, config);
    let delivery = send(&producer, "a").await;
    let options = Request::Options {
        max_queue_wait_ms: 250,
    };
    // A connection that is lost before it has answered is made anew, and told anew.
    let mut first = server.accept().await;
    assert_eq!(first.receive().await.request(), options);
    drop(first);
    let mut peer = server.accept().await;
    let told = peer.receive().await;
    assert_eq!(told.request(), options);
    peer.reply(told.id, &EmptyResponse).await;
    let busy = peer.receive().await;
    let refusal = ErrorResponse {
        retry_after_ms: 40,
        ..ErrorResponse::new(ErrorKind::Busy, "the disk is slow")
    };
    peer.refuse(busy.id, &refusal).await;
    match soon(delivery).await {
        Err(SendError::Refused { response }) => assert_eq!(response, refusal),
        other => panic!("{other:?}"),
    }
}
