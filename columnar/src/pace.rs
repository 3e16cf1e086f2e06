//! How fast the cold tier asks things of a store: more at a time with more to do, fairly, and hardly anything while it fails.
//!
//! - **COL-34**: after a failure of a store nothing is uploaded for a while that doubles with each further one, up to a minute,
//!   with as much again of chance in it as not, so that servers that failed together do not come back together. One success ends it.
//! - **COL-35**: each free place goes to the topic that has waited longest for one, and in it to the partition whose oldest segment
//!   is oldest: a topic waits for one segment of every other at most, however much those have to do.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

/// The first rest after a failure.
const FIRST_REST_NS: u64 = 1_000_000_000;
/// The longest.
const LONGEST_REST_NS: u64 = 60_000_000_000;

/// Whether the store is left alone.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Failing>);

#[derive(Debug, Default)]
struct Failing {
    /// Since the last success.
    failures: u32,
    until_ns: u64,
    /// Since the start.
    failures_total: u64,
}

impl Pace {
    /// The store has failed at `now_ns`; `chance` is any number.
    pub(crate) fn failed(&self, now_ns: u64, chance: u64) {
        let mut failing = self.0.lock();
        let doubled = FIRST_REST_NS << failing.failures.min(6);
        failing.failures = failing.failures.saturating_add(1);
        failing.failures_total += 1;
        let longest = doubled.min(LONGEST_REST_NS);
        let rest_ns = longest / 2 + chance % (longest / 2);
        failing.until_ns = now_ns.saturating_add(rest_ns);
    }

    /// The store has done what it was asked.
    pub(crate) fn succeeded(&self) {
        let mut failing = self.0.lock();
        (failing.failures, failing.until_ns) = (0, 0);
    }

    /// How often the store has failed.
    pub(crate) fn failures_total(&self) -> u64 {
        self.0.lock().failures_total
    }

    /// How long it is still left alone, if it is.
    pub(crate) fn rests(&self, now_ns: u64) -> Option<Duration> {
        let left_ns = self.0.lock().until_ns.saturating_sub(now_ns);
        // More can be left only if the clock was set back.
        (left_ns > 0 && left_ns <= LONGEST_REST_NS).then(|| Duration::from_nanos(left_ns))
    }
}

/// How many segments are cooled at a time: one for every two that wait, all places when room is scarce.
pub(crate) fn places(backlog_bytes: u64, segment_bytes: u64, pressed: bool, most: usize) -> usize {
    if pressed {
        return most;
    }
    let waiting = backlog_bytes / segment_bytes.saturating_mul(2).max(1);
    usize::try_from(waiting)
        .unwrap_or(most)
        .saturating_add(1)
        .min(most)
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    now: u64,
    /// When each topic had its last.
    last: HashMap<u64, u64>,
}

/// A partition that has something to cool.
#[derive(Debug, Clone)]
pub(crate) struct Candidate<T> {
    pub(crate) topic_id: u64,
    /// When its oldest segment was last appended to.
    pub(crate) oldest_ns: u64,
    pub(crate) partition: T,
}

impl Turns {
    /// Gives the turn to one of `candidates`, and takes it from them (COL-35).
    pub(crate) fn next<T>(&mut self, candidates: &mut Vec<Candidate<T>>) -> Option<T> {
        let waiting = candidates.iter().enumerate();
        let (next, _) = waiting.min_by_key(|(_, candidate)| {
            let last = self.last.get(&candidate.topic_id);
            (last.copied().unwrap_or(0), candidate.oldest_ns)
        })?;
        let next = candidates.swap_remove(next);
        self.now += 1;
        self.last.insert(next.topic_id, self.now);
        Some(next.partition)
    }

    /// Forgets topics that are not there any more.
    pub(crate) fn keep(&mut self, is_there: impl Fn(u64) -> bool) {
        self.last.retain(|topic_id, _| is_there(*topic_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_store_is_left_alone_for_longer_and_longer_and_never_beyond_a_minute() {
        let pace = Pace::default();
        assert_eq!(pace.rests(0), None);
        let mut before = 0;
        for failures in 0..10 {
            let now_ns = u64::from(failures as u32) * 1_000_000_000_000;
            for chance in [0, u64::MAX] {
                let pace = Pace::default();
                (0..=failures).for_each(|_| pace.failed(now_ns, chance));
                let rest = pace.rests(now_ns).unwrap();
                assert!(rest >= Duration::from_millis(500) && rest <= Duration::from_secs(60));
            }
            pace.failed(now_ns, 0);
            let rest_ns = pace.rests(now_ns).unwrap().as_nanos();
            assert!(rest_ns >= before);
            before = rest_ns;
        }
        assert_eq!(
            before, 30_000_000_000,
            "half of a minute without any chance"
        );
        pace.succeeded();
        assert_eq!(pace.rests(0), None);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_stop_it_for_ever() {
        let pace = Pace::default();
        pace.failed(1 << 62, 0);
        assert_eq!(pace.rests(0), None);
    }

    #[test]
    fn a_huge_topic_and_many_partitions_starve_nobody() {
        let mut turns = Turns::default();
        // Topic 1 has a hundred partitions with older segments than topic 2, topic 3 comes late.
        let mut served = Vec::new();
        for round in 0..12 {
            let mut candidates: Vec<_> = (0..100)
                .map(|partition| Candidate {
                    topic_id: 1,
                    oldest_ns: partition,
                    partition: (1, partition),
                })
                .collect();
            candidates.push(Candidate {
                topic_id: 2,
                oldest_ns: 1000,
                partition: (2, 0),
            });
            if round >= 6 {
                candidates.push(Candidate {
                    topic_id: 3,
                    oldest_ns: 2000,
                    partition: (3, 0),
                });
            }
            served.push(turns.next(&mut candidates).unwrap());
        }
        let topics: Vec<_> = served.iter().map(|(topic, _)| *topic).collect();
        assert_eq!(topics, [1, 2, 1, 2, 1, 2, 3, 1, 2, 3, 1, 2]);
        assert!(
            served.iter().all(|(_, partition)| *partition == 0),
            "oldest first"
        );
        turns.keep(|topic_id| topic_id == 2);
        assert_eq!(turns.last.len(), 1);
    }

    #[test]
    fn more_places_are_used_as_the_backlog_grows() {
        let segment = 128 << 20;
        assert_eq!(places(segment, segment, false, 4), 1);
        assert_eq!(places(2 * segment, segment, false, 4), 2);
        assert_eq!(places(100 * segment, segment, false, 4), 4);
        assert_eq!(places(0, segment, true, 4), 4);
        assert_eq!(places(u64::MAX, 0, false, 2), 2);
    }
}
