//! Appending: all of a batch under one lock, or nothing of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use basalt_proto::{FrameBatch, Offset};

use super::{AbortedTransactions, ActiveProducer, Appended, Partition, Sequence, Sequenced, State};
use crate::config::{Durability, MAX_SEGMENT_BYTES, TopicDurability};
use crate::error::{AppendError, DiskError, OnDisk};
use crate::index::SegmentIdentity;
use crate::reserve::MAX_OFFSET;
use crate::segment::{Active, Prepared, frame_lengths, young_index_path};

/// The part of a batch that goes into one segment.
struct Piece<'a> {
    frames: &'a [u8],
    record_count: u64,
}

impl Partition {
    /// Appends frames, numbering their records; they are in the page cache on return, all of them or none.
    ///
    /// They become visible once the high watermark passes them. Call [`Self::acknowledged`] before telling anyone.
    ///
    /// # Errors
    /// [`AppendError::StorageFull`]: nothing was appended, and a later append may succeed. The others stop the partition.
    pub fn append(
        &self,
        batch: &FrameBatch<'_>,
        durability: Durability,
    ) -> Result<Appended, AppendError> {
        self.append_locked(&mut self.state.lock(), batch, durability)
    }

    /// Where a numbered batch is stored already, if it is; `None` where it comes next (LOG-15).
    ///
    /// # Errors
    /// [`AppendError::Sequence`] for one that is neither.
    pub fn find_sequence(&self, sequence: &Sequence) -> Result<Option<Appended>, AppendError> {
        let now_ns = self.shared.clock.now_ns();
        Ok(self.state.lock().producers.check(sequence, now_ns)?)
    }

    /// [`Self::append`] of one batch that its producer has numbered, unless it is there already (LOG-15). Either way it is to be told
    /// once [`Self::acknowledged`].
    ///
    /// # Errors
    /// [`AppendError::Sequence`]: nothing was appended. Others as [`Self::append`].
    pub fn append_sequenced(
        &self,
        batch: &FrameBatch<'_>,
        sequence: &Sequence,
        durability: Durability,
    ) -> Result<Sequenced, AppendError> {
        let mut state = self.state.lock();
        let now_ns = self.shared.clock.now_ns();
        if let Some(stored) = state.producers.check(sequence, now_ns)? {
            return Ok(Sequenced::Stored(stored));
        }
        let appended = self.append_locked(&mut state, batch, durability)?;
        Ok(Sequenced::New(appended))
    }

    /// Ends a producer's transaction by a control batch ([`FrameBatch::marker`]). Where none is open nothing is appended: what
    /// ended it is below the end that is returned, and is to be told once [`Self::acknowledged`].
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn end_transaction(
        &self,
        producer_id: i64,
        marker: &FrameBatch<'_>,
        durability: Durability,
    ) -> Result<Appended, AppendError> {
        let mut state = self.state.lock();
        if !state.producers.transactions.is_open(producer_id) {
            let marked_end = state.producers.transactions.marked_end();
            if marked_end > self.durable_offset() {
                self.queue_commit(&mut state);
            }
            return Ok(Appended {
                base_offset: marked_end,
                end_offset: marked_end,
            });
        }
        self.append_locked(&mut state, marker, durability)
    }

    /// Has everything that was appended made durable, whatever was promised for it; up to where. To be told once
    /// [`Self::wait_durable`].
    ///
    /// # Errors
    /// As [`Self::acknowledged`].
    pub fn request_commit(&self) -> Result<Offset, AppendError> {
        let mut state = self.state.lock();
        if state.log_end_offset > self.durable_offset() {
            if let Some(stopped) = &state.stopped {
                return Err(self.stopped_error(stopped));
            }
            self.queue_commit(&mut state);
        }
        Ok(state.log_end_offset)
    }

    /// The producers that are remembered, and those whose transaction is open.
    #[must_use]
    pub fn active_producers(&self) -> Vec<ActiveProducer> {
        let now_ns = self.shared.clock.now_ns();
        self.state.lock().producers.active(now_ns)
    }

    /// The void transactions of what is hot now.
    #[must_use]
    pub fn aborted_transactions(&self) -> Arc<AbortedTransactions> {
        Arc::clone(self.state.lock().producers.transactions.aborted())
    }

