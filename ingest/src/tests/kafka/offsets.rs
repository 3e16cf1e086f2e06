use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse,
};

use super::*;

impl Client {
    /// The offset, time and error of a time in partition 0.
    pub(super) async fn at(&mut self, version: i16, topic: &str, time: i64) -> (i64, i64, i16) {
        let partition = ListOffsetsPartition::default().with_timestamp(time);
        let asked = ListOffsetsTopic::default()
            .with_name(name(topic))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_topics(vec![asked]);
        let told: ListOffsetsResponse = self.call(ApiKey::ListOffsets, version, &request).await;
        let told = &told.topics[0].partitions[0];
        (told.offset, told.timestamp, told.error_code)
    }

    async fn commit(
        &mut self,
        version: i16,
        offset: i64,
        adjust: impl FnOnce(&mut OffsetCommitRequest),
    ) -> i16 {
        let partition = OffsetCommitRequestPartition::default()
            .with_committed_offset(offset)
            .with_committed_metadata(Some(StrBytes::new()));
        let topic = OffsetCommitRequestTopic::default()
            .with_name(name("t"))
            .with_partitions(vec![partition]);
        let mut request = OffsetCommitRequest::default()
            .with_group_id(StrBytes::from_static_str("g").into())
            .with_topics(vec![topic]);
        adjust(&mut request);
        let told: OffsetCommitResponse = self.call(ApiKey::OffsetCommit, version, &request).await;
        told.topics[0].partitions[0].error_code
    }

    async fn committed(&mut self, version: i16) -> i64 {
        if version == 8 {
            let topic = OffsetFetchRequestTopics::default()
                .with_name(name("t"))
                .with_partition_indexes(vec![0]);
            let group = OffsetFetchRequestGroup::default()
                .with_group_id(StrBytes::from_static_str("g").into())
                .with_topics(Some(vec![topic]));
            let request = OffsetFetchRequest::default().with_groups(vec![group]);
            let told: OffsetFetchResponse = self.call(ApiKey::OffsetFetch, 8, &request).await;
            return told.groups[0].topics[0].partitions[0].committed_offset;
        }
        let topic = OffsetFetchRequestTopic::default()
            .with_name(name("t"))
            .with_partition_indexes(vec![0]);
        let request = OffsetFetchRequest::default()
            .with_group_id(StrBytes::from_static_str("g").into())
            .with_topics(Some(vec![topic]));
        let told: OffsetFetchResponse = self.call(ApiKey::OffsetFetch, version, &request).await;
        let told = &told.topics[0].partitions[0];
        assert_eq!((told.error_code, told.metadata.as_deref()), (0, Some("")));
        told.committed_offset
    }
}

