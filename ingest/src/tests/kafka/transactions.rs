//! Transactions over sockets: what is committed is seen, what is aborted is not, whoever was fenced writes no more, and all of that after
//! restarts and cooling, too.

use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse, DescribeProducersRequest, DescribeProducersResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse,
    InitProducerIdRequest, InitProducerIdResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListTransactionsRequest, ListTransactionsResponse, OffsetFetchRequest, OffsetFetchResponse,
    TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::*;

const TRANSACTIONAL: i16 = 1 << 4;
/// Transactions end when they are told to.
const TIMEOUT_MS: i32 = 60_000;

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A producer that was given a transactional id.
#[derive(Debug, Clone)]
pub(super) struct Producer {
    id: &'static str,
    producer_id: i64,
    epoch: i16,
    sequence: i32,
}

impl Producer {
    pub(super) const fn producer_id(&self) -> i64 {
        self.producer_id
    }

    pub(super) const fn epoch(&self) -> i16 {
        self.epoch
    }

    fn batch(&mut self, values: &[&str]) -> Vec<u8> {
        let fields = BatchFields {
            attributes: TRANSACTIONAL,
            producer_id: self.producer_id,
            producer_epoch: self.epoch,
            base_sequence: self.sequence,
            ..BatchFields::default()
        };
        self.sequence += i32::try_from(values.len()).unwrap();
        let records: Vec<_> = values.iter().map(|value| (5, value.as_bytes())).collect();
        batch_with(fields, &records)
    }
}

pub(super) fn add_request(producer: &Producer, topics: &[&str]) -> AddPartitionsToTxnRequest {
    let topics = topics.iter().map(|topic| {
        AddPartitionsToTxnTopic::default()
            .with_name(name(topic))
            .with_partitions(vec![0])
    });
    AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(text(producer.id).into())
        .with_v3_and_below_producer_id(producer.producer_id.into())
        .with_v3_and_below_producer_epoch(producer.epoch)
        .with_v3_and_below_topics(topics.collect())
}

pub(super) fn offsets_request(producer: &Producer, offset: i64) -> TxnOffsetCommitRequest {
    let partition = TxnOffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text("text")));
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(name("in"))
        .with_partitions(vec![partition]);
    TxnOffsetCommitRequest::default()
        .with_transactional_id(text(producer.id).into())
        .with_group_id(text("g").into())
        .with_producer_id(producer.producer_id.into())
        .with_producer_epoch(producer.epoch)
        .with_generation_id(-1)
        .with_topics(vec![topic])
}

pub(super) fn nobody() -> Producer {
    Producer {
        id: "x",
        producer_id: 1,
        epoch: 0,
        sequence: 0,
    }
}

impl Client {
    pub(super) async fn init(&mut self, id: &'static str, version: i16) -> Producer {
        self.init_for(id, version, TIMEOUT_MS).await.unwrap()
    }

