//! Which files to merge: a rule over sizes, in the manner of an LSM tree's tiers, for files that come in order.
//!
//! Sizes that are compared with each other are bytes of frames, since those of a merged file are the sum of its inputs'; the target
//! is one of file bytes, and of inputs they are an upper bound: a merged file is smaller than its inputs together.
//!
//! From each file on, a *window* is the longest run of neighbours that may become one file. Merged is the first window of two files
//! or more that
//! - at least doubles its first file. Then it doubles all that were there when nothing was due: each of those was larger than all
//!   those behind it in its window. So a record is copied once while its file is new, and then with a file that becomes twice as
//!   large;
//! - or else is *closed*: behind it are files that are too large to be merged, or that retention keeps apart. Nothing will join it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use basalt_log::retention::RetentionPolicy;
use basalt_proto::Offset;

use crate::file::ColdFile;
use crate::writer::MAX_ROW_GROUPS;

/// A merged file is at most this part of what retention keeps (COL-23).
const RETENTION_PARTS: u64 = 16;

/// So many files are merged at a time: each takes a few requests to the store, and a merge that is interrupted begins anew.
const MAX_FILES: usize = 1024;

/// What a merged file may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of its inputs.
    file_bytes: u64,
    /// Bytes of frames.
    frame_bytes: u64,
    /// Between its first append and its last.
    span_ns: Option<u64>,
    /// Nothing is merged across it: what is before is clean, what is behind dirty ([`crate::compact`]).
    clean_end_offset: Offset,
}

impl Limits {
    pub(crate) fn new(
        merge_bytes: u64,
        retention: RetentionPolicy,
        clean_end_offset: Offset,
    ) -> Self {
        let span_ns = |age: Duration| {
            u64::try_from(age.as_nanos() / u128::from(RETENTION_PARTS)).unwrap_or(u64::MAX)
        };
        Self {
            file_bytes: merge_bytes,
            frame_bytes: retention
                .bytes
                .map_or(u64::MAX, |bytes| bytes / RETENTION_PARTS),
            span_ns: retention.age.map(span_ns),
            clean_end_offset,
        }
    }
}

/// The files that are due, if any are. `apart` says which must not be merged.
pub(crate) fn due(
    files: &[Arc<ColdFile>],
    limits: &Limits,
    apart: impl Fn(&ColdFile) -> bool,
) -> Option<Range<usize>> {
    let is_mergeable =
        |file: &ColdFile| file.file_bytes < limits.file_bytes.div_ceil(2) && !apart(file);
    let last_apart = files.iter().rposition(|file| !is_mergeable(file));
    let first_window = |is_due: &dyn Fn(usize, &Window) -> bool| {
        (0..files.len()).find_map(|start| {
            let window = Window::from(files, start, limits, is_mergeable)?;
            (window.end - start >= 2 && is_due(start, &window)).then_some(start..window.end)
        })
    };
    let doubles =
        |start: usize, window: &Window| window.frame_bytes / 2 >= files[start].frame_bytes;
    let is_closed = |start: usize, window: &Window| {
        window.is_closed || last_apart.is_some_and(|apart| start < apart)
    };
    first_window(&doubles).or_else(|| first_window(&is_closed))
}

#[derive(Debug, Clone, Copy)]
struct Window {
    end: usize,
    file_bytes: u64,
    frame_bytes: u64,
    chunks: u64,
    appended_at_ns: u64,
    /// What is behind it must not join it, however small that becomes.
    is_closed: bool,
}

impl Window {
    /// The longest window that begins with the file at `start`, if one can.
    fn from(
        files: &[Arc<ColdFile>],
        start: usize,
        limits: &Limits,
        is_mergeable: impl Fn(&ColdFile) -> bool,
    ) -> Option<Self> {
        // Its records were appended after the last one of the file before it. Where that is not known, neither is their age.
        let first = files.get(start)?;
        let since_ns = start
            .checked_sub(1)
            .and_then(|before| files.get(before))
            .map(|before| before.appended_at_ns);
        let mut window = Self {
            end: start,
            file_bytes: 0,
            frame_bytes: 0,
            chunks: 0,
            appended_at_ns: 0,
            is_closed: false,
        };
        for file in files.get(start..)? {
            let next = Self {
                end: window.end + 1,
                file_bytes: window.file_bytes.saturating_add(file.file_bytes),
                frame_bytes: window.frame_bytes.saturating_add(file.frame_bytes),
                chunks: window.chunks.saturating_add(file.chunks.len() as u64),
                appended_at_ns: window.appended_at_ns.max(file.appended_at_ns),
                is_closed: false,
            };
            let spans = limits.span_ns.is_none_or(|span_ns| {
                since_ns
                    .is_some_and(|since_ns| next.appended_at_ns.saturating_sub(since_ns) <= span_ns)
            });
            if !is_mergeable(file) || next.frame_bytes > limits.frame_bytes || !spans {
                window.is_closed = true;
                break;
            }
            let crosses = first.base_offset < limits.clean_end_offset
                && file.base_offset >= limits.clean_end_offset;
            let fits = !crosses
                && next.file_bytes <= limits.file_bytes
                && next.chunks <= MAX_ROW_GROUPS
                && next.end - start <= MAX_FILES;
            if !fits {
                break;
            }
            window = next;
        }
        (window.end > start).then_some(window)
    }
}

#[cfg(test)]
mod tests;
