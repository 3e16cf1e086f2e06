//! The connections of a run: which lanes and which partitions each of them serves.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use basalt_proto::{GroupName, Opening, PartitionId};

use super::Bench;
use super::topic::unused_name;
use crate::args::{Mode, Plan, Protocol};
use crate::consume::{Begun, Chain, Consumer};
use crate::drive::{Done, MakeConsumer, MakeProducer, Work, drive};
use crate::error::LoadError;
use crate::produce::{Lane, Producer, head};
use crate::progress::Progress;
use crate::schedule::Schedule;
use crate::session::{connect, connect_session};
use crate::shared::SentAt;
use crate::verify::Verifier;

impl Bench<'_> {
    /// The chains of each connection that reads.
    pub(super) fn chains(&self, ranges: &[(u64, u64)], again: bool) -> Vec<Vec<Chain>> {
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

    pub(super) fn chain(&self, partition: usize, (start, end): (u64, u64), again: bool) -> Chain {
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
    pub(super) fn drive_with(
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
    pub(super) fn lanes(&self, plan: &Plan) -> Vec<Vec<Lane>> {
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
    pub(super) fn tie(
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

    pub(super) fn producer(
        &self,
        plan: &Plan,
        lanes: Vec<Lane>,
    ) -> Result<MakeProducer<'static>, LoadError> {
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

    pub(super) fn consumer(
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
                let group = GroupName::new(group.as_str())?;
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

    pub(super) fn open(&self, plan: &Plan, opening: &Opening) -> Result<TcpStream, LoadError> {
        let mut stream = connect(&plan.args.server, plan.timeout)?;
        let mut bytes = Vec::new();
        opening.encode_into(&mut bytes);
        stream
            .write_all(&bytes)
            .map_err(LoadError::io("open a connection"))?;
        Ok(stream)
    }
}
