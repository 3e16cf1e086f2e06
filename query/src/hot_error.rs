//! Hot records that cannot be read.

use std::ops::Range;
use std::path::PathBuf;

use basalt_log::{Block, SegmentView};
use basalt_proto::Offset;
use datafusion::common::DataFusionError;

/// Why hot records could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HotScanError {
    /// A block does not match its checksum: its records are refused, never served altered.
    #[error("damaged records at offsets {} to {} of {}, position {position}", .offsets.start, .offsets.end, .path.display())]
    Damaged {
        path: PathBuf,
        position: u64,
        offsets: Range<Offset>,
    },
    /// A frame in a good block does not decode.
    #[error("a frame of {} in the block at position {position} cannot be read", .path.display())]
    Frame {
        path: PathBuf,
        position: u64,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl HotScanError {
    pub(crate) fn damaged(view: &SegmentView, block: &Block) -> Self {
        Self::Damaged {
            path: view.path().to_owned(),
            position: block.position,
            offsets: block.base_offset..block.end_offset(),
        }
    }

    pub(crate) fn frame(
        view: &SegmentView,
        block: &Block,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::Frame {
            path: view.path().to_owned(),
            position: block.position,
            source: Box::new(source),
        }
    }
}

impl From<HotScanError> for DataFusionError {
    fn from(error: HotScanError) -> Self {
        Self::External(Box::new(error))
    }
}
