//! One run from its arguments to its report: the topic, the connections, the measured part, and the proof.

mod connections;
mod findings;
mod topic;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use basalt_proto::TopicName;

use crate::args::{LoadArgs, Mode, Plan, Protocol};
use crate::error::LoadError;
use crate::progress::Progress;
use crate::report::{Findings, Report};
use crate::ring::{RecordShape, Ring};
use crate::session::Admin;
use crate::stats::median_by;
use crate::verify::{Tally, Verify};
use crate::{limits, plot};
use topic::unused_name;

/// Runs a load, as often as it is to be repeated, and gives the report of the median run. Blocks; it may be told to stop
/// through `stop`, and then clears up behind itself.
///
/// # Errors
/// [`LoadError`] when there is no result. Records that are missing or wrong are a result: see [`Report::is_complete`].
pub fn run(
    mode: Mode,
    args: &LoadArgs,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<Report, LoadError> {
    let plan = Plan::new(mode, args)?;
    if let Some(path) = &args.plot {
        // A place that takes no file is found before the run, not after it.
        std::fs::write(path, "").map_err(LoadError::io("write the plot"))?;
    }
    let limits = if args.limits {
        let mut say = |what: &str| progress.say(what);
        Some(limits::measure(&args.limits_args, &mut say)?)
    } else {
        None
    };
    let mut reports = Vec::new();
    for number in 0..args.repeat {
        let report = Bench::set_up(plan.clone(), number, stop)?.run(progress)?;
        if args.repeat > 1 {
            let line = report.to_json().unwrap_or_default();
            progress.say(&format!("run {} of {}: {line}", number + 1, args.repeat));
        }
        reports.push(report);
    }
    let runs: Vec<_> = reports.iter().map(Report::as_run).collect();
    let incomplete = reports.iter().position(|report| !report.is_complete());
    let median = match incomplete {
        // A run that went wrong is what its user must see.
        Some(number) => Some(reports.swap_remove(number)),
        // In an open loop the rate is given, and latency is what differs.
        None if args.rate.is_some() => {
            median_by(reports, |report| report.line.p99_us.unwrap_or(0.0))
        }
        None => median_by(reports, |report| report.line.records_per_s),
    };
    let mut report = median.ok_or(LoadError::NothingToRead)?;
    if args.repeat > 1 {
        report.line.runs = runs;
    }
    if let Some(limits) = limits {
        report.set_limits(limits);
    }
    if let Some(path) = &args.plot {
        plot::draw(path, &report).map_err(LoadError::io("write the plot"))?;
    }
    Ok(report)
}

/// One run.
struct Bench<'a> {
    plan: Plan,
    topic: TopicName,
    /// The topic was made for this run, by this run.
    made: bool,
    admin: Option<Admin>,
    rings: Vec<Arc<Ring>>,
    /// By partition: where this run's records begin.
    starts: Vec<u64>,
    stop: &'a AtomicBool,
}

impl<'a> Bench<'a> {
    fn set_up(mut plan: Plan, number: u32, stop: &'a AtomicBool) -> Result<Self, LoadError> {
        let args = &plan.args;
        let shape = RecordShape {
            payload: args.payload,
            key_bytes: args.key,
            compressibility: args.compressibility,
        };
        let streams = plan.lanes().div_ceil(plan.partitions);
        let rings: Vec<_> = (0..streams)
            .map(|stream| Arc::new(Ring::new(&shape, stream)))
            .collect();
        let mean_frame_bytes = rings.first().map_or(1.0, |ring| ring.mean_frame_bytes());
        plan.fit_batch(mean_frame_bytes);
        let admin = match plan.args.protocol {
            Protocol::Session => Some(Admin::connect(&plan.args.server, plan.timeout)?),
            Protocol::Hermitmq => None,
        };
        let topic = match &plan.args.topic {
            Some(topic) => topic.clone(),
            None => unused_name(number)?,
        };
        let starts = vec![0; plan.partitions as usize];
        let mut bench = Self {
            plan,
            topic,
            made: false,
            admin,
            rings,
            starts,
            stop,
        };
        bench.find_topic()?;
        Ok(bench)
    }