    async fn init_for(
        &mut self,
        id: &'static str,
        version: i16,
        timeout_ms: i32,
    ) -> Result<Producer, i16> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(text(id).into()))
            .with_transaction_timeout_ms(timeout_ms);
        let told: InitProducerIdResponse =
            self.call(ApiKey::InitProducerId, version, &request).await;
        match told.error_code {
            0 => Ok(Producer {
                id,
                producer_id: told.producer_id.0,
                epoch: told.producer_epoch,
                sequence: 0,
            }),
            code => Err(code),
        }
    }

    pub(super) async fn add(
        &mut self,
        producer: &Producer,
        version: i16,
        topics: &[&str],
    ) -> Vec<i16> {
        let request = add_request(producer, topics);
        let told: AddPartitionsToTxnResponse = self
            .call(ApiKey::AddPartitionsToTxn, version, &request)
            .await;
        let topics = told.results_by_topic_v3_and_below.iter();
        let partitions = topics.flat_map(|topic| &topic.results_by_partition);
        partitions
            .map(|partition| partition.partition_error_code)
            .collect()
    }

    pub(super) async fn end(&mut self, producer: &Producer, version: i16, committed: bool) -> i16 {
        let request = EndTxnRequest::default()
            .with_transactional_id(text(producer.id).into())
            .with_producer_id(producer.producer_id.into())
            .with_producer_epoch(producer.epoch)
            .with_committed(committed);
        let told: EndTxnResponse = self.call(ApiKey::EndTxn, version, &request).await;
        told.error_code
    }

    /// Produces under a transactional id; the code.
    pub(super) async fn write(
        &mut self,
        producer: &mut Producer,
        topic: &str,
        values: &[&str],
    ) -> i16 {
        let batch = producer.batch(values);
        let request = produce_request(topic, -1, &[(0, &batch)])
            .with_transactional_id(Some(text(producer.id).into()));
        let told: ProduceResponse = self.call(ApiKey::Produce, 9, &request).await;
        told.responses[0].partition_responses[0].error_code
    }

    /// What a consumer reads who leaves out what is not committed, and all that is there.
    pub(super) async fn seen(&mut self, version: i16, topic: &str) -> [Vec<String>; 2] {
        let mut seen = [Vec::new(), Vec::new()];
        for (isolation, values) in [1, 0].into_iter().zip(&mut seen) {
            let mut offset = 0;
            loop {
                let request =
                    fetch_request(&[(topic, &[(0, offset)])]).with_isolation_level(isolation);
                let told: FetchResponse = self.call(ApiKey::Fetch, version, &request).await;
                let data = &told.responses[0].partitions[0];
                assert_eq!(data.error_code, 0);
                let found = committed(data, isolation == 1);
                let Some(next) = found.next else { break };
                offset = next;
                values.extend(found.values);
            }
        }
        seen
    }

    pub(super) async fn latest(&mut self, topic: &str, isolation: i8) -> i64 {
        let partition = ListOffsetsPartition::default().with_timestamp(-1);
        let topic = ListOffsetsTopic::default()
            .with_name(name(topic))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_isolation_level(isolation)
            .with_topics(vec![topic]);
        let told: ListOffsetsResponse = self.call(ApiKey::ListOffsets, 7, &request).await;
        told.topics[0].partitions[0].offset
    }

    /// Offset and error of group g in topic in.
    pub(super) async fn handled(&mut self, require_stable: bool) -> (i64, i16) {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(name("in"))
            .with_partition_indexes(vec![0]);
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(text("g").into())
            .with_topics(Some(vec![topic]));
        let request = OffsetFetchRequest::default()
            .with_groups(vec![group])
            .with_require_stable(require_stable);
        let told: OffsetFetchResponse = self.call(ApiKey::OffsetFetch, 8, &request).await;
        let partition = &told.groups[0].topics[0].partitions[0];
        (partition.committed_offset, partition.error_code)
    }
}

struct Found {
    values: Vec<String>,
    /// Where the consumer goes on; `None` when there was no batch.
    next: Option<i64>,
}

/// Does with an answer what clients do.
fn committed(data: &PartitionData, leaves_out: bool) -> Found {
    let mut aborted = data.aborted_transactions.clone().unwrap_or_default();
    assert_eq!(data.aborted_transactions.is_some(), leaves_out);
    let mut void = std::collections::BTreeSet::new();
    let mut found = Found {
        values: Vec::new(),
        next: None,
    };
    for (offsets, batch) in batches(data) {
        let next = i64::try_from(offsets.end).unwrap();
        found.next = Some(next);
        let attributes = i16::from_be_bytes([batch[21], batch[22]]);
        let producer_id = i64::from_be_bytes(batch[43..51].try_into().unwrap());
        if attributes & (1 << 5) != 0 {
            void.remove(&producer_id);
            continue;
        }
        aborted.retain(|one| {
            let begins = one.first_offset < next;
            if begins {
                void.insert(one.producer_id.0);
            }
            !begins
        });
        if leaves_out && attributes & TRANSACTIONAL != 0 && void.contains(&producer_id) {
            continue;
        }
        if batch[57..61] == [0; 4] {
            continue;
        }
        let reader = BatchReader::open(&batch, MAX_DECOMPRESSED_BYTES).unwrap();
        let records = reader
            .records()
            .map(|record| String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap());
        found.values.extend(records);
    }
    found
}

