//! Compaction: of each key of a compacted topic the latest record stays, and older ones go (`docs/COMPACTION.md`).
//!
//! It is a matter of cold files alone. The files of a partition are *clean* up to some offset, and *dirty* behind it; no key has two
//! records among the clean ones. Once enough is dirty, a pass takes three steps:
//!
//! 1. *Survey* ([`survey`]): by the keys alone, which rows of which files go.
//! 2. *Rewrite*: each file that loses rows is copied without them, proved and swapped as a merged one is ([`crate::merge`]); one that
//!    loses all of them is left out. Of a batch that loses some records each other one becomes a batch by itself ([`survivors`]).
//! 3. *Mark* ([`cleaned`]): a manifest says that the files of the pass are clean, and since when.
//!
//! What is sealed is cooled for it, whatever the hot window says, once enough is dirty.
//!
//! - **COL-37**: a row goes only if a durable cold row behind it has its key, or if it is a tombstone of a file that has been clean for
//!   the topic's `delete_retention_ms`. Rows without a key stay.
//! - **COL-38**: a file counts as clean only after all older rows of its keys have gone, durably. So no tombstone goes before what it
//!   hides, at whatever step a crash or a failure ends a pass. What was rewritten until then stands.
//! - **COL-39**: `compacted_end_offset` is behind every row that has gone, from the manifest on with which it went.

mod cleaned;
mod row_set;
mod survey;
mod survivors;

use std::sync::Arc;
use std::time::Duration;

use basalt_log::{Ratio, SegmentView, TopicConfig};
use basalt_proto::Offset;

pub(crate) use cleaned::{Cleaned, clean_end_offset};
pub(crate) use row_set::RowSet;
pub(crate) use survivors::Survivors;

use crate::commit::Outcome;
use crate::cool::blocking;
use crate::error::CoolError;
use crate::file::ColdFile;
use crate::hydrate::verify_bytes;
use crate::maintenance::MaintenanceReport;
use crate::manifest::Manifest;
use crate::merge::{Copying, Replaced, Source};
use crate::partition::TieredPartition;
use crate::steps::Step;

/// What compaction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Passes that came to their end.
    pub passes: u32,
    /// Files that were rewritten, or left out.
    pub files: u64,
    /// Rows that went.
    pub rows: u64,
    /// Bytes of the files that were replaced.
    pub bytes_in: u64,
    /// Bytes of the files that were written.
    pub bytes_out: u64,
}

impl CompactionReport {
    pub(crate) fn add(&mut self, other: Self) {
        self.passes += other.passes;
        self.files += other.files;
        self.rows += other.rows;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

/// When a pass is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Once enough is dirty, or the time of tombstones is over.
    Due,
    /// Whenever there is anything to do.
    Asked,
}

/// What a pass looks at.
#[derive(Debug)]
struct Pass {
    /// All clean files, and behind them those dirty ones whose lag is over.
    files: Vec<Arc<ColdFile>>,
    /// The first dirty one.
    dirty_from: usize,
    /// Of each file whether its tombstones go.
    sweeps: Vec<bool>,
    /// How much of the manifest's list of passes is swept by this one.
    swept: Vec<Offset>,
    /// Where the last file ends.
    end_offset: Offset,
}

impl TieredPartition {
    /// Whether sealed segments are wanted cold because enough of the partition is new; `sealed` are those that are not.
    pub(crate) fn is_wanted_for_compaction<'a>(
        &self,
        config: &TopicConfig,
        sealed: impl Iterator<Item = &'a Arc<SegmentView>>,
    ) -> bool {
        if !config.cleanup_policy.compacts() {
            return false;
        }
        let now_ns = self.shared.now_ns();
        let settled = sealed
            .take_while(|segment| is_settled(config, segment.appended_at_ns(), now_ns))
            .fold(0, |sum: u64, segment| {
                sum.saturating_add(segment.frame_bytes())
            });
        let state = self.state.lock();
        let (clean, dirty) = split(&state.manifest);
        let clean_bytes = frame_bytes(clean);
        let dirty_bytes = frame_bytes(dirty).saturating_add(settled);
        let can_be_compacted = state.unmergeable.is_empty();
        can_be_compacted && settled > 0 && is_dirty(config, clean_bytes, dirty_bytes)
    }

