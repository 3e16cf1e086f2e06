//! Committing: a manifest becomes the truth in the store, then in memory, and only then is anything let go because of it.
//!
//! What cooling, merging and retention share. The order within a commit is COL-13's; who may commit at all is `owner`'s (COL-30).

use std::sync::Arc;

use basalt_proto::Offset;

use crate::error::CoolError;
use crate::file::ColdFile;
use crate::manifest::{self, Committed, Manifest, ManifestError};
use crate::owner::OwnerError;
use crate::partition::{ColdState, TieredPartition};
use crate::paths;
use crate::steps::Step;
use crate::store::StoreError;

/// How a commit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As asked.
    New,
    /// An earlier attempt had been successful; what was asked now was not done.
    Earlier,
}

impl TieredPartition {
    /// Makes `next` the partition's truth, in the store and then in memory (COL-13).
    pub(crate) async fn commit(&self, next: Manifest) -> Result<Outcome, CoolError> {
        self.state.lock().check_writable(&self.key)?;
        if let Some(owner) = &self.shared.owner {
            owner.check_known()?;
        }
        let (truth, outcome) = match manifest::commit(&self.shared.store, &self.key, &next).await {
            Ok(Committed::New) => (next, Outcome::New),
            Ok(Committed::Earlier(earlier)) => (earlier, Outcome::Earlier),
            Err(error @ ManifestError::AnotherWriter { .. }) => {
                // That the other has claimed the store says more than that it was quicker here.
                let error = match self.shared.check_owner().await {
                    Err(superseded @ OwnerError::Superseded { .. }) => superseded.into(),
                    _ => CoolError::from(error),
                };
                self.fence(error.to_string());
                return Err(error);
            }
            Err(error) => {
                if matches!(error, ManifestError::Store(StoreError::Sync { .. })) {
                    self.fence(error.to_string());
                }
                return Err(error.into());
            }
        };
        // Nothing is released or deleted because of it before this is known.
        if let Err(error) = self.shared.check_owner().await {
            if matches!(error, OwnerError::Superseded { .. }) {
                self.fence(error.to_string());
            }
            return Err(error.into());
        }
        self.reached(Step::ManifestCommitted)?;
        let undecided = std::mem::take(&mut self.state.lock().undecided);
        self.swap(truth, undecided);
        self.state.lock().proven = true;
        self.reached(Step::Swapped)?;
        Ok(outcome)
    }

    fn fence(&self, reason: String) {
        self.state.lock().fenced.get_or_insert(reason);
    }

    /// Commits a manifest of this run's, whatever a twin of the data folder commits meanwhile: nothing that a twin commits after
    /// that counts (COL-32).
    pub(crate) async fn shut_out_twin(&self) -> Result<(), ManifestError> {
        let mut next = self.state.lock().manifest.next(&self.shared.writer);
        loop {
            match manifest::commit(&self.shared.store, &self.key, &next).await {
                Ok(_) => break,
                // Written since our claim: its writer finds that claim, and releases nothing.
                Err(ManifestError::AnotherWriter { found_version, .. })
                    if found_version >= next.version && found_version < u64::MAX =>
                {
                    next.version = found_version + 1;
                }
                Err(error) => return Err(error),
            }
        }
        self.swap(next, Vec::new());
        self.state.lock().proven = true;
        Ok(())
    }

    /// Shows `manifest` to readers. Files that it does not name any more are deleted when nobody reads them, as are those of
    /// `undecided` that it does not name.
    pub(crate) fn swap(&self, manifest: Manifest, undecided: Vec<Arc<ColdFile>>) {
        let mut state = self.state.lock();
        let ColdState {
            manifest: old,
            dropped,
            generation,
            ..
        } = &mut *state;
        let gone = old.files.iter().cloned().chain(undecided);
        dropped.extend(gone.filter(|file| manifest.same_file(file).is_none()));
        *old = manifest.keeping(old);
        *generation += 1;
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
}

impl Manifest {
    /// The next version, with a file more and a later cold end.
    pub(crate) fn with_file(
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
