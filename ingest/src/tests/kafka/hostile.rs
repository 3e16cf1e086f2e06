//! PUB-15: lengths and counts that are promises.

use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as LegacyResource, AlterableConfig as LegacyConfig,
};
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AlterConfigsRequest, ApiVersionsRequest, ApiVersionsResponse,
    ConsumerGroupDescribeRequest, CreatePartitionsRequest, CreateTopicsRequest,
    DeleteGroupsRequest, DeleteRecordsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeGroupsRequest, DescribeProducersRequest,
    DescribeTransactionsRequest, EndTxnRequest, FindCoordinatorRequest, HeartbeatRequest,
    IncrementalAlterConfigsRequest, InitProducerIdRequest, LeaveGroupRequest, ListGroupsRequest,
    ListOffsetsRequest, ListTransactionsRequest, OffsetDeleteRequest, OffsetFetchRequest,
    SaslAuthenticateRequest, SaslHandshakeRequest,
};

use super::*;
use crate::tests::hostile::resident_bytes;

/// A request of each API that is served, in its first and last version and where its layout changes, with something in each list.
fn requests() -> Vec<Vec<u8>> {
    let one = batch(&[(1, b"x"), (2, b"y")]);
    let mut requests = Vec::new();
    let mut put = |key, versions: &[i16], request: &dyn Fn(i16) -> Box<dyn Body>| {
        for version in versions {
            requests.push(request(*version).whole(key, *version));
        }
    };
    put(ApiKey::Metadata, &[0, 1, 4, 9, 12], &|_| {
        let topic = MetadataRequestTopic::default().with_name(Some(name("t")));
        Box::new(MetadataRequest::default().with_topics(Some(vec![topic])))
    });
    put(ApiKey::Produce, &[3, 9], &|_| {
        Box::new(produce_request("t", 1, &[(0, &one), (1, &one)]))
    });
    put(ApiKey::Fetch, &[4, 7, 11, 12], &|_| {
        Box::new(fetch_request(&[("t", &[(0, 0), (1, 0)]), ("u", &[(0, 0)])]))
    });
    put(ApiKey::Fetch, &[16], &|_| Box::new(fetch_request(&[])));
    put(ApiKey::ListOffsets, &[1, 6, 8], &|_| {
        let partition = ListOffsetsPartition::default().with_timestamp(-1);
        let topic = ListOffsetsTopic::default()
            .with_name(name("t"))
            .with_partitions(vec![partition; 2]);
        Box::new(ListOffsetsRequest::default().with_topics(vec![topic]))
    });
    put(ApiKey::CreateTopics, &[2, 5, 7], &|_| {
        let config = CreatableTopicConfig::default()
            .with_name(text("retention.ms"))
            .with_value(Some(text("1")));
        let assignment = CreatableReplicaAssignment::default().with_broker_ids(vec![0.into()]);
        let topic = CreatableTopic::default()
            .with_name(name("new"))
            .with_assignments(vec![assignment])
            .with_configs(vec![config]);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        Box::new(request.with_validate_only(true))
    });
    put(ApiKey::DeleteTopics, &[1, 4, 6], &|version| {
        let request = DeleteTopicsRequest::default();
        Box::new(match version {
            6 => request.with_topics(vec![
                DeleteTopicState::default().with_name(Some(name("no"))),
            ]),
            _ => request.with_topic_names(vec![name("no"); 2]),
        })
    });
    put_settings_requests(&mut put);
    put(ApiKey::DeleteRecords, &[0, 2], &|_| {
        let partition = DeleteRecordsPartition::default().with_offset(1);
        let topic = DeleteRecordsTopic::default()
            .with_name(name("t"))
            .with_partitions(vec![partition; 2]);
        Box::new(DeleteRecordsRequest::default().with_topics(vec![topic]))
    });
    put(ApiKey::DescribeCluster, &[0, 1], &|_| {
        Box::new(DescribeClusterRequest::default())
    });
    put(ApiKey::ApiVersions, &[0, 3, 4], &|_| {
        Box::new(ApiVersionsRequest::default().with_client_software_name(text("x")))
    });
    put(ApiKey::InitProducerId, &[0, 2, 4], &|_| {
        Box::new(InitProducerIdRequest::default())
    });
    put(ApiKey::FindCoordinator, &[0, 3, 4], &|version| {
        let request = FindCoordinatorRequest::default();
        Box::new(match version {
            4 => request.with_coordinator_keys(vec![text("g"); 2]),
            _ => request.with_key(text("g")),
        })
    });
    put_group_requests(&mut put);
    put_transactional_requests(&mut put);
    requests
}

