//! The write-ahead log: what makes small appends to many partitions durable by one sync of one file.
//!
//! A group commit writes the frames of all partitions that wait, each as one record, behind each other into the current
//! file and syncs that. The frames stand in their segments, too, in the page cache; those are synced later, in the
//! background, all at once. After a crash the records put back into the segments what of them did not reach the disk.
//!
//! Appends larger than [`Wal::largest_record`] are not written twice: their segment is synced instead.
//!
//! Files `<data>/wal/<number>.wal`, written from their start and used again from their start once every partition named in
//! them was synced in its own segments (`files`, LOG-14). Big-endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `BSLTWAL1` |
//! | 8 | 8 | sequence number: files are replayed in its order |
//! | 16 | 44 | 0 |
//! | 60 | 4 | CRC-32C of the 60 bytes before |
//!
//! then records, up to the first that does not check or carries another sequence number:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of the 60 bytes that follow |
//! | 4 | 4 | bytes of frames |
//! | 8 | 8 | sequence number of the file |
//! | 16 | 8 | topic id |
//! | 24 | 4 | partition |
//! | 28 | 4 | CRC-32C of the frames |
//! | 32 | 8 | base offset of the segment |
//! | 40 | 8 | position in the segment |
//! | 48 | 8 | offset of the first record in the frames |
//! | 56 | 8 | offsets they span |
//! | 64 | | the frames |
//!
//! - **LOG-13**: a group is written only after the one before it is durable, and a partition's record begins where its
//!   durable frames end. So whatever stands before a record of a partition was durable when it was written.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::Disk;
use crate::error::{DiskError, OnDisk};

mod files;
mod group;
mod record;
mod replay;

use files::WalFile;
pub(crate) use group::Group;
pub(crate) use record::{FoundRecord, RECORD_HEADER_BYTES, RecordHeader};
pub(crate) use replay::{Replay, read_wal};
use replay::{file_header, wal_dir, wal_paths};

const MAGIC: &[u8; 8] = b"BSLTWAL1";
const FILE_HEADER_BYTES: usize = 64;
/// A file that knows of so many partitions is full: their files stay open until a checkpoint has synced them.
const MOST_PARTITIONS: usize = 2048;
/// What is larger is cheaper to sync in its segment than to write twice.
const MAX_RECORD_BYTES: u64 = 256 << 10;

/// The files of a data folder, written by one thread.
#[derive(Debug)]
pub(crate) struct Wal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    max_bytes: u64,
    state: Mutex<WalState>,
}

#[derive(Debug, Default)]
struct WalState {
    current: Option<WalFile>,
    /// Written to their end, waiting for a checkpoint.
    full: VecDeque<WalFile>,
    /// Those that a checkpoint could not free.
    stuck: Vec<WalFile>,
    spare: VecDeque<WalFile>,
    /// Bytes of all files.
    bytes: u64,
    next_sequence: u64,
    next_number: u64,
    /// A spare file is being made, or could not be: it is tried once for each file.
    spare_tried: bool,
    /// That no file could be made was said.
    warned: bool,
}

