//! The threads that run group commits and seal segments, and the queue they take partitions from.
//!
//! A partition is queued at most once: appends that come while it waits are covered by the same fsync, and those that
//! come while it syncs queue it again. Nothing is polled: an idle log's threads sleep until the queue wakes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::LogConfig;
use crate::disk::Disk;
use crate::partition::Partition;

/// What all partitions of a log share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: LogConfig,
    pub(crate) queue: SyncQueue,
    /// Counts segments that were sealed.
    pub(crate) seals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct SyncQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    ready: VecDeque<Arc<Partition>>,
    /// Few: one for each partition at level `os` with unflushed records, or whose sealing is to be tried again.
    delayed: Vec<(Instant, Arc<Partition>)>,
    stopped: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread's wake-up is real time, not the log's; simulations run without threads"
)]
fn monotonic() -> Instant {
    Instant::now()
}

impl SyncQueue {
    /// Queues a partition for a thread.
    pub(crate) fn push(&self, partition: Arc<Partition>) {
        self.state.lock().ready.push_back(partition);
        self.wake.notify_one();
    }

    /// Queues a partition for later.
    pub(crate) fn push_delayed(&self, partition: Arc<Partition>, delay: Duration) {
        let at = monotonic() + delay;
        self.state.lock().delayed.push((at, partition));
        // The sleeping thread may have to wake earlier than it knew.
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Arc<Partition>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(partition) = state.ready.pop_front() {
                return Some(partition);
            }
            let due = state
                .delayed
                .iter()
                .enumerate()
                .min_by_key(|(_, (at, _))| *at)
                .map(|(index, (at, _))| (index, *at));
            match due {
                Some((index, at)) if at <= monotonic() => {
                    return Some(state.delayed.swap_remove(index).1);
                }
                Some((_, at)) => {
                    self.wake.wait_until(&mut state, at);
                }
                None => self.wake.wait(&mut state),
            }
        }
    }

    /// Lets the threads end and forgets what is queued.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let forgotten = (
            std::mem::take(&mut state.ready),
            std::mem::take(&mut state.delayed),
        );
        drop(state);
        drop(forgotten);
        self.wake.notify_all();
    }
}

/// One thread's life.
pub(crate) fn run(shared: &Shared) {
    while let Some(partition) = shared.queue.next() {
        partition.run_queued();
    }
}