type Put<'a> = &'a mut dyn FnMut(ApiKey, &[i16], &dyn Fn(i16) -> Box<dyn Body>);

/// Those about topics' settings and partitions.
fn put_settings_requests(put: Put<'_>) {
    put(ApiKey::SaslHandshake, &[0, 1], &|_| {
        Box::new(SaslHandshakeRequest::default().with_mechanism(text("PLAIN")))
    });
    put(ApiKey::SaslAuthenticate, &[0, 2], &|_| {
        let message = Bytes::from_static(b"\0alice\0secret");
        Box::new(SaslAuthenticateRequest::default().with_auth_bytes(message))
    });
    put(ApiKey::DescribeConfigs, &[1, 4], &|_| {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text("t"))
            .with_configuration_keys(Some(vec![text("retention.ms"); 2]));
        Box::new(DescribeConfigsRequest::default().with_resources(vec![resource]))
    });
    put(ApiKey::IncrementalAlterConfigs, &[0, 1], &|_| {
        let config = AlterableConfig::default()
            .with_name(text("retention.ms"))
            .with_value(Some(text("1")));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text("t"))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        Box::new(request.with_validate_only(true))
    });
    put(ApiKey::AlterConfigs, &[0, 2], &|_| {
        let config = LegacyConfig::default()
            .with_name(text("retention.ms"))
            .with_value(Some(text("1")));
        let resource = LegacyResource::default()
            .with_resource_type(2)
            .with_resource_name(text("t"))
            .with_configs(vec![config]);
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        Box::new(request.with_validate_only(true))
    });
    put(ApiKey::CreatePartitions, &[0, 2, 3], &|_| {
        let assignment = CreatePartitionsAssignment::default().with_broker_ids(vec![0.into()]);
        let topic = CreatePartitionsTopic::default()
            .with_name(name("t"))
            .with_count(2)
            .with_assignments(Some(vec![assignment]));
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
        Box::new(request.with_validate_only(true))
    });
}

/// Those about groups.
fn put_group_requests(put: Put<'_>) {
    let id = || kafka_protocol::messages::GroupId::from(text("g"));
    put(ApiKey::OffsetCommit, &[2, 5, 7, 8, 9], &|_| {
        Box::new(groups::commit_request("g", "", -1, 1, "text"))
    });
    put(ApiKey::OffsetFetch, &[1, 6, 8, 9], &|version| {
        let request = OffsetFetchRequest::default();
        Box::new(match version {
            8.. => {
                let topic = OffsetFetchRequestTopics::default()
                    .with_name(name("t"))
                    .with_partition_indexes(vec![0, 1]);
                let group = OffsetFetchRequestGroup::default()
                    .with_group_id(id())
                    .with_topics(Some(vec![topic]));
                request.with_groups(vec![group])
            }
            _ => {
                let topic = OffsetFetchRequestTopic::default()
                    .with_name(name("t"))
                    .with_partition_indexes(vec![0, 1]);
                request.with_group_id(id()).with_topics(Some(vec![topic]))
            }
        })
    });
    put(ApiKey::JoinGroup, &[0, 1, 5, 6, 9], &|version| {
        Box::new(groups::join_request("g", "", version))
    });
    put(ApiKey::SyncGroup, &[0, 3, 4, 5], &|_| {
        Box::new(groups::sync_request(
            "g",
            "m",
            1,
            &[("m", "part"), ("n", "part")],
        ))
    });
    put(ApiKey::Heartbeat, &[0, 3, 4], &|_| {
        Box::new(
            HeartbeatRequest::default()
                .with_group_id(id())
                .with_member_id(text("m")),
        )
    });
    put(ApiKey::LeaveGroup, &[0, 3, 4, 5], &|version| {
        let request = LeaveGroupRequest::default().with_group_id(id());
        Box::new(match version {
            0 => request.with_member_id(text("m")),
            _ => {
                let member = MemberIdentity::default().with_member_id(text("m"));
                request.with_members(vec![member; 2])
            }
        })
    });
    put(ApiKey::DescribeGroups, &[0, 3, 5], &|_| {
        Box::new(DescribeGroupsRequest::default().with_groups(vec![id(); 2]))
    });
    put(ApiKey::ListGroups, &[0, 3, 4, 5], &|version| {
        let request = ListGroupsRequest::default();
        Box::new(match version {
            ..4 => request,
            4 => request.with_states_filter(vec![text("Stable"); 2]),
            _ => request.with_types_filter(vec![text("classic"); 2]),
        })
    });
    put(ApiKey::ConsumerGroupHeartbeat, &[1], &|_| {
        let request = consumer_protocol::join_request("g", "m");
        Box::new(
            request
                .with_instance_id(Some(text("i")))
                .with_rack_id(Some(text("r")))
                .with_subscribed_topic_regex(Some(text("t.*")))
                .with_server_assignor(Some(text("range"))),
        )
    });
    put(ApiKey::ConsumerGroupDescribe, &[0, 1], &|_| {
        Box::new(ConsumerGroupDescribeRequest::default().with_group_ids(vec![id(); 2]))
    });
    put(ApiKey::DeleteGroups, &[0, 2], &|_| {
        Box::new(DeleteGroupsRequest::default().with_groups_names(vec![id(); 2]))
    });
    put(ApiKey::OffsetDelete, &[0], &|_| {
        let partition = OffsetDeleteRequestPartition::default();
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(name("t"))
            .with_partitions(vec![partition; 2]);
        Box::new(
            OffsetDeleteRequest::default()
                .with_group_id(id())
                .with_topics(vec![topic]),
        )
    });
}

