//! Sessions: correlation, long polls, bounds, refusals.

use basalt_proto::session::{
    AckLevel, EmptyResponse, ErrorResponse, FetchRequest, FetchResponseHeader, ListOffsetsRequest,
    ListOffsetsResponse, NO_END_OFFSET, ProduceRequest, ProduceResponse, Request, ResponseBody,
    Start,
};
use basalt_proto::{ErrorKind, GroupName};

use super::*;

pub(super) struct Session {
    pub(super) peer: Peer,
    next_id: u32,
}

pub(super) struct Response {
    pub(super) id: u32,
    status: u8,
    body: Vec<u8>,
}

impl Response {
    pub(super) fn ok<T: ResponseBody>(&self) -> T {
        assert_eq!(
            self.status,
            0,
            "{:?}",
            ErrorResponse::decode(self.status, &self.body)
        );
        T::decode(&self.body).unwrap()
    }

    pub(super) fn fetched(&self) -> (FetchResponseHeader, Vec<u8>) {
        assert_eq!(
            self.status,
            0,
            "{:?}",
            ErrorResponse::decode(self.status, &self.body)
        );
        let (header, frames) = FetchResponseHeader::decode_prefix(&self.body).unwrap();
        (header, frames.to_vec())
    }

    pub(super) fn refused(&self) -> ErrorResponse {
        assert_ne!(self.status, 0);
        ErrorResponse::decode(self.status, &self.body).unwrap()
    }
}

impl Session {
    pub(super) async fn open(harness: &Harness) -> Self {
        let mut peer = harness.connect().await;
        peer.send(&[0x04, 0x01]).await;
        assert_eq!(peer.exact(1).await, [0x01]);
        Self { peer, next_id: 1 }
    }

    pub(super) async fn send(&mut self, request: &Request<'_>) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let mut out = Vec::new();
        request.encode_into(id, &mut out);
        self.peer.send(&out).await;
        id
    }

    pub(super) async fn receive(&mut self) -> Response {
        let head = self.peer.exact(9).await;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (length, id, status) = (number(0), number(4), head[8]);
        Response {
            id,
            status,
            body: self.peer.exact(length as usize - 5).await,
        }
    }

    pub(super) async fn ask(&mut self, request: &Request<'_>) -> Response {
        let id = self.send(request).await;
        let response = self.receive().await;
        assert_eq!(response.id, id);
        response
    }
}

pub(super) fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

pub(super) fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn produce<'a>(name: &str, ack: AckLevel, frames: &'a [u8]) -> Request<'a> {
    Request::Produce(ProduceRequest {
        topic: topic(name),
        partition: PartitionId(0),
        ack,
        frames,
    })
}

fn fetch_request(name: &str, start: Start) -> FetchRequest {
    FetchRequest {
        topic: topic(name),
        partition: PartitionId(0),
        start,
        max_bytes: 1 << 20,
        min_bytes: 0,
        max_wait_ms: 0,
        end_offset: NO_END_OFFSET,
    }
}

pub(super) fn fetch(name: &str, start: Start) -> Request<'static> {
    Request::Fetch(fetch_request(name, start))
}

pub(super) fn long_poll(name: &str, start: Start, max_wait_ms: u32) -> Request<'static> {
    Request::Fetch(FetchRequest {
        min_bytes: 1,
        max_wait_ms,
        ..fetch_request(name, start)
    })
}

