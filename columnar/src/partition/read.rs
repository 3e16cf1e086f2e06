//! Reading frames by offset and by stamp: from a row group's frames where an offset is cold, from segments where it is hot.

use std::sync::Arc;

use basalt_log::{Attempt, FrameSlice, SegmentView};
use basalt_proto::Offset;

use super::TieredPartition;
use crate::error::ReadError;
use crate::file::{ColdChunk, ColdFile};

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
                        // What lies behind `end` was not looked for.
                        at = view.end_offset.min(end).max(at);
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
                        Attempt::Ready(slice) if slice.is_empty() => {
                            at = view.end_offset.min(end).max(at);
                        }
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
        if hydrator.is_hydrating(&self.key, &file, chunk) {
            // Prepared ahead, and the reader is here already: it gets two at a time.
            hydrator.prefetch(&self.key, next.clone());
        }
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
