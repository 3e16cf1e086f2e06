//! What cooling and merging have done to a partition since the start, and have left to do.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::compact::CompactionReport;
use crate::cool::CoolReport;
use crate::error::{Chain, CoolError};
use crate::merge::MergeReport;
use crate::partition::TieredPartition;

/// Cooling and merging of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoolingStatus {
    /// Sealed segments that are not cold yet, those within the hot window among them.
    pub backlog_segments: u64,
    /// Bytes of frames in them.
    pub backlog_bytes: u64,
    /// A segment is being cooled now.
    pub cooling: bool,
    /// Files are being merged, or compacted, now.
    pub merging: bool,
    /// Segments cooled since the start of the server.
    pub cooled_segments: u64,
    /// Bytes of frames in them.
    pub cooled_frame_bytes: u64,
    /// Bytes of the files that they became.
    pub cooled_file_bytes: u64,
    /// Nanoseconds that this took.
    pub cooling_ns: u64,
    /// Files replaced by merged or compacted ones since the start of the server.
    pub merged_files: u64,
    /// Bytes of them.
    pub merged_bytes: u64,
    /// Nanoseconds that this took.
    pub merging_ns: u64,
    /// Why the last attempt failed, until one succeeds.
    pub last_error: Option<String>,
    /// When it failed, in nanoseconds since the Unix epoch.
    pub last_error_at_ns: Option<u64>,
    /// When it is tried again at the earliest.
    pub retry_at_ns: Option<u64>,
}

/// Counted as it happens.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    cooling: AtomicBool,
    merging: AtomicBool,
    done: Mutex<Done>,
}

#[derive(Debug, Default)]
struct Done {
    cooled: CoolReport,
    cooling_ns: u64,
    merged: MergeReport,
    merging_ns: u64,
    cooling_error: Option<(String, u64)>,
    merging_error: Option<(String, u64)>,
}

/// Raised as long as it lives, however that ends.
struct Raised<'a>(&'a AtomicBool);

impl<'a> Raised<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Relaxed);
        Self(flag)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl TieredPartition {
    /// What cooling and merging have done to it, and have left to do.
    #[must_use]
    pub fn cooling_status(&self) -> CoolingStatus {
        let (cold_end, rests) = {
            let state = self.state.lock();
            let rests = [state.rest_until_ns, state.merge_rest_until_ns];
            (state.manifest.cold_end_offset, rests)
        };
        let sealed = self.hot.sealed_segments();
        let backlog = sealed
            .iter()
            .filter(|segment| segment.end_offset > cold_end);
        let done = self.tally.done.lock();
        let errors = [
            (&done.cooling_error, rests[0]),
            (&done.merging_error, rests[1]),
        ];
        let last = errors
            .into_iter()
            .filter_map(|(error, rest)| error.as_ref().map(|(text, at_ns)| (at_ns, text, rest)))
            .max();
        CoolingStatus {
            backlog_segments: backlog.clone().count() as u64,
            backlog_bytes: backlog.map(|segment| segment.frame_bytes()).sum(),
            cooling: self.tally.cooling.load(Ordering::Relaxed),
            merging: self.tally.merging.load(Ordering::Relaxed),
            cooled_segments: u64::from(done.cooled.segments),
            cooled_frame_bytes: done.cooled.bytes_in,
            cooled_file_bytes: done.cooled.bytes_out,
            cooling_ns: done.cooling_ns,
            merged_files: done.merged.files_in,
            merged_bytes: done.merged.bytes_in,
            merging_ns: done.merging_ns,
            last_error: last.map(|(_, text, _)| text.clone()),
            last_error_at_ns: last.map(|(at_ns, _, _)| *at_ns),
            retry_at_ns: last.map(|(_, _, rest_ns)| rest_ns).filter(|at| *at > 0),
        }
    }

    /// Times one segment's cooling and counts it.
    pub(crate) async fn count_cooling(
        &self,
        cooling: impl Future<Output = Result<CoolReport, CoolError>>,
    ) -> Result<CoolReport, CoolError> {
        let _cooling = Raised::new(&self.tally.cooling);
        let begun_ns = self.shared.now_ns();
        let result = cooling.await;
        let error = self.noted(&result);
        let mut done = self.tally.done.lock();
        if error.is_some() || result.is_ok() {
            done.cooling_error = error;
        }
        if let Ok(report) = &result {
            done.cooled.add(*report);
            done.cooling_ns += self.shared.now_ns().saturating_sub(begun_ns);
        }
        drop(done);
        result
    }

    /// Times one merge and counts it.
    pub(crate) async fn count_merging(
        &self,
        merging: impl Future<Output = Result<Option<MergeReport>, CoolError>>,
    ) -> Result<Option<MergeReport>, CoolError> {
        let _merging = Raised::new(&self.tally.merging);
        let begun_ns = self.shared.now_ns();
        let result = merging.await;
        let error = self.noted(&result);
        let mut done = self.tally.done.lock();
        if error.is_some() || result.is_ok() {
            done.merging_error = error;
        }
        if let Ok(Some(merged)) = &result {
            done.merged.add(*merged);
            done.merging_ns += self.shared.now_ns().saturating_sub(begun_ns);
        }
        drop(done);
        result
    }

    /// Times one pass of compaction and counts it as merging, which it is but for the rows that go.
    pub(crate) async fn count_compaction(
        &self,
        compacting: impl Future<Output = Result<Option<CompactionReport>, CoolError>>,
    ) -> Result<Option<CompactionReport>, CoolError> {
        let mut compacted = None;
        let merging = async {
            compacted = compacting.await?;
            Ok(compacted.map(|compacted| MergeReport {
                files_in: compacted.files,
                bytes_in: compacted.bytes_in,
                bytes_out: compacted.bytes_out,
                ..MergeReport::default()
            }))
        };
        self.count_merging(merging).await?;
        Ok(compacted)
    }

    /// What is to be said of `result`, and when it came. A partition that is closed has nothing to say.
    fn noted<T>(&self, result: &Result<T, CoolError>) -> Option<(String, u64)> {
        match result {
            Ok(_) | Err(CoolError::Closed) => None,
            Err(error) => Some((Chain(error).to_string(), self.shared.now_ns())),
        }
    }
}
