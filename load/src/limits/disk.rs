//! How fast the disk makes data durable.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::Pair;
use crate::clock::Timeline;
use crate::stats::Latencies;

const BLOCK: [u8; 4096] = [0x5a; 4096];
const SYNCS: u64 = 300;
const WRITE_BYTES: usize = 1 << 20;

/// What the file had where the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Nothing: it gets longer.
    Appended,
    /// Room that was allocated and never written.
    Fallocated,
    /// Data.
    Prewritten,
}

/// p50 and p99, in microseconds, of `fdatasync` after each 4 KiB.
pub(super) fn sync_latency(folder: &Path, room: Room) -> io::Result<Pair> {
    let file = tempfile::tempfile_in(folder)?;
    let block_bytes = BLOCK.len() as u64;
    match room {
        Room::Appended => {}
        Room::Fallocated => fallocate(&file, FallocateFlags::empty(), 0, SYNCS * block_bytes)?,
        Room::Prewritten => {
            for number in 0..SYNCS {
                file.write_all_at(&[0; BLOCK.len()], number * block_bytes)?;
            }
        }
    }
    file.sync_all()?;
    let mut latencies = Latencies::default();
    for number in 0..SYNCS {
        file.write_all_at(&BLOCK, number * block_bytes)?;
        let started = Timeline::start();
        file.sync_data()?;
        latencies.record(started.now_ns(), 1);
    }
    Ok((latencies.quantile_us(0.5), latencies.quantile_us(0.99)))
}

/// MB per second of a long write with one `fdatasync` at its end.
pub(super) fn write_bandwidth(folder: &Path, total_bytes: u64) -> io::Result<Pair> {
    let mut file: File = tempfile::tempfile_in(folder)?;
    let bytes = vec![0x5a; WRITE_BYTES];
    let started = Timeline::start();
    let mut left = total_bytes;
    while left > 0 {
        let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.write_all(&bytes[..part])?;
        left -= part as u64;
    }
    file.sync_data()?;
    let seconds = started.now_ns() as f64 / 1e9;
    Ok((total_bytes as f64 / 1e6 / seconds, 0.0))
}
