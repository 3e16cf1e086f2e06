//! Merging: neighbouring small cold files of a partition become one. How a cold file is copied, proved and swapped is here, for compaction, too.
//!
//! Each cooled segment is a file of its own; small segments make small files, and a query or a start pays for each. After
//! cooling, maintenance therefore merges neighbours, up to [`crate::ColdConfig::merge_bytes`] of file:
//!
//! 1. *Plan* ([`plan`]): which neighbours, from the manifest in memory alone. Files of half the target are left alone; of smaller
//!    ones a run is taken when it at least doubles its first file, or when nothing can join it any more.
//! 2. *Copy* ([`copy`]): the inputs' bytes are compared with their checksums, their rows copied, row group by row group, and
//!    their frames rebuilt on the way, as a measure of what the new file must give back. Payloads that were shredded are rendered
//!    and shredded anew, since files differ in their columns.
//! 3. *Prove*: sync, footer, checksum, and every frame rebuilt from the new object, as cooling does it.
//! 4. *Swap*: one manifest names the new file in place of its inputs. That is the only step that anybody sees: whoever took a
//!    snapshot before reads the old files, which are deleted when nobody holds them, like those that retention drops (COL-17).
//!
//! Only the swap holds `work`, so cooling, retention and `topic cool` never wait for a copy, and cooling gives way to it after each
//! segment, so that files stay few however fast segments come. One file is merged at a time in a
//! tiered log, so that cooling always finds a place beside it. A crash before the swap leaves an object that no manifest names, one
//! after it leaves inputs that none names: the next start deletes either (COL-18).
//!
//! - **COL-20**: a merged file has the rows of its inputs, every column of [`crate::cold_schema`] with the payloads that were left out,
//!   in their order, and row groups that are whole row groups of theirs behind each other: frames stay whole, and the same frames are
//!   rebuilt from it (COL-6). Damage is not copied: an input that is not what was written is left as it is.
//! - **COL-21**: inputs are replaced only while the truth names all of them, side by side. They are deleted only after a durable
//!   manifest names a durable, proved object with their records.
//! - **COL-22**: at rest, files below half the target are few. Between larger ones no two neighbours are left that fit into one; behind
//!   the last large one there are at most `1 + log2(F / f)` within a window that fits into one, `F` being their bytes of frames and
//!   `f` those of the smallest. A record is copied once while its file is new, then each time its file at least doubles, and a last
//!   time when nothing can join it any more.
//! - **COL-23**: retention lets go of whole files. What is merged while a topic has retention has at most a sixteenth of the bytes
//!   it keeps, and was appended within a sixteenth of the time it keeps: that much longer, at most, is a record kept for having
//!   been merged. What was merged before that stays as it is.

mod copy;
mod plan;
mod sample;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basalt_proto::Offset;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::Handle;

use crate::commit::Outcome;
use crate::compact::{self, RowSet};
use crate::cool::blocking;
use crate::error::CoolError;
use crate::file::ColdFile;
use crate::hydrate::{check_frames, has_keys, read_chunk, verify_bytes, verify_footer};
use crate::litter::Unwanted;
use crate::maintenance::MaintenanceReport;
use crate::manifest::Manifest;
use crate::object_reader::Footers;
use crate::partition::TieredPartition;
use crate::paths;
use crate::steps::Step;
use crate::store::{ColdStore, nonce};
use crate::writer::Written;
use copy::{Copied, Inputs};
use plan::Limits;

/// What merging did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Files that were written.
    pub files_out: u32,
    /// Files that they replaced.
    pub files_in: u64,
    /// Rows in them.
    pub rows: u64,
    /// Bytes of the files that were replaced.
    pub bytes_in: u64,
    /// Bytes of the files that were written.
    pub bytes_out: u64,
}

