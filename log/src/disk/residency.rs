//! Which bytes of a file are in the page cache, and getting them there.
//!
//! Measured for 1 MiB on Linux 6.18 (ext4): `cachestat(2)` 0.3 us, `mincore(2)` 30 us (1 us where the map is populated),
//! `preadv2(2)` with `RWF_NOWAIT` 0.5 us a byte that is asked for. Only the first is cheap enough to be exact, but it also
//! counts pages that are still being read; so the last byte is asked for, too, which answers only when it is there.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use crate::mmap::cached_pages;

/// Bytes between those that are asked for where the system cannot count pages.
const PROBE_BYTES: u64 = 64 << 10;
/// Bytes that are read at a time: disks are fast when asked for much.
const SCRATCH_BYTES: usize = 1 << 20;
/// After so many loads in a row that left nothing in the page cache, a file is held for one that has none (DAX, some
/// network file systems), and is never waited for again.
const MAX_FRUITLESS_LOADS: u8 = 3;

thread_local! {
    /// What was read for the page cache alone. Memory made anew for each read would cost more than the read.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What is known of one file's way with the page cache.
#[derive(Debug, Default)]
pub(crate) struct Residency {
    fruitless_loads: AtomicU8,
}

impl Residency {
    /// Whether `bytes` bytes at `position` are in the page cache; yes where that cannot be found out.
    pub(crate) fn holds(&self, file: &File, position: u64, bytes: u64) -> bool {
        bytes == 0
            || self.fruitless_loads.load(Ordering::Relaxed) >= MAX_FRUITLESS_LOADS
            || holds_all(file, position, bytes)
    }

    /// Reads `bytes` bytes at `position` into the page cache, and shows them to `see` piece by piece.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` when the file ends before them.
    pub(crate) fn load(
        &self,
        file: &File,
        position: u64,
        bytes: u64,
        see: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        let end = position.saturating_add(bytes);
        // Read by calls of this size, not announced by `posix_fadvise(2)`: that fills the page cache by single pages, which
        // cost more CPU than large folios do, here and when they are sent.
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(SCRATCH_BYTES, 0);
            let mut at = position;
            while at < end {
                let wanted =
                    usize::try_from(end - at).map_or(SCRATCH_BYTES, |left| left.min(SCRATCH_BYTES));
                match file.read_at(&mut scratch[..wanted], at) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    Ok(count) => {
                        see(&scratch[..count]);
                        at += count as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        if bytes > 0 && !holds_all(file, end - 1, 1) {
            self.fruitless_loads.fetch_add(1, Ordering::Relaxed);
        } else {
            self.fruitless_loads.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn holds_all(file: &File, position: u64, bytes: u64) -> bool {
    let last = position + (bytes - 1);
    match cached_pages(file, &(position..last + 1)) {
        Ok((cached, pages)) => cached >= pages && is_readable_now(file, last),
        // Before Linux 6.5, or forbidden by a filter of system calls.
        Err(_) => (position..last)
            .step_by(usize::try_from(PROBE_BYTES).unwrap_or(usize::MAX))
            .chain([last])
            .all(|at| is_readable_now(file, at)),
    }
}

/// Whether the byte at `position` can be read without waiting; yes where the file system cannot say.
fn is_readable_now(file: &File, position: u64) -> bool {
    let mut byte = [0];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(file, &mut buffers, position, ReadWriteFlags::NOWAIT);
    read != Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use rustix::fs::Advice;

    use super::*;

    const BYTES: u64 = 3 << 20;

    fn file_on_disk() -> (tempfile::TempDir, File) {
        // Beside the test itself, since /tmp may be memory: nothing can be evicted there.
        let test = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(test.parent().unwrap()).unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![7; usize::try_from(BYTES).unwrap()]).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.sync_all().unwrap();
        (dir, file)
    }

    fn evict(file: &File) {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
    }

    #[test]
    fn what_was_evicted_is_absent_until_it_is_loaded() {
        let (_dir, file) = file_on_disk();
        let residency = Residency::default();
        assert!(residency.holds(&file, 0, BYTES), "it was just written");
        evict(&file);
        if holds_all(&file, 0, BYTES) {
            return; // A file system that evicts nothing.
        }
        assert!(!residency.holds(&file, 1 << 20, 1));
        residency.load(&file, 1 << 20, 4096, &mut |_| {}).unwrap();
        assert!(residency.holds(&file, 1 << 20, 4096));
        assert!(residency.holds(&file, 1 << 20, 0));
        let mut seen = 0;
        let mut see = |bytes: &[u8]| {
            assert!(bytes.iter().all(|byte| *byte == 7));
            seen += bytes.len() as u64;
        };
        residency.load(&file, 0, BYTES, &mut see).unwrap();
        assert_eq!(seen, BYTES);
        assert!(residency.holds(&file, 0, BYTES));
        assert!(residency.holds(&file, 5, BYTES - 5));
    }

    #[test]
    fn loading_past_the_end_is_an_error() {
        let (_dir, file) = file_on_disk();
        let error = Residency::default()
            .load(&file, BYTES - 10, 11, &mut |_| {})
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_file_without_a_page_cache_is_not_waited_for_for_ever() {
        let (_dir, file) = file_on_disk();
        let residency = Residency::default();
        residency
            .fruitless_loads
            .store(MAX_FRUITLESS_LOADS, Ordering::Relaxed);
        evict(&file);
        assert!(residency.holds(&file, 0, BYTES));
    }
}
