//! A partition: its segments under one short lock, appended to, committed, settled, read, sealed and released.
//!
//! Two ways lead to the disk. A *commit* makes the newest frames durable in the write-ahead log, together with those of other
//! partitions; to *settle* is to sync them in their own segments, with their index entries. What is acknowledged at level
//! `fsync` took one or the other; what is settled needs the write-ahead log no more.
//!
//! - **LOG-9**: `log_start_offset <= synced_offset <= log_end_offset`, and the high watermark lies between the first and
//!   the last: at level `fsync` it is the synced offset, at level `os` the log end offset.
//! - **LOG-10**: the high watermark and the log end offset never fall.
//! - **LOG-11**: a failed fsync poisons the partition: no later success covers what was written before it. Appends are
//!   refused until the log is opened anew, reads below the high watermark go on.
//! - **LOG-12**: the folder of a partition that ever held a record has a segment file whose base or content tells the next
//!   offset, whatever is released.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use basalt_proto::{FrameBatch, Offset, PartitionId, TopicName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::block::Block;
use crate::config::{Durability, TopicConfig, TopicDurability};
use crate::error::{AppendError, DiskError};
use crate::index::IndexFile;
use crate::recovery::Finding;
use crate::reserve::Reserved;
use crate::segment::{Active, Prepared};
use crate::sync::Shared;
use crate::topic::TopicId;
use crate::view::{SegmentFile, SegmentView};

mod append;
mod close;
mod commit;
pub(crate) mod open;
pub(crate) mod producers;
mod read;
mod release;
mod seal;
mod settle;
mod transactions;

pub(crate) use commit::commit_group;
pub use producers::{ActiveProducer, Sequence};
use producers::{Producers, Snapshots};
pub use read::HotSnapshot;
pub use transactions::{Aborted, AbortedTransactions, Isolation};

/// How long a sealing that failed waits for its next try.
const SEAL_RETRY: Duration = Duration::from_secs(1);

/// Where an append went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// The first offset after it.
    pub end_offset: Offset,
}

/// What became of a numbered batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequenced {
    /// It was appended.
    New(Appended),
    /// It is in the log already, there.
    Stored(Appended),
}

/// The offsets that bound a partition's hot part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// First offset in hot segments.
    pub log_start_offset: Offset,
    /// Exclusive bound of what readers may see.
    pub high_watermark: Offset,
    /// Exclusive bound of what is committed: where the first open transaction begins, or the high watermark.
    pub stable_offset: Offset,
    /// Next to be written.
    pub log_end_offset: Offset,
}

/// An ordered log of frames.
#[derive(Debug)]
pub struct Partition {
    topic: TopicName,
    topic_id: TopicId,
    id: PartitionId,
    dir: PathBuf,
    /// Whether the folder's name and those above it are durable.
    dir_settled: AtomicBool,
    shared: Arc<Shared>,
    config: Arc<RwLock<TopicConfig>>,
    this: Weak<Self>,
    state: Mutex<State>,
    reserved: Reserved,
    /// Held while the partition is settled, sealed or released, so that these never overlap.
    disk_work: Mutex<()>,
    /// Held while something is made ahead: the next segment, a reservation.
    prepare_work: Mutex<()>,
    high_watermark: watch::Sender<Offset>,
    progress: watch::Sender<Progress>,
}

/// What waiters for durability watch.
#[derive(Debug, Clone)]
struct Progress {
    synced_offset: Offset,
    failed: Option<AppendError>,
}

#[derive(Debug)]
struct State {
    /// Oldest first. Some may be [`State::unsealed`] still.
    sealed: Vec<Arc<SegmentView>>,
    /// Segments that take no more appends but have no sealed index yet, oldest first.
    unsealed: Vec<Unsealed>,
    active: Option<Active>,
    /// Made ahead, to become the active one.
    prepared: Option<Prepared>,
    log_end_offset: Offset,
    /// Everything below is durable, in one way or the other.
    synced_offset: Offset,
    /// Everything below is durable in its own segment.
    settled_offset: Offset,
    /// Where the log went on when it was opened.
    opened_offset: Offset,
    /// Everything below is marked as published, or is settled.
    marked_offset: Offset,
    /// Bytes appended since it was last settled.
    unsettled_bytes: u64,
    /// Nothing is committed before everything below is settled: it was too much for the write-ahead log, and what is
    /// committed must follow what is durable.
    settle_first: Option<Offset>,
    /// A commit was asked for meanwhile.
    commit_postponed: bool,
    /// The file of the write-ahead log that knows of this partition.
    wal_sequence: u64,
    /// The next segment could not be made ahead: it is not tried again before the active one is full.
    prepare_failed: bool,
    /// That the disk is full was said.
    full_said: bool,
    /// A sealing failed and waits for its next try.
    seal_rests: bool,
    stopped: Option<Stopped>,
    queued: Queued,
    /// Of everything below the log's end.
    producers: Producers,
    /// The snapshots of it that there are, oldest first.
    producer_snapshots: Vec<Offset>,
}