/// Those about transactions.
fn put_transactional_requests(put: Put<'_>) {
    let nobody = transactions::nobody();
    put(ApiKey::AddPartitionsToTxn, &[0, 3], &|_| {
        Box::new(transactions::add_request(&nobody, &["t", "t"]))
    });
    put(ApiKey::AddOffsetsToTxn, &[0, 3], &|_| {
        let request = AddOffsetsToTxnRequest::default().with_group_id(text("g").into());
        Box::new(request.with_transactional_id(text("x").into()))
    });
    put(ApiKey::TxnOffsetCommit, &[0, 2, 3], &|_| {
        Box::new(transactions::offsets_request(&nobody, 1))
    });
    put(ApiKey::EndTxn, &[0, 3], &|_| {
        Box::new(EndTxnRequest::default().with_transactional_id(text("x").into()))
    });
    put(ApiKey::DescribeProducers, &[0], &|_| {
        let topic = TopicRequest::default()
            .with_name(name("t"))
            .with_partition_indexes(vec![0, 1]);
        Box::new(DescribeProducersRequest::default().with_topics(vec![topic]))
    });
    put(ApiKey::DescribeTransactions, &[0], &|_| {
        let ids = vec![text("x").into(), text("y").into()];
        Box::new(DescribeTransactionsRequest::default().with_transactional_ids(ids))
    });
    put(ApiKey::ListTransactions, &[0, 1], &|_| {
        Box::new(
            ListTransactionsRequest::default()
                .with_state_filters(vec![text("Ongoing"); 2])
                .with_producer_id_filters(vec![1.into(), 2.into()]),
        )
    });
}

/// A request's body, of whatever API.
trait Body {
    fn whole(&self, key: ApiKey, version: i16) -> Vec<u8>;
}

impl<T: Encodable> Body for T {
    fn whole(&self, key: ApiKey, version: i16) -> Vec<u8> {
        encoded(key, version, 1, self)
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// What is cut and changed below is understood as it is, and nothing that is served is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_understood_before_it_is_changed() {
    let harness = Harness::start().await;
    harness.assert_serves("t").await;
    let mut seen = std::collections::BTreeSet::new();
    for request in requests() {
        let key = i16::from_be_bytes([request[4], request[5]]);
        seen.insert(key);
        let mut client = Client::connect(&harness).await;
        client.peer.send(&request).await;
        let answer = client.answer().await;
        assert_eq!(answer[..4], 1_i32.to_be_bytes(), "API {key}");
    }
    let mut client = Client::connect(&harness).await;
    let told: ApiVersionsResponse = client
        .call(ApiKey::ApiVersions, 0, &ApiVersionsRequest::default())
        .await;
    let served = told.api_keys.iter().map(|api| api.api_key);
    assert_eq!(seen, served.collect());
    harness.stop().await;
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
    // The state of a replica: id, epoch, no fields of its own. A sound one, so that nothing else is wrong with it.
    follower.extend_from_slice(&[1, 1, 13]);
    follower.extend_from_slice(&[0; 13]);
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
