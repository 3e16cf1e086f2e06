//! Groups with members over sockets: every version of what members and operators ask, restarts, and a group that is moved.

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, SyncGroupRequest, SyncGroupResponse,
};

use super::*;
use crate::GroupLimits;

fn at_once(config: &mut ServerConfig) {
    config.groups = GroupLimits {
        initial_rebalance_delay: Duration::ZERO,
        ..GroupLimits::default()
    };
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn id(group: &str) -> GroupId {
    text(group).into()
}

pub(super) fn join_request(group: &str, member: &str, version: i16) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"\0\x01topics"));
    let request = JoinGroupRequest::default()
        .with_group_id(id(group))
        .with_session_timeout_ms(10_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    match version {
        0 => request,
        _ => request.with_rebalance_timeout_ms(20_000),
    }
}

pub(super) fn sync_request(
    group: &str,
    member: &str,
    generation: i32,
    parts: &[(&str, &str)],
) -> SyncGroupRequest {
    let parts = parts.iter().map(|(member, part)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::from((*part).to_owned()))
    });
    SyncGroupRequest::default()
        .with_group_id(id(group))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_assignments(parts.collect())
}

pub(super) fn commit_request(
    group: &str,
    member: &str,
    generation: i32,
    offset: i64,
    metadata: &str,
) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text(metadata)));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(name("t"))
        .with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(id(group))
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member))
        .with_topics(vec![topic])
}

impl Client {
    /// Joins as one that is in no group yet.
    async fn join(&mut self, group: &str, version: i16) -> JoinGroupResponse {
        let request = join_request(group, "", version);
        let told: JoinGroupResponse = self.call(ApiKey::JoinGroup, version, &request).await;
        if told.error_code != 79 {
            return told;
        }
        assert!(version >= 4, "{told:?}");
        let request = join_request(group, &told.member_id, version);
        self.call(ApiKey::JoinGroup, version, &request).await
    }

    /// Joins alone and is given its part.
    async fn alone(&mut self, group: &str) -> (String, i32) {
        let joined = self.join(group, 9).await;
        assert_eq!(joined.error_code, 0, "{joined:?}");
        let (member, generation) = (joined.member_id.to_string(), joined.generation_id);
        let request = sync_request(group, &member, generation, &[(&member, "part")]);
        let synced: SyncGroupResponse = self.call(ApiKey::SyncGroup, 5, &request).await;
        assert_eq!(
            (synced.error_code, &synced.assignment[..]),
            (0, &b"part"[..])
        );
        (member, generation)
    }

    async fn heartbeat(&mut self, group: &str, member: &str, generation: i32) -> i16 {
        let request = HeartbeatRequest::default()
            .with_group_id(id(group))
            .with_generation_id(generation)
            .with_member_id(text(member));
        let told: HeartbeatResponse = self.call(ApiKey::Heartbeat, 4, &request).await;
        told.error_code
    }

    async fn commit_as(&mut self, request: &OffsetCommitRequest) -> i16 {
        let told: OffsetCommitResponse = self.call(ApiKey::OffsetCommit, 8, request).await;
        told.topics[0].partitions[0].error_code
    }

    /// Offset and text of a group in partition 0 of topic t.
    async fn stands_at(&mut self, group: &str) -> (i64, String) {
        let request = OffsetFetchRequest::default()
            .with_group_id(id(group))
            .with_topics(None);
        let told: OffsetFetchResponse = self.call(ApiKey::OffsetFetch, 7, &request).await;
        let topic = told.topics.first();
        topic.map_or((-1, String::new()), |topic| {
            let partition = &topic.partitions[0];
            let metadata = partition.metadata.as_ref().expect("a text");
            (partition.committed_offset, metadata.to_string())
        })
    }

