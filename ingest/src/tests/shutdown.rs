//! The end of a server: what is in flight is finished and answered, then everything is closed.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_answers_exactly_what_it_stored() {
    let harness = Harness::start().await;
    let mut producer = harness.producer("t").await;
    let consumer = harness.consumer("g", "t").await;
    let frames = numbered_frames(5000).concat();
    producer.send(&frames).await;
    assert_eq!(producer.stored().await, 0);
    harness.trigger.trigger();
    let acks = producer.rest().await;
    assert_eq!(acks.len() % 9, 0);
    assert!(acks.chunks(9).all(|ack| ack[0] == 0));
    let answered = 1 + acks.len() as u64 / 9;
    assert_eq!(
        high_watermark(&harness, "t"),
        Offset(answered),
        "stored and answered are the same"
    );
    drop(consumer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_closes_idle_connections_of_every_kind_at_once() {
    let harness = Harness::start().await;
    let mut peers = vec![
        harness.connect().await,
        harness.producer("t").await,
        harness.consumer("g", "t").await,
    ];
    let mut session = harness.connect().await;
    session.send(&[0x04, 0x01]).await;
    assert_eq!(session.exact(1).await, [0x01]);
    peers.push(session);
    harness
        .until("all are open", |count| count.connections_open == 4)
        .await;
    harness.trigger.trigger();
    for peer in &mut peers {
        assert_eq!(peer.rest().await, b"");
    }
    drop(peers);
    let address = harness.address;
    harness.stop().await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_that_does_not_read_is_cut_off_after_the_grace() {
    let harness =
        Harness::start_with(|config| config.shutdown_grace = Duration::from_millis(200)).await;
    let frames: Vec<Vec<u8>> = (0..32)
        .map(|_| frame(0, b"", &vec![7; 1 << 20], 1))
        .collect();
    harness.produce("t", &frames).await;
    let consumer = harness.consumer("g", "t").await;
    harness
        .until("it is being sent to", |count| count.bytes_sendfile > 0)
        .await;
    harness.stop().await;
    drop(consumer);
}
