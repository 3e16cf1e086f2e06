//! Cooling: a sealed segment becomes a cold file, and is released.
//!
//! The order is write, sync, verify, commit, swap, release ([`Step::COOLING`]). A crash between any two leaves the segment hot or
//! the file committed, and at worst an object that no manifest names.
//!
//! - **COL-15**: a segment is released only after a durable manifest names a durable, verified object with its records. A manifest
//!   that was read at the start is not known to be durable, so a fresh version goes before the first release that relies on it.

use std::io;
use std::sync::Arc;

use basalt_log::SegmentView;
use basalt_proto::Offset;
use object_store::path::Path;

use crate::error::{Chain, CoolError};
use crate::file::ColdFile;
use crate::hydrate::{read_chunk, verify_bytes, verify_footer};
use crate::manifest::{self, Committed, Manifest, ManifestError};
use crate::partition::{ColdState, TieredPartition};
use crate::paths;
use crate::sink::{self, parts};
use crate::steps::{Step, Stopped};
use crate::store::{StoreError, nonce};
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
pub(crate) enum CoolWhat {
    /// Those out of the hot window, and those somebody asked for.
    Due,
    /// Those that end at or below an offset.
    Through(Offset),
}

impl TieredPartition {
    pub(crate) async fn cool_segments(&self, what: CoolWhat) -> Result<CoolReport, CoolError> {
        let work = self.work.lock().await;
        self.state.lock().check_open()?;
        self.unless_full(self.release_cold().await)?;
        drop(work);
        let mut report = CoolReport::default();
        loop {
            {
                // Taken anew for each: what was merged meanwhile is swapped in between, however long there is something to cool.
                let _work = self.work.lock().await;
                self.state.lock().check_open()?;
                let Some(segment) = self.next_to_cool(what) else {
                    return Ok(report);
                };
                report.add(self.count_cooling(self.cool_segment(segment)).await?);
            }
            self.shared.wake_merging.notify_one();
            if what == CoolWhat::Due {
                // Retention does not wait for the end either, and what has expired is not cooled.
                self.expire().await?;
            }
        }
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
        let due = match what {
            CoolWhat::Through(through) => oldest.end_offset <= through,
            CoolWhat::Due => {
                oldest.end_offset <= cool_through
                    || self.is_out_of_hot_window(oldest, &sealed, cold_end)
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
        let still_hot = sealed
            .iter()
            .filter(|segment| segment.end_offset > cold_end);
        let bytes = still_hot.fold(self.hot.active_bytes(), |sum, segment| {
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
        let surveyed = {
            let segment = Arc::clone(&segment);
            blocking(move || survey(&segment)).await??
        };
        self.reached(Step::SegmentVerified)?;
        let file = if surveyed.frame_count == 0 {
            None
        } else {
            Some(self.write_file(&segment, surveyed).await?)
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
        if self.commit(next).await? == Outcome::Earlier {
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

    /// Writes a segment's object, makes it durable and proves it. What a failure leaves is deleted.
    async fn write_file(
        &self,
        segment: &Arc<SegmentView>,
        surveyed: Surveyed,
    ) -> Result<Arc<ColdFile>, CoolError> {
        let name = paths::object_name(segment.base_offset, segment.end_offset, &nonce());
        let path = self.key.prefix().join(name.as_str());
        let written = self.write_and_prove(segment, surveyed, &path).await;
        match &written {
            Err(CoolError::Stopped(_)) | Ok(_) => {}
            // Nobody knows of the object yet. If it cannot be deleted, the next start does it.
            Err(_) => drop(self.shared.store.delete(&path).await),
        }
        written
    }

    async fn write_and_prove(
        &self,
        segment: &Arc<SegmentView>,
        surveyed: Surveyed,
        path: &Path,
    ) -> Result<Arc<ColdFile>, CoolError> {
        let written = self.upload(segment, surveyed, path).await?;
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
        path: &Path,
    ) -> Result<Written, CoolError> {
        let (parts_in, parts_out) = parts();
        let options = WriteOptions {
            row_group_bytes: self.shared.config.row_group_bytes,
            zstd_level: self.shared.config.zstd_level,
            shred_json: self.shared.config.shred_json,
        };
        let writing = {
            let (segment, key) = (Arc::clone(segment), self.key.clone());
            tokio::task::spawn_blocking(move || {
                write_segment(&segment, surveyed, &key, &options, parts_in)
            })
        };
        let mut written = None;
        let whole = async {
            written = Some(writing.await.map_err(|error| ended_early(&error))??);
            Ok::<(), CoolError>(())
        };
        sink::upload(&self.shared.store, path, parts_out, whole).await??;
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
            file.chunks.iter().try_for_each(|chunk| {
                handle
                    .block_on(read_chunk(&store, &file, chunk, &mut io::sink()))
                    .map(drop)
            })
        };
        blocking(proof).await?.map_err(CoolError::Replay)
    }

    /// Makes `next` the partition's truth, in the store and then in memory (COL-13).
    pub(crate) async fn commit(&self, next: Manifest) -> Result<Outcome, CoolError> {
        self.state.lock().check_writable(&self.key)?;
        let (truth, outcome) = match manifest::commit(&self.shared.store, &self.key, &next).await {
            Ok(Committed::New) => (next, Outcome::New),
            Ok(Committed::Earlier(earlier)) => (earlier, Outcome::Earlier),
            Err(error) => {
                if matches!(
                    error,
                    ManifestError::AnotherWriter { .. }
                        | ManifestError::Store(StoreError::Sync { .. })
                ) {
                    self.state
                        .lock()
                        .fenced
                        .get_or_insert_with(|| error.to_string());
                }
                return Err(error.into());
            }
        };
        self.reached(Step::ManifestCommitted)?;
        self.swap(truth);
        self.state.lock().proven = true;
        self.reached(Step::Swapped)?;
        Ok(outcome)
    }

    /// Shows `manifest` to readers. Files that it does not name any more are deleted when nobody reads them.
    pub(crate) fn swap(&self, manifest: Manifest) {
        let mut state = self.state.lock();
        let ColdState {
            manifest: old,
            dropped,
            undecided,
            generation,
            ..
        } = &mut *state;
        let gone = old.files.iter().cloned().chain(undecided.drain(..));
        dropped.extend(gone.filter(|file| manifest.same_file(file).is_none()));
        *old = manifest.keeping(old);
        *generation += 1;
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

    /// Makes sure that the manifest is durable, by a version of its own if it was only read (COL-15). To sync the one that was read
    /// would prove nothing: perhaps that failed before, which the system reports once. Whoever deletes another copy of what is
    /// behind `relied_on` says so: files there are synced again, as are those of records that are hot as well.
    pub(crate) async fn prove(&self, relied_on: Offset) -> Result<(), CoolError> {
        let (proven, manifest) = {
            let state = self.state.lock();
            (state.proven, state.manifest.clone())
        };
        if proven {
            return Ok(());
        }
        let hot_start = self.hot.bounds().log_start_offset;
        for file in manifest
            .files
            .iter()
            .filter(|file| file.end_offset > hot_start.min(relied_on))
        {
            self.shared.store.sync(&file.path).await?;
        }
        // Either outcome is a manifest that this run made durable.
        self.commit(manifest.next(&self.shared.writer))
            .await
            .map(drop)
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
        blocking(move || hot.release(through))
            .await?
            .map_err(CoolError::Release)
    }

    /// Deletes manifests that are two versions old. Others were deleted before, or will be at the next start.
    pub(crate) async fn trim_manifests(&self) -> Result<(), CoolError> {
        let version = self.state.lock().manifest.version;
        if let Some(old) = version.checked_sub(2).filter(|old| *old > 0) {
            self.shared
                .store
                .delete(&paths::manifest_path(&self.key.prefix(), old))
                .await?;
        }
        Ok(())
    }

    pub(crate) fn reached(&self, step: Step) -> Result<(), Stopped> {
        self.shared.steps.reached(step)
    }
}

/// How a commit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As asked.
    New,
    /// An earlier attempt had been successful; what was asked now was not done.
    Earlier,
}

impl Manifest {
    /// The next version, with a file more and a later cold end.
    fn with_file(
        &self,
        file: Option<Arc<ColdFile>>,
        cold_end_offset: Offset,
        writer: &str,
    ) -> Self {
        let mut next = self.next(writer);
        next.files.extend(file);
        next.cold_end_offset = cold_end_offset.max(self.cold_end_offset);
        next
    }

    /// The same under the next version.
    pub(crate) fn next(&self, writer: &str) -> Self {
        Self {
            version: self.version + 1,
            writer: writer.to_owned(),
            ..self.clone()
        }
    }

    /// The same, with the very files of `known` where they are the same: readers that hold them count.
    fn keeping(mut self, known: &Self) -> Self {
        for file in &mut self.files {
            if let Some(same) = known.same_file(file) {
                *file = Arc::clone(same);
            }
        }
        self
    }

    /// The file of this manifest that is the same object as `file`.
    pub(crate) fn same_file(&self, file: &ColdFile) -> Option<&Arc<ColdFile>> {
        let at = self
            .files
            .binary_search_by_key(&file.base_offset, |other| other.base_offset)
            .ok()?;
        self.files.get(at).filter(|other| other.path == file.path)
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

pub(crate) fn ended_early(error: &tokio::task::JoinError) -> CoolError {
    if error.is_panic() {
        tracing::error!(%error, "a thread of the cold tier panicked");
    }
    CoolError::Closed
}