/// What a thread was asked to do and has not begun.
#[derive(Debug, Default, Clone, Copy)]
struct Queued {
    commit: bool,
    /// Settling, sealing, making the next segment: now, or later.
    disk_work: bool,
    later: bool,
    settle: bool,
}

#[derive(Debug, Clone)]
enum Stopped {
    Closed,
    /// Its topic is deleted: the folder may be another topic's by now, and no file in it may be touched.
    Deleted,
    Poisoned(String),
}

/// A full segment whose files are still those of an active one.
#[derive(Debug)]
struct Unsealed {
    base_offset: Offset,
    end_offset: Offset,
    file: Arc<SegmentFile>,
    /// `None` when the index was damaged, or had no room for what it lacked: only the sealed one will be written.
    index: Option<Arc<IndexFile>>,
    named: Arc<AtomicBool>,
    frame_bytes: u64,
    committed_position: u64,
    committed_offset: Offset,
    settled: bool,
    /// Of everything below its end, if a snapshot of it is due with its sealing.
    producers: Option<Box<Producers>>,
}

impl Partition {
    /// Whose partition this is.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The topic's id, which tells it from an earlier topic of the same name.
    #[must_use]
    pub fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// The topic's settings.
    #[must_use]
    pub fn config(&self) -> TopicConfig {
        self.config.read().clone()
    }

    /// The offsets that bound it.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let state = self.state.lock();
        let high_watermark = *self.high_watermark.borrow();
        Bounds {
            log_start_offset: state.log_start_offset(),
            high_watermark,
            stable_offset: state.stable_offset(high_watermark),
            log_end_offset: state.log_end_offset,
        }
    }

    /// Bytes of frames in hot segments.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        let state = self.state.lock();
        let active = state.active.as_ref().map_or(0, Active::frame_bytes);
        state
            .sealed
            .iter()
            .fold(active, |sum, segment| sum + segment.frame_bytes())
    }

    /// The high watermark, to be watched.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Offset> {
        self.high_watermark.subscribe()
    }

    /// How many watch the high watermark now.
    #[must_use]
    pub fn watcher_count(&self) -> usize {
        self.high_watermark.receiver_count()
    }

    /// Whether appends are refused until the log is opened anew, and why.
    #[must_use]
    pub fn poisoned(&self) -> Option<String> {
        match &self.state.lock().stopped {
            Some(Stopped::Poisoned(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Everything below is durable.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn synced_offset(&self) -> Offset {
        self.progress.borrow().synced_offset
    }

    /// Which of its locks are held: the state's, that of disk work, that of making things ahead, the reservation's.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn locked(&self) -> [bool; 4] {
        [
            self.state.is_locked(),
            self.disk_work.is_locked(),
            self.prepare_work.is_locked(),
            self.reserved.is_locked(),
        ]
    }

    fn snapshots(&self) -> Snapshots<'_> {
        Snapshots {
            disk: self.shared.disk.as_ref(),
            dir: &self.dir,
            topic_id: self.topic_id,
            partition: self.id,
        }
    }

    fn level(&self) -> TopicDurability {
        self.config.read().durability
    }

    fn segment_bytes(&self) -> u64 {
        self.config
            .read()
            .segment_bytes
            .unwrap_or(self.shared.config.segment_bytes)
    }

    fn stopped_error(&self, stopped: &Stopped) -> AppendError {
        let (topic, partition) = (self.topic.clone(), self.id);
        match stopped {
            Stopped::Closed | Stopped::Deleted => AppendError::Closed { topic, partition },
            Stopped::Poisoned(reason) => AppendError::Poisoned {
                topic,
                partition,
                reason: reason.clone(),
            },
        }
    }

    /// Stops appends for good and tells all who wait for durability.
    fn stop(&self, state: &mut State, stopped: Stopped) -> AppendError {
        // A failure while it is closed counts: no second try may make it good.
        if matches!(
            (&state.stopped, &stopped),
            (None, _) | (Some(Stopped::Closed), Stopped::Poisoned(_))
        ) {
            state.stopped = Some(stopped);
        }
        let stopped = state.stopped.clone().unwrap_or(Stopped::Closed);
        let error = self.stopped_error(&stopped);
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert_with(|| error.clone());
        });
        error
    }

    fn poison(&self, state: &mut State, error: &DiskError) -> AppendError {
        tracing::error!(topic = %self.topic, partition = %self.id, %error, source = %error.source, "partition takes no more appends");
        self.stop(
            state,
            Stopped::Poisoned(format!("{error}: {}", error.source)),
        )
    }

    /// Lets readers see up to `offset`.
    fn raise_high_watermark(&self, offset: Offset) {
        self.high_watermark.send_if_modified(|high_watermark| {
            let rises = offset > *high_watermark;
            if rises {
                *high_watermark = offset;
            }
            rises
        });
    }

    fn log_findings(&self, findings: &[Finding]) {
        for finding in findings {
            tracing::warn!(path = %finding.path.display(), position = finding.position, what = %finding.what, "recovered");
        }
    }
}

