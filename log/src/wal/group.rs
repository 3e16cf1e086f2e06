//! What one group commit writes: records behind each other, as bytes. It knows no file.

use std::io;
use std::sync::Weak;

use super::record::{RECORD_HEADER_BYTES, RecordHeader};
use crate::partition::Partition;

/// What a group leaves behind it.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(super) bytes: Vec<u8>,
    pub(super) sequence: u64,
    pub(super) partitions: Vec<Weak<Partition>>,
}

impl Group {
    /// Bytes it takes so far.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Adds the record of `bytes` bytes of frames, which `read` reads.
    ///
    /// # Errors
    /// That of `read`: nothing was added.
    pub(crate) fn push(
        &mut self,
        header: &RecordHeader,
        bytes: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let frames_bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let start = self.bytes.len();
        let frames_start = start + RECORD_HEADER_BYTES;
        self.bytes.resize(frames_start + frames_bytes, 0);
        if let Err(error) = read(&mut self.bytes[frames_start..]) {
            self.bytes.truncate(start);
            return Err(error);
        }
        let encoded = header.encode(self.sequence, &self.bytes[frames_start..]);
        self.bytes[start..frames_start].copy_from_slice(&encoded);
        Ok(())
    }

    /// Drops what was added since it took `bytes`.
    pub(crate) fn cut(&mut self, bytes: u64) {
        self.bytes
            .truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Has the file remember the partition.
    pub(crate) fn touch(&mut self, partition: Weak<Partition>) {
        self.partitions.push(partition);
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}
