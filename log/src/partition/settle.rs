//! Settling: everything appended so far is synced in its own segments, with its index entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basalt_proto::Offset;

use super::{Partition, State, Stopped};
use crate::block::Block;
use crate::disk::{Disk, DiskFile};
use crate::error::{AppendError, DiskError, OnDisk};
use crate::index::IndexFile;
use crate::segment::{rename_index, settle_names};
use crate::view::SegmentFile;

/// From so many partitions on, whole file systems are synced instead of their files.
pub(super) const LEAST_TOGETHER: usize = 8;
/// So many are held at a time.
const MOST_TOGETHER: usize = 4096;

/// Whether somebody waits for what is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Urgent,
    /// Group commits of others go first.
    Gentle,
}

/// What settling has to do, and how far it will have got.
pub(crate) struct SettlePlan {
    segments: Vec<SettleSegment>,
    target: Offset,
}

struct SettleSegment {
    file: Arc<SegmentFile>,
    named: Arc<AtomicBool>,
    /// The index and the blocks that have no entry yet.
    index: Option<(Arc<IndexFile>, Vec<Block>)>,
    position: u64,
}

impl SettlePlan {
    fn sync_segments(&self, pace: Pace) -> Result<(), DiskError> {
        for segment in &self.segments {
            if pace == Pace::Gentle {
                let from = segment
                    .index
                    .as_ref()
                    .map_or(0, |(index, _)| index.covered().position);
                let written = segment.file.file.write_back(from..segment.position);
                written.on("write", &segment.file.path)?;
            }
            segment.file.file.sync().on("sync", &segment.file.path)?;
        }
        Ok(())
    }

    /// The frames are synced: only now may entries say so.
    fn write_entries(&self) -> Result<(), DiskError> {
        for segment in &self.segments {
            if let Some((index, blocks)) = &segment.index {
                index.cover(blocks, segment.position)?;
            }
        }
        Ok(())
    }

    fn sync_indexes(&self) -> Result<(), DiskError> {
        for segment in &self.segments {
            if let Some((index, _)) = &segment.index {
                index.sync()?;
            }
        }
        Ok(())
    }

    /// Whether there is an index without its name.
    fn is_young(&self) -> bool {
        let mut named = self.segments.iter().map(|segment| &segment.named);
        named.any(|named| !named.load(Ordering::Acquire))
    }

    /// Whether all its files are covered by a sync of this file system.
    fn is_on(&self, file_system: Option<u64>) -> bool {
        self.segments.iter().all(|segment| {
            let index = segment.index.as_ref();
            segment.file.file.file_system() == file_system
                && index.is_none_or(|(index, _)| index.file_system() == file_system)
        })
    }

    fn rename_indexes(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        for segment in &self.segments {
            rename_index(disk, &segment.file.path, &segment.named)?;
        }
        Ok(())
    }

    fn set_named(&self) {
        for segment in &self.segments {
            segment.named.store(true, Ordering::Release);
        }
    }

    /// The entries are synced: only now may an index have its name.
    fn settle_names(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        for segment in &self.segments {
            settle_names(disk, &segment.file.path, &segment.named)?;
        }
        Ok(())
    }
}

impl Partition {
    /// Syncs everything appended so far in its own segments and raises the synced offset, and the high watermark at level
    /// `fsync`.
    ///
    /// One call serves all who wait. Appends go on meanwhile; they need another call.
    ///
    /// # Errors
    /// [`AppendError::Poisoned`] when the disk refuses: the partition takes no more appends (LOG-11).
    pub fn sync_now(&self) -> Result<(), AppendError> {
        self.settle(Pace::Urgent)
    }

    pub(super) fn settle(&self, pace: Pace) -> Result<(), AppendError> {
        let _serial = self.disk_work.lock();
        self.settle_locked(pace)
    }

    /// Settles many partitions with a few syncs of the whole file system, by way of a file on it. Whether it went well: else
    /// some may be settled, and nothing is known of the others.
    fn settle_together(partitions: &[Arc<Self>], on_disk: &dyn DiskFile) -> bool {
        // In one order whoever does it, so that two never wait for each other.
        let mut partitions: Vec<_> = partitions.iter().collect();
        partitions.sort_unstable_by_key(|partition| (partition.topic_id, partition.id));
        let _serial: Vec<_> = partitions
            .iter()
            .map(|partition| partition.disk_work.lock())
            .collect();
        let plan = |partition: &&Arc<Self>| partition.plan_settle(&mut partition.state.lock());
        let Ok(plans) = partitions.iter().map(plan).collect::<Result<Vec<_>, _>>() else {
            return false;
        };
        let disk = partitions[0].shared.disk.as_ref();
        let young = plans.iter().any(SettlePlan::is_young);
        // A sync of the file system tells nothing of files elsewhere, and of those whose failure was told before.
        let synced = || {
            on_disk.sync_file_system().is_ok()
                && on_disk.file_system().is_some()
                && plans.iter().all(|plan| plan.is_on(on_disk.file_system()))
        };
        let settled = synced()
            && plans.iter().all(|plan| plan.write_entries().is_ok())
            && synced()
            && plans.iter().all(|plan| plan.rename_indexes(disk).is_ok())
            && (!young || synced());
        if settled {
            for (partition, plan) in partitions.iter().zip(&plans) {
                plan.set_named();
                partition.dir_settled.store(true, Ordering::Release);
                // It went well: no error can come back.
                let _ = partition.finish_settling(plan, Ok(()));
            }
        }
        settled
    }

