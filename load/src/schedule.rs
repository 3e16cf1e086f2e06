//! When each record of an open loop is due: fixed before the run, whatever the server does.

const NANOSECONDS: u64 = 1_000_000_000;

/// The due times of one lane's records. All lanes share the rate and take turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    rate: u64,
    lanes: u64,
    lane: u64,
}

impl Schedule {
    /// `rate` records per second in all, of which lane `lane` of `lanes` sends its share.
    pub(crate) fn new(rate: u64, lanes: u32, lane: u32) -> Self {
        Self {
            rate: rate.max(1),
            lanes: u64::from(lanes.max(1)),
            lane: u64::from(lane),
        }
    }

    /// When the lane's record of this number is due, in ns since the start of the run.
    #[inline]
    pub(crate) fn due_ns(&self, number: u64) -> u64 {
        let turn = number.saturating_mul(self.lanes).saturating_add(self.lane);
        match turn.checked_mul(NANOSECONDS) {
            Some(scaled) => scaled / self.rate,
            None => {
                u64::try_from(u128::from(turn) * u128::from(NANOSECONDS) / u128::from(self.rate))
                    .unwrap_or(u64::MAX)
            }
        }
    }

    /// How many of the lane's records are due at `now_ns`.
    pub(crate) fn due_count(&self, now_ns: u64) -> u64 {
        let turns =
            ((u128::from(now_ns) + 1) * u128::from(self.rate)).div_ceil(u128::from(NANOSECONDS));
        let turns = u64::try_from(turns).unwrap_or(u64::MAX);
        turns.saturating_sub(self.lane).div_ceil(self.lanes)
    }

    /// Time between two records of the lane, in ns.
    pub(crate) fn interval_ns(&self) -> u64 {
        self.lanes.saturating_mul(NANOSECONDS) / self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_records_whose_time_has_come_are_due() {
        for (rate, lanes) in [
            (1, 1),
            (3, 2),
            (1_000, 1),
            (999_983, 7),
            (10_000_000, 3),
            (2_000_000_000, 2),
        ] {
            for lane in 0..lanes {
                let schedule = Schedule::new(rate, lanes, lane);
                for now_ns in [0, 1, 999, 1_000_000, 1_234_567_891, 86_400_000_000_000] {
                    let count = schedule.due_count(now_ns);
                    assert!(
                        count == 0 || schedule.due_ns(count - 1) <= now_ns,
                        "{schedule:?} {now_ns}"
                    );
                    assert!(schedule.due_ns(count) > now_ns, "{schedule:?} {now_ns}");
                }
            }
        }
    }

    #[test]
    fn the_lanes_together_keep_the_rate() {
        let one_second = NANOSECONDS - 1;
        let all: u64 = (0..7)
            .map(|lane| Schedule::new(100_003, 7, lane).due_count(one_second))
            .sum();
        assert_eq!(all, 100_003);
    }

    #[test]
    fn times_do_not_wrap_after_very_many_records() {
        let schedule = Schedule::new(1_000_000_000, 1, 0);
        assert_eq!(schedule.due_ns(100_000_000_000), 100_000_000_000);
        assert_eq!(schedule.interval_ns(), 1);
    }
}