pub(super) async fn topics(client: &mut Client, names: &[&str]) {
    for topic in names {
        client.metadata(9, topic).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_is_seen_hot_and_cold_and_what_is_aborted_is_not() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    let mut first = client.init("first", 4).await;
    let mut second = client.init("second", 4).await;
    assert_ne!(first.producer_id, second.producer_id);
    assert_eq!(
        client.write(&mut first, "t", &["early"]).await,
        48,
        "it was not added"
    );
    first.sequence = 0;
    for version in 0..=3 {
        for producer in [&first, &second] {
            assert_eq!(client.add(producer, version, &["t"]).await, [0]);
        }
        let at = |what: &str| format!("{what}{version}");
        assert_eq!(
            client.write(&mut first, "t", &[&at("a"), &at("b")]).await,
            0
        );
        client
            .stored("t", &batch(&[(5, at("plain").as_bytes())]))
            .await;
        assert_eq!(client.write(&mut second, "t", &[&at("void")]).await, 0);
        assert_eq!(client.write(&mut first, "t", &[&at("c")]).await, 0);
        let open = client.latest("t", 1).await;
        assert_eq!(open, i64::from(version) * 7, "where the first one begins");
        assert!(client.latest("t", 0).await >= open + 5);
        assert_eq!(client.end(&second, version, false).await, 0);
        assert_eq!(client.latest("t", 1).await, open, "another one is open");
        assert_eq!(client.end(&first, version, true).await, 0);
        assert_eq!(
            client.end(&first, version, true).await,
            0,
            "its answer was lost"
        );
        assert_eq!(client.end(&first, version, false).await, 48);
        assert_eq!(client.latest("t", 1).await, open + 7);
    }
    let all: Vec<String> = (0..4)
        .flat_map(|version| ["a", "b", "plain", "void", "c"].map(|what| format!("{what}{version}")))
        .collect();
    let counted: Vec<_> = all
        .iter()
        .filter(|value| !value.starts_with("void"))
        .cloned()
        .collect();
    for version in [4, 11, 12] {
        let seen = client.seen(version, "t").await;
        assert_eq!(seen, [counted.clone(), all.clone()], "version {version}");
    }
    // What an open transaction has a record of is not cooled; what is void is not there then.
    assert_eq!(client.add(&first, 3, &["t"]).await, [0]);
    harness.seal("t").await;
    assert_eq!(client.write(&mut first, "t", &["late"]).await, 0);
    harness.seal("t").await;
    let topic = TopicName::new("t").unwrap();
    harness.log.cool_topic(&topic, true).await.unwrap();
    let bounds = harness
        .log
        .partition(&topic, PartitionId(0))
        .unwrap()
        .bounds();
    assert_eq!(
        (bounds.cold_end_offset, bounds.high_watermark),
        (Offset(28), Offset(29))
    );
    assert_eq!(client.seen(12, "t").await[0], counted);
    assert_eq!(client.end(&first, 3, true).await, 0);
    harness.seal("t").await;
    harness.log.cool_topic(&topic, true).await.unwrap();
    let counted = [counted, vec!["late".to_owned()]].concat();
    for version in [4, 12] {
        assert_eq!(
            client.seen(version, "t").await,
            [counted.clone(), counted.clone()]
        );
    }
    harness.stop().await;
}

/// Who asks for the id later has it: the one before writes and commits nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_was_replaced_is_fenced_and_its_transaction_aborted() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    for version in 0..=4 {
        let mut old = client.init("id", version).await;
        assert_eq!(client.add(&old, 3, &["t"]).await, [0]);
        assert_eq!(client.write(&mut old, "t", &["void"]).await, 0);
        let mut new = client.init("id", version).await;
        assert_eq!(new.producer_id, old.producer_id);
        assert!(new.epoch > old.epoch);
        assert_eq!(client.write(&mut old, "t", &["late"]).await, 47);
        assert_eq!(client.end(&old, 1, true).await, 47);
        assert_eq!(client.end(&old, 3, true).await, 90);
        assert_eq!(client.add(&old, 3, &["t"]).await, [90]);
        assert_eq!(client.add(&new, 3, &["t"]).await, [0]);
        assert_eq!(client.write(&mut new, "t", &["new"]).await, 0);
        assert_eq!(client.end(&new, 3, true).await, 0);
    }
    assert_eq!(client.seen(12, "t").await[0], ["new"; 5]);
    // One who says what it had, and was replaced, is told so; one who only lost the answer is given the same again.
    let current = client.init("id", 4).await;
    let epoch = current.epoch;
    let ask = |epoch: i16| {
        InitProducerIdRequest::default()
            .with_transactional_id(Some(text("id").into()))
            .with_transaction_timeout_ms(TIMEOUT_MS)
            .with_producer_id(current.producer_id.into())
            .with_producer_epoch(epoch)
    };
    for _ in 0..3 {
        let told: InitProducerIdResponse =
            client.call(ApiKey::InitProducerId, 4, &ask(epoch)).await;
        assert_eq!((told.error_code, told.producer_epoch), (0, epoch + 1));
    }
    let newer = client.init("id", 4).await;
    assert_eq!(newer.epoch, epoch + 2);
    for epoch in [epoch, epoch + 1] {
        let told: InitProducerIdResponse =
            client.call(ApiKey::InitProducerId, 4, &ask(epoch)).await;
        assert_eq!(told.error_code, 90);
    }
    assert_eq!(
        client.add(&newer, 3, &["t"]).await,
        [0],
        "it was not disturbed"
    );
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_are_committed_with_the_transaction() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["in", "out"]).await;
    for version in 0..=3 {
        let mut producer = client.init("id", 4).await;
        for committed in [false, true] {
            let before = client.handled(true).await;
            let request = offsets_request(&producer, i64::from(version) + 10);
            let told: TxnOffsetCommitResponse = client
                .call(ApiKey::TxnOffsetCommit, version, &request)
                .await;
            assert_eq!(
                told.topics[0].partitions[0].error_code, 48,
                "the group was not added"
            );
            let add = AddOffsetsToTxnRequest::default()
                .with_transactional_id(text("id").into())
                .with_producer_id(producer.producer_id.into())
                .with_producer_epoch(producer.epoch)
                .with_group_id(text("g").into());
            let told: AddOffsetsToTxnResponse =
                client.call(ApiKey::AddOffsetsToTxn, version, &add).await;
            assert_eq!(told.error_code, 0);
            assert_eq!(client.add(&producer, version, &["out"]).await, [0]);
            assert_eq!(client.write(&mut producer, "out", &["x"]).await, 0);
            let told: TxnOffsetCommitResponse = client
                .call(ApiKey::TxnOffsetCommit, version, &request)
                .await;
            assert_eq!(told.topics[0].partitions[0].error_code, 0);
            // Until it is decided nobody knows; who does not ask is told what was.
            assert_eq!(client.handled(true).await, (-1, 88));
            assert_eq!(client.handled(false).await, before);
            assert_eq!(client.end(&producer, version, committed).await, 0);
            let after = match committed {
                true => (i64::from(version) + 10, 0),
                false => before,
            };
            assert_eq!(client.handled(true).await, after);
        }
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_outlives_a_restart_and_ends_when_its_time_is_over() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    let mut kept = client.init("kept", 4).await;
    assert_eq!(client.add(&kept, 3, &["t"]).await, [0]);
    assert_eq!(client.write(&mut kept, "t", &["a"]).await, 0);
    let mut left = client.init_for("left", 4, 2_000).await.unwrap();
    assert_eq!(client.add(&left, 3, &["t"]).await, [0]);
    assert_eq!(client.write(&mut left, "t", &["void"]).await, 0);
    drop(client);
    let dir = harness.stop_and_keep().await;
    let disk = Arc::new(RealDisk::new());
    let harness = Harness::start_in(dir, disk, |_| {}, None).await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.latest("t", 1).await, 0);
    assert_eq!(client.write(&mut kept, "t", &["b"]).await, 0);
    assert_eq!(client.end(&kept, 3, true).await, 0);
    // Whoever waits for what is committed is woken by the end of what was open.
    let waiting = fetch_request(&[("t", &[(0, 1)])])
        .with_isolation_level(1)
        .with_min_bytes(1)
        .with_max_wait_ms(60_000);
    let told: FetchResponse = client.call(ApiKey::Fetch, 12, &waiting).await;
    assert_eq!(told.responses[0].partitions[0].last_stable_offset, 5);
    assert_eq!(client.latest("t", 1).await, 5);
    assert_eq!(client.seen(12, "t").await[0], ["a", "b"]);
    assert_eq!(client.end(&left, 3, true).await, 90, "it is fenced");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_transaction_is_refused_by_its_reason() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    for timeout_ms in [0, -1, 900_001] {
        assert_eq!(client.init_for("id", 4, timeout_ms).await.unwrap_err(), 50);
    }
    assert_eq!(client.init_for("", 4, 1000).await.unwrap_err(), 42);
    let mut producer = client.init("id", 4).await;
    assert_eq!(client.end(&producer, 3, true).await, 48, "none was begun");
    assert_eq!(client.add(&producer, 3, &["t", "nowhere"]).await, [55, 3]);
    let stranger = Producer {
        producer_id: producer.producer_id + 1,
        ..producer.clone()
    };
    assert_eq!(client.add(&stranger, 3, &["t"]).await, [49]);
    assert_eq!(client.add(&nobody(), 3, &["t"]).await, [49]);
    assert_eq!(client.add(&producer, 3, &["t"]).await, [0]);
    // Without its transactional id a batch of a transaction is nobody's; a native one never is any.
    let stray = producer.batch(&["x"]);
    let told = client.produce(9, "t", &stray).await;
    assert_eq!(told.error_code, 53);
    // A producer's own markers are not believed.
    let fields = BatchFields {
        attributes: TRANSACTIONAL | (1 << 5),
        producer_id: producer.producer_id,
        producer_epoch: producer.epoch,
        ..BatchFields::default()
    };
    let told = client
        .produce(9, "t", &batch_with(fields, &[(1, b"x")]))
        .await;
    assert_eq!(told.error_code, 87);
    assert_eq!(client.latest("t", 0).await, 0);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_transactions_and_producers() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    let mut open = client.init("open", 4).await;
    let idle = client.init("idle", 4).await;
    assert_eq!(client.add(&open, 3, &["t"]).await, [0]);
    client.stored("t", &batch(&[(1, b"plain")])).await;
    assert_eq!(client.write(&mut open, "t", &["a", "b"]).await, 0);
    let ids = ["open", "idle", "none"].map(|id| text(id).into()).to_vec();
    let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
    let told: DescribeTransactionsResponse =
        client.call(ApiKey::DescribeTransactions, 0, &request).await;
    let states = &told.transaction_states;
    assert_eq!(
        (&*states[0].transaction_state, &*states[1].transaction_state),
        ("Ongoing", "Empty")
    );
    assert_eq!(states[0].topics[0].partitions, [0]);
    assert!(states[0].transaction_start_time_ms > 1_600_000_000_000);
    assert_eq!(states[1].producer_id.0, idle.producer_id);
    assert_eq!(states[2].error_code, 105);
    for version in 0..=1 {
        let request = ListTransactionsRequest::default()
            .with_state_filters(vec![text("Ongoing"), text("Odd")]);
        let told: ListTransactionsResponse = client
            .call(ApiKey::ListTransactions, version, &request)
            .await;
        assert_eq!(told.unknown_state_filters, [text("Odd")]);
        let ids: Vec<_> = told
            .transaction_states
            .iter()
            .map(|one| one.transactional_id.to_string())
            .collect();
        assert_eq!(ids, ["open"]);
    }
    let topic = kafka_protocol::messages::describe_producers_request::TopicRequest::default()
        .with_name(name("t"))
        .with_partition_indexes(vec![0, 0, 9]);
    let request = DescribeProducersRequest::default().with_topics(vec![topic]);
    let told: DescribeProducersResponse = client.call(ApiKey::DescribeProducers, 0, &request).await;
    let partitions = &told.topics[0].partitions;
    assert_eq!((partitions.len(), partitions[1].error_code), (2, 3));
    let producer = &partitions[0].active_producers[0];
    assert_eq!(producer.producer_id.0, open.producer_id);
    assert_eq!(
        (producer.last_sequence, producer.current_txn_start_offset),
        (1, 1)
    );
    harness.stop().await;
}

