//! Merging of small cold files: fewer files, the same records at every moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use basalt_proto::Offset;
use bytes::Bytes;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tokio::sync::watch;

use super::support::{
    Counted, Fixture, Random, Setup, append, append_numbered, assert_dense, cold_rows, files_below,
    random_frames, records, replay, rows, seeds, topic,
};
use crate::check::check_cold;
use crate::schema::cold_schema;
use crate::{
    ColdStore, CoolError, MaintenanceReport, MergeReport, NoSteps, PartitionSnapshot, Step, Steps,
    Stopped,
};

/// As large as a test needs it.
const TARGET: u64 = 256 << 10;

pub(super) fn merging() -> Setup {
    Setup {
        merge_bytes: TARGET,
        ..Setup::new()
    }
}

/// Appends `rounds` times and cools each by itself.
async fn cool_one_by_one(fixture: &Fixture, random: &mut Random, rounds: usize, batches: bool) {
    for _ in 0..rounds {
        append(&fixture.partition(), &random_frames(random, 6, batches)).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
}

async fn merge(fixture: &Fixture) -> MergeReport {
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    report.merged
}

/// All columns of all rows of the cold files, as any reader of Parquet sees them.
async fn whole(fixture: &Fixture, snapshot: &PartitionSnapshot) -> RecordBatch {
    let mut all = Vec::new();
    for file in &snapshot.cold {
        for rows in cold_rows(fixture.tiered.store(), file).await {
            all.push(RecordBatch::try_new(cold_schema(), rows.columns().to_vec()).unwrap());
        }
    }
    concat_batches(&cold_schema(), &all).unwrap()
}

fn objects(setup: &Setup) -> usize {
    files_below(&setup.cold_dir())
        .keys()
        .filter(|name| name.ends_with(".parquet"))
        .count()
}

#[tokio::test]
async fn col_20_a_merged_file_has_the_same_rows_and_gives_back_the_same_frames() {
    for seed in seeds(8) {
        let mut random = Random::new("col_20_a_merged_file", seed);
        let batches = seed % 2 == 0;
        let setup = merging();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        cool_one_by_one(&fixture, &mut random, 12, batches).await;
        let before = partition.snapshot();
        let (replayed, seen) = (
            replay(&partition, Offset::ZERO).await,
            whole(&fixture, &before).await,
        );

        let report = merge(&fixture).await;
        let after = partition.snapshot();
        assert!(after.cold.len() < before.cold.len(), "seed {seed}");
        assert!(report.files_in > 2 && report.rows > 0, "{report:?}");
        assert!(report.bytes_out < report.bytes_in, "{report:?}");
        assert!(
            replay(&partition, Offset::ZERO).await == replayed,
            "frames are rebuilt from the same rows: seed {seed}"
        );
        assert_eq!(whole(&fixture, &after).await, seen, "seed {seed}");
        for file in &after.cold {
            let smaller = |chunks: &[crate::ColdChunk]| {
                chunks[0].frame_bytes + chunks[1].frame_bytes <= setup.row_group_bytes
                    && chunks[0].rows + chunks[1].rows < 10
            };
            assert!(
                !file.chunks.windows(2).any(smaller),
                "small row groups are joined, too: {file:?}"
            );
        }
        // Whoever has the old files still reads them, and they stay for him.
        assert_eq!(whole(&fixture, &before).await, seen, "seed {seed}");
        assert!(objects(&setup) > after.cold.len());
        drop(before);
        fixture.tiered.maintain().await;
        assert_eq!(objects(&setup), after.cold.len());

        let partitions = [(topic("t"), partition.topic_id().0, partition.id())];
        assert_eq!(check_cold(&setup.cold_dir(), &partitions).await, []);
        drop((after, partition, fixture));
        let fixture = setup.open().await;
        let partition = fixture.partition();
        assert!(replay(&partition, Offset::ZERO).await == replayed);
    }
}

#[tokio::test]
async fn col_22_many_tiny_segments_make_few_files_and_little_work() {
    let count = 500;
    let mut setup = merging();
    setup.merge_bytes = 32 << 10;
    setup.row_group_bytes = 16 << 10;
    setup.store = Some(ColdStore::remote(Arc::new(InMemory::new())));
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let (mut merged, mut cooled_bytes, mut most) = (MergeReport::default(), 0, 0);
    for round in 0..count {
        append_numbered(&partition, 3).await;
        let cooled = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        cooled_bytes += cooled.bytes_out;
        merged.add(merge(&fixture).await);
        let snapshot = partition.snapshot();
        let small = |file: &&Arc<crate::ColdFile>| file.file_bytes < setup.merge_bytes / 2;
        let small = snapshot.cold.iter().filter(small).count();
        most = most.max(small);
        // 500 segments of the same size: 8 doublings.
        assert!(small <= snapshot.cold.len() - small + 10, "round {round}");
    }
    let snapshot = partition.snapshot();
    let stored: u64 = snapshot.cold.iter().map(|file| file.file_bytes).sum();
    println!(
        "{count} segments cooled to {cooled_bytes} bytes; {} files of {stored} bytes now, at most {most} small ones; {} merges wrote {} bytes",
        snapshot.cold.len(),
        merged.files_out,
        merged.bytes_out
    );
    assert!(snapshot.cold.len() <= 10);
    assert!(merged.bytes_out < cooled_bytes * 3);
    assert_eq!(
        merged.files_in,
        count + u64::from(merged.files_out) - snapshot.cold.len() as u64
    );
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, count * 3);
    assert_eq!(
        records(&replay(&partition, Offset::ZERO).await).len() as u64,
        count * 3
    );
}

