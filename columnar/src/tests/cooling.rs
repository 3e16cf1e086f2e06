//! What cooling writes, and when.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{TimestampNanosecondType, UInt64Type};
use basalt_proto::{Frame, Offset};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};

use super::support::{
    Counted, Random, Setup, append, append_numbered, assert_dense, cold_rows, files_below,
    random_frames, replay, rows, topic,
};
use crate::schema::column;
use crate::{CoolError, MaintenanceReport, Step};

#[tokio::test]
async fn a_cooled_file_has_row_groups_by_size_and_the_promised_indexes() {
    let setup = Setup {
        segment_bytes: 64 << 10,
        row_group_bytes: 8 << 10,
        ..Setup::new()
    };
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 1500).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let snapshot = partition.snapshot();
    let [file] = &snapshot.cold[..] else {
        panic!("one segment, one file: {:?}", snapshot.cold)
    };
    assert_eq!(
        (file.rows, file.base_offset, file.end_offset),
        (1500, Offset(0), Offset(1500))
    );
    assert!(file.chunks.len() > 4);
    assert!(file.chunks.iter().all(|chunk| chunk.frame_bytes <= 8 << 10));

    let bytes = fixture.tiered.store().get(&file.path).await.unwrap();
    let mut reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
    reader.try_parse(&bytes).unwrap();
    let metadata = reader.finish().unwrap();
    let names: Vec<_> = metadata
        .file_metadata()
        .key_value_metadata()
        .unwrap()
        .iter()
        .map(|kv| kv.key.clone())
        .collect();
    assert!(
        names.iter().any(|name| name == "basalt.topic_id"),
        "{names:?}"
    );
    for (group, chunk) in metadata.row_groups().iter().zip(&file.chunks) {
        assert_eq!(group.num_rows().cast_unsigned(), chunk.rows);
        let column = |at: usize| group.column(at);
        assert!(column(column::OFFSET).statistics().is_some());
        assert!(column(column::TIMESTAMP).statistics().is_some());
        assert!(
            column(column::PAYLOAD).statistics().is_none(),
            "payloads have no statistics"
        );
        assert!(
            column(column::OFFSET).column_index_offset().is_some(),
            "a page index"
        );
        assert!(
            column(column::PAYLOAD).offset_index_offset().is_some(),
            "pages of the payload can be skipped"
        );
        assert!(
            column(column::KEY).bloom_filter_offset().is_some(),
            "there are keys"
        );
        assert!(column(column::PAYLOAD).bloom_filter_offset().is_none());
        assert!(format!("{:?}", column(column::PAYLOAD).compression()).contains("ZSTD"));
    }
}

#[tokio::test]
async fn a_file_without_keys_has_no_bloom_filter() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    let mut frames = Vec::new();
    Frame::record(1, b"", b"payload").encode_into(&mut frames);
    append(&partition, &frames).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let file = Arc::clone(&partition.snapshot().cold[0]);
    let bytes = fixture.tiered.store().get(&file.path).await.unwrap();
    let metadata = ParquetMetaDataReader::new()
        .parse_and_finish(&bytes)
        .unwrap();
    assert!(
        metadata
            .row_group(0)
            .column(column::KEY)
            .bloom_filter_offset()
            .is_none()
    );
}

/// PUB-08: stamps above the signed limit are exact in replay, and never a wrong date in SQL.
#[tokio::test]
async fn pub_08_stamps_beyond_i64_are_exact_in_replay_and_null_in_sql() {
    let stamps = [
        0,
        1,
        1_700_000_000_123_456_789,
        (1 << 63) - 1,
        1 << 63,
        u64::MAX,
    ];
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    let mut frames = Vec::new();
    for stamp in stamps {
        Frame::record(stamp, b"", b"x").encode_into(&mut frames);
    }
    append(&partition, &frames).await;
    let hot = replay(&partition, Offset::ZERO).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert!(replay(&partition, Offset::ZERO).await == hot);
    let file = Arc::clone(&partition.snapshot().cold[0]);
    assert_eq!(
        (file.min_timestamp_ns, file.max_timestamp_ns),
        (0, u64::MAX)
    );
    let rows = cold_rows(fixture.tiered.store(), &file).await;
    let shown = rows[0]
        .column(column::TIMESTAMP)
        .as_primitive::<TimestampNanosecondType>();
    let shown: Vec<_> = (0..6)
        .map(|row| shown.is_valid(row).then(|| shown.value(row)))
        .collect();
    assert_eq!(
        shown,
        [
            Some(0),
            Some(1),
            Some(1_700_000_000_123_456_789),
            None,
            None,
            None
        ]
    );
    let raw = rows[0]
        .column(column::TIMESTAMP_NS)
        .as_primitive::<UInt64Type>();
    assert_eq!(raw.values()[..], stamps);
}

#[tokio::test]
async fn a_segment_that_does_not_fit_the_hot_window_is_cooled_and_no_other() {
    let fixture = Setup::new().open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 1000).await;
    partition.hot().seal_active().unwrap();
    let report = fixture.tiered.maintain().await;
    assert_eq!(
        report.cooled.segments, 0,
        "all is within the default window"
    );

    let hot_bytes = partition.bounds().hot_bytes;
    fixture.configure(|config| config.hot_bytes = Some(hot_bytes / 2));
    let report = fixture.tiered.maintain().await;
    assert!(
        report.cooled.segments > 0 && report.errors.is_empty(),
        "{report:?}"
    );
    let bounds = partition.bounds();
    assert!(
        bounds.hot_bytes <= hot_bytes / 2 && bounds.hot_bytes > hot_bytes / 2 - (8 << 10),
        "{bounds:?}"
    );

    fixture.configure(|config| config.hot_age = Some(Duration::from_secs(10)));
    assert_eq!(
        fixture.tiered.maintain().await.cooled.segments,
        0,
        "not old enough"
    );
    fixture.clock.advance_ns(10_000_000_000);
    assert!(fixture.tiered.maintain().await.cooled.segments > 0);
    assert_eq!(partition.bounds().hot_bytes, 0);
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 1000);
}

