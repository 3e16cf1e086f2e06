//! A partition, hot and cold as one.
//!
//! - **COL-13** (P1): `state` is locked for the swap to a new manifest and for taking a snapshot, so that each snapshot sees one
//!   cut: rows below `cold_end_offset` from cold files, rows from there on from hot segments, each once.
//! - **COL-14**: hot segments are released after the swap, so whoever found an offset hot either reads it there or, looking
//!   again, finds it cold.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use basalt_log::{AbortedTransactions, Bounds, Isolation, Partition, SegmentView, TopicId};
use basalt_proto::{Offset, PartitionId, TopicName};
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::CoolError;
use crate::file::ColdFile;
use crate::manifest::{Manifest, PartitionKey};
use crate::shared::Shared;
use crate::status::Tally;

mod read;

/// A partition whose older part is in cold files.
#[derive(Debug)]
pub struct TieredPartition {
    pub(crate) hot: Arc<Partition>,
    pub(crate) key: PartitionKey,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Mutex<ColdState>,
    /// Held by whoever changes the cold part. It is never held together with `state` across a wait.
    pub(crate) work: tokio::sync::Mutex<()>,
    /// Held, before `work`, by whoever merges cold files.
    pub(crate) merging: tokio::sync::Mutex<()>,
    /// Somebody wants to delete the topic: what is being merged stops.
    pub(crate) deleting: Arc<AtomicBool>,
    pub(crate) tally: Tally,
}

/// What memory knows of the cold part.
#[derive(Debug)]
pub(crate) struct ColdState {
    pub(crate) manifest: Manifest,
    /// Whether `manifest` is known to be durable: what was read at the start may only be in the page cache.
    pub(crate) proven: bool,
    /// Raised by every change of `manifest`.
    pub(crate) generation: u64,
    /// Files that no manifest names any more, to be deleted once nobody reads them.
    pub(crate) dropped: Vec<Arc<ColdFile>>,
    /// Merged files of which it is not known yet whether a manifest names them.
    pub(crate) undecided: Vec<Arc<ColdFile>>,
    /// Damaged objects, which are not merged.
    pub(crate) unmergeable: Vec<Path>,
    /// Sealed segments up to here are cooled although they are within the hot window.
    pub(crate) cool_through: Offset,
    /// Until when maintenance leaves it alone, after something failed.
    pub(crate) rest_until_ns: u64,
    /// Until when nothing is merged, after something failed.
    pub(crate) merge_rest_until_ns: u64,
    /// Why nothing may be written any more.
    pub(crate) fenced: Option<String>,
    /// The topic is being deleted, or was. It changes only while all its partitions' `work` is held.
    pub(crate) closed: bool,
}

/// Where a partition's records are; by default those of one that was never used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierBounds {
    /// The first readable offset.
    pub log_start_offset: Offset,
    /// Records below are in cold files, those from here on in hot segments.
    pub cold_end_offset: Offset,
    /// The first offset of which it is not known yet whether it is committed, or that is not readable yet.
    pub stable_offset: Offset,
    /// The first offset that is not readable yet.
    pub high_watermark: Offset,
    /// The next offset to be written.
    pub log_end_offset: Offset,
    /// Bytes of frames in hot segments.
    pub hot_bytes: u64,
    /// Bytes of cold files.
    pub cold_bytes: u64,
}

/// A partition at one moment. Everything it names stays readable while it is held.
///
/// Its rows are those of `cold` in `[log_start_offset, cold_end_offset)` and those of `hot` in
/// `[cold_end_offset, high_watermark)`: each record once.
#[derive(Debug, Clone)]
pub struct PartitionSnapshot {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The first readable offset.
    pub log_start_offset: Offset,
    /// Where cold ends and hot begins.
    pub cold_end_offset: Offset,
    /// The first offset that is not readable yet, or of which it is not known yet whether it is committed.
    pub high_watermark: Offset,
    /// Of records below some may have gone because a later one of their key replaced them.
    pub compacted_end_offset: Offset,
    /// Cold files in order, each with records at or after `log_start_offset`.
    pub cold: Vec<Arc<ColdFile>>,
    /// Hot segments in order, cut at the high watermark.
    pub hot: Vec<Arc<SegmentView>>,
    /// Transactions of hot records that are void. Cold files have none of theirs.
    pub aborted: Arc<AbortedTransactions>,
}