    fn append_locked(
        &self,
        state: &mut State,
        batch: &FrameBatch<'_>,
        durability: Durability,
    ) -> Result<Appended, AppendError> {
        let level = self.level();
        let seen_unsynced = level == TopicDurability::Os || durability == Durability::Os;
        if let Some(stopped) = &state.stopped {
            return Err(self.stopped_error(stopped));
        }
        let base_offset = state.log_end_offset;
        let end = base_offset
            .0
            .checked_add(batch.record_count())
            .filter(|end| *end <= MAX_OFFSET);
        let end_offset = Offset(end.ok_or(AppendError::OffsetsExhausted)?);
        if seen_unsynced {
            self.reserve(state, end_offset)?;
        }
        self.write(state, batch, seen_unsynced)?;
        assert_eq!(
            state.log_end_offset, end_offset,
            "an append spans the records it was given"
        );
        state.full_said = false;
        state.unsettled_bytes += batch.bytes().len() as u64;
        if seen_unsynced {
            self.mark_published(state)?;
        }
        if level == TopicDurability::Os {
            self.raise_high_watermark(end_offset);
        }
        if level == TopicDurability::Fsync || durability == Durability::Fsync {
            self.queue_commit(state);
        }
        self.queue_disk_work(state, level);
        Ok(Appended {
            base_offset,
            end_offset,
        })
    }

    /// LOG-3: without the mark a crash of the process alone would cost the frames. What was appended before, when nothing
    /// was shown from the page cache, is shown with them: it may stand in segments that are full by now.
    fn mark_published(&self, state: &mut State) -> Result<(), AppendError> {
        let boot = &self.shared.boot;
        let marked_offset = state.marked_offset;
        let unmarked = state
            .unsealed
            .iter()
            .filter(|segment| !segment.settled && segment.end_offset > marked_offset);
        let full = unmarked
            .filter_map(|segment| Some((segment.index.as_ref()?, segment)))
            .map(|(index, segment)| index.publish(segment.frame_bytes, segment.end_offset, boot));
        let active = state
            .active
            .iter()
            .map(|active| active.mark_published(boot));
        let marked: Result<(), DiskError> = full.chain(active).collect();
        if let Err(error) = marked {
            return Err(self.poison(state, &error));
        }
        state.marked_offset = state.log_end_offset;
        Ok(())
    }

    /// Waits until an append is as durable as `durability` says: at once for `os` and `none`.
    ///
    /// # Errors
    /// [`AppendError::Poisoned`] when its sync failed, [`AppendError::Closed`] when the log was closed before it.
    pub async fn acknowledged(
        &self,
        appended: &Appended,
        durability: Durability,
    ) -> Result<(), AppendError> {
        match durability {
            Durability::Fsync => self.wait_durable(appended.end_offset).await,
            Durability::Os | Durability::None => Ok(()),
        }
    }

    /// Everything below it has been synced.
    #[must_use]
    pub fn durable_offset(&self) -> Offset {
        self.progress.borrow().synced_offset
    }

    /// Waits until everything below `end` has been synced.
    ///
    /// # Errors
    /// As [`Self::acknowledged`].
    pub async fn wait_durable(&self, end: Offset) -> Result<(), AppendError> {
        let mut progress = self.progress.subscribe();
        let seen = progress
            .wait_for(|progress| progress.synced_offset >= end || progress.failed.is_some())
            .await;
        match seen {
            Ok(progress) if progress.synced_offset >= end => Ok(()),
            Ok(progress) => Err(progress
                .failed
                .clone()
                .unwrap_or_else(|| self.stopped_error(&super::Stopped::Closed))),
            Err(_) => Err(self.stopped_error(&super::Stopped::Closed)),
        }
    }

    /// Makes sure that offsets below `end` may be acknowledged without a sync (LOG-5).
    fn reserve(&self, state: &mut State, end: Offset) -> Result<(), AppendError> {
        if self.reserved.covers(end) {
            return Ok(());
        }
        let disk = self.shared.disk.as_ref();
        self.settle_dir()
            .and_then(|()| {
                self.reserved
                    .extend(disk, &self.dir, end, state.opened_offset)
            })
            .map_err(|error| self.refuse(state, error))
    }

