//! What moves the log's start, over cold files and hot segments alike: retention, and whoever asks for it.
//!
//! - **COL-16**: the start moves in the manifest first, then in memory, then segments are released, then files deleted: a crash
//!   leaves too much, never too little.
//! - **COL-17**: a dropped file is deleted when nobody holds it.

use std::sync::Arc;

use basalt_log::retention::{RetentionPolicy, RetentionRun, expired_through};
use basalt_proto::Offset;

use crate::commit::Outcome;
use crate::cool::blocking;
use crate::error::CoolError;
use crate::file::ColdFile;
use crate::manifest::Manifest;
use crate::partition::TieredPartition;
use crate::steps::Step;

impl TieredPartition {
    /// Lets go of what the topic's retention does not keep. Whether anything went.
    pub(crate) async fn expire(&self) -> Result<bool, CoolError> {
        let policy = self.hot.config().retention();
        if policy == RetentionPolicy::default() {
            return Ok(false);
        }
        let _work = self.work.lock().await;
        let now_ns = self.shared.now_ns();
        let manifest = self.state.lock().manifest.clone();
        let runs = self.runs(&manifest);
        let Some(through) = expired_through(&policy, &runs, self.unsealed_bytes(), now_ns) else {
            return Ok(false);
        };
        if manifest.files.is_empty() {
            // Nothing is cold: the log itself remembers where it starts.
            self.state.lock().check_writable(&self.key)?;
            // It decides nothing of files of which it is not known whether they were committed.
            self.swap(manifest.expired(through, manifest.version), Vec::new());
        } else {
            let next = manifest.next(&self.shared.writer);
            if self.commit(next.expired(through, next.version)).await? == Outcome::Earlier {
                // Memory knows the truth now; the next pass goes on from there.
                return Ok(true);
            }
        }
        self.release_expired(through).await?;
        Ok(true)
    }

    /// Lets go of all records below `before`, whatever retention keeps, and not of any other: the log starts there then, be it in the
    /// midst of a segment, a file or a batch. Durable on return. Where the log starts, which may be behind it.
    ///
    /// `before` must not be beyond the high watermark.
    ///
    /// # Errors
    /// [`CoolError`]: what the store or the disk says. The start has moved or it has not; asking again is safe.
    pub async fn delete_before(self: &Arc<Self>, before: Offset) -> Result<Offset, CoolError> {
        let partition = Arc::clone(self);
        let deleted = self
            .shared
            .runtime
            .spawn(async move { partition.move_start(before).await });
        deleted.await.unwrap_or(Err(CoolError::Closed))
    }

    async fn move_start(&self, before: Offset) -> Result<Offset, CoolError> {
        loop {
            let start = self.offsets().log_start_offset;
            if start >= before {
                return Ok(start);
            }
            // A crash may take what is not synced. Offsets below the start must not be given again after it.
            let sealed = self.hot.sealed_segments();
            if sealed.last().is_none_or(|last| last.end_offset < before) {
                let hot = Arc::clone(&self.hot);
                blocking(move || hot.seal_active())
                    .await?
                    .map_err(CoolError::Seal)?;
            }
            let _work = self.work.lock().await;
            self.state.lock().check_open()?;
            let next = self.state.lock().manifest.next(&self.shared.writer);
            // Where the start lies within hot records no manifest would say so otherwise.
            if self.commit(next.expired(before, next.version)).await? == Outcome::New {
                self.release_expired(before).await?;
                self.shared.wake.notify_one();
            }
            // Else memory knows the truth now, and it goes on from there.
        }
    }

    async fn release_expired(&self, through: Offset) -> Result<(), CoolError> {
        self.unless_full(self.release(through).await)?;
        self.reached(Step::Released)?;
        self.trim_manifests().await?;
        tracing::debug!(topic = %self.key.topic, partition = %self.key.partition, log_start_offset = %through, "expired");
        Ok(())
    }

    /// Cold files and sealed segments that are not cold, oldest first.
    fn runs(&self, manifest: &Manifest) -> Vec<RetentionRun> {
        let cold = manifest.files.iter().map(|file| RetentionRun {
            end_offset: file.end_offset,
            bytes: file.frame_bytes,
            appended_at_ns: file.appended_at_ns,
        });
        let sealed = self.hot.sealed_segments();
        let hot = sealed
            .iter()
            .filter(|segment| segment.end_offset > manifest.cold_end_offset);
        cold.chain(hot.map(|segment| RetentionRun {
            end_offset: segment.end_offset,
            bytes: segment.frame_bytes(),
            appended_at_ns: segment.appended_at_ns(),
        }))
        .collect()
    }

    /// Hot bytes that are in no sealed segment.
    fn unsealed_bytes(&self) -> u64 {
        let sealed: u64 = self
            .hot
            .sealed_segments()
            .iter()
            .map(|segment| segment.frame_bytes())
            .sum();
        self.hot.hot_bytes().saturating_sub(sealed)
    }

    /// Deletes dropped files that nobody reads any more (COL-17). How many.
    pub(crate) async fn delete_dropped(&self) -> Result<u64, CoolError> {
        let mut deleted = 0;
        while let Some(file) = self.take_unread() {
            let done = match self.reached(Step::DroppedFileDeleting) {
                Ok(()) => self
                    .shared
                    .store
                    .delete(&file.path)
                    .await
                    .map_err(CoolError::from),
                Err(stopped) => Err(stopped.into()),
            };
            if let Err(error) = done {
                self.state.lock().dropped.push(file);
                return Err(error);
            }
            deleted += 1;
        }
        Ok(deleted)
    }

    fn take_unread(&self) -> Option<Arc<ColdFile>> {
        let mut state = self.state.lock();
        // Only `dropped` holds it, and only under this lock could anyone take another hold of it.
        let unread = state
            .dropped
            .iter()
            .position(|file| Arc::strong_count(file) == 1)?;
        Some(state.dropped.swap_remove(unread))
    }
}

impl Manifest {
    /// The same without what ends at or below `through`.
    fn expired(&self, through: Offset, version: u64) -> Self {
        Self {
            version,
            log_start_offset: self.log_start_offset.max(through),
            cold_end_offset: self.cold_end_offset.max(through),
            files: self
                .files
                .iter()
                .filter(|file| file.end_offset > through)
                .cloned()
                .collect(),
            ..self.clone()
        }
    }
}
