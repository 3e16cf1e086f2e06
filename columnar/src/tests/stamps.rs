//! Stamps in no order, and stamps that no clock shows.

use std::time::Duration;

use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::{Frame, Offset};

use super::support::{Fixture, Setup, append, append_numbered, cold_rows, records, replay, topic};
use crate::TieredPartition;
use crate::schema::column;
use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;

const MS: u64 = 1_000_000;

/// One record in a batch frame of its own.
fn batch_frame(stamp_ms: i64, out: &mut Vec<u8>) {
    let fields = BatchFields {
        base_offset: 0,
        partition_leader_epoch: -1,
        attributes: 0,
        base_timestamp_ms: None,
        max_timestamp_ms: None,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
    };
    let mut writer = BatchWriter::new(fields).unwrap();
    let record = RecordToWrite {
        timestamp_ms: stamp_ms,
        key: Some(b"a"),
        value: Some(b"1"),
        headers: &[],
    };
    writer.push(&record).unwrap();
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    let stamp_ns = u64::try_from(stamp_ms).unwrap().saturating_mul(MS);
    Frame::batch(stamp_ns, &batch, 1).encode_into(out);
}

async fn assert_found(partition: &TieredPartition, state: &str) {
    let found = [
        (0, Some((0, 100_000_000))),
        (100, Some((0, 100_000_000))),
        (101, Some((1, 300_000_000))),
        (250, Some((1, 300_000_000))),
        (300, Some((1, 300_000_000))),
        (301, Some((3, 400_000_000))),
        (350, Some((3, 400_000_000))),
        (400, Some((3, 400_000_000))),
        (401, None),
    ];
    for (target_ms, expected) in found {
        let answer = partition
            .offset_for_timestamp(target_ms * MS)
            .await
            .unwrap();
        assert_eq!(
            answer.map(|(offset, stamp_ns)| (offset.0, stamp_ns)),
            expected,
            "{target_ms} ms, {state}"
        );
    }
}

/// PUB-06: the earliest offset whose stamp is at least the target, whatever the order of stamps and wherever segments end.
#[tokio::test]
async fn pub_06_times_are_found_though_stamps_are_in_no_order() {
    for as_batches in [false, true] {
        for own_segments in [false, true] {
            let setup = Setup::new();
            let fixture = setup.open().await;
            let partition = fixture.partition();
            for stamp_ms in [100, 300, 200, 400, 350] {
                let mut frame = Vec::new();
                match as_batches {
                    true => batch_frame(stamp_ms, &mut frame),
                    false => Frame::record(stamp_ms.unsigned_abs() * MS, b"a", b"1")
                        .encode_into(&mut frame),
                }
                append(&partition, &frame).await;
                if own_segments {
                    partition.hot().seal_active().unwrap();
                }
            }
            let state = format!("batches: {as_batches}, own segments: {own_segments}");
            assert_found(&partition, &format!("{state}, hot")).await;
            drop((partition, fixture));
            let fixture = setup.open().await;
            assert_found(&fixture.partition(), &format!("{state}, restarted")).await;
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
            assert_found(&fixture.partition(), &format!("{state}, cold")).await;
        }
    }
}

/// PUB-06, the native variant: a stamp of 400,999,999 ns is no answer for 401 ms.
#[tokio::test]
async fn pub_06_a_stamp_below_the_target_by_a_nanosecond_is_not_found() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    let mut frames = Vec::new();
    for stamp_ns in [100 * MS, 300 * MS, 400_999_999] {
        Frame::record(stamp_ns, b"", b"x").encode_into(&mut frames);
    }
    append(&partition, &frames).await;
    for state in ["hot", "cold"] {
        let at = |target_ns| partition.offset_for_timestamp(target_ns);
        assert_eq!(
            at(400 * MS).await.unwrap(),
            Some((Offset(2), 400_999_999)),
            "{state}"
        );
        assert_eq!(at(401 * MS).await.unwrap(), None, "{state}");
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
}

/// The batch of PUB-07: microseconds where milliseconds were meant. In nanoseconds they are more than 64 bits hold.
const FAR_FUTURE_MS: i64 = 1_755_933_141_855_875;

async fn stored_far_future(fixture: &Fixture) -> Vec<u8> {
    let partition = fixture.partition();
    let mut frame = Vec::new();
    batch_frame(FAR_FUTURE_MS, &mut frame);
    append(&partition, &frame).await;
    append_numbered(&partition, 100).await;
    replay(&partition, Offset::ZERO).await
}

/// PUB-07: the stamp comes back as it was, in replay and as a row, and SQL's time is NULL rather than a year that looks right.
#[tokio::test]
async fn pub_07_a_stamp_of_the_wrong_unit_is_kept_and_never_wraps() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    let hot = stored_far_future(&fixture).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let cold = replay(&partition, Offset::ZERO).await;
    assert_eq!(records(&cold), records(&hot));
    let snapshot = partition.snapshot();
    let first = &cold_rows(fixture.tiered.store(), &snapshot.cold[0]).await[0];
    let stamp_ms = first
        .column(column::TIMESTAMP_MS)
        .as_primitive::<Int64Type>();
    assert_eq!(stamp_ms.value(0), FAR_FUTURE_MS);
    assert!(first.column(column::TIMESTAMP).is_null(0));
    // What a product of 64 bits would have made of it: a believable 2080-09-01.
    let wrapped = 3_492_454_853_467_596_480;
    assert_eq!(
        partition
            .offset_for_timestamp(wrapped)
            .await
            .unwrap()
            .map(|(offset, _)| offset),
        Some(Offset(0))
    );
    assert_eq!(
        partition.offset_for_timestamp(u64::MAX).await.unwrap(),
        Some((Offset(0), u64::MAX)),
        "it is as late as stamps go"
    );
}

/// PUB-07: age counts from the broker's clock at the last append, so that the odd record keeps nothing alive and goes itself.
#[tokio::test]
async fn pub_07_a_stamp_in_the_far_future_does_not_stop_retention() {
    for cool in [false, true] {
        let fixture = Setup::new().open().await;
        let partition = fixture.partition();
        stored_far_future(&fixture).await;
        partition.hot().seal_active().unwrap();
        if cool {
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
        fixture.clock.advance_ns(2_000_000_000);
        append_numbered(&partition, 10).await;
        fixture.configure(|config| config.retention_age = Some(Duration::from_secs(1)));
        fixture.tiered.maintain().await;
        assert_eq!(
            partition.bounds().log_start_offset,
            Offset(101),
            "cooled: {cool}"
        );
    }
}
