//! The end of a partition: closed in order, or abandoned with its topic.

use super::{Partition, Stopped};
use crate::error::AppendError;
use crate::reserve;

impl Partition {
    /// Stops appends, settles, and leaves the files as after a stop in order. Reads of what is open go on.
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
        self.drop_prepared();
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
        let _nothing_made = self.prepare_work.lock();
        let mut state = self.state.lock();
        // Also one that was stopped before: what comes must see that the folder is not its own any more.
        state.stopped = Some(Stopped::Deleted);
        let closed = self.stop(&mut state, Stopped::Deleted);
        drop(closed);
    }
}
