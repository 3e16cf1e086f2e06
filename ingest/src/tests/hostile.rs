//! Input that is wrong on purpose.

use std::fs;
use std::path::Path;

use basalt_proto::ErrorKind;

use super::*;

fn entries_below(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        found.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            found.extend(entries_below(&entry.path()));
        }
    }
    found.sort();
    found
}

fn raw_opening(kind: u8, names: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![kind];
    for name in names {
        out.push(u8::try_from(name.len()).unwrap());
        out.extend_from_slice(name);
    }
    out.extend_from_slice(&[0; 4]);
    if kind == 0x03 {
        out.extend_from_slice(&1_u64.to_be_bytes());
    }
    out
}

/// PUB-13, native: names that are paths, or no names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_13_names_that_are_no_names_touch_nothing() {
    let harness = Harness::start().await;
    harness.assert_serves("good").await;
    let outside = harness.root.parent().unwrap().to_owned();
    let (before, topics_before) = (entries_below(&outside), harness.log.log().topics().len());
    let long = [b'a'; 255];
    let names: [&[u8]; 14] = [
        b"../../x",
        b"..",
        b".",
        b"/etc/x",
        b"a/b",
        b"a\\b",
        b"a%2fb",
        b"x\0y",
        &long,
        &long[..250],
        b"",
        "ünï".as_bytes(),
        b"a\nb",
        b"\xff",
    ];
    for name in names {
        let mut producer = harness.connect().await;
        producer.send(&raw_opening(0x01, &[name])).await;
        assert_eq!(
            refused(producer.ack().await),
            (ErrorKind::InvalidName.code(), 0),
            "{name:?}"
        );
        assert_eq!(producer.rest().await, b"");
        for opening in [
            raw_opening(0x02, &[b"g", name]),
            raw_opening(0x02, &[name, b"good"]),
            raw_opening(0x03, &[b"g", name]),
            raw_opening(0x03, &[name, b"good"]),
        ] {
            let mut peer = harness.connect().await;
            peer.send(&opening).await;
            assert_eq!(peer.rest().await, b"", "{opening:?}");
        }
    }
    harness
        .until("no connection is left", |count| count.connections_open == 0)
        .await;
    assert_eq!(entries_below(&outside), before, "refusing leaves no trace");
    assert_eq!(harness.log.log().topics().len(), topics_before);
    assert_eq!(harness.count().refused(ErrorKind::InvalidName), 14 * 5);
    // Legal, though a device elsewhere.
    harness.assert_serves("CON").await;
    harness.stop().await;
}

pub(super) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

/// PUB-15, native: lengths that are promises, each 200 times at once, while a good client goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_15_claimed_lengths_are_refused_at_once_and_cost_no_memory() {
    let _memory = MEMORY.lock().await;
    let harness = Harness::start().await;
    let mut good = harness.producer("good").await;
    good.send(&frame(1, b"", b"warm", 1)).await;
    assert_eq!(good.stored().await, 0);
    let before = resident_bytes();
    let sane = frame(1000, b"k1", b"a", 1);
    let inputs: Vec<(Vec<u8>, ErrorKind)> = vec![
        (header(0x01, 0, 0xffff_fff0, 0, 1), ErrorKind::TooLarge),
        (header(0x01, 0, 0, 0xffff_ffff, 1), ErrorKind::TooLarge),
        (header(0x01, 0, 0xffff_fff0, 0x40, 1), ErrorKind::TooLarge),
        (header(0x01, 0, 0, 52_428_801, 1), ErrorKind::TooLarge),
        ([&[0x00], &sane[1..]].concat(), ErrorKind::InvalidFrame),
        ([&[0x02], &sane[1..]].concat(), ErrorKind::InvalidFrame),
        ([&[0xff], &sane[1..]].concat(), ErrorKind::InvalidFrame),
    ];
    for (offset, (input, kind)) in (1..).zip(inputs) {
        let mut peers = Vec::new();
        for _ in 0..200 {
            let mut peer = harness.producer("bad").await;
            peer.try_send(&input).await;
            peers.push(peer);
        }
        for mut peer in peers {
            assert_eq!(refused(peer.ack().await).0, kind.code(), "{input:02x?}");
            assert_eq!(peer.rest().await, b"");
        }
        good.send(&frame(1, b"", b"fine", 1)).await;
        assert_eq!(good.stored().await, offset);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "resident memory grew by {grown} bytes");
    drop(good);
    harness.stop().await;
}

/// PUB-15: claims within the limits, 200 at once, with nothing behind them: nothing is allocated for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_15_claims_within_the_limits_cost_memory_only_as_bytes_arrive() {
    let _memory = MEMORY.lock().await;
    let harness = Harness::start_with(|config| config.large_frame_memory_bytes = 64 << 30).await;
    harness.assert_serves("good").await;
    let before = resident_bytes();
    let mut peers = Vec::new();
    for _ in 0..200 {
        let mut peer = harness.producer("bad").await;
        peer.send(&header(0x01, 0, 0, 52_428_800, 1)).await;
        peer.send(&[0; 1000]).await;
        peers.push(peer);
    }
    harness.assert_serves("good").await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "resident memory grew by {grown} bytes");
    drop(peers);
    harness.stop().await;
}

/// PUB-15: each prefix of a good frame, then nothing more and the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_15_every_prefix_of_a_frame_stores_nothing() {
    let harness = Harness::start().await;
    let sane = frame(1000, b"k1", b"a", 1);
    for length in 0..sane.len() {
        let mut peer = harness.producer("t").await;
        peer.send(&sane[..length]).await;
        peer.stream.shutdown().await.unwrap();
        assert_eq!(peer.rest().await, b"", "{length} bytes");
    }
    harness
        .until("no connection is left", |count| count.connections_open == 0)
        .await;
    assert_eq!(high_watermark(&harness, "t"), Offset(0));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_tls_and_noise_are_closed_and_the_server_goes_on() {
    let harness = Harness::start().await;
    // The length of a request that is none.
    let kafka = [0, 0, 0, 0];
    let tls = [0x16, 0x03, 0x01, 0x00];
    let inputs: [&[u8]; 5] = [
        &kafka,
        &tls,
        &[0xff; 4],
        &[0x7f, 0xff, 0xff, 0xff],
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for input in inputs {
        let mut peer = harness.connect().await;
        peer.try_send(input).await;
        assert_eq!(peer.rest().await, b"", "{input:02x?}");
    }
    harness
        .until("all are counted", |count| count.connections_unknown == 4)
        .await;
    harness.assert_serves("t").await;
    harness.stop().await;
}

/// Whatever follows an opening, the server neither panics nor stops. The seed is fixed and printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_never_stop_the_server() {
    let harness =
        Harness::start_with(|config| config.frame_timeout = Duration::from_millis(50)).await;
    let mut state = 0x5eed_0015_u64;
    println!("seed {state:#x}");
    let mut random = move || {
        // xorshift64: repeatable, and no more is needed.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let opening = match round % 4 {
            0 => produce_opening("noise", 0),
            1 => vec![0x04, 0x01],
            2 => consume_opening("g", "noise", 0),
            _ => Vec::new(),
        };
        let mut bytes = opening;
        for _ in 0..random() % 200 {
            bytes.push(random().to_be_bytes()[7]);
        }
        let mut peer = harness.connect().await;
        peer.try_send(&bytes).await;
    }
    harness.assert_serves("t").await;
    harness
        .until("no connection is left", |count| count.connections_open == 0)
        .await;
    harness.stop().await;
}