    /// State, protocol and number of members.
    async fn described(&mut self, group: &str, version: i16) -> (String, String, usize) {
        let request = DescribeGroupsRequest::default().with_groups(vec![id(group); 3]);
        let told: DescribeGroupsResponse =
            self.call(ApiKey::DescribeGroups, version, &request).await;
        assert_eq!(told.groups.len(), 1, "each once");
        let group = &told.groups[0];
        assert_eq!(group.error_code, 0);
        (
            group.group_state.to_string(),
            group.protocol_data.to_string(),
            group.members.len(),
        )
    }

    async fn listed(&mut self, version: i16, state: Option<&str>) -> Vec<String> {
        let states = state.into_iter().map(text);
        let request = ListGroupsRequest::default().with_states_filter(states.collect());
        let told: ListGroupsResponse = self.call(ApiKey::ListGroups, version, &request).await;
        let groups = told.groups.into_iter();
        groups.map(|group| group.group_id.to_string()).collect()
    }

    async fn delete_group(&mut self, group: &str, version: i16) -> i16 {
        let request = DeleteGroupsRequest::default().with_groups_names(vec![id(group)]);
        let told: DeleteGroupsResponse = self.call(ApiKey::DeleteGroups, version, &request).await;
        told.results[0].error_code
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_members_agree_in_every_version() {
    let harness = Harness::start_with(at_once).await;
    let mut first = Client::connect(&harness).await;
    let mut second = Client::connect(&harness).await;
    for version in 0..=9 {
        let group = format!("g{version}");
        let others = version.min(5);
        let told = first.join(&group, version).await;
        let (leader, generation) = (told.member_id.to_string(), told.generation_id);
        assert_eq!((told.error_code, generation), (0, 1), "version {version}");
        assert_eq!((&*told.leader, told.members.len()), (&*leader, 1));
        assert_eq!(told.protocol_name.as_deref(), Some("range"));
        // The second waits for the first to come back. It is sent before, and answered after.
        let waiting = match version {
            4.. => {
                let request = join_request(&group, "", version);
                let told: JoinGroupResponse =
                    second.call(ApiKey::JoinGroup, version, &request).await;
                assert_eq!(told.error_code, 79);
                let request = join_request(&group, &told.member_id, version);
                second.send(ApiKey::JoinGroup, version, &request).await
            }
            _ => {
                let request = join_request(&group, "", version);
                second.send(ApiKey::JoinGroup, version, &request).await
            }
        };
        let beats = others.min(4);
        loop {
            let request = HeartbeatRequest::default()
                .with_group_id(id(&group))
                .with_generation_id(generation)
                .with_member_id(text(&leader));
            let told: HeartbeatResponse = first.call(ApiKey::Heartbeat, beats, &request).await;
            if told.error_code == 27 {
                break;
            }
            assert_eq!(told.error_code, 0);
            tokio::task::yield_now().await;
        }
        let request = join_request(&group, &leader, version);
        let told: JoinGroupResponse = first.call(ApiKey::JoinGroup, version, &request).await;
        let other: JoinGroupResponse = second.receive(ApiKey::JoinGroup, version, waiting).await;
        assert_eq!((told.generation_id, other.generation_id), (2, 2));
        assert_eq!((told.members.len(), other.members.len()), (2, 0));
        assert!(
            told.members
                .iter()
                .all(|member| &member.metadata[..] == b"\0\x01topics")
        );
        // The follower asks first, and is told when the leader has spoken.
        let request = sync_request(&group, &other.member_id, 2, &[]);
        let waiting = second.send(ApiKey::SyncGroup, others, &request).await;
        let parts = [(&*leader, "a"), (&*other.member_id, "b")];
        let request = sync_request(&group, &leader, 2, &parts);
        let synced: SyncGroupResponse = first.call(ApiKey::SyncGroup, others, &request).await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"a"[..]));
        let synced: SyncGroupResponse = second.receive(ApiKey::SyncGroup, others, waiting).await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"b"[..]));
        let described = first.described(&group, others).await;
        assert_eq!(described, ("Stable".to_owned(), "range".to_owned(), 2));
        let request = match others {
            ..3 => LeaveGroupRequest::default().with_member_id(other.member_id),
            _ => {
                let member = MemberIdentity::default().with_member_id(other.member_id);
                LeaveGroupRequest::default().with_members(vec![member])
            }
        };
        let request = request.with_group_id(id(&group));
        let left: LeaveGroupResponse = second.call(ApiKey::LeaveGroup, others, &request).await;
        let of_members = left.members.iter().map(|member| member.error_code);
        assert_eq!((left.error_code, of_members.sum::<i16>()), (0, 0));
        assert_eq!(first.heartbeat(&group, &leader, 2).await, 27);
        // One who is not there cannot leave.
        let left: LeaveGroupResponse = second.call(ApiKey::LeaveGroup, others, &request).await;
        let of_members = left.members.iter().map(|member| member.error_code);
        assert_eq!(left.error_code + of_members.sum::<i16>(), 25);
    }
    assert_eq!(first.listed(5, None).await.len(), 10);
    harness.stop().await;
}

