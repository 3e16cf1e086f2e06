//! The figures of a run, as one JSON line.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::args::{AckArg, DurabilityArg, Mode, Plan, Protocol};
use crate::drive::Sample;
use crate::limits::Limits;
use crate::payload::PayloadSize;
use crate::stats::{Count, Latencies, LatencySummary, rounded};
use crate::verify::{Tally, Verify};

/// What a run did, and what of it was found right.
#[derive(Clone, Debug)]
pub struct Report {
    /// The JSON line.
    pub line: Line,
    /// From sending, or from when a record was due, to its acknowledgement.
    pub ack: Latencies,
    /// The same to its arrival at a reader.
    pub arrival: Latencies,
    pub(crate) samples: Vec<Sample>,
}

/// Counts and time of one side of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) count: Count,
    pub(crate) elapsed: Duration,
}

impl Measured {
    fn per_second(&self, amount: f64) -> f64 {
        amount / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn records_per_s(&self) -> f64 {
        rounded(self.per_second(self.count.records as f64), 0)
    }

    pub(crate) fn mb_per_s(&self) -> f64 {
        rounded(self.per_second(self.count.frame_bytes as f64 / 1e6), 1)
    }
}

/// What a [`Report`] is made of.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) expected: u64,
    pub(crate) seen: u64,
    pub(crate) acknowledged: Option<u64>,
    pub(crate) misplaced: u64,
    pub(crate) tally: Tally,
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) silent: bool,
    pub(crate) produced: Option<Measured>,
    pub(crate) consumed: Option<Measured>,
    /// Cores that this process kept busy while it was measured.
    pub(crate) client_cores: f64,
    pub(crate) ack: Latencies,
    pub(crate) arrival: Latencies,
    pub(crate) samples: Vec<Sample>,
}

/// The last line of every run. Rates and latencies leave the warm-up out; counts do not.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/BENCHMARKS.md explains the fields")]
pub struct Line {
    pub bench: &'static str,
    pub records_per_s: f64,
    pub mb_per_s: f64,
    pub p50_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    pub p9999_us: Option<f64>,
    pub max_us: Option<f64>,
    pub expected: u64,
    pub seen: u64,
    pub verified: u64,
    pub acknowledged: Option<u64>,
    pub missing: u64,
    pub doubled: u64,
    pub changed: u64,
    pub reordered: u64,
    /// Records acknowledged at offsets that were not the next ones.
    pub misplaced: u64,
    /// Records refused by the server, by the reason it gave.
    pub server_errors: BTreeMap<String, u64>,
    pub seconds: f64,
    pub consumed_records_per_s: Option<f64>,
    pub consumed_mb_per_s: Option<f64>,
    pub ack_latency: Option<LatencySummary>,
    pub arrival_latency: Option<LatencySummary>,
    pub client_cores: f64,
    /// The longest time for which the thread that looks at the counters ten times a second was not run: a machine that
    /// stands still, as rented ones do, spoils figures.
    pub longest_pause_s: f64,
    pub protocol: Protocol,
    pub payload: PayloadSize,
    pub key: u32,
    pub compressibility: f64,
    pub connections: u32,
    pub partitions: u32,
    pub batch: u32,
    pub pipeline: u32,
    pub rate: Option<u64>,
    pub ack: AckArg,
    pub durability: Option<DurabilityArg>,
    pub verify: Verify,
    pub fetch_bytes: u32,
    pub warmup: f64,
    pub repeat: u32,
    /// All runs in order, if there was more than one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What was reached, as parts of the limits.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ratios: BTreeMap<&'static str, f64>,
    /// The server sent nothing more, although not all had come.
    pub silent: bool,
}

/// One of several runs.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/BENCHMARKS.md explains the fields")]
pub struct Run {
    pub records_per_s: f64,
    pub mb_per_s: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub verified: u64,
}

