//! The reservation of offsets: a bound, durable before any offset below it is acknowledged or shown without an fsync of
//! its record, so that an offset that was seen is never given to another record, even if its record was lost.
//!
//! File `reserved` in the partition's folder, 64 bytes, big-endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `BSLTRSV1` |
//! | 8 | 8 | bound: no offset at or above it was acknowledged without an fsync |
//! | 16 | 8 | floor: where the log went on when it was last opened, which no later start may fall below |
//! | 24 | 36 | name of the boot in which it was written, padded with zeros |
//! | 60 | 4 | CRC-32C of the 60 bytes before |
//!
//! - **LOG-5**: an offset acknowledged or made visible from the page cache is below the bound on disk. After a restart of
//!   the machine the log goes on at the bound; after one of the process alone, with the page cache intact, where it was.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use basalt_proto::Offset;
use parking_lot::Mutex;

use crate::block::crc32c;
use crate::disk::{Disk, replace_file};
use crate::error::{DiskError, OnDisk};
use crate::index::{BOOT_BYTES, boot_field};

pub(crate) const FILE_NAME: &str = "reserved";
const MAGIC: &[u8; 8] = b"BSLTRSV1";
const FILE_BYTES: usize = 64;
const BOOT_AT: usize = 24;

/// The largest offset: what a signed 64-bit column can hold.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;
/// Offsets reserved at a time at most.
pub(crate) const MAX_STEP: u64 = 1 << 20;

/// What is reserved of a partition's offsets. Its lock comes after the partition's own, and nothing is locked under it.
#[derive(Debug)]
pub(crate) struct Reserved {
    bound: AtomicU64,
    /// The bound at which more was last reserved ahead.
    tried: AtomicU64,
    step: u64,
    /// Held while the file is written; whether that was for the last time.
    file: Mutex<bool>,
}

impl Reserved {
    /// A bound that is durable, to be raised by `step` offsets at a time.
    pub(crate) fn new(bound: Offset, step: u64) -> Self {
        Self {
            bound: AtomicU64::new(bound.0),
            tried: AtomicU64::new(0),
            step: step.clamp(1, MAX_STEP),
            file: Mutex::new(false),
        }
    }

    /// Whether offsets below `end` may be acknowledged without an fsync of their records.
    pub(crate) fn covers(&self, end: Offset) -> bool {
        end.0 <= self.bound.load(Ordering::Acquire)
    }

    /// Whether half of a step is used, and nobody has tried to reserve more since.
    pub(crate) fn runs_low(&self, end: Offset) -> bool {
        let bound = self.bound.load(Ordering::Acquire);
        bound > 0 && !self.is_ample(end) && self.tried.load(Ordering::Relaxed) != bound
    }

    fn is_ample(&self, end: Offset) -> bool {
        let bound = self.bound.load(Ordering::Acquire);
        bound
            .checked_sub(end.0)
            .is_some_and(|left| left >= self.step / 2)
    }

    /// Notes that more is being reserved ahead: what fails is not tried again before an append has to.
    pub(crate) fn set_tried(&self) {
        let bound = self.bound.load(Ordering::Acquire);
        self.tried.store(bound, Ordering::Relaxed);
    }

    /// Reserves a step from `end` on, unless another thread has meanwhile; durable on return. `floor` as in the file.
    pub(crate) fn extend(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        end: Offset,
        floor: Offset,
    ) -> Result<(), DiskError> {
        let is_last = self.file.lock();
        if *is_last || (self.is_ample(end) && self.covers(end)) {
            return Ok(());
        }
        let bound = Offset(end.0.saturating_add(self.step).min(MAX_OFFSET));
        store(disk, dir, bound, floor)?;
        self.bound.store(bound.0, Ordering::Release);
        Ok(())
    }

    /// Gives back what is reserved behind `end`, where the log ends in order. Nothing is reserved after it.
    pub(crate) fn close(&self, disk: &dyn Disk, dir: &Path, end: Offset) -> Result<(), DiskError> {
        let mut is_last = self.file.lock();
        *is_last = true;
        if self.bound.load(Ordering::Acquire) > end.0 {
            store(disk, dir, end, end)?;
        }
        Ok(())
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_locked(&self) -> bool {
        self.file.is_locked()
    }
}

fn encode(bound: Offset, floor: Offset, boot_id: &str) -> [u8; FILE_BYTES] {
    let mut out = [0; FILE_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..16].copy_from_slice(&bound.0.to_be_bytes());
    out[16..24].copy_from_slice(&floor.0.to_be_bytes());
    out[BOOT_AT..BOOT_AT + BOOT_BYTES].copy_from_slice(&boot_field(boot_id));
    let crc = crc32c(&out[..60]);
    out[60..].copy_from_slice(&crc.to_be_bytes());
    out
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) bound: Offset,
    pub(crate) floor: Offset,
    /// Whether it was written since the machine last started, so that the page cache is intact.
    pub(crate) same_boot: bool,
}

/// Stores a bound; durable on return.
fn store(disk: &dyn Disk, dir: &Path, bound: Offset, floor: Offset) -> Result<(), DiskError> {
    let path = dir.join(FILE_NAME);
    replace_file(disk, &path, &encode(bound, floor, &disk.boot_id()))
        .on("write", &path)
        .map(drop)
}

/// Reads the bound that was stored. A file that does not read is reported by the caller: it is only ever replaced whole, so
/// no crash makes one.
pub(crate) fn load(disk: &dyn Disk, dir: &Path) -> Result<Result<Reservation, String>, DiskError> {
    let path = dir.join(FILE_NAME);
    let bytes = disk
        .open(&path)
        .and_then(|file| file.read_all())
        .on("read", &path)?;
    let sound = bytes.len() == FILE_BYTES
        && bytes[..8] == *MAGIC
        && crc32c(&bytes[..60]).to_be_bytes() == bytes[60..];
    if !sound {
        return Ok(Err(format!("{} fails its checksum", path.display())));
    }
    let field = |at: usize| {
        let mut field = [0; 8];
        field.copy_from_slice(&bytes[at..at + 8]);
        Offset(u64::from_be_bytes(field))
    };
    let boot_id = disk.boot_id();
    let same_boot =
        !boot_id.is_empty() && bytes[BOOT_AT..BOOT_AT + BOOT_BYTES] == boot_field(&boot_id);
    Ok(Ok(Reservation {
        bound: field(8),
        floor: field(16),
        same_boot,
    }))
}
