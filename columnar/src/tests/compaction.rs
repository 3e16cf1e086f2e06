//! Compaction: of each key the latest record, at every moment and after every crash; all else may go, and nothing comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use basalt_log::{CleanupPolicy, Ratio, TopicConfig};
use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::{Frame, Offset, RecordHeader};
use parking_lot::Mutex;

use super::failing::{Turn, failing_setup};
use super::support::{
    Fixture, OwnedHeader, Random, Seen, SeenBatch, Setup, append, files_below, records, replay,
    rows, seeds, topic,
};
use crate::check::check_cold;
use crate::{CompactionReport, CoolError, NoSteps, Step, Steps, Stopped, TieredPartition};

const HOUR: Duration = Duration::from_hours(1);

fn compacted(config: &mut TopicConfig) {
    config.cleanup_policy = CleanupPolicy::Compact;
    config.delete_retention = Some(HOUR);
}

fn advance(setup: &Setup, by: Duration) {
    setup
        .clock
        .advance_ns(u64::try_from(by.as_nanos()).unwrap());
}

async fn open(setup: &Setup) -> Fixture {
    let fixture = setup.open().await;
    fixture.configure(compacted);
    fixture
}

const STAMPED_BY_A_BROKER: i16 = 1 << 3;
const DELETE_HORIZON: i16 = 1 << 6;
/// No attribute of Kafka's.
const NOT_NUMBERED: i16 = 1 << 14;

/// A batch of these keys and values.
fn batch(records: &[(Option<&str>, Option<&str>)], attributes: i16, out: &mut Vec<u8>) {
    let numbered = attributes & NOT_NUMBERED == 0;
    let mut writer = BatchWriter::new(BatchFields {
        base_offset: 0,
        partition_leader_epoch: -1,
        attributes: attributes & !NOT_NUMBERED,
        base_timestamp_ms: None,
        max_timestamp_ms: None,
        producer_id: if numbered { 7 } else { -1 },
        producer_epoch: if numbered { 1 } else { -1 },
        base_sequence: if numbered { i32::MAX - 2 } else { -1 },
    })
    .unwrap();
    for (at, (key, value)) in (0..).zip(records) {
        let header = RecordHeader {
            key: b"trace",
            value: None,
        };
        let record = RecordToWrite {
            timestamp_ms: 1_700_000_000_000 - at,
            key: key.map(str::as_bytes),
            value: value.map(str::as_bytes),
            headers: &[header][..usize::from(at % 2 == 0)],
        };
        writer.push(&record).unwrap();
    }
    let count = writer.record_count();
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    Frame::batch(1_700_000_000_000_000_000, &bytes, count).encode_into(out);
}

const KEYS: [&str; 6] = ["", "a", "b", "c", "d", "a key that is longer"];

/// Frames of few keys, with tombstones and without keys, some in batches.
fn random_frames(random: &mut Random, count: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..count {
        let key = KEYS[usize::try_from(random.below(6)).unwrap()];
        if random.one_in(2) {
            let payload = format!(
                "{{\"n\":{},\"text\":\"{}\"}}",
                random.below(99),
                random.next()
            );
            let mut frame = Frame::record(random.stamp_ns(), key.as_bytes(), payload.as_bytes());
            frame.header.record_count = 1 + u32::try_from(random.below(2)).unwrap();
            frame.encode_into(&mut out);
            continue;
        }
        let values: Vec<_> = (0..=random.below(5))
            .map(|_| {
                let key = KEYS[usize::try_from(random.below(6)).unwrap()];
                let value = (!random.one_in(3)).then(|| format!("{{\"n\":{}}}", random.next()));
                (key, value)
            })
            .collect();
        let no_key = random.one_in(9);
        let values: Vec<_> = values
            .iter()
            .map(|(key, value)| ((!no_key).then_some(*key), value.as_deref()))
            .collect();
        let mut attributes = i16::try_from(random.below(5)).unwrap();
        for one in [STAMPED_BY_A_BROKER, DELETE_HORIZON, NOT_NUMBERED] {
            attributes |= if random.one_in(4) { one } else { 0 };
        }
        batch(&values, attributes, &mut out);
    }
    out
}