impl Wal {
    /// The write-ahead log of a data folder. Files that are there are taken as they are, to be used again once
    /// [`Self::release_all`] says that what they hold is no longer needed. None is made before it is needed.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        max_bytes: u64,
    ) -> Result<(Self, Replay), DiskError> {
        let dir = wal_dir(data_dir);
        let replay = read_wal(disk.as_ref(), data_dir)?;
        let mut state = WalState {
            // Not the next one: a file may have been put to use under that, with records on the disk and its header not.
            next_sequence: replay.files.last().map_or(1, |(sequence, _)| sequence + 2),
            next_number: 1,
            ..WalState::default()
        };
        let paths = wal_paths(disk.as_ref(), &dir)?;
        if !paths.is_empty() {
            // A file that an earlier process made and whose name it could not sync any more is put to use, too.
            disk.sync_dir(&dir).on("sync", &dir)?;
        }
        for (number, path) in paths {
            let file = disk.open(&path).on("open", &path)?;
            let capacity = file.len().on("read the length of", &path)?;
            state.next_number = state.next_number.max(number + 1);
            state.bytes += capacity;
            state.full.push_back(WalFile {
                path,
                file,
                capacity,
                sequence: 0,
                position: 0,
                partitions: Vec::new(),
            });
        }
        let wal = Self {
            disk: Arc::clone(disk),
            dir,
            max_bytes,
            state: Mutex::new(state),
        };
        Ok((wal, replay))
    }

    /// The most bytes of frames that one record may have.
    pub(crate) fn largest_record(&self) -> u64 {
        // However many records it is cut into, with a header each, a group holds it: no frame is shorter than 29 bytes.
        MAX_RECORD_BYTES.min(self.largest_group() / 4)
    }

    /// The most bytes of records that one group may have, and still fits every file.
    pub(crate) fn largest_group(&self) -> u64 {
        self.smallest_file()
            .saturating_sub(FILE_HEADER_BYTES as u64)
    }

    /// Begins a group of `bytes`, at most [`Self::largest_group`], in a file that has room for it; `None` when there is none:
    /// the disk is full, or checkpoints have not kept up.
    pub(crate) fn begin(&self, bytes: u64) -> Option<Group> {
        let mut state = self.state.lock();
        let fits = |file: &WalFile| {
            file.position + bytes <= file.capacity && file.partitions.len() < MOST_PARTITIONS
        };
        if !state.current.as_ref().is_some_and(fits) {
            let full = state.current.take();
            state.full.extend(full);
            let stuck = std::mem::take(&mut state.stuck);
            state.full.extend(stuck);
            let next = match state.spare.pop_front() {
                Some(spare) => Some(spare),
                None => self.create_file(&mut state),
            };
            let mut next = next?;
            next.sequence = state.next_sequence;
            next.position = 0;
            next.partitions.clear();
            state.next_sequence += 1;
            state.spare_tried = false;
            state.current = Some(next);
        }
        let current = state.current.as_ref()?;
        let mut group = Group {
            sequence: current.sequence,
            ..Group::default()
        };
        if current.position == 0 {
            // Together with its first group: as long as the header is not durable neither is any record.
            group
                .bytes
                .extend_from_slice(&file_header(current.sequence));
        }
        Some(group)
    }

    /// Writes a group and syncs it: its records are durable on return.
    ///
    /// # Errors
    /// [`DiskError`]: no record of the group may be acknowledged by virtue of it or of any later sync; the file is not
    /// written to again.
    pub(crate) fn commit(&self, group: &mut Group) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        let Some(current) = state.current.as_mut() else {
            let nowhere: io::Result<()> = Err(io::ErrorKind::NotFound.into());
            return nowhere.on("write to the current file of", &self.dir);
        };
        assert_eq!(
            current.sequence, group.sequence,
            "a group is written to the file it was begun in"
        );
        let position = current.position;
        current.partitions.append(&mut group.partitions);
        let (file, path) = (Arc::clone(&current.file), current.path.clone());
        current.position += group.len();
        drop(state);
        let written = file
            .write_at(&group.bytes, position)
            .and_then(|()| file.sync())
            .on("write", &path);
        if written.is_err() {
            let mut state = self.state.lock();
            let failed = state.current.take();
            state.full.extend(failed);
        }
        written
    }

    /// Whether there is something to do for a thread that does not commit.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.state.lock();
        !state.full.is_empty() || self.wants_spare(&state)
    }

    /// Says that nothing in the files is needed, by sequence numbers that no record has: every partition was closed in order.
    /// Nothing is synced; what a crash brings back changes nothing (LOG-14).
    pub(crate) fn close(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let files = state
            .current
            .iter()
            .chain(&state.full)
            .chain(&state.stuck)
            .chain(&state.spare);
        for (file, sequence) in files.zip(state.next_sequence..) {
            if let Err(error) = file.file.write_at(&file_header(sequence), 0) {
                tracing::debug!(path = %file.path.display(), %error, "a file of the write-ahead log keeps its records");
            }
        }
    }

    /// Whether the list of files is in use, so that nothing may be committed by the same thread: for tests.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_locked(&self) -> bool {
        self.state.is_locked()
    }

    /// Has the file written no more before a checkpoint, whatever room it has: for tests.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn turn(&self) {
        let mut state = self.state.lock();
        let current = state.current.take();
        state.full.extend(current);
    }
}
