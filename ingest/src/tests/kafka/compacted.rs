//! Compacted topics: asked for in Kafka's words, each record with a key, and what stays of them hot and cold.

use kafka_protocol::messages::CreateTopicsRequest;

use basalt_proto::ErrorKind;
use basalt_proto::session::{AckLevel, ProduceRequest as NativeProduce, Request};

use super::admin::{setting, topic};
use super::*;
use crate::tests::session::Session;

/// A batch of keys and values.
fn keyed(records: &[(Option<&str>, Option<&str>)]) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields::default()).unwrap();
    for (key, value) in records {
        let record = RecordToWrite {
            timestamp_ms: 1000,
            key: key.map(str::as_bytes),
            value: value.map(str::as_bytes),
            headers: &[],
        };
        writer.push(&record).unwrap();
    }
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    batch
}

async fn compacted(client: &mut Client, name: &str) {
    let made = topic(name).with_configs(vec![
        setting("cleanup.policy", "compact"),
        setting("delete.retention.ms", "3600000"),
    ]);
    let made = made.with_num_partitions(1);
    let request = CreateTopicsRequest::default().with_topics(vec![made]);
    let told: kafka_protocol::messages::CreateTopicsResponse =
        client.call(ApiKey::CreateTopics, 7, &request).await;
    assert_eq!(told.topics[0].error_code, 0, "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyless_record_of_a_compacted_topic_is_refused_whoever_sends_it() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    compacted(&mut client, "t").await;
    let keyless = keyed(&[(Some("a"), Some("1")), (None, Some("2"))]);
    for version in [3, 9, 11] {
        let answer = client.produce(version, "t", &keyless).await;
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (87, -1),
            "{answer:?}"
        );
    }
    assert_eq!(high_watermark(&harness, "t"), Offset(0));
    // An empty key is one.
    assert_eq!(client.stored("t", &keyed(&[(Some(""), None)])).await, 0);
    let mut producer = harness.producer("t").await;
    producer.send(&frame(1, b"k", b"native", 1)).await;
    assert_eq!(producer.stored().await, 1);
    producer.send(&frame(1, b"", b"native", 1)).await;
    assert_eq!(refused(producer.ack().await).0, 1);
    let mut session = Session::open(&harness).await;
    let keyless = frame(1, b"", b"x", 1);
    let request = Request::Produce(NativeProduce {
        ack: AckLevel::Fsync,
        topic: basalt_proto::TopicName::new("t").unwrap(),
        partition: PartitionId(0),
        frames: &keyless,
    });
    let refused = session.ask(&request).await.refused();
    assert_eq!(refused.kind, ErrorKind::InvalidFrame);
    assert_eq!(high_watermark(&harness, "t"), Offset(2));
    drop((producer, session));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latest_record_of_each_key_is_fetched_and_the_rest_is_a_gap() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    compacted(&mut client, "t").await;
    let first = keyed(&[
        (Some("a"), Some("1")),
        (Some("b"), Some("2")),
        (Some("a"), Some("3")),
    ]);
    client.stored("t", &first).await;
    client.stored("t", &keyed(&[(Some("c"), Some("4"))])).await;
    client
        .stored("t", &keyed(&[(Some("c"), None), (Some("d"), Some("5"))]))
        .await;
    let seen = async |client: &mut Client, from: i64| {
        let mut seen = Vec::new();
        let mut at = from;
        while at < 6 {
            let data = client.fetch(12, "t", at).await;
            assert_eq!((data.error_code, data.log_start_offset), (0, 0));
            let all = batches(&data);
            at = i64::try_from(all.last().expect("no hole holds a consumer up").0.end).unwrap();
            seen.extend(
                records(&data)
                    .into_iter()
                    .map(|record| (record.offset, record.key.unwrap(), record.value)),
            );
        }
        seen.retain(|(offset, ..)| *offset >= from.cast_unsigned());
        seen
    };
    assert_eq!(seen(&mut client, 0).await.len(), 6);
    let name = basalt_proto::TopicName::new("t").unwrap();
    harness.log.cool_topic(&name, true).await.unwrap();
    let value = |offset, key: &str, value: &str| {
        (
            offset,
            key.as_bytes().to_vec(),
            Some(value.as_bytes().to_vec()),
        )
    };
    let tombstone = (4, b"c".to_vec(), None);
    let kept = [
        value(1, "b", "2"),
        value(2, "a", "3"),
        tombstone,
        value(5, "d", "5"),
    ];
    for from in 0..6_u64 {
        let expected: Vec<_> = kept
            .iter()
            .filter(|(offset, ..)| *offset >= from)
            .cloned()
            .collect();
        assert_eq!(
            seen(&mut client, from.cast_signed()).await,
            expected,
            "from {from}"
        );
    }
    // Where tombstones have no time of their own the next pass takes them.
    let altered = client.alter(1, "t", "delete.retention.ms", Some("0"));
    assert_eq!(altered.await, 0);
    harness.log.cool_topic(&name, true).await.unwrap();
    let without: Vec<_> = kept
        .iter()
        .filter(|(_, _, value)| value.is_some())
        .cloned()
        .collect();
    assert_eq!(seen(&mut client, 0).await, without);
    assert_eq!(client.stored("t", &keyed(&[(Some("a"), None)])).await, 6);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_compaction_come_back_and_policies_are_added_and_taken_away() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    compacted(&mut client, "t").await;
    let settings = client.settings(4, "t").await;
    for (name, value, source) in [
        ("cleanup.policy", "compact", 1),
        ("delete.retention.ms", "3600000", 1),
        ("min.cleanable.dirty.ratio", "0.5", 5),
        ("min.compaction.lag.ms", "0", 5),
    ] {
        assert_eq!(settings[name], (value.to_owned(), source), "{name}");
    }
    for (operation, value, code, policy) in [
        (2, "delete", 0, "compact,delete"),
        (2, "compact", 0, "compact,delete"),
        (3, "compact", 0, "delete"),
        (3, "delete", 40, "delete"),
        (2, "sometimes", 40, "delete"),
        (0, "delete,compact", 0, "compact,delete"),
        (1, "", 0, "delete"),
    ] {
        let altered = client
            .alter_by(1, "t", "cleanup.policy", operation, Some(value))
            .await;
        assert_eq!(altered, code, "{operation} {value}");
        let settings = client.settings(4, "t").await;
        assert_eq!(settings["cleanup.policy"].0, policy, "{operation} {value}");
    }
    for (name, value) in [
        ("min.cleanable.dirty.ratio", "1.5"),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "soon"),
    ] {
        assert_eq!(client.alter(1, "t", name, Some(value)).await, 40, "{name}");
    }
    harness.stop().await;
}
