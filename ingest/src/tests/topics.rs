//! Topics and groups over a session: made, changed, described, cooled, deleted.

use basalt_proto::ErrorKind;
use basalt_proto::session::{
    CommittedResponse, CoolTopicResponse, EmptyResponse, GroupsResponse, MetadataResponse, Request,
    Start,
};

use super::session::{Session, fetch, group, long_poll, offsets, topic};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_created_altered_described_and_deleted() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    let config = vec![("durability".to_owned(), "os".to_owned())];
    let create = Request::CreateTopic {
        topic: topic("made"),
        partitions: 3,
        config,
    };
    session.ask(&create).await.ok::<EmptyResponse>();
    assert_eq!(
        session.ask(&create).await.refused().kind,
        ErrorKind::TopicExists
    );
    let pair = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    let wrong = Request::AlterTopic {
        topic: topic("made"),
        config: pair("colour", "blue"),
    };
    let error = session.ask(&wrong).await.refused();
    assert_eq!(error.kind, ErrorKind::InvalidConfig);
    assert!(error.message.contains("colour"), "{}", error.message);
    let alter = Request::AlterTopic {
        topic: topic("made"),
        config: pair("retention_bytes", "1000"),
    };
    session.ask(&alter).await.ok::<EmptyResponse>();
    let all: MetadataResponse = session
        .ask(&Request::Metadata { topics: Vec::new() })
        .await
        .ok();
    assert_eq!(all.topics.len(), 1);
    assert_eq!(
        (all.topics[0].topic.as_str(), all.topics[0].partitions.len()),
        ("made", 3)
    );
    assert!(
        all.topics[0]
            .config
            .contains(&("durability".to_owned(), "os".to_owned())),
        "{:?}",
        all.topics[0]
    );
    assert!(
        all.topics[0]
            .config
            .contains(&("retention_bytes".to_owned(), "1000".to_owned()))
    );
    let unknown = session
        .ask(&Request::Metadata {
            topics: vec![topic("nowhere")],
        })
        .await
        .refused();
    assert_eq!(unknown.kind, ErrorKind::UnknownTopic);
    assert!(unknown.message.contains("nowhere"), "{}", unknown.message);
    session
        .ask(&Request::DeleteTopic {
            topic: topic("made"),
        })
        .await
        .ok::<EmptyResponse>();
    let again = session
        .ask(&Request::DeleteTopic {
            topic: topic("made"),
        })
        .await
        .refused();
    assert_eq!(again.kind, ErrorKind::UnknownTopic);
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_offsets_are_told_by_group() {
    let harness = Harness::start().await;
    let mut session = Session::open(&harness).await;
    harness.produce("made", &numbered_frames(9)).await;
    let place = |name: &str| (group(name), topic("made"), PartitionId(0));
    let committed = |name: &str| {
        let (group, topic, partition) = place(name);
        Request::Committed {
            group,
            topic,
            partition,
        }
    };
    assert_eq!(
        session
            .ask(&committed("g"))
            .await
            .ok::<CommittedResponse>()
            .offset,
        None
    );
    let (g, t, p) = place("g");
    session
        .ask(&Request::Commit {
            group: g,
            topic: t,
            partition: p,
            offset: Offset(4),
        })
        .await
        .ok::<EmptyResponse>();
    assert_eq!(
        session
            .ask(&committed("g"))
            .await
            .ok::<CommittedResponse>()
            .offset,
        Some(Offset(4))
    );
    let groups: GroupsResponse = session.ask(&Request::Groups { group: None }).await.ok();
    assert_eq!(groups.groups.len(), 1);
    assert_eq!(
        (groups.groups[0].committed, groups.groups[0].high_watermark),
        (Offset(4), Offset(9))
    );
    let none: GroupsResponse = session
        .ask(&Request::Groups {
            group: Some(group("other")),
        })
        .await
        .ok();
    assert_eq!(none.groups, []);
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_on_a_topic_is_told_of_its_deletion() {
    let harness = Harness::start().await;
    let mut producer = harness.producer("doomed").await;
    producer.send(&numbered_frames(1).concat()).await;
    assert_eq!(producer.stored().await, 0);
    let mut consumer = harness.consumer("g", "doomed").await;
    assert_eq!(consumer.frame().await.offset, 0);
    let mut session = Session::open(&harness).await;
    let bystander = session
        .send(&long_poll("spared", Start::Latest, 300_000))
        .await;
    let waiting = session
        .send(&long_poll("doomed", Start::Latest, 300_000))
        .await;
    let delete = session
        .send(&Request::DeleteTopic {
            topic: topic("doomed"),
        })
        .await;
    for _ in 0..2 {
        let response = session.receive().await;
        if response.id == waiting {
            assert_eq!(response.refused().kind, ErrorKind::UnknownTopic);
        } else {
            assert_eq!(response.id, delete);
        }
    }
    assert_eq!(consumer.rest().await, b"");
    producer.send(&numbered_frames(1).concat()).await;
    assert_eq!(
        refused(producer.ack().await).0,
        ErrorKind::UnknownTopic.code()
    );
    assert_eq!(producer.rest().await, b"");
    assert_eq!(
        harness.produce("doomed", &numbered_frames(1)).await,
        [0],
        "a new topic of the name begins anew"
    );
    harness.produce("spared", &numbered_frames(1)).await;
    assert_eq!(session.receive().await.id, bystander);
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cooled_topic_is_replayed_byte_exact_and_by_sendfile_on_both_sides_of_the_cut() {
    let harness = Harness::start().await;
    let frames: Vec<Vec<u8>> = (0..500_u64)
        .map(|number| frame(number, b"key", &number.to_be_bytes().repeat(20), 1))
        .collect();
    harness.produce("t", &frames[..300]).await;
    let mut session = Session::open(&harness).await;
    let cooled: CoolTopicResponse = session
        .ask(&Request::CoolTopic {
            topic: topic("t"),
            wait: true,
        })
        .await
        .ok();
    assert_eq!(cooled.row_count, 300);
    harness.produce("t", &frames[300..]).await;
    let bounds = harness.partition("t").bounds();
    assert_eq!(
        (bounds.cold_end_offset, bounds.high_watermark),
        (Offset(300), Offset(500))
    );
    let mut consumer = harness.consumer("g", "t").await;
    let mut bytes = 0;
    for (number, sent) in frames.iter().enumerate() {
        let mut expected = sent.clone();
        expected[9..17].copy_from_slice(&(number as u64).to_be_bytes());
        assert_eq!(consumer.frame().await.bytes, expected, "frame {number}");
        bytes += expected.len() as u64;
    }
    harness
        .until("all bytes sent by sendfile", |count| {
            count.bytes_sendfile == bytes
        })
        .await;
    let mut next = Offset(0);
    let mut fetched = Vec::new();
    while next < Offset(500) {
        let (header, bytes) = session
            .ask(&fetch("t", Start::Offset(next)))
            .await
            .fetched();
        fetched.extend(offsets(&bytes));
        assert!(header.next_offset > next);
        next = header.next_offset;
    }
    assert_eq!(fetched, (0..500).collect::<Vec<_>>());
    assert_eq!(harness.count().bytes_copied, 0);
    drop((session, consumer));
    harness.stop().await;
}
