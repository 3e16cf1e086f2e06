//! What the threads of a run share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Timeline;
use crate::error::LoadError;

/// The part of a run that figures are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The end of the warm-up, in ns since the start.
    pub(crate) from_ns: u64,
    /// When nothing more is begun; `u64::MAX` if records bound the run.
    pub(crate) until_ns: u64,
}

impl Window {
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }
}

/// What every thread of a run knows.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    pub(crate) timeline: Timeline,
    pub(crate) window: Window,
    /// Silence of the server that ends a run.
    pub(crate) timeout: Duration,
    /// Set by whoever asked for the run.
    pub(crate) stop: &'a AtomicBool,
    /// Set by a thread that failed: the others need not go on.
    pub(crate) failed: AtomicBool,
}

impl Shared<'_> {
    /// # Errors
    /// [`LoadError::Stopped`] once the run is to end early.
    pub(crate) fn go_on(&self) -> Result<(), LoadError> {
        if self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed) {
            return Err(LoadError::Stopped);
        }
        Ok(())
    }

    /// # Errors
    /// [`LoadError::Silent`] if nothing came since `heard_ns` for too long.
    pub(crate) fn still_heard(
        &self,
        heard_ns: u64,
        now_ns: u64,
        when: &'static str,
    ) -> Result<(), LoadError> {
        let silence = Duration::from_nanos(now_ns.saturating_sub(heard_ns));
        if silence > self.timeout {
            return Err(LoadError::Silent {
                seconds: silence.as_secs_f64(),
                when,
            });
        }
        Ok(())
    }
}

/// Requests remembered at a time; readers further behind than this have no latency measured.
const REMEMBERED: usize = 1 << 16;
const NUMBER_BITS: u32 = 16;

/// When the requests of a closed loop were sent, for a reader that meets their records again.
#[derive(Debug)]
pub(crate) struct SentAt {
    batch: u64,
    /// The time in ns, shifted, and below it the low bits of the request's number, which tell whether it is the right one.
    times: Vec<AtomicU64>,
}

impl SentAt {
    /// For requests of `batch` records each; only the last may have fewer.
    pub(crate) fn new(batch: u32) -> Self {
        Self {
            batch: u64::from(batch),
            times: (0..REMEMBERED).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }

    fn slot(&self, request: u64) -> &AtomicU64 {
        // The remainder is below the length of a vector in memory.
        let slot = usize::try_from(request % REMEMBERED as u64).unwrap_or(0);
        &self.times[slot]
    }

    fn tag(request: u64) -> u64 {
        (request / REMEMBERED as u64) & ((1 << NUMBER_BITS) - 1)
    }

    pub(crate) fn set(&self, first_record: u64, now_ns: u64) {
        let request = first_record / self.batch;
        self.slot(request).store(
            now_ns << NUMBER_BITS | Self::tag(request),
            Ordering::Release,
        );
    }

    /// When the record was sent, and how many from it on were sent with it.
    pub(crate) fn get(&self, record: u64) -> (Option<u64>, u64) {
        let request = record / self.batch;
        let found = self.slot(request).load(Ordering::Acquire);
        let right = found & ((1 << NUMBER_BITS) - 1) == Self::tag(request) && found != u64::MAX;
        (
            right.then_some(found >> NUMBER_BITS),
            self.batch - record % self.batch,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_forgotten_has_no_time() {
        let sent = SentAt::new(10);
        assert_eq!(sent.get(0), (None, 10));
        sent.set(20, 77);
        assert_eq!(sent.get(20), (Some(77), 10));
        assert_eq!(sent.get(29), (Some(77), 1));
        assert_eq!(sent.get(30), (None, 10));
        let later = 20 + 10 * REMEMBERED as u64;
        assert_eq!(
            sent.get(later),
            (None, 10),
            "the slot holds an older request"
        );
        sent.set(later, 99);
        assert_eq!(sent.get(later), (Some(99), 10));
        assert_eq!(sent.get(20), (None, 10));
    }
}
