use std::collections::BTreeMap;

use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as LegacyResource, AlterableConfig as LegacyConfig,
};
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, BrokerId, CreatePartitionsRequest,
    CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse, DeleteRecordsRequest,
    DeleteRecordsResponse, DeleteTopicsRequest, DeleteTopicsResponse, DescribeConfigsRequest,
    DescribeConfigsResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};

use basalt_proto::ErrorKind;
use basalt_proto::batch::Compression;

use super::*;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(super) fn topic(topic: &str) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(3)
        .with_replication_factor(1)
}

pub(super) fn setting(name: &str, value: &str) -> CreatableTopicConfig {
    CreatableTopicConfig::default()
        .with_name(text(name))
        .with_value(Some(text(value)))
}

impl Client {
    async fn create(&mut self, version: i16, topics: Vec<CreatableTopic>) -> Vec<i16> {
        let request = CreateTopicsRequest::default().with_topics(topics);
        let told: CreateTopicsResponse = self.call(ApiKey::CreateTopics, version, &request).await;
        let code = |topic: &CreatableTopicResult| {
            said_if_failed(topic.error_code, topic.error_message.as_ref())
        };
        told.topics.iter().map(code).collect()
    }

    /// The settings of a topic with where they come from.
    pub(super) async fn settings(
        &mut self,
        version: i16,
        topic: &str,
    ) -> BTreeMap<String, (String, i8)> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(topic))
            .with_configuration_keys(None);
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_synonyms(true);
        let told: DescribeConfigsResponse =
            self.call(ApiKey::DescribeConfigs, version, &request).await;
        said_if_failed(
            told.results[0].error_code,
            told.results[0].error_message.as_ref(),
        );
        let described = told.results[0].configs.iter().filter_map(|config| {
            let value = config.value.as_ref()?.to_string();
            assert_eq!(config.synonyms.len(), 1);
            Some((config.name.to_string(), (value, config.config_source)))
        });
        described.collect()
    }

    /// Sets a setting, or takes it back.
    pub(super) async fn alter(
        &mut self,
        version: i16,
        topic: &str,
        name: &str,
        value: Option<&str>,
    ) -> i16 {
        let operation = i8::from(value.is_none());
        self.alter_by(version, topic, name, operation, value).await
    }

    pub(super) async fn alter_by(
        &mut self,
        version: i16,
        topic: &str,
        name: &str,
        operation: i8,
        value: Option<&str>,
    ) -> i16 {
        let config = AlterableConfig::default()
            .with_name(text(name))
            .with_config_operation(operation)
            .with_value(value.map(text));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(topic))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let told: IncrementalAlterConfigsResponse = self
            .call(ApiKey::IncrementalAlterConfigs, version, &request)
            .await;
        let told = &told.responses[0];
        said_if_failed(told.error_code, told.error_message.as_ref())
    }
}

/// The code. Some clients take any text for a failure, an empty one too.
fn said_if_failed(code: i16, message: Option<&StrBytes>) -> i16 {
    assert_eq!(code != 0, message.is_some(), "{code}: {message:?}");
    code
}

/// A batch is as large as its topic takes, as it is sent: decompressed it may be larger. Native records are bounded, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_bounds_its_batches() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let small = topic("t")
        .with_num_partitions(1)
        .with_configs(vec![setting("max.message.bytes", "1000")]);
    assert_eq!(client.create(5, vec![small]).await, [0]);
    let found = client.settings(4, "t").await;
    assert_eq!(found["max.message.bytes"], ("1000".to_owned(), 1));
    let value = vec![b'x'; 2000];
    let large = batch(&[(1, &value)]);
    let refused = client.produce(9, "t", &large).await;
    assert_eq!(refused.error_code, 10, "{refused:?}");
    let packed = batch_with(BatchFields::compressed(Compression::Zstd), &[(1, &value)]);
    assert!(packed.len() < 1000);
    assert_eq!(client.stored("t", &packed).await, 0);
    let mut producer = harness.producer("t").await;
    producer.send(&frame(1, b"", &value, 1)).await;
    let too_large = (ErrorKind::TooLarge.code(), 0);
    assert_eq!(crate::tests::refused(producer.ack().await), too_large);
    let beyond = topic("u").with_configs(vec![setting("max.message.bytes", "52428801")]);
    assert_eq!(client.create(5, vec![beyond]).await, [40]);
    harness.stop().await;
}