impl MergeReport {
    pub(crate) fn add(&mut self, other: Self) {
        self.files_out += other.files_out;
        self.files_in += other.files_in;
        self.rows += other.rows;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

/// What a thread that copies asks between two pieces: it cannot be aborted as a task can.
#[derive(Debug, Clone)]
pub(crate) struct StopSign {
    /// The topic is to be deleted.
    deleting: Arc<AtomicBool>,
    /// Nobody waits for it any more.
    abandoned: Arc<AtomicBool>,
}

impl StopSign {
    pub(crate) fn check(&self) -> Result<(), CoolError> {
        if self.deleting.load(Ordering::Relaxed) || self.abandoned.load(Ordering::Relaxed) {
            return Err(CoolError::Closed);
        }
        Ok(())
    }
}

/// Raises the sign when the task that waits is dropped.
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a thread reads cold files with.
pub(crate) struct Source {
    pub(crate) object_store: Arc<dyn ObjectStore>,
    pub(crate) handle: Handle,
    pub(crate) footers: Footers,
    pub(crate) sign: StopSign,
}

impl Source {
    /// For a thread that a task of the cold tier's waits for.
    pub(crate) fn new(store: &ColdStore, sign: StopSign) -> Self {
        Self {
            object_store: Arc::clone(store.object_store()),
            handle: Handle::current(),
            footers: Footers::default(),
            sign,
        }
    }
}

/// What is copied into one file.
#[derive(Debug, Clone)]
pub(crate) struct Copying {
    /// Neighbours, in order.
    pub(crate) inputs: Vec<Arc<ColdFile>>,
    /// Rows that are not copied. Only where there is one input.
    pub(crate) gone: Option<Arc<RowSet>>,
}

/// What became of a file that was to take the place of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// It is the truth.
    Done,
    /// The others are not all there any more, side by side.
    NotThere,
    /// The truth is what an earlier attempt at something made of it.
    Earlier,
}

impl TieredPartition {
    /// Merges until nothing is due any more (COL-22), and deletes what that replaced unless somebody reads it.
    pub(crate) async fn merge_due(&self, report: &mut MaintenanceReport) -> Result<(), CoolError> {
        let rest_until_ns = self.state.lock().merge_rest_until_ns;
        if self.is_resting(rest_until_ns) {
            return Ok(());
        }
        loop {
            match self.count_merging(self.merge_once()).await {
                Ok(Some(merged)) => report.merged.add(merged),
                Ok(None) => break,
                Err(error) => {
                    if !self.shared.note_failure(&error) {
                        self.rest_from_merging();
                    }
                    return Err(error);
                }
            }
            report.deleted_files += self.delete_dropped().await?;
        }
        Ok(())
    }

    /// Cooling goes on meanwhile.
    pub(crate) fn rest_from_merging(&self) {
        let until_ns = self.shared.now_ns().saturating_add(self.rest_ns());
        self.state.lock().merge_rest_until_ns = until_ns;
    }

    /// Merges the first files that are due. `None` if there are none, or they are not there any more.
    async fn merge_once(&self) -> Result<Option<MergeReport>, CoolError> {
        let Ok(_merging) = self.merging.try_lock() else {
            // The topic is being deleted. If that fails, there is a next pass.
            return Ok(None);
        };
        let Some(inputs) = self.next_to_merge()? else {
            return Ok(None);
        };
        self.reached(Step::MergePlanned)?;
        let copying = Copying { inputs, gone: None };
        let (file, unwanted) = self.write_copy(&copying).await?;
        let _work = self.work.lock().await;
        let replacing = Some((Arc::clone(&file), unwanted));
        if self.replace(&copying, replacing).await? != Replaced::Done {
            return Ok(None);
        }
        let Copying { inputs, .. } = copying;
        let report = MergeReport {
            files_out: 1,
            files_in: inputs.len() as u64,
            rows: file.rows,
            bytes_in: inputs.iter().map(|file| file.file_bytes).sum(),
            bytes_out: file.file_bytes,
        };
        drop(inputs);
        self.trim_manifests().await?;
        self.reached(Step::ManifestsTrimmed)?;
        tracing::debug!(
            topic = %self.key.topic,
            partition = %self.key.partition,
            base_offset = %file.base_offset,
            end_offset = %file.end_offset,
            files_in = report.files_in,
            rows = report.rows,
            bytes_in = report.bytes_in,
            bytes_out = report.bytes_out,
            "cold files merged"
        );
        Ok(Some(report))
    }

