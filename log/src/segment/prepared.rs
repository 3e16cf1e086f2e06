//! The segment after the active one, made before it is needed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{
    Active, PAGE_BYTES, PREPARED_INDEX, PREPARED_SEGMENT, round_up, segment_path, young_index_path,
};
use crate::block::BlockBuilder;
use crate::disk::{Disk, DiskFile};
use crate::error::{DiskError, OnDisk};
use crate::index::{IndexFile, SegmentIdentity};
use crate::view::SegmentFile;

/// A segment made ahead: allocated, durable but for its names.
#[derive(Debug)]
pub(crate) struct Prepared {
    file: Arc<dyn DiskFile>,
    index: Arc<dyn DiskFile>,
    seal_bytes: u64,
    allocated_bytes: u64,
}

impl Prepared {
    /// Makes the files of a segment to come, with all its blocks. Takes long: not for an appender.
    ///
    /// # Errors
    /// [`DiskError`]; what was made is removed if it can be helped, and by the next open in any case.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, seal_bytes: u64) -> Result<Self, DiskError> {
        let (path, index_path) = (dir.join(PREPARED_SEGMENT), dir.join(PREPARED_INDEX));
        let created = Self::create_files(disk, &path, &index_path, seal_bytes);
        if created.is_err() {
            // Ignored: the error that counts is the first one.
            let _ = disk.remove_file(&index_path);
            let _ = disk.remove_file(&path);
        }
        created
    }

    fn create_files(
        disk: &dyn Disk,
        path: &Path,
        index_path: &Path,
        seal_bytes: u64,
    ) -> Result<Self, DiskError> {
        let file = disk.create(path).on("create", path)?;
        let index = disk.create(index_path).on("create", index_path)?;
        index.reserve(PAGE_BYTES).on("grow", index_path)?;
        let allocated_bytes = round_up(seal_bytes + 1);
        file.allocate(allocated_bytes).on("grow", path)?;
        Ok(Self {
            file,
            index,
            seal_bytes,
            allocated_bytes,
        })
    }

    /// Gives it its names and writes its base offset. Nothing is synced.
    ///
    /// # Errors
    /// [`DiskError`]: nothing was appended, and the files may have either name.
    pub(crate) fn put_to_use(
        self,
        disk: &dyn Disk,
        dir: &Path,
        identity: SegmentIdentity,
        block_bytes: u32,
    ) -> Result<Active, DiskError> {
        let path = segment_path(dir, identity.base_offset);
        let index = IndexFile::create(&path, identity, self.index)?;
        // The index's name first: a segment that has neither name of an index has lost it.
        let (prepared, young) = (dir.join(PREPARED_INDEX), young_index_path(&path));
        disk.rename(&prepared, &young).on("rename to", &young)?;
        let prepared = dir.join(PREPARED_SEGMENT);
        disk.rename(&prepared, &path).on("rename to", &path)?;
        let file = SegmentFile::new(path, identity, self.file, 0, self.seal_bytes);
        Ok(Active {
            file: Arc::new(file),
            index: Arc::new(index),
            named: Arc::new(AtomicBool::new(false)),
            blocks: BlockBuilder::new(block_bytes),
            seal_bytes: self.seal_bytes,
            allocated_bytes: self.allocated_bytes,
            committed_position: 0,
            committed_offset: identity.base_offset,
            end_offset: identity.base_offset,
            trimmed: false,
            appended_at_ns: 0,
        })
    }

    /// Bytes of frames that fit it.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.seal_bytes
    }
}
