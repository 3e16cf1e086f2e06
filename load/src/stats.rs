//! Latencies, and counts that threads raise while others look.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies above are recorded as this: an hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// Latencies in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        // These bounds and digits are valid; the fallback grows when it has to.
        let histogram = Histogram::new_with_bounds(1, MAX_LATENCY_NS, DIGITS)
            .or_else(|_| Histogram::new(DIGITS));
        match histogram {
            Ok(histogram) => Self(histogram),
            Err(error) => unreachable!("a histogram of {DIGITS} digits is refused: {error}"),
        }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, latency_ns: u64, count: u64) {
        self.0.saturating_record_n(latency_ns.max(1), count);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Made with the same bounds, so that adding cannot fail.
        self.0.add(&other.0).unwrap_or_default();
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency, in microseconds, that the part `quantile` (0 to 1) of all is not above.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        rounded(self.0.value_at_quantile(quantile) as f64 / 1e3, 1)
    }

    /// The usual figures; `None` if nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<LatencySummary> {
        (!self.is_empty()).then(|| LatencySummary {
            p50_us: self.quantile_us(0.5),
            p90_us: self.quantile_us(0.9),
            p99_us: self.quantile_us(0.99),
            p999_us: self.quantile_us(0.999),
            p9999_us: self.quantile_us(0.9999),
            max_us: rounded(self.0.max() as f64 / 1e3, 1),
            mean_us: rounded(self.0.mean() / 1e3, 1),
            count: self.0.len(),
        })
    }
}

/// Figures of latencies, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say all")]
pub struct LatencySummary {
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub p9999_us: f64,
    pub max_us: f64,
    pub mean_us: f64,
    pub count: u64,
}

/// What one thread has done so far. On a line of the cache of its own, so that threads do not slow each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counter {
    records: AtomicU64,
    frame_bytes: AtomicU64,
}

impl Counter {
    pub(crate) fn add(&self, records: u64, frame_bytes: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.frame_bytes.fetch_add(frame_bytes, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Count {
        Count {
            records: self.records.load(Ordering::Relaxed),
            frame_bytes: self.frame_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Records and the bytes of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Records.
    pub records: u64,
    /// Bytes of their frames.
    pub frame_bytes: u64,
}

impl Count {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            frame_bytes: self.frame_bytes + other.frame_bytes,
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            records: self.records.saturating_sub(earlier.records),
            frame_bytes: self.frame_bytes.saturating_sub(earlier.frame_bytes),
        }
    }
}

pub(crate) fn sum(counters: &[Counter]) -> Count {
    counters
        .iter()
        .map(Counter::get)
        .fold(Count::default(), Count::plus)
}

/// More digits are more than a run can repeat.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// The middle one of some figures, the lower of two; `None` of none.
pub(crate) fn median_by<T>(mut values: Vec<T>, key: impl Fn(&T) -> f64) -> Option<T> {
    if values.is_empty() {
        return None;
    }
    values.sort_by(|left, right| key(left).total_cmp(&key(right)));
    let middle = (values.len() - 1) / 2;
    Some(values.swap_remove(middle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_three_digits_and_parts_add_up() {
        let (mut all, mut other) = (Latencies::default(), Latencies::default());
        for latency_us in 1..=5_000_u64 {
            all.record(latency_us * 1_000, 1);
            other.record((latency_us + 5_000) * 1_000, 1);
        }
        all.add(&other);
        let summary = all.summary().unwrap();
        for (found, expected) in [
            (summary.p50_us, 5_000.0),
            (summary.p90_us, 9_000.0),
            (summary.p99_us, 9_900.0),
            (summary.p999_us, 9_990.0),
            (summary.p9999_us, 9_999.0),
            (summary.max_us, 10_000.0),
            (summary.mean_us, 5_000.5),
        ] {
            assert!(
                (found / expected - 1.0).abs() < 0.001,
                "{found}, expected {expected}"
            );
        }
        assert_eq!(summary.count, 10_000);
        assert_eq!(Latencies::default().summary(), None);
    }

    #[test]
    fn a_latency_of_nothing_and_one_of_days_are_still_counted() {
        let mut latencies = Latencies::default();
        latencies.record(0, 2);
        latencies.record(u64::MAX, 1);
        assert_eq!(latencies.summary().unwrap().count, 3);
    }

    #[test]
    fn the_median_is_one_of_the_runs() {
        assert_eq!(median_by(vec![3.0, 1.0, 2.0], |value| *value), Some(2.0));
        assert_eq!(
            median_by(vec![4.0, 1.0, 2.0, 3.0], |value| *value),
            Some(2.0)
        );
        assert_eq!(median_by(Vec::<f64>::new(), |value| *value), None);
    }
}