/// The offsets of the frames in a fetch response.
pub(super) fn offsets(frames: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < frames.len() {
        let number = |from: usize| {
            u32::from_be_bytes(frames[at + from..at + from + 4].try_into().unwrap()) as usize
        };
        found.push(u64::from_be_bytes(
            frames[at + 9..at + 17].try_into().unwrap(),
        ));
        at += 29 + number(17) + number(21);
    }
    assert_eq!(at, frames.len(), "whole frames only");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produced_batches_are_acknowledged_once_each_and_fetched_by_sendfile() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    let frames = numbered_frames(10).concat();
    let mut ids = Vec::new();
    for ack in [AckLevel::Os, AckLevel::Fsync, AckLevel::TopicDefault] {
        ids.push(session.send(&produce("t", ack, &frames)).await);
    }
    let mut bases = Vec::new();
    for _ in 0..3 {
        let response = session.receive().await;
        let stored: ProduceResponse = response.ok();
        assert_eq!(stored.end_offset.0, stored.base_offset.0 + 10);
        bases.push((response.id, stored.base_offset.0));
    }
    bases.sort_unstable();
    assert_eq!(
        bases,
        [(ids[0], 0), (ids[1], 10), (ids[2], 20)],
        "appended in the order of the requests"
    );
    let (header, bytes) = session
        .ask(&long_poll("t", Start::Earliest, 10_000))
        .await
        .fetched();
    assert_eq!(offsets(&bytes), (0..30).collect::<Vec<_>>());
    assert_eq!(
        (
            header.high_watermark,
            header.next_offset,
            header.end_reached
        ),
        (Offset(30), Offset(30), false)
    );
    let count = harness.count();
    assert_eq!(
        (count.bytes_sendfile, count.bytes_copied),
        (bytes.len() as u64, 0)
    );
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_without_acknowledgement_gets_no_answer_good_or_bad() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    session
        .send(&produce("t", AckLevel::None, &numbered_frames(3).concat()))
        .await;
    session
        .send(&produce("t", AckLevel::None, b"no frame"))
        .await;
    let ping = session.send(&Request::Ping).await;
    let response = session.receive().await;
    assert_eq!(response.id, ping);
    response.ok::<EmptyResponse>();
    let (_, bytes) = session
        .ask(&long_poll("t", Start::Earliest, 10_000))
        .await
        .fetched();
    assert_eq!(offsets(&bytes), [0, 1, 2]);
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_poll_holds_up_nothing_and_is_woken_by_an_append() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    let poll = session.send(&long_poll("t", Start::Latest, 60_000)).await;
    session.ask(&Request::Ping).await.ok::<EmptyResponse>();
    let write = session
        .send(&produce("t", AckLevel::Fsync, &frame(3, b"", b"news", 1)))
        .await;
    let mut answered = Vec::new();
    for _ in 0..2 {
        let response = session.receive().await;
        if response.id == poll {
            assert_eq!(offsets(&response.fetched().1), [0]);
        }
        answered.push(response.id);
    }
    answered.sort_unstable();
    assert_eq!(answered, [poll, write]);
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_poll_waits_for_min_bytes_and_no_longer_than_max_wait() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(1)).await;
    let mut session = Session::open(&harness).await;
    let patient_poll = FetchRequest {
        min_bytes: 90,
        max_wait_ms: 60_000,
        ..fetch_request("t", Start::Earliest)
    };
    let waiting = session.send(&Request::Fetch(patient_poll.clone())).await;
    session.ask(&Request::Ping).await.ok::<EmptyResponse>();
    harness.produce("t", &numbered_frames(2)).await;
    let response = session.receive().await;
    assert_eq!(
        (response.id, offsets(&response.fetched().1)),
        (waiting, vec![0, 1, 2])
    );
    let hasty = FetchRequest {
        min_bytes: 1 << 19,
        max_wait_ms: 50,
        ..patient_poll
    };
    let response = session.ask(&Request::Fetch(hasty)).await;
    assert_eq!(
        offsets(&response.fetched().1),
        [0, 1, 2],
        "what there is, once the time is up"
    );
    let (header, bytes) = session.ask(&fetch("t", Start::Latest)).await.fetched();
    assert_eq!((bytes.len(), header.next_offset), (0, Offset(3)));
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounded_fetch_stops_at_its_end_and_says_so() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(10)).await;
    let mut session = Session::open(&harness).await;
    let bounded = |start: u64, end: u64| {
        let request = FetchRequest {
            end_offset: Offset(end),
            ..fetch_request("t", Start::Offset(Offset(start)))
        };
        Request::Fetch(FetchRequest {
            min_bytes: 1,
            max_wait_ms: 60_000,
            ..request
        })
    };
    let (header, bytes) = session.ask(&bounded(3, 7)).await.fetched();
    assert_eq!(
        (offsets(&bytes), header.next_offset, header.end_reached),
        (vec![3, 4, 5, 6], Offset(7), true)
    );
    for (start, end) in [(7, 7), (8, 7), (0, 0)] {
        let (header, bytes) = session.ask(&bounded(start, end)).await.fetched();
        assert_eq!(
            (bytes.len(), header.next_offset, header.end_reached),
            (0, Offset(start), true)
        );
    }
    let (header, _) = session.ask(&bounded(3, 12)).await.fetched();
    assert_eq!(
        (header.next_offset, header.end_reached),
        (Offset(10), false)
    );
    let waiting = session.send(&bounded(10, 12)).await;
    harness.produce("t", &numbered_frames(5)).await;
    let response = session.receive().await;
    let (header, bytes) = response.fetched();
    assert_eq!(response.id, waiting);
    assert!(
        offsets(&bytes)
            .iter()
            .all(|offset| (10..12).contains(offset)),
        "nothing from the end on"
    );
    assert_eq!(header.end_reached, header.next_offset == Offset(12));
    drop(session);
    harness.stop().await;
}

