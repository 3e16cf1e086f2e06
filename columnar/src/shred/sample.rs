//! A sample of a segment's payloads.

use std::ops::ControlFlow;

use basalt_log::{AbortedTransactions, SegmentView};
use basalt_proto::{FrameLimits, FrameWalk, expand};

use super::infer::{Inference, Inferred};

/// Payloads in a sample.
pub(crate) const PAYLOADS: usize = 4096;
/// Blocks that they are taken from, far apart.
const BLOCKS: usize = 128;
/// Bytes of payloads in a sample, but for one payload of each block: what a sample remembers is bounded by them.
pub(crate) const BYTES: usize = 8 << 20;

/// Looks at some payloads of a segment that was surveyed, and chooses the columns; `None` where shredding would not pay.
pub(crate) fn sample(segment: &SegmentView, aborted: &AbortedTransactions) -> Option<Inferred> {
    let blocks = segment.blocks();
    let every = blocks.len().div_ceil(BLOCKS).max(1);
    let sampled_blocks = blocks.len().div_ceil(every).max(1);
    let mut inference = Inference::default();
    for block in blocks.iter().step_by(every) {
        let mut payloads_left = PAYLOADS / sampled_blocks;
        let mut bytes_left = BYTES / sampled_blocks;
        // What cannot be read is reported when it is written.
        let Ok(bytes) = segment.block_bytes(block) else {
            continue;
        };
        for frame in FrameWalk::new(&bytes, FrameLimits::UNLIMITED) {
            let Ok(frame) = frame else { break };
            if !aborted.shows(&frame) {
                continue;
            }
            let _ = expand(&frame, |record| {
                if let Some(payload) = record.payload {
                    inference.observe(payload);
                    payloads_left = payloads_left.saturating_sub(1);
                    bytes_left = bytes_left.saturating_sub(payload.len());
                }
                if payloads_left == 0 || bytes_left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            if payloads_left == 0 || bytes_left == 0 {
                break;
            }
        }
    }
    inference.finish()
}
