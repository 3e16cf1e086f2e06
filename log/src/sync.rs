//! The threads beside the appenders: one that runs group commits, and some that settle, seal, make segments ahead and run
//! checkpoints of the write-ahead log; and the queues they take partitions from.
//!
//! A partition is queued at most once in each: appends that come while it waits are covered by the same sync, and those
//! that come while it syncs queue it again. Nothing is polled: an idle log's threads sleep until a queue wakes them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::LogConfig;
use crate::disk::Disk;
use crate::index::BootField;
use crate::partition::{Partition, commit_group};
use crate::wal::Wal;

/// What all partitions of a log share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: LogConfig,
    pub(crate) queue: SyncQueue,
    pub(crate) wal: Wal,
    /// Held by the thread that runs a checkpoint.
    pub(crate) checkpointing: Mutex<()>,
    /// The boot in which this process runs.
    pub(crate) boot: BootField,
    /// Counts segments that were sealed.
    pub(crate) seals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct SyncQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
    wake_commits: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    commits: Vec<Arc<Partition>>,
    ready: VecDeque<Arc<Partition>>,
    checkpoint: bool,
    /// By when it is due and a number that tells two apart: partitions at level `os` with unflushed records, or whose sealing is
    /// to be tried again.
    delayed: BTreeMap<(Instant, u64), Arc<Partition>>,
    next_delayed: u64,
    stopped: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread's wake-up is real time, not the log's; simulations run without threads"
)]
fn monotonic() -> Instant {
    Instant::now()
}

enum Task {
    Partition(Arc<Partition>),
    /// One that was queued for later.
    Due(Arc<Partition>),
    Checkpoint,
}

impl SyncQueue {
    /// Queues a partition for the next group commit.
    pub(crate) fn push_commit(&self, partition: Arc<Partition>) {
        let mut state = self.state.lock();
        if state.stopped {
            return;
        }
        state.commits.push(partition);
        let first = state.commits.len() == 1;
        drop(state);
        if first {
            self.wake_commits.notify_one();
        }
    }

    /// Waits for partitions that want a commit and takes them all; `None` once the queue has stopped.
    fn next_group(&self) -> Option<Vec<Arc<Partition>>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if !state.commits.is_empty() {
                return Some(std::mem::take(&mut state.commits));
            }
            self.wake_commits.wait(&mut state);
        }
    }

    /// Has a thread empty the full files of the write-ahead log.
    pub(crate) fn push_checkpoint(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.checkpoint, true) {
            self.wake.notify_one();
        }
    }

    /// Queues a partition for a thread.
    pub(crate) fn push(&self, partition: Arc<Partition>) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.ready.push_back(partition);
            self.wake.notify_one();
        }
    }

    /// Queues a partition for later.
    pub(crate) fn push_delayed(&self, partition: Arc<Partition>, delay: Duration) {
        let at = monotonic() + delay;
        let mut state = self.state.lock();
        if state.stopped {
            return;
        }
        let number = state.next_delayed;
        state.next_delayed += 1;
        state.delayed.insert((at, number), partition);
        // The sleeping thread may have to wake earlier than it knew.
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Task> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            // What others bring about comes first, or those who always have something ready would keep it from ever being done.
            if std::mem::take(&mut state.checkpoint) {
                return Some(Task::Checkpoint);
            }
            let due = state.delayed.first_key_value().map(|((at, _), _)| *at);
            if due.is_some_and(|at| at <= monotonic())
                && let Some((_, partition)) = state.delayed.pop_first()
            {
                return Some(Task::Due(partition));
            }
            if let Some(partition) = state.ready.pop_front() {
                return Some(Task::Partition(partition));
            }
            match due {
                Some(at) => drop(self.wake.wait_until(&mut state, at)),
                None => self.wake.wait(&mut state),
            }
        }
    }

    /// Lets the threads end and forgets what is queued.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let forgotten = (
            std::mem::take(&mut state.commits),
            std::mem::take(&mut state.ready),
            std::mem::take(&mut state.delayed),
        );
        drop(state);
        drop(forgotten);
        self.wake.notify_all();
        self.wake_commits.notify_all();
    }
}

/// The life of a thread that does disk work.
pub(crate) fn run(shared: &Shared) {
    while let Some(task) = shared.queue.next() {
        match task {
            Task::Partition(partition) => partition.run_queued(),
            Task::Due(partition) => partition.run_due(),
            Task::Checkpoint => checkpoint(shared),
        }
    }
}

/// The life of the thread that commits.
pub(crate) fn run_commits(shared: &Shared) {
    while let Some(partitions) = shared.queue.next_group() {
        commit_group(shared, partitions);
    }
}

/// Settles the partitions that full files of the write-ahead log know of, and gives the files free (LOG-14).
pub(crate) fn checkpoint(shared: &Shared) {
    // One is enough: whoever is at it takes the files that fill up meanwhile.
    let Some(_alone) = shared.checkpointing.try_lock() else {
        return;
    };
    while let Some(file) = shared.wal.take_full() {
        if !Partition::checkpoint(&file.partitions(), file.file()) {
            // A partition takes no more appends, or the disk is full: another checkpoint, or the next open, puts it right.
            shared.wal.keep(file);
        } else {
            shared.wal.recycle(file);
        }
    }
    shared.wal.make_spare();
}
