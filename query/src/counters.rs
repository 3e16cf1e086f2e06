//! What the engine has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of queries since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueryCounters {
    /// Arrived.
    pub started: u64,
    /// Gave their last row.
    pub succeeded: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Were dropped by their reader before their last row.
    pub cancelled: u64,
    /// Plan or run now.
    pub running: u64,
    /// Wait for a place now.
    pub queued: u64,
    /// Bytes that they hold now in sorts, joins and aggregates.
    pub memory_bytes: u64,
    /// Bytes of their spill files now.
    pub spill_bytes: u64,
    /// Rows handed out.
    pub rows: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    rows: AtomicU64,
}

/// How a query ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Succeeded,
    Failed,
    Cancelled,
}

impl Counters {
    pub(crate) fn start(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Succeeded => &self.succeeded,
            Outcome::Failed => &self.failed,
            Outcome::Cancelled => &self.cancelled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn rows(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> QueryCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (succeeded, failed, cancelled) = (
            load(&self.succeeded),
            load(&self.failed),
            load(&self.cancelled),
        );
        // Read last: a query that ends meanwhile is then still counted as started.
        let started = load(&self.started);
        QueryCounters {
            started,
            succeeded,
            failed,
            cancelled,
            rows: load(&self.rows),
            ..QueryCounters::default()
        }
    }
}