/// What is below an offset goes, and nothing else; a compacted topic has none to go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_deleted_by_offset() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    client.metadata(9, "t").await;
    let ten: Vec<_> = (0..10).map(|at| (at, &b"x"[..])).collect();
    assert_eq!(client.stored("t", &batch(&ten)).await, 0);
    let request = |topic: &str, index, offset| {
        let partition = DeleteRecordsPartition::default()
            .with_partition_index(index)
            .with_offset(offset);
        let topic = DeleteRecordsTopic::default()
            .with_name(name(topic))
            .with_partitions(vec![partition]);
        DeleteRecordsRequest::default().with_topics(vec![topic])
    };
    let cases = [
        ("t", 0, 4, (0, 4)),
        ("t", 0, 2, (0, 4)),
        ("t", 0, 11, (1, -1)),
        ("t", 0, -2, (1, -1)),
        ("t", 9, 1, (3, -1)),
        ("t", -1, 1, (3, -1)),
        ("other", 0, 1, (3, -1)),
    ];
    for version in 0..=2 {
        for (topic, index, offset, expected) in cases {
            let request = request(topic, index, offset);
            let told: DeleteRecordsResponse =
                client.call(ApiKey::DeleteRecords, version, &request).await;
            let told = &told.topics[0].partitions[0];
            let told = (told.error_code, told.low_watermark);
            assert_eq!(told, expected, "{topic}-{index} {offset}");
        }
    }
    let early = client.fetch(12, "t", 3).await;
    assert_eq!((early.error_code, early.log_start_offset), (1, 4));
    let found = records(&client.fetch(12, "t", 4).await);
    assert_eq!(found.len(), 10, "the whole batch, as from Kafka");
    let all: DeleteRecordsResponse = client
        .call(ApiKey::DeleteRecords, 2, &request("t", 0, -1))
        .await;
    assert_eq!(all.topics[0].partitions[0].low_watermark, 10);
    assert_eq!(client.stored("t", &batch(&ten)).await, 10);
    assert_eq!(records(&client.fetch(12, "t", 10).await).len(), 10);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_made_and_deleted_by_name_and_by_id() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    for version in 2..=7 {
        let made = format!("t{version}");
        assert_eq!(client.create(version, vec![topic(&made)]).await, [0]);
        assert_eq!(client.create(version, vec![topic(&made)]).await, [36]);
        assert_eq!(client.metadata(12, &made).await.partitions.len(), 3);
    }
    for version in 1..=5 {
        let names = vec![name(&format!("t{}", version + 1)), name("nowhere")];
        let request = DeleteTopicsRequest::default().with_topic_names(names);
        let told: DeleteTopicsResponse = client.call(ApiKey::DeleteTopics, version, &request).await;
        let codes: Vec<i16> = told
            .responses
            .iter()
            .map(|topic| topic.error_code)
            .collect();
        assert_eq!(codes, [0, 3]);
    }
    let topic_id = client.metadata(12, "t7").await.topic_id;
    let state = || DeleteTopicState::default().with_topic_id(topic_id);
    let request = DeleteTopicsRequest::default().with_topics(vec![state(), state()]);
    let told: DeleteTopicsResponse = client.call(ApiKey::DeleteTopics, 6, &request).await;
    let codes: Vec<i16> = told
        .responses
        .iter()
        .map(|topic| topic.error_code)
        .collect();
    assert_eq!(codes, [0, 100]);
    assert_eq!(told.responses[0].name, Some(name("t7")));
    assert!(harness.log.log().topics().is_empty());
    // A topic made anew is another one, and empty.
    assert_ne!(client.metadata(12, "t7").await.topic_id, topic_id);
    assert!(records(&client.fetch(12, "t7", 0).await).is_empty());
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_cannot_be_are_refused_by_their_own_code() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let here = |index| {
        CreatableReplicaAssignment::default()
            .with_partition_index(index)
            .with_broker_ids(vec![BrokerId(0)])
    };
    let assigned = |assignments| {
        CreatableTopic::default()
            .with_name(name("a"))
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_assignments(assignments)
    };
    let with = |key: &str, value: &str| topic("a").with_configs(vec![setting(key, value)]);
    for (code, topic) in [
        (17, topic("../x")),
        (37, topic("a").with_num_partitions(0)),
        (37, topic("a").with_num_partitions(i32::MAX)),
        (38, topic("a").with_replication_factor(3)),
        (39, assigned(vec![here(0), here(2)])),
        (40, with("cleanup.policy", "compacted")),
        (40, with("retention.ms", "soon")),
        (40, with("no.such.setting", "1")),
    ] {
        let what = format!("{topic:?}");
        assert_eq!(client.create(7, vec![topic]).await, [code], "{what}");
    }
    assert_eq!(
        client.create(7, vec![topic("a"), topic("a")]).await,
        [42, 42]
    );
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic("a")])
        .with_validate_only(true);
    let told: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 7, &request).await;
    assert_eq!(
        (told.topics[0].error_code, told.topics[0].num_partitions),
        (0, 3)
    );
    assert!(harness.log.log().topics().is_empty());
    let made = client
        .create(7, vec![assigned(vec![here(1), here(0)])])
        .await;
    assert_eq!(made, [0]);
    assert_eq!(client.metadata(12, "a").await.partitions.len(), 2);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_come_back_as_they_were_given() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let given = topic("t").with_configs(vec![
        setting("retention.ms", "3600000"),
        setting("cleanup.policy", "delete"),
        setting("basalt.durability", "os"),
    ]);
    assert_eq!(client.create(5, vec![given]).await, [0]);
    for version in 1..=4 {
        let settings = client.settings(version, "t").await;
        let get = |name: &str| {
            let (value, source) = &settings[name];
            (value.as_str(), *source)
        };
        assert_eq!(get("retention.ms"), ("3600000", 1));
        assert_eq!(get("retention.bytes"), ("-1", 5));
        assert_eq!(get("segment.bytes"), ("134217728", 5));
        assert_eq!(get("cleanup.policy"), ("delete", 5));
        assert_eq!(get("max.message.bytes"), ("52428800", 5));
        assert_eq!(get("min.insync.replicas"), ("1", 5));
        assert_eq!(get("compression.type"), ("producer", 5));
        assert_eq!(get("message.timestamp.type"), ("CreateTime", 5));
        assert_eq!(get("basalt.durability"), ("os", 1));
    }
    // What a topic has of the server is not its own.
    assert_eq!(client.create(5, vec![topic("plain")]).await, [0]);
    let settings = client.settings(4, "plain").await;
    assert_eq!(settings["basalt.durability"], ("fsync".to_owned(), 5));
    for version in 0..=1 {
        let set = client.alter(version, "t", "retention.bytes", Some("1000000"));
        assert_eq!(set.await, 0);
        let settings = client.settings(4, "t").await;
        assert_eq!(settings["retention.bytes"], ("1000000".to_owned(), 1));
        assert_eq!(client.alter(version, "t", "retention.bytes", None).await, 0);
        let settings = client.settings(4, "t").await;
        assert_eq!(settings["retention.bytes"], ("-1".to_owned(), 5));
    }
    let alter = async |client: &mut Client, topic: &str, name: &str, value: &str| {
        client.alter(1, topic, name, Some(value)).await
    };
    assert_eq!(alter(&mut client, "t", "retention.ms", "-1").await, 0);
    assert_eq!(
        alter(&mut client, "t", "cleanup.policy", "compacted").await,
        40
    );
    assert_eq!(alter(&mut client, "t", "segment.bytes", "1").await, 40);
    assert_eq!(alter(&mut client, "nowhere", "retention.ms", "1").await, 3);
    assert_eq!(client.settings(4, "t").await["retention.ms"].0, "-1");

    let asked = DescribeConfigsResource::default()
        .with_resource_type(4)
        .with_resource_name(text("0"))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![asked]);
    let told: DescribeConfigsResponse = client.call(ApiKey::DescribeConfigs, 4, &request).await;
    let mut names = told.results[0].configs.iter().map(|config| &*config.name);
    assert!(names.any(|name| name == "inter.broker.protocol.version"));
    // No keys stand for all, and a resource is told once.
    let asked = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"))
        .with_configuration_keys(Some(Vec::new()));
    let request = DescribeConfigsRequest::default().with_resources(vec![asked; 100]);
    let told: DescribeConfigsResponse = client.call(ApiKey::DescribeConfigs, 4, &request).await;
    assert_eq!(told.results.len(), 1);
    assert!(told.results[0].configs.len() > 10);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_and_take_records() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.create(5, vec![topic("t")]).await, [0]);
    let mut add = async |version: i16, topic: &str, count: i32, assigned: Option<usize>| {
        let assignment = CreatePartitionsAssignment::default().with_broker_ids(vec![BrokerId(0)]);
        let topic = CreatePartitionsTopic::default()
            .with_name(name(topic))
            .with_count(count)
            .with_assignments(assigned.map(|count| vec![assignment; count]));
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
        let told: CreatePartitionsResponse = client
            .call(ApiKey::CreatePartitions, version, &request)
            .await;
        told.results[0].error_code
    };
    assert_eq!(add(0, "nowhere", 4, None).await, 3);
    for (count, code) in [(3, 37), (2, 37), (0, 37), (-1, 37), (i32::MAX, 37)] {
        assert_eq!(add(3, "t", count, None).await, code, "{count}");
    }
    assert_eq!(add(1, "t", 5, Some(1)).await, 39);
    assert_eq!(add(2, "t", 5, Some(2)).await, 0);
    assert_eq!(add(0, "t", 6, None).await, 0);
    assert_eq!(client.metadata(12, "t").await.partitions.len(), 6);
    let one = batch(&[(1, b"x")]);
    let request = produce_request("t", -1, &[(5, &one), (6, &one)]);
    let told: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    let codes = told.responses[0].partition_responses.iter();
    let codes: Vec<_> = codes.map(|partition| partition.error_code).collect();
    assert_eq!(codes, [0, 3]);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_are_set_as_a_whole_reset_the_others() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let given = topic("t").with_configs(vec![
        setting("retention.ms", "3600000"),
        setting("basalt.durability", "os"),
    ]);
    assert_eq!(client.create(5, vec![given]).await, [0]);
    for version in 0..=2 {
        let mut alter = async |name: &str, value: Option<&str>| {
            let config = LegacyConfig::default()
                .with_name(text(name))
                .with_value(value.map(text));
            let resource = LegacyResource::default()
                .with_resource_type(2)
                .with_resource_name(text("t"))
                .with_configs(vec![config]);
            let request = AlterConfigsRequest::default().with_resources(vec![resource]);
            let told: AlterConfigsResponse =
                client.call(ApiKey::AlterConfigs, version, &request).await;
            let told = &told.responses[0];
            said_if_failed(told.error_code, told.error_message.as_ref())
        };
        assert_eq!(alter("retention.ms", Some("7200000")).await, 0);
        assert_eq!(alter("retention.bytes", Some("1000")).await, 0);
        assert_eq!(alter("retention.bytes", Some("many")).await, 40);
        assert_eq!(alter("retention.bytes", None).await, 40);
        let settings = client.settings(4, "t").await;
        assert_eq!(settings["retention.bytes"], ("1000".to_owned(), 1));
        assert_eq!(settings["retention.ms"], ("-1".to_owned(), 5));
        assert_eq!(settings["basalt.durability"], ("os".to_owned(), 1));
    }
    harness.stop().await;
}