/// PUB-20, and what is stored of a commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_20_a_commit_is_of_a_member_and_keeps_its_text() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let (member, generation) = client.alone("g").await;
    let commit = |member: &str, generation, offset, metadata: &str| {
        commit_request("g", member, generation, offset, metadata)
    };
    assert_eq!(
        client
            .commit_as(&commit(&member, generation, 10, "so far"))
            .await,
        0
    );
    assert_eq!(client.stands_at("g").await, (10, "so far".to_owned()));
    for (request, code) in [
        (commit(&member, generation - 1, 20, ""), 22),
        (commit(&member, generation + 1, 20, ""), 22),
        (commit("somebody", generation, 20, ""), 25),
        (commit("", -1, 20, ""), 25),
        (commit(&member, generation, 20, &"x".repeat(4097)), 12),
        (commit_request("unknown", &member, generation, 20, ""), 22),
    ] {
        assert_eq!(client.commit_as(&request).await, code, "{request:?}");
        assert_eq!(client.stands_at("g").await.0, 10);
    }
    let longest = "x".repeat(4096);
    assert_eq!(
        client
            .commit_as(&commit(&member, generation, 30, &longest))
            .await,
        0
    );
    assert_eq!(client.stands_at("g").await, (30, longest));
    // A session that nobody asked for, and a group that has no name.
    for (group, session_ms, code) in [("h", 5999, 26), ("h", 1_800_001, 26), ("../g", 10_000, 24)] {
        let request = join_request(group, "", 9).with_session_timeout_ms(session_ms);
        let told: JoinGroupResponse = client.call(ApiKey::JoinGroup, 9, &request).await;
        assert_eq!(told.error_code, code);
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_texts_outlive_a_restart() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let (member, generation) = client.alone("g").await;
    let request = commit_request("g", &member, generation, 5, "text");
    assert_eq!(client.commit_as(&request).await, 0);
    drop(client);
    let dir = harness.stop_and_keep().await;
    let disk = Arc::new(RealDisk::new());
    let harness = Harness::start_in(dir, disk, at_once, None).await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.heartbeat("g", &member, generation).await, 0);
    assert_eq!(client.stands_at("g").await, (5, "text".to_owned()));
    let request = commit_request("g", &member, generation, 6, "");
    assert_eq!(client.commit_as(&request).await, 0);
    let described = client.described("g", 5).await;
    assert_eq!(described, ("Stable".to_owned(), "range".to_owned(), 1));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_list_describe_and_delete_groups_and_offsets() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let (member, generation) = client.alone("used").await;
    for (group, member, generation) in [("used", &*member, generation), ("idle", "", -1)] {
        let request = commit_request(group, member, generation, 5, "");
        assert_eq!(client.commit_as(&request).await, 0);
    }
    for version in 0..=5 {
        assert_eq!(client.listed(version, None).await, ["idle", "used"]);
    }
    assert_eq!(client.listed(5, Some("stable")).await, ["used"]);
    assert_eq!(client.listed(4, Some("Empty")).await, ["idle"]);
    let empty = ("Empty".to_owned(), String::new(), 0);
    assert_eq!(client.described("idle", 5).await, empty);
    assert_eq!(client.described("none", 5).await.0, "Dead");
    let forget = |group: &str| {
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(0);
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(name("t"))
            .with_partitions(vec![partition]);
        OffsetDeleteRequest::default()
            .with_group_id(id(group))
            .with_topics(vec![topic])
    };
    for (group, whole, of_partition) in [("none", 69, 0), ("used", 0, 86), ("idle", 0, 0)] {
        let told: OffsetDeleteResponse = client.call(ApiKey::OffsetDelete, 0, &forget(group)).await;
        let partition = told
            .topics
            .first()
            .map_or(0, |topic| topic.partitions[0].error_code);
        assert_eq!(
            (told.error_code, partition),
            (whole, of_partition),
            "{group}"
        );
    }
    assert_eq!(client.stands_at("idle").await.0, -1);
    assert_eq!(client.stands_at("used").await.0, 5);
    for version in 0..=2 {
        let request = commit_request("idle", "", -1, 5, "");
        assert_eq!(client.commit_as(&request).await, 0);
        assert_eq!(client.delete_group("used", version).await, 68);
        assert_eq!(client.delete_group("idle", version).await, 0);
        assert_eq!(client.delete_group("idle", version).await, 69);
        assert_eq!(client.delete_group("a b", version).await, 24);
        assert_eq!(client.stands_at("idle").await.0, -1);
    }
    harness.stop().await;
}

