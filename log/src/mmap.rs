//! The one module with `unsafe`: a file (or anonymous memory) mapped shared, for reading.
//!
//! A [`Map`] is lent for the bytes that are known to be in the file, and reads no others. Those never change again, so handing
//! out `&[u8]` of them is sound while this process is the only one that writes the file (the data folder's lock).
//!
//! Nothing is written through a map: writing to a page for the first time there costs twice the processor time of
//! `pwrite(2)`, and a full disk is a signal instead of an error (docs/BENCHMARKS.md has the measurement).
//!
//! - **LOG-1**: bytes that a map was lent for are never written again, but with themselves.
//! - **LOG-2**: the file under them is never cut while the map lives (a segment is trimmed only down to its frames), so
//!   reading them cannot raise SIGBUS.
//!
//! And two system calls that have no safe wrapper, [`cached_pages`] and [`write_back`].
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};

#[derive(Debug)]
struct Region {
    raw: Arc<MmapRaw>,
    _counted: Option<Counted>,
}

/// One of the maps that there are at the moment.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A mapped file, lent for its first bytes. Clones share the map, which is there until the last of them is dropped.
#[derive(Debug, Clone)]
pub struct Map {
    region: Arc<Region>,
    readable: usize,
}

/// Address space for `bytes` bytes of `file`, none of which may be read yet; `count` counts it as long as it is there.
///
/// The range may reach past the end of the file: only what the map is lent for is ever read.
///
/// # Errors
/// The error of `mmap(2)`.
pub(crate) fn map_file(file: &File, bytes: usize, count: &Arc<AtomicUsize>) -> io::Result<Map> {
    let raw = MmapOptions::new()
        .len(bytes.max(1))
        .map_raw_read_only(file)?;
    count.fetch_add(1, Ordering::Relaxed);
    Ok(Map {
        region: Arc::new(Region {
            raw: Arc::new(raw),
            _counted: Some(Counted(Arc::clone(count))),
        }),
        readable: 0,
    })
}

impl Map {
    /// Bytes that may be read.
    #[must_use]
    pub fn readable(&self) -> usize {
        self.readable
    }

    /// Bytes of address space.
    pub(crate) fn capacity(&self) -> usize {
        self.region.raw.len()
    }

    /// The same map for the first `readable` bytes, which are in the file for good (LOG-1, LOG-2).
    ///
    /// # Panics
    /// When there is not so much address space.
    pub(crate) fn lend(&self, readable: usize) -> Self {
        assert!(readable <= self.capacity(), "lent past the map's end");
        Self {
            region: Arc::clone(&self.region),
            readable,
        }
    }

    /// Whether anyone else has it.
    pub(crate) fn is_lent(&self) -> bool {
        Arc::strong_count(&self.region) > 1
    }

    /// The bytes in `range`.
    ///
    /// # Panics
    /// When the range reaches past [`Self::readable`]: callers cut their ranges to what they asked for.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.readable,
            "read past the bytes that the map is lent for"
        );
        // SAFETY: the range lies within the readable bytes (asserted above), hence within the region (asserted when it was
        // lent), and by LOG-1 no one writes them while this borrow, or any other, lives; by LOG-2 the file is that long.
        unsafe {
            std::slice::from_raw_parts(self.region.raw.as_ptr().add(range.start), range.len())
        }
    }
}

/// Some bytes of a mapped file, which keep its map as long as they live.
#[derive(Debug, Clone)]
pub struct MappedBytes {
    map: Map,
    range: Range<usize>,
}

impl MappedBytes {
    /// The bytes in `range`.
    ///
    /// # Panics
    /// When it reaches past what the map is lent for.
    pub(crate) fn new(map: Map, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= map.readable(),
            "bytes past those that the map is lent for"
        );
        Self { map, range }
    }
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.bytes(self.range.clone())
    }
}

/// Memory of a simulated file: what several maps of one file share, as one page cache serves them all.
#[derive(Debug, Clone)]
pub struct Memory {
    raw: Arc<MmapRaw>,
}

