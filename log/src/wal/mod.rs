//! The write-ahead log: what makes small appends to many partitions durable by one sync of one file.
//!
//! A group commit writes the frames of all partitions that wait, each as one record, behind each other into the current
//! file and syncs that. The frames stand in their segments, too, in the page cache; those are synced later, in the
//! background, all at once. After a crash the records put back into the segments what of them did not reach the disk.
//!
//! Appends larger than [`Wal::largest_record`] are not written twice: their segment is synced instead.
//!
//! Files `<data>/wal/<number>.wal`, written from their start and used again from their start once every partition named in
//! them was synced in its own segments. All but the first are filled with zeros ahead: the sync of blocks that were written
//! before needs no commit of the file system's journal. They grow with the load, from [`MIN_FILE_BYTES`] on. Big-endian:
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
//! - **LOG-14**: a file is used again only once the frames of all its records are durable in their segments, with their
//!   index entries. Replaying a record twice, or one whose segment has gone on since, changes nothing.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk};
use crate::partition::Partition;

mod record;
mod replay;

pub(crate) use record::{FoundRecord, RECORD_HEADER_BYTES, RecordHeader};
pub(crate) use replay::{Replay, read_wal};
use replay::{file_header, wal_dir, wal_paths};

const MAGIC: &[u8; 8] = b"BSLTWAL1";
const FILE_HEADER_BYTES: usize = 64;
/// Files are this large at most.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The first file, so that a small disk holds it.
const MIN_FILE_BYTES: u64 = 1 << 20;
/// A file that knows of so many partitions is full: their files stay open until a checkpoint has synced them.
const MOST_PARTITIONS: usize = 2048;
/// A new file takes at most this part of what is free.
const SHARE_OF_FREE: u64 = 16;
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

/// One file.
#[derive(Debug)]
pub(crate) struct WalFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    capacity: u64,
    sequence: u64,
    position: u64,
    /// The partitions that have records in it.
    partitions: Vec<Weak<Partition>>,
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

/// What a group leaves behind it.
#[derive(Debug, Default)]
pub(crate) struct Group {
    bytes: Vec<u8>,
    sequence: u64,
    partitions: Vec<Weak<Partition>>,
}

impl Group {
    /// Bytes it takes so far.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Adds the record of `bytes` bytes of frames, which `read` reads.
    ///
    /// # Errors
    /// That of `read`: nothing was added.
    pub(crate) fn push(
        &mut self,
        header: &RecordHeader,
        bytes: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let frames_bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let start = self.bytes.len();
        let frames_start = start + RECORD_HEADER_BYTES;
        self.bytes.resize(frames_start + frames_bytes, 0);
        if let Err(error) = read(&mut self.bytes[frames_start..]) {
            self.bytes.truncate(start);
            return Err(error);
        }
        let encoded = header.encode(self.sequence, &self.bytes[frames_start..]);
        self.bytes[start..frames_start].copy_from_slice(&encoded);
        Ok(())
    }

    /// Drops what was added since it took `bytes`.
    pub(crate) fn cut(&mut self, bytes: u64) {
        self.bytes
            .truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Has the file remember the partition.
    pub(crate) fn touch(&mut self, partition: Weak<Partition>) {
        self.partitions.push(partition);
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
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

    fn largest_file(&self) -> u64 {
        MAX_FILE_BYTES.min(self.max_bytes / 4)
    }

    fn smallest_file(&self) -> u64 {
        MIN_FILE_BYTES.min(self.max_bytes / 4)
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

    fn wants_spare(&self, state: &WalState) -> bool {
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

    fn create_file(&self, state: &mut WalState) -> Option<WalFile> {
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