/// Stops at a step, once, until it is let go on, and says when it is there.
#[derive(Debug)]
struct Gate {
    at: Step,
    armed: AtomicBool,
    arrived: watch::Sender<bool>,
    opened: Mutex<mpsc::Receiver<()>>,
}

struct GateKeeper {
    gate: Arc<Gate>,
    arrives: watch::Receiver<bool>,
    opener: mpsc::Sender<()>,
}

impl GateKeeper {
    fn new(at: Step) -> Self {
        let (arrived, arrives) = watch::channel(false);
        let (opener, opened) = mpsc::channel();
        let gate = Gate {
            at,
            armed: AtomicBool::new(false),
            arrived,
            opened: Mutex::new(opened),
        };
        Self {
            gate: Arc::new(gate),
            arrives,
            opener,
        }
    }

    /// Lets maintenance run until it is at the gate.
    async fn maintain_to_gate(
        &mut self,
        fixture: &Fixture,
    ) -> tokio::task::JoinHandle<MaintenanceReport> {
        self.gate.armed.store(true, Ordering::SeqCst);
        let tiered = Arc::clone(&fixture.tiered);
        let maintained = tokio::spawn(async move { tiered.maintain().await });
        self.arrives.wait_for(|arrived| *arrived).await.unwrap();
        maintained
    }

    fn open(&self) {
        self.opener.send(()).unwrap();
    }
}

impl Steps for Gate {
    fn reached(&self, step: Step) -> Result<(), Stopped> {
        if step == self.at && self.armed.swap(false, Ordering::SeqCst) {
            self.arrived.send_replace(true);
            // An error says that the test is over.
            let _ = tokio::task::block_in_place(|| self.opened.lock().recv());
        }
        Ok(())
    }
}

async fn gated(at: Step) -> (Setup, Fixture, GateKeeper) {
    let keeper = GateKeeper::new(at);
    let setup = Setup {
        steps: Arc::clone(&keeper.gate) as _,
        ..merging()
    };
    let fixture = setup.open().await;
    for _ in 0..4 {
        append_numbered(&fixture.partition(), 25).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    (setup, fixture, keeper)
}

#[tokio::test]
async fn cooling_does_not_wait_for_a_merge_which_does_not_lose_what_was_cooled_meanwhile() {
    for at in [
        Step::MergePlanned,
        Step::ObjectWritten,
        Step::ObjectVerified,
    ] {
        let (setup, fixture, mut keeper) = gated(at).await;
        let partition = fixture.partition();
        let maintained = keeper.maintain_to_gate(&fixture).await;
        append_numbered(&partition, 10).await;
        let topic = topic("t");
        let cooled = fixture.tiered.cool_topic(&topic, true);
        let cooled = tokio::time::timeout(Duration::from_secs(60), cooled).await;
        assert_eq!(cooled.unwrap().unwrap().rows, 10, "{at:?}");
        assert_eq!(partition.snapshot().cold.len(), 5);
        keeper.open();
        let report = maintained.await.unwrap();
        assert!(report.errors.is_empty(), "{report:?}");
        assert_eq!((report.merged.files_in, report.merged.rows), (4, 100));
        let snapshot = partition.snapshot();
        assert_eq!(snapshot.cold.len(), 2);
        assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 110);
        assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 110);
        assert_eq!(objects(&setup), 2);
    }
}

