//! Work of other threads while a sync is under way, done at that very point.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basalt_proto::{FrameBatch, FrameLimits};
use parking_lot::Mutex;

use super::model::Payloads;
use crate::{AppendError, Appended, Durability, Log, Partition};

/// What another thread does.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Append(Send),
    Commit,
    Settle,
    Prepare,
}

/// An append to be made.
#[derive(Debug, Clone)]
pub(super) struct Send {
    pub(super) bytes: Vec<u8>,
    pub(super) payloads: Payloads,
    pub(super) durability: Durability,
}

/// What came of an append.
pub(super) struct Sent {
    /// Which topic, which partition.
    pub(super) at: (usize, usize),
    pub(super) base: u64,
    pub(super) send: Send,
    pub(super) result: Result<Appended, AppendError>,
}

pub(super) fn append(partition: &Partition, send: &Send) -> Result<Appended, AppendError> {
    let batch = FrameBatch::parse(&send.bytes, &FrameLimits::default()).unwrap();
    partition.append(&batch, send.durability)
}

/// Everything the work needs, owned: it runs in the middle of what the history does.
pub(super) struct Other {
    pub(super) log: Arc<Log>,
    pub(super) all: Vec<Arc<Partition>>,
    pub(super) at: (usize, usize),
    pub(super) partition: Arc<Partition>,
    /// Set while there is a commit under way, or none may be: there is one thread that commits.
    pub(super) committing: Arc<AtomicBool>,
    pub(super) outcomes: Arc<Mutex<Vec<Sent>>>,
}

impl Other {
    /// Does the work, unless a lock that it takes is held at this point: then the other thread would wait.
    pub(super) fn run(self, work: Work) {
        let [state, disk_work, prepare_work, reserved] = self.partition.locked();
        match work {
            Work::Append(send) if !state && !reserved => {
                let base = self.partition.bounds().log_end_offset.0;
                let result = append(&self.partition, &send);
                let at = self.at;
                self.outcomes.lock().push(Sent {
                    at,
                    base,
                    send,
                    result,
                });
            }
            Work::Commit if !self.log.wal_is_locked() => {
                let free = self.all.iter().all(|partition| !partition.locked()[0]);
                if free && !self.committing.swap(true, Ordering::Relaxed) {
                    self.log.commit_unsettled(&self.all);
                    self.committing.store(false, Ordering::Relaxed);
                }
            }
            // A failure has poisoned the partition; the history sees that.
            Work::Settle if !state && !disk_work => drop(self.partition.sync_now()),
            Work::Prepare if !state && !prepare_work && !reserved => {
                self.partition.reserve_ahead();
                drop(self.partition.prepare_next());
            }
            _ => {}
        }
    }
}
