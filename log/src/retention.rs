//! What retention lets go: whole segments and files, oldest first.

use std::time::Duration;

use basalt_proto::Offset;

/// How much of a partition is kept.
///
/// A run's age counts from the broker's clock at its last append, never from record stamps: a record stamped in the far
/// future keeps nothing alive, and one stamped in the past is not deleted on arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// At most this many bytes of frames, in whole runs: the oldest run goes while the others still hold this much.
    pub bytes: Option<u64>,
    /// No run whose last append is longer ago.
    pub age: Option<Duration>,
}

/// A segment or a cold file, as retention sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionRun {
    /// First offset after it.
    pub end_offset: Offset,
    /// Bytes of its frames.
    pub bytes: u64,
    /// The broker's time of its last append, ns.
    pub appended_at_ns: u64,
}

/// Up to where the log may go: the end of the last run, counted from the oldest, that the policy lets go.
///
/// `runs` are sealed ones, oldest first; the active segment is never among them. Its bytes may be given in
/// `active_bytes` so that they count towards what is kept.
#[must_use]
pub fn expired_through(
    policy: &RetentionPolicy,
    runs: &[RetentionRun],
    active_bytes: u64,
    now_ns: u64,
) -> Option<Offset> {
    let mut kept = runs
        .iter()
        .fold(active_bytes, |sum, run| sum.saturating_add(run.bytes));
    let mut through = None;
    for run in runs {
        let kept_without = kept.saturating_sub(run.bytes);
        let too_many = policy.bytes.is_some_and(|bytes| kept_without >= bytes);
        let age_ns = u128::from(now_ns.saturating_sub(run.appended_at_ns));
        let too_old = policy.age.is_some_and(|age| age_ns > age.as_nanos());
        if !too_many && !too_old {
            break;
        }
        kept = kept_without;
        through = Some(run.end_offset);
    }
    through
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Vec<RetentionRun> {
        (1..=4)
            .map(|at| RetentionRun {
                end_offset: Offset(at * 10),
                bytes: 100,
                appended_at_ns: at * 1000,
            })
            .collect()
    }

    fn expired(bytes: Option<u64>, age_ns: Option<u64>, now_ns: u64) -> Option<u64> {
        let policy = RetentionPolicy {
            bytes,
            age: age_ns.map(Duration::from_nanos),
        };
        expired_through(&policy, &runs(), 50, now_ns).map(|offset| offset.0)
    }

    #[test]
    fn nothing_goes_without_a_policy() {
        assert_eq!(expired(None, None, u64::MAX), None);
    }

    #[test]
    fn bytes_keep_at_least_what_was_asked() {
        assert_eq!(expired(Some(450), None, 0), None);
        assert_eq!(expired(Some(350), None, 0), Some(10));
        assert_eq!(expired(Some(349), None, 0), Some(10));
        assert_eq!(expired(Some(250), None, 0), Some(20));
        assert_eq!(expired(Some(0), None, 0), Some(40));
    }

    #[test]
    fn age_counts_from_the_last_append_and_stops_at_the_first_young_run() {
        assert_eq!(expired(None, Some(500), 2500), Some(10));
        assert_eq!(expired(None, Some(500), 2501), Some(20));
        assert_eq!(expired(None, Some(500), 10_000), Some(40));
        // A clock set back keeps everything.
        assert_eq!(expired(None, Some(500), 0), None);
    }
}