    /// Reserves more offsets before an append has to wait for it, where they run low (LOG-5).
    pub(crate) fn reserve_ahead(&self) {
        let _serial = self.prepare_work.lock();
        let (end, floor) = {
            let state = self.state.lock();
            if state.stopped.is_some() || !self.wants_reservation(&state) {
                return;
            }
            (state.log_end_offset, state.opened_offset)
        };
        self.reserved.set_tried();
        let disk = self.shared.disk.as_ref();
        let extended = self
            .settle_dir()
            .and_then(|()| self.reserved.extend(disk, &self.dir, end, floor));
        match extended {
            // An append will say so, if it still has to be said by then.
            Err(error) if error.is_full() || error.is_passing() => {}
            Err(error) => drop(self.poison(&mut self.state.lock(), &error)),
            Ok(()) => {}
        }
    }

    fn wants_reservation(&self, state: &State) -> bool {
        self.level() == TopicDurability::Os && self.reserved.runs_low(state.log_end_offset)
    }

    /// Makes the partition's folder durable, unless it is.
    pub(super) fn settle_dir(&self) -> Result<(), DiskError> {
        if self.dir_settled.load(Ordering::Acquire) {
            return Ok(());
        }
        let disk = self.shared.disk.as_ref();
        disk.make_dir_all(&self.dir).on("create", &self.dir)?;
        // The topic's folder, the one of all topics, the data folder.
        for dir in self.dir.ancestors().skip(1).take(3) {
            disk.sync_dir(dir).on("sync", dir)?;
        }
        self.dir_settled.store(true, Ordering::Release);
        Ok(())
    }

    /// The error for a disk that refused before anything was appended: a full disk and a lack of descriptors pass, all
    /// else stops the partition.
    pub(super) fn refuse(&self, state: &mut State, error: DiskError) -> AppendError {
        if error.is_full() {
            if !std::mem::replace(&mut state.full_said, true) {
                tracing::warn!(topic = %self.topic, partition = %self.id, %error, "the disk is full: appends are refused until there is room");
            }
            return AppendError::StorageFull {
                path: error.path,
                source: Arc::new(error.source),
            };
        }
        if error.is_passing() {
            return AppendError::Unavailable {
                path: error.path,
                source: Arc::new(error.source),
            };
        }
        self.poison(state, &error)
    }

