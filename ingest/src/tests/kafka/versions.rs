use kafka_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, DescribeClusterRequest, DescribeClusterResponse,
    FindCoordinatorRequest, FindCoordinatorResponse,
};

use super::*;

fn named() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("some-client"))
        .with_client_software_version(StrBytes::from_static_str("1.0"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_told_in_every_version_there_is() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    for version in 0..=4 {
        let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, version, &named()).await;
        assert_eq!(told.error_code, 0);
        let range = |key: ApiKey| {
            let found = told.api_keys.iter().find(|api| api.api_key == key as i16);
            found.map(|api| (api.min_version, api.max_version))
        };
        assert_eq!(range(ApiKey::ApiVersions), Some((0, 4)));
        // Older librdkafka compresses nothing unless 0 is there.
        assert_eq!(range(ApiKey::Produce), Some((0, 11)));
        assert_eq!(range(ApiKey::Metadata), Some((0, 12)));
        assert_eq!(range(ApiKey::Fetch), Some((4, 17)));
        assert_eq!(range(ApiKey::InitProducerId), Some((0, 4)));
        assert_eq!(range(ApiKey::SaslHandshake), Some((0, 1)));
        assert_eq!(range(ApiKey::SaslAuthenticate), Some((0, 2)));
        // Older librdkafka joins no group unless 0 is there.
        for key in [ApiKey::JoinGroup, ApiKey::SyncGroup, ApiKey::Heartbeat] {
            assert_eq!(range(key).map(|(first, _)| first), Some(0));
        }
        // librdkafka uses the consumer protocol only where it finds just that.
        assert_eq!(range(ApiKey::ConsumerGroupHeartbeat), Some((1, 1)));
        assert_eq!(range(ApiKey::OffsetCommit), Some((2, 9)));
        assert_eq!(range(ApiKey::OffsetFetch), Some((1, 9)));
        assert!(told.finalized_features.is_empty());
    }
    let bad = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("not a name"));
    let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 3, &bad).await;
    assert_eq!(told.error_code, 42);
    harness.stop().await;
}