    fn next_to_merge(&self) -> Result<Option<Vec<Arc<ColdFile>>>, CoolError> {
        let config = self.hot.config();
        let state = self.state.lock();
        let clean_end_offset = match config.cleanup_policy.compacts() {
            true => compact::clean_end_offset(&state.manifest.cleaned),
            false => Offset::ZERO,
        };
        let limits = Limits::new(
            self.shared.config.merge_bytes,
            config.retention(),
            clean_end_offset,
        );
        let files = &state.manifest.files;
        // Where payloads are to stand as they are now, those that were left out would make files larger than planned.
        let shreds_json = self.shreds_json();
        let is_apart = |file: &ColdFile| {
            (file.shredded.is_some() && !shreds_json) || state.unmergeable.contains(&file.path)
        };
        let Some(due) = plan::due(files, &limits, is_apart) else {
            return Ok(None);
        };
        state.check_writable(&self.key)?;
        Ok(Some(files[due].to_vec()))
    }

    /// An input that is damaged is left alone from now on: it is the only copy of what can still be read of it.
    pub(crate) fn set_apart(&self, inputs: &[Arc<ColdFile>], error: &CoolError) {
        let Some(object) = error.damaged_object() else {
            return;
        };
        let damaged = inputs.iter().find(|file| file.path.as_ref() == object);
        if let Some(file) = damaged {
            self.state.lock().unmergeable.push(file.path.clone());
        }
    }

    /// Writes the new object, makes it durable and proves it. What a failure leaves is deleted, as is the object unless it is kept.
    pub(crate) async fn write_copy(
        &self,
        copying: &Copying,
    ) -> Result<(Arc<ColdFile>, Unwanted), CoolError> {
        let inputs = &copying.inputs;
        let (Some(first), Some(last)) = (inputs.first(), inputs.last()) else {
            return Err(CoolError::Closed);
        };
        let _permit = self
            .shared
            .coolings
            .acquire()
            .await
            .map_err(|_| CoolError::Closed)?;
        let name = paths::object_name(first.base_offset, last.end_offset, &nonce());
        let path = self.key.prefix().join(name.as_str());
        let unwanted = self.shared.litter.unwanted(&path);
        match self.copy_and_prove(copying, &path).await {
            Ok(file) => Ok((file, unwanted)),
            Err(error) => {
                self.set_apart(inputs, &error);
                self.shared.give_up(unwanted, &error).await;
                Err(error)
            }
        }
    }

    /// A sign for a thread that this task waits for, raised when it does no more.
    pub(crate) fn stop_sign(&self) -> (StopSign, Waiting) {
        let waiting = Waiting(Arc::new(AtomicBool::new(false)));
        let sign = StopSign {
            deleting: Arc::clone(&self.deleting),
            abandoned: Arc::clone(&waiting.0),
        };
        (sign, waiting)
    }

    async fn copy_and_prove(
        &self,
        copying: &Copying,
        path: &Path,
    ) -> Result<Arc<ColdFile>, CoolError> {
        let (sign, _waiting) = self.stop_sign();
        let inputs = &copying.inputs;
        let object_store = self.shared.store.object_store();
        let mut keys = false;
        for input in inputs {
            sign.check()?;
            // Copied, damage would get a checksum of its own.
            verify_bytes(object_store, input).await?;
            keys |= has_keys(object_store, input).await?;
        }
        let Copied { written, rebuilt } = self.copy(copying, keys, &sign, path).await?;
        self.reached(Step::ObjectWritten)?;
        self.shared.store.sync(path).await?;
        self.reached(Step::ObjectSynced)?;
        let file = merged_file(inputs, path, written)?;
        verify_footer(object_store, &file).await?;
        if self.shared.config.verify_replay {
            verify_bytes(object_store, &file).await?;
            let (store, proved) = (Arc::clone(object_store), Arc::clone(&file));
            let handle = Handle::current();
            blocking(move || {
                let footers = Footers::default();
                for (chunk, expected) in proved.chunks.iter().zip(rebuilt) {
                    sign.check()?;
                    let out = &mut std::io::sink();
                    let found = handle
                        .block_on(read_chunk(&store, &footers, &proved, chunk, out))
                        .map_err(CoolError::Replay)?;
                    check_frames(&proved, chunk, found, expected).map_err(CoolError::Replay)?;
                }
                Ok::<(), CoolError>(())
            })
            .await??;
        }
        self.reached(Step::ObjectVerified)?;
        Ok(file)
    }

    async fn copy(
        &self,
        copying: &Copying,
        has_keys: bool,
        sign: &StopSign,
        path: &Path,
    ) -> Result<Copied, CoolError> {
        let inputs = Inputs {
            source: Source::new(&self.shared.store, sign.clone()),
            files: copying.inputs.clone(),
            gone: copying.gone.clone(),
            has_keys,
        };
        let key = self.key.clone();
        self.upload_written(path, move |options, parts| {
            copy::copy(&inputs, &key, options, parts)
        })
        .await
    }