/// `basalt group seek` while the group runs: its members come back, and find where they are to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_moved_while_it_runs() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let (member, generation) = client.alone("g").await;
    let commit = commit_request("g", &member, generation, 50, "");
    assert_eq!(client.commit_as(&commit).await, 0);
    let group = basalt_proto::GroupName::new("g").unwrap();
    let topic = TopicName::new("t").unwrap();
    crate::commit::seek(&harness.shared, &group, &topic, PartitionId(0), Offset(7))
        .await
        .unwrap();
    // Java commits where it was before it joins again.
    assert_eq!(client.commit_as(&commit).await, 25);
    let as_nobody = commit_request("g", "", -1, 50, "");
    assert_eq!(client.commit_as(&as_nobody).await, 25, "as aiokafka does");
    assert_eq!(client.heartbeat("g", &member, generation).await, 25);
    assert_eq!(client.stands_at("g").await.0, 7);
    let (again, generation) = client.alone("g").await;
    assert_ne!(again, member);
    assert_eq!(client.commit_as(&commit).await, 25);
    let commit = commit_request("g", &again, generation, 8, "");
    assert_eq!(client.commit_as(&commit).await, 0);
    harness.stop().await;
}

/// GRP-4: of commits that are under way while the next generation begins, none is applied after one of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_of_a_generation_comes_after_one_of_the_next() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    let mut other = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let (member, mut generation) = client.alone("g").await;
    for round in 0..40 {
        let late = commit_request("g", &member, generation, round * 2, "");
        let mut sent = Vec::new();
        for _ in 0..10 {
            sent.push(other.send(ApiKey::OffsetCommit, 8, &late).await);
        }
        // It leads, so that it is told the next generation.
        let request = join_request("g", &member, 9);
        let told: JoinGroupResponse = client.call(ApiKey::JoinGroup, 9, &request).await;
        assert_eq!((told.error_code, told.generation_id), (0, generation + 1));
        generation += 1;
        let request = sync_request("g", &member, generation, &[(&member, "part")]);
        let synced: SyncGroupResponse = client.call(ApiKey::SyncGroup, 5, &request).await;
        assert_eq!(synced.error_code, 0);
        let next = commit_request("g", &member, generation, round * 2 + 1, "");
        assert_eq!(client.commit_as(&next).await, 0);
        for id in sent {
            let told: OffsetCommitResponse = other.receive(ApiKey::OffsetCommit, 8, id).await;
            let code = told.topics[0].partitions[0].error_code;
            assert!([0, 22, 27].contains(&code), "{code}");
        }
        assert_eq!(other.commit_as(&late).await, 22, "it is too late now");
        assert_eq!(client.stands_at("g").await.0, round * 2 + 1);
    }
    // What is asked behind a commit is told when that is done.
    let commit = commit_request("g", &member, generation, 1000, "");
    let committing = client.send(ApiKey::OffsetCommit, 8, &commit).await;
    let request = OffsetFetchRequest::default()
        .with_group_id(id("g"))
        .with_topics(None);
    let fetching = client.send(ApiKey::OffsetFetch, 7, &request).await;
    let _: OffsetCommitResponse = client.receive(ApiKey::OffsetCommit, 8, committing).await;
    let told: OffsetFetchResponse = client.receive(ApiKey::OffsetFetch, 7, fetching).await;
    assert_eq!(told.topics[0].partitions[0].committed_offset, 1000);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_member_that_restarts_keeps_its_part() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    let instance = |request: JoinGroupRequest| request.with_group_instance_id(Some(text("i")));
    for version in [5, 6, 9] {
        let group = format!("g{version}");
        let request = instance(join_request(&group, "", version));
        let first: JoinGroupResponse = client.call(ApiKey::JoinGroup, version, &request).await;
        assert_eq!(first.error_code, 0);
        let sync = |member: &str, parts: &[(&str, &str)]| {
            sync_request(&group, member, 1, parts).with_group_instance_id(Some(text("i")))
        };
        let part = [(&*first.member_id, "part")];
        let request_sync = sync(&first.member_id, &part);
        let synced: SyncGroupResponse = client.call(ApiKey::SyncGroup, 5, &request_sync).await;
        assert_eq!(synced.error_code, 0);
        let back: JoinGroupResponse = client.call(ApiKey::JoinGroup, version, &request).await;
        assert_eq!((back.error_code, back.generation_id), (0, 1));
        assert_eq!(back.skip_assignment, version == 9);
        let request_sync = sync(&back.member_id, &[]);
        let synced: SyncGroupResponse = client.call(ApiKey::SyncGroup, 5, &request_sync).await;
        assert_eq!(&synced.assignment[..], b"part");
        let request_sync = sync(&first.member_id, &[]);
        let old: SyncGroupResponse = client.call(ApiKey::SyncGroup, 5, &request_sync).await;
        assert_eq!(old.error_code, 82);
        let by_instance = MemberIdentity::default().with_group_instance_id(Some(text("i")));
        let request = LeaveGroupRequest::default()
            .with_group_id(id(&group))
            .with_members(vec![by_instance]);
        let left: LeaveGroupResponse = client.call(ApiKey::LeaveGroup, 5, &request).await;
        assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_when_the_server_stops_is_told_to_look_again() {
    let harness = Harness::start_with(at_once).await;
    let mut client = Client::connect(&harness).await;
    let (member, generation) = client.alone("g").await;
    let mut second = Client::connect(&harness).await;
    let waiting = second
        .send(ApiKey::JoinGroup, 3, &join_request("g", "", 3))
        .await;
    while client.heartbeat("g", &member, generation).await != 27 {
        tokio::task::yield_now().await;
    }
    harness.trigger.trigger();
    let told: JoinGroupResponse = second.receive(ApiKey::JoinGroup, 3, waiting).await;
    assert_eq!(told.error_code, 16);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_nobody_uses_are_forgotten_where_that_is_wanted() {
    let harness = Harness::start_with(|config| {
        at_once(config);
        config.groups.retention = Some(Duration::from_millis(200));
    })
    .await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let (member, generation) = client.alone("used").await;
    for (group, member, generation) in [("used", &*member, generation), ("idle", "", -1)] {
        let request = commit_request(group, member, generation, 5, "");
        assert_eq!(client.commit_as(&request).await, 0);
    }
    let gone = async {
        while client.stands_at("idle").await.0 == 5 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.expect("it is forgotten");
    assert_eq!(client.stands_at("used").await.0, 5);
    harness.stop().await;
}
