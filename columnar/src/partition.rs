//! A partition, hot and cold as one.
//!
//! - **COL-13** (P1): `state` is locked for the swap to a new manifest and for taking a snapshot, so that each snapshot sees one
//!   cut: rows below `cold_end_offset` from cold files, rows from there on from hot segments, each once.
//! - **COL-14**: hot segments are released after the swap, so whoever found an offset hot either reads it there or, looking
//!   again, finds it cold.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use basalt_log::{Attempt, Bounds, FrameSlice, Partition, SegmentView, TopicId};
use basalt_proto::{Offset, PartitionId, TopicName};
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{CoolError, ReadError};
use crate::file::{ColdChunk, ColdFile};
use crate::manifest::{Manifest, PartitionKey};
use crate::shared::Shared;
use crate::status::Tally;

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
    /// The first offset that is not readable yet.
    pub high_watermark: Offset,
    /// Cold files in order, each with records at or after `log_start_offset`.
    pub cold: Vec<Arc<ColdFile>>,
    /// Hot segments in order, cut at the high watermark.
    pub hot: Vec<Arc<SegmentView>>,
}

/// Where to look for an offset.
enum Place {
    /// In a cold file's chunk, or behind it.
    Cold(ColdPlace),
    /// In hot segments.
    Hot(HotPlace),
}

/// A chunk of a cold file, and the one after it.
struct ColdPlace {
    file: Arc<ColdFile>,
    chunk: usize,
    next: Option<(Arc<ColdFile>, usize)>,
}

/// What a read finds in a chunk's place.
enum Chunk {
    /// Nothing up to the read's end.
    Nothing { next_offset: Offset },
    /// Its frames, hydrated. There may be none of those asked for among them.
    Open(Arc<SegmentView>),
}

