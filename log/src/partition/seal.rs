//! What a thread beside the appender does to a partition's segments: settle, seal the full ones, make the next one.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::settle::Pace;
use super::{Partition, SEAL_RETRY, Stopped};
use crate::disk::replace_file;
use crate::error::{AppendError, DiskError, OnDisk};
use crate::segment::{PREPARED_INDEX, PREPARED_SEGMENT, Prepared, index_path, young_index_path};

impl Partition {
    /// What a sync thread does with a queued partition.
    pub(crate) fn run_queued(self: &Arc<Self>) {
        let (settle, pace) = {
            let mut state = self.state.lock();
            state.queued.disk_work = false;
            let pace = if state.settle_first.is_some() {
                Pace::Urgent
            } else {
                Pace::Gentle
            };
            (std::mem::take(&mut state.queued.settle), pace)
        };
        self.do_disk_work(settle.then_some(pace));
    }

    /// What a sync thread does with a partition that was queued for later: at level os this is the flush.
    pub(crate) fn run_due(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            state.queued.later = false;
            state.seal_rests = false;
        }
        self.do_disk_work(Some(Pace::Gentle));
    }

    fn do_disk_work(self: &Arc<Self>, settle: Option<Pace>) {
        // First: an appender may be about to need it. A failure leaves the making to the appender, who reports it.
        self.reserve_ahead();
        if let Err(error) = self.prepare_next() {
            tracing::debug!(topic = %self.topic, partition = %self.id, %error, "the next segment is not made ahead");
            self.state.lock().prepare_failed = true;
        }
        // A failure has stopped the partition and told the waiters; there is no one else to tell.
        if settle.is_some_and(|pace| self.settle(pace).is_err()) {
            return;
        }
        if let Err(error) = self.finish_sealing() {
            tracing::warn!(topic = %self.topic, partition = %self.id, %error, "a full segment is not sealed yet");
            let mut state = self.state.lock();
            state.seal_rests = true;
            if state.stopped.is_none() && !state.queued.later {
                state.queued.later = true;
                self.shared.queue.push_delayed(Arc::clone(self), SEAL_RETRY);
            }
        }
    }

    /// Makes the segment after the active one, once that is nearly full.
    pub(crate) fn prepare_next(&self) -> Result<(), DiskError> {
        let _serial = self.prepare_work.lock();
        {
            let state = self.state.lock();
            if state.stopped.is_some() || !state.wants_next() {
                return Ok(());
            }
        }
        let disk = self.shared.disk.as_ref();
        let prepared = Prepared::create(disk, &self.dir, self.segment_bytes())?;
        let mut state = self.state.lock();
        if state.stopped.is_none() {
            state.prepared = Some(prepared);
        }
        Ok(())
    }

    /// Removes the segment that was made ahead and not put to use.
    pub(super) fn drop_prepared(&self) {
        let _serial = self.prepare_work.lock();
        if self.state.lock().prepared.take().is_some() {
            self.remove_prepared();
        }
    }

    pub(super) fn remove_prepared(&self) {
        for name in [PREPARED_INDEX, PREPARED_SEGMENT] {
            // The next open removes what stays.
            let _ = self.shared.disk.remove_file(&self.dir.join(name));
        }
    }

    /// Seals the active segment, if there is a record in it, and finishes the sealing of all that are full. On return
    /// everything appended before the call is in [`Self::sealed_segments`]. Blocks for several fsyncs.
    ///
    /// # Errors
    /// [`AppendError::StorageFull`] when an index could not be written: the segment is full all the same, and another
    /// call tries again. Others as [`Self::sync_now`].
    pub fn seal_active(&self) -> Result<bool, AppendError> {
        let rolled = {
            let mut state = self.state.lock();
            if let Some(stopped) = &state.stopped {
                return Err(self.stopped_error(stopped));
            }
            let before = state.sealed.len();
            state.roll();
            state.sealed.len() > before
        };
        self.finish_sealing()?;
        Ok(rolled)
    }

    /// Writes the sealed index of every full segment and trims its file.
    ///
    /// # Errors
    /// As [`Self::seal_active`].
    pub(crate) fn finish_sealing(&self) -> Result<(), AppendError> {
        let _serial = self.disk_work.lock();
        {
            let state = self.state.lock();
            if state.unsealed.is_empty() || matches!(state.stopped, Some(Stopped::Deleted)) {
                return Ok(());
            }
        }
        self.settle_locked(Pace::Gentle)?;
        loop {
            let (view, producers) = {
                let mut state = self.state.lock();
                let Some(next) = state.unsealed.first_mut().filter(|next| next.settled) else {
                    return Ok(());
                };
                let (base_offset, producers) = (next.base_offset, next.producers.take());
                (Arc::clone(state.sealed_view(base_offset)), producers)
            };
            // First: a sealed segment is read no more at the start. Its frames are synced, so that no snapshot speaks of what a crash
            // may take.
            let sealed = match &producers {
                Some(producers) => self.snapshots().write(producers, view.end_offset),
                None => Ok(()),
            };
            let has_snapshot = producers.is_some() && sealed.is_ok();
            let sealed = sealed.and_then(|()| self.seal_files(&view, view.path()));
            let mut state = self.state.lock();
            if has_snapshot && state.producer_snapshots.last() != Some(&view.end_offset) {
                state.producer_snapshots.push(view.end_offset);
            }
            if let Err(error) = sealed {
                // Nothing is lost: the frames are synced and whichever index is there tells where they end.
                if let Some(next) = state.unsealed.first_mut() {
                    next.producers = producers;
                }
                return Err(self.refuse(&mut state, error));
            }
            state.unsealed.remove(0);
            let old = state.producer_snapshots.len().saturating_sub(1);
            let old: Vec<_> = state.producer_snapshots.drain(..old).collect();
            drop(state);
            for end_offset in old {
                if let Err(error) = self.snapshots().remove(end_offset) {
                    tracing::debug!(topic = %self.topic, partition = %self.id, %error, "an old snapshot of producers stays");
                }
            }
            self.shared.seals.send_modify(|seals| *seals += 1);
        }
    }

    /// The frames are synced. Until the new index has its name the old one tells the same.
    fn seal_files(&self, view: &crate::SegmentView, path: &Path) -> Result<(), DiskError> {
        let index =
            view.file
                .identity
                .sealed_index(&view.blocks, view.end_offset, view.appended_at_ns);
        let index_path = index_path(path);
        let disk = self.shared.disk.as_ref();
        replace_file(disk, &index_path, &index).on("seal", &index_path)?;
        // There where the segment was recovered and had no room for entries. What stays of it nobody reads, and the start that
        // finds no segment beside it removes it.
        match disk.remove_file(&young_index_path(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %path.display(), %error, "the young index of a sealed segment stays");
            }
            _ => {}
        }
        let file = &view.file.file;
        file.set_len(view.frame_bytes())
            .and_then(|()| file.sync())
            .on("trim", path)
    }
}
