//! Groups of the consumer protocol (KIP-848) over sockets: members, their commits, operators, restarts, and the other protocol.

use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, ConsumerProtocolAssignment, DescribeGroupsRequest,
    DescribeGroupsResponse, GroupId, ListGroupsRequest, ListGroupsResponse, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse,
};

use super::groups::commit_request;
use super::*;

/// Topics by id, with their partitions.
type Parts = Vec<([u8; 16], Vec<i32>)>;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn id(group: &str) -> GroupId {
    text(group).into()
}

pub(super) fn join_request(group: &str, member: &str) -> ConsumerGroupHeartbeatRequest {
    beat_request(group, member, 0)
        .with_rebalance_timeout_ms(20_000)
        .with_subscribed_topic_names(Some(vec![name("t")]))
        .with_topic_partitions(Some(Vec::new()))
}

fn beat_request(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(id(group))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
        .with_subscribed_topic_names(None)
        .with_topic_partitions(None)
}

fn owned(parts: &Parts) -> Option<Vec<TopicPartitions>> {
    let parts = parts.iter().map(|(topic, ids)| {
        TopicPartitions::default()
            .with_topic_id(topic.to_vec().try_into().expect("16 bytes"))
            .with_partitions(ids.clone())
    });
    Some(parts.collect())
}

impl Client {
    async fn beat(&mut self, request: &ConsumerGroupHeartbeatRequest) -> Beaten {
        let told: ConsumerGroupHeartbeatResponse =
            self.call(ApiKey::ConsumerGroupHeartbeat, 1, request).await;
        let has_message = told.error_message.is_some_and(|text| !text.is_empty());
        assert_eq!(has_message, told.error_code != 0);
        assert_eq!(told.heartbeat_interval_ms > 0, told.error_code == 0);
        let assignment = told.assignment.map(|assignment| {
            let topics = assignment.topic_partitions.into_iter();
            topics
                .map(|topic| (*topic.topic_id.as_bytes(), topic.partitions))
                .collect()
        });
        Beaten {
            error: told.error_code,
            epoch: told.member_epoch,
            assignment,
        }
    }

    /// The codes of a commit, and of asking where the group stands, as that member.
    async fn as_member(&mut self, member: &str, epoch: i32) -> (i16, i16) {
        let request = commit_request("g", member, epoch, 5, "text");
        let told: OffsetCommitResponse = self.call(ApiKey::OffsetCommit, 9, &request).await;
        let committed = told.topics[0].partitions[0].error_code;
        let topic = OffsetFetchRequestTopics::default()
            .with_name(name("t"))
            .with_partition_indexes(vec![0]);
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(id("g"))
            .with_member_id((!member.is_empty()).then(|| text(member)))
            .with_member_epoch(epoch)
            .with_topics(Some(vec![topic]));
        let request = OffsetFetchRequest::default().with_groups(vec![group]);
        let told: OffsetFetchResponse = self.call(ApiKey::OffsetFetch, 9, &request).await;
        if committed == 0 {
            let partition = &told.groups[0].topics[0].partitions[0];
            assert_eq!(partition.committed_offset, 5);
        }
        (committed, told.groups[0].error_code)
    }

