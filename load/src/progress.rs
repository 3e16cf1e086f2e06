//! How a run tells its user where it is.

use std::time::Duration;

use crate::stats::Count;

/// Where a run is.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// What is being done, in a word.
    pub what: &'static str,
    /// Records stored so far.
    pub produced: Count,
    /// Records read so far.
    pub consumed: Count,
    /// Records that will be done in all, if records bound the run.
    pub total_records: Option<u64>,
    /// Time since the start.
    pub elapsed: Duration,
    /// Time in all, if time bounds the run.
    pub planned: Option<Duration>,
}

/// Whoever shows progress. Called about ten times a second, from the thread that called [`crate::run`].
pub trait Progress {
    /// Shows where the run is.
    fn update(&mut self, standing: &Standing);
    /// Says what comes next, or what has just ended, in a line.
    fn say(&mut self, line: &str);
    /// Removes what would be in the way of other output.
    fn clear(&mut self);
}

/// A plain line on stderr every few seconds.
#[derive(Debug, Default)]
pub struct PlainLines {
    shown: Option<(Duration, Count, Count)>,
}

const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress for PlainLines {
    fn update(&mut self, standing: &Standing) {
        let (at, produced, consumed) = self.shown.unwrap_or_default();
        let Some(passed) = standing
            .elapsed
            .checked_sub(at)
            .filter(|passed| *passed >= LINE_EVERY)
        else {
            return;
        };
        self.shown = Some((standing.elapsed, standing.produced, standing.consumed));
        let rate =
            |now: Count, before: Count| now.since(before).records as f64 / passed.as_secs_f64();
        let of =
            |bound: Option<String>| bound.map_or_else(String::new, |bound| format!(" of {bound}"));
        eprintln!(
            "{}: {:.0}{} s: {} records stored ({:.0}/s), {} read ({:.0}/s){}",
            standing.what,
            standing.elapsed.as_secs_f64(),
            of(standing
                .planned
                .map(|planned| format!("{:.0}", planned.as_secs_f64()))),
            standing.produced.records,
            rate(standing.produced, produced),
            standing.consumed.records,
            rate(standing.consumed, consumed),
            of(standing.total_records.map(|total| total.to_string())),
        );
    }

    fn say(&mut self, line: &str) {
        eprintln!("{line}");
    }

    fn clear(&mut self) {
        self.shown = None;
    }
}
