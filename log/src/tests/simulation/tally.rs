//! What happened in histories, counted: so that a test can say that nothing of it was forgotten.

/// How often what happened.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) appends: u64,
    pub(super) refused: u64,
    pub(super) seals: u64,
    pub(super) releases: u64,
    pub(super) others: u64,
    pub(super) process_losses: u64,
    pub(super) power_losses: u64,
    pub(super) cut_operations: u64,
    pub(super) cut_recoveries: u64,
    pub(super) topics_made: u64,
    pub(super) rotten: u64,
    pub(super) refused_reads: u64,
    /// Reads that began inside of a frame.
    pub(super) inside: u64,
    /// Readers that stood still and were looked at.
    pub(super) pinned: u64,
}

impl Tally {
    fn fields(&mut self) -> [&mut u64; 15] {
        [
            &mut self.steps,
            &mut self.appends,
            &mut self.refused,
            &mut self.seals,
            &mut self.releases,
            &mut self.others,
            &mut self.process_losses,
            &mut self.power_losses,
            &mut self.cut_operations,
            &mut self.cut_recoveries,
            &mut self.topics_made,
            &mut self.rotten,
            &mut self.refused_reads,
            &mut self.inside,
            &mut self.pinned,
        ]
    }

    pub(super) fn add(&mut self, mut other: Self) {
        for (sum, more) in self.fields().into_iter().zip(other.fields()) {
            *sum += *more;
        }
    }

    #[cfg(test)]
    pub(super) fn assert_everything_happened(&mut self) {
        let zero = self.fields().iter().any(|count| **count == 0);
        assert!(!zero, "something never happened: {self:?}");
    }
}