    async fn described_consumers(&mut self, group: &str, version: i16) -> DescribedGroup {
        let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![id(group); 2]);
        let told: ConsumerGroupDescribeResponse = self
            .call(ApiKey::ConsumerGroupDescribe, version, &request)
            .await;
        let [group] = <[_; 1]>::try_from(told.groups).expect("each once");
        group
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Beaten {
    error: i16,
    epoch: i32,
    assignment: Option<Parts>,
}

async fn started() -> (Harness, Client) {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    (harness, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_a_topic_commit_and_go() {
    let (harness, mut client) = started().await;
    let first = client.beat(&join_request("g", "a")).await;
    assert_eq!((first.error, first.epoch), (0, 1));
    let all = first.assignment.expect("all");
    assert_eq!(all[0].1, [0]);
    let second = client.beat(&join_request("g", "b")).await;
    assert_eq!((second.epoch, second.assignment), (2, Some(Vec::new())));
    // One partition: it stays where it is.
    let told = client
        .beat(&beat_request("g", "a", 1).with_topic_partitions(owned(&all)))
        .await;
    assert_eq!((told.error, told.epoch), (0, 2));
    assert_eq!(client.as_member("a", 2).await, (0, 0));
    assert_eq!(client.as_member("a", 1).await, (113, 113));
    assert_eq!(client.as_member("c", 1).await, (25, 25));
    assert_eq!(client.as_member("", -1).await, (25, 0), "who only asks may");
    assert_eq!(client.beat(&beat_request("g", "a", 7)).await.error, 110);
    assert_eq!(client.beat(&beat_request("g", "c", 7)).await.error, 25);
    assert_eq!(client.beat(&beat_request("g", "a", -1)).await.epoch, -1);
    let told = client.beat(&beat_request("g", "b", 2)).await;
    assert_eq!((told.epoch, told.assignment), (3, Some(all)));
    assert_eq!(client.beat(&beat_request("g", "b", -1)).await.error, 0);
    assert_eq!(client.as_member("", -1).await, (0, 0), "nobody is left");
    assert_eq!(
        client.as_member("b", 3).await.0,
        25,
        "it is no member any more"
    );
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_that_say_too_little_or_nonsense_are_refused() {
    let (harness, mut client) = started().await;
    let join = || join_request("g", "a");
    let refused = [
        (join().with_group_id(id("a b")), 24),
        (join().with_member_id(text("")), 42),
        (join().with_member_id(text(&"x".repeat(256))), 42),
        (join().with_instance_id(Some(text(""))), 42),
        (join().with_rack_id(Some(text(" "))), 42),
        (join().with_rebalance_timeout_ms(-1), 42),
        (join().with_subscribed_topic_names(None), 42),
        (join().with_topic_partitions(None), 42),
        (
            join().with_topic_partitions(owned(&vec![([0; 16], vec![0])])),
            42,
        ),
        (join().with_server_assignor(Some(text("cooperative"))), 112),
        (join().with_subscribed_topic_regex(Some(text("a["))), 128),
        (join().with_member_epoch(-3), 42),
        (join().with_member_epoch(-2), 42),
        (join().with_member_epoch(-1), 25),
        (join().with_member_epoch(1), 25),
    ];
    for (request, code) in refused {
        assert_eq!(client.beat(&request).await.error, code, "{request:?}");
    }
    let with_pattern = join()
        .with_subscribed_topic_names(None)
        .with_subscribed_topic_regex(Some(text("t|u")));
    let told = client.beat(&with_pattern).await;
    assert_eq!(
        (told.error, told.assignment.map(|all| all.len())),
        (0, Some(1))
    );
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_both_kinds_of_groups() {
    let (harness, mut client) = started().await;
    client
        .beat(&join_request("g", "a").with_server_assignor(Some(text("range"))))
        .await;
    for version in [0, 1] {
        let group = client.described_consumers("g", version).await;
        assert_eq!((group.error_code, &*group.group_state), (0, "Stable"));
        assert_eq!((group.group_epoch, &*group.assignor_name), (1, "range"));
        let member = &group.members[0];
        assert_eq!((&*member.member_id, member.member_epoch), ("a", 1));
        let topic = &member.assignment.topic_partitions[0];
        assert_eq!(
            (&**topic.topic_name, &topic.partitions[..]),
            ("t", &[0][..])
        );
        assert_eq!(member.assignment, member.target_assignment);
        assert_eq!(
            client
                .described_consumers("other", version)
                .await
                .error_code,
            69
        );
    }
    let request = DescribeGroupsRequest::default().with_groups(vec![id("g")]);
    let told: DescribeGroupsResponse = client.call(ApiKey::DescribeGroups, 5, &request).await;
    let member = &told.groups[0].members[0];
    let mut assignment = member.member_assignment.slice(2..);
    let assignment = ConsumerProtocolAssignment::decode(&mut assignment, 0).expect("its form");
    assert_eq!(&**assignment.assigned_partitions[0].topic, "t");
    let request = ListGroupsRequest::default().with_types_filter(vec![text("Consumer")]);
    let told: ListGroupsResponse = client.call(ApiKey::ListGroups, 5, &request).await;
    assert_eq!(told.groups.len(), 1);
    assert_eq!(&*told.groups[0].group_type, "consumer");
    // The other protocol has to wait until nobody is in it.
    let classic = super::groups::join_request("g", "", 9);
    let told: kafka_protocol::messages::JoinGroupResponse =
        client.call(ApiKey::JoinGroup, 9, &classic).await;
    assert_eq!(told.error_code, 23);
    let classic = super::groups::join_request("old", "", 3);
    let told: kafka_protocol::messages::JoinGroupResponse =
        client.call(ApiKey::JoinGroup, 3, &classic).await;
    assert_eq!(told.error_code, 0);
    assert_eq!(client.beat(&join_request("old", "a")).await.error, 69);
    assert_eq!(client.described_consumers("old", 1).await.error_code, 69);
    // An operator puts a member out by what every client can say.
    let member = kafka_protocol::messages::leave_group_request::MemberIdentity::default()
        .with_member_id(text("a"));
    let request = kafka_protocol::messages::LeaveGroupRequest::default()
        .with_group_id(id("g"))
        .with_members(vec![member]);
    let told: kafka_protocol::messages::LeaveGroupResponse =
        client.call(ApiKey::LeaveGroup, 5, &request).await;
    assert_eq!((told.error_code, told.members[0].error_code), (0, 0));
    assert_eq!(client.beat(&beat_request("g", "a", 1)).await.error, 25);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_outlive_a_restart_and_a_seek_puts_them_out() {
    let (harness, mut client) = started().await;
    let first = client.beat(&join_request("g", "a")).await;
    assert_eq!(client.as_member("a", first.epoch).await, (0, 0));
    drop(client);
    let dir = harness.stop_and_keep().await;
    let disk = Arc::new(RealDisk::new());
    let harness = Harness::start_in(dir, disk, |_| {}, None).await;
    let mut client = Client::connect(&harness).await;
    let told = client.beat(&beat_request("g", "a", first.epoch)).await;
    assert_eq!(
        (told.error, told.epoch, told.assignment),
        (0, first.epoch, None)
    );
    let group = basalt_proto::GroupName::new("g").unwrap();
    let topic = TopicName::new("t").unwrap();
    crate::commit::seek(&harness.shared, &group, &topic, PartitionId(0), Offset(7))
        .await
        .unwrap();
    assert_eq!(client.as_member("a", first.epoch).await.0, 25);
    assert_eq!(client.as_member("", -1).await.0, 25, "what is late");
    assert_eq!(
        client
            .beat(&beat_request("g", "a", first.epoch))
            .await
            .error,
        25
    );
    let again = client.beat(&join_request("g", "a")).await;
    assert_eq!(again.error, 0);
    harness.stop().await;
}
