//! The figures of a bench.

use std::time::Duration;

use basalt_proto::FRAME_HEADER_BYTES;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{AckArg, BenchArgs};
use crate::output::say;

/// Latencies in nanoseconds, to three digits.
pub(super) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

/// What was done, and what of it was found right.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) bench: &'static str,
    pub(super) args: BenchArgs,
    pub(super) elapsed: Duration,
    /// Records the bench was to see.
    pub(super) expected: u64,
    /// Records acknowledged, or received.
    pub(super) seen: u64,
    /// Those of them that were checked and right.
    pub(super) verified: u64,
    pub(super) payload_bytes: u64,
    pub(super) latencies: Option<Histogram<u64>>,
}

impl Report {
    pub(super) fn is_complete(&self) -> bool {
        self.seen == self.expected && self.verified == self.expected
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let frame_bytes = self.payload_bytes as f64 + self.seen as f64 * FRAME_HEADER_BYTES as f64;
        let quantile = |quantile: f64| {
            let latencies = self
                .latencies
                .as_ref()
                .filter(|latencies| !latencies.is_empty());
            latencies
                .map(|latencies| rounded(latencies.value_at_quantile(quantile) as f64 / 1e3, 1))
        };
        let line = Line {
            bench: self.bench,
            records_per_s: rounded(self.seen as f64 / seconds, 0),
            mb_per_s: rounded(frame_bytes / 1e6 / seconds, 1),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            expected: self.expected,
            seen: self.seen,
            verified: self.verified,
            seconds: rounded(seconds, 3),
            payload: self.args.payload,
            connections: self.args.connections,
            rate: self.args.rate,
            ack: match self.args.ack {
                None => "topic",
                Some(AckArg::Fsync) => "fsync",
                Some(AckArg::Os) => "os",
                Some(AckArg::None) => "none",
            },
        };
        say(&serde_json::to_string(&line)?)
    }
}

/// The last line of every bench.
#[derive(Serialize)]
struct Line {
    bench: &'static str,
    records_per_s: f64,
    mb_per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    expected: u64,
    seen: u64,
    verified: u64,
    seconds: f64,
    payload: u32,
    connections: u32,
    rate: Option<u64>,
    ack: &'static str,
}

/// More digits are more than a bench can repeat.
fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
