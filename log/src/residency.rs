//! Bytes that a read needs and that may lie on the disk alone.
//!
//! A thread that serves sockets must not wait for a disk, neither in `sendfile(2)` nor by touching a mapped page. So it
//! asks first ([`Stretch::is_resident`], or a read that answers [`Attempt::Absent`]), and has another thread wait
//! ([`Stretch::load`]). That one reads by `pread(2)`: a sector that cannot be read is an error there, where a mapped one
//! would raise SIGBUS.

use std::sync::{Arc, Weak};

use crate::block::Block;
use crate::error::{OnDisk, ReadError};
use crate::view::SegmentFile;

/// The answer of a read that does not wait for the disk.
#[derive(Debug, Clone)]
pub enum Attempt<T> {
    /// What was asked for.
    Ready(T),
    /// These bytes must be loaded first: then ask again.
    Absent(Stretch),
}

/// A range of bytes of one file.
#[derive(Debug, Clone)]
pub struct Stretch {
    file: Arc<SegmentFile>,
    position: u64,
    bytes: u64,
    /// Blocks that nobody has compared with their checksums yet.
    unverified: Vec<Block>,
}

impl Stretch {
    pub(crate) fn new(file: &Arc<SegmentFile>, position: u64, end_position: u64) -> Self {
        Self {
            file: Arc::clone(file),
            position,
            bytes: end_position.saturating_sub(position),
            unverified: Vec::new(),
        }
    }

    pub(crate) fn unverified(mut self, blocks: Vec<Block>) -> Self {
        self.unverified = blocks;
        self
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The position after it.
    #[must_use]
    pub fn end_position(&self) -> u64 {
        self.position + self.bytes
    }

    /// Where it begins in its file.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether it can be used now without waiting for the disk. It may be evicted at any time after that: whoever uses it
    /// soon will almost always find it there, and waits for the disk otherwise.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        self.unverified.is_empty() && self.file.file.is_resident(self.position, self.bytes)
    }

    /// Waits until it is in memory, and compares blocks that were not compared with their checksums yet. What is found
    /// damaged is refused by the read that follows.
    ///
    /// # Errors
    /// [`ReadError::Disk`] when the disk cannot read it.
    pub fn load(&self) -> Result<(), ReadError> {
        let loaded = self.file.file.load(self.position, self.bytes, &mut |_| {});
        loaded.on("read", &self.file.path)?;
        for block in &self.unverified {
            self.file.compare(block)?;
        }
        Ok(())
    }

    /// Cuts it into pieces of at most `bytes` bytes, to be loaded in order.
    pub fn pieces(&self, bytes: u64) -> impl Iterator<Item = Self> {
        let bytes = bytes.max(1);
        (0..self.bytes.div_ceil(bytes)).map(move |number| {
            let position = self.position + number * bytes;
            let end_position = (position + bytes).min(self.end_position());
            // With the piece that holds its end, since then all of it is loaded.
            let ends_here =
                |block: &&Block| (position + 1..=end_position).contains(&block.end_position());
            Self::new(&self.file, position, end_position)
                .unverified(self.unverified.iter().filter(ends_here).copied().collect())
        })
    }

    /// The bytes from `position` to `end_position` of the same file, or what there is of them; `None` at the end of what may
    /// be read.
    #[must_use]
    pub fn elsewhere(&self, position: u64, end_position: u64) -> Option<Self> {
        let end_position = end_position.min(self.file.published());
        (position < end_position).then(|| Self::new(&self.file, position, end_position))
    }

    /// The place of its end.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            file: Arc::downgrade(&self.file),
            position: self.end_position(),
        }
    }
}

/// A place in a file, which may be gone by now: a mark keeps no file open.
#[derive(Debug, Clone)]
pub struct Mark {
    file: Weak<SegmentFile>,
    /// In bytes from the file's beginning.
    pub position: u64,
}

impl Mark {
    /// Whether it is in the same file as `stretch`.
    #[must_use]
    pub fn is_beside(&self, stretch: &Stretch) -> bool {
        std::ptr::eq(self.file.as_ptr(), Arc::as_ptr(&stretch.file))
    }

    /// Whether both are in the same file.
    #[must_use]
    pub fn shares_file(&self, other: &Self) -> bool {
        self.file.ptr_eq(&other.file)
    }
}