/// Offset, key, value, stamp, headers, and of its batch the attributes, producer, epoch and the record's number.
type Content = (
    (u64, Option<Vec<u8>>, Option<Vec<u8>>, Option<i64>),
    Vec<OwnedHeader>,
    Option<(i16, i64, i16, i64)>,
);

/// What stays of a record whatever becomes of its batch.
fn content(seen: &Seen) -> Content {
    let of_batch = |(base, attributes, _, _, _, id, epoch, sequence, _): SeenBatch| {
        let delta = seen.offset.cast_signed() - base;
        let number = match sequence {
            none @ ..0 => i64::from(none),
            sequence => (i64::from(sequence) + delta) & i64::from(i32::MAX),
        };
        (attributes, id, epoch, number)
    };
    let key = seen.key.clone();
    (
        (seen.offset, key, seen.payload.clone(), seen.stamp_ms),
        seen.headers.clone(),
        seen.batch.map(of_batch),
    )
}

/// What somebody has who reads from the start and keeps each key's latest value; records without a key, all of them.
fn state(seen: &[Seen]) -> (BTreeMap<Vec<u8>, Vec<u8>>, Vec<u64>) {
    let (mut values, mut keyless) = (BTreeMap::new(), Vec::new());
    for record in seen {
        match (&record.key, &record.payload) {
            (None, _) => keyless.push(record.offset),
            (Some(key), Some(value)) => drop(values.insert(key.clone(), value.clone())),
            (Some(key), None) => drop(values.remove(key)),
        }
    }
    (values, keyless)
}

async fn all(partition: &TieredPartition) -> Vec<Seen> {
    records(&replay(partition, Offset::ZERO).await)
}

/// Asserts that what is there is of `written`, in order, and comes to the same; what is there.
async fn assert_same(fixture: &Fixture, written: &[Seen], what: &str) -> Vec<Seen> {
    let partition = fixture.partition();
    let seen = all(&partition).await;
    let known: BTreeSet<_> = written.iter().map(content).collect();
    assert!(
        seen.iter().all(|record| known.contains(&content(record))),
        "{what}"
    );
    assert!(
        seen.is_sorted_by(|one, next| one.offset < next.offset),
        "{what}"
    );
    assert_eq!(state(&seen), state(written), "{what}");
    let offsets: Vec<_> = seen.iter().map(|record| record.offset).collect();
    let rows = rows(&fixture.tiered, &partition.snapshot()).await;
    let row_offsets: Vec<_> = rows.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(row_offsets, offsets, "rows are what is replayed: {what}");
    seen
}

fn assert_each_key_once(seen: &[Seen], what: &str) {
    let keys: Vec<_> = seen
        .iter()
        .filter_map(|record| record.key.clone())
        .collect();
    let different: BTreeSet<_> = keys.iter().collect();
    assert_eq!(keys.len(), different.len(), "{what}");
}

async fn cool(fixture: &Fixture) {
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
}

#[tokio::test]
async fn col_37_each_keys_latest_record_stays_and_what_is_older_goes() {
    for seed in seeds(12) {
        let mut random = Random::new("col_37_each_keys_latest_record", seed);
        let mut setup = Setup::new();
        setup.shred_json = seed % 2 == 0;
        setup.merge_bytes = [0, 64 << 10][usize::from(seed % 3 == 0)];
        let mut fixture = open(&setup).await;
        let mut written = Vec::new();
        for round in 0..12 {
            let what = format!("seed {seed}, round {round}");
            if seed % 4 == 3 {
                let asks = !random.one_in(3);
                fixture.configure(|config| {
                    config.cleanup_policy = match asks {
                        true => CleanupPolicy::Compact,
                        false => CleanupPolicy::Delete,
                    };
                });
            }
            let partition = fixture.partition();
            let base = append(&partition, &random_frames(&mut random, 12)).await;
            written.extend(records(&replay(&partition, base).await));
            advance(&setup, HOUR / 4);
            match random.below(3) {
                0 => cool(&fixture).await,
                1 => {
                    let report = fixture.tiered.maintain().await;
                    assert!(report.errors.is_empty(), "{what}: {report:?}");
                }
                _ => {
                    drop((partition, fixture));
                    fixture = open(&setup).await;
                }
            }
            assert_same(&fixture, &written, &what).await;
        }
        fixture.configure(compacted);
        cool(&fixture).await;
        let what = format!("seed {seed}");
        let seen = assert_same(&fixture, &written, &what).await;
        assert_each_key_once(&seen, &what);
        let partition = fixture.partition();
        let partitions = [(topic("t"), partition.topic_id().0, partition.id())];
        assert_eq!(check_cold(&setup.cold_dir(), &partitions).await, []);
    }
}