/// Whatever a topic promises for its records: a decision and its markers are on the disk when they are told of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_ended_is_on_the_disk() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    let topic = TopicName::new("t").unwrap();
    let config = basalt_log::TopicConfig {
        durability: basalt_log::TopicDurability::Os,
        ..basalt_log::TopicConfig::default()
    };
    harness.log.create_topic(&topic, 1, config).unwrap();
    let partition = harness.log.partition(&topic, PartitionId(0)).unwrap();
    let mut producer = client.init("id", 4).await;
    for committed in [true, false] {
        assert_eq!(client.add(&producer, 3, &["t"]).await, [0]);
        assert_eq!(client.write(&mut producer, "t", &["a"]).await, 0);
        assert_eq!(client.end(&producer, 3, committed).await, 0);
        assert_eq!(
            partition.hot().durable_offset(),
            partition.offsets().log_end_offset
        );
    }
    harness.stop().await;
}

/// Of a transaction whose state is gone nobody would ever say how it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_nobody_knows_is_aborted_at_the_start() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    client.stored("t", &batch(&[(1, b"plain")])).await;
    let mut stray = nobody();
    let batch = stray.batch(&["void"]);
    let mut frame = Vec::new();
    basalt_proto::Frame::batch(1, &batch, 1).encode_into(&mut frame);
    let check = basalt_proto::FrameCheck::new(&frame, basalt_proto::FrameLimits::default());
    let checked = check
        .with_transactions()
        .finish(frame.len())
        .into_whole()
        .unwrap();
    let topic = TopicName::new("t").unwrap();
    let partition = harness.log.partition(&topic, PartitionId(0)).unwrap();
    let appended = partition
        .append(&checked, basalt_log::Durability::Fsync)
        .unwrap();
    partition
        .hot()
        .wait_durable(appended.end_offset)
        .await
        .unwrap();
    assert_eq!(client.latest("t", 1).await, 1);
    drop((client, partition));
    let dir = harness.stop_and_keep().await;
    let harness = Harness::start_in(dir, Arc::new(RealDisk::new()), |_| {}, None).await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.latest("t", 1).await, 3);
    let seen = client.seen(12, "t").await;
    assert_eq!(
        seen,
        [
            vec!["plain".to_owned()],
            vec!["plain".to_owned(), "void".to_owned()]
        ]
    );
    harness.stop().await;
}

