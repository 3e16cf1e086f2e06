//! PUB-15: lengths and counts that are promises.

use kafka_protocol::messages::{CreateTopicsRequest, ListOffsetsRequest, OffsetFetchRequest};

use super::*;
use crate::tests::hostile::resident_bytes;

/// One request of each sort that has something to count.
fn requests() -> Vec<Vec<u8>> {
    let one = batch(&[(1, b"x"), (2, b"y")]);
    let topic = MetadataRequestTopic::default().with_name(Some(name("t")));
    let mut requests = Vec::new();
    for version in [0, 1, 4, 9, 12] {
        let request = MetadataRequest::default().with_topics(Some(vec![topic.clone()]));
        requests.push(encoded(ApiKey::Metadata, version, 1, &request));
    }
    for version in [3, 9] {
        let request = produce_request("t", 1, &[(0, &one), (1, &one)]);
        requests.push(encoded(ApiKey::Produce, version, 1, &request));
    }
    for version in [4, 7, 11, 12] {
        let request = fetch_request(&[("t", &[(0, 0), (1, 0)]), ("u", &[(0, 0)])]);
        requests.push(encoded(ApiKey::Fetch, version, 1, &request));
    }
    for version in [1, 6] {
        let request = ListOffsetsRequest::default().with_topics(vec![Default::default()]);
        requests.push(encoded(ApiKey::ListOffsets, version, 1, &request));
    }
    for version in [2, 7] {
        let request = CreateTopicsRequest::default()
            .with_topics(vec![Default::default()])
            .with_validate_only(true);
        requests.push(encoded(ApiKey::CreateTopics, version, 1, &request));
    }
    for version in [1, 6] {
        let request = OffsetFetchRequest::default().with_topics(Some(Vec::new()));
        requests.push(encoded(ApiKey::OffsetFetch, version, 1, &request));
    }
    requests
}

/// Each on a connection of its own, which the peer then closes: whatever comes back, the server lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_15_no_request_cut_or_changed_anywhere_takes_much_memory_or_a_connection_down() {
    let _alone = MEMORY.lock().await;
    let harness = Harness::start().await;
    harness.assert_serves("t").await;
    let before = resident_bytes();
    let mut changed = Vec::new();
    for request in requests() {
        for at in 4..request.len() {
            // Cut off, with a length that says so.
            let mut cut = request[..at].to_vec();
            let length = u32::try_from(at - 4).unwrap();
            cut[..4].copy_from_slice(&length.to_be_bytes());
            changed.push(cut);
            for bytes in [
                &[0xFF_u8][..],
                &[0x7F, 0xFF, 0xFF, 0xFF],
                &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
            ] {
                let mut flipped = request.clone();
                let end = (at + bytes.len()).min(flipped.len());
                flipped[at..end].copy_from_slice(&bytes[..end - at]);
                changed.push(flipped);
            }
        }
    }
    for chunk in changed.chunks(50) {
        let mut peers = Vec::new();
        for bytes in chunk {
            let mut peer = harness.connect().await;
            peer.try_send(bytes).await;
            let _ = rustix::net::shutdown(&peer.stream, rustix::net::Shutdown::Write);
            peers.push(peer);
        }
        for mut peer in peers {
            peer.rest().await;
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 48 << 20, "{grown} bytes more");
    harness.assert_serves("t").await;
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_ends_the_connection_at_once() {
    let harness = Harness::start().await;
    let whole = |key: i16, version: i16, body: &[u8]| {
        let mut out = Vec::new();
        let length = u32::try_from(2 + 2 + 4 + 2 + body.len()).unwrap();
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&key.to_be_bytes());
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&[0, 0, 0, 1, 0xFF, 0xFF]);
        out.extend_from_slice(body);
        out
    };
    let mut follower = encoded(ApiKey::Fetch, 16, 1, &fetch_request(&[]));
    // The last byte says that there are no tagged fields.
    follower.pop();
    follower.extend_from_slice(&[1, 1, 3, 0, 0, 0]);
    let length = u32::try_from(follower.len() - 4).unwrap();
    follower[..4].copy_from_slice(&length.to_be_bytes());
    let long_name = [
        &[0, 2][..],
        &[0; 16],
        &[0xC1, 0xB8, 2],
        &[b'x'; 40_000],
        &[0; 5],
    ]
    .concat();
    for (what, bytes) in [
        ("length 0", vec![0; 4]),
        ("length 9", vec![0, 0, 0, 9]),
        ("unknown API", whole(1000, 0, b"")),
        ("API that is not announced", whole(22, 0, b"")),
        ("version that is not served", whole(3, 13, b"")),
        ("Produce 2", whole(0, 2, b"")),
        ("no body", whole(3, 1, b"")),
        ("count 7fffffff", whole(3, 1, b"\x7f\xff\xff\xff")),
        (
            "Produce, count 7fffffff",
            whole(0, 3, b"\xff\xff\0\x01\0\0\0\0\x7f\xff\xff\xff"),
        ),
        // Replica state, whose decoder would take its length for granted.
        ("Fetch with a follower's field", follower),
        ("a name of 40,000 bytes", whole(3, 12, &long_name)),
    ] {
        let mut peer = harness.connect().await;
        peer.send(&bytes).await;
        assert!(peer.rest().await.is_empty(), "{what}");
    }
    harness.assert_serves("t").await;
    harness.stop().await;
}
