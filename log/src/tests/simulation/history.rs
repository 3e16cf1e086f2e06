//! One history: what is done to the log, step by step, and the model that follows it.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use basalt_proto::TopicName;
use parking_lot::Mutex;

use super::choices::Choices;
use super::interleave::{Other, Send, Sent, Work, append};
use super::model::{PartitionModel, Payload, Payloads, Promise};
use super::reading::{Pinned, read_all, read_one};
use super::support::{config, open_with, record_of};
use super::tally::Tally;
use super::topics::{PARTITIONS, TopicModel, create};
use crate::disk::sim::{Operation, SimDisk};
use crate::{AppendError, Durability, Log, LogConfig, Partition, TopicDurability};

/// So many readers stand still at a time.
const MOST_PINNED: usize = 4;

pub(super) struct History<'a> {
    pub(super) choices: Choices<'a>,
    pub(super) config: LogConfig,
    pub(super) disk: SimDisk,
    pub(super) log: Arc<Log>,
    pub(super) topics: Vec<TopicModel>,
    /// Whether operations are made to fail.
    pub(super) faulty: bool,
    pub(super) full: bool,
    /// Whether all appends are of one length, so that what is written over old bytes ends where those did.
    uniform: bool,
    number: u64,
    outcomes: Arc<Mutex<Vec<Sent>>>,
    /// What slow readers are in the middle of.
    pub(super) pinned: Vec<Pinned>,
    pub(super) trace: Vec<String>,
    pub(super) tally: Tally,
}