/// PUB-18, native: messages of 10 B, 1 MiB and 10 B under a limit of 1 byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_18_frame_larger_than_max_bytes_is_still_delivered() {
    let harness = Harness::start().await;
    let frames = [
        frame(0, b"", &[1; 10], 1),
        frame(0, b"", &vec![2; 1 << 20], 1),
        frame(0, b"", &[3; 10], 1),
    ];
    harness.produce("t", &frames).await;
    let mut session = Session::open(&harness).await;
    let mut next = Offset(0);
    for sent in &frames {
        let request = FetchRequest {
            max_bytes: 1,
            min_bytes: 1,
            ..fetch_request("t", Start::Offset(next))
        };
        let (header, bytes) = session.ask(&Request::Fetch(request)).await.fetched();
        assert_eq!(
            (offsets(&bytes), bytes.len()),
            (vec![next.0], sent.len()),
            "one whole frame at a time"
        );
        next = header.next_offset;
    }
    assert_eq!(next, Offset(3));
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offset_outside_the_log_is_refused_with_its_bounds() {
    let harness = Harness::start().await;
    let frames = numbered_frames(60);
    harness.produce("t", &frames[..50]).await;
    harness.seal("t").await;
    harness.produce("t", &frames[50..]).await;
    harness.expire("t", 50).await;
    let mut session = Session::open(&harness).await;
    for outside in [0, 49, 61, 1000, u64::MAX] {
        let error = session
            .ask(&fetch("t", Start::Offset(Offset(outside))))
            .await
            .refused();
        assert_eq!(error.kind, ErrorKind::OffsetOutOfRange, "{outside}");
        assert_eq!(
            (error.log_start_offset, error.high_watermark),
            (Offset(50), Offset(60)),
            "{outside}"
        );
    }
    let (header, bytes) = session
        .ask(&fetch("t", Start::Offset(Offset(60))))
        .await
        .fetched();
    assert_eq!(
        (bytes.len(), header.next_offset, header.log_start_offset),
        (0, Offset(60), Offset(50))
    );
    for (start, first) in [
        (Start::Earliest, 50),
        (Start::Timestamp(0), 50),
        (Start::Timestamp(55), 55),
    ] {
        assert_eq!(
            offsets(&session.ask(&fetch("t", start)).await.fetched().1)[0],
            first
        );
    }
    let list = |start| {
        Request::ListOffsets(ListOffsetsRequest {
            topic: topic("t"),
            partition: PartitionId(0),
            start,
        })
    };
    for (start, offset, timestamp_ns, found) in [
        (Start::Earliest, 50, 0, true),
        (Start::Latest, 60, 0, true),
        (Start::Timestamp(57), 57, 57, true),
        (Start::Timestamp(60), 60, 0, false),
        (Start::Offset(Offset(52)), 52, 0, true),
        (Start::Offset(Offset(49)), 60, 0, false),
    ] {
        let listed: ListOffsetsResponse = session.ask(&list(start)).await.ok();
        assert_eq!(
            listed,
            ListOffsetsResponse {
                offset: Offset(offset),
                timestamp_ns,
                found
            },
            "{start:?}"
        );
    }
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_answered_by_their_id_and_the_session_goes_on() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    let unknown_kind = [0, 0, 0, 5, 99, 0, 0, 0, 7];
    let cut_body = [0, 0, 0, 6, 2, 0, 0, 0, 8, 3];
    let bad_name = [0, 0, 0, 8, 8, 0, 0, 0, 9, 2, b'.', b'.'];
    session
        .peer
        .send(&[&unknown_kind[..], &cut_body, &bad_name].concat())
        .await;
    for (id, kind) in [
        (7, ErrorKind::InvalidRequest),
        (8, ErrorKind::InvalidRequest),
        (9, ErrorKind::InvalidName),
    ] {
        let response = session.receive().await;
        assert_eq!((response.id, response.refused().kind), (id, kind));
    }
    let response = session
        .ask(&produce(
            "t",
            AckLevel::Fsync,
            &header(0x01, 0, 0, 52_428_801, 1),
        ))
        .await;
    assert_eq!(response.refused().kind, ErrorKind::TooLarge);
    let two = [frame(0, b"", b"good", 1), vec![0x09; 40]].concat();
    assert_eq!(
        session
            .ask(&produce("t", AckLevel::Fsync, &two))
            .await
            .refused()
            .kind,
        ErrorKind::InvalidFrame
    );
    session.ask(&Request::Ping).await.ok::<EmptyResponse>();
    assert!(
        harness.log.log().topic(&topic("t")).is_none(),
        "a bad batch is refused before its topic is made"
    );
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_over_the_limit_is_refused_from_its_header_and_ends_the_session() {
    let harness = Harness::start().await;
    for length in [u32::MAX, (56 << 20) + 1, 4] {
        let mut session = Session::open(&harness).await;
        let head = [&length.to_be_bytes()[..], &[1, 0, 0, 0, 42]].concat();
        session.peer.send(&head).await;
        let response = session.receive().await;
        let kind = if length == 4 {
            ErrorKind::InvalidRequest
        } else {
            ErrorKind::TooLarge
        };
        assert_eq!((response.id, response.refused().kind), (42, kind));
        assert_eq!(session.peer.rest().await, b"");
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_version_is_refused() {
    let harness = Harness::start().await;
    let mut peer = harness.connect().await;
    peer.send(&[0x04, 0x02]).await;
    assert_eq!(peer.rest().await, [0xff]);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_end_with_their_session_and_at_shutdown() {
    let harness = Harness::start().await;
    let mut gone = Session::open(&harness).await;
    gone.send(&long_poll("t", Start::Latest, 300_000)).await;
    harness
        .until("the poll is taken", |count| count.requests == 1)
        .await;
    drop(gone);
    harness
        .until("nothing is left of it", |count| count.connections_open == 0)
        .await;
    let mut session = Session::open(&harness).await;
    let poll = session.send(&long_poll("t", Start::Latest, 300_000)).await;
    harness
        .until("the poll is taken", |count| count.requests == 2)
        .await;
    harness.trigger.trigger();
    let response = session.receive().await;
    assert_eq!(
        (response.id, response.fetched().1.len()),
        (poll, 0),
        "answered with what there is"
    );
    assert_eq!(session.peer.rest().await, b"");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_limit_wait_their_turn() {
    let harness = Harness::start_with(|config| config.max_in_flight_requests = 2).await;
    let mut session = Session::open(&harness).await;
    let mut polls = Vec::new();
    for _ in 0..2 {
        polls.push(session.send(&long_poll("t", Start::Latest, 200)).await);
    }
    session.send(&Request::Ping).await;
    let first = session.receive().await.id;
    assert!(
        polls.contains(&first),
        "the ping waited for a poll to end, but {first} came first"
    );
    drop(session);
    harness.stop().await;
}
