//! Elapsed time for the command line: the one place in this package that asks for the time.

use std::time::{Duration, Instant};

/// Started when made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "what a command took is shown to its user and decides nothing"
    )]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Now, as the producer's timestamp of a record: nanoseconds since the Unix epoch.
#[must_use]
pub fn wall_clock_ns() -> u64 {
    use basalt_log::Clock as _;
    basalt_log::SystemClock.now_ns()
}