/// Stops at the `countdown`th step of any kind, and at all behind it.
#[derive(Debug)]
struct StopAfter(Mutex<u32>);

impl Steps for StopAfter {
    fn reached(&self, step: Step) -> Result<(), Stopped> {
        let mut countdown = self.0.lock();
        *countdown = countdown.saturating_sub(1);
        match *countdown {
            0 => Err(Stopped { after: step }),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn col_38_a_crash_at_any_step_of_a_pass_brings_nothing_back() {
    let mut nth = 0;
    loop {
        nth += 1;
        let mut random = Random::new("col_38_a_crash_at_any_step", 3);
        let mut setup = Setup::new();
        let fixture = open(&setup).await;
        fixture.configure(|config| {
            config.min_cleanable_dirty_ratio = Some("0".parse::<Ratio>().unwrap());
        });
        let partition = fixture.partition();
        // Values, then a pass, then tombstones for some of them in a file of their own, and a pass that makes that clean.
        for _ in 0..3 {
            append(&partition, &random_frames(&mut random, 8)).await;
            cool(&fixture).await;
        }
        let mut frames = Vec::new();
        batch(&[(Some("a"), None), (Some("b"), None)], 0, &mut frames);
        append(&partition, &frames).await;
        cool(&fixture).await;
        advance(&setup, 2 * HOUR);
        // This one sweeps them, and has more to do.
        append(&partition, &random_frames(&mut random, 2)).await;
        partition.seal().await.unwrap();
        partition.cool_through(Offset::MAX).await.unwrap();
        let written = all(&partition).await;
        drop((partition, fixture));

        setup.steps = Arc::new(StopAfter(Mutex::new(nth)));
        let fixture = setup.open().await;
        let stopped = fixture.tiered.maintain().await;
        drop(fixture);
        setup.steps = Arc::new(NoSteps);
        let what = format!("after {nth} steps");
        let fixture = setup.open().await;
        assert_same(&fixture, &written, &what).await;
        cool(&fixture).await;
        let seen = assert_same(&fixture, &written, &what).await;
        assert_each_key_once(&seen, &what);
        fixture.tiered.maintain().await;
        let objects = files_below(&setup.cold_dir());
        let objects = objects.keys().filter(|name| name.ends_with(".parquet"));
        assert_eq!(
            objects.count(),
            fixture.partition().snapshot().cold.len(),
            "{what}"
        );
        if stopped.errors.is_empty() {
            assert!(nth > 15, "a pass has many steps: {nth}");
            break;
        }
    }
}

#[tokio::test]
async fn a_tombstone_stays_for_its_time_and_then_goes_though_nothing_new_comes() {
    let setup = Setup::new();
    let fixture = open(&setup).await;
    let partition = fixture.partition();
    let mut frames = Vec::new();
    Frame::record(1, b"a", b"1").encode_into(&mut frames);
    batch(&[(Some("a"), None), (Some("b"), Some("2"))], 3, &mut frames);
    append(&partition, &frames).await;
    cool(&fixture).await;
    let offsets = |seen: Vec<Seen>| seen.iter().map(|record| record.offset).collect::<Vec<_>>();
    assert_eq!(offsets(all(&partition).await), [1, 2]);
    advance(&setup, HOUR - Duration::from_secs(1));
    fixture.tiered.maintain().await;
    assert_eq!(offsets(all(&partition).await), [1, 2]);
    advance(&setup, Duration::from_secs(1));
    let report = fixture.tiered.maintain().await;
    assert_eq!(
        (report.compacted.rows, report.compacted.passes),
        (1, 1),
        "{report:?}"
    );
    assert_eq!(offsets(all(&partition).await), [2]);
    assert_eq!(partition.bounds().log_start_offset, Offset::ZERO);
    // And that was that.
    let report = fixture.tiered.maintain().await;
    assert_eq!(report.compacted.passes, 0);
}

#[tokio::test]
async fn what_is_left_of_a_batch_keeps_its_numbers_stamps_and_headers() {
    let setup = Setup::new();
    let fixture = open(&setup).await;
    let partition = fixture.partition();
    let mut frames = Vec::new();
    let records_of = [
        (Some("a"), Some("1")),
        (Some("b"), Some("2")),
        (Some("c"), Some("")),
        (Some("d"), Some("3")),
        (Some("a"), Some("4")),
    ];
    batch(&records_of, 4, &mut frames);
    batch(&[(Some("d"), Some("5"))], 0, &mut frames);
    append(&partition, &frames).await;
    let before = all(&partition).await;
    cool(&fixture).await;
    let frames = replay(&partition, Offset::ZERO).await;
    let seen = records(&frames);
    assert_eq!(
        seen.iter().map(content).collect::<Vec<_>>(),
        [1, 2, 4, 5].map(|at: usize| content(&before[at])).to_vec()
    );
    let headers = basalt_proto::FrameWalk::new(&frames, basalt_proto::FrameLimits::UNLIMITED)
        .map(|frame| basalt_proto::batch::RecordBatch::header(frame.unwrap().payload).unwrap());
    let numbers: Vec<_> = headers
        .map(|header| {
            (
                (header.base_offset, header.last_offset_delta),
                (
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                ),
                (header.base_timestamp_ms, header.max_timestamp_ms),
            )
        })
        .collect();
    let stamp = 1_700_000_000_000;
    assert_eq!(
        numbers,
        [
            ((1, 1), (7, 1, i32::MAX - 1), (stamp - 1, stamp - 1)),
            ((4, 0), (7, 1, 1), (stamp - 4, stamp - 4)),
            ((5, 0), (7, 1, i32::MAX - 2), (stamp, stamp)),
        ]
    );
    let chunks = &partition.snapshot().cold[0].chunks;
    assert_eq!(
        (chunks[0].min_timestamp_ns, chunks[0].max_timestamp_ns),
        (
            (1_700_000_000_000 - 4) * 1_000_000,
            1_700_000_000_000 * 1_000_000
        )
    );
}

#[tokio::test]
async fn a_file_of_which_nothing_stays_leaves_a_gap() {
    let setup = Setup::new();
    let fixture = open(&setup).await;
    let partition = fixture.partition();
    for value in [b"1", b"2"] {
        let mut frames = Vec::new();
        Frame::record(1, b"a", value).encode_into(&mut frames);
        append(&partition, &frames).await;
        cool(&fixture).await;
    }
    let snapshot = partition.snapshot();
    assert_eq!(
        (snapshot.cold.len(), snapshot.compacted_end_offset),
        (1, Offset(1))
    );
    assert_eq!(partition.bounds().log_start_offset, Offset::ZERO);
    let seen = all(&partition).await;
    assert_eq!((seen.len(), seen[0].offset), (1, 1));
}

#[tokio::test]
async fn a_pass_waits_until_enough_is_new_and_cools_what_it_wants() {
    let setup = Setup::new();
    let fixture = open(&setup).await;
    fixture.configure(|config| {
        config.min_cleanable_dirty_ratio = Some("0.5".parse::<Ratio>().unwrap());
        config.min_compaction_lag = Some(HOUR);
        config.delete_retention = Some(24 * HOUR);
    });
    let partition = fixture.partition();
    let fill = async |segments: usize| {
        let before = partition.hot().sealed_segments().len();
        while partition.hot().sealed_segments().len() < before + segments {
            let mut frames = Vec::new();
            Frame::record(1, b"a", &[b'x'; 1000]).encode_into(&mut frames);
            append(&partition, &frames).await;
        }
        // Sealing goes on in the background: what was begun by it is sealed, too.
        partition.hot().seal_active().unwrap();
        partition.hot().sealed_segments().len() - before
    };
    let sealed = fill(4).await;
    fixture.tiered.maintain().await;
    assert_eq!(
        partition.snapshot().cold.len(),
        0,
        "all is younger than the lag"
    );
    advance(&setup, HOUR);
    let report = fixture.tiered.maintain().await;
    assert_eq!(
        (report.cooled.segments as usize, report.compacted.passes),
        (sealed, 1),
        "{report:?}"
    );
    let clean: u64 = partition
        .snapshot()
        .cold
        .iter()
        .map(|file| file.frame_bytes)
        .sum();
    assert!(clean < 2000, "one record of {clean} bytes");
    // Few clean bytes: what comes next is enough at once, but for its age.
    fill(1).await;
    let report = fixture.tiered.maintain().await;
    assert_eq!(report.compacted.passes, 0, "{report:?}");
    // Other keys, so that much is clean.
    let mut frames = Vec::new();
    for key in 0..200 {
        Frame::record(1, format!("{key}").as_bytes(), &[b'x'; 1000]).encode_into(&mut frames);
    }
    append(&partition, &frames).await;
    advance(&setup, HOUR);
    cool(&fixture).await;
    fill(2).await;
    advance(&setup, HOUR);
    let report = fixture.tiered.maintain().await;
    assert_eq!(
        (report.cooled.segments, report.compacted.passes),
        (0, 0),
        "a tenth is new: {report:?}"
    );
}

#[tokio::test]
async fn a_topic_that_did_not_ask_keeps_everything_and_one_that_stops_asking_keeps_the_rest() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let mut random = Random::new("a_topic_that_did_not_ask", 5);
    append(&partition, &random_frames(&mut random, 20)).await;
    let written = all(&partition).await;
    cool(&fixture).await;
    fixture.tiered.maintain().await;
    let contents = |seen: &[Seen]| seen.iter().map(content).collect::<Vec<_>>();
    assert_eq!(contents(&all(&partition).await), contents(&written));
    fixture.configure(compacted);
    cool(&fixture).await;
    let compacted_now = all(&partition).await;
    assert!(compacted_now.len() < written.len());
    fixture.configure(|config| config.cleanup_policy = CleanupPolicy::Delete);
    append(&partition, &random_frames(&mut random, 20)).await;
    advance(&setup, 9 * HOUR);
    let all_now = all(&partition).await;
    cool(&fixture).await;
    fixture.tiered.maintain().await;
    assert_eq!(contents(&all(&partition).await), contents(&all_now));
}

#[tokio::test]
async fn retention_does_not_apply_unless_asked_for() {
    let setup = Setup::new();
    let fixture = open(&setup).await;
    let partition = fixture.partition();
    fixture.configure(|config| config.retention_age = Some(HOUR));
    let mut frames = Vec::new();
    Frame::record(1, b"a", b"1").encode_into(&mut frames);
    append(&partition, &frames).await;
    cool(&fixture).await;
    advance(&setup, 9 * HOUR);
    fixture.tiered.maintain().await;
    assert_eq!(all(&partition).await.len(), 1);
    fixture.configure(|config| config.cleanup_policy = CleanupPolicy::CompactDelete);
    fixture.tiered.maintain().await;
    assert_eq!(partition.bounds().log_start_offset, Offset(1));
}

/// A merge of which the answer is lost stands in the store, where memory does not know of it: what the pass takes for the files of the
/// partition is not, and may not be called clean.
#[tokio::test]
async fn a_pass_over_files_that_are_others_by_now_calls_nothing_clean() {
    for nth in 0.. {
        let turn = Turn::failing(true);
        let setup = Setup {
            merge_bytes: 1 << 20,
            ..failing_setup(&turn)
        };
        let fixture = setup.open().await;
        let partition = fixture.partition();
        for values in [
            [(Some("a"), Some("1")), (Some("b"), Some("2"))],
            [(Some("c"), Some("3")), (Some("d"), Some("4"))],
            [(Some("a"), None), (Some("c"), None)],
        ] {
            let mut frames = Vec::new();
            batch(&values, 0, &mut frames);
            append(&partition, &frames).await;
            cool(&fixture).await;
        }
        let written = all(&partition).await;
        turn.fail_nth(nth);
        let report = fixture.tiered.maintain().await;
        turn.stop_failing();
        let what = format!("operation {nth}");
        fixture.configure(compacted);
        let asked = fixture.tiered.cool_topic(&topic("t"), true).await;
        asked.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_same(&fixture, &written, &what).await;
        advance(&setup, 2 * HOUR);
        for _ in 0..3 {
            fixture.tiered.maintain().await;
            assert_same(&fixture, &written, &what).await;
            advance(&setup, 2 * HOUR);
        }
        let seen = all(&partition).await;
        assert_eq!(seen.len(), 2, "{what}: b and d are left");
        if report.errors.is_empty() {
            assert!(nth > 3, "{nth}");
            break;
        }
    }
}

/// Damage that a reader does not notice would be taken for another key.
#[tokio::test]
async fn a_damaged_file_ends_compaction_and_nothing_else() {
    let setup = Setup {
        merge_bytes: 1 << 20,
        ..Setup::new()
    };
    let fixture = open(&setup).await;
    let partition = fixture.partition();
    for value in 0..4 {
        let mut frames = Vec::new();
        let text = value.to_string();
        batch(
            &[(Some("a"), Some(&text)), (Some(&text), Some("x"))],
            0,
            &mut frames,
        );
        append(&partition, &frames).await;
        partition.seal().await.unwrap();
        partition.cool_through(Offset::MAX).await.unwrap();
    }
    let written = all(&partition).await;
    let victim = Arc::clone(&partition.snapshot().cold[3]);
    let path = setup.cold_dir().join(victim.path.as_ref());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let report = fixture.tiered.maintain().await;
    let [(_, _, error)] = &report.errors[..] else {
        panic!("{report:?}");
    };
    assert!(matches!(error, CoolError::Verify { path, .. } if path == victim.path.as_ref()));
    assert_eq!(report.compacted, CompactionReport::default());
    advance(&setup, HOUR);
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "it is reported once: {report:?}");
    assert_eq!(report.compacted, CompactionReport::default());
    assert_eq!(report.merged.files_in, 3, "the others are merged");
    let known: Vec<_> = written[..6].iter().map(content).collect();
    let mut sound = Vec::new();
    while sound.len() < 6 {
        let from = Offset(sound.len() as u64);
        let slice = partition.read(from, Offset(6), 1 << 20).await.unwrap();
        sound.extend(records(slice.bytes()).iter().map(content));
    }
    assert_eq!(sound, known);
}

/// What ends within a gap says so, and not where the gap ends: behind it there may be records that were not asked for.
#[tokio::test]
async fn a_read_that_ends_in_a_gap_goes_on_at_its_end() {
    let setup = Setup::new();
    let fixture = open(&setup).await;
    let partition = fixture.partition();
    let mut frames = Vec::new();
    for key in ["a", "b", "c", "c", "c", "c", "c", "d"] {
        Frame::record(1, key.as_bytes(), b"x").encode_into(&mut frames);
    }
    append(&partition, &frames).await;
    cool(&fixture).await;
    let offsets: Vec<_> = all(&partition).await.iter().map(|one| one.offset).collect();
    assert_eq!(offsets, [0, 1, 6, 7]);
    for end in 2..=6 {
        for from in 2..end {
            let slice = partition
                .read(Offset(from), Offset(end), 1000)
                .await
                .unwrap();
            assert!(slice.is_empty());
            assert_eq!(slice.next_offset, Offset(end), "{from} to {end}");
        }
    }
    let slice = partition.read(Offset(3), Offset(7), 1000).await.unwrap();
    assert_eq!(
        (slice.first_offset, slice.next_offset),
        (Offset(6), Offset(7))
    );
}
