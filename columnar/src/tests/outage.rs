//! While a store is away or slow: writes go on as long as there is room, the store is asked little, and no topic waits for another.

use basalt_log::{AppendError, Durability, TopicConfig};
use basalt_proto::{Frame, FrameBatch, FrameLimits, Offset, PartitionId};

use super::support::{Fixture, Setup, append_numbered, assert_dense, rows, topic};
use super::weather::{MINUTE_NS, Network, Weather, assert_no_orphans, setup, without_hot_window};
use crate::TieredPartition;

/// One durable record of 1 KiB, through the way in that counts.
async fn try_append(partition: &TieredPartition) -> Result<u64, AppendError> {
    let mut frame = Vec::new();
    Frame::record(1, b"", &[b'x'; 1024]).encode_into(&mut frame);
    let batch = FrameBatch::parse(&frame, &FrameLimits::default()).unwrap();
    let appended = partition.append(&batch, Durability::Fsync)?;
    partition.hot().wait_durable(appended.end_offset).await?;
    Ok(appended.base_offset.0)
}

/// Waits until the log's own threads have sealed all segments that are full.
async fn full_segments_are_sealed(fixture: &Fixture, partition: &TieredPartition) {
    let mut seals = fixture.tiered.log().seals();
    let frame_bytes = 1024 + 29;
    let in_a_segment = fixture.tiered.log().config().segment_bytes / frame_bytes;
    loop {
        seals.mark_unchanged();
        let sealed = partition.hot().sealed_segments();
        let sealed_end = sealed.last().map(|segment| segment.end_offset);
        let cold_end = partition.bounds().cold_end_offset;
        let unsealed_from = sealed_end.unwrap_or(cold_end).max(cold_end);
        if partition.bounds().log_end_offset.0 - unsealed_from.0 <= in_a_segment {
            return;
        }
        seals.changed().await.unwrap();
    }
}

#[tokio::test]
async fn writes_go_on_while_the_store_is_away_until_the_limit_and_again_when_it_is_back() {
    let network = Network::new();
    let setup = Setup {
        hot_limit_bytes: 64 << 10,
        ..setup(&network)
    };
    let fixture = setup.open().await;
    let partition = without_hot_window(&fixture);
    network.becomes(Weather::Away);
    let mut stored = 0;
    let refused = loop {
        match try_append(&partition).await {
            Ok(offset) => assert_eq!(offset, stored),
            Err(error) => break error,
        }
        stored += 1;
        fixture.tiered.maintain().await;
    };
    assert!(
        matches!(refused, AppendError::BudgetFull { .. }),
        "{refused}"
    );
    assert!((60..=64).contains(&stored), "all of the limit: {stored}");
    for _ in 0..10 {
        fixture.clock.advance_ns(MINUTE_NS);
        fixture.tiered.maintain().await;
        assert!(try_append(&partition).await.is_err(), "it is still away");
    }
    network.becomes(Weather::Fair);
    fixture.clock.advance_ns(MINUTE_NS);
    full_segments_are_sealed(&fixture, &partition).await;
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    assert_eq!(
        try_append(&partition).await.unwrap(),
        stored,
        "no offset is lost"
    );
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, stored + 1);
    assert_no_orphans(&network, &partition).await;
}

#[tokio::test]
async fn a_limit_below_the_hot_window_refuses_nothing_while_the_store_keeps_up() {
    // With segments that fill up, and with one that would never be sealed.
    for segment_bytes in [8 << 10, 1 << 20] {
        let network = Network::new();
        let setup = Setup {
            hot_limit_bytes: 64 << 10,
            segment_bytes,
            ..setup(&network)
        };
        let fixture = setup.open().await;
        let partition = fixture.partition();
        for offset in 0..300 {
            let stored = try_append(&partition).await;
            assert_eq!(stored.unwrap(), offset, "{segment_bytes}");
            if offset % 4 == 0 {
                full_segments_are_sealed(&fixture, &partition).await;
                fixture.tiered.maintain().await;
            }
        }
        assert!(partition.bounds().cold_end_offset > Offset(200));
    }
}