impl Memory {
    /// Zeroed memory of `capacity` bytes, provided by the system page by page as it is touched.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            raw: Arc::new(MmapRaw::from(
                MmapOptions::new().len(capacity.max(1)).map_anon()?,
            )),
        })
    }

    /// Bytes of this memory.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.raw.len()
    }

    /// Copies the bytes in `range` out.
    #[must_use]
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(
            range.start <= range.end && range.end <= self.capacity(),
            "read past the memory's end"
        );
        let mut out = vec![0; range.len()];
        // SAFETY: the range lies in the region (asserted) and the copy is by raw pointers, so no reference is made to
        // bytes that are being written.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.raw.as_ptr().add(range.start),
                out.as_mut_ptr(),
                range.len(),
            )
        };
        out
    }

    /// Copies `bytes` in at `position`, where no map may be read.
    pub fn write(&self, position: usize, bytes: &[u8]) {
        assert!(
            position
                .checked_add(bytes.len())
                .is_some_and(|end| end <= self.capacity()),
            "write past the memory's end"
        );
        // SAFETY: within the region (asserted), by raw pointers; callers write nothing that is lent (LOG-1).
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.raw.as_mut_ptr().add(position),
                bytes.len(),
            )
        };
    }

    /// A map over this memory, as a map over a file that was lent for its first `readable` bytes.
    #[must_use]
    pub fn map(&self, readable: usize) -> Map {
        let map = Map {
            region: Arc::new(Region {
                raw: Arc::clone(&self.raw),
                _counted: None,
            }),
            readable: 0,
        };
        map.lend(readable)
    }
}

/// `cachestat(2)`, since Linux 6.5, by one number on all architectures of this project.
const CACHESTAT: libc::c_long = 451;

/// How many of the pages that hold `range` of `file` are in the page cache, be they read yet or on their way, and how many
/// there are.
///
/// # Errors
/// `Unsupported` before Linux 6.5 and for a range that is empty; else the error of `cachestat(2)`.
pub(crate) fn cached_pages(file: &File, range: &Range<u64>) -> io::Result<(u64, u64)> {
    #[repr(C)]
    struct Asked {
        position: u64,
        bytes: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Found {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    if range.is_empty() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let asked = Asked {
        position: range.start,
        bytes: range.end - range.start,
    };
    let mut found = Found::default();
    let descriptor = file.as_raw_fd();
    // SAFETY: the descriptor is open while `file` is borrowed; the kernel reads one `struct cachestat_range` and writes one
    // `struct cachestat`, whose layouts these are, and keeps neither pointer.
    let answer =
        unsafe { libc::syscall(CACHESTAT, descriptor, &raw const asked, &raw mut found, 0) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is handed over; the answer is a number.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let pages = range.end.div_ceil(page_bytes) - range.start / page_bytes;
    Ok((found.cached, pages))
}

/// Writes the dirty pages of `range` to the disk and waits until they are there: `sync_file_range(2)`. The disk's own cache is
/// not flushed.
///
/// # Errors
/// A failure to write, which `fdatasync(2)` on the same descriptor does not report a second time. A file system that does not
/// know the call is no error.
pub(crate) fn write_back(file: &File, range: Range<u64>) -> io::Result<()> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let from = i64::try_from(range.start).map_err(too_large)?;
    let bytes = i64::try_from(range.end - range.start).map_err(too_large)?;
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open while `file` is borrowed, and no memory is handed over.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), from, bytes, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_a_map_is_lent_for_and_nothing_after_it() {
        let memory = Memory::new(64).expect("memory");
        memory.write(0, b"abc");
        let map = memory.map(2);
        assert_eq!(map.bytes(0..2), b"ab");
        assert!(std::panic::catch_unwind(|| map.bytes(0..3).len()).is_err());
        assert!(std::panic::catch_unwind(|| map.lend(65).readable()).is_err());
        assert_eq!(&*MappedBytes::new(map, 1..2), b"b");
    }
}