impl Line {
    fn new(plan: &Plan, findings: &Findings) -> Self {
        let args = &plan.args;
        let main = findings.produced.or(findings.consumed).unwrap_or_default();
        let (ack_latency, arrival_latency) = (findings.ack.summary(), findings.arrival.summary());
        let latency = if plan.mode == Mode::E2e {
            arrival_latency
        } else {
            ack_latency
        };
        // Of a run that only reads, the reading is the main figure and stands there.
        let beside = findings.produced.and(findings.consumed);
        Self {
            bench: plan.mode.as_str(),
            records_per_s: main.records_per_s(),
            mb_per_s: main.mb_per_s(),
            p50_us: latency.map(|latency| latency.p50_us),
            p90_us: latency.map(|latency| latency.p90_us),
            p99_us: latency.map(|latency| latency.p99_us),
            p999_us: latency.map(|latency| latency.p999_us),
            p9999_us: latency.map(|latency| latency.p9999_us),
            max_us: latency.map(|latency| latency.max_us),
            expected: findings.expected,
            seen: findings.seen,
            verified: findings.tally.verified,
            acknowledged: findings.acknowledged,
            missing: findings.tally.missing,
            doubled: findings.tally.doubled,
            changed: findings.tally.changed,
            reordered: findings.tally.reordered,
            misplaced: findings.misplaced,
            server_errors: findings.refused.clone(),
            seconds: rounded(main.elapsed.as_secs_f64(), 3),
            consumed_records_per_s: beside.map(|beside| beside.records_per_s()),
            consumed_mb_per_s: beside.map(|beside| beside.mb_per_s()),
            ack_latency,
            arrival_latency,
            client_cores: rounded(findings.client_cores, 2),
            longest_pause_s: rounded(longest_pause_s(&findings.samples), 1),
            protocol: args.protocol,
            payload: args.payload,
            key: args.key,
            compressibility: args.compressibility,
            connections: args.connections,
            partitions: plan.partitions,
            batch: plan.batch,
            pipeline: plan.pipeline,
            rate: args.rate,
            ack: args.ack,
            durability: args.durability,
            verify: plan.verify,
            fetch_bytes: args.fetch_bytes,
            warmup: args.warmup,
            repeat: args.repeat,
            runs: Vec::new(),
            limits: None,
            ratios: BTreeMap::new(),
            silent: findings.silent,
        }
    }
}

impl Report {
    pub(crate) fn new(plan: &Plan, findings: Findings) -> Self {
        Self {
            line: Line::new(plan, &findings),
            ack: findings.ack,
            arrival: findings.arrival,
            samples: findings.samples,
        }
    }

    /// Whether every record was acknowledged, where that was asked for, and came back right.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let line = &self.line;
        line.expected > 0
            && line.seen == line.expected
            && line.verified == line.expected
            && line
                .acknowledged
                .is_none_or(|acknowledged| acknowledged == line.expected)
            && line.server_errors.is_empty()
            && line.missing + line.doubled + line.changed + line.reordered + line.misplaced == 0
            && !line.silent
    }

    /// The JSON line, without line feed.
    ///
    /// # Errors
    /// None that these types can give.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.line)
    }

    pub(crate) fn as_run(&self) -> Run {
        let line = &self.line;
        Run {
            records_per_s: line.records_per_s,
            mb_per_s: line.mb_per_s,
            p50_us: line.p50_us,
            p99_us: line.p99_us,
            verified: line.verified,
        }
    }

    /// Adds the limits of the machine, and what was reached as parts of them.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        let line = &mut self.line;
        let consumed = match line.bench {
            "consume" => Some(line.mb_per_s),
            _ => line.consumed_mb_per_s,
        };
        if line.bench != "consume" {
            line.ratios
                .insert("produced_to_tcp", part(line.mb_per_s, limits.tcp_mb_per_s));
            line.ratios.insert(
                "produced_to_disk_write",
                part(line.mb_per_s, limits.disk_write_mb_per_s),
            );
        }
        if let Some(consumed) = consumed {
            line.ratios.insert(
                "consumed_to_sendfile",
                part(consumed, limits.sendfile_mb_per_s),
            );
            line.ratios.insert(
                "consumed_to_sendfile_walk",
                part(consumed, limits.sendfile_walk_mb_per_s),
            );
        }
        if let Some(p50_us) = line.p50_us {
            line.ratios
                .insert("p50_to_round_trip", part(p50_us, limits.round_trip_us));
            line.ratios.insert(
                "p50_to_fdatasync",
                part(p50_us, limits.fdatasync_appended_p50_us),
            );
        }
        line.limits = Some(limits);
    }
}

fn longest_pause_s(samples: &[Sample]) -> f64 {
    let gaps = samples
        .windows(2)
        .map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns));
    gaps.max().unwrap_or(0) as f64 / 1e9
}

fn part(value: f64, of: f64) -> f64 {
    if of > 0.0 {
        rounded(value / of, 3)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_machine_is_told() {
        let at = |at_ns| Sample {
            at_ns,
            ..Sample::default()
        };
        let samples = [at(0), at(100_000_000), at(4_100_000_000), at(4_200_000_000)];
        assert!((longest_pause_s(&samples) - 4.0).abs() < 1e-9);
        assert!(longest_pause_s(&[]).abs() < 1e-9);
    }
}