/// Where to go on in hot segments, as long as the cold part is at that generation.
#[derive(Debug, Clone, Copy)]
struct HotPlace {
    from: Offset,
    generation: u64,
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
        Bounds {
            log_start_offset: state.log_start_offset(hot.log_start_offset),
            ..hot
        }
    }

    /// The partition at this moment (COL-13).
    #[must_use]
    pub fn snapshot(&self) -> PartitionSnapshot {
        let state = self.state.lock();
        let hot = self.hot.snapshot();
        let log_start_offset = state.log_start_offset(hot.log_start_offset);
        let cold_end_offset = state.manifest.cold_end_offset.max(log_start_offset);
        let cold = state.manifest.files.clone();
        drop(state);
        PartitionSnapshot {
            topic: self.key.topic.clone(),
            partition: self.key.partition,
            log_start_offset,
            cold_end_offset,
            high_watermark: hot.high_watermark,
            cold,
            // Segments that are cold but not released yet are left out.
            hot: hot
                .segments
                .into_iter()
                .filter(|segment| segment.end_offset > cold_end_offset)
                .collect(),
        }
    }

    /// Whole frames from `from` on that begin below `end` and the high watermark: at most `max_bytes`, but at least one frame
    /// if there is any. The first is the one that covers `from`, or the next one where `from` lies in a gap. Go on at the slice's
    /// `next_offset`; an empty slice says that there is nothing (yet) up to `end`.
    ///
    /// A cold offset is read from its row group, which is rebuilt from Parquet first if it is not in the cache; the next one is
    /// then prepared ahead.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] before the log's start or past the high watermark; [`ReadError::Hot`] and
    /// [`ReadError::Cold`] when the bytes cannot be read.
    pub async fn read(
        &self,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<FrameSlice, ReadError> {
        let mut at = from;
        loop {
            match self.locate(from, at)? {
                Place::Cold(place) => match self.open_chunk(place, at, end).await? {
                    Chunk::Nothing { next_offset } => return Ok(FrameSlice::empty(next_offset)),
                    Chunk::Open(view) => {
                        let slice = view.slice(at, end, max_bytes)?;
                        if !slice.is_empty() {
                            return Ok(slice);
                        }
                        at = view.end_offset.max(at);
                    }
                },
                Place::Hot(place) => {
                    let read = self.hot.read(place.from, end, max_bytes);
                    if self.is_current(place) {
                        return Ok(read?);
                    }
                }
            }
        }
    }

    /// As [`TieredPartition::read`], without making the thread wait for the disk: where it would have to, the answer is what
    /// must be loaded. It still waits, as others run, for a row group that is not in the cache.
    ///
    /// # Errors
    /// As [`TieredPartition::read`].
    pub async fn try_read(
        &self,
        from: Offset,
        end: Offset,
        max_bytes: u64,
    ) -> Result<Attempt<FrameSlice>, ReadError> {
        let mut at = from;
        loop {
            match self.locate(from, at)? {
                Place::Cold(place) => match self.open_chunk(place, at, end).await? {
                    Chunk::Nothing { next_offset } => {
                        return Ok(Attempt::Ready(FrameSlice::empty(next_offset)));
                    }
                    Chunk::Open(view) => match view.try_slice(at, end, max_bytes)? {
                        Attempt::Ready(slice) if slice.is_empty() => at = view.end_offset.max(at),
                        answer => return Ok(answer),
                    },
                },
                Place::Hot(place) => {
                    let read = self.hot.try_read(place.from, end, max_bytes);
                    if self.is_current(place) {
                        return Ok(read?);
                    }
                }
            }
        }
    }

    /// The row group for a read of `[at, end)`, and the next one on its way.
    async fn open_chunk(
        &self,
        place: ColdPlace,
        at: Offset,
        end: Offset,
    ) -> Result<Chunk, ReadError> {
        let ColdPlace { file, chunk, next } = place;
        let begins_behind = |chunk: &ColdChunk| chunk.base_offset >= end;
        if at >= end || file.chunks.get(chunk).is_some_and(begins_behind) {
            return Ok(Chunk::Nothing {
                next_offset: at.max(end),
            });
        }
        let hydrator = &self.shared.hydrator;
        let view = hydrator
            .hydrate(&self.key, &file, chunk)
            .await
            .map_err(ReadError::Cold)?;
        hydrator.prefetch(&self.key, next);
        Ok(Chunk::Open(view))
    }

    /// Whether [`TieredPartition::locate`] would still say the same. If not one has to look again: what was hot may have
    /// become cold, or have expired, before it was read (COL-14).
    fn is_current(&self, place: HotPlace) -> bool {
        self.state.lock().generation == place.generation
    }

    /// Finds the place of the first record at or after `at`, if the offset that was asked for is in range.
    fn locate(&self, asked: Offset, at: Offset) -> Result<Place, ReadError> {
        let state = self.state.lock();
        let hot = self.hot.bounds();
        let log_start_offset = state.log_start_offset(hot.log_start_offset);
        if asked < log_start_offset || asked > hot.high_watermark {
            return Err(ReadError::OutOfRange {
                offset: asked,
                log_start_offset,
                high_watermark: hot.high_watermark,
            });
        }
        let files = &state.manifest.files;
        let first = files.partition_point(|file| file.end_offset <= at);
        let found = files[first..].iter().enumerate().find_map(|(index, file)| {
            let chunk = file.chunk_at(at)?;
            let next = if chunk + 1 < file.chunks.len() {
                Some((Arc::clone(file), chunk + 1))
            } else {
                files
                    .get(first + index + 1)
                    .map(|next| (Arc::clone(next), 0))
            };
            Some(Place::Cold(ColdPlace {
                file: Arc::clone(file),
                chunk,
                next,
            }))
        });
        Ok(found.unwrap_or(Place::Hot(HotPlace {
            // A gap may lie between the last cold record and the first hot one.
            from: at
                .max(state.manifest.cold_end_offset)
                .max(hot.log_start_offset),
            generation: state.generation,
        })))
    }

    /// The earliest record whose stamp is at least `timestamp_ns`, with its stamp; `None` when there is none yet. Stamps need
    /// not be in order: what comes first is the smallest offset.
    ///
    /// # Errors
    /// Those of [`TieredPartition::read`], but for [`ReadError::OutOfRange`].
    pub async fn offset_for_timestamp(
        &self,
        timestamp_ns: u64,
    ) -> Result<Option<(Offset, u64)>, ReadError> {
        self.search(timestamp_ns, |view, from| {
            view.offset_for_timestamp(timestamp_ns, from)
        })
        .await
    }

    /// As [`TieredPartition::offset_for_timestamp`], without making the thread wait for the disk, as
    /// [`TieredPartition::try_read`].
    ///
    /// # Errors
    /// As [`TieredPartition::offset_for_timestamp`].
    pub async fn try_offset_for_timestamp(
        &self,
        timestamp_ns: u64,
    ) -> Result<Attempt<Option<(Offset, u64)>>, ReadError> {
        let found = self.search(timestamp_ns, |view, from| {
            Ok(match view.try_offset_for_timestamp(timestamp_ns, from)? {
                Attempt::Ready(None) => None,
                answer => Some(answer),
            })
        });
        Ok(found.await?.unwrap_or(Attempt::Ready(None)))
    }

    /// The first answer of `find(view, from)` for the row groups and segments that may hold such a stamp, in order.
    async fn search<T>(
        &self,
        timestamp_ns: u64,
        find: impl Fn(&SegmentView, Offset) -> Result<Option<T>, basalt_log::ReadError>,
    ) -> Result<Option<T>, ReadError> {
        let snapshot = self.snapshot();
        let late = |max_timestamp_ns: u64| max_timestamp_ns >= timestamp_ns;
        for file in snapshot
            .cold
            .iter()
            .filter(|file| late(file.max_timestamp_ns))
        {
            for (index, _) in file
                .chunks
                .iter()
                .enumerate()
                .filter(|(_, chunk)| late(chunk.max_timestamp_ns))
            {
                let view = self
                    .shared
                    .hydrator
                    .hydrate(&self.key, file, index)
                    .await
                    .map_err(ReadError::Cold)?;
                let from = view.base_offset.max(snapshot.log_start_offset);
                if let Some(found) = find(&view, from)? {
                    return Ok(Some(found));
                }
            }
        }
        for view in &snapshot.hot {
            let from = view.base_offset.max(snapshot.cold_end_offset);
            if let Some(found) = find(view, from)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl ColdState {
    /// The first readable offset, if hot segments begin at `hot_start`.
    pub(crate) fn log_start_offset(&self, hot_start: Offset) -> Offset {
        if self.manifest.files.is_empty() {
            // Then hot segments alone say where the log starts: they are released without a manifest.
            self.manifest.log_start_offset.max(hot_start)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::{Setup, append_numbered, topic};

    #[tokio::test]
    async fn a_hot_read_that_was_overtaken_by_cooling_looks_again() {
        let fixture = Setup::new().open().await;
        let partition = fixture.partition();
        append_numbered(&partition, 300).await;
        let Ok(Place::Hot(place)) = partition.locate(Offset(10), Offset(10)) else {
            panic!("everything is hot");
        };
        assert!(partition.is_current(place));

        partition.hot().seal_active().unwrap();
        append_numbered(&partition, 10).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        assert!(!partition.is_current(place), "it is cold by now");
        let read = partition.read(Offset(10), Offset::MAX, 100).await.unwrap();
        assert_eq!(read.first_offset, Offset(10));

        // And when it has expired, which changes no manifest while nothing is cold.
        let fixture = Setup::new().open().await;
        let partition = fixture.partition();
        append_numbered(&partition, 300).await;
        partition.hot().seal_active().unwrap();
        let Ok(Place::Hot(place)) = partition.locate(Offset(10), Offset(10)) else {
            panic!("everything is hot");
        };
        fixture.configure(|config| config.retention_bytes = Some(0));
        fixture.tiered.maintain().await;
        assert!(!partition.is_current(place));
        let read = partition.read(Offset(10), Offset::MAX, 100).await;
        assert!(
            matches!(
                read,
                Err(ReadError::OutOfRange {
                    log_start_offset: Offset(300),
                    ..
                })
            ),
            "{read:?}"
        );
    }
}
