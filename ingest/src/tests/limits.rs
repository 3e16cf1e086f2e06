//! Time limits and the number of connections.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::ShutdownSignal;

const SHORT: Duration = Duration::from_millis(300);

/// PUB-16: peers that say nothing, or stop inside the opening.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_16_silent_peers_are_closed_in_time_and_others_are_served_meanwhile() {
    let harness = Harness::start_with(|config| config.handshake_timeout = SHORT).await;
    let opening = produce_opening("t", 0);
    let openings: [&[u8]; 4] = [
        b"",
        &[0x01],
        &opening[..opening.len() - 4],
        &opening[..opening.len() - 1],
    ];
    let mut peers = Vec::new();
    for _ in 0..25 {
        for opening in openings {
            let mut peer = harness.connect().await;
            peer.send(opening).await;
            peers.push(peer);
        }
    }
    harness.assert_serves("good").await;
    for mut peer in peers {
        assert_eq!(peer.rest().await, b"");
    }
    harness
        .until("all are gone", |count| {
            count.connections_open == 0 && count.handshake_timeouts == 100
        })
        .await;
    harness.stop().await;
}

/// PUB-16: 28 of 29 header bytes, then a byte now and then, always sooner than the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_16_frame_once_begun_must_finish_in_time_however_it_trickles() {
    let harness = Harness::start_with(|config| config.frame_timeout = SHORT).await;
    let mut producer = harness.producer("t").await;
    let whole = frame(0, b"", b"whole", 1);
    producer.send(&whole).await;
    assert_eq!(producer.stored().await, 0);
    let slow = frame(0, b"", &[b'x'; 1000], 1);
    producer.send(&slow[..28]).await;
    let (mut reading, mut writing) = producer.stream.into_split();
    let trickle = async {
        for byte in &slow[28..] {
            tokio::time::sleep(SHORT / 5).await;
            if writing.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    };
    let closed = async {
        let mut rest = Vec::new();
        // A reset counts as closed, too.
        let _ = reading.read_to_end(&mut rest).await;
        rest
    };
    let rest = tokio::select! {
        rest = patient(closed) => rest,
        () = trickle => panic!("the whole frame trickled in"),
    };
    assert_eq!(rest, b"");
    harness
        .until("it is counted", |count| {
            count.frame_timeouts == 1 && count.connections_open == 0
        })
        .await;
    harness.stop().await;
}

/// PUB-16: idle producers, sessions and consumers at the tail are legal for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_16_idle_producers_sessions_and_consumers_are_never_closed() {
    let limit = Duration::from_millis(100);
    let harness = Harness::start_with(|config| {
        config.handshake_timeout = limit;
        config.frame_timeout = limit;
        config.send_timeout = limit;
    })
    .await;
    let mut consumer = harness.consumer("g", "t").await;
    let mut producer = harness.producer("t").await;
    let mut session = harness.connect().await;
    session.send(&[0x04, 0x01]).await;
    assert_eq!(session.exact(1).await, [0x01]);
    consumer.stays_open_and_silent(limit * 6).await;
    producer.send(&frame(0, b"", b"at last", 1)).await;
    assert_eq!(producer.stored().await, 0);
    assert_eq!(consumer.frame().await.payload, b"at last");
    session.stays_open_and_silent(limit * 2).await;
    let count = harness.count();
    assert_eq!(
        (
            count.handshake_timeouts,
            count.frame_timeouts,
            count.send_timeouts
        ),
        (0, 0, 0)
    );
    drop((consumer, producer, session));
    harness.stop().await;
}