    /// Makes what was written, or nothing, the truth in place of the inputs (COL-21). If it is not, its object is deleted. With
    /// `work` held.
    pub(crate) async fn replace(
        &self,
        copying: &Copying,
        written: Option<(Arc<ColdFile>, Unwanted)>,
    ) -> Result<Replaced, CoolError> {
        let (file, unwanted) = written.unzip();
        let next = match self.prove_and_plan(copying, file.as_ref()).await {
            Ok(Some(next)) => next,
            Ok(None) => {
                // Retention took some of them meanwhile.
                if let Some(unwanted) = unwanted {
                    self.shared.discard(unwanted).await;
                }
                return Ok(Replaced::NotThere);
            }
            Err(error) => {
                if let Some(unwanted) = unwanted {
                    self.shared.give_up(unwanted, &error).await;
                }
                return Err(error);
            }
        };
        if let Some(unwanted) = unwanted {
            unwanted.keep();
        }
        match self.commit(next).await {
            Ok(Outcome::New) => Ok(Replaced::Done),
            Ok(Outcome::Earlier) => {
                // An earlier attempt at something had succeeded after all. What was merged now is superfluous, unless the truth names it.
                let unnamed =
                    |file: &Arc<ColdFile>| self.state.lock().manifest.same_file(file).is_none();
                if let Some(file) = file.filter(unnamed) {
                    self.shared.store.delete(&file.path).await?;
                }
                Ok(Replaced::Earlier)
            }
            Err(error) => {
                // Perhaps it is the truth by now. The next commit finds out.
                self.state.lock().undecided.extend(file);
                Err(error)
            }
        }
    }

    async fn prove_and_plan(
        &self,
        copying: &Copying,
        file: Option<&Arc<ColdFile>>,
    ) -> Result<Option<Manifest>, CoolError> {
        self.state.lock().check_writable(&self.key)?;
        // This commit would make the manifest count as proved: what is hot and cold must be durable as a file first (COL-15).
        self.prove(Offset::MAX).await?;
        let state = self.state.lock();
        Ok(state.manifest.with_copy(copying, file, &self.shared.writer))
    }
}

fn merged_file(
    inputs: &[Arc<ColdFile>],
    path: &Path,
    written: Written,
) -> Result<Arc<ColdFile>, CoolError> {
    let (Some(first), Some(last)) = (inputs.first(), inputs.last()) else {
        return Err(CoolError::Closed);
    };
    Ok(Arc::new(ColdFile {
        path: path.clone(),
        base_offset: first.base_offset,
        end_offset: last.end_offset,
        rows: written.rows,
        file_bytes: written.file_bytes,
        file_crc32c: written.file_crc32c,
        frame_bytes: written.frame_bytes,
        min_timestamp_ns: written.min_timestamp_ns,
        max_timestamp_ns: written.max_timestamp_ns,
        appended_at_ns: inputs
            .iter()
            .map(|file| file.appended_at_ns)
            .max()
            .unwrap_or_default(),
        chunks: written.chunks,
        shredded: written.shredded,
        typed: written.typed,
    }))
}

impl Manifest {
    /// The next version, with `file` in place of the inputs; `None` if they are not all there, side by side.
    fn with_copy(
        &self,
        copying: &Copying,
        file: Option<&Arc<ColdFile>>,
        writer: &str,
    ) -> Option<Self> {
        let range = self.position_of(&copying.inputs)?;
        let mut next = self.next(writer);
        if copying.gone.is_some() {
            let ends = copying.inputs.iter().map(|file| file.end_offset);
            let end_offset = ends.chain([next.compacted_end_offset]).max();
            next.compacted_end_offset = end_offset?;
        }
        next.files.splice(range, file.cloned());
        Some(next)
    }

    fn position_of(&self, inputs: &[Arc<ColdFile>]) -> Option<Range<usize>> {
        let first = inputs.first()?;
        let start = self.files.iter().position(|file| file.path == first.path)?;
        let end = start.checked_add(inputs.len())?;
        let there = self.files.get(start..end)?;
        let same = there
            .iter()
            .zip(inputs)
            .all(|(there, input)| there.path == input.path);
        same.then_some(start..end)
    }
}