impl TieredPartition {
    pub(crate) fn new(hot: Arc<Partition>, shared: Arc<Shared>, manifest: Manifest) -> Arc<Self> {
        let key = PartitionKey {
            topic: hot.topic().clone(),
            topic_id: hot.topic_id().0,
            partition: hot.id(),
        };
        let state = ColdState {
            proven: manifest.version == 0,
            manifest,
            generation: 0,
            dropped: Vec::new(),
            undecided: Vec::new(),
            unmergeable: Vec::new(),
            cool_through: Offset::ZERO,
            rest_until_ns: 0,
            merge_rest_until_ns: 0,
            fenced: None,
            closed: false,
        };
        Arc::new(Self {
            hot,
            key,
            shared,
            state: Mutex::new(state),
            work: tokio::sync::Mutex::new(()),
            merging: tokio::sync::Mutex::new(()),
            deleting: Arc::new(AtomicBool::new(false)),
            tally: Tally::default(),
        })
    }

    /// The hot part, to append to.
    #[must_use]
    pub const fn hot(&self) -> &Arc<Partition> {
        &self.hot
    }

    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.key.topic
    }

    /// The topic's id.
    #[must_use]
    pub const fn topic_id(&self) -> TopicId {
        TopicId(self.key.topic_id)
    }

    /// The partition's number.
    #[must_use]
    pub const fn id(&self) -> PartitionId {
        self.key.partition
    }

    /// The high watermark, now and as it moves.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Offset> {
        self.hot.subscribe()
    }

    /// How many watch the high watermark now.
    #[must_use]
    pub fn watcher_count(&self) -> usize {
        self.hot.watcher_count()
    }

    /// Where the records are.
    #[must_use]
    pub fn bounds(&self) -> TierBounds {
        let state = self.state.lock();
        let hot = self.hot.bounds();
        let log_start_offset = state.log_start_offset(hot.log_start_offset);
        TierBounds {
            log_start_offset,
            cold_end_offset: state.manifest.cold_end_offset.max(log_start_offset),
            stable_offset: hot.stable_offset.max(log_start_offset),
            high_watermark: hot.high_watermark,
            log_end_offset: hot.log_end_offset,
            hot_bytes: self.hot.hot_bytes(),
            cold_bytes: state
                .manifest
                .files
                .iter()
                .map(|file| file.file_bytes)
                .sum(),
        }
    }

    /// The offsets that bound it: [`Self::bounds`] without counting bytes, for whoever asks often.
    #[must_use]
    pub fn offsets(&self) -> Bounds {
        let state = self.state.lock();
        let hot = self.hot.bounds();
        let log_start_offset = state.log_start_offset(hot.log_start_offset);
        Bounds {
            log_start_offset,
            stable_offset: hot.stable_offset.max(log_start_offset),
            ..hot
        }
    }

    /// The partition at this moment (COL-13).
    #[must_use]
    pub fn snapshot(&self) -> PartitionSnapshot {
        self.snapshot_of(Isolation::Uncommitted)
    }

    /// The same for one who sees so much of transactions.
    #[must_use]
    pub fn snapshot_of(&self, isolation: Isolation) -> PartitionSnapshot {
        let state = self.state.lock();
        let hot = self.hot.snapshot(isolation);
        let log_start_offset = state.log_start_offset(hot.log_start_offset);
        let cold_end_offset = state.manifest.cold_end_offset.max(log_start_offset);
        let cold = state.manifest.files.clone();
        let compacted_end_offset = state.manifest.compacted_end_offset;
        drop(state);
        PartitionSnapshot {
            topic: self.key.topic.clone(),
            partition: self.key.partition,
            log_start_offset,
            cold_end_offset,
            high_watermark: hot.high_watermark.max(log_start_offset),
            compacted_end_offset,
            cold,
            aborted: hot.aborted,
            // Segments that are cold but not released yet are left out.
            hot: hot
                .segments
                .into_iter()
                .filter(|segment| segment.end_offset > cold_end_offset)
                .collect(),
        }
    }
}

impl ColdState {
    /// The first readable offset, if hot segments begin at `hot_start`.
    pub(crate) fn log_start_offset(&self, hot_start: Offset) -> Offset {
        if self.manifest.files.is_empty() {
            // Then hot segments alone say where the log starts: they are released without a manifest. But for those that had nothing
            // to be cooled, whose offsets are a gap.
            match hot_start > self.manifest.cold_end_offset {
                true => self.manifest.log_start_offset.max(hot_start),
                false => self.manifest.log_start_offset,
            }
        } else {
            self.manifest.log_start_offset
        }
    }

    /// Whether the topic is there: the hot segments of one that is not may be another's by now, since they are known by the
    /// topic's name.
    pub(crate) const fn check_open(&self) -> Result<(), CoolError> {
        if self.closed {
            return Err(CoolError::Closed);
        }
        Ok(())
    }

    /// Whether the cold part may be changed.
    pub(crate) fn check_writable(&self, key: &PartitionKey) -> Result<(), CoolError> {
        self.check_open()?;
        match &self.fenced {
            None => Ok(()),
            Some(reason) => Err(CoolError::Fenced {
                prefix: key.prefix().to_string(),
                reason: reason.clone(),
            }),
        }
    }
}