/// PUB-16: a consumer that never reads although data waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_16_reader_that_takes_nothing_is_cut_off() {
    let harness = Harness::start_with(|config| config.send_timeout = SHORT).await;
    let frames: Vec<Vec<u8>> = (0..32)
        .map(|_| frame(0, b"", &vec![7; 1 << 20], 1))
        .collect();
    harness.produce("t", &frames).await;
    let consumer = harness.consumer("g", "t").await;
    harness
        .until("it is cut off", |count| {
            count.connections_open == 0 && count.connections_total == 2
        })
        .await;
    drop(consumer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peer_makes_room_when_the_server_is_full() {
    let harness = Harness::start_with(|config| config.max_connections = 3).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(harness.connect().await);
    }
    harness
        .until("the server is full", |count| count.connections_open == 3)
        .await;
    assert_eq!(harness.produce("t", &numbered_frames(1)).await, [0]);
    let count = harness.count();
    assert_eq!(
        (count.connections_evicted, count.connections_refused),
        (1, 0)
    );
    assert_eq!(silent[0].rest().await, b"", "the oldest went");
    drop(silent);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn established_connections_never_make_room() {
    let harness = Harness::start_with(|config| config.max_connections = 2).await;
    let mut consumers = [
        harness.consumer("g", "t").await,
        harness.consumer("h", "t").await,
    ];
    harness
        .until("the server is full", |count| count.connections_open == 2)
        .await;
    for consumer in &mut consumers {
        consumer
            .stays_open_and_silent(Duration::from_millis(600))
            .await;
    }
    let mut refused = harness.connect().await;
    assert_eq!(refused.rest().await, b"");
    let count = harness.count();
    assert_eq!(
        (
            count.connections_refused,
            count.connections_evicted,
            count.connections_open
        ),
        (1, 0, 2)
    );
    let [first, mut second] = consumers;
    drop(first);
    harness
        .until("there is room", |count| count.connections_open == 1)
        .await;
    harness.produce("t", &numbered_frames(1)).await;
    assert_eq!(second.frame().await.offset, 0);
    drop(second);
    harness.stop().await;
}

struct Echo;

impl HttpHandler for Echo {
    fn serve(&self, mut stream: TcpStream, _shutdown: ShutdownSignal) -> BoxFuture<'static, ()> {
        async move {
            let mut request = [0; 16];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(&request).await.unwrap();
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_handler_gets_the_socket_with_every_byte_unread() {
    let harness = Harness::start_serving(|_| {}, Some(Arc::new(Echo))).await;
    let mut peer = harness.connect().await;
    peer.send(b"GET / HTTP/1.1\r\n").await;
    assert_eq!(peer.rest().await, b"GET / HTTP/1.1\r\n");
    assert_eq!(harness.count().connections_http, 1);
    harness.assert_serves("t").await;
    harness.stop().await;
}

const CHILD: &str = "tests::limits::child_that_runs_out_of_descriptors";

/// PUB-16: with every descriptor taken by silent peers, accepting neither spins nor ends, and silent peers give way. The
/// limit is the process's, so that the server runs in a process of its own: this test binary, in the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_16_running_out_of_descriptors_is_waited_out() {
    let script = format!("ulimit -n 64; exec \"$0\" --exact {CHILD} --ignored --nocapture");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let value = |mut lines: &mut dyn Iterator<Item = String>, name: &str| {
        let prefix = format!("{name}=");
        let found = Iterator::find_map(&mut lines, |line| {
            line.split_once(&prefix)
                .map(|(_, value)| value.trim().to_owned())
        });
        found.expect("the child says it")
    };
    let address: SocketAddr = value(&mut lines, "address").parse().unwrap();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(patient(TcpStream::connect(address)).await.unwrap());
    }
    for _ in 0..3 {
        let mut good = Peer {
            stream: patient(TcpStream::connect(address)).await.unwrap(),
        };
        good.send(&produce_opening("t", 0)).await;
        good.send(&frame(0, b"", b"through", 1)).await;
        good.stored().await;
    }
    child.stdin.take().unwrap().write_all(b"stop\n").unwrap();
    let errors: u64 = value(&mut lines, "accept_errors").parse().unwrap();
    let evicted: u64 = value(&mut lines, "evicted").parse().unwrap();
    assert!((1..5000).contains(&errors), "{errors} failed accepts");
    assert!(evicted >= 1);
    assert!(child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in a process with few descriptors, started by the test above"]
async fn child_that_runs_out_of_descriptors() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(1)).await;
    // Files that the limit on connections does not know of.
    let ballast: Vec<_> = (0..16)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    println!("address={}", harness.address);
    let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    told.await.unwrap().unwrap();
    let count = harness.count();
    println!(
        "accept_errors={}\nevicted={}",
        count.accept_errors, count.connections_evicted
    );
    drop(ballast);
    harness.stop().await;
}
