//! Progress of long work, on stderr: a bar on a terminal, a plain line every few seconds elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

use crate::stopwatch::Stopwatch;

const LINE_EVERY: Duration = Duration::from_secs(5);

/// Counts records and bytes of one piece of work.
pub(crate) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    started: Stopwatch,
    lines_shown: u32,
    records: u64,
    bytes: u64,
}

impl Progress {
    /// `total_bytes` is known for files and not for pipes; `quiet` shows nothing at all.
    pub(crate) fn new(what: &'static str, total_bytes: Option<u64>, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = total_bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let template = if total_bytes.is_some() {
                "{prefix} {bar:32} {percent:>3}% {bytes}/{total_bytes} {bytes_per_sec} {msg} eta {eta}"
            } else {
                "{prefix} {spinner} {bytes} {bytes_per_sec} {msg}"
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(what);
            bar
        });
        Self {
            what,
            bar,
            started: Stopwatch::start(),
            lines_shown: u32::from(quiet) * u32::MAX,
            records: 0,
            bytes: 0,
        }
    }

    /// Adds what was done since the last call.
    pub(crate) fn add(&mut self, records: u64, bytes: u64) {
        self.records += records;
        self.bytes += bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(self.bytes);
            bar.set_message(format!("{} records", HumanCount(self.records)));
            return;
        }
        let due = LINE_EVERY.saturating_mul(self.lines_shown.saturating_add(1));
        if self.lines_shown != u32::MAX && self.started.elapsed() >= due {
            self.lines_shown += 1;
            eprintln!(
                "{}: {} records, {} so far",
                self.what,
                HumanCount(self.records),
                HumanBytes(self.bytes)
            );
        }
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Removes the bar, so that what is printed next stands on a line of its own.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `5,027 records, 1.44 MiB in 0.12 s (41,891 records/s, 12.0 MiB/s)`
pub(crate) fn rate(records: u64, bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    format!(
        "{} records, {} in {:.2} s ({} records/s, {}/s)",
        HumanCount(records),
        HumanBytes(bytes),
        seconds,
        HumanCount(whole(records as f64 / seconds)),
        HumanBytes(whole(bytes as f64 / seconds)),
    )
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for a human; `as` saturates"
)]
fn whole(value: f64) -> u64 {
    value as u64
}
