//! What SQL sees of Kafka's transactions: committed records, or all that there are for those who ask for them. And of compacted
//! topics: what is left.

use basalt_log::CleanupPolicy;
use basalt_proto::batch::{BatchFields, BatchWriter, Marker, RecordToWrite};
use basalt_proto::{FrameCheck, FrameLimits};

use super::*;
use crate::as_of::SnapshotError;
use crate::parameters::Query;

const TRANSACTIONAL: i16 = 1 << 4;

/// A batch of one record, of a transaction of `producer_id`.
fn frame(producer_id: i64, value: &str) -> Vec<u8> {
    let mut writer = BatchWriter::new(BatchFields {
        attributes: TRANSACTIONAL,
        producer_id,
        producer_epoch: 0,
        base_sequence: 0,
        ..BatchFields::default()
    })
    .unwrap();
    let record = RecordToWrite {
        timestamp_ms: 1,
        key: Some(b"k"),
        value: Some(value.as_bytes()),
        headers: &[],
    };
    writer.push(&record).unwrap();
    let (mut batch, mut frame) = (Vec::new(), Vec::new());
    writer.finish(&mut batch).unwrap();
    Frame::batch(1_000_000, &batch, 1).encode_into(&mut frame);
    frame
}

impl Fixture {
    async fn send(&self, producer_id: i64, value: &str) {
        let frame = frame(producer_id, value);
        let check = FrameCheck::new(&frame, FrameLimits::default()).with_transactions();
        let batch = check.finish(frame.len()).into_whole().unwrap();
        let partition = self.tiered.partition(&name("t"), PartitionId(0)).unwrap();
        let appended = partition
            .hot()
            .append_acknowledged(&batch, Durability::Fsync);
        appended.await.unwrap();
    }

    async fn end(&self, producer_id: i64, marker: Marker) {
        let frame = marker.frame(producer_id, 0, 1).unwrap();
        let batch = FrameBatch::marker(&frame).unwrap();
        let partition = self.tiered.partition(&name("t"), PartitionId(0)).unwrap();
        let hot = partition.hot();
        let ended = hot.end_transaction(producer_id, &batch, Durability::Fsync);
        hot.wait_durable(ended.unwrap().end_offset).await.unwrap();
    }

    /// The values that are seen with what is not committed; no token is given for that.
    async fn uncommitted(&self) -> Vec<String> {
        let rows = self.engine.run(Query {
            sees_uncommitted: true,
            ..Query::plain(VALUES)
        });
        let rows = rows.await.unwrap();
        assert_eq!(rows.snapshot(), None);
        let batches: Vec<_> = rows.try_collect().await.unwrap();
        rows_of(&batches)
    }
}

const VALUES: &str = "SELECT _payload::text FROM t ORDER BY _offset";

#[tokio::test]
async fn what_is_open_or_void_is_seen_by_those_who_ask_for_it_alone() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    fixture.send(1, "committed").await;
    fixture.send(2, "void").await;
    fixture.end(1, Marker::Commit).await;
    fixture.end(2, Marker::Abort).await;
    fixture.send(3, "open").await;
    assert_eq!(fixture.rows(VALUES).await, ["committed"]);
    assert_eq!(fixture.uncommitted().await, ["committed", "void", "open"]);
    let ends = "SELECT stable_offset, high_watermark, (SELECT max(end_offset) FROM sys.segments) FROM sys.partitions";
    assert_eq!(fixture.rows(ends).await, ["4|5|5"]);
    fixture.end(3, Marker::Commit).await;
    fixture.cool("t").await;
    assert_eq!(fixture.rows(VALUES).await, ["committed", "open"]);
    // What is void is not cooled.
    assert_eq!(fixture.uncommitted().await, ["committed", "open"]);

    let rows = fixture.engine.query(VALUES).await.unwrap();
    let token = rows.snapshot().unwrap().to_owned();
    drop(rows);
    let refused = fixture.engine.run(Query {
        sees_uncommitted: true,
        ..Query::plain(&format!("SELECT * FROM t AS OF '{token}'"))
    });
    let error = refused.await.map(drop).unwrap_err();
    assert!(matches!(
        error,
        QueryError::Snapshot(SnapshotError::Uncommitted)
    ));
}

#[tokio::test]
async fn a_cut_of_which_compaction_may_have_taken_some_is_refused() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    let record = |value| Frame::record(1_000, b"k", value);
    fixture.append("t", 0, &[record(b"1"), record(b"2")]).await;
    let rows = fixture.engine.query(VALUES).await.unwrap();
    let as_of = format!(
        "SELECT count(*) FROM t AS OF '{}'",
        rows.snapshot().unwrap()
    );
    drop(rows);
    fixture.cool("t").await;
    assert_eq!(fixture.rows(&as_of).await, ["2"]);
    let config = TopicConfig {
        cleanup_policy: CleanupPolicy::Compact,
        ..TopicConfig::default()
    };
    fixture
        .tiered
        .log()
        .alter_topic(&name("t"), config)
        .unwrap();
    fixture.cool("t").await;
    assert_eq!(fixture.rows(VALUES).await, ["2"]);
    let error = fixture.error(&as_of).await;
    assert!(
        error
            .to_string()
            .contains("partition 0 of topic t is compacted"),
        "{error}"
    );
}