    /// Compacts what is to be compacted, and deletes what that replaced unless somebody reads it.
    pub(crate) async fn compact(
        &self,
        when: When,
        report: &mut MaintenanceReport,
    ) -> Result<(), CoolError> {
        let rest_until_ns = self.state.lock().merge_rest_until_ns;
        if when == When::Due && self.is_resting(rest_until_ns) {
            return Ok(());
        }
        let mut ended_early = false;
        loop {
            let pass = self.compact_once(when, &mut report.deleted_files);
            match self.count_compaction(pass).await {
                Ok(Some(compacted)) => {
                    report.compacted.add(compacted);
                    report.deleted_files += self.delete_dropped().await?;
                    if compacted.passes == 0 && std::mem::replace(&mut ended_early, true) {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    if !self.shared.note_failure(&error) {
                        self.rest_from_merging();
                    }
                    return Err(error);
                }
            }
        }
    }

    /// One pass; `None` if there is nothing to do.
    async fn compact_once(
        &self,
        when: When,
        deleted_files: &mut u64,
    ) -> Result<Option<CompactionReport>, CoolError> {
        let config = self.hot.config();
        if !config.cleanup_policy.compacts() {
            return Ok(None);
        }
        let Ok(_merging) = self.merging.try_lock() else {
            // The topic is being deleted. If that fails, there is a next pass.
            return Ok(None);
        };
        let now_ns = self.shared.now_ns();
        let planned = {
            let state = self.state.lock();
            let planned = plan(&state.manifest, &config, now_ns, when);
            // What is damaged may have any key, and stays: nothing can be called clean beside it.
            let planned = planned.filter(|_| state.unmergeable.is_empty());
            if planned.is_some() {
                state.check_writable(&self.key)?;
            }
            planned
        };
        let Some(pass) = planned else { return Ok(None) };
        let (pass, gone) = self.survey(pass).await?;
        self.reached(Step::CompactionSurveyed)?;
        let mut report = CompactionReport::default();
        let end_offset = match pass.files.get(gone.len()) {
            Some(for_another_pass) => for_another_pass.base_offset,
            None => pass.end_offset,
        };
        // Each is let go of once it is replaced, so that its space comes back.
        for (file, gone) in pass.files.into_iter().zip(gone) {
            if gone.is_empty() {
                continue;
            }
            let (rows, bytes_in) = (gone.len(), file.file_bytes);
            let asked_no_more = !self.hot.config().cleanup_policy.compacts();
            if asked_no_more || !self.rewrite(file, gone, &mut report).await? {
                return Ok(Some(report));
            }
            report.rows += rows;
            report.bytes_in += bytes_in;
            *deleted_files += self.delete_dropped().await?;
        }
        if self.mark(end_offset, &pass.swept, &config).await? {
            report.passes = 1;
        }
        tracing::debug!(
            topic = %self.key.topic,
            partition = %self.key.partition,
            %end_offset,
            files = report.files,
            rows = report.rows,
            bytes_in = report.bytes_in,
            bytes_out = report.bytes_out,
            "compacted"
        );
        Ok(Some(report))
    }

    /// Which rows of each file go; of the first files of the pass, where its dirty ones have too many keys.
    async fn survey(&self, pass: Pass) -> Result<(Pass, Vec<RowSet>), CoolError> {
        let _permit = self
            .shared
            .coolings
            .acquire()
            .await
            .map_err(|_| CoolError::Closed)?;
        let (sign, _waiting) = self.stop_sign();
        let source = Source::new(&self.shared.store, sign);
        let keys = self.shared.compaction_keys;
        let (pass, gone) = blocking(move || {
            let Pass {
                files,
                dirty_from,
                sweeps,
                ..
            } = &pass;
            let gone = survey::survey(&source, files, *dirty_from, sweeps, keys);
            (pass, gone)
        })
        .await?;
        let gone = gone.inspect_err(|error| self.set_apart(&pass.files, error))?;
        Ok((pass, gone))
    }

    /// Puts a file without `gone` in the place of `file`, or nothing if nothing is left of it. Whether the pass may go on: so it may
    /// where retention has taken it meanwhile.
    async fn rewrite(
        &self,
        file: Arc<ColdFile>,
        gone: RowSet,
        report: &mut CompactionReport,
    ) -> Result<bool, CoolError> {
        let is_all = gone.len() >= file.rows;
        let end_offset = file.end_offset;
        let copying = Copying {
            inputs: vec![file],
            gone: Some(Arc::new(gone)),
        };
        let written = if is_all {
            let sound = verify_bytes(self.shared.store.object_store(), &copying.inputs[0]).await;
            sound.inspect_err(|error| self.set_apart(&copying.inputs, error))?;
            None
        } else {
            Some(self.write_copy(&copying).await?)
        };
        let bytes_out = written.as_ref().map_or(0, |(file, _)| file.file_bytes);
        let _work = self.work.lock().await;
        let replaced = self.replace(&copying, written).await?;
        drop(copying);
        self.trim_manifests().await?;
        self.reached(Step::ManifestsTrimmed)?;
        Ok(match replaced {
            Replaced::Done => {
                report.files += 1;
                report.bytes_out += bytes_out;
                true
            }
            Replaced::NotThere => self.state.lock().manifest.log_start_offset >= end_offset,
            // Nobody knows what has become of the files of this pass.
            Replaced::Earlier => false,
        })
    }

    /// Says that files up to `end_offset` are clean from now on (COL-38). Whether that is so.
    async fn mark(
        &self,
        end_offset: Offset,
        swept: &[Offset],
        config: &TopicConfig,
    ) -> Result<bool, CoolError> {
        let _work = self.work.lock().await;
        self.prove(Offset::MAX).await?;
        let now_ns = self.shared.now_ns();
        let retention = delete_retention(config);
        let next = {
            let state = self.state.lock();
            let mut next = state.manifest.next(&self.shared.writer);
            next.cleaned = cleaned::after(&next.cleaned, end_offset, swept, retention, now_ns);
            next
        };
        let marked = self.commit(next).await? == Outcome::New;
        self.trim_manifests().await?;
        self.reached(Step::ManifestsTrimmed)?;
        Ok(marked)
    }
}

/// The pass that is to be made, if any is.
fn plan(manifest: &Manifest, config: &TopicConfig, now_ns: u64, when: When) -> Option<Pass> {
    let (clean, dirty) = split(manifest);
    let settled = dirty
        .iter()
        .take_while(|file| is_settled(config, file.appended_at_ns, now_ns))
        .count();
    let sweepable = cleaned::sweepable(&manifest.cleaned, delete_retention(config), now_ns);
    let sweeps = |file: &Arc<ColdFile>| {
        let since = cleaned::since(&manifest.cleaned, file.end_offset);
        since.is_some_and(|since| sweepable.contains(&since.end_offset))
    };
    let dirty_bytes = frame_bytes(&dirty[..settled]);
    let is_due =
        settled > 0 && (when == When::Asked || is_dirty(config, frame_bytes(clean), dirty_bytes));
    let files: Vec<_> = match is_due {
        true => clean.iter().chain(&dirty[..settled]).cloned().collect(),
        // For tombstones alone.
        false => clean.to_vec(),
    };
    if !is_due && sweepable.is_empty() {
        return None;
    }
    let clean_end = clean_end_offset(&manifest.cleaned);
    let end_offset = match (is_due, dirty.get(settled)) {
        (false, _) => clean_end,
        // Behind the last one of the pass there may be offsets that nothing has.
        (true, Some(next)) => next.base_offset,
        (true, None) => manifest.cold_end_offset,
    };
    Some(Pass {
        dirty_from: clean.len(),
        sweeps: files.iter().map(sweeps).collect(),
        files,
        swept: sweepable,
        end_offset,
    })
}

/// Clean files, and dirty ones behind them.
fn split(manifest: &Manifest) -> (&[Arc<ColdFile>], &[Arc<ColdFile>]) {
    let clean_end = clean_end_offset(&manifest.cleaned);
    let dirty_from = manifest
        .files
        .partition_point(|file| file.end_offset <= clean_end);
    manifest.files.split_at(dirty_from)
}

fn is_dirty(config: &TopicConfig, clean_bytes: u64, dirty_bytes: u64) -> bool {
    let ratio = config.min_cleanable_dirty_ratio.unwrap_or(Ratio::HALF);
    ratio.is_reached_by(dirty_bytes, clean_bytes.saturating_add(dirty_bytes))
}

fn frame_bytes(files: &[Arc<ColdFile>]) -> u64 {
    files
        .iter()
        .fold(0, |sum, file| sum.saturating_add(file.frame_bytes))
}

/// Whether the lag of what was appended then is over. A stamp in the future, of a clock that was set back, says nothing.
fn is_settled(config: &TopicConfig, appended_at_ns: u64, now_ns: u64) -> bool {
    let lag = config.min_compaction_lag.unwrap_or_default();
    let age_ns = now_ns.checked_sub(appended_at_ns);
    age_ns.is_none_or(|age_ns| u128::from(age_ns) >= lag.as_nanos())
}

fn delete_retention(config: &TopicConfig) -> Duration {
    let retention = config.delete_retention;
    retention.unwrap_or(TopicConfig::DELETE_RETENTION)
}
