//! The index of a segment as recovery finds it on the disk, and as it leaves it. What it says of the frames is for others to judge.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk};
use crate::index::{HEADER_BYTES, ReadIndex, SegmentIdentity, read_index, read_young_index};
use crate::segment::{index_path, young_index_path};

/// The index of a segment.
pub(crate) struct LoadedIndex {
    pub(crate) index: ReadIndex,
    /// Whether it is one that was never settled.
    pub(super) young: bool,
    /// Its file and the bytes in it, if there is one.
    pub(super) stored: Option<(Arc<dyn DiskFile>, Vec<u8>)>,
}

pub(crate) fn load_index(
    disk: &dyn Disk,
    segment_path: &Path,
    identity: &SegmentIdentity,
) -> Result<LoadedIndex, DiskError> {
    let read = |path: &Path| {
        let opened = disk.open(path);
        let read = opened.and_then(|file| file.read_all().map(|bytes| (file, bytes)));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).on("read", path),
        }
    };
    let mut young = false;
    let mut stored = read(&index_path(segment_path))?;
    if stored.is_none() {
        stored = read(&young_index_path(segment_path))?;
        young = stored.is_some();
    }
    let bytes = stored.as_ref().map_or(&[][..], |(_, bytes)| bytes);
    let index = if young {
        read_young_index(bytes, identity)
    } else {
        read_index(bytes, identity)
    };
    Ok(LoadedIndex {
        index,
        young,
        stored,
    })
}

/// An index as it was read, with this header and nothing behind the entries that were kept.
///
/// What counts and has no entry yet is marked until it has; what was cut is vouched for no more. The file is not cut: it has room for
/// the entries that are lacking, which a full disk would not give again. All of it is written, since entries that were read may be in
/// the page cache alone (LOG-8).
pub(super) fn index_with(mut bytes: Vec<u8>, header: &[u8; HEADER_BYTES], kept: usize) -> Vec<u8> {
    bytes.resize(bytes.len().max(HEADER_BYTES), 0);
    bytes[..HEADER_BYTES].copy_from_slice(header);
    bytes[kept..].fill(0);
    bytes
}
