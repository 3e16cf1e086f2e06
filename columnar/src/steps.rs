//! Where the cold tier may crash: a hook between every two steps that change something outside of memory.
//!
//! Production uses [`NoSteps`]. Tests pass their own [`Steps`] to [`crate::TieredLog::open_with_steps`], stop at a step,
//! drop everything, open again and look for every record.

use std::fmt::Debug;

/// A point between two steps of a commit. Named after what has just been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The segment's checksums were verified; nothing was written yet.
    SegmentVerified,
    /// The object's bytes were all handed to the store under its final name, but are perhaps not durable.
    ObjectWritten,
    /// The object is durable.
    ObjectSynced,
    /// The object's footer was read back and is right.
    ObjectVerified,
    /// The new manifest is durable: the store's truth has changed, memory does not know it yet.
    ManifestCommitted,
    /// Memory shows the new manifest; hot segments below it are still there.
    Swapped,
    /// Hot segments that became cold, or expired, are released.
    Released,
    /// Older manifests are deleted.
    ManifestsTrimmed,
    /// Files to be merged are chosen; nothing was written yet.
    MergePlanned,
    /// It is known which rows compaction takes away; nothing was written yet.
    CompactionSurveyed,
    /// A file that retention, merging or compaction dropped is about to be deleted.
    DroppedFileDeleting,
    /// A topic's tombstone is durable; the topic is still there, and stays if nothing more happens.
    TombstoneWritten,
    /// The topic is gone from the log; its cold objects are still there.
    TopicDeleted,
    /// The topic's objects are gone; the tombstone is still there.
    ObjectsDeleted,
}

impl Step {
    /// The steps of cooling one segment, in order.
    pub const COOLING: [Self; 8] = [
        Self::SegmentVerified,
        Self::ObjectWritten,
        Self::ObjectSynced,
        Self::ObjectVerified,
        Self::ManifestCommitted,
        Self::Swapped,
        Self::Released,
        Self::ManifestsTrimmed,
    ];

    /// The steps of merging some files, in order. The last one is reached for each of them.
    pub const MERGING: [Self; 8] = [
        Self::MergePlanned,
        Self::ObjectWritten,
        Self::ObjectSynced,
        Self::ObjectVerified,
        Self::ManifestCommitted,
        Self::Swapped,
        Self::ManifestsTrimmed,
        Self::DroppedFileDeleting,
    ];
}

/// The operation was stopped between two steps, by a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped after {after:?}")]
pub struct Stopped {
    /// The last step that was done.
    pub after: Step,
}

/// Is asked between every two steps whether to go on.
pub trait Steps: Debug + Send + Sync {
    /// `step` was just done.
    ///
    /// # Errors
    /// [`Stopped`] ends the operation there, as a crash would.
    fn reached(&self, step: Step) -> Result<(), Stopped>;
}

/// Goes on at every step.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSteps;

impl Steps for NoSteps {
    fn reached(&self, _step: Step) -> Result<(), Stopped> {
        Ok(())
    }
}