#[tokio::test]
async fn col_21_a_merge_gives_way_to_retention_that_took_an_input() {
    let (setup, fixture, mut keeper) = gated(Step::ObjectVerified).await;
    let partition = fixture.partition();
    let maintained = keeper.maintain_to_gate(&fixture).await;
    let third = partition.snapshot().cold[2].frame_bytes;
    fixture.configure(|config| config.retention_bytes = Some(2 * third));
    assert!(partition.expire().await.unwrap());
    let start = partition.bounds().log_start_offset;
    assert_eq!(start, Offset(50), "whole files, exactly");
    keeper.open();
    let report = maintained.await.unwrap();
    assert!(report.errors.is_empty(), "{report:?}");
    assert_eq!(report.merged, MergeReport::default());
    fixture.tiered.maintain().await;
    let snapshot = partition.snapshot();
    assert_eq!(partition.bounds().log_start_offset, start);
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 50, 100);
    assert_eq!(
        objects(&setup),
        snapshot.cold.len(),
        "nothing is left of it"
    );
}

#[tokio::test]
async fn a_topic_that_is_deleted_while_it_is_merged_leaves_nothing() {
    for at in [
        Step::MergePlanned,
        Step::ObjectWritten,
        Step::ObjectVerified,
    ] {
        let (setup, fixture, mut keeper) = gated(at).await;
        let maintained = keeper.maintain_to_gate(&fixture).await;
        let (tiered, partition) = (Arc::clone(&fixture.tiered), fixture.partition());
        let mut deleted = tokio::spawn(async move { tiered.delete_topic(&topic("t")).await });
        while !partition.deleting.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        let early = tokio::time::timeout(Duration::from_secs(1), &mut deleted).await;
        assert!(early.is_err(), "what is written now would be left behind");
        keeper.open();
        deleted.await.unwrap().unwrap();
        let report = maintained.await.unwrap();
        assert!(report.errors.is_empty(), "{report:?}");
        let files_out = u32::from(at == Step::ObjectVerified);
        assert_eq!(report.merged.files_out, files_out, "copying stops: {at:?}");
        drop(partition);
        fixture.tiered.maintain().await;
        let left = files_below(&setup.cold_dir());
        assert!(left.is_empty(), "{at:?}: {left:?}");
        // A later topic of the name is merged like any other.
        for _ in 0..2 {
            append_numbered(&fixture.partition(), 25).await;
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
        assert_eq!(merge(&fixture).await.files_in, 2);
    }
}

#[tokio::test]
async fn a_shutdown_stops_a_merge_and_the_next_start_collects_what_it_left() {
    for at in [
        Step::MergePlanned,
        Step::ObjectWritten,
        Step::ObjectVerified,
        Step::ManifestCommitted,
        Step::Swapped,
    ] {
        let (mut setup, fixture, mut keeper) = gated(at).await;
        keeper.gate.armed.store(true, Ordering::SeqCst);
        fixture.tiered.spawn_maintenance();
        keeper.arrives.wait_for(|arrived| *arrived).await.unwrap();
        let tiered = Arc::clone(&fixture.tiered);
        let stopped = tokio::spawn(async move { tiered.shutdown().await });
        // It is at a step, not at a wait, where alone a task can be stopped.
        tokio::task::yield_now().await;
        keeper.open();
        stopped.await.unwrap().unwrap();
        drop(fixture);
        setup.steps = Arc::new(NoSteps);
        let fixture = setup.open().await;
        let partition = fixture.partition();
        assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 100);
        let snapshot = partition.snapshot();
        assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 100);
        assert_eq!(objects(&setup), snapshot.cold.len(), "{at:?}");
    }
}

#[tokio::test]
async fn maintenance_merges_by_itself() {
    let (steps, mut merged) = Counted::new(Step::MergePlanned);
    let setup = Setup { steps, ..merging() };
    let fixture = setup.open().await;
    fixture.configure(|config| config.hot_bytes = Some(0));
    fixture.tiered.spawn_maintenance();
    let partition = fixture.partition();
    for _ in 0..3 {
        append_numbered(&partition, 25).await;
        partition.hot().seal_active().unwrap();
    }
    let woken = merged.wait_for(|times| *times > 0);
    let woken = tokio::time::timeout(Duration::from_secs(60), woken).await;
    woken.unwrap().unwrap();
    fixture.tiered.shutdown().await.unwrap();
}