/// The number that each payload begins with.
pub(super) fn number_of(payload: &[u8]) -> u64 {
    payload
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl<'a> History<'a> {
    pub(super) fn new(mut choices: Choices<'a>) -> Self {
        let config = LogConfig {
            segment_bytes: choices.pick(&[2048, 4096, 8192]),
            block_bytes: choices.pick(&[1024, 2048]),
            wal_bytes: choices.pick(&[64 << 10, 16 << 10, 0]),
            reserved_step: choices.pick(&[16, 64, 1 << 20]),
            ..config()
        };
        let faulty = choices.below(2) == 1;
        let uniform = choices.once_in(4);
        let disk = SimDisk::new();
        let log = open_with(&disk, config.clone());
        let levels = [TopicDurability::Fsync, TopicDurability::Os];
        let topics = levels.into_iter().zip(["f", "o"]).map(|(level, name)| {
            let name = TopicName::new(name).unwrap();
            let mut topic = TopicModel {
                topic: create(&log, &name, level).unwrap(),
                name,
                level,
                shown_durably: true,
                partitions: Vec::new(),
                changing: None,
            };
            topic.forget();
            topic
        });
        Self {
            topics: topics.collect(),
            choices,
            config,
            disk,
            log,
            faulty,
            full: false,
            uniform,
            number: 0,
            outcomes: Arc::default(),
            pinned: Vec::new(),
            trace: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.choices.is_used_up()
    }

    pub(super) fn step(&mut self) {
        self.tally.steps += 1;
        if self.choices.once_in(12) {
            let operations = self.choices.below(24) as u64;
            self.note(format!("the end comes after {operations} operations"));
            self.disk.stop_after(operations);
        }
        match self.choices.below(100) {
            0..45 => self.append(),
            45..57 => self.commit(),
            57..63 => self.settle(),
            63..67 => self.seal(),
            67..70 => self.release(),
            70..74 => self.prepare(),
            74..78 => self.checkpoint(),
            78..80 => self.make_anew(),
            80..82 => self.alter(),
            82..84 => self.fill_up(),
            84..88 => self.fail(),
            88..92 => self.crash(),
            92..94 => self.close(),
            94..96 => self.pin(),
            _ => self.check("reading"),
        }
        if self.disk.has_stopped() {
            self.tally.cut_operations += 1;
            self.crash();
        }
        self.observe();
    }

    pub(super) fn note(&mut self, what: String) {
        self.trace.push(what);
    }

    fn any(&mut self) -> (usize, usize) {
        let topic = self.choices.below(self.topics.len());
        (topic, self.choices.below(PARTITIONS as usize))
    }

    pub(super) fn partition(&self, (topic, number): (usize, usize)) -> Arc<Partition> {
        self.topics[topic].partition(number)
    }

    pub(super) fn everywhere(&self) -> Vec<(usize, usize)> {
        let all = |topic| (0..PARTITIONS as usize).map(move |number| (topic, number));
        (0..self.topics.len()).flat_map(all).collect()
    }

    fn send(&mut self) -> Send {
        let (mut bytes, mut payloads) = (Vec::new(), Payloads::default());
        let largest = self.choices.pick(&[20, 200, 900, 2500]);
        let frames = if self.uniform {
            1
        } else {
            1 + self.choices.below(4)
        };
        for _ in 0..frames {
            self.number += 1;
            let mut payload = self.number.to_be_bytes().to_vec();
            let fill = u8::try_from(self.number % 26).unwrap();
            let more = if self.uniform {
                200
            } else {
                self.choices.below(largest)
            };
            payload.resize(8 + more, b'a' + fill);
            if self.choices.once_in(6) {
                // Zeros look like a page that never reached the disk.
                payload[8..].fill(0);
            }
            let span = if self.choices.once_in(4) {
                2 + u32::try_from(self.choices.below(4)).unwrap()
            } else {
                1
            };
            bytes.extend(record_of(7, span, &payload));
            payloads.push(Payload::from(payload), u64::from(span));
        }
        let levels = [Durability::Fsync, Durability::Os, Durability::None];
        Send {
            bytes,
            payloads,
            durability: self.choices.pick(&levels),
        }
    }

    fn append(&mut self) {
        let (at, send) = (self.any(), self.send());
        let partition = self.partition(at);
        self.meanwhile(true);
        let base = partition.bounds().log_end_offset.0;
        let result = append(&partition, &send);
        let sent = Sent {
            at,
            base,
            send,
            result,
        };
        self.came_back(Some(sent));
    }

    /// Has other threads do something during the syncs that come next.
    pub(super) fn meanwhile(&mut self, may_commit: bool) {
        if !self.choices.once_in(3) {
            return;
        }
        let everywhere = self.everywhere();
        let all: Vec<_> = everywhere.iter().map(|at| self.partition(*at)).collect();
        let committing = Arc::new(AtomicBool::new(!may_commit));
        for _ in 0..1 + self.choices.below(3) {
            let at = self.any();
            let other = Other {
                log: Arc::clone(&self.log),
                all: all.clone(),
                at,
                partition: self.partition(at),
                committing: Arc::clone(&committing),
                outcomes: Arc::clone(&self.outcomes),
            };
            let work = match self.choices.below(5) {
                0 | 1 => Work::Append(self.send()),
                2 => Work::Commit,
                3 => Work::Settle,
                _ => Work::Prepare,
            };
            let (skip, covered) = (self.choices.below(3) as u64, self.choices.below(2) == 0);
            self.disk
                .during_sync(skip, covered, move || other.run(work));
        }
    }

    /// Takes what appends have answered into the model: the own one, if it was one, and those of other threads.
    pub(super) fn came_back(&mut self, own: Option<Sent>) {
        self.disk.clear_during_sync();
        let others = std::mem::take(&mut *self.outcomes.lock());
        self.tally.others += others.len() as u64;
        for sent in others.into_iter().chain(own) {
            self.tally.appends += 1;
            let Sent {
                at: (topic, number),
                base,
                send,
                result,
            } = sent;
            let durability = send.durability;
            self.note(format!(
                "append to {topic}/{number} at {base}, {durability:?}: {result:?}"
            ));
            let model = &mut self.topics[topic].partitions[number];
            match result {
                Ok(appended) => {
                    assert_eq!(appended.base_offset.0, base);
                    model.appended(base, &send.payloads, Promise::of(durability));
                }
                Err(error) => {
                    self.tally.refused += 1;
                    model.failed(base, &send.payloads);
                    let excused = self.full && matches!(error, AppendError::StorageFull { .. });
                    let gone = matches!(error, AppendError::Closed { .. });
                    assert!(
                        self.faulty || excused || gone || self.disk.has_stopped(),
                        "refused without a reason: {error:?}"
                    );
                }
            }
        }
        self.observe();
    }

    pub(super) fn observe(&mut self) {
        let stopped = self.disk.has_stopped();
        for (topic, number) in self.everywhere() {
            let partition = self.partition((topic, number));
            let model = &mut self.topics[topic];
            model.partitions[number].observe(
                &partition.bounds(),
                partition.synced_offset().0,
                model.shown_durably,
            );
            if let Some(reason) = partition.poisoned().filter(|_| !stopped) {
                assert!(self.faulty, "stopped without a failing disk: {reason}");
            }
        }
    }

    fn commit(&mut self) {
        let mut partitions = Vec::new();
        for at in self.everywhere() {
            if self.choices.below(3) > 0 {
                partitions.push(self.partition(at));
            }
        }
        let names = partitions
            .iter()
            .map(|partition| (partition.topic().as_str(), partition.id()));
        let names = names.collect::<Vec<_>>();
        let what = format!("commit {names:?}");
        self.note(what);
        self.meanwhile(false);
        if self.choices.below(2) == 0 {
            self.log.commit_now(&partitions);
        } else {
            // What is too much for it waits for a thread: the next step that settles.
            self.log.commit_unsettled(&partitions);
        }
        self.came_back(None);
    }

    fn settle(&mut self) {
        let at = self.any();
        self.meanwhile(true);
        let partition = self.partition(at);
        let settled = if self.choices.below(2) == 0 {
            partition.sync_now()
        } else {
            partition.settle_if_asked()
        };
        self.note(format!("settle {at:?}: {settled:?}"));
        self.came_back(None);
    }

    fn seal(&mut self) {
        let at = self.any();
        self.meanwhile(true);
        let sealed = self.partition(at).seal_active();
        self.note(format!("seal {at:?}: {sealed:?}"));
        self.tally.seals += u64::from(sealed.is_ok_and(|sealed| sealed));
        self.came_back(None);
    }

    fn release(&mut self) {
        let at = self.any();
        let partition = self.partition(at);
        let sealed = partition.sealed_segments();
        let Some(last) = sealed.len().checked_sub(1) else {
            return;
        };
        let through = sealed[self.choices.below(last + 1)].end_offset;
        let released = partition.release(through);
        self.note(format!("release {at:?} up to {through}: {released:?}"));
        self.tally.releases += u64::from(released.is_ok());
        // Also when it failed: some may be gone.
        self.topics[at.0].partitions[at.1].released(through.0);
        self.check_pinned();
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.choices.below(usize::try_from(bound).unwrap()) as u64
    }

    /// A reader begins, and stands still.
    fn pin(&mut self) {
        let at = self.any();
        let partition = self.partition(at);
        let bounds = partition.bounds();
        let span = bounds.high_watermark.0 - bounds.log_start_offset.0;
        let from = bounds.log_start_offset.0 + self.below(span);
        self.pinned.push(Pinned::begin(&partition, from));
        if self.pinned.len() > MOST_PINNED {
            self.pinned.remove(0);
        }
    }

    /// PUB-19: whatever was released, and whatever was written since.
    fn check_pinned(&mut self) {
        self.tally.pinned += self.pinned.len() as u64;
        self.pinned.iter().for_each(Pinned::check);
    }

    fn prepare(&mut self) {
        let at = self.any();
        let partition = self.partition(at);
        partition.reserve_ahead();
        let prepared = partition.prepare_next();
        self.note(format!("prepare {at:?}: {prepared:?}"));
    }

    fn checkpoint(&mut self) {
        if self.choices.below(2) == 0 {
            self.log.turn_wal();
        }
        self.meanwhile(true);
        self.log.checkpoint_now();
        self.note("checkpoint".to_owned());
        self.came_back(None);
    }

    pub(super) fn set_full(&mut self, full: bool) {
        self.full = full;
        self.disk.set_full(full);
    }

    fn fill_up(&mut self) {
        let full = !self.full && self.choices.below(3) > 0;
        self.set_full(full);
        self.note(format!("full: {full}"));
    }

    fn fail(&mut self) {
        if !self.faulty {
            return;
        }
        let operations = [
            Operation::Sync,
            Operation::SyncDir,
            Operation::Allocate,
            Operation::Write,
            Operation::SetLen,
            Operation::Create,
            Operation::Rename,
            Operation::Remove,
        ];
        let operation = self.choices.pick(&operations);
        let kind = self
            .choices
            .pick(&[ErrorKind::StorageFull, ErrorKind::Other]);
        let skip = self.choices.below(4) as u64;
        self.note(format!("fail {operation:?} {kind:?} after {skip}"));
        self.disk.fail(operation, "", skip, kind);
    }

    fn close(&mut self) {
        self.meanwhile(false);
        let closed = self.log.close();
        self.note(format!("close: {closed:?}"));
        self.came_back(None);
        let at = self.everywhere();
        let proven = !at.into_iter().any(|at| self.partition(at).is_unproven());
        if closed.is_ok() && proven && !self.disk.has_stopped() {
            let all = self.topics.iter_mut();
            all.flat_map(|topic| &mut topic.partitions)
                .for_each(PartitionModel::closed);
        }
        let power_lost = self.choices.below(2) == 0;
        self.restart(power_lost);
    }

    /// Reads everything and compares.
    pub(super) fn check(&mut self, when: &str) {
        for at in self.everywhere() {
            let partition = self.partition(at);
            let found = read_all(&partition);
            self.topics[at.0].partitions[at.1].check(&found);
            let bounds = partition.bounds();
            let (start, end) = (bounds.log_start_offset.0, bounds.high_watermark.0);
            for _ in 0..4 {
                let from = start + self.below(end - start + 1);
                self.tally.inside += u64::from(read_one(&partition, from, &found));
            }
        }
        self.check_pinned();
        self.note(format!("{when} at {} operations", self.disk.operations()));
    }

    /// The last things: one more start, or bit rot.
    pub(super) fn end(mut self) -> (Vec<String>, Tally) {
        if self.choices.below(2) == 0 {
            self.set_full(false);
            self.restart(false);
        } else {
            self.rot();
        }
        let bounds: Vec<_> = self
            .everywhere()
            .into_iter()
            .map(|at| self.partition(at).bounds())
            .collect();
        self.note(format!("{bounds:?}"));
        (
            std::mem::take(&mut self.trace),
            std::mem::take(&mut self.tally),
        )
    }
}

impl Drop for History<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let tail = self.trace.len().saturating_sub(60);
            eprintln!("the history ends so: {:#?}", &self.trace[tail..]);
        }
        // What a log does when it is dropped is of no interest any more.
        self.disk.stop_after(0);
    }
}
