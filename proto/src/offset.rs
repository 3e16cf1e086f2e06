//! Where a record stands: its partition, and its offset in it. Never a byte position.

use std::fmt;

/// The position of a record in its partition, counted in records from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub u64);

impl Offset {
    /// The first offset of every partition.
    pub const ZERO: Self = Self(0);
    /// The largest offset a partition may reach: what Kafka's signed 64-bit offsets can name.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// The offset `count` records further on; `None` when that passes `u64::MAX`.
    #[must_use]
    pub const fn checked_add(self, count: u64) -> Option<Self> {
        match self.0.checked_add(count) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The offset `count` records further on, at most `u64::MAX`.
    #[must_use]
    pub const fn saturating_add(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// How many records lie in `[earlier, self)`; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a partition in its topic, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
