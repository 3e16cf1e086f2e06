//! Random histories against a model, with crashes between any two operations. The seed is printed before a history runs.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

use super::support::*;
use crate::disk::sim::{Operation, SimDisk, SimRng};
use crate::{Durability, Log, Partition, TopicDurability};
use basalt_proto::Offset;

/// What the outside world knows of a partition.
#[derive(Default)]
struct Model {
    /// Every payload that an append was tried with, by the offset it was or would have been given.
    tried: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Acknowledged as on the disk.
    durable: BTreeMap<u64, Vec<u8>>,
    /// Acknowledged from the page cache.
    cached: BTreeMap<u64, Vec<u8>>,
    /// Largest offset ever acknowledged or seen, plus one.
    seen_end: u64,
    released: u64,
}

struct History {
    disk: SimDisk,
    log: Arc<Log>,
    partition: Arc<Partition>,
    level: TopicDurability,
    rng: SimRng,
    model: Model,
    number: u64,
    trace: Vec<String>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let level = if rng.below(2) == 0 {
            TopicDurability::Fsync
        } else {
            TopicDurability::Os
        };
        let disk = SimDisk::new();
        let log = open(&disk);
        let partition = partition(&log, level);
        Self {
            disk,
            log,
            partition,
            level,
            rng,
            model: Model::default(),
            number: 0,
            trace: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..60 => self.append(),
            60..70 => {
                let synced = self.partition.sync_now();
                self.trace.push(format!("sync: {synced:?}"));
                self.note_visible();
            }
            70..74 => {
                let sealed = self.partition.seal_active();
                self.trace.push(format!("seal: {sealed:?}"));
            }
            74..77 => self.release(),
            77..79 => {
                let prepared = self.partition.prepare_next();
                self.trace.push(format!("prepare: {prepared:?}"));
            }
            79..81 => {
                if self.rng.below(2) == 0 {
                    self.log.turn_wal();
                }
                self.log.checkpoint_now();
                self.trace.push("checkpoint".to_owned());
                self.note_visible();
            }
            81..84 => self.inject(),
            84..88 => {
                let next = self.disk.process_loss();
                self.restart(next, false);
            }
            88..92 => {
                let next = self.disk.power_loss(&mut self.rng);
                self.restart(next, true);
            }
            92..94 => {
                let _ = self.log.close();
                self.trace.push("close".to_owned());
                let next = self.disk.process_loss();
                self.restart(next, false);
            }
            _ => self.check("reading"),
        }
    }

    fn append(&mut self) {
        let frames = 1 + self.rng.below(4);
        let mut bytes = Vec::new();
        let mut payloads = Vec::new();
        for _ in 0..frames {
            self.number += 1;
            let mut payload = self.number.to_be_bytes().to_vec();
            payload.resize(
                8 + self.rng.below(900),
                b'a' + u8::try_from(self.number % 26).unwrap(),
            );
            if self.rng.below(6) == 0 {
                // Zeros look like a page that never reached the disk.
                payload[8..].fill(0);
            }
            bytes.extend(record(&payload));
            payloads.push(payload);
        }
        let durability = match self.rng.below(3) {
            0 => Durability::Fsync,
            1 => Durability::Os,
            _ => Durability::None,
        };
        let base = self.partition.bounds().log_end_offset.0;
        for (at, payload) in payloads.iter().enumerate() {
            self.model
                .tried
                .entry(base + at as u64)
                .or_default()
                .push(payload.clone());
        }
        let appended = if durability == Durability::Fsync && self.rng.below(3) > 0 {
            append_committed(&self.partition, &bytes)
        } else {
            append(&self.partition, &bytes, durability)
        };
        self.trace
            .push(format!("append {frames} {durability:?}: {appended:?}"));
        let Ok(appended) = appended else { return };
        assert_eq!(appended.base_offset.0, base);
        assert!(
            base >= self.model.seen_end
                || durability == Durability::None
                || base + (frames as u64) > self.model.seen_end
        );
        assert!(
            base >= self.model.seen_end,
            "offset {base} was given before (up to {})",
            self.model.seen_end
        );
        for (at, payload) in payloads.into_iter().enumerate() {
            let offset = base + at as u64;
            match durability {
                Durability::Fsync => drop(self.model.durable.insert(offset, payload)),
                Durability::Os => drop(self.model.cached.insert(offset, payload)),
                Durability::None => {}
            }
        }
        if durability != Durability::None {
            self.model.seen_end = self.model.seen_end.max(appended.end_offset.0);
        }
        self.note_visible();
    }

    /// What is below the high watermark has been promised, whoever appended it.
    fn note_visible(&mut self) {
        let visible = self.partition.bounds().high_watermark.0;
        assert!(visible >= self.model.released);
        self.model.seen_end = self.model.seen_end.max(visible);
        if self.level == TopicDurability::Fsync {
            let cached: Vec<u64> = self
                .model
                .cached
                .range(..visible)
                .map(|(offset, _)| *offset)
                .collect();
            for offset in cached {
                if let Some(payload) = self.model.cached.remove(&offset) {
                    self.model.durable.insert(offset, payload);
                }
            }
        }
    }

    fn release(&mut self) {
        let sealed = self.partition.sealed_segments();
        if let Some(first) = sealed.first() {
            let through = first.end_offset;
            self.trace.push(format!("release {through}"));
            if self.partition.release(through).is_ok() {
                self.model.released = self.model.released.max(through.0);
            }
        }
    }

    fn inject(&mut self) {
        let operations = [
            Operation::Sync,
            Operation::SyncDir,
            Operation::Allocate,
            Operation::Write,
            Operation::SetLen,
            Operation::Create,
            Operation::Rename,
        ];
        let operation = operations[self.rng.below(operations.len())];
        let kind = if self.rng.below(2) == 0 {
            ErrorKind::StorageFull
        } else {
            ErrorKind::Other
        };
        let skip = self.rng.below(4) as u64;
        self.trace
            .push(format!("fail {operation:?} {kind:?} after {skip}"));
        self.disk.fail(operation, "", skip, kind);
    }

    fn restart(&mut self, next: SimDisk, power_lost: bool) {
        self.trace
            .push(format!("restart, power lost: {power_lost}"));
        self.disk = next;
        self.log = open(&self.disk);
        self.partition = partition(&self.log, self.level);
        if power_lost {
            // At level os, and for what was acknowledged from the page cache, this is the risk that was chosen.
            self.model.cached.clear();
        }
        self.check("restart");
        self.note_visible();
        let end = self.partition.bounds().log_end_offset.0;
        assert!(
            end >= self.model.seen_end,
            "the log goes on at {end}, below {} that was seen; history: {:#?}",
            self.model.seen_end,
            self.trace
        );
        // What is not there now and was never promised may be appended again under its offset.
    }

    fn check(&mut self, when: &str) {
        let found: BTreeMap<u64, Vec<u8>> = read_all(&self.partition).into_iter().collect();
        let start = self
            .partition
            .bounds()
            .log_start_offset
            .0
            .max(self.model.released);
        let visible = self.partition.bounds().high_watermark.0;
        for (offset, payload) in self.model.durable.range(start..) {
            assert!(
                found.get(offset) == Some(payload),
                "{when}: offset {offset} was acknowledged as durable; history: {:#?}",
                self.trace
            );
        }
        for (offset, payload) in self.model.cached.range(start..) {
            if *offset < visible || when == "restart" {
                assert!(
                    found.get(offset) == Some(payload),
                    "{when}: offset {offset} was acknowledged from the page cache; history: {:#?}",
                    self.trace
                );
            }
        }
        for (offset, payload) in &found {
            let tried = self
                .model
                .tried
                .get(offset)
                .is_some_and(|payloads| payloads.contains(payload));
            assert!(
                tried,
                "{when}: offset {offset} holds bytes that nobody sent; history: {:#?}",
                self.trace
            );
        }
    }
}