#[tokio::test]
async fn maintenance_cools_by_itself_what_was_asked_for() {
    let (steps, mut reached) = Counted::new(Step::Swapped);
    let fixture = Setup {
        steps,
        ..Setup::new()
    }
    .open()
    .await;
    let partition = fixture.partition();
    append_numbered(&partition, 300).await;
    fixture.tiered.spawn_maintenance();
    fixture.tiered.spawn_maintenance();
    let queued = fixture.tiered.cool_topic(&topic("t"), false).await.unwrap();
    assert!(queued.segments > 0 && queued.rows == 0, "{queued:?}");
    reached
        .wait_for(|times| *times >= queued.segments)
        .await
        .unwrap();
    assert_eq!(partition.bounds().cold_end_offset, Offset(300));
    assert_eq!(
        replay(&partition, Offset::ZERO).await.len(),
        300 * (29 + 1) + 10 + 180 + 600
    );
    fixture.tiered.shutdown().await.unwrap();
}

#[tokio::test]
async fn maintenance_wakes_when_a_segment_is_sealed() {
    let (steps, mut reached) = Counted::new(Step::Swapped);
    let fixture = Setup {
        steps,
        ..Setup::new()
    }
    .open()
    .await;
    let partition = fixture.partition();
    fixture.configure(|config| config.hot_bytes = Some(0));
    fixture.tiered.spawn_maintenance();
    append_numbered(&partition, 10).await;
    partition.hot().seal_active().unwrap();
    // The interval is 30 s, so it is the seal that wakes it.
    let woken = tokio::time::timeout(
        Duration::from_secs(20),
        reached.wait_for(|times| *times == 1),
    );
    woken.await.unwrap().unwrap();
    assert_eq!(partition.bounds().cold_end_offset, Offset(10));
}

#[tokio::test]
async fn a_damaged_block_stops_cooling_there_and_names_its_place() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 1000).await;
    partition.hot().seal_active().unwrap();
    let sealed = partition.hot().sealed_segments();
    assert!(sealed.len() >= 3);
    let (victim, position) = (sealed[1].path().to_owned(), sealed[1].blocks()[2].position);
    let mut bytes = std::fs::read(&victim).unwrap();
    bytes[usize::try_from(position).unwrap() + 40] ^= 1;
    std::fs::write(&victim, bytes).unwrap();

    let error = fixture
        .tiered
        .cool_topic(&topic("t"), true)
        .await
        .unwrap_err();
    match error {
        CoolError::Damaged {
            path, position: at, ..
        } => assert_eq!((path, at), (victim, position)),
        other => panic!("{other:?}"),
    }
    let bounds = partition.bounds();
    assert_eq!(
        bounds.cold_end_offset, sealed[0].end_offset,
        "what is before it is cold"
    );
    let MaintenanceReport { errors, .. } = fixture.tiered.maintain().await;
    assert_eq!(errors.len(), 1, "it stays so");
    assert!(
        fixture.tiered.maintain().await.errors.is_empty(),
        "it is not tried at each pass"
    );
    fixture.clock.advance_ns(30_000_000_000);
    assert_eq!(
        fixture.tiered.maintain().await.errors.len(),
        1,
        "but after an interval"
    );
    assert_eq!(partition.bounds(), bounds);
    // What is sound stays readable, in front of it and behind.
    let slice = partition.read(Offset(0), Offset::MAX, 100).await.unwrap();
    assert_eq!(slice.first_offset, Offset(0));
    let behind = partition
        .read(sealed[2].base_offset, Offset::MAX, 100)
        .await
        .unwrap();
    assert_eq!(behind.first_offset, sealed[2].base_offset);
}

#[tokio::test]
async fn a_batch_frame_is_never_split_between_row_groups() {
    let setup = Setup {
        segment_bytes: 64 << 10,
        row_group_bytes: 1 << 10,
        ..Setup::new()
    };
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let mut random = Random::new("a_batch_frame_is_never_split", 5);
    for _ in 0..10 {
        append(&partition, &random_frames(&mut random, 20, true)).await;
    }
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    for file in &partition.snapshot().cold {
        for (index, chunk) in file.chunks.iter().enumerate() {
            let view = partition
                .shared
                .hydrator
                .hydrate(&partition.key, file, index)
                .await
                .unwrap();
            let first = view.blocks().first().unwrap().base_offset;
            let last = view.blocks().last().unwrap().end_offset();
            assert_eq!((first, last), (chunk.base_offset, chunk.end_offset));
        }
    }
}

#[tokio::test]
async fn manifests_and_temporaries_do_not_pile_up() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    for _ in 0..6 {
        append_numbered(&partition, 50).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    let files = files_below(&setup.cold_dir());
    assert_eq!(
        files.keys().filter(|name| name.ends_with(".json")).count(),
        2,
        "{files:?}"
    );
    assert_eq!(
        files
            .keys()
            .filter(|name| name.ends_with(".parquet"))
            .count(),
        6,
        "{files:?}"
    );
    assert_eq!(files.len(), 8, "{files:?}");
}
