//! The topic of a run: made or found, where its records begin, and where they end.

use basalt_proto::TopicName;

use super::Bench;
use crate::args::{AckArg, Mode, Plan};
use crate::drive::{Done, end_of};
use crate::error::LoadError;
use crate::produce::Produced;
use crate::progress::{Progress, Standing};
use crate::verify::Tally;

impl Bench<'_> {
    /// Makes the topic if it is not there, and finds out where this run's records will begin in it.
    pub(super) fn find_topic(&mut self) -> Result<(), LoadError> {
        let expected = self.plan.partitions;
        let durability = self
            .plan
            .args
            .durability
            .map(|durability| durability.as_str());
        let Some(admin) = &mut self.admin else {
            return self.probe();
        };
        let partitions = if self.plan.args.topic.is_some() {
            admin.partitions(&self.topic)?
        } else {
            None
        };
        let Some(partitions) = partitions else {
            if self.plan.mode == Mode::Consume && self.plan.args.topic.is_some() {
                return Err(LoadError::NothingToRead);
            }
            admin.create_topic(&self.topic, expected, durability)?;
            self.made = self.plan.args.topic.is_none();
            return Ok(());
        };
        for (number, start) in (0..expected).zip(&mut self.starts) {
            let partition = partitions
                .iter()
                .find(|partition| partition.partition.0 == number);
            *start = partition
                .ok_or(LoadError::Partitions {
                    found: partitions.len(),
                    expected,
                })?
                .log_end_offset
                .0;
        }
        Ok(())
    }

    /// Without requests the only way to learn where a topic ends is to append to it.
    pub(super) fn probe(&mut self) -> Result<(), LoadError> {
        if self.plan.args.topic.is_none() || self.plan.mode == Mode::Consume {
            return Ok(());
        }
        let plan = Plan {
            records: Some(u64::from(self.plan.partitions)),
            duration: None,
            ..self.plan.clone()
        };
        let done = self.drive_with(&plan, "probe", true, Vec::new(), &mut Silence)?;
        for (partition, start) in self.starts.iter_mut().enumerate() {
            *start = end_of(
                partition,
                done.produced.iter().flat_map(|produced| &produced.lanes),
                &[],
            );
        }
        Ok(())
    }

    /// What the server says it has stored, as far as it was acknowledged in order.
    pub(super) fn count(&mut self, done: &Done) -> Result<Tally, LoadError> {
        let placed = |produced: &Produced| produced.acknowledged - produced.misplaced;
        let mut verified: u64 = done.produced.iter().map(placed).sum();
        if let Some(admin) = &mut self.admin {
            let partitions = admin.partitions(&self.topic)?.unwrap_or_default();
            let ends = partitions
                .iter()
                .map(|partition| partition.log_end_offset.0);
            let stored: u64 = ends
                .zip(&self.starts)
                .map(|(end, start)| end.saturating_sub(*start))
                .sum();
            verified = if self.plan.args.ack == AckArg::None {
                stored
            } else {
                verified.min(stored)
            };
        }
        Ok(Tally {
            seen: verified,
            verified,
            ..Tally::default()
        })
    }

    /// Where each partition's records of this run end.
    pub(super) fn ends(&self, done: &Done) -> Vec<u64> {
        let lanes = || done.produced.iter().flat_map(|produced| &produced.lanes);
        (0..self.starts.len())
            .map(|partition| end_of(partition, lanes(), &self.starts))
            .collect()
    }

    /// The records that a given topic has.
    pub(super) fn readable(&mut self) -> Result<Vec<(u64, u64)>, LoadError> {
        let Some(admin) = &mut self.admin else {
            let (records, partitions) = (
                self.plan.records.unwrap_or(0),
                u64::from(self.plan.partitions),
            );
            let share =
                |partition| records / partitions + u64::from(partition < records % partitions);
            return Ok((0..partitions)
                .map(|partition| (0, share(partition)))
                .collect());
        };
        let partitions = admin.partitions(&self.topic)?.unwrap_or_default();
        let used = partitions.iter().take(self.starts.len());
        Ok(used
            .map(|partition| (partition.log_start_offset.0, partition.high_watermark.0))
            .collect())
    }
}

/// A name that nobody else uses.
pub(super) fn unused_name(number: u32) -> Result<TopicName, LoadError> {
    use std::hash::{BuildHasher as _, Hasher as _};
    // The seed of a new hash map's hasher differs from every other: enough for a name.
    let random = std::hash::RandomState::new().build_hasher().finish();
    let name = format!("basalt-bench-{}-{number}-{random:016x}", std::process::id());
    Ok(TopicName::new(&name)?)
}

/// Shows nothing.
struct Silence;

impl Progress for Silence {
    fn update(&mut self, _: &Standing) {}
    fn say(&mut self, _: &str) {}
    fn clear(&mut self) {}
}
