//! Cooling: a sealed segment becomes a cold file, and is released. It waits for the transactions that the segment has records of; of
//! those that are void no record is cooled.
//!
//! The order is write, sync, verify, commit, swap, release ([`Step::COOLING`]). A crash between any two leaves the segment hot or
//! the file committed, and at worst an object that no manifest names.
//!
//! - **COL-15**: a segment is released only after a durable manifest names a durable, verified object with its records. A manifest
//!   that was read at the start is not known to be durable, so a fresh version goes before the first release that relies on it.

use std::io;
use std::sync::Arc;

use basalt_log::{AbortedTransactions, SegmentView};
use basalt_proto::Offset;
use basalt_schema::TopicSchema;
use object_store::path::Path;

use crate::commit::Outcome;
use crate::error::{Chain, CoolError};
use crate::file::ColdFile;
use crate::hydrate::{read_chunk, verify_bytes, verify_footer};
use crate::object_reader::Footers;
use crate::partition::TieredPartition;
use crate::paths;
use crate::sink::{self, PartSink, parts};
use crate::steps::{Step, Stopped};
use crate::store::nonce;
use crate::writer::{Surveyed, WriteOptions, Written, survey, write_segment};

/// What cooling did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoolReport {
    /// Segments that became cold files; when nobody waited for it, those that are queued.
    pub segments: u32,
    /// Rows in the files.
    pub rows: u64,
    /// Bytes of frames in the segments.
    pub bytes_in: u64,
    /// Bytes of the files.
    pub bytes_out: u64,
}

impl CoolReport {
    pub(crate) fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.rows += other.rows;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

/// Which segments to cool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoolWhat {
    /// Those out of the hot window, and those somebody asked for.
    Due,
    /// Those that end at or below an offset.
    Through(Offset),
}

/// What a partition has to cool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backlog {
    /// When the oldest segment was last appended to.
    pub(crate) oldest_ns: u64,
    /// Bytes of frames in sealed segments that are not cold.
    pub(crate) bytes: u64,
}

/// Those of `sealed` that are not cold.
fn still_hot(
    sealed: &[Arc<SegmentView>],
    cold_end: Offset,
) -> impl Iterator<Item = &Arc<SegmentView>> {
    let is_hot = move |segment: &&Arc<SegmentView>| segment.end_offset > cold_end;
    sealed.iter().filter(is_hot)
}

impl TieredPartition {
    /// Cools sealed segments, oldest first, up to an offset.
    pub(crate) async fn cool_through(&self, through: Offset) -> Result<CoolReport, CoolError> {
        self.release_what_is_cold().await?;
        let mut report = CoolReport::default();
        loop {
            match self.cool_one(CoolWhat::Through(through)).await? {
                Some(cooled) => report.add(cooled),
                None => return Ok(report),
            }
            self.shared.wake_merging.notify_one();
        }
    }

    /// Cools the oldest segment that is due. `None` if there is none.
    pub(crate) async fn cool_due(&self) -> Result<Option<CoolReport>, CoolError> {
        let cooled = self.cool_one(CoolWhat::Due).await?;
        self.shared.wake_merging.notify_one();
        Ok(cooled)
    }

    /// Removes hot segments that an earlier attempt left.
    pub(crate) async fn release_what_is_cold(&self) -> Result<(), CoolError> {
        let _work = self.work.lock().await;
        self.state.lock().check_open()?;
        self.unless_full(self.release_cold().await)
    }

