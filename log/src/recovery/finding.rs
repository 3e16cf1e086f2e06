//! What is wrong with a segment, put into words. It decides nothing.

use std::path::{Path, PathBuf};

use super::Verdict;
use crate::block::Block;
use crate::index::ReadIndex;

/// Something wrong with a file, for the log of the server and for `basalt check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which file.
    pub path: PathBuf,
    /// Where in it.
    pub position: u64,
    /// What is wrong.
    pub what: String,
}

/// Says what recovery makes of a segment that is not as it was written.
pub(super) fn report(
    path: &Path,
    index: &ReadIndex,
    verdict: &Verdict,
    file_bytes: u64,
    findings: &mut Vec<Finding>,
) {
    let mut find = |position: u64, what: String| {
        findings.push(Finding {
            path: path.to_owned(),
            position,
            what,
        })
    };
    // A segment without a frame may have been cut off in the making: its index is nothing to miss.
    if let Some(damage) = index.damage.as_ref().filter(|_| verdict.end > 0) {
        find(0, format!("{damage}; it is rebuilt from the segment"));
    }
    for run in &verdict.damaged {
        let what = format!(
            "{} bytes fail their checksum (offsets {} to {}); they are kept and not served",
            run.bytes,
            run.base_offset,
            run.end_offset()
        );
        find(run.position, what);
    }
    let promised = index.blocks.last().map_or(0, Block::end_position);
    if promised > verdict.end {
        find(
            verdict.end,
            format!(
                "torn after this byte ({promised} were begun, the file has {file_bytes}); cut there"
            ),
        );
    }
}