/// What is void leaves a gap, which the log may begin with: nobody who waits there is sent to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooled_segment_of_void_records_is_a_gap() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["t"]).await;
    let topic = TopicName::new("t").unwrap();
    let mut producer = client.init("id", 4).await;
    for round in 0..2 {
        assert_eq!(client.add(&producer, 3, &["t"]).await, [0]);
        assert_eq!(client.write(&mut producer, "t", &["void", "void"]).await, 0);
        assert_eq!(client.end(&producer, 3, false).await, 0);
        harness.seal("t").await;
        harness.log.cool_topic(&topic, true).await.unwrap();
        let bounds = harness
            .log
            .partition(&topic, PartitionId(0))
            .unwrap()
            .bounds();
        assert_eq!(bounds.log_start_offset, Offset(0), "round {round}");
        assert_eq!(bounds.cold_end_offset, bounds.high_watermark);
        client.stored("t", &batch(&[(1, b"plain")])).await;
        let plain = vec!["plain".to_owned(); round + 1];
        assert_eq!(client.seen(12, "t").await, [plain.clone(), plain]);
    }
    let isolation = basalt_log::Isolation::Committed;
    let partition = harness.log.partition(&topic, PartitionId(0)).unwrap();
    assert_eq!(partition.snapshot_of(isolation).high_watermark, Offset(8));
    harness.stop().await;
}

