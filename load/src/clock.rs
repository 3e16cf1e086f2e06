//! Time of a run: nanoseconds since its start, and how to sleep until one of them without being late.

use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// A thread that sleeps wakes this much before it is due and spends the rest awake, where that is rare enough: a timer of a
/// virtual machine fires 15 to 25 us late.
const AWAKE: Duration = Duration::from_micros(40);
/// Waking less often than this, being awake for [`AWAKE`] costs at most half a core.
const RARE: Duration = Duration::from_micros(80);
/// A thread that has slept wakes no sooner than after this: each wake-up costs microseconds of a core that the server is to
/// have. What came due meanwhile leaves together, and its latency counts from when it was due.
const TICK: Duration = Duration::from_micros(50);

/// Nanoseconds since the start of a run. Copies share the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline(Instant);

impl Timeline {
    /// Starts now.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time that passes is what a load generator measures"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        nanoseconds(self.0.elapsed())
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How long to sleep before something that is due in `early`, when such things are `interval` apart. The rest is to be
/// spent awake.
pub(crate) fn sleep_for(early: Duration, interval: Duration) -> Duration {
    if interval >= RARE {
        early.saturating_sub(AWAKE)
    } else {
        early.max(TICK)
    }
}

/// Lets this thread's timers fire when they are due: by default Linux may let them wait for 50 microseconds.
pub(crate) fn wake_precisely() {
    // Refused, the thread wakes later, and the latencies say so.
    let _ = prctl::set_timerslack(1);
}

/// Processor time this process has used so far, in user and kernel mode.
pub(crate) fn processor_time() -> Duration {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| {
        let microseconds =
            usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
    })
}
