//! How many bytes may be hot.
//!
//! What is appended is hot until it is cooled, and while the store is slow or away that grows. The budget bounds it for all
//! partitions together: beyond it appends are refused as on a full disk, and admitted again as segments are released.
//!
//! - **COL-33**: an append that would take the hot bytes over the limit is refused before anything of it is stored. From three
//!   quarters of the limit on, and from a refusal until an append is taken again, hot windows do not count: whatever is sealed is
//!   cooled, so that a limit below the sum of all hot windows refuses nothing while the store keeps up, and a large append gets its
//!   room however little is hot.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use basalt_log::{AppendError, Appended, Durability, Sequence, Sequenced};
use basalt_proto::FrameBatch;

use crate::partition::TieredPartition;

/// Counts bytes of frames in hot segments. Appends and releases are counted as they happen; what is counted wrongly meanwhile is put
/// right by the next [`Budget::recount`].
#[derive(Debug)]
pub(crate) struct Budget {
    /// 0 for none.
    limit_bytes: u64,
    hot_bytes: AtomicU64,
    /// Appends are being refused: said once.
    refusing: AtomicBool,
}

impl Budget {
    pub(crate) const fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            hot_bytes: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
        }
    }

    /// Takes `bytes` for an append. `refused_now` is called when it is the first to be refused.
    ///
    /// # Errors
    /// [`AppendError::BudgetFull`].
    pub(crate) fn admit(&self, bytes: u64, refused_now: impl FnOnce()) -> Result<(), AppendError> {
        if self.limit_bytes == 0 {
            return Ok(());
        }
        let taken = self.hot_bytes.fetch_add(bytes, Ordering::Relaxed);
        let hot_bytes = taken.saturating_add(bytes);
        if hot_bytes <= self.limit_bytes {
            if self.refusing.load(Ordering::Relaxed) {
                self.refusing.store(false, Ordering::Relaxed);
                tracing::info!(
                    hot_bytes,
                    limit_bytes = self.limit_bytes,
                    "appends are taken again"
                );
            }
            return Ok(());
        }
        self.give_back(bytes);
        if !self.refusing.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                hot_bytes = taken,
                limit_bytes = self.limit_bytes,
                "appends are refused until segments have been cooled: the limit of hot bytes is reached"
            );
            refused_now();
        }
        Err(AppendError::BudgetFull {
            hot_bytes: taken,
            limit_bytes: self.limit_bytes,
        })
    }

    /// What was admitted is not there, or not any more.
    pub(crate) fn give_back(&self, bytes: u64) {
        let _ = self
            .hot_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |hot_bytes| {
                Some(hot_bytes.saturating_sub(bytes))
            });
    }

    /// Puts right what was counted: there are `hot_bytes` in segments.
    pub(crate) fn recount(&self, hot_bytes: u64) {
        self.hot_bytes.store(hot_bytes, Ordering::Relaxed);
    }

    /// Whether hot windows do not count for now.
    pub(crate) fn is_pressed(&self) -> bool {
        self.refusing.load(Ordering::Relaxed) || self.is_nearly_full()
    }

    fn is_nearly_full(&self) -> bool {
        self.limit_bytes > 0 && self.hot_bytes.load(Ordering::Relaxed) > self.limit_bytes / 4 * 3
    }

    /// How large an active segment must be to be sealed under pressure, when nothing else can be cooled: among `partitions` of
    /// them at least one is, if there is much in all. If there is little, an append was refused that needs even that room.
    pub(crate) fn seal_from_bytes(&self, partitions: usize) -> u64 {
        match self.is_nearly_full() {
            true => (self.limit_bytes / 2 / (partitions.max(1) as u64)).max(1),
            false => 1,
        }
    }
}

impl TieredPartition {
    /// Appends frames to the hot part, unless too much is hot already (COL-33). All else as [`Partition::append`].
    ///
    /// # Errors
    /// [`AppendError::BudgetFull`]: nothing was appended, and a later append may succeed. Others as [`Partition::append`].
    pub fn append(
        &self,
        batch: &FrameBatch<'_>,
        durability: Durability,
    ) -> Result<Appended, AppendError> {
        let bytes = batch.bytes().len() as u64;
        let wake = || self.shared.wake.notify_one();
        self.shared.budget.admit(bytes, wake)?;
        let appended = self.hot.append(batch, durability);
        if appended.is_err() {
            self.shared.budget.give_back(bytes);
        }
        appended
    }

    /// [`Partition::append_sequenced`] within the same bounds. What is stored already is found even where nothing more is taken.
    ///
    /// # Errors
    /// As [`TieredPartition::append`] and [`Partition::append_sequenced`].
    pub fn append_sequenced(
        &self,
        batch: &FrameBatch<'_>,
        sequence: &Sequence,
        durability: Durability,
    ) -> Result<Sequenced, AppendError> {
        if let Some(stored) = self.hot.find_sequence(sequence)? {
            return Ok(Sequenced::Stored(stored));
        }
        let bytes = batch.bytes().len() as u64;
        let wake = || self.shared.wake.notify_one();
        self.shared.budget.admit(bytes, wake)?;
        let appended = self.hot.append_sequenced(batch, sequence, durability);
        if !matches!(appended, Ok(Sequenced::New(_))) {
            self.shared.budget.give_back(bytes);
        }
        appended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_fits_again_after_a_release() {
        let budget = Budget::new(100);
        let mut said = 0;
        budget.admit(60, || said += 1).unwrap();
        assert!(!budget.is_pressed());
        budget.admit(40, || said += 1).unwrap();
        assert!(budget.is_pressed());
        for _ in 0..2 {
            let refused = budget.admit(1, || said += 1).unwrap_err();
            assert_eq!(refused.kind(), basalt_proto::ErrorKind::StorageFull);
        }
        assert_eq!(said, 1, "once for a run of refusals");
        budget.give_back(60);
        budget.admit(60, || said += 1).unwrap();
        assert!(budget.admit(1, || said += 1).is_err());
        assert_eq!(said, 2);
        budget.recount(10);
        budget.admit(90, || said += 1).unwrap();
    }

    #[test]
    fn without_a_limit_nothing_is_refused_or_pressed() {
        let budget = Budget::new(0);
        budget.admit(u64::MAX, || ()).unwrap();
        budget.admit(u64::MAX, || ()).unwrap();
        assert!(!budget.is_pressed());
    }
}
