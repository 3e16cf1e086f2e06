//! Ends of the process and of the machine, and the starts after them.

use std::sync::Arc;

use super::history::History;
use super::reading::read_all;
use super::support::data_dir;
use super::topics::{Change, PARTITIONS, TopicModel, config_of};
use crate::check::CheckedFolder;
use crate::{Log, ManualClock, TopicDurability};

impl History<'_> {
    pub(super) fn crash(&mut self) {
        let power_lost = self.choices.below(2) == 0;
        self.restart(power_lost);
    }

    /// The disk that the next process finds.
    fn lose(&mut self, power_lost: bool) {
        let next = if power_lost {
            self.tally.power_losses += 1;
            self.disk.power_loss(&mut self.choices.rng())
        } else {
            self.tally.process_losses += 1;
            self.disk.process_loss()
        };
        // The old process does nothing more, and its readers are gone.
        self.pinned.clear();
        self.disk.stop_after(0);
        self.disk = next;
    }

    pub(super) fn restart(&mut self, power_lost: bool) {
        let mut power_lost = power_lost;
        self.lose(power_lost);
        self.note(format!("restart, power lost: {power_lost}"));
        loop {
            if self.choices.once_in(5) {
                let operations = self.choices.below(30) as u64;
                self.disk.stop_after(operations);
            }
            let opened = self.open();
            if self.disk.has_stopped() {
                self.tally.cut_recoveries += 1;
                drop(opened);
                let again = self.choices.below(2) == 0;
                self.lose(again);
                power_lost |= again;
                self.note(format!("the start was cut off, power lost: {again}"));
                continue;
            }
            match opened {
                Some(log) => {
                    self.log = log;
                    break;
                }
                None => {
                    assert!(self.full, "the log does not open");
                    self.set_full(false);
                    self.lose(false);
                }
            }
        }
        // No end is set for what comes now.
        self.disk.clear_stop();
        self.take_over(power_lost);
    }

    fn open(&mut self) -> Option<Arc<Log>> {
        let disk = Arc::new(self.disk.clone());
        match Log::open(self.config.clone(), disk, Arc::new(ManualClock::new(1_000))) {
            Ok(log) => Some(log),
            Err(error) => {
                self.note(format!("not opened: {error:?}"));
                None
            }
        }
    }

    /// Compares what the log holds now with what it promised.
    fn take_over(&mut self, power_lost: bool) {
        for at in 0..self.topics.len() {
            self.take_over_topic(at);
        }
        let mut frames = 0;
        for (topic, number) in self.everywhere() {
            let partition = self.partition((topic, number));
            let found = read_all(&partition);
            frames += found.len() as u64;
            let TopicModel {
                partitions,
                shown_durably,
                ..
            } = &mut self.topics[topic];
            let bounds = partition.bounds();
            self.trace.push(format!("{topic}/{number}: {bounds:?}"));
            let proven = !partition.is_unproven();
            partitions[number].recovered(&found, &bounds, power_lost, *shown_durably, proven);
        }
        for topic in &mut self.topics {
            topic.shown_durably = topic.level == TopicDurability::Fsync;
        }
        if self.choices.below(2) == 0 {
            // What a thread does right after the start: an index that a crash spoiled is replaced by the sealed one.
            for at in self.everywhere() {
                let sealed = self.partition(at).finish_sealing();
                assert!(sealed.is_ok() || self.full, "{sealed:?}");
            }
        }
        if !self
            .everywhere()
            .into_iter()
            .any(|at| self.partition(at).is_unproven())
        {
            self.folder_is_sound(frames);
        }
        self.check("restart");
    }

    fn take_over_topic(&mut self, at: usize) {
        let model = &mut self.topics[at];
        let found = self.log.topic(&model.name);
        match (found, model.changing.take()) {
            (Some(topic), None) => {
                assert_eq!(topic.id(), model.id());
                assert_eq!(topic.config().durability, model.level);
                model.topic = topic;
            }
            (Some(topic), Some(_)) if topic.id() == model.id() => {
                model.level = topic.config().durability;
                model.topic = topic;
            }
            (Some(topic), Some(Change::Deleted(level))) => {
                assert_eq!(topic.config().durability, level);
                self.took_over(at, topic, level);
            }
            (None, Some(Change::Deleted(level))) => {
                let config = config_of(level);
                let name = model.name.clone();
                self.set_full(false);
                let made = self.log.create_topic(&name, PARTITIONS, config);
                match made {
                    Ok(topic) => self.took_over(at, topic, level),
                    Err(error) => panic!("topic {at} cannot be made anew: {error:?}"),
                }
            }
            (found, changing) => panic!("topic {at}: {found:?}, {changing:?}"),
        }
    }

    /// After a recovery `basalt check` finds nothing, and as many frames as are served.
    fn folder_is_sound(&self, served: u64) {
        let folder = self.disk.beside();
        let checked = CheckedFolder::lock(&folder, &data_dir()).unwrap();
        let report = checked.check(|_| ()).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert_eq!(report.frames, served, "index and log differ");
    }
}
