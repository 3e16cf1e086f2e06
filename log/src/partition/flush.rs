//! Group commit, sealing, closing: all that makes a partition's bytes durable.

use std::sync::Arc;

use basalt_proto::Offset;

use super::{Partition, SEAL_RETRY, State, Stopped, Unsealed};
use crate::disk::{DiskFile, replace_file};
use crate::error::{AppendError, DiskError, OnDisk};
use crate::reserve;
use crate::segment::index_path;
use crate::view::SegmentFile;

/// A segment's frames and its index, if that is the one entries are appended to.
type SegmentFiles = (Arc<SegmentFile>, Option<Arc<dyn DiskFile>>);

/// The files a sync covers and how far it will have got.
struct SyncPlan {
    files: Vec<SegmentFiles>,
    target: Offset,
    /// The active segment's file and how far its frames had got.
    active: Option<(Arc<SegmentFile>, u64)>,
}

impl Partition {
    /// What a sync thread does with a queued partition: sync, then seal what is full.
    pub(crate) fn run_queued(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            state.queued = false;
            state.queued_later = false;
        }
        // A failure has stopped the partition and told the waiters; there is no one else to tell.
        if self.sync_now().is_err() {
            return;
        }
        if let Err(error) = self.finish_sealing() {
            tracing::warn!(topic = %self.topic, partition = %self.id, %error, "a full segment is not sealed yet");
            let mut state = self.state.lock();
            if !state.queued && !state.queued_later {
                state.queued_later = true;
                self.shared.queue.push_delayed(Arc::clone(self), SEAL_RETRY);
            }
        }
    }

    /// Syncs everything appended so far and raises the synced offset, and the high watermark at level `fsync`.
    ///
    /// One call serves all who wait. Appends go on meanwhile; they need another call.
    ///
    /// # Errors
    /// [`AppendError::Poisoned`] when the disk refuses: the partition takes no more appends (LOG-11).
    pub fn sync_now(&self) -> Result<(), AppendError> {
        let _serial = self.disk_work.lock();
        self.sync_locked()
    }

    fn sync_locked(&self) -> Result<(), AppendError> {
        let plan = self.plan_sync(&mut self.state.lock())?;
        let synced = plan.files.iter().try_for_each(|(file, index)| {
            file.file.sync().on("sync", &file.path)?;
            index
                .as_ref()
                .map_or(Ok(()), |index| index.sync())
                .on("sync", &index_path(&file.path))
        });
        let mut state = self.state.lock();
        if let Err(error) = synced {
            return Err(self.poison(&mut state, &error));
        }
        assert!(
            plan.target >= state.synced_offset,
            "the synced offset never falls (LOG-10)"
        );
        state.synced_offset = plan.target;
        if let (Some(active), Some((file, position))) = (&mut state.active, &plan.active)
            && Arc::ptr_eq(&active.file, file)
        {
            active.synced_position = *position;
        }
        for segment in state
            .unsealed
            .iter_mut()
            .filter(|segment| segment.base_offset < plan.target)
        {
            segment.synced |= plan
                .files
                .iter()
                .any(|(file, _)| Arc::ptr_eq(file, &segment.file));
        }
        drop(state);
        // Readers first, so that whoever learns that a record is durable can read it. At level os they can already, but for
        // what was appended before the level was changed.
        self.raise_high_watermark(plan.target);
        self.progress.send_if_modified(|progress| {
            let rises = plan.target > progress.synced_offset;
            progress.synced_offset = progress.synced_offset.max(plan.target);
            rises
        });
        Ok(())
    }

    fn plan_sync(&self, state: &mut State) -> Result<SyncPlan, AppendError> {
        if let Some(stopped @ (Stopped::Poisoned(_) | Stopped::Deleted)) = &state.stopped {
            return Err(self.stopped_error(stopped));
        }
        let target = state.log_end_offset;
        let mut files = Vec::new();
        if target == state.synced_offset {
            return Ok(SyncPlan {
                files,
                target,
                active: None,
            });
        }
        for segment in state.unsealed.iter().filter(|segment| !segment.synced) {
            files.push((Arc::clone(&segment.file), segment.index.clone()));
        }
        if let Some(Err(error)) = state.active.as_mut().map(|active| active.close_run()) {
            return Err(self.poison(state, &error));
        }
        if let Some(active) = state
            .active
            .as_ref()
            .filter(|active| active.end_offset() > state.synced_offset)
        {
            files.push((Arc::clone(&active.file), Some(Arc::clone(&active.index))));
        }
        state.unflushed_bytes = 0;
        let active = state
            .active
            .as_ref()
            .map(|active| (Arc::clone(&active.file), active.frame_bytes()));
        Ok(SyncPlan {
            files,
            target,
            active,
        })
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
            if let Some(Err(error)) = state.active.as_mut().map(|active| active.close_run()) {
                return Err(self.poison(&mut state, &error));
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
        self.sync_locked()?;
        loop {
            let (view, path) = {
                let state = self.state.lock();
                let Some(next) = state.unsealed.first() else {
                    return Ok(());
                };
                let at = state
                    .sealed
                    .partition_point(|segment| segment.base_offset < next.base_offset);
                assert_eq!(
                    state.sealed[at].base_offset, next.base_offset,
                    "an unsealed segment is among the sealed"
                );
                (Arc::clone(&state.sealed[at]), next.file.path.clone())
            };
            let sealed = self.seal_files(&view, &path);
            let mut state = self.state.lock();
            if let Err(error) = sealed {
                // Nothing is lost: the frames are synced and whichever index is there tells where they end.
                return Err(self.refuse(&mut state, error));
            }
            state.unsealed.remove(0);
            drop(state);
            self.shared.seals.send_modify(|seals| *seals += 1);
        }
    }

    /// The frames are synced. Until the new index has its name the old one tells the same.
    fn seal_files(
        &self,
        view: &crate::SegmentView,
        path: &std::path::Path,
    ) -> Result<(), DiskError> {
        let index =
            view.file
                .identity
                .sealed_index(&view.blocks, view.end_offset, view.appended_at_ns);
        let index_path = index_path(path);
        replace_file(self.shared.disk.as_ref(), &index_path, &index).on("seal", &index_path)?;
        let file = &view.file.file;
        file.set_len(view.frame_bytes())
            .and_then(|()| file.sync())
            .on("trim", path)
    }

    /// Stops appends, syncs, and leaves the files as after a stop in order. Reads of what is open go on.
    ///
    /// # Errors
    /// As [`Self::sync_now`]; the next open recovers.
    pub(crate) fn close(&self) -> Result<(), AppendError> {
        {
            let mut state = self.state.lock();
            match &state.stopped {
                Some(Stopped::Closed) => return Ok(()),
                Some(stopped) => return Err(self.stopped_error(stopped)),
                None => state.stopped = Some(Stopped::Closed),
            }
        }
        let synced = self.sync_now().and_then(|()| {
            // Not needed for anyone's records: a disk that is full leaves it to the next open.
            self.finish_sealing().or_else(|error| match error {
                AppendError::StorageFull { .. } => Ok(()),
                other => Err(other),
            })
        });
        let tidied = synced.and_then(|()| self.tidy());
        let mut state = self.state.lock();
        // Waiters that the last sync did not serve.
        let closed = self.stop(&mut state, Stopped::Closed);
        drop(closed);
        tidied
    }

    fn tidy(&self) -> Result<(), AppendError> {
        let _serial = self.disk_work.lock();
        let mut state = self.state.lock();
        if let Some(Err(error)) = state.active.as_mut().map(|active| active.trim()) {
            return Err(self.refuse(&mut state, error));
        }
        if state.reserved_offset > state.log_end_offset {
            let end = state.log_end_offset;
            let stored = reserve::store(self.shared.disk.as_ref(), &self.dir, end, end);
            return match stored {
                Ok(()) => Ok(()),
                // The larger bound stands: a gap in the offsets, nothing worse.
                Err(error) if error.is_full() => Ok(()),
                Err(error) => Err(self.poison(&mut state, &error)),
            };
        }
        Ok(())
    }

    /// Stops a partition whose topic is deleted: on return no thread touches its files any more.
    pub(crate) fn abandon(&self) {
        let _serial = self.disk_work.lock();
        let mut state = self.state.lock();
        // Also one that was stopped before: what comes must see that the folder is not its own any more.
        state.stopped = Some(Stopped::Deleted);
        let closed = self.stop(&mut state, Stopped::Deleted);
        drop(closed);
    }
}

impl Unsealed {
    pub(super) fn without_index(base_offset: Offset, file: Arc<SegmentFile>) -> Self {
        Self {
            base_offset,
            file,
            index: None,
            synced: true,
        }
    }
}
