//! How fast records can be copied into a mapped file. The only module of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Advice, MmapMut};

use super::{FRAME_BYTES, Pair};
use crate::clock::Timeline;

const MAPPED_BYTES: usize = 128 << 20;
/// Copied from: records that are in the cache already, as those that have just come from a socket are.
const SOURCE_RECORDS: usize = 1024;

/// MB and copies of 129 bytes per second.
pub(super) fn copy(folder: &Path) -> io::Result<Pair> {
    let file = tempfile::tempfile_in(folder)?;
    file.set_len(MAPPED_BYTES as u64)?;
    let mut mapping = map(&file)?;
    // Linux 5.14 and later. Without it the page faults of the first copies are measured as well.
    if let Err(error) = mapping.advise(Advice::PopulateWrite)
        && error.raw_os_error() != Some(rustix::io::Errno::INVAL.raw_os_error())
    {
        return Err(error);
    }
    let source = vec![0x5a_u8; SOURCE_RECORDS * FRAME_BYTES];
    let started = Timeline::start();
    let mut copied = 0_u64;
    for block in mapping.chunks_exact_mut(source.len()) {
        for (to, from) in block
            .chunks_exact_mut(FRAME_BYTES)
            .zip(source.chunks_exact(FRAME_BYTES))
        {
            to.copy_from_slice(std::hint::black_box(from));
            copied += 1;
        }
    }
    let seconds = started.now_ns() as f64 / 1e9;
    let bytes = copied as f64 * FRAME_BYTES as f64;
    Ok((bytes / 1e6 / seconds, copied as f64 / seconds))
}

fn map(file: &File) -> io::Result<MmapMut> {
    // SAFETY: the file was made by `tempfile_in`, has no name and is open nowhere else, so that nobody changes or
    // shortens it while it is mapped.
    unsafe { MmapMut::map_mut(file) }
}