/// PUB-06: stamps that do not rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_06_time_is_found_exactly_whatever_the_order_of_stamps() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "own").await;
    for ms in [100, 300, 200, 400, 350] {
        client.stored("own", &batch(&[(ms, b"x")])).await;
    }
    client.metadata(9, "one").await;
    let stamps = [100, 300, 200, 400, 350].map(|ms| (ms, &b"x"[..]));
    client.stored("one", &batch(&stamps)).await;
    let frames = [100, 300, 200, 400, 350].map(|ms: u64| frame(ms * 1_000_000, b"", b"x", 1));
    harness.produce("lean", &frames).await;
    let check = async |client: &mut Client, what: &str| {
        for topic in ["own", "one", "lean"] {
            for (time, found) in [
                (0, (0, 100)),
                (100, (0, 100)),
                (101, (1, 300)),
                (250, (1, 300)),
                (301, (3, 400)),
                (350, (3, 400)),
                (400, (3, 400)),
                (401, (-1, -1)),
                (-3, (3, 400)),
            ] {
                let (offset, ms, code) = client.at(8, topic, time).await;
                assert_eq!((offset, ms), found, "{topic} {what} at {time}");
                assert_eq!(code, 0);
            }
        }
    };
    check(&mut client, "hot").await;
    for topic in ["own", "one", "lean"] {
        let topic = TopicName::new(topic).unwrap();
        harness.log.cool_topic(&topic, true).await.unwrap();
    }
    check(&mut client, "cold").await;
    // It is shown as 400 ms, and is not later than that.
    harness
        .produce("lean", &[frame(400_999_999, b"", b"y", 1)])
        .await;
    assert_eq!(client.at(8, "lean", 401).await, (-1, -1, 0));
    assert_eq!(client.at(8, "lean", -3).await, (3, 400, 0));
    assert_eq!(
        records(&client.fetch(12, "lean", 5).await)[0].timestamp_ms,
        400
    );
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_that_nanoseconds_cannot_hold_are_told_apart() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let late = 1_755_933_141_855_875;
    for ms in [-1, 7, late, late + 2, late + 1] {
        client.stored("t", &batch(&[(ms, b"x")])).await;
    }
    for (time, found) in [
        (0, (1, 7)),
        (8, (2, late)),
        (late, (2, late)),
        (late + 1, (3, late + 2)),
        (late + 2, (3, late + 2)),
        (late + 3, (-1, -1)),
        (-3, (3, late + 2)),
    ] {
        let (offset, ms, _) = client.at(8, "t", time).await;
        assert_eq!((offset, ms), found, "at {time}");
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_a_partition_are_listed() {
    let harness = Harness::start().await;
    harness.produce("t", &numbered_frames(50)).await;
    harness.seal("t").await;
    let mut client = Client::connect(&harness).await;
    for version in 1..=8 {
        assert_eq!(client.at(version, "t", -1).await, (50, -1, 0));
        assert_eq!(client.at(version, "t", -2).await, (0, -1, 0));
    }
    let topic = TopicName::new("t").unwrap();
    harness.log.cool_topic(&topic, true).await.unwrap();
    assert_eq!(client.at(8, "t", -4).await, (50, -1, 0));
    assert_eq!(client.at(7, "t", -4).await.2, 35);
    assert_eq!(client.at(8, "t", -5).await.2, 35);
    assert_eq!(client.at(8, "nowhere", -1).await, (-1, -1, 3));
    let asked = ListOffsetsTopic::default()
        .with_name(name("t"))
        .with_partitions(vec![ListOffsetsPartition::default().with_timestamp(-1); 3]);
    let request = ListOffsetsRequest::default().with_topics(vec![asked]);
    let told: ListOffsetsResponse = client.call(ApiKey::ListOffsets, 8, &request).await;
    let codes = told.topics[0].partitions.iter().map(|told| told.error_code);
    assert_eq!(codes.collect::<Vec<_>>(), [0, 42, 42]);
    client.metadata(9, "empty").await;
    assert_eq!(client.at(8, "empty", -3).await, (-1, -1, 0));
    assert_eq!(client.at(8, "empty", 0).await, (-1, -1, 0));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_no_member_commits_offsets_and_nothing_else() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    for version in 1..=8 {
        assert_eq!(client.committed(version).await, -1);
    }
    for version in 2..=8 {
        let offset = i64::from(version) * 10;
        assert_eq!(client.commit(version, offset, |_| {}).await, 0);
        assert_eq!(client.committed(8).await, offset);
        assert_eq!(client.committed(version).await, offset);
    }
    // PUB-20: of a group that has no members there is no generation.
    let generation = |request: &mut OffsetCommitRequest| {
        request.generation_id_or_member_epoch = 1;
    };
    assert_eq!(client.commit(8, 60, generation).await, 22);
    // Of no generation, it is no member, whatever it calls itself.
    let member = |request: &mut OffsetCommitRequest| {
        request.member_id = StrBytes::from_static_str("m");
    };
    assert_eq!(client.commit(8, 80, member).await, 0);
    let text = |request: &mut OffsetCommitRequest| {
        let partition = &mut request.topics[0].partitions[0];
        partition.committed_metadata = Some(StrBytes::from_static_str("text"));
    };
    assert_eq!(client.commit(8, 80, text).await, 0);
    let group = |request: &mut OffsetCommitRequest| {
        request.group_id = StrBytes::from_static_str("../g").into();
    };
    assert_eq!(client.commit(8, 60, group).await, 24);
    let partition = |request: &mut OffsetCommitRequest| {
        request.topics[0].partitions[0].partition_index = 7;
    };
    assert_eq!(client.commit(8, 60, partition).await, 3);
    assert_eq!(client.committed(8).await, 80);
    // Native consumers share them.
    harness.commit("g", "t", 5).await;
    assert_eq!(client.committed(8).await, 5);
    let all = OffsetFetchRequest::default()
        .with_group_id(StrBytes::from_static_str("g").into())
        .with_topics(None);
    let told: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, 7, &all).await;
    assert_eq!(told.topics[0].partitions[0].committed_offset, 5);
    // A group is told once, however often it is named.
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(StrBytes::from_static_str("g").into())
        .with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![group; 1000]);
    let told: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, 8, &request).await;
    assert_eq!(told.groups.len(), 1);
    assert_eq!(told.groups[0].topics[0].partitions[0].committed_offset, 5);
    harness.stop().await;
}
