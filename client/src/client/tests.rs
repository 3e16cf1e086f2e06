#![allow(clippy::unwrap_used)]

use basalt_proto::session::*;
use basalt_proto::{ErrorKind, GroupName, Offset};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::testing::{PARTITION, Peer, TestServer, soon, topic};

fn group() -> GroupName {
    "g".parse().unwrap()
}

/// Runs a call against a peer that expects `request` and answers with `response`.
async fn answered<T>(
    peer: &mut Peer,
    call: impl Future<Output = Result<T, ClientError>>,
    request: Request<'_>,
    response: &impl ResponseBody,
) -> T {
    let serve = async {
        let received = peer.receive().await;
        assert_eq!(received.request(), request);
        peer.reply(received.id, response).await;
    };
    soon(async { tokio::join!(call, serve) }).await.0.unwrap()
}

#[tokio::test]
async fn calls_about_offsets_say_what_they_mean() {
    let server = TestServer::start().await;
    let (client, mut peer) = server.client().await;
    let (topic, group, partition) = (topic(), group(), PARTITION);

    let start = Start::Timestamp(7);
    let request = || {
        Request::ListOffsets(ListOffsetsRequest {
            topic: topic.clone(),
            partition,
            start,
        })
    };
    let found = ListOffsetsResponse {
        offset: Offset(4),
        timestamp_ns: 9,
        found: true,
    };
    let listed = answered(
        &mut peer,
        client.list_offsets(&topic, partition, start),
        request(),
        &found,
    )
    .await;
    assert_eq!(
        listed,
        Some(crate::ListedOffset {
            offset: Offset(4),
            timestamp_ns: 9
        })
    );
    let missing = ListOffsetsResponse {
        found: false,
        ..found
    };
    let listed = answered(
        &mut peer,
        client.list_offsets(&topic, partition, start),
        request(),
        &missing,
    )
    .await;
    assert_eq!(listed, None);

    let request = Request::Commit {
        group: group.clone(),
        topic: topic.clone(),
        partition,
        offset: Offset(4),
    };
    let call = client.commit(&group, &topic, partition, Offset(4));
    answered(&mut peer, call, request, &EmptyResponse).await;
    let request = Request::Committed {
        group: group.clone(),
        topic: topic.clone(),
        partition,
    };
    let call = client.committed(&group, &topic, partition);
    let response = CommittedResponse {
        offset: Some(Offset(4)),
    };
    assert_eq!(
        answered(&mut peer, call, request, &response).await,
        Some(Offset(4))
    );
    let request = Request::Groups {
        group: Some(group.clone()),
    };
    let entry = GroupEntry {
        group: group.clone(),
        topic,
        partition,
        committed: Offset(4),
        high_watermark: Offset(9),
    };
    let response = GroupsResponse {
        groups: vec![entry.clone()],
    };
    assert_eq!(
        answered(&mut peer, client.groups(Some(&group)), request, &response).await,
        [entry]
    );
}

#[tokio::test]
async fn calls_about_topics_say_what_they_mean() {
    let server = TestServer::start().await;
    let (client, mut peer) = server.client().await;
    let topic = topic();
    let config = vec![("durability".to_owned(), "os".to_owned())];

    let request = Request::CreateTopic {
        topic: topic.clone(),
        partitions: 2,
        config: config.clone(),
    };
    answered(
        &mut peer,
        client.create_topic(&topic, 2, config.clone()),
        request,
        &EmptyResponse,
    )
    .await;
    let request = Request::AlterTopic {
        topic: topic.clone(),
        config: config.clone(),
    };
    answered(
        &mut peer,
        client.alter_topic(&topic, config.clone()),
        request,
        &EmptyResponse,
    )
    .await;
    let request = Request::Metadata {
        topics: vec![topic.clone()],
    };
    let metadata = TopicMetadata {
        topic: topic.clone(),
        topic_id: 1,
        config,
        partitions: vec![],
    };
    let response = MetadataResponse {
        topics: vec![metadata.clone()],
    };
    let topics = [topic.clone()];
    assert_eq!(
        answered(&mut peer, client.metadata(&topics), request, &response).await,
        [metadata]
    );
    let request = Request::CoolTopic {
        topic: topic.clone(),
        wait: true,
    };
    let response = CoolTopicResponse {
        segment_count: 1,
        row_count: 2,
        bytes_in: 3,
        bytes_out: 4,
    };
    assert_eq!(
        answered(
            &mut peer,
            client.cool_topic(&topic, true),
            request,
            &response
        )
        .await,
        response
    );
    let request = Request::DeleteTopic {
        topic: topic.clone(),
    };
    answered(
        &mut peer,
        client.delete_topic(&topic),
        request,
        &EmptyResponse,
    )
    .await;
    answered(&mut peer, client.ping(), Request::Ping, &EmptyResponse).await;
}

#[tokio::test]
async fn a_fetch_brings_frames_and_bounds() {
    let server = TestServer::start().await;
    let (client, mut peer) = server.client().await;
    let request = FetchRequest {
        topic: topic(),
        partition: PARTITION,
        start: Start::Earliest,
        max_bytes: 1000,
        min_bytes: 0,
        max_wait_ms: 0,
        end_offset: NO_END_OFFSET,
    };
    let serve = async {
        let received = peer.receive().await;
        assert_eq!(received.fetch(), request);
        peer.fetched(received.id, 5, &["a", "b"], true).await;
    };
    let (fetched, ()) = soon(async { tokio::join!(client.fetch(request.clone()), serve) }).await;
    let fetched = fetched.unwrap();
    assert_eq!(
        (fetched.next_offset, fetched.end_reached),
        (Offset(7), true)
    );
    let offsets: Vec<_> = fetched
        .frames()
        .map(|frame| frame.unwrap().header.offset)
        .collect();
    assert_eq!(offsets, [Offset(5), Offset(6)]);
}

