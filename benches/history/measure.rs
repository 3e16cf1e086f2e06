//! Time, processor time, memory and disk writes of this process, and medians.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use basalt::stopwatch::Stopwatch;

/// Runs of which the median is shown.
pub(crate) const RUNS: usize = 5;

/// Seconds that `work` takes.
pub(crate) fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let watch = Stopwatch::start();
    let result = work();
    (watch.elapsed().as_secs_f64(), result)
}

/// The middle one; the upper of two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The value below which this part of them lies.
pub(crate) fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of the length is an index"
    )]
    let index = (part * values.len() as f64) as usize;
    values[index.min(values.len() - 1)]
}

/// Medians of each of two, run in turn so that both see the same machine: an unmeasured run of each first.
pub(crate) fn in_turn(mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64) {
    ours();
    theirs();
    let (mut our_seconds, mut their_seconds) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        our_seconds.push(seconds(&mut ours).0);
        their_seconds.push(seconds(&mut theirs).0);
    }
    (median(our_seconds), median(their_seconds))
}

pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Processor seconds of all threads of a process.
pub(crate) fn processor_seconds(process: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("/proc");
    let (_, fields) = text.rsplit_once(')').expect("a name in brackets");
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    // The kernel's unit for user space, on every Linux of today.
    ticks as f64 / 100.0
}

/// Bytes that a process has sent towards the disk.
pub(crate) fn written_bytes(process: &str) -> u64 {
    number_after(&format!("/proc/{process}/io"), "write_bytes:")
}

/// Bytes that a process has read by system calls, from the disk or from memory.
pub(crate) fn read_bytes(process: &str) -> u64 {
    number_after(&format!("/proc/{process}/io"), "rchar:")
}

/// A field of a process's memory, which `/proc` has in kB.
pub(crate) fn status_bytes(process: &str, field: &str) -> u64 {
    number_after(&format!("/proc/{process}/status"), field) * 1024
}

fn number_after(path: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("/proc");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .expect("the field");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

/// Looks at how much memory of its own (not of mapped files) the process holds, until it is asked.
pub(crate) struct PeakMemory {
    before: u64,
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl PeakMemory {
    pub(crate) fn watch() -> Self {
        let now = || status_bytes("self", "RssAnon:");
        let before = now();
        let peak = Arc::new(AtomicU64::new(before));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (peak, stop) = (Arc::clone(&peak), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    peak.fetch_max(now(), Ordering::Relaxed);
                    std::thread::park_timeout(Duration::from_millis(2));
                }
            })
        };
        Self {
            before,
            peak,
            stop,
            thread,
        }
    }

    /// The largest growth since the start.
    pub(crate) fn growth(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().expect("it only looks");
        self.peak
            .load(Ordering::Relaxed)
            .saturating_sub(self.before)
    }
}
