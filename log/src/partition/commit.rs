//! Committing: the newest frames of many partitions made durable by one sync of the write-ahead log.

use std::ops::Range;
use std::sync::Arc;

use basalt_proto::Offset;

use super::{Partition, State};
use crate::error::{AppendError, DiskError, OnDisk};
use crate::sync::Shared;
use crate::view::SegmentFile;
use crate::wal::{Group, RECORD_HEADER_BYTES, RecordHeader};

/// What a partition has for a group commit.
pub(crate) enum CommitPlan {
    /// Nothing, or nothing yet.
    Nothing,
    /// Too much: it is to be settled instead.
    Settle,
    Write(Commit),
}

/// The frames of a partition that are not durable yet.
pub(crate) struct Commit {
    partition: Arc<Partition>,
    pieces: Vec<Piece>,
    target: Offset,
    /// The file that knows of the partition already.
    wal_sequence: u64,
}

struct Piece {
    file: Arc<SegmentFile>,
    range: Range<u64>,
    base_offset: Offset,
    end_offset: Offset,
}

impl Commit {
    /// Bytes of its records.
    fn bytes(&self) -> u64 {
        let record =
            |piece: &Piece| piece.range.end - piece.range.start + RECORD_HEADER_BYTES as u64;
        self.pieces.iter().map(record).sum()
    }

    /// Puts its records into a group: all of them or none.
    fn read_into(&self, group: &mut Group) -> Result<(), DiskError> {
        let before = group.len();
        let mut pieces = self.pieces.iter();
        pieces
            .try_for_each(|piece| piece.read_into(group))
            .inspect_err(|_| group.cut(before))
    }
}

impl Piece {
    fn read_into(&self, group: &mut Group) -> Result<(), DiskError> {
        let identity = self.file.identity;
        let header = RecordHeader {
            topic_id: identity.topic_id,
            partition: identity.partition,
            segment: identity.base_offset,
            position: self.range.start,
            base_offset: self.base_offset,
            record_count: self.end_offset.0 - self.base_offset.0,
        };
        // Read, not mapped: a partition that is only written to needs no map.
        let read = |frames: &mut [u8]| self.file.file.read_at(frames, self.range.start);
        group
            .push(&header, self.range.end - self.range.start, read)
            .on("read", &self.file.path)
    }
}

/// Makes durable what `partitions` have appended: small things by one sync for all of them.
pub(crate) fn commit_group(shared: &Shared, partitions: Vec<Arc<Partition>>) {
    let (most, mut waiting, mut bytes) = (shared.wal.largest_group(), Vec::new(), 0);
    for partition in partitions {
        match partition.plan_commit(shared.wal.largest_record()) {
            CommitPlan::Nothing => {}
            CommitPlan::Settle => partition.queue_settling(),
            CommitPlan::Write(commit) => {
                if bytes + commit.bytes() > most {
                    write(shared, std::mem::take(&mut waiting), bytes);
                    bytes = 0;
                }
                bytes += commit.bytes();
                waiting.push(commit);
            }
        }
    }
    write(shared, waiting, bytes);
    if shared.wal.wants_checkpoint() {
        shared.queue.push_checkpoint();
    }
}

fn write(shared: &Shared, commits: Vec<Commit>, bytes: u64) {
    if commits.is_empty() {
        return;
    }
    let Some(mut group) = shared.wal.begin(bytes) else {
        // Without room in the write-ahead log each is synced for itself.
        for commit in commits {
            commit.partition.settle_instead(commit.target);
        }
        return;
    };
    let is_read = |commit: &Commit| match commit.read_into(&mut group) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, source = %error.source, "appended frames cannot be read back: their segment is synced instead");
            commit.partition.settle_instead(commit.target);
            false
        }
    };
    let commits: Vec<Commit> = commits.into_iter().filter(is_read).collect();
    if commits.is_empty() {
        return;
    }
    for commit in &commits {
        if commit.wal_sequence != group.sequence() {
            group.touch(Arc::downgrade(&commit.partition));
            commit.partition.state.lock().wal_sequence = group.sequence();
        }
    }
    let written = shared.wal.commit(&mut group);
    for commit in &commits {
        commit.partition.committed(commit.target, &written);
    }
}

