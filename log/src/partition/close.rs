//! The end of a partition: closed in order, or abandoned with its topic.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::settle::LEAST_TOGETHER;
use super::{Partition, State, Stopped};
use crate::disk::DiskFile;
use crate::error::{AppendError, DiskError, OnDisk};
use crate::segment::Active;

impl Partition {
    /// Stops appends to these partitions, settles them, and leaves the files as after a stop in order. Reads of what is open
    /// go on. `on_disk` is a file that was open before what is to be settled was written.
    ///
    /// # Errors
    /// One for each partition that could not be closed, as [`Self::sync_now`]; the next open recovers it.
    pub(crate) fn close_all(partitions: &[Arc<Self>], on_disk: &dyn DiskFile) -> Vec<AppendError> {
        let mut errors = Vec::new();
        let mut closing = Vec::new();
        for partition in partitions {
            match partition.begin_closing() {
                Ok(true) => closing.push(Arc::clone(partition)),
                Ok(false) => {}
                Err(error) => errors.push(error),
            }
        }
        // What does not go well together is done again one by one, where it says why.
        let _ = Self::settle_all(&closing, on_disk);
        let sealed = closing
            .iter()
            .filter_map(|partition| partition.settle_and_seal().err());
        errors.extend(sealed);
        if closing.len() >= LEAST_TOGETHER {
            Self::trim_together(&closing, on_disk);
        }
        errors.extend(
            closing
                .iter()
                .filter_map(|partition| partition.finish_closing().err()),
        );
        errors
    }

    /// Takes no more appends; `false` when it is closed already.
    fn begin_closing(&self) -> Result<bool, AppendError> {
        {
            let mut state = self.state.lock();
            match &state.stopped {
                Some(Stopped::Closed) => return Ok(false),
                Some(stopped) => return Err(self.stopped_error(stopped)),
                None => state.stopped = Some(Stopped::Closed),
            }
        }
        self.drop_prepared();
        Ok(true)
    }

    fn settle_and_seal(&self) -> Result<(), AppendError> {
        self.sync_now()?;
        // Not needed for anyone's records: a disk that is full leaves it to the next open.
        self.finish_sealing().or_else(|error| match error {
            AppendError::StorageFull { .. } => Ok(()),
            other => Err(other),
        })
    }

    /// Trims with two syncs of the whole file system, as far as all goes well.
    fn trim_together(partitions: &[Arc<Self>], on_disk: &dyn DiskFile) {
        let _serial: Vec<_> = partitions
            .iter()
            .map(|partition| partition.disk_work.lock())
            .collect();
        let each = |trim: &dyn Fn(&mut Active) -> Result<(), DiskError>| {
            partitions.iter().all(|partition| {
                let mut state = partition.state.lock();
                let settled = state.settled_offset == state.log_end_offset;
                let active = state.active.as_mut().filter(|active| !active.is_trimmed());
                active
                    .filter(|_| settled)
                    .is_none_or(|active| trim(active).is_ok())
            })
        };
        let synced = || {
            let here = on_disk.file_system();
            let is_here = |active: &mut Active| {
                let files = (active.file.file.file_system(), active.index.file_system());
                here.is_some() && files == (here, here)
            };
            on_disk.sync_file_system().is_ok()
                && each(&|active| match is_here(active) {
                    true => Ok(()),
                    false => Err(elsewhere(&active.file.path)),
                })
        };
        let trimmed = each(&|active| active.write_closed())
            && synced()
            && each(&|active| active.cut())
            && synced();
        if trimmed {
            each(&|active| {
                active.set_trimmed();
                Ok(())
            });
        }
    }

    fn finish_closing(&self) -> Result<(), AppendError> {
        let _serial = self.disk_work.lock();
        let mut state = self.state.lock();
        let tidied = self.tidy(&mut state);
        // Waiters that the last sync did not serve.
        drop(self.stop(&mut state, Stopped::Closed));
        tidied
    }

    fn tidy(&self, state: &mut State) -> Result<(), AppendError> {
        if state.settled_offset != state.log_end_offset {
            // That was said before.
            return Ok(());
        }
        if let Some(active) = state.active.as_mut().filter(|active| !active.is_trimmed()) {
            let trimmed = active
                .write_closed()
                .and_then(|()| active.index.sync())
                .and_then(|()| active.cut())
                .and_then(|()| active.file.file.sync().on("sync", &active.file.path));
            if trimmed.is_ok() {
                active.set_trimmed();
            }
            trimmed.map_err(|error| self.refuse(state, error))?;
        }
        let disk = self.shared.disk.as_ref();
        match self.reserved.close(disk, &self.dir, state.log_end_offset) {
            Ok(()) => Ok(()),
            // The larger bound stands: a gap in the offsets, nothing worse.
            Err(error) if error.is_full() => Ok(()),
            Err(error) => Err(self.poison(state, &error)),
        }
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

/// A sync of the file system says nothing of this file.
fn elsewhere(path: &Path) -> DiskError {
    DiskError {
        action: "sync",
        path: path.to_owned(),
        source: io::Error::from(io::ErrorKind::CrossesDevices),
    }
}
