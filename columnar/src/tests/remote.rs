//! A store behind a network that throttles, loses answers, and breaks uploads off: nothing is lost or doubled, and nothing left behind.

use std::sync::Arc;
use std::time::Duration;

use basalt_proto::{Frame, Offset};

use super::failing::{Failing, Turn};
use super::support::{
    Random, Setup, append, append_numbered, assert_dense, records, replay, rows, seeds, topic,
};
use super::weather::{MINUTE_NS, Network, Weather, assert_no_orphans, setup, without_hot_window};
use crate::ColdStore;

#[tokio::test]
async fn a_throttling_store_that_loses_answers_is_caught_up_with_and_keeps_no_litter() {
    for seed in seeds(4) {
        let mut random = Random::new("a_throttling_store", seed);
        let network = Network::new();
        let setup = Setup {
            merge_bytes: 1 << 20,
            ..setup(&network)
        };
        let fixture = setup.open().await;
        let partition = without_hot_window(&fixture);
        let mut expected = 0;
        for _ in 0..30 {
            let count = 1 + random.below(200);
            append_numbered(&partition, count).await;
            expected += count;
            partition.hot().seal_active().unwrap();
            network.becomes(Weather::Throttling(4 + random.below(12)));
            fixture.tiered.maintain().await;
            fixture.clock.advance_ns(MINUTE_NS);
            network.becomes(Weather::Fair);
            let snapshot = partition.snapshot();
            assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, expected);
        }
        for _ in 0..3 {
            fixture.clock.advance_ns(MINUTE_NS);
            let report = fixture.tiered.maintain().await;
            assert!(report.errors.is_empty(), "{report:?}");
        }
        assert_eq!(partition.bounds().cold_end_offset, Offset(expected));
        let seen = records(&replay(&partition, Offset::ZERO).await);
        assert_eq!(seen.len() as u64, expected);
        assert_no_orphans(&network, &partition).await;
    }
}

#[tokio::test]
async fn whichever_request_fails_or_loses_its_answer_no_orphan_is_left_without_a_restart() {
    for after in [false, true] {
        for nth in 0..40 {
            let (network, turn) = (Network::new(), Turn::failing(after));
            let mut setup = setup(&network);
            setup.store = Some(ColdStore::remote(Arc::new(Failing {
                inner: Arc::new(network.clone()),
                turn: Arc::clone(&turn),
            })));
            let fixture = setup.open().await;
            let partition = without_hot_window(&fixture);
            append_numbered(&partition, 300).await;
            partition.hot().seal_active().unwrap();
            turn.fail_nth(nth);
            let failed = fixture.tiered.maintain().await;
            turn.stop_failing();
            for _ in 0..2 {
                fixture.clock.advance_ns(MINUTE_NS);
                let report = fixture.tiered.maintain().await;
                assert!(report.errors.is_empty(), "{nth} {after} {report:?}");
            }
            assert_eq!(partition.bounds().cold_end_offset, Offset(300));
            let seen = records(&replay(&partition, Offset::ZERO).await);
            assert_eq!(seen.len(), 300, "{nth} {after}");
            assert_no_orphans(&network, &partition).await;
            if failed.errors.is_empty() {
                println!("cooling takes {nth} requests");
                assert!(nth > 8);
                break;
            }
        }
    }
}

/// The commit was done and its answer lost; then everything expires that memory knows of. What the store's truth names must not be
/// taken for an orphan.
#[tokio::test]
async fn retention_does_not_decide_over_a_file_of_which_nobody_knows_whether_it_is_committed() {
    let (network, turn) = (Network::new(), Turn::failing(true));
    let mut setup = setup(&network);
    setup.store = Some(ColdStore::remote(Arc::new(Failing {
        inner: Arc::new(network.clone()),
        turn: Arc::clone(&turn),
    })));
    let mut lost_its_answer = 0;
    for nth in 0..30 {
        let fixture = setup.open().await;
        let partition = without_hot_window(&fixture);
        append_numbered(&partition, 100).await;
        partition.hot().seal_active().unwrap();
        append_numbered(&partition, 100).await;
        partition.hot().seal_active().unwrap();
        turn.fail_nth(nth);
        fixture.tiered.maintain().await;
        turn.stop_failing();
        lost_its_answer += partition.state.lock().undecided.len();
        // Hot segments alone expire, as long as memory knows of nothing cold.
        fixture.configure(|config| config.retention_bytes = Some(3000));
        fixture.tiered.maintain().await;
        fixture.configure(|config| config.retention_bytes = None);
        for _ in 0..2 {
            fixture.clock.advance_ns(MINUTE_NS);
            fixture.tiered.maintain().await;
        }
        let start = partition.bounds().log_start_offset;
        let seen = records(&replay(&partition, start).await);
        assert_eq!(seen.len() as u64, 200 - start.0, "{nth}");
        assert_no_orphans(&network, &partition).await;
        fixture.tiered.delete_topic(&topic("t")).await.unwrap();
    }
    assert!(lost_its_answer > 0, "the case was met");
}

