//! One run from its arguments to its report: the topic, the connections, the measured part, and the proof.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use basalt_proto::{GroupName, Opening, PartitionId, TopicName};

use crate::args::{AckArg, LoadArgs, Mode, Plan, Protocol};
use crate::consume::{Begun, Chain, Consumer};
use crate::drive::{Done, MakeConsumer, MakeProducer, Work, drive, end_of};
use crate::error::LoadError;
use crate::produce::{Lane, Producer, head};
use crate::progress::Progress;
use crate::report::{Findings, Measured, Report};
use crate::ring::{RecordShape, Ring};
use crate::schedule::Schedule;
use crate::session::{Admin, connect, connect_session};
use crate::shared::SentAt;
use crate::stats::{Count, median_by};
use crate::verify::{Tally, Verifier, Verify};
use crate::{limits, plot};

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
    let limits = if args.limits {
        Some(limits::measure(&args.limits_args, &mut |what| {
            eprintln!("{what}")
        })?)
    } else {
        None
    };
    let mut reports = Vec::new();
    for number in 0..args.repeat {
        let report = Bench::set_up(plan.clone(), number, stop)?.run(progress)?;
        if args.repeat > 1 {
            eprintln!(
                "run {} of {}: {}",
                number + 1,
                args.repeat,
                report.to_json().unwrap_or_default()
            );
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

    /// Makes the topic if it is not there, and finds out where this run's records will begin in it.
    fn find_topic(&mut self) -> Result<(), LoadError> {
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
    fn probe(&mut self) -> Result<(), LoadError> {
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
            deleted?;
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
            mode: Mode::Both,
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

    /// What the server says it has stored, as far as it was acknowledged in order.
    fn count(&mut self, done: &Done) -> Result<Tally, LoadError> {
        let placed =
            |produced: &crate::produce::Produced| produced.acknowledged - produced.misplaced;
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
    fn ends(&self, done: &Done) -> Vec<u64> {
        let lanes = || done.produced.iter().flat_map(|produced| &produced.lanes);
        (0..self.starts.len())
            .map(|partition| end_of(partition, lanes(), &self.starts))
            .collect()
    }

    /// The records that a given topic has.
    fn readable(&mut self) -> Result<Vec<(u64, u64)>, LoadError> {
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

    /// The chains of each connection that reads.
    fn chains(&self, ranges: &[(u64, u64)], again: bool) -> Vec<Vec<Chain>> {
        let readers = self.plan.readers() as usize;
        let partitions = ranges.len();
        let of_reader = |reader: usize| {
            let own: Vec<usize> = if partitions >= readers {
                (reader..partitions).step_by(readers).collect()
            } else {
                vec![reader % partitions]
            };
            own.into_iter()
                .map(|partition| self.chain(partition, ranges[partition], again))
                .collect()
        };
        (0..readers).map(of_reader).collect()
    }

    fn chain(&self, partition: usize, (start, end): (u64, u64), again: bool) -> Chain {
        // There are at most 4096.
        let number = u32::try_from(partition).unwrap_or(u32::MAX);
        let verifier = Verifier::new(self.plan.verify, &self.rings, number, start, end);
        let again = again.then(|| verifier.clone());
        Chain {
            partition: number,
            verifier,
            again,
            end: None,
            begun: Vec::new(),
            next_fetch: start,
            turn: false,
        }
    }

    /// Sends, reads, or both, with new connections.
    fn drive_with(
        &self,
        plan: &Plan,
        what: &'static str,
        produce: bool,
        mut chains: Vec<Vec<Chain>>,
        progress: &mut dyn Progress,
    ) -> Result<Done, LoadError> {
        let reading = !chains.is_empty();
        let ends: Vec<_> = self
            .starts
            .iter()
            .map(|_| Arc::new(AtomicU64::new(u64::MAX)))
            .collect();
        let mut producers: Vec<MakeProducer<'_>> = Vec::new();
        if produce {
            for mut lanes in self.lanes(plan) {
                self.tie(plan, &mut lanes, &mut chains, &ends);
                producers.push(self.producer(plan, lanes)?);
            }
        }
        let mut consumers: Vec<MakeConsumer<'_>> = Vec::new();
        for chains in chains {
            consumers.push(self.consumer(plan, chains)?);
        }
        let work = Work {
            what,
            warmup: plan.warmup,
            duration: plan.duration,
            timeout: plan.timeout,
            total_records: plan.records,
            stop: self.stop,
            ends: if produce && reading { ends } else { Vec::new() },
            starts: &self.starts,
        };
        drive(&work, producers, consumers, progress)
    }

    /// The lanes of each connection that sends.
    fn lanes(&self, plan: &Plan) -> Vec<Vec<Lane>> {
        let (count, connections, partitions) =
            (plan.lanes(), plan.args.connections, plan.partitions);
        let lane = |number: u32| {
            let partition = number % partitions;
            let ring = Arc::clone(&self.rings[(number / partitions) as usize]);
            let quota = plan.records.map_or(u64::MAX, |records| {
                let count = u64::from(count);
                records / count + u64::from(u64::from(number) < records % count)
            });
            let in_requests = plan.args.protocol == Protocol::Session;
            let alone = count <= partitions || partitions + number >= count && number < partitions;
            Lane {
                partition,
                place: ring.phase(partition),
                ring,
                sent: 0,
                quota,
                schedule: plan
                    .args
                    .rate
                    .filter(|_| plan.mode != Mode::Consume)
                    .map(|rate| Schedule::new(rate, count, number)),
                sent_at: None,
                head: if in_requests {
                    head(&self.topic, partition, plan.args.ack.level())
                } else {
                    Vec::new()
                },
                alone,
                next_offset: in_requests.then(|| self.starts[partition as usize]),
                first_offset: None,
            }
        };
        let of_connection = |connection| {
            (connection..count)
                .step_by(connections as usize)
                .map(lane)
                .collect()
        };
        (0..connections).map(of_connection).collect()
    }

    /// Lets those who read a lane's partition know when its records were begun, and when they end.
    fn tie(
        &self,
        plan: &Plan,
        lanes: &mut [Lane],
        chains: &mut [Vec<Chain>],
        ends: &[Arc<AtomicU64>],
    ) {
        for lane in lanes {
            for chain in chains
                .iter_mut()
                .flatten()
                .filter(|chain| chain.partition == lane.partition)
            {
                let end = &ends[lane.partition as usize];
                if plan.lanes() <= plan.partitions && lane.quota < u64::MAX {
                    end.store(
                        self.starts[lane.partition as usize] + lane.quota,
                        Ordering::Release,
                    );
                }
                chain.end = Some(Arc::clone(end));
                // Lanes come in the order of their streams within a partition: connection after connection.
                chain.begun.push(match lane.schedule {
                    Some(schedule) => Begun::Due(schedule),
                    None => Begun::Sent(Arc::clone(
                        lane.sent_at
                            .get_or_insert_with(|| Arc::new(SentAt::new(plan.batch))),
                    )),
                });
            }
        }
    }

    fn producer(&self, plan: &Plan, lanes: Vec<Lane>) -> Result<MakeProducer<'static>, LoadError> {
        let partition = lanes.first().map_or(0, |lane| lane.partition);
        let stream = match plan.args.protocol {
            Protocol::Session => connect_session(&plan.args.server, plan.timeout)?,
            Protocol::Hermitmq => self.open(
                plan,
                &Opening::Produce {
                    topic: self.topic.clone(),
                    partition: PartitionId(partition),
                },
            )?,
        };
        let (protocol, ack, batch, pipeline) =
            (plan.args.protocol, plan.args.ack, plan.batch, plan.pipeline);
        Ok(Box::new(move |shared, counter| Producer {
            shared,
            counter,
            stream,
            protocol,
            ack,
            batch,
            pipeline,
            lanes,
        }))
    }

    fn consumer(
        &self,
        plan: &Plan,
        chains: Vec<Chain>,
    ) -> Result<MakeConsumer<'static>, LoadError> {
        let partition = chains.first().map_or(0, |chain| chain.partition);
        let stream = match plan.args.protocol {
            Protocol::Session => connect_session(&plan.args.server, plan.timeout)?,
            Protocol::Hermitmq => {
                let group = unused_name(partition)?;
                // A group that never committed begins at the beginning.
                let group = GroupName::new(group.as_str()).map_err(|_| LoadError::NothingToRead)?;
                self.open(
                    plan,
                    &Opening::Consume {
                        group,
                        topic: self.topic.clone(),
                        partition: PartitionId(partition),
                    },
                )?
            }
        };
        let (protocol, topic, fetch_bytes, level) = (
            plan.args.protocol,
            self.topic.clone(),
            plan.args.fetch_bytes,
            plan.verify,
        );
        Ok(Box::new(move |shared, counter| Consumer {
            shared,
            counter,
            stream,
            protocol,
            topic,
            fetch_bytes,
            level,
            chains,
        }))
    }

    fn open(&self, plan: &Plan, opening: &Opening) -> Result<TcpStream, LoadError> {
        let mut stream = connect(&plan.args.server, plan.timeout)?;
        let mut bytes = Vec::new();
        opening.encode_into(&mut bytes);
        stream
            .write_all(&bytes)
            .map_err(LoadError::io("open a connection"))?;
        Ok(stream)
    }

    /// What the threads found, put together.
    fn findings(&self, done: &mut Done) -> Findings {
        let waited = self.plan.args.ack != AckArg::None;
        let mut findings = Findings {
            samples: std::mem::take(&mut done.samples),
            ..Findings::default()
        };
        let mut refused = BTreeMap::new();
        let (mut sent_until_ns, mut read_until_ns) = (0, 0);
        let mut acknowledged = 0;
        for produced in &done.produced {
            findings.expected += produced.sent;
            acknowledged += produced.acknowledged;
            findings.misplaced += produced.misplaced;
            findings.ack.add(&produced.latencies);
            sent_until_ns = sent_until_ns.max(produced.ended_ns);
            for (kind, count) in &produced.refused {
                *refused.entry(kind.to_string()).or_default() += count;
            }
        }
        for consumed in &done.consumed {
            findings.tally.add(&consumed.tally);
            findings.arrival.add(&consumed.latencies);
            findings.silent |= consumed.silent;
            read_until_ns = read_until_ns.max(consumed.ended_ns);
        }
        findings.refused = refused;
        findings.acknowledged = waited.then_some(acknowledged);
        findings.seen = if waited {
            acknowledged
        } else {
            findings.expected
        };
        let until = done.until.unwrap_or(done.last);
        let measured = |count: Count, until_ns: u64| Measured {
            count,
            elapsed: Duration::from_nanos(
                if done.until.is_some() {
                    until.at_ns
                } else {
                    until_ns
                }
                .saturating_sub(done.from.at_ns),
            ),
        };
        if !done.produced.is_empty() {
            findings.produced = Some(measured(
                until.produced.since(done.from.produced),
                sent_until_ns,
            ));
        }
        if !done.consumed.is_empty() {
            findings.consumed = Some(measured(
                until.consumed.since(done.from.consumed),
                read_until_ns,
            ));
        }
        let elapsed = Duration::from_nanos(until.at_ns.saturating_sub(done.from.at_ns));
        let busy = until.processor.saturating_sub(done.from.processor);
        findings.client_cores = busy.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        findings
    }
}

/// A name that nobody else uses.
fn unused_name(number: u32) -> Result<TopicName, LoadError> {
    use std::hash::{BuildHasher as _, Hasher as _};
    // The seed of a new hash map's hasher differs from every other: enough for a name.
    let random = std::hash::RandomState::new().build_hasher().finish();
    let name = format!("basalt-bench-{}-{number}-{random:016x}", std::process::id());
    TopicName::new(&name).map_err(|_| LoadError::NothingToRead)
}

/// Shows nothing.
struct Silence;

impl Progress for Silence {
    fn update(&mut self, _: &crate::progress::Standing) {}
    fn clear(&mut self) {}
}
