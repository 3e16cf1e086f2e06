#![allow(clippy::unwrap_used)]

use basalt_proto::ErrorKind;
use basalt_proto::session::ErrorResponse;

use super::*;
use crate::testing::{PARTITION, TestServer, soon, topic};

fn consumer(server: &TestServer, start: Start, config: ConsumerConfig) -> Consumer {
    Consumer::new(Arc::new(server.config()), topic(), PARTITION, start, config)
}

fn payloads(fetched: Option<FetchedFrames>) -> Vec<String> {
    let fetched = fetched.unwrap();
    fetched
        .frames()
        .map(|frame| String::from_utf8(frame.unwrap().payload.to_vec()).unwrap())
        .collect()
}

#[tokio::test]
async fn the_next_request_is_under_way_while_the_caller_works() {
    let server = TestServer::start().await;
    let config = ConsumerConfig {
        max_bytes: 500,
        min_bytes: 2,
        ..ConsumerConfig::default()
    };
    let mut consumer = consumer(&server, Start::Earliest, config);
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        let expected = FetchRequest {
            topic: topic(),
            partition: PARTITION,
            start: Start::Earliest,
            max_bytes: 500,
            min_bytes: 2,
            max_wait_ms: 10_000,
            end_offset: NO_END_OFFSET,
        };
        assert_eq!(received.fetch(), expected);
        peer.fetched(received.id, 3, &["a", "b"], false).await;
        peer
    };
    let (fetched, mut peer) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    assert_eq!(payloads(fetched.unwrap()), ["a", "b"]);
    assert_eq!(consumer.position(), Start::Offset(Offset(5)));
    // Nobody calls `next` now, and yet the request comes.
    let ahead = peer.receive().await;
    assert_eq!(ahead.fetch().start, Start::Offset(Offset(5)));
    peer.fetched(ahead.id, 5, &["c"], false).await;
    let fetched = soon(consumer.next()).await.unwrap();
    assert_eq!(fetched.as_ref().unwrap().high_watermark, Offset(100));
    assert_eq!(payloads(fetched), ["c"]);
}

#[tokio::test]
async fn quiet_answers_are_passed_over_and_the_end_is_the_end() {
    let server = TestServer::start().await;
    let config = ConsumerConfig {
        end_offset: Some(Offset(6)),
        ..ConsumerConfig::default()
    };
    let mut consumer = consumer(&server, Start::Offset(Offset(5)), config);
    let serve = async {
        let mut peer = server.accept().await;
        let quiet = peer.receive().await;
        assert_eq!(quiet.fetch().end_offset, Offset(6));
        peer.fetched(quiet.id, 5, &[], false).await;
        let received = peer.receive().await;
        assert_eq!(received.fetch().start, Start::Offset(Offset(5)));
        peer.fetched(received.id, 5, &["last"], true).await;
        peer
    };
    let (fetched, mut peer) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    assert_eq!(payloads(fetched.unwrap()), ["last"]);
    for _ in 0..2 {
        assert!(soon(consumer.next()).await.unwrap().is_none());
    }
    drop(consumer);
    assert!(
        peer.receive_or_end().await.is_none(),
        "nothing is asked for behind the end"
    );
}

#[tokio::test]
async fn a_lost_connection_is_replaced_and_reading_goes_on_where_it_stopped() {
    let server = TestServer::start().await;
    let mut consumer = consumer(&server, Start::Latest, ConsumerConfig::default());
    let serve = async {
        // Lost before the first answer: the start is still the start.
        drop(server.accept().await);
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        assert_eq!(received.fetch().start, Start::Latest);
        peer.fetched(received.id, 8, &["a"], false).await;
    };
    let (fetched, ()) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    assert_eq!(payloads(fetched.unwrap()), ["a"]);
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        assert_eq!(received.fetch().start, Start::Offset(Offset(9)));
        peer.fetched(received.id, 9, &["b"], false).await;
        peer
    };
    let (fetched, _peer) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    assert_eq!(payloads(fetched.unwrap()), ["b"]);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_and_any_other_refusal_is_told() {
    let server = TestServer::start().await;
    let mut consumer = consumer(&server, Start::Offset(Offset(0)), ConsumerConfig::default());
    let refusal = ErrorResponse {
        log_start_offset: Offset(50),
        high_watermark: Offset(60),
        ..ErrorResponse::new(ErrorKind::OffsetOutOfRange, "offset 0 is gone")
    };
    let serve = async {
        let mut peer = server.accept().await;
        let first = peer.receive().await;
        peer.refuse(first.id, &ErrorResponse::new(ErrorKind::Busy, "later"))
            .await;
        let second = peer.receive().await;
        peer.refuse(second.id, &refusal).await;
        peer
    };
    let (fetched, mut peer) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    let error = fetched.unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::OffsetOutOfRange));
    assert!(matches!(error, ClientError::Refused { response } if response == refusal));
    // It asks again if it is called again, on the same connection.
    let serve = async {
        let received = peer.receive().await;
        peer.fetched(received.id, 0, &["a"], false).await;
    };
    let (fetched, ()) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    assert_eq!(payloads(fetched.unwrap()), ["a"]);
}

#[tokio::test]
async fn a_server_that_stays_away_is_told_after_the_last_attempt() {
    let server = TestServer::start().await;
    let mut consumer = consumer(&server, Start::Earliest, ConsumerConfig::default());
    drop(server);
    assert!(matches!(
        soon(consumer.next()).await,
        Err(ClientError::Connect(_))
    ));
    assert!(matches!(
        soon(consumer.next()).await,
        Err(ClientError::Connect(_))
    ));
}

#[tokio::test]
async fn frames_without_a_way_past_them_are_an_error_and_no_endless_loop() {
    let server = TestServer::start().await;
    let mut consumer = consumer(&server, Start::Offset(Offset(9)), ConsumerConfig::default());
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        peer.fetched(received.id, 8, &["old"], false).await;
        peer
    };
    let (fetched, _peer) = soon(async { tokio::join!(consumer.next(), serve) }).await;
    let error = fetched.unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::NoProgress {
                asked: Offset(9),
                next: Offset(9)
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_dropped_next_loses_nothing_and_asks_nothing_twice() {
    let server = TestServer::start().await;
    let mut consumer = consumer(&server, Start::Earliest, ConsumerConfig::default());
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        (peer, received)
    };
    // `next` is dropped while it waits for the answer.
    let (mut peer, received) = tokio::select! {
        biased;
        served = soon(serve) => served,
        _ = consumer.next() => panic!("no answer was sent"),
    };
    peer.fetched(received.id, 0, &["a"], false).await;
    assert_eq!(payloads(soon(consumer.next()).await.unwrap()), ["a"]);
    assert_eq!(peer.receive().await.fetch().start, Start::Offset(Offset(1)));
}