    async fn cool_one(&self, what: CoolWhat) -> Result<Option<CoolReport>, CoolError> {
        // Taken anew for each: what was merged meanwhile is swapped in between, however long there is something to cool.
        let _work = self.work.lock().await;
        self.state.lock().check_open()?;
        match self.next_to_cool(what) {
            Some(segment) => {
                let cooling = self.cool_segment(segment);
                self.count_cooling(cooling).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// What is due, if anything is.
    pub(crate) fn backlog(&self) -> Option<Backlog> {
        let oldest = self.next_to_cool(CoolWhat::Due)?;
        let sealed = self.hot.sealed_segments();
        let waiting = sealed
            .iter()
            .filter(|segment| segment.base_offset >= oldest.base_offset);
        Some(Backlog {
            oldest_ns: oldest.appended_at_ns(),
            bytes: waiting.map(|segment| segment.frame_bytes()).sum(),
        })
    }

    fn next_to_cool(&self, what: CoolWhat) -> Option<Arc<SegmentView>> {
        let (cold_end, cool_through) = {
            let state = self.state.lock();
            (state.manifest.cold_end_offset, state.cool_through)
        };
        let sealed = self.hot.sealed_segments();
        let oldest = sealed
            .iter()
            .find(|segment| segment.end_offset > cold_end)?;
        if oldest.end_offset > self.hot.bounds().stable_offset {
            return None;
        }
        let due = match what {
            CoolWhat::Through(through) => oldest.end_offset <= through,
            CoolWhat::Due => {
                oldest.end_offset <= cool_through
                    || self.shared.budget.is_pressed()
                    || self.is_out_of_hot_window(oldest, &sealed, cold_end)
                    || self
                        .is_wanted_for_compaction(&self.hot.config(), still_hot(&sealed, cold_end))
            }
        };
        due.then(|| Arc::clone(oldest))
    }

    fn is_out_of_hot_window(
        &self,
        oldest: &SegmentView,
        sealed: &[Arc<SegmentView>],
        cold_end: Offset,
    ) -> bool {
        let config = self.hot.config();
        let hot_bytes = config.hot_bytes.unwrap_or(self.shared.config.hot_bytes);
        let hot_age = config.hot_age.unwrap_or(self.shared.config.hot_age);
        let bytes = still_hot(sealed, cold_end).fold(self.hot.active_bytes(), |sum, segment| {
            sum.saturating_add(segment.frame_bytes())
        });
        let age_ns = self.shared.now_ns().saturating_sub(oldest.appended_at_ns());
        bytes > hot_bytes || u128::from(age_ns) >= hot_age.as_nanos()
    }

    async fn cool_segment(&self, segment: Arc<SegmentView>) -> Result<CoolReport, CoolError> {
        let _permit = self
            .shared
            .coolings
            .acquire()
            .await
            .map_err(|_| CoolError::Closed)?;
        self.state.lock().check_writable(&self.key)?;
        // All of its transactions have ended.
        let aborted = self.hot.aborted_transactions();
        let surveyed = {
            let (segment, aborted) = (Arc::clone(&segment), Arc::clone(&aborted));
            blocking(move || survey(&segment, &aborted)).await??
        };
        self.reached(Step::SegmentVerified)?;
        let file = if surveyed.frame_count == 0 {
            None
        } else {
            Some(self.write_file(&segment, surveyed, &aborted).await?)
        };
        let report = file
            .as_ref()
            .map_or_else(CoolReport::default, |file| CoolReport {
                segments: 1,
                rows: file.rows,
                bytes_in: file.frame_bytes,
                bytes_out: file.file_bytes,
            });
        let new_file = file.clone();
        let next =
            self.state
                .lock()
                .manifest
                .with_file(file, segment.end_offset, &self.shared.writer);
        let committed = self.commit(next).await;
        if committed.is_err() {
            // Perhaps it is the truth by now. The next commit finds out.
            self.state.lock().undecided.extend(new_file.clone());
        }
        if committed? == Outcome::Earlier {
            // An earlier attempt at this segment had succeeded after all: this one's object is superfluous, unless it is the one
            // that the truth names.
            let truth = self.state.lock().manifest.clone();
            if let Some(file) = new_file.filter(|file| truth.same_file(file).is_none()) {
                self.shared.store.delete(&file.path).await?;
            }
            self.unless_full(self.release_cold().await)?;
            return Ok(CoolReport::default());
        }
        self.unless_full(self.release_cold().await)?;
        self.reached(Step::Released)?;
        self.trim_manifests().await?;
        self.reached(Step::ManifestsTrimmed)?;
        tracing::debug!(
            topic = %self.key.topic,
            partition = %self.key.partition,
            base_offset = %segment.base_offset,
            end_offset = %segment.end_offset,
            rows = report.rows,
            bytes_in = report.bytes_in,
            bytes_out = report.bytes_out,
            "segment cooled"
        );
        Ok(report)
    }

    /// Whether files that are written now have columns of payloads' fields.
    pub(crate) fn shreds_json(&self) -> bool {
        let of_topic = self.hot.config().shred_json;
        of_topic.unwrap_or(self.shared.config.shred_json)
    }

    /// The schema by which files that are written now have declared columns.
    pub(crate) fn payload_schema(&self) -> Option<Arc<TopicSchema>> {
        let text = self.hot.config().schema;
        let read = self.shared.schemas.read(self.hot.topic_id().0, text);
        read.unwrap_or_else(|error| {
            // Payloads are all that is needed: the columns can be computed from them at any time.
            tracing::warn!(topic = %self.hot.topic(), %error, "cold files get no declared columns");
            None
        })
    }

    /// Writes a segment's object, makes it durable and proves it. What a failure leaves is deleted.
    async fn write_file(
        &self,
        segment: &Arc<SegmentView>,
        surveyed: Surveyed,
        aborted: &Arc<AbortedTransactions>,
    ) -> Result<Arc<ColdFile>, CoolError> {
        let name = paths::object_name(segment.base_offset, segment.end_offset, &nonce());
        let path = self.key.prefix().join(name.as_str());
        let unwanted = self.shared.litter.unwanted(&path);
        match self
            .write_and_prove(segment, surveyed, aborted, &path)
            .await
        {
            Ok(file) => {
                unwanted.keep();
                Ok(file)
            }
            Err(error) => {
                self.shared.give_up(unwanted, &error).await;
                Err(error)
            }
        }
    }

    async fn write_and_prove(
        &self,
        segment: &Arc<SegmentView>,
        surveyed: Surveyed,
        aborted: &Arc<AbortedTransactions>,
        path: &Path,
    ) -> Result<Arc<ColdFile>, CoolError> {
        let written = self.upload(segment, surveyed, aborted, path).await?;
        self.reached(Step::ObjectWritten)?;
        self.shared.store.sync(path).await?;
        self.reached(Step::ObjectSynced)?;
        let file = Arc::new(ColdFile {
            path: path.clone(),
            base_offset: segment.base_offset,
            end_offset: segment.end_offset,
            rows: written.rows,
            file_bytes: written.file_bytes,
            file_crc32c: written.file_crc32c,
            frame_bytes: written.frame_bytes,
            min_timestamp_ns: written.min_timestamp_ns,
            max_timestamp_ns: written.max_timestamp_ns,
            appended_at_ns: segment.appended_at_ns(),
            chunks: written.chunks,
            shredded: written.shredded,
            typed: written.typed,
        });
        tracing::debug!(%path, shredded_rows = written.shredded_rows, "object written");
        verify_footer(self.shared.store.object_store(), &file).await?;
        if self.shared.config.verify_replay {
            verify_bytes(self.shared.store.object_store(), &file).await?;
            self.verify_replay(&file).await?;
        }
        self.reached(Step::ObjectVerified)?;
        Ok(file)
    }

    async fn upload(
        &self,
        segment: &Arc<SegmentView>,
        surveyed: Surveyed,
        aborted: &Arc<AbortedTransactions>,
        path: &Path,
    ) -> Result<Written, CoolError> {
        let (segment, key) = (Arc::clone(segment), self.key.clone());
        let aborted = Arc::clone(aborted);
        self.upload_written(path, move |options, parts| {
            write_segment(&segment, &aborted, surveyed, &key, options, parts)
        })
        .await
    }

    /// Uploads what `write` hands over from a thread of its own; what that returned.
    pub(crate) async fn upload_written<T: Send + 'static>(
        &self,
        path: &Path,
        write: impl FnOnce(&WriteOptions, PartSink) -> Result<T, CoolError> + Send + 'static,
    ) -> Result<T, CoolError> {
        let (parts_in, parts_out) = parts();
        let options = WriteOptions {
            row_group_bytes: self.shared.config.row_group_bytes,
            zstd_level: self.shared.config.zstd_level,
            shred_json: self.shreds_json(),
            typed: self.payload_schema(),
        };
        let writing = tokio::task::spawn_blocking(move || write(&options, parts_in));
        let mut written = None;
        let whole = async {
            written = Some(writing.await.map_err(|error| ended_early(&error))??);
            Ok::<(), CoolError>(())
        };
        sink::upload(
            &self.shared.store,
            &self.shared.litter,
            path,
            parts_out,
            whole,
        )
        .await??;
        written.ok_or(CoolError::Closed)
    }

    /// Rebuilds every frame from what was written: the proof that the segment is not needed any more.
    async fn verify_replay(&self, file: &Arc<ColdFile>) -> Result<(), CoolError> {
        let (store, file) = (
            Arc::clone(self.shared.store.object_store()),
            Arc::clone(file),
        );
        let handle = tokio::runtime::Handle::current();
        let proof = move || {
            let footers = Footers::default();
            file.chunks.iter().try_for_each(|chunk| {
                handle
                    .block_on(read_chunk(&store, &footers, &file, chunk, &mut io::sink()))
                    .map(drop)
            })
        };
        blocking(proof).await?.map_err(CoolError::Replay)
    }

    /// Removes hot segments that are cold by now.
    pub(crate) async fn release_cold(&self) -> Result<(), CoolError> {
        let cold_end = || self.state.lock().manifest.cold_end_offset;
        let sealed = self.hot.sealed_segments();
        if sealed
            .first()
            .is_none_or(|oldest| oldest.end_offset > cold_end())
        {
            return Ok(());
        }
        self.prove(cold_end()).await?;
        self.release(cold_end()).await
    }

    /// What cannot be released because the disk is full waits for the next pass: what was committed stands, and nobody reads the
    /// segments any more.
    pub(crate) fn unless_full(&self, released: Result<(), CoolError>) -> Result<(), CoolError> {
        match released {
            Err(error) if error.is_disk_full() => {
                tracing::warn!(
                    topic = %self.key.topic, partition = %self.key.partition, error = %Chain(&error),
                    "hot segments that are cold stay until the disk has room"
                );
                Ok(())
            }
            released => released,
        }
    }

    pub(crate) async fn release(&self, through: Offset) -> Result<(), CoolError> {
        self.state.lock().check_open()?;
        if self.hot.bounds().log_start_offset >= through {
            return Ok(());
        }
        let hot = Arc::clone(&self.hot);
        let before = self.hot.hot_bytes();
        let released = blocking(move || hot.release(through)).await?;
        // What was appended meanwhile is counted by the next recount.
        let bytes = before.saturating_sub(self.hot.hot_bytes());
        self.shared.budget.give_back(bytes);
        released.map_err(CoolError::Release)
    }

    pub(crate) fn reached(&self, step: Step) -> Result<(), Stopped> {
        self.shared.steps.reached(step)
    }
}

/// Runs what blocks for long on a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CoolError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ended_early(&error))
}

fn ended_early(error: &tokio::task::JoinError) -> CoolError {
    if error.is_panic() {
        tracing::error!(%error, "a thread of the cold tier panicked");
    }
    CoolError::Closed
}
