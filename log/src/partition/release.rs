//! Letting go of hot segments that were cooled or have expired.

use std::io;

use basalt_proto::Offset;

use super::{Partition, Stopped};
use crate::error::{OnDisk, ReleaseError};
use crate::segment::index_path;

impl Partition {
    /// Removes the sealed segments that end at or below `through`. Readers that hold one keep its bytes.
    ///
    /// After a crash in the middle a segment may be back; releasing it again is all there is to do.
    ///
    /// # Errors
    /// [`ReleaseError::Append`] when the segment that keeps the next offset could not be created: nothing was removed. A full
    /// disk is no error: then the last segment stays until the next call.
    /// [`ReleaseError::Disk`] when a file could not be: it is no longer read, and is back when the log is next opened.
    pub fn release(&self, through: Offset) -> Result<(), ReleaseError> {
        let _serial = self.disk_work.lock();
        let released = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            if matches!(state.stopped, Some(Stopped::Deleted)) {
                return Ok(());
            }
            let finished = state.finished();
            let mut count =
                state.sealed[..finished].partition_point(|segment| segment.end_offset <= through);
            if count > 0 && count == state.sealed.len() && state.active.is_none() {
                // LOG-12: the last file that tells the next offset goes only after another does.
                match self.create_segment(state.log_end_offset, 0) {
                    // Its name is durable before the others' are gone.
                    Ok(next) => match self.shared.disk.sync_dir(&self.dir).on("sync", &self.dir) {
                        Ok(()) => state.active = Some(next),
                        Err(error) => {
                            return Err(ReleaseError::Append(self.refuse(state, error)));
                        }
                    },
                    // Room is what a release makes: all but the last one go now, that one with the next call.
                    Err(error) if error.is_full() || error.is_passing() => count -= 1,
                    Err(error) => return Err(ReleaseError::Append(self.refuse(state, error))),
                }
            }
            if count == 0 {
                return Ok(());
            }
            let released = state.sealed.drain(..count).collect::<Vec<_>>();
            let log_start_offset = state.log_start_offset();
            state.producers.transactions.forget_below(log_start_offset);
            released
        };
        let disk = &self.shared.disk;
        for segment in released {
            let path = segment.path();
            disk.remove_file(path).on("remove", path)?;
            // A segment without its index would be scanned when it came back after a crash, an index without its
            // segment is dropped: so the segment goes first.
            let index = index_path(path);
            match disk.remove_file(&index) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.on("remove", &index)?,
            }
        }
        disk.sync_dir(&self.dir).on("sync", &self.dir)?;
        Ok(())
    }
}