#[tokio::test]
async fn an_upload_that_breaks_off_half_way_is_aborted_once_the_store_lets_it_be() {
    let network = Network::new();
    let setup = Setup {
        segment_bytes: 64 << 20,
        row_group_bytes: 4 << 20,
        ..setup(&network)
    };
    let fixture = setup.open().await;
    let partition = without_hot_window(&fixture);
    let mut random = Random::new("an_upload_that_breaks_off", 1);
    let mut frames = Vec::new();
    for stamp in 0..20 {
        // Nothing that could be compressed.
        let payload: Vec<u8> = (0..131_072)
            .flat_map(|_| random.next().to_be_bytes())
            .collect();
        Frame::record(stamp, b"", &payload).encode_into(&mut frames);
    }
    append(&partition, &frames).await;
    partition.hot().seal_active().unwrap();
    network.becomes(Weather::NoParts);
    let failed = fixture.tiered.maintain().await;
    assert!(!failed.errors.is_empty());
    assert_eq!(network.open_uploads(), 0, "it is aborted at once");
    // And where that fails, too, later.
    network.becomes(Weather::Throttling(2));
    for _ in 0..6 {
        fixture.clock.advance_ns(MINUTE_NS);
        fixture.tiered.maintain().await;
    }
    network.becomes(Weather::Fair);
    for _ in 0..2 {
        fixture.clock.advance_ns(MINUTE_NS);
        fixture.tiered.maintain().await;
    }
    assert_eq!(partition.bounds().cold_end_offset, Offset(20));
    assert_eq!(fixture.tiered.tier.shared.litter.len(), 0);
    assert!(replay(&partition, Offset::ZERO).await.len() == frames.len());
    assert_no_orphans(&network, &partition).await;
}

#[tokio::test]
async fn a_shutdown_in_the_middle_of_an_upload_leaves_nothing() {
    let network = Network::new();
    let fixture = setup(&network).open().await;
    let partition = without_hot_window(&fixture);
    append_numbered(&partition, 300).await;
    partition.hot().seal_active().unwrap();
    let before = network.requests();
    network.becomes(Weather::Slow(Duration::from_millis(50)));
    fixture.tiered.spawn_maintenance();
    while network.written().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fixture.tiered.shutdown().await.unwrap();
    assert!(network.requests() > before);
    assert_no_orphans(&network, &partition).await;
}

#[tokio::test]
async fn readers_of_the_same_records_fetch_them_once_and_no_more_than_they_need() {
    let network = Network::new();
    let fixture = setup(&network).open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 2000).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let chunks: Vec<_> = partition
        .snapshot()
        .cold
        .iter()
        .flat_map(|file| file.chunks.clone())
        .collect();
    assert!(chunks.len() > 8);
    network.becomes(Weather::Slow(Duration::from_millis(5)));
    let before = network.gets();
    let readers = (0..16).map(|_| partition.read(Offset(0), Offset(1), 1));
    for read in futures::future::join_all(readers).await {
        assert_eq!(read.unwrap().first_offset, Offset(0));
    }
    // A footer and the columns of the row group; the same for the next one, which is prepared, but for the footer.
    let asked = network.gets() - before;
    assert!((2..=6).contains(&asked), "{asked} requests for 16 readers");
    let before = network.gets();
    partition.read(Offset(0), Offset(1), 1).await.unwrap();
    assert!(network.gets() - before <= 1, "it is in the cache");
}

#[tokio::test]
async fn a_reader_that_waits_for_what_is_prepared_gets_two_row_groups_at_a_time() {
    let network = Network::new();
    let fixture = setup(&network).open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 2000).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let file = Arc::clone(&partition.snapshot().cold[0]);
    assert!(file.chunks.len() > 2);
    let first = file.chunks[0].base_offset;
    let hydrator = &partition.shared.hydrator;
    let is_hydrating = |chunk| hydrator.is_hydrating(&partition.key, &file, chunk);

    network.becomes(Weather::Still);
    let mut prepares = Box::pin(partition.read(first, Offset::MAX, 1));
    assert!(futures::poll!(&mut prepares).is_pending());
    assert!(is_hydrating(0) && !is_hydrating(1), "one for who begins");
    let mut waits = Box::pin(partition.read(first, Offset::MAX, 1));
    assert!(futures::poll!(&mut waits).is_pending());
    let both = async {
        while !is_hydrating(1) {
            tokio::task::yield_now().await;
        }
    };
    let both = tokio::time::timeout(Duration::from_secs(30), both).await;
    both.expect("the next one is on its way, too");
    assert!(is_hydrating(0) && !is_hydrating(2), "no more than two");
    network.becomes(Weather::Fair);
    for read in [prepares.await, waits.await] {
        assert_eq!(read.unwrap().first_offset, first);
    }
}

#[tokio::test]
async fn a_reader_of_a_store_that_is_away_is_told_to_come_back() {
    let network = Network::new();
    let fixture = setup(&network).open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 300).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    network.becomes(Weather::Away);
    let refused = partition.read(Offset(0), Offset(1), 1).await.unwrap_err();
    assert!(refused.kind().is_retryable(), "{refused:?}");
    network.becomes(Weather::Fair);
    partition.read(Offset(0), Offset(1), 1).await.unwrap();
}
