//! Which files are clean, and since when: what a manifest remembers of passes.

use std::time::Duration;

use basalt_proto::Offset;
use serde::{Deserialize, Serialize};

use crate::file::offset_number;

/// So many passes are told apart. With more, two that follow each other count as the later one: tombstones of the earlier stay longer.
const MAX_PASSES: usize = 128;
/// Into so many steps the time that tombstones stay is divided: so much longer one of them may stay.
const STEPS: u128 = 32;

/// A pass, or some that need not be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cleaned {
    /// Files that end here at the latest, and behind the end of the one before, are clean.
    #[serde(with = "offset_number")]
    pub(crate) end_offset: Offset,
    /// Since when, in nanoseconds since the Unix epoch.
    pub(crate) at_ns: u64,
    /// The tombstones in them have gone, too.
    pub(crate) is_swept: bool,
}

/// Where dirty files begin.
pub(crate) fn clean_end_offset(cleaned: &[Cleaned]) -> Offset {
    cleaned
        .last()
        .map_or(Offset::ZERO, |cleaned| cleaned.end_offset)
}

/// The pass that made a file clean that ends at `end_offset`; `None` of a dirty one.
pub(super) fn since(cleaned: &[Cleaned], end_offset: Offset) -> Option<&Cleaned> {
    let at = cleaned.partition_point(|cleaned| cleaned.end_offset < end_offset);
    cleaned.get(at)
}

/// The ends of those whose tombstones have been there for long enough.
pub(super) fn sweepable(cleaned: &[Cleaned], retention: Duration, now_ns: u64) -> Vec<Offset> {
    let is_over = |cleaned: &&Cleaned| {
        let since_ns = now_ns.checked_sub(cleaned.at_ns);
        !cleaned.is_swept
            // A clock that was set back says nothing.
            && since_ns.is_some_and(|since_ns| u128::from(since_ns) >= retention.as_nanos())
    };
    let over = cleaned.iter().filter(is_over);
    over.map(|cleaned| cleaned.end_offset).collect()
}

/// What is to be remembered after a pass up to `end_offset` that took the tombstones of those that end at `swept`.
pub(super) fn after(
    cleaned: &[Cleaned],
    end_offset: Offset,
    swept: &[Offset],
    retention: Duration,
    now_ns: u64,
) -> Vec<Cleaned> {
    let mut all: Vec<Cleaned> = cleaned.to_vec();
    for one in &mut all {
        one.is_swept |= swept.contains(&one.end_offset);
    }
    if end_offset > clean_end_offset(cleaned) {
        // Passes that follow each other quickly count as one, as long as it does not grow old: the times of tombstones end in steps.
        let step_ns = retention.as_nanos() / STEPS;
        if let [.., before, last] = &all[..]
            && !last.is_swept
            && u128::from(now_ns.saturating_sub(before.at_ns)) < step_ns
        {
            all.pop();
        }
        all.push(Cleaned {
            end_offset,
            at_ns: now_ns,
            is_swept: false,
        });
    }
    let mut kept: Vec<Cleaned> = Vec::with_capacity(all.len());
    for one in all {
        match kept.last_mut() {
            Some(last) if last.is_swept && one.is_swept => *last = one,
            _ => kept.push(one),
        }
    }
    while kept.len() > MAX_PASSES {
        // Of what is not known to be swept nothing may be called so.
        let is_swept = kept[0].is_swept && kept[1].is_swept;
        kept[1].is_swept = is_swept;
        kept.remove(0);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(end: u64, at_ns: u64, is_swept: bool) -> Cleaned {
        Cleaned {
            end_offset: Offset(end),
            at_ns,
            is_swept,
        }
    }

    #[test]
    fn a_file_is_clean_since_the_pass_that_its_end_lies_in() {
        let passes = [cleaned(10, 1, false), cleaned(30, 2, false)];
        let since = |end| since(&passes, Offset(end)).map(|pass| pass.at_ns);
        assert_eq!(
            [since(5), since(10), since(11), since(30), since(31)],
            [Some(1), Some(1), Some(2), Some(2), None]
        );
    }

    #[test]
    fn tombstones_are_swept_once_their_time_is_over_and_only_once() {
        let passes = [cleaned(10, 100, false), cleaned(30, 200, false)];
        let retention = Duration::from_nanos(50);
        assert_eq!(sweepable(&passes, retention, 149), []);
        assert_eq!(sweepable(&passes, retention, 150), [Offset(10)]);
        assert_eq!(sweepable(&passes, retention, 99), []);
        let next = after(&passes, Offset(40), &[Offset(10)], retention, 300);
        assert_eq!(
            next,
            [
                cleaned(10, 100, true),
                cleaned(30, 200, false),
                cleaned(40, 300, false)
            ]
        );
        assert_eq!(sweepable(&next, retention, 260), [Offset(30)]);
        let last = after(&next, Offset(40), &[Offset(30)], retention, 400);
        assert_eq!(last, [cleaned(30, 200, true), cleaned(40, 300, false)]);
    }

    #[test]
    fn many_passes_are_told_apart_less_finely_and_none_too_early() {
        let mut passes = Vec::new();
        for pass in 1..=200 {
            passes = after(&passes, Offset(pass), &[], Duration::ZERO, pass * 10);
        }
        assert_eq!(passes.len(), MAX_PASSES);
        assert_eq!(clean_end_offset(&passes), Offset(200));
        for end in 1..=200 {
            assert!(since(&passes, Offset(end)).unwrap().at_ns >= end * 10);
        }
    }

    /// However often passes come, each tombstone's time is over at some time, and hardly too late.
    #[test]
    fn passes_that_never_end_let_tombstones_go() {
        let retention = Duration::from_nanos(3200);
        for every in [1, 7, 50, 130] {
            let mut passes = Vec::new();
            for pass in 1..=2000_u64 {
                let now = pass * every;
                let swept = sweepable(&passes, retention, now);
                passes = after(&passes, Offset(pass), &swept, retention, now);
                assert!(passes.len() <= MAX_PASSES);
                for end in 1..=pass {
                    let since = since(&passes, Offset(end)).unwrap();
                    let age = now - end * every;
                    assert!(since.is_swept || age <= 3200 + 2 * 100 + 2 * every, "{age}");
                    assert!(!since.is_swept || age >= 3200, "{age}");
                }
            }
        }
    }
}
