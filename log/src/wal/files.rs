//! The files of the write-ahead log: how many and how large they are, made ahead and used again. What is in them it does not know.
//!
//! All but the first are filled with zeros ahead: the sync of blocks that were written before needs no commit of the file
//! system's journal. They grow with the load, from [`MIN_FILE_BYTES`] on.
//!
//! - **LOG-14**: a file is used again only once the frames of all its records are durable in their segments, with their
//!   index entries. Replaying a record twice, or one whose segment has gone on since, changes nothing.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::{Wal, WalState};
use crate::disk::DiskFile;
use crate::error::{DiskError, OnDisk};
use crate::partition::Partition;

/// Files are this large at most.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The first file, so that a small disk holds it.
const MIN_FILE_BYTES: u64 = 1 << 20;
/// A new file takes at most this part of what is free.
const SHARE_OF_FREE: u64 = 16;

/// One file.
#[derive(Debug)]
pub(crate) struct WalFile {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) capacity: u64,
    pub(super) sequence: u64,
    pub(super) position: u64,
    /// The partitions that have records in it.
    pub(super) partitions: Vec<Weak<Partition>>,
}

impl WalFile {
    pub(crate) fn file(&self) -> &dyn DiskFile {
        self.file.as_ref()
    }

    /// The partitions that must be synced in their segments before it may be used again.
    pub(crate) fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Whether a new file's blocks are written ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Yes,
    No,
}

impl Wal {
    fn largest_file(&self) -> u64 {
        MAX_FILE_BYTES.min(self.max_bytes / 4)
    }

    pub(super) fn smallest_file(&self) -> u64 {
        MIN_FILE_BYTES.min(self.max_bytes / 4)
    }

    /// Makes the file that comes after the current one, if there is none, for the thread that commits to find it ready.
    pub(crate) fn make_spare(&self) {
        let (path, capacity) = {
            let mut state = self.state.lock();
            if !self.wants_spare(&state) {
                return;
            }
            let Some(place) = self.next_place(&mut state) else {
                return;
            };
            state.spare_tried = true;
            place
        };
        let made = self.create(&path, capacity, Filled::Yes);
        let mut state = self.state.lock();
        let made = self.note_made(&mut state, made, &path, capacity);
        state.spare.extend(made);
    }

    pub(super) fn wants_spare(&self, state: &WalState) -> bool {
        let Some(next) = self.next_capacity(state) else {
            return false;
        };
        // Up to half of what there may be each file makes a larger one, so that a busy log has few checkpoints.
        let grows = state.bytes + next <= self.max_bytes / 2;
        state.current.is_some() && !state.spare_tried && (grows || state.spare.is_empty())
    }

    /// Files grow as more of them were needed; `None` when there is no room for another.
    fn next_capacity(&self, state: &WalState) -> Option<u64> {
        let capacity = state.bytes.clamp(self.smallest_file(), self.largest_file());
        // Where there is little room it is for records.
        let data_dir = self.dir.parent().unwrap_or(&self.dir);
        let affordable = self.disk.free_bytes(data_dir) / SHARE_OF_FREE;
        (state.bytes + capacity <= self.max_bytes && capacity <= affordable).then_some(capacity)
    }

    /// The path and size of a new file, which counts from now on.
    fn next_place(&self, state: &mut WalState) -> Option<(PathBuf, u64)> {
        let capacity = self.next_capacity(state)?;
        let path = self.dir.join(format!("{}.wal", state.next_number));
        state.next_number += 1;
        state.bytes += capacity;
        Some((path, capacity))
    }

    pub(super) fn create_file(&self, state: &mut WalState) -> Option<WalFile> {
        let (path, capacity) = self.next_place(state)?;
        let made = self.create(&path, capacity, Filled::No);
        self.note_made(state, made, &path, capacity)
    }

    /// A new file, or the word that there is none.
    fn note_made(
        &self,
        state: &mut WalState,
        made: Result<WalFile, DiskError>,
        path: &Path,
        capacity: u64,
    ) -> Option<WalFile> {
        match made {
            Ok(file) => {
                state.warned = false;
                Some(file)
            }
            Err(error) => {
                if !std::mem::replace(&mut state.warned, true) {
                    tracing::warn!(%error, source = %error.source, "the write-ahead log gets no further file: segments are synced one by one");
                }
                state.bytes -= capacity;
                // Ignored: the error that counts is the first one.
                let _ = self.disk.remove_file(path);
                None
            }
        }
    }

    fn create(&self, path: &Path, capacity: u64, filled: Filled) -> Result<WalFile, DiskError> {
        self.disk
            .create_dir_all(&self.dir)
            .on("create", &self.dir)?;
        let file = self.disk.create(path).on("create", path)?;
        file.allocate(capacity).on("grow", path)?;
        let zeros = [0; 64 << 10];
        let mut at = if filled == Filled::Yes { 0 } else { capacity };
        while at < capacity {
            let some = usize::try_from(capacity - at)
                .unwrap_or(zeros.len())
                .min(zeros.len());
            file.write_at(&zeros[..some], at).on("fill", path)?;
            at += some as u64;
        }
        file.sync().on("sync", path)?;
        self.disk.sync_dir(&self.dir).on("sync", &self.dir)?;
        Ok(WalFile {
            path: path.to_owned(),
            file,
            capacity,
            sequence: 0,
            position: 0,
            partitions: Vec::new(),
        })
    }

    /// Every partition was recovered: what the files held is in the segments, durably, but for what is `unproven` there.
    pub(crate) fn release_all(&self, unproven: &[Weak<Partition>]) {
        let mut state = self.state.lock();
        if !unproven.is_empty() {
            for file in &mut state.full {
                file.partitions = unproven.to_vec();
            }
            return;
        }
        let files = std::mem::take(&mut state.full);
        // One that was cut off in the making is not worth keeping.
        let (kept, small): (VecDeque<_>, VecDeque<_>) = files
            .into_iter()
            .partition(|file| file.capacity >= self.smallest_file());
        state.spare.extend(kept);
        for file in small {
            self.remove(&mut state, &file);
        }
    }

    /// The oldest full file, for its partitions to be synced.
    pub(crate) fn take_full(&self) -> Option<WalFile> {
        self.state.lock().full.pop_front()
    }

    /// Takes a file back that is still needed, until the current one is full, too.
    pub(crate) fn keep(&self, file: WalFile) {
        self.state.lock().stuck.push(file);
    }

    /// Takes a file back whose partitions were synced (LOG-14). Small ones make room for larger ones.
    pub(crate) fn recycle(&self, file: WalFile) {
        let mut state = self.state.lock();
        let is_usable = file.capacity >= self.smallest_file();
        let is_wanted = file.capacity >= self.largest_file() || state.bytes < self.max_bytes / 2;
        if is_usable && is_wanted {
            state.spare.push_back(file);
        } else {
            self.remove(&mut state, &file);
        }
    }

    fn remove(&self, state: &mut WalState, file: &WalFile) {
        match self.disk.remove_file(&file.path) {
            Ok(()) => state.bytes -= file.capacity,
            Err(error) => {
                tracing::warn!(path = %file.path.display(), %error, "a file of the write-ahead log was not removed");
            }
        }
    }
}
