//! PUB-19: a reader that stops in the middle of a frame while retention, cooling or merging removes what it reads.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use basalt_client::{Client, ClientConfig, TopicName};

use crate::support::hermitmq::{Frame, Producer, commit};
use crate::support::{ServerProcess, deadline, now};

const TOPIC: &str = "slow";
const PAYLOAD_BYTES: usize = 1 << 20;

/// A payload that tells its number and cannot be taken for another's, at any place.
fn payload(number: u64) -> Vec<u8> {
    let mut seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = number.to_be_bytes().to_vec();
    while bytes.len() < PAYLOAD_BYTES {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.extend(seed.to_be_bytes());
    }
    bytes
}

/// Three segments and a bit: two frames of 1 MiB fill a segment.
fn produce(address: &str, next: &mut u64) {
    let mut producer = Producer::open(address, TOPIC, 0).expect("open");
    for _ in 0..7 {
        producer
            .send(&[Frame::new(*next, b"", &payload(*next))])
            .expect("send");
        assert_eq!(producer.ack().expect("ack"), Ok(*next));
        *next += 1;
    }
}

/// The next frame, whole and unaltered; its offset.
fn read_frame(stream: &mut TcpStream, header: Option<[u8; 29]>, had: &[u8]) -> u64 {
    let header = header.unwrap_or_else(|| {
        let mut header = [0; 29];
        stream.read_exact(&mut header).expect("header");
        header
    });
    assert_eq!(header[0], 1, "a header, not bytes of another file");
    let offset = u64::from_be_bytes(header[9..17].try_into().expect("8"));
    let length = u32::from_be_bytes(header[21..25].try_into().expect("4"));
    assert_eq!(length as usize, PAYLOAD_BYTES);
    let mut bytes = had.to_vec();
    bytes.resize(PAYLOAD_BYTES, 0);
    stream
        .read_exact(&mut bytes[had.len()..])
        .expect("the rest of the frame");
    assert!(bytes == payload(offset), "frame {offset} is altered");
    offset
}

/// A consumer from an offset on that stops inside its first frame, and what it has of that.
fn begin(address: &str, from: u64) -> (TcpStream, [u8; 29 + 1000]) {
    assert!(commit(address, "g", TOPIC, 0, from).expect("commit"));
    let mut reader = TcpStream::connect(address).expect("connect");
    reader
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("timeout");
    reader
        .write_all(b"\x02\x01g\x04slow\0\0\0\0")
        .expect("opening");
    let mut begun = [0; 29 + 1000];
    reader.read_exact(&mut begun).expect("begin of a frame");
    (reader, begun)
}

/// Cold files that a reader is in the middle of are merged, and every offset is found meanwhile.
fn read_while_merging(server: &ServerProcess, from: u64, next: &mut u64, cool: impl Fn()) {
    let (mut reader, begun) = begin(&server.address, from);
    let merged = server.metric("basalt_merged_files_total");
    let limit = deadline();
    while server.metric("basalt_merged_files_total") == merged {
        assert!(now() < limit, "nothing is merged");
        produce(&server.address, next);
        cool();
    }
    let header = begun[..29].try_into().expect("29");
    assert_eq!(read_frame(&mut reader, Some(header), &begun[29..]), from);
    for expected in from + 1..*next {
        assert_eq!(read_frame(&mut reader, None, b""), expected);
    }
}

fn deleted_files(process: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors");
    links
        .filter_map(|link| std::fs::read_link(link.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().contains("(deleted)"))
        .count()
}

#[test]
fn pub_19_a_slow_reader_gets_its_frame_and_then_a_correct_next_one() {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let data = tempfile::tempdir().expect("folder");
    let settings = [
        "log.segment_bytes=2200000",
        "cold.maintenance_interval_ms=100",
        "cold.row_group_bytes=4194304",
    ];
    let server = ServerProcess::start(data.path(), &settings);
    let topic = TopicName::new(TOPIC).expect("name");
    let config = ClientConfig {
        address: server.address.clone(),
        ..ClientConfig::default()
    };
    let client = runtime
        .block_on(async { Client::connect(config).await })
        .expect("connect");
    let start = |client: &Client| {
        let topics = runtime
            .block_on(client.metadata(std::slice::from_ref(&topic)))
            .expect("metadata");
        topics[0].partitions[0].log_start_offset.0
    };
    let retain = |bytes: &str| {
        let pairs = vec![("retention_bytes".to_owned(), bytes.to_owned())];
        runtime
            .block_on(client.alter_topic(&topic, pairs))
            .expect("alter");
    };
    let rounds: u64 = std::env::var("BASALT_SLOW_READER_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(200);
    let mut next = 0;
    produce(&server.address, &mut next);
    for round in 0..rounds {
        let from = start(&client);
        let (mut reader, begun) = begin(&server.address, from);

        if round % 2 == 0 {
            retain("1");
            let limit = deadline();
            while start(&client) == from {
                assert!(now() < limit, "retention removes nothing");
                std::thread::park_timeout(Duration::from_millis(5));
            }
            retain("");
        } else {
            runtime
                .block_on(client.cool_topic(&topic, true))
                .expect("cool");
        }
        // New segments and connections get the descriptors that were freed.
        produce(&server.address, &mut next);

        let header = begun[..29].try_into().expect("29");
        let first = read_frame(&mut reader, Some(header), &begun[29..]);
        assert_eq!(first, from);
        let mut last = first;
        while last + 1 < next {
            let offset = read_frame(&mut reader, None, b"");
            let expected = last + 1;
            let skipped_by_retention =
                round % 2 == 0 && offset > expected && offset >= start(&client).min(next - 7);
            assert!(
                offset == expected || skipped_by_retention,
                "round {round}: {offset} after {last}"
            );
            last = offset;
        }
    }
    let cool = || {
        runtime
            .block_on(client.cool_topic(&topic, true))
            .expect("cool");
    };
    for _ in 0..rounds.div_ceil(25) {
        read_while_merging(&server, start(&client), &mut next, cool);
    }
    // Nobody reads any more: no removed file stays open, and its space is free.
    let limit = deadline();
    while deleted_files(server.id()) > 0 {
        assert!(
            now() < limit,
            "{} removed files stay open",
            deleted_files(server.id())
        );
        std::thread::park_timeout(Duration::from_millis(20));
    }
    server.stop();
}
