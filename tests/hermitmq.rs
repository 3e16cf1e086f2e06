//! HermitMQ's clients work unchanged, and what they consume goes from file to socket.

use std::time::Duration;

use crate::support::ServerProcess;
use crate::support::hermitmq::{Consumer, Frame, Producer, commit};

fn frames(count: u64) -> Vec<Frame> {
    let frame = |number: u64| {
        let key: &[u8] = if number.is_multiple_of(3) {
            b""
        } else {
            b"key"
        };
        let payload = vec![
            u8::try_from(number % 251).expect("small");
            1 + usize::try_from(number % 700).expect("small")
        ];
        Frame::new(1_700_000_000_000_000_000 + number, key, &payload)
    };
    (0..count).map(frame).collect()
}

#[test]
fn a_hermitmq_client_produces_consumes_and_commits() {
    let data = tempfile::tempdir().expect("folder");
    let server = ServerProcess::start(data.path(), &[]);
    let sent = frames(5000);
    let mut producer = Producer::open(&server.address, "orders", 0).expect("open");
    for chunk in sent.chunks(100) {
        producer.send(chunk).expect("send");
    }
    for number in 0..5000 {
        assert_eq!(
            producer.ack().expect("ack"),
            Ok(number),
            "acks come in order"
        );
    }
    let expected: Vec<Frame> = (0..)
        .zip(&sent)
        .map(|(offset, frame)| Frame {
            offset,
            ..frame.clone()
        })
        .collect();
    let mut consumer = Consumer::open(&server.address, "g", "orders", 0).expect("open");
    let received: Vec<Frame> = (0..5000).map(|_| consumer.next().expect("frame")).collect();
    assert_eq!(received, expected);

    // A group that committed N resumes at N, also after a restart.
    assert!(commit(&server.address, "g", "orders", 0, 4990).expect("commit"));
    server.stop();
    let server = ServerProcess::start(data.path(), &[]);
    let mut consumer = Consumer::open(&server.address, "g", "orders", 0).expect("open");
    for frame in &expected[4990..] {
        assert_eq!(consumer.next().expect("frame"), *frame);
    }
    // A consumer at the tail gets what comes while it waits.
    let mut producer = Producer::open(&server.address, "orders", 0).expect("open");
    producer
        .send(&[Frame::new(9, b"k", b"late")])
        .expect("send");
    assert_eq!(producer.ack().expect("ack"), Ok(5000));
    assert_eq!(consumer.next().expect("frame").payload, b"late");
    server.stop();
}

#[test]
fn all_bytes_of_a_lean_topic_go_through_sendfile() {
    let data = tempfile::tempdir().expect("folder");
    let server = ServerProcess::start(data.path(), &[]);
    let sent = frames(20_000);
    let bytes: u64 = sent.iter().map(|frame| frame.encode().len() as u64).sum();
    let mut producer = Producer::open(&server.address, "lean", 0).expect("open");
    for chunk in sent.chunks(100) {
        producer.send(chunk).expect("send");
        for _ in chunk {
            producer.ack().expect("ack").expect("stored");
        }
    }
    let mut consumer = Consumer::open(&server.address, "g", "lean", 0).expect("open");
    for frame in &sent {
        assert_eq!(consumer.next().expect("frame").payload, frame.payload);
    }
    assert_eq!(server.metric("basalt_bytes_sendfile_total"), bytes);
    assert_eq!(server.metric("basalt_bytes_copied_total"), 0);
    server.stop();
}

/// PUB-05 with a real process: acknowledged from the page cache, killed before any flush.
#[test]
fn pub_05_offsets_acknowledged_before_a_kill_are_not_given_again() {
    let data = tempfile::tempdir().expect("folder");
    let settings = ["log.flush_interval_ms=3600000", "log.durability=os"];
    let server = ServerProcess::start(data.path(), &settings);
    let mut producer = Producer::open(&server.address, "relaxed", 0).expect("open");
    for number in 0..10_u64 {
        producer
            .send(&[Frame::new(number, b"", format!("m{number}").as_bytes())])
            .expect("send");
        assert_eq!(producer.ack().expect("ack"), Ok(number));
    }
    assert!(commit(&server.address, "old", "relaxed", 0, 10).expect("commit"));
    server.kill();
    let server = ServerProcess::start(data.path(), &settings);
    let mut consumer = Consumer::open(&server.address, "old", "relaxed", 0).expect("open");
    let mut producer = Producer::open(&server.address, "relaxed", 0).expect("open");
    for number in 0..3 {
        producer
            .send(&[Frame::new(number, b"", format!("n{number}").as_bytes())])
            .expect("send");
        let offset = producer.ack().expect("ack").expect("stored");
        assert!(offset >= 10, "{offset}");
        let seen = consumer.next().expect("frame");
        assert_eq!(
            (seen.offset, seen.payload),
            (offset, format!("n{number}").into_bytes())
        );
    }
    server.stop();
}

/// PUB-15: a good client sees no error while 200 bad ones claim lengths they never send.
#[test]
fn pub_15_bad_claims_on_200_connections_cost_nothing_and_disturb_no_one() {
    let data = tempfile::tempdir().expect("folder");
    let server = ServerProcess::start(
        data.path(),
        &[
            "server.handshake_timeout_ms=2000",
            "server.frame_timeout_ms=2000",
        ],
    );
    let mut good = Producer::open(&server.address, "t", 0).expect("open");
    good.send(&[Frame::new(1, b"", b"before")]).expect("send");
    assert_eq!(good.ack().expect("ack"), Ok(0));
    let before = resident_bytes(server.id());
    let claims: [&[u8]; 10] = [
        b"\x01\x01t\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xf0\0\0\0\0\0\0\0\x01",
        b"\x01\x01t\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\x01",
        b"\x01\x01t\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xf0\0\0\0\x40\0\0\0\x01",
        b"\x01\x01t\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x20\0\x01\0\0\0\x01",
        b"\x01\x01t\0\0\0\0\x00",
        b"\x01\x01t\0\0\0\0\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\0",
        b"\0\0\0\0",
        b"\x7f\xff\xff\xff",
    ];
    let mut bad = Vec::new();
    for number in 0..200 {
        use std::io::Write as _;
        let mut stream = std::net::TcpStream::connect(&server.address).expect("connect");
        // Refused connections may be closed before all of it is written.
        let _ = stream.write_all(claims[number % claims.len()]);
        bad.push(stream);
        good.send(&[Frame::new(1, b"", b"meanwhile")])
            .expect("send");
        good.ack().expect("ack").expect("stored");
    }
    let grown = resident_bytes(server.id()).saturating_sub(before);
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    for stream in bad {
        use std::io::Read as _;
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("timeout");
        let mut stream = stream;
        let mut answer = Vec::new();
        // Closed by the server, at once or after its timeout; a reset says the same.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    server.stop();
}

fn resident_bytes(process: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).expect("statm");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .expect("resident")
        .parse()
        .expect("number");
    pages * 4096
}
