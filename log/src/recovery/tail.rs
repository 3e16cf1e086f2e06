//! The end of a recovered segment: what does not count is put aside and taken away, what counts is written again. Where the end
//! is was decided before.
//!
//! - **LOG-8**: what recovery accepts is written to the disk anew, and settled before anyone may read it: by the log, which
//!   does it for all partitions together.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{Finding, Verdict};
use crate::disk::{Disk, DiskFile, replace_file};
use crate::error::{DiskError, OnDisk};
use crate::segment::{PAGE_BYTES, closed_bytes};

/// What follows the frames and is cheaper to write than to have cleared by the file system.
const SMALL_TAIL_BYTES: usize = 64 << 10;

/// Takes away what stands behind the frames that count.
pub(super) fn end_with_frames(
    file: &Arc<dyn DiskFile>,
    file_bytes: u64,
    verdict: &Verdict,
    path: &Path,
) -> Result<(), DiskError> {
    if file_bytes > verdict.end && !file_bytes.is_multiple_of(PAGE_BYTES) {
        // No crash left it: it was cut from outside, somewhere in a frame. Its frames are made sure of before it ends with
        // them, as if it had been closed in order (LOG-6).
        let cut = file
            .sync()
            .and_then(|()| file.set_len(closed_bytes(verdict.end)));
        cut.on("cut the torn tail of", path)?;
    } else if file_bytes > verdict.end && !verdict.closed {
        // What does not count must not be taken for frames by a later recovery. It is not cut off: a file that ends with its
        // frames is believed to have been closed in order, with all of them on the disk (LOG-6), and these are not yet.
        clear_tail(file, verdict.end, file_bytes).on("clear the torn tail of", path)?;
    }
    Ok(())
}

/// Makes what follows the frames that count zero.
fn clear_tail(file: &Arc<dyn DiskFile>, end: u64, file_bytes: u64) -> io::Result<()> {
    match usize::try_from(file_bytes - end) {
        // Of a small file the page would be written in any case.
        Ok(bytes) if bytes <= SMALL_TAIL_BYTES => file.write_at(&vec![0; bytes], end),
        _ => file.zero_from(end),
    }
}

/// Writes the bytes a file holds over themselves, by way of a buffer since they are mapped from it.
pub(super) fn rewrite(file: &Arc<dyn DiskFile>, bytes: &[u8], from: u64) -> io::Result<()> {
    let mut position = from;
    for piece in bytes.chunks(1 << 20) {
        let copy = piece.to_vec();
        file.write_at(&copy, position)?;
        position += piece.len() as u64;
    }
    Ok(())
}

/// Where the index does not read to its end, what is cut may be a torn tail or acknowledged records: it is put beside the
/// segment first.
pub(super) fn keep_aside(
    disk: &dyn Disk,
    path: &Path,
    file: &Arc<dyn DiskFile>,
    end: u64,
    findings: &mut Vec<Finding>,
) -> Result<(), DiskError> {
    let bytes = file.read_all().on("read", path)?;
    let rest = &bytes[usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len())..];
    let Some(last) = rest.iter().rposition(|byte| *byte != 0) else {
        return Ok(());
    };
    let aside = path.with_extension("cut");
    replace_file(disk, &aside, &rest[..=last]).on("write", &aside)?;
    let what = format!(
        "{} bytes that are cut from the segment are kept in {}",
        last + 1,
        aside.display()
    );
    findings.push(Finding {
        path: path.to_owned(),
        position: end,
        what,
    });
    Ok(())
}