fn run(seed: u64, steps: u32) -> Vec<String> {
    let mut history = History::new(seed);
    for _ in 0..steps {
        history.step();
    }
    let last = history.disk.process_loss();
    history.restart(last, false);
    history
        .trace
        .push(format!("{:?}", history.partition.bounds()));
    history.trace
}

#[test]
fn random_histories_with_crashes_and_faults_keep_every_promise() {
    let first: u64 = std::env::var("BASALT_SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let count: u64 = std::env::var("BASALT_SIM_COUNT")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(300);
    for seed in first..first + count {
        println!("seed {seed} (repeat with BASALT_SIM_SEED={seed} BASALT_SIM_COUNT=1)");
        run(seed, 120);
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    assert_eq!(run(7, 200), run(7, 200));
    assert_ne!(run(7, 200), run(8, 200));
}

#[test]
fn a_released_offset_is_gone_for_good() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for _ in 0..30 {
        append(&first, &record(&[1; 500]), Durability::Fsync).unwrap();
    }
    let through = first.sealed_segments();
    assert!(
        through.is_empty(),
        "without threads nothing is sealed by itself"
    );
    first.seal_active().unwrap();
    let through = first.sealed_segments()[0].end_offset;
    first.release(through).unwrap();
    assert_eq!(first.bounds().log_start_offset, through);
    assert!(through > Offset::ZERO);
}