/// The bytes of a Parquet file with a bit flipped so that its rows can be read, but are others.
fn unnoticed_flip(sound: &[u8]) -> Vec<u8> {
    let read = |bytes: &[u8]| -> Option<Vec<RecordBatch>> {
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(Bytes::copy_from_slice(bytes)).ok()?;
        reader.build().ok()?.collect::<Result<_, _>>().ok()
    };
    let rows = read(sound).unwrap();
    let flipped = (4..sound.len()).map(|at| {
        let mut bytes = sound.to_vec();
        bytes[at] ^= 1;
        bytes
    });
    let mut unnoticed = flipped.filter(|bytes| read(bytes).is_some_and(|found| found != rows));
    unnoticed.next().unwrap()
}

#[tokio::test]
async fn a_damaged_file_is_reported_once_and_neither_copied_nor_in_the_way() {
    let setup = merging();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let mut random = Random::new("a_damaged_file", 3);
    // Batch frames have no other checksum than that of the object.
    cool_one_by_one(&fixture, &mut random, 9, true).await;
    let victim = Arc::clone(&partition.snapshot().cold[4]);
    let path = setup.cold_dir().join(victim.path.as_ref());
    let bytes = unnoticed_flip(&std::fs::read(&path).unwrap());
    std::fs::write(&path, &bytes).unwrap();

    let report = fixture.tiered.maintain().await;
    let [(_, _, error)] = &report.errors[..] else {
        panic!("{report:?}");
    };
    assert!(matches!(error, CoolError::Verify { path, .. } if path == victim.path.as_ref()));
    assert_eq!(report.merged, MergeReport::default());
    append_numbered(&partition, 10).await;
    let cooled = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(cooled.rows, 10, "cooling goes on");
    assert!(fixture.tiered.maintain().await.errors.is_empty());
    fixture.clock.advance_ns(30_000_000_000);
    assert!(merge(&fixture).await.files_in > 5);
    let snapshot = partition.snapshot();
    assert!(snapshot.cold.iter().any(|file| file.path == victim.path));
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "as it was");
    assert_eq!(objects(&setup), snapshot.cold.len());
}

#[tokio::test]
async fn col_23_retention_counts_a_merged_file_from_its_last_append() {
    let setup = merging();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    for _ in 0..6 {
        append_numbered(&partition, 25).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        fixture.clock.advance_ns(1_000_000_000);
    }
    // A sixteenth is 2.5 s: each file goes with the one before it, but for the first, whose age nobody knows.
    fixture.configure(|config| config.retention_age = Some(Duration::from_secs(40)));
    assert!(merge(&fixture).await.files_in > 0);
    let ends = |snapshot: &PartitionSnapshot| -> Vec<_> {
        let files = snapshot.cold.iter();
        files
            .map(|file| (file.end_offset.0, file.appended_at_ns))
            .collect()
    };
    let second = |at: u64| (1 + at) * 1_000_000_000;
    let expected = [
        (25, second(0)),
        (75, second(2)),
        (125, second(4)),
        (150, second(5)),
    ];
    assert_eq!(ends(&partition.snapshot()), expected);
    // The age of the second file, of whose records the first are a second older.
    fixture.clock.advance_ns(36_000_000_000);
    fixture.tiered.maintain().await;
    assert_eq!(partition.bounds().log_start_offset, Offset(25));
    fixture.clock.advance_ns(1_000_000_000);
    fixture.tiered.maintain().await;
    assert_eq!(partition.bounds().log_start_offset, Offset(75));
    drop((partition, fixture));
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let snapshot = partition.snapshot();
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 75, 150);
    assert_eq!(objects(&setup), snapshot.cold.len());
}

/// COL-18: an older manifest names inputs that are gone.
#[tokio::test]
async fn a_merged_file_whose_manifest_was_lost_is_kept() {
    let setup = merging();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    cool_one_by_one(&fixture, &mut Random::new("manifest_was_lost", 1), 6, false).await;
    merge(&fixture).await;
    let files = files_below(&setup.cold_dir());
    let merged: Vec<_> = partition
        .snapshot()
        .cold
        .iter()
        .map(|file| file.path.to_string())
        .collect();
    drop((partition, fixture));
    let newest = files.keys().rfind(|name| name.ends_with(".json")).unwrap();
    std::fs::remove_file(setup.cold_dir().join(newest)).unwrap();
    let _fixture = setup.open().await;
    let kept = files_below(&setup.cold_dir());
    for path in merged {
        assert!(kept.contains_key(&path), "it is the only copy: {kept:?}");
    }
}