/// Clients send the newest version they know, and go down to what they are told in the layout of version 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_beyond_ours_is_answered_in_the_first_layout_on_the_same_connection() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let mut request = encoded(ApiKey::ApiVersions, 3, 5, &named());
    request[6..8].copy_from_slice(&99_i16.to_be_bytes());
    client.peer.send(&request).await;
    let told: ApiVersionsResponse = client.receive(ApiKey::ApiVersions, 0, 5).await;
    assert_eq!(told.error_code, 35);
    let own = &told.api_keys[0];
    assert_eq!((own.api_key, own.min_version, own.max_version), (18, 0, 4));
    let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 4, &named()).await;
    assert_eq!(told.error_code, 0);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_is_told_where_it_is_reached() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let port = i32::from(harness.address.port());
    for version in 0..=12 {
        let request = MetadataRequest::default().with_topics(Some(Vec::new()));
        let told: MetadataResponse = client.call(ApiKey::Metadata, version, &request).await;
        let broker = &told.brokers[0];
        assert_eq!((&*broker.host, broker.port), ("127.0.0.1", port));
        if version >= 1 {
            assert_eq!(told.controller_id, broker.node_id);
        }
    }
    for version in 0..=1 {
        let request = DescribeClusterRequest::default();
        let told: DescribeClusterResponse = client
            .call(ApiKey::DescribeCluster, version, &request)
            .await;
        assert_eq!((told.error_code, told.brokers[0].port), (0, port));
    }
    for version in 0..=4 {
        let key = StrBytes::from_static_str("g");
        let request = match version {
            4 => FindCoordinatorRequest::default().with_coordinator_keys(vec![key]),
            _ => FindCoordinatorRequest::default().with_key(key),
        };
        let told: FindCoordinatorResponse = client
            .call(ApiKey::FindCoordinator, version, &request)
            .await;
        let (found, message) = match version {
            4 => (
                told.coordinators[0].port,
                &told.coordinators[0].error_message,
            ),
            _ => (told.port, &told.error_message),
        };
        assert!(version == 0 || message.is_none(), "{message:?}");
        assert_eq!(found, port);
    }
    harness.stop().await;

    let advertised = crate::Advertised {
        host: "basalt.example".to_owned(),
        port: 19092,
    };
    let harness = Harness::start_with(|config| config.advertised = Some(advertised)).await;
    let mut client = Client::connect(&harness).await;
    let request = MetadataRequest::default();
    let told: MetadataResponse = client.call(ApiKey::Metadata, 12, &request).await;
    let broker = &told.brokers[0];
    assert_eq!((&*broker.host, broker.port), ("basalt.example", 19092));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_makes_topics_where_both_sides_allow_it() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    for version in [0, 4, 9, 12] {
        let topic = format!("made-{version}");
        let made = client.metadata(version, &topic).await;
        assert_eq!((made.error_code, made.partitions.len()), (0, 1));
        assert_eq!(made.partitions[0].leader_epoch, -1);
    }
    let ask = |topic: &str| {
        let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
        MetadataRequest::default()
            .with_topics(Some(vec![asked]))
            .with_allow_auto_topic_creation(false)
    };
    let told: MetadataResponse = client.call(ApiKey::Metadata, 12, &ask("not-made")).await;
    assert_eq!(told.topics[0].error_code, 3);
    assert!(
        harness
            .log
            .log()
            .topic(&TopicName::new("not-made").unwrap())
            .is_none()
    );

    // Each topic once, however often it is named.
    let asked = MetadataRequestTopic::default().with_name(Some(name("made-0")));
    let request = MetadataRequest::default().with_topics(Some(vec![asked; 1000]));
    let told: MetadataResponse = client.call(ApiKey::Metadata, 12, &request).await;
    assert_eq!(told.topics.len(), 1);
    // By its id, whatever else stands there.
    let topic_id = client.metadata(12, "made-0").await.topic_id;
    for other in [Some(name("")), Some(name("made-4")), None] {
        let asked = MetadataRequestTopic::default()
            .with_topic_id(topic_id)
            .with_name(other);
        let request = MetadataRequest::default().with_topics(Some(vec![asked]));
        let told: MetadataResponse = client.call(ApiKey::Metadata, 12, &request).await;
        assert_eq!(told.topics[0].name, Some(name("made-0")));
    }
    // An id that nobody has, in versions that have no place for a missing name.
    for version in [10, 11, 12] {
        let asked = MetadataRequestTopic::default()
            .with_topic_id(Default::default())
            .with_name(None);
        let request = MetadataRequest::default().with_topics(Some(vec![asked]));
        let told: MetadataResponse = client.call(ApiKey::Metadata, version, &request).await;
        assert_eq!(told.topics[0].error_code, 100, "version {version}");
    }

    let made = client.metadata(12, "made-0").await;
    let by_id = |id| {
        let asked = MetadataRequestTopic::default()
            .with_topic_id(id)
            .with_name(None);
        MetadataRequest::default().with_topics(Some(vec![asked]))
    };
    let told: MetadataResponse = client
        .call(ApiKey::Metadata, 12, &by_id(made.topic_id))
        .await;
    assert_eq!(told.topics[0].name, Some(name("made-0")));
    let nobody = by_id(Default::default());
    let told: MetadataResponse = client.call(ApiKey::Metadata, 12, &nobody).await;
    assert_eq!(told.topics[0].error_code, 100);
    let all = MetadataRequest::default().with_topics(None);
    let told: MetadataResponse = client.call(ApiKey::Metadata, 9, &all).await;
    assert_eq!(told.topics.len(), 4);
    harness.stop().await;
}

/// PUB-13: names become folders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_13_names_that_are_no_topics_are_refused_and_leave_nothing() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let parent = || {
        let entries = std::fs::read_dir(harness.root.parent().unwrap()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = parent();
    let long = "a".repeat(255);
    let names = [
        "../../x",
        "..",
        ".",
        "/etc/x",
        "a/b",
        "a\\b",
        "a%2fb",
        "x\0y",
        &long,
        &long[..250],
        "",
        "ünï",
        "a\nb",
    ];
    for topic in names {
        let told = client.metadata(9, topic).await;
        assert_eq!(told.error_code, 17, "{topic:?}");
    }
    assert_eq!(parent(), before);
    assert!(harness.log.log().topics().is_empty());
    harness.assert_serves("t").await;
    harness.stop().await;
}