#[tokio::test]
async fn answers_in_another_order_find_their_calls() {
    let server = TestServer::start().await;
    let (client, mut peer) = server.client().await;
    let (topic, group) = (topic(), group());
    let serve = async {
        let (first, second) = (peer.receive().await, peer.receive().await);
        for received in [second, first] {
            let response = match received.request() {
                Request::Committed { partition, .. } => CommittedResponse {
                    offset: Some(Offset(u64::from(partition.0) + 100)),
                },
                other => panic!("{other:?}"),
            };
            peer.reply(received.id, &response).await;
        }
    };
    let calls = async {
        tokio::join!(
            client.committed(&group, &topic, PartitionId(0)),
            client.committed(&group, &topic, PartitionId(1))
        )
    };
    let ((first, second), ()) = soon(async { tokio::join!(calls, serve) }).await;
    assert_eq!(
        (first.unwrap(), second.unwrap()),
        (Some(Offset(100)), Some(Offset(101)))
    );
}

#[tokio::test]
async fn a_refusal_brings_the_servers_words() {
    let server = TestServer::start().await;
    let (client, mut peer) = server.client().await;
    let serve = async {
        let received = peer.receive().await;
        peer.refuse(
            received.id,
            &ErrorResponse::new(ErrorKind::TopicExists, "t was made on Monday"),
        )
        .await;
    };
    let topic = topic();
    let (created, ()) =
        soon(async { tokio::join!(client.create_topic(&topic, 1, vec![]), serve) }).await;
    let error = created.unwrap_err();
    assert_eq!(error.to_string(), "topic exists: t was made on Monday");
    assert_eq!(error.kind(), Some(ErrorKind::TopicExists));
}

#[tokio::test]
async fn a_lost_question_is_asked_again_and_a_lost_order_is_not() {
    let server = TestServer::start().await;
    let (client, mut peer) = server.client().await;
    let serve = async {
        assert_eq!(peer.receive().await.request(), Request::Ping);
        drop(peer);
        let mut peer = server.accept().await;
        let again = peer.receive().await;
        assert_eq!(again.request(), Request::Ping);
        peer.reply(again.id, &EmptyResponse).await;
        peer
    };
    let (pinged, mut peer) = soon(async { tokio::join!(client.ping(), serve) }).await;
    pinged.unwrap();

    let topic = topic();
    let serve = async {
        assert_eq!(
            peer.receive().await.request(),
            Request::DeleteTopic {
                topic: topic.clone()
            }
        );
        drop(peer);
    };
    let (deleted, ()) = soon(async { tokio::join!(client.delete_topic(&topic), serve) }).await;
    assert!(matches!(deleted, Err(ClientError::OutcomeUnknown { .. })));

    // The next call connects again by itself, and is the first on the new connection.
    let serve = async {
        let mut peer = server.accept().await;
        let received = peer.receive().await;
        assert_eq!(received.request(), Request::Ping);
        peer.reply(received.id, &EmptyResponse).await;
    };
    let (pinged, ()) = soon(async { tokio::join!(client.ping(), serve) }).await;
    pinged.unwrap();
}

#[tokio::test]
async fn connecting_says_what_is_there_instead_of_a_server() {
    let server = TestServer::start().await;
    for (answer, refused) in [(SESSION_REFUSED, true), (b'H', false)] {
        let serve = async {
            let mut stream = server.accept_silent().await;
            stream.read_exact(&mut [0; 2]).await.unwrap();
            stream.write_all(&[answer]).await.unwrap();
        };
        let (connected, ()) =
            soon(async { tokio::join!(Client::connect(server.config()), serve) }).await;
        match connected.unwrap_err() {
            ConnectError::VersionRefused { version, .. } => {
                assert!(refused && version == SESSION_VERSION)
            }
            ConnectError::NotBasalt { found, .. } => assert!(!refused && found == b'H'),
            other => panic!("{other}"),
        }
    }

    let silent = ClientConfig {
        connect_timeout: Duration::from_millis(10),
        ..server.config()
    };
    let error = soon(Client::connect(silent)).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");

    let config = server.config();
    drop(server);
    let error = soon(Client::connect(config)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_response_over_the_limit_is_not_read() {
    let server = TestServer::start().await;
    let config = ClientConfig {
        max_response_bytes: 1000,
        ..server.config()
    };
    let (client, mut peer) = server.client_with(config).await;
    let topic = topic();
    let serve = async {
        let received = peer.receive().await;
        let mut head = vec![0xFF; 4];
        head.extend_from_slice(&received.id.to_be_bytes());
        head.push(STATUS_OK);
        peer.stream.write_all(&head).await.unwrap();
        assert!(peer.receive_or_end().await.is_none());
    };
    let (deleted, ()) = soon(async { tokio::join!(client.delete_topic(&topic), serve) }).await;
    let error = deleted.unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::OutcomeUnknown {
                source: ConnectionLost::Garbled { .. }
            }
        ),
        "{error}"
    );
}
