//! What the threads of a run found, put together.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Bench;
use crate::args::AckArg;
use crate::drive::Done;
use crate::report::{Findings, Measured};
use crate::stats::Count;

impl Bench<'_> {
    /// What the threads found, put together.
    pub(super) fn findings(&self, done: &mut Done) -> Findings {
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