/// What is hot may be far from the limit and still leave no room for a large append: it must be let in again, too.
#[tokio::test]
async fn an_append_of_any_size_that_the_limit_holds_is_taken_once_there_is_room() {
    const LIMIT_BYTES: u64 = 64 << 10;
    for segment_bytes in [8 << 10, 1 << 20] {
        for large_records in [17_u64, 30, 60] {
            let network = Network::new();
            let setup = Setup {
                hot_limit_bytes: LIMIT_BYTES,
                segment_bytes,
                ..setup(&network)
            };
            let fixture = setup.open().await;
            let partition = fixture.partition();
            // As much as leaves too little room.
            let small_records = LIMIT_BYTES / (1024 + 29) - large_records + 1;
            for _ in 0..small_records {
                try_append(&partition).await.unwrap();
            }
            full_segments_are_sealed(&fixture, &partition).await;
            let mut frames = Vec::new();
            for _ in 0..large_records {
                Frame::record(1, b"", &[b'x'; 1024]).encode_into(&mut frames);
            }
            let batch = FrameBatch::parse(&frames, &FrameLimits::default()).unwrap();
            let refused = partition.append(&batch, Durability::Os).unwrap_err();
            assert!(matches!(refused, AppendError::BudgetFull { .. }));
            fixture.tiered.maintain().await;
            let taken = partition.append(&batch, Durability::Os);
            assert!(
                taken.is_ok(),
                "{large_records} records, segments of {segment_bytes}: {taken:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_failing_store_is_asked_little_and_less_and_less() {
    let network = Network::new();
    let fixture = setup(&network).open().await;
    for number in 0..20 {
        let name = topic(&format!("t{number}"));
        let config = TopicConfig {
            hot_bytes: Some(0),
            ..TopicConfig::default()
        };
        fixture.tiered.create_topic(&name, 1, config).unwrap();
        let partition = fixture.tiered.partition(&name, PartitionId(0)).unwrap();
        append_numbered(&partition, 300).await;
        partition.hot().seal_active().unwrap();
    }
    network.becomes(Weather::Away);
    let before = network.requests();
    let report = fixture.tiered.maintain().await;
    let asked = network.requests() - before;
    assert!(!report.errors.is_empty());
    assert!(asked <= 16, "{asked} requests for what four places began");
    for _ in 0..5 {
        fixture.tiered.maintain().await;
        assert!(fixture.tiered.status().store_rests);
    }
    assert_eq!(network.requests() - before, asked, "it rests");

    // An hour of it, a pass a second.
    for _ in 0..3600 {
        fixture.clock.advance_ns(1_000_000_000);
        fixture.tiered.maintain().await;
    }
    let asked = network.requests() - before;
    assert!(asked <= 16 * 140, "{asked} requests in an hour");
    network.becomes(Weather::Fair);
    fixture.clock.advance_ns(MINUTE_NS);
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    for partition in fixture.tiered.all_partitions() {
        assert_eq!(partition.bounds().cold_end_offset, Offset(300));
    }
    assert!(!fixture.tiered.status().store_rests);
}

#[tokio::test]
async fn a_topic_with_much_to_do_does_not_keep_another_waiting() {
    let network = Network::new();
    let fixture = setup(&network).open().await;
    for (name, partitions) in [("huge", 20), ("late", 1)] {
        let config = TopicConfig {
            hot_bytes: Some(0),
            ..TopicConfig::default()
        };
        let name = topic(name);
        fixture
            .tiered
            .create_topic(&name, partitions, config)
            .unwrap();
        for number in 0..partitions {
            let partition = fixture.tiered.partition(&name, PartitionId(number));
            let partition = partition.unwrap();
            for _ in 0..2 {
                fixture.clock.advance_ns(1);
                append_numbered(&partition, 20).await;
                partition.hot().seal_active().unwrap();
            }
        }
    }
    let report = fixture.tiered.maintain().await;
    assert_eq!(report.cooled.segments, 42, "{report:?}");
    let written = network.written();
    let late = written
        .iter()
        .position(|path| path.as_ref().starts_with("late/"))
        .unwrap();
    assert!(late <= 2, "it was number {late} of {}", written.len());
}
