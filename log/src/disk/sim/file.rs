//! A file of the simulated disk, with its three images.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{DuringSync, Operation, Sim, SimRng};
use crate::disk::{Descriptor, DiskFile};
use crate::mmap::{Map, Memory};

const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
/// Address space of a simulated file.
const FILE_CAPACITY: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct SimFile {
    path: PathBuf,
    sim: std::sync::Weak<Mutex<Sim>>,
    memory: Memory,
    pub(super) state: Mutex<FileState>,
}

#[derive(Debug, Default, Clone)]
pub(super) struct FileState {
    pub(super) len: usize,
    /// Bytes that writing cannot find the disk full for.
    pub(super) reserved: usize,
    pub(super) clean: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Sectors written by a call since the last sync, whether or not their bytes changed.
    pub(super) dirtied: BTreeSet<usize>,
}

impl SimFile {
    pub(super) fn new(
        path: &Path,
        sim: &Arc<Mutex<Sim>>,
        bytes: &[u8],
        state: FileState,
    ) -> Arc<Self> {
        let memory = match Memory::new(FILE_CAPACITY) {
            Ok(memory) => memory,
            Err(error) => panic!("no memory for a simulated file: {error}"),
        };
        memory.write(0, bytes);
        Arc::new(Self {
            path: path.to_owned(),
            sim: Arc::downgrade(sim),
            memory,
            state: Mutex::new(state),
        })
    }

    pub(super) fn live_bytes(&self) -> Vec<u8> {
        self.memory.read(0..self.state.lock().len)
    }

    pub(super) fn duplicate(&self, sim: &Arc<Mutex<Sim>>) -> Arc<Self> {
        Self::new(
            &self.path,
            sim,
            &self.live_bytes(),
            self.state.lock().clone(),
        )
    }

    pub(super) fn after_power_loss(
        &self,
        path: &Path,
        sim: &Arc<Mutex<Sim>>,
        rng: &mut SimRng,
    ) -> Arc<Self> {
        let state = self.state.lock();
        let live = self.memory.read(0..state.len);
        let len = if live.len() == state.durable.len() || rng.below(2) == 0 {
            state.durable.len()
        } else {
            live.len()
        };
        let mut bytes = state.durable.clone();
        bytes.resize(len.max(live.len()), 0);
        for sector in 0..live.len().div_ceil(SECTOR_BYTES) {
            let range = sector * SECTOR_BYTES..((sector + 1) * SECTOR_BYTES).min(live.len());
            let differs = state.clean.get(range.clone()) != Some(&live[range.clone()]);
            if !differs && !state.dirtied.contains(&sector) {
                continue;
            }
            let written = match rng.below(3) {
                0 => 0,
                1 => range.len(),
                _ => rng.below(range.len() + 1),
            };
            let written = range.start..range.start + written;
            bytes[written.clone()].copy_from_slice(&live[written]);
        }
        bytes.truncate(len);
        let after = FileState {
            len,
            reserved: len,
            clean: bytes.clone(),
            durable: bytes.clone(),
            dirtied: BTreeSet::new(),
        };
        Self::new(path, sim, &bytes, after)
    }

    fn fault(&self, operation: Operation) -> io::Result<()> {
        let sim = self.sim.upgrade();
        sim.map_or(Ok(()), |sim| sim.lock().fault(operation, &self.path))
    }

    fn enter(&self, operation: Operation) -> io::Result<bool> {
        // A file of a disk that is gone behaves as one that nobody will look at again.
        let Some(sim) = self.sim.upgrade() else {
            return Ok(false);
        };
        let mut sim = sim.lock();
        sim.step(operation, &self.path)?;
        Ok(sim.full)
    }
}

fn full() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

