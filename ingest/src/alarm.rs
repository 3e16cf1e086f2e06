//! A timer for waits that nearly always end before it: set again and again, and yet hardly ever touched.
//!
//! Setting one of the runtime's timers takes a lock, and mostly a system call to wake the thread that sleeps until the
//! next one. So a timer that was set is left as it is while waits come and go, and asked what it is for when it fires.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Debug, Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Returns once `deadline` has passed. Dropped before, it leaves the timer set: later deadlines cost nothing until
    /// then.
    pub(crate) async fn at(&mut self, deadline: Instant) {
        loop {
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if sleep.deadline() > deadline {
                sleep.as_mut().reset(deadline);
            }
            sleep.as_mut().await;
            let reached = sleep.deadline();
            self.sleep = None;
            if reached >= deadline {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn rings_at_the_deadline_it_was_last_given() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut alarm = Alarm::default();
        assert!(poll!(std::pin::pin!(alarm.at(at(20)))).is_pending());
        assert!(poll!(std::pin::pin!(alarm.at(at(40)))).is_pending());
        let set = alarm.sleep.as_ref().map(|sleep| sleep.deadline());
        assert_eq!(set, Some(at(20)), "a later deadline leaves the timer alone");
        alarm.at(at(50)).await;
        assert!(Instant::now() >= at(50));
        assert!(poll!(std::pin::pin!(alarm.at(at(60_000)))).is_pending());
        alarm.at(at(60)).await;
        assert!(Instant::now() < at(30_000), "an earlier deadline counts");
        assert!(alarm.sleep.is_none());
    }
}