impl Partition {
    fn plan_commit(self: &Arc<Self>, largest_record: u64) -> CommitPlan {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.queued.commit = false;
        if state.stopped.is_some() || state.log_end_offset <= state.synced_offset {
            return CommitPlan::Nothing;
        }
        if state.settle_first.is_some() {
            state.commit_postponed = true;
            return CommitPlan::Nothing;
        }
        if state.uncommitted_bytes() > largest_record {
            state.settle_first = Some(state.log_end_offset);
            return CommitPlan::Settle;
        }
        let pieces = state.take_pieces();
        CommitPlan::Write(Commit {
            partition: Arc::clone(self),
            pieces,
            target: state.log_end_offset,
            wal_sequence: state.wal_sequence,
        })
    }

    fn committed(&self, target: Offset, written: &Result<(), DiskError>) {
        match written {
            Ok(()) => self.raise_synced(target),
            Err(error) => {
                let error = DiskError {
                    action: error.action,
                    path: error.path.clone(),
                    source: std::io::Error::new(error.source.kind(), error.source.to_string()),
                };
                drop(self.poison(&mut self.state.lock(), &error));
            }
        }
    }

    /// Has a thread settle the partition; nothing of it is committed before.
    fn settle_instead(self: &Arc<Self>, target: Offset) {
        {
            let mut state = self.state.lock();
            state.settle_first = Some(state.settle_first.map_or(target, |first| first.max(target)));
        }
        self.queue_settling();
    }

    fn queue_settling(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.queued.settle = true;
        if self.shared.config.sync_threads > 0 && !state.queued.disk_work {
            state.queued.disk_work = true;
            self.shared.queue.push(Arc::clone(self));
        }
    }

    pub(super) fn queue_commit(&self, state: &mut State) {
        if self.shared.config.sync_threads == 0 || state.queued.commit {
            return;
        }
        if let Some(this) = self.this.upgrade() {
            state.queued.commit = true;
            self.shared.queue.push_commit(this);
        }
    }

    /// A group commit of this partition alone, on this thread: for tests and for logs without threads.
    ///
    /// # Errors
    /// [`AppendError::Poisoned`] as [`Self::sync_now`].
    pub fn commit_now(self: &Arc<Self>) -> Result<(), AppendError> {
        commit_group(&self.shared, vec![Arc::clone(self)]);
        self.settle_if_asked()?;
        let state = self.state.lock();
        match &state.stopped {
            Some(stopped) => Err(self.stopped_error(stopped)),
            None => Ok(()),
        }
    }

    /// What a thread would be woken for by [`Self::queue_settling`].
    pub(crate) fn settle_if_asked(&self) -> Result<(), AppendError> {
        let settle = std::mem::take(&mut self.state.lock().queued.settle);
        if settle { self.sync_now() } else { Ok(()) }
    }
}

impl State {
    /// Bytes that are in no commit yet.
    fn uncommitted_bytes(&self) -> u64 {
        let full = self.unsealed.iter().filter(|segment| !segment.settled);
        let active = self.active.as_ref();
        full.map(|segment| segment.frame_bytes - segment.committed_position)
            .chain(active.map(|active| active.frame_bytes() - active.committed_position))
            .sum()
    }

    fn take_pieces(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for segment in self.unsealed.iter_mut().filter(|segment| !segment.settled) {
            pieces.push(Piece {
                file: Arc::clone(&segment.file),
                range: segment.committed_position..segment.frame_bytes,
                base_offset: segment.committed_offset,
                end_offset: segment.end_offset,
            });
            segment.committed_position = segment.frame_bytes;
            segment.committed_offset = segment.end_offset;
        }
        if let Some(active) = &mut self.active {
            pieces.push(Piece {
                file: Arc::clone(&active.file),
                range: active.committed_position..active.frame_bytes(),
                base_offset: active.committed_offset,
                end_offset: active.end_offset(),
            });
            active.committed_position = active.frame_bytes();
            active.committed_offset = active.end_offset();
        }
        pieces.retain(|piece| !piece.range.is_empty());
        pieces
    }
}