fn to_index(bytes: u64) -> io::Result<usize> {
    let index = usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= FILE_CAPACITY);
    index.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len as u64)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let disk_full = self.enter(Operation::Allocate)?;
        let bytes = to_index(bytes)?;
        let mut state = self.state.lock();
        if disk_full && bytes > state.reserved {
            return Err(full());
        }
        state.reserved = state.reserved.max(bytes);
        state.len = state.len.max(bytes);
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let disk_full = self.enter(Operation::Allocate)?;
        let bytes = to_index(bytes)?;
        let mut state = self.state.lock();
        if disk_full && bytes > state.reserved {
            return Err(full());
        }
        state.reserved = state.reserved.max(bytes);
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.enter(Operation::SetLen)?;
        let bytes = to_index(bytes)?;
        let mut state = self.state.lock();
        if bytes < state.len {
            self.memory.write(bytes, &vec![0; state.len - bytes]);
        }
        state.len = bytes;
        state.reserved = state.reserved.min(bytes);
        Ok(())
    }

    fn map(&self, readable: usize, expected: usize) -> io::Result<Map> {
        to_index(expected as u64)?;
        self.fault(Operation::Map)?;
        if readable > self.state.lock().len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        Ok(self.memory.map(readable))
    }

    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<()> {
        self.fault(Operation::Read)?;
        let position = to_index(position)?;
        let end = position + bytes.len();
        if end > self.state.lock().len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        bytes.copy_from_slice(&self.memory.read(position..end));
        Ok(())
    }

    fn load(&self, position: u64, bytes: u64, see: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut read = vec![0; to_index(bytes)?];
        self.read_at(&mut read, position)?;
        see(&read);
        Ok(())
    }

    fn read_all(&self) -> io::Result<Vec<u8>> {
        Ok(self.live_bytes())
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let position = to_index(position)?;
        let (entered, bytes) = match self.enter(Operation::Write) {
            Ok(disk_full) => (Ok(disk_full), bytes),
            Err(error) => (Err(error), self.part_of(bytes, position)),
        };
        let end = to_index((position + bytes.len()) as u64)?;
        let mut state = self.state.lock();
        if *entered.as_ref().unwrap_or(&false) && end > state.reserved.max(state.clean.len()) {
            return Err(full());
        }
        if bytes.is_empty() {
            return entered.map(drop);
        }
        self.memory.write(position, bytes);
        state.len = state.len.max(end);
        state.reserved = state.reserved.max(end);
        state
            .dirtied
            .extend(position / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
        entered.map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        let (allowed, others) = self.enter_sync()?;
        let (before, after): (Option<_>, Option<_>) = match others {
            Some(others) if others.covered => (Some(others.work), None),
            Some(others) => (None, Some(others.work)),
            None => (None, None),
        };
        if let Some(work) = before {
            work();
        }
        self.take_effect(allowed.is_ok());
        if let Some(work) = after {
            work();
        }
        allowed
    }

    fn zero_from(&self, from: u64) -> io::Result<()> {
        let behind = usize::try_from(self.len()?.saturating_sub(from)).unwrap_or(0);
        self.write_at(&vec![0; behind], from)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.enter(Operation::SyncFileSystem)?;
        let Some(sim) = self.sim.upgrade() else {
            return Ok(());
        };
        let files: Vec<Arc<Self>> = {
            let mut sim = sim.lock();
            for (_, change) in std::mem::take(&mut sim.pending) {
                change.apply(&mut sim.durable);
            }
            sim.live.values().cloned().collect()
        };
        files.iter().for_each(|file| file.take_effect(true));
        Ok(())
    }

    fn descriptor(&self) -> io::Result<Option<Descriptor>> {
        Ok(None)
    }
}

impl SimFile {
    /// Whether a sync goes well, and what others do meanwhile; an error once the process has ended.
    fn enter_sync(&self) -> io::Result<(io::Result<()>, Option<DuringSync>)> {
        let Some(sim) = self.sim.upgrade() else {
            return Ok((Ok(()), None));
        };
        let mut sim = sim.lock();
        let allowed = sim.step(Operation::Sync, &self.path);
        if sim.stopped {
            return allowed.map(|()| (Ok(()), None));
        }
        let others = sim.take_during_sync();
        Ok((allowed, others))
    }

    /// What a write that is cut off has done: some of its pages, or all, or nothing once the process has ended.
    fn part_of<'a>(&self, bytes: &'a [u8], position: usize) -> &'a [u8] {
        let Some(sim) = self.sim.upgrade() else {
            return &[];
        };
        let mut sim = sim.lock();
        let too_late = sim.nothing_more;
        sim.nothing_more = sim.stopped;
        if too_late {
            return &[];
        }
        let first = (PAGE_BYTES - position % PAGE_BYTES).min(bytes.len());
        let pages = 1 + (bytes.len() - first).div_ceil(PAGE_BYTES);
        match SimRng::new(sim.operations).below(pages + 1) {
            0 => &[],
            page => &bytes[..(first + (page - 1) * PAGE_BYTES).min(bytes.len())],
        }
    }

    /// The sectors that differ from what the kernel believes to be on the disk get there, or do not and are believed to be.
    fn take_effect(&self, well: bool) {
        let mut state = self.state.lock();
        let live = self.memory.read(0..state.len);
        if well {
            state.durable.resize(live.len(), 0);
            for sector in 0..live.len().div_ceil(SECTOR_BYTES) {
                let range = sector * SECTOR_BYTES..((sector + 1) * SECTOR_BYTES).min(live.len());
                if state.dirtied.contains(&sector)
                    || state.clean.get(range.clone()) != Some(&live[range.clone()])
                {
                    state.durable[range.clone()].copy_from_slice(&live[range]);
                }
            }
        }
        state.clean = live;
        state.dirtied.clear();
    }
}