    /// Puts the batch into the active segment, or into as many as it takes. Whatever can fail comes first.
    fn write(
        &self,
        state: &mut State,
        batch: &FrameBatch<'_>,
        seen_unsynced: bool,
    ) -> Result<(), AppendError> {
        let bytes = batch.bytes().len() as u64;
        if bytes > MAX_SEGMENT_BYTES {
            return Err(AppendError::TooLarge {
                bytes,
                max: MAX_SEGMENT_BYTES,
            });
        }
        if let Some(active) = state
            .active
            .as_mut()
            .filter(|active| active.frame_bytes() == 0)
        {
            let first = frame_lengths(batch.bytes())
                .next()
                .map_or(0, |(bytes, _)| bytes as u64);
            active.widen(first);
        }
        let room = state.active.as_ref().map_or(0, Active::room_bytes);
        if let Some(active) = state.active.as_mut().filter(|_| bytes <= room) {
            active
                .make_room(bytes)
                .map_err(|error| self.refuse(state, error))?;
            return self.fill(state, batch.bytes(), batch.has_batches());
        }
        let mut pieces = split(batch.bytes(), room, self.segment_bytes());
        let into_active = (pieces[0].frames.len() as u64 <= room).then(|| pieces.remove(0));
        let mut base_offset = state.log_end_offset;
        if let (Some(active), Some(piece)) = (&mut state.active, &into_active) {
            active
                .make_room(piece.frames.len() as u64)
                .map_err(|error| self.refuse(state, error))?;
            base_offset = Offset(base_offset.0 + piece.record_count);
        }
        let mut segments = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            match self.next_segment(state, base_offset, piece.frames.len() as u64) {
                Ok(segment) => segments.push(segment),
                Err(error) => {
                    segments.iter().for_each(|segment| self.discard(segment));
                    return Err(self.refuse(state, error));
                }
            }
            base_offset = Offset(base_offset.0 + piece.record_count);
        }
        if let Some(piece) = into_active {
            self.fill(state, piece.frames, batch.has_batches())?;
        }
        for (segment, piece) in segments.into_iter().zip(&pieces) {
            if seen_unsynced {
                self.mark_published(state)?;
            }
            state.roll();
            state.active = Some(segment);
            self.fill(state, piece.frames, batch.has_batches())?;
        }
        Ok(())
    }

    fn fill(&self, state: &mut State, frames: &[u8], has_batches: bool) -> Result<(), AppendError> {
        let Some(active) = &mut state.active else {
            return Ok(());
        };
        let now_ns = self.shared.clock.now_ns();
        if let Err(error) = active.append(frames, now_ns) {
            return Err(self.poison(state, &error));
        }
        if has_batches {
            state
                .producers
                .fold(frames, Some(state.log_end_offset), now_ns);
        }
        state.log_end_offset = active.end_offset();
        Ok(())
    }

    /// The segment that was made ahead, if it fits, or a new one.
    fn next_segment(
        &self,
        state: &mut State,
        base_offset: Offset,
        first_bytes: u64,
    ) -> Result<Active, DiskError> {
        let fits = |prepared: &mut Prepared| prepared.room_bytes() >= first_bytes;
        let Some(prepared) = state.prepared.take_if(fits) else {
            return self.create_segment(base_offset, first_bytes);
        };
        let identity = SegmentIdentity::new(self.topic_id, self.id, base_offset);
        let disk = self.shared.disk.as_ref();
        let block_bytes = self.shared.config.block_bytes;
        let mut segment = prepared
            .put_to_use(disk, &self.dir, identity, block_bytes)
            .inspect_err(|_| {
                state.prepare_failed = true;
                self.remove_prepared();
            })?;
        segment
            .make_room(first_bytes)
            .inspect_err(|_| self.discard(&segment))?;
        Ok(segment)
    }

    pub(super) fn create_segment(
        &self,
        base_offset: Offset,
        first_bytes: u64,
    ) -> Result<Active, DiskError> {
        let config = &self.shared.config;
        let identity = SegmentIdentity::new(self.topic_id, self.id, base_offset);
        let disk = self.shared.disk.as_ref();
        Active::create(
            disk,
            &self.dir,
            identity,
            self.segment_bytes(),
            config.block_bytes,
            first_bytes,
        )
    }

    /// Removes the files of a segment that never got a frame. Recovery would drop them too.
    fn discard(&self, segment: &Active) {
        let path = &segment.file.path;
        let _ = self.shared.disk.remove_file(path);
        let _ = self.shared.disk.remove_file(&young_index_path(path));
    }

    /// Has a thread settle, seal or make the next segment, if there is reason to.
    pub(super) fn queue_disk_work(&self, state: &mut State, level: TopicDurability) {
        let config = &self.shared.config;
        if config.sync_threads == 0 {
            return;
        }
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let is_os = level == TopicDurability::Os;
        if is_os && !state.queued.later {
            state.queued.later = true;
            self.shared
                .queue
                .push_delayed(Arc::clone(&this), config.flush_interval);
        }
        let flush = is_os && state.unsettled_bytes >= config.flush_bytes;
        state.queued.settle |= flush;
        let seal = !state.unsealed.is_empty() && !state.seal_rests;
        let reserve = is_os && self.reserved.runs_low(state.log_end_offset);
        if (flush || seal || reserve || state.wants_next()) && !state.queued.disk_work {
            state.queued.disk_work = true;
            self.shared.queue.push(this);
        }
    }
}

/// Cuts frames into pieces of whole frames: the first of at most `room` bytes (left out if no frame fits), the others of
/// at most `segment_bytes` or a single frame.
fn split(frames: &[u8], room: u64, segment_bytes: u64) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut at, mut record_count) = (0, 0, 0);
    let mut limit = room;
    for (bytes, records) in frame_lengths(frames) {
        let grown = (at + bytes - start) as u64;
        if grown > limit {
            if at > start {
                pieces.push(Piece {
                    frames: &frames[start..at],
                    record_count,
                });
            }
            (start, record_count) = (at, 0);
            limit = segment_bytes.max(bytes as u64);
        }
        at += bytes;
        record_count += u64::from(records.max(1));
    }
    if at > start {
        pieces.push(Piece {
            frames: &frames[start..at],
            record_count,
        });
    }
    pieces
}