    /// Settles all of these partitions; `on_disk` is a file that was open before what is to be settled was written.
    ///
    /// # Errors
    /// As [`Self::sync_now`], of the first that could not be settled.
    pub(crate) fn settle_all(
        partitions: &[Arc<Self>],
        on_disk: &dyn DiskFile,
    ) -> Result<(), AppendError> {
        for some in partitions.chunks(MOST_TOGETHER) {
            if some.len() < LEAST_TOGETHER || !Self::settle_together(some, on_disk) {
                // Where it did not go well, whose files failed tells only their own sync.
                some.iter()
                    .try_for_each(|partition| partition.settle(Pace::Gentle))?;
            }
        }
        Ok(())
    }

    /// Settles what the write-ahead log knows of in these partitions; whether its records are needed no more.
    pub(crate) fn checkpoint(partitions: &[Arc<Self>], on_disk: &dyn DiskFile) -> bool {
        // Where the topic is gone its records are, too.
        let is_deleted = |partition: &Arc<Self>| {
            matches!(partition.state.lock().stopped, Some(Stopped::Deleted))
        };
        let there: Vec<_> = partitions
            .iter()
            .filter(|partition| !is_deleted(partition))
            .cloned()
            .collect();
        if there.iter().any(|partition| partition.poisoned().is_some()) {
            // Its records are for the next open to put right.
            return false;
        }
        let settled = Self::settle_all(&there, on_disk).is_ok();
        there.iter().all(|partition| {
            (settled || partition.sync_now().is_ok() || is_deleted(partition)) && partition.prove()
        })
    }

    /// Seals full segments without an index, of which only the write-ahead log can say what is whole.
    fn prove(&self) -> bool {
        !self.is_unproven() || self.finish_sealing().is_ok()
    }

    /// Whether there is a full segment without an index: what of it is whole, only the write-ahead log can say until it is
    /// sealed.
    pub(crate) fn is_unproven(&self) -> bool {
        let state = self.state.lock();
        state.unsealed.iter().any(|segment| segment.index.is_none())
    }

    /// [`Self::sync_now`] for whoever holds the disk work.
    pub(super) fn settle_locked(&self, pace: Pace) -> Result<(), AppendError> {
        let plan = self.plan_settle(&mut self.state.lock())?;
        let settled = plan
            .sync_segments(pace)
            .and_then(|()| plan.write_entries())
            .and_then(|()| plan.sync_indexes())
            .and_then(|()| plan.settle_names(self.shared.disk.as_ref()))
            .and_then(|()| self.settle_dir());
        self.finish_settling(&plan, settled)
    }

    fn plan_settle(&self, state: &mut State) -> Result<SettlePlan, AppendError> {
        if let Some(stopped @ (Stopped::Poisoned(_) | Stopped::Deleted)) = &state.stopped {
            return Err(self.stopped_error(stopped));
        }
        let mut plan = SettlePlan {
            segments: Vec::new(),
            target: state.log_end_offset,
        };
        if plan.target == state.settled_offset {
            return Ok(plan);
        }
        state.unsettled_bytes = 0;
        let open = |index: &Arc<IndexFile>, blocks: &[Block]| {
            let rest = blocks.get(index.covered().blocks..).unwrap_or_default();
            (Arc::clone(index), rest.to_vec())
        };
        for segment in state.unsealed.iter().filter(|segment| !segment.settled) {
            let blocks = &state.sealed_view(segment.base_offset).blocks;
            plan.segments.push(SettleSegment {
                file: Arc::clone(&segment.file),
                named: Arc::clone(&segment.named),
                index: segment.index.as_ref().map(|index| open(index, blocks)),
                position: segment.frame_bytes,
            });
        }
        if let Some(active) = state
            .active
            .as_ref()
            .filter(|active| active.end_offset() > state.settled_offset)
        {
            plan.segments.push(SettleSegment {
                file: Arc::clone(&active.file),
                named: Arc::clone(&active.named),
                index: Some(open(&active.index, active.blocks())),
                position: active.frame_bytes(),
            });
        }
        Ok(plan)
    }

    fn finish_settling(
        &self,
        plan: &SettlePlan,
        settled: Result<(), DiskError>,
    ) -> Result<(), AppendError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Err(error) = settled {
            return Err(self.poison(state, &error));
        }
        state.settled_offset = state.settled_offset.max(plan.target);
        let planned = |file: &Arc<SegmentFile>| {
            plan.segments
                .iter()
                .find(|segment| Arc::ptr_eq(&segment.file, file))
        };
        if let Some(active) = &mut state.active
            && let Some(segment) = planned(&active.file)
            && segment.position > active.committed_position
        {
            (active.committed_position, active.committed_offset) = (segment.position, plan.target);
        }
        for segment in &mut state.unsealed {
            // One that was still active when it was planned may have grown since.
            segment.settled |= segment.end_offset <= plan.target;
            if let Some(planned) = planned(&segment.file)
                && planned.position > segment.committed_position
            {
                segment.committed_position = planned.position;
                segment.committed_offset = plan.target.min(segment.end_offset);
            }
        }
        if state
            .settle_first
            .is_some_and(|first| first <= state.settled_offset)
        {
            state.settle_first = None;
            if std::mem::take(&mut state.commit_postponed) {
                self.queue_commit(state);
            }
        }
        drop(guard);
        self.raise_synced(plan.target);
        Ok(())
    }

    /// Everything below `offset` is durable.
    pub(super) fn raise_synced(&self, offset: Offset) {
        {
            let mut state = self.state.lock();
            state.synced_offset = state.synced_offset.max(offset);
        }
        // Readers first, so that whoever learns that a record is durable can read it. At level os they can already, but for
        // what was appended before the level was changed.
        self.raise_high_watermark(offset);
        self.progress.send_if_modified(|progress| {
            let rises = offset > progress.synced_offset;
            progress.synced_offset = progress.synced_offset.max(offset);
            rises
        });
    }
}