    fn run(mut self, progress: &mut dyn Progress) -> Result<Report, LoadError> {
        let report = match self.plan.mode {
            Mode::Produce => self.produce(progress),
            Mode::Consume => self.consume(progress),
            Mode::Both | Mode::E2e => self.both(progress),
        };
        if self.made
            && !self.plan.args.keep
            && let Some(admin) = &mut self.admin
        {
            let deleted = admin.delete_topic(&self.topic);
            // What went wrong first is what is to be said.
            let report = report?;
            if let Err(error) = deleted {
                // A server may be busy with tens of gigabytes of it; the figures count all the same.
                progress.say(&format!("the topic {} stays: {error}", self.topic));
            }
            return Ok(report);
        }
        report
    }

    fn produce(&mut self, progress: &mut dyn Progress) -> Result<Report, LoadError> {
        let mut done = self.drive_with(&self.plan, "produce", true, Vec::new(), progress)?;
        let mut findings = self.findings(&mut done);
        let ends: Vec<u64> = self.ends(&done);
        let counted = self.plan.verify == Verify::Count;
        findings.tally = if counted {
            self.count(&done)?
        } else {
            self.read_back(&ends, progress)?
        };
        Ok(Report::new(&self.plan, findings))
    }

    fn consume(&mut self, progress: &mut dyn Progress) -> Result<Report, LoadError> {
        let mut prepared = Findings::default();
        let ranges: Vec<(u64, u64)> = if self.plan.args.topic.is_none() {
            let plan = Plan {
                duration: None,
                warmup: Duration::ZERO,
                ..self.plan.clone()
            };
            let mut done = self.drive_with(&plan, "prepare", true, Vec::new(), progress)?;
            prepared = self.findings(&mut done);
            self.starts.iter().copied().zip(self.ends(&done)).collect()
        } else {
            self.readable()?
        };
        if ranges.iter().all(|(start, end)| start == end) {
            return Err(LoadError::NothingToRead);
        }
        let chains = self.chains(&ranges, self.plan.duration.is_some());
        let expected: u64 = chains
            .iter()
            .flatten()
            .map(|chain| chain.verifier.end_offset() - chain.next_fetch)
            .sum();
        let mut done = self.drive_with(&self.plan, "consume", false, chains, progress)?;
        let mut findings = self.findings(&mut done);
        let covered = done.consumed.iter().map(|consumed| consumed.covered).sum();
        findings.expected = if self.plan.duration.is_some() {
            covered
        } else {
            expected
        };
        findings.seen = findings.tally.seen;
        findings.acknowledged = None;
        // What was not stored cannot be read, and what is read of the rest proves nothing.
        findings.refused = prepared.refused;
        findings.misplaced = prepared.misplaced;
        Ok(Report::new(&self.plan, findings))
    }

    fn both(&mut self, progress: &mut dyn Progress) -> Result<Report, LoadError> {
        let ranges: Vec<(u64, u64)> = self.starts.iter().map(|start| (*start, u64::MAX)).collect();
        let chains = self.chains(&ranges, false);
        let mut done =
            self.drive_with(&self.plan, self.plan.mode.as_str(), true, chains, progress)?;
        let mut findings = self.findings(&mut done);
        findings.seen = findings.tally.seen;
        Ok(Report::new(&self.plan, findings))
    }

    /// Reads what was produced, outside of all figures.
    fn read_back(&self, ends: &[u64], progress: &mut dyn Progress) -> Result<Tally, LoadError> {
        let ranges: Vec<(u64, u64)> = self
            .starts
            .iter()
            .copied()
            .zip(ends.iter().copied())
            .collect();
        let plan = Plan {
            duration: None,
            warmup: Duration::ZERO,
            ..self.plan.clone()
        };
        let done = self.drive_with(
            &plan,
            "verify",
            false,
            self.chains(&ranges, false),
            progress,
        )?;
        let mut tally = Tally::default();
        done.consumed
            .iter()
            .for_each(|consumed| tally.add(&consumed.tally));
        Ok(tally)
    }
}