impl State {
    /// A partition that goes on at `log_end_offset` and has no segment.
    fn new(log_end_offset: Offset) -> Self {
        Self {
            sealed: Vec::new(),
            unsealed: Vec::new(),
            active: None,
            prepared: None,
            log_end_offset,
            synced_offset: log_end_offset,
            settled_offset: log_end_offset,
            opened_offset: log_end_offset,
            marked_offset: log_end_offset,
            unsettled_bytes: 0,
            settle_first: None,
            commit_postponed: false,
            wal_sequence: 0,
            prepare_failed: false,
            full_said: false,
            seal_rests: false,
            stopped: None,
            queued: Queued::default(),
            producers: Producers::default(),
            producer_snapshots: Vec::new(),
        }
    }

    fn log_start_offset(&self) -> Offset {
        let active = self
            .active
            .as_ref()
            .map_or(self.log_end_offset, Active::base_offset);
        self.sealed
            .first()
            .map_or(active, |segment| segment.base_offset)
    }

    /// Where what is committed ends.
    fn stable_offset(&self, high_watermark: Offset) -> Offset {
        let first_open = self.producers.transactions.first_open();
        // Retention may have taken its beginning.
        let committed = first_open.map_or(high_watermark, |first| first.min(high_watermark));
        committed.max(self.log_start_offset().min(high_watermark))
    }

    /// The view of a segment that is among the sealed ones.
    fn sealed_view(&self, base_offset: Offset) -> &Arc<SegmentView> {
        let at = self
            .sealed
            .partition_point(|segment| segment.base_offset < base_offset);
        assert_eq!(
            self.sealed[at].base_offset, base_offset,
            "an unsealed segment is among the sealed"
        );
        &self.sealed[at]
    }

    /// Whether the next segment is to be made.
    fn wants_next(&self) -> bool {
        self.prepared.is_none()
            && !self.prepare_failed
            && self.active.as_ref().is_some_and(Active::is_nearly_full)
    }

    /// How many segments, from the oldest, are sealed on disk.
    fn finished(&self) -> usize {
        let first = self.unsealed.first().map(|segment| segment.base_offset);
        first.map_or(self.sealed.len(), |first| {
            self.sealed
                .partition_point(|segment| segment.base_offset < first)
        })
    }

    /// Moves the active segment among the sealed ones. Its index is finished later.
    fn roll(&mut self) {
        // An empty one stays: it has nothing to seal, and its name keeps the next offset (LOG-12).
        if let Some(active) = self.active.take_if(|active| active.frame_bytes() > 0) {
            self.prepare_failed = false;
            self.unsealed.push(Unsealed {
                producers: due_snapshot(active.blocks(), &self.producers),
                ..Unsealed::of(&active)
            });
            self.sealed.push(Arc::new(active.view(true)));
        }
    }
}

impl Unsealed {
    fn of(active: &Active) -> Self {
        Self {
            base_offset: active.base_offset(),
            end_offset: active.end_offset(),
            file: Arc::clone(&active.file),
            index: Some(Arc::clone(&active.index)),
            named: Arc::clone(&active.named),
            frame_bytes: active.frame_bytes(),
            committed_position: active.committed_position,
            committed_offset: active.committed_offset,
            settled: false,
            producers: None,
        }
    }
}

/// What is to be written when a segment of these blocks is sealed, at whose end the partition remembers `producers`: where there are
/// batches the next start need not read them again, nor miss them once they are released.
fn due_snapshot(blocks: &[Block], producers: &Producers) -> Option<Box<Producers>> {
    let is_due = blocks.iter().any(|block| block.has_batches);
    is_due.then(|| Box::new(producers.clone()))
}

impl Partition {
    /// Appends frames and waits until they are as durable as `durability` says.
    ///
    /// # Errors
    /// As [`Self::append`] and [`Self::acknowledged`].
    pub async fn append_acknowledged(
        &self,
        batch: &FrameBatch<'_>,
        durability: Durability,
    ) -> Result<Appended, AppendError> {
        let appended = self.append(batch, durability)?;
        self.acknowledged(&appended, durability).await?;
        Ok(appended)
    }
}
