//! What a start makes of the log's numbered batches (LOG-15): the newest snapshot, and what is behind it.

use std::sync::Arc;

use basalt_proto::Offset;

use super::super::due_snapshot;
use super::super::producers::{Producers, Snapshots, snapshot_name};
use super::Opening;
use crate::block::{Block, crc32c};
use crate::disk::Disk;
use crate::error::DiskError;
use crate::view::SegmentView;

impl Opening<'_> {
    /// The newest snapshot of producers is where the fold begins. A damaged one is none: an older one would lack what was released
    /// since, and refuse what is in order.
    pub(super) fn read_snapshot(
        &mut self,
        disk: &dyn Disk,
        snapshots: Vec<Offset>,
    ) -> Result<(), DiskError> {
        let files = Snapshots {
            disk,
            dir: &self.spec.dir,
            topic_id: self.spec.topic_id,
            partition: self.spec.id,
        };
        if let Some(newest) = snapshots.last() {
            match files.read(*newest)? {
                Some(producers) => (self.producers, self.producers_offset) = (producers, *newest),
                None => {
                    let path = files.path(*newest);
                    self.find(&path, 0, "the snapshot of producers is damaged; they are known from the segments that are there");
                }
            }
        }
        self.producer_snapshots = snapshots;
        Ok(())
    }

    /// A snapshot that knows of more than there is belongs to frames that the disk had said were durable and has lost.
    pub(super) fn fold_without_snapshot(&mut self) -> Result<(), DiskError> {
        let Some(newest) = self.producer_snapshots.last().copied() else {
            return Ok(());
        };
        if newest <= self.log_end_offset {
            return Ok(());
        }
        let path = self.spec.dir.join(snapshot_name(newest));
        self.find(&path, 0, "the snapshot of producers is of records that are gone; they are known from the segments that are there");
        (self.producers, self.producers_offset) = (Producers::default(), Offset::ZERO);
        let active = self
            .active
            .as_ref()
            .map(|active| Arc::new(active.view(false)));
        for view in self.sealed.clone().into_iter().chain(active) {
            self.fold(&view)?;
        }
        Ok(())
    }

    /// Folds what the segment that came last has behind the snapshot.
    pub(super) fn fold_newest(&mut self) -> Result<(), DiskError> {
        let active = self
            .active
            .as_ref()
            .map(|active| Arc::new(active.view(false)));
        match active.or_else(|| self.sealed.last().cloned()) {
            Some(view) => self.fold(&view),
            None => Ok(()),
        }
    }

    /// A block that cannot be read fails the start: what is not known of would be stored twice. Of one that is damaged, which is told
    /// of elsewhere, no number is believed.
    fn fold(&mut self, view: &SegmentView) -> Result<(), DiskError> {
        let now_ns = self.shared.clock.now_ns();
        let folded_offset = self.producers_offset;
        let unfolded = |block: &&Block| block.has_batches && block.base_offset >= folded_offset;
        for block in view.blocks().iter().filter(unfolded) {
            let bytes = view.file.bytes(block.position, block.end_position())?;
            if crc32c(&bytes) == block.crc32c {
                self.producers.fold(&bytes, None, now_ns);
            }
        }
        self.producers_offset = self.producers_offset.max(view.end_offset);
        let mut unsealed = self.unsealed.iter_mut();
        if let Some(unsealed) = unsealed.find(|segment| segment.end_offset == view.end_offset) {
            unsealed.producers = due_snapshot(view.blocks(), &self.producers);
        }
        Ok(())
    }
}