/// What an open transaction will say of a group is not known to whoever moves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_not_moved_under_an_open_transaction() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["in"]).await;
    let producer = client.init("id", 4).await;
    let add = AddOffsetsToTxnRequest::default()
        .with_transactional_id(text("id").into())
        .with_producer_id(producer.producer_id.into())
        .with_producer_epoch(producer.epoch)
        .with_group_id(text("g").into());
    let told: AddOffsetsToTxnResponse = client.call(ApiKey::AddOffsetsToTxn, 3, &add).await;
    assert_eq!(told.error_code, 0);
    let request = offsets_request(&producer, 500);
    let told: TxnOffsetCommitResponse = client.call(ApiKey::TxnOffsetCommit, 3, &request).await;
    assert_eq!(told.topics[0].partitions[0].error_code, 0);
    let group = basalt_proto::GroupName::new("g").unwrap();
    let topic = TopicName::new("in").unwrap();
    let seek = async || {
        crate::commit::seek(&harness.shared, &group, &topic, PartitionId(0), Offset(7)).await
    };
    assert_eq!(
        seek().await.unwrap_err().kind,
        basalt_proto::ErrorKind::Busy
    );
    assert_eq!(client.end(&producer, 3, true).await, 0);
    assert_eq!(client.handled(true).await, (500, 0));
    seek().await.unwrap();
    assert_eq!(client.handled(true).await, (7, 0));
    harness.stop().await;
}
