//! Frames that have been checked and may be appended.

use super::{Frame, FrameError, FrameKind, FrameLimits, FrameWalk};
use crate::batch::{BatchError, MAX_DECOMPRESSED_BYTES, RecordBatch};

/// At least one whole frame, each within the limits, each batch frame's batch sound down to its records. What a log
/// appends.
#[derive(Debug, Clone, Copy)]
pub struct FrameBatch<'a> {
    bytes: &'a [u8],
    limits: FrameLimits,
    frame_count: usize,
    record_count: u64,
    has_batches: bool,
}

/// The good frames at the start of a buffer, and what ended them.
#[derive(Debug, Clone)]
pub struct FramePrefix<'a> {
    /// The good frames; `None` when there is not even one.
    pub batch: Option<FrameBatch<'a>>,
    /// What comes behind them.
    pub stop: FrameStop,
}

/// What ended a run of good frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameStop {
    /// The end of the buffer.
    End,
    /// A frame that is not wholly there yet, though nothing is wrong with it so far.
    Incomplete {
        /// Its length as far as is known: a header's while that is incomplete. Never over the limits.
        needed_bytes: u64,
        /// What is there of it.
        available_bytes: usize,
    },
    /// A frame that may not be appended.
    Refused {
        /// Why.
        error: FrameError,
        /// Its length, when the frame is wholly there and only its content is wrong: the frames behind it can still be
        /// found. `None` when nothing behind its first byte can be trusted.
        skip_bytes: Option<usize>,
    },
}

impl<'a> FrameBatch<'a> {
    /// Checks that `bytes` are whole frames that may be appended, and nothing else.
    ///
    /// # Errors
    /// [`FrameError::Empty`] for no bytes, [`FrameError::Incomplete`] when the last frame is cut, else what is wrong with
    /// the first bad frame.
    pub fn parse(bytes: &'a [u8], limits: &FrameLimits) -> Result<Self, FrameError> {
        let FramePrefix { batch, stop } = Self::parse_prefix(bytes, limits);
        match stop {
            FrameStop::End => batch.ok_or(FrameError::Empty),
            FrameStop::Incomplete {
                needed_bytes,
                available_bytes,
            } => Err(FrameError::Incomplete {
                position: bytes.len() - available_bytes,
                needed_bytes,
                available_bytes,
            }),
            FrameStop::Refused { error, .. } => Err(error),
        }
    }

    /// As many whole good frames as stand at the start of `bytes`, and what ended them.
    #[must_use]
    pub fn parse_prefix(bytes: &'a [u8], limits: &FrameLimits) -> FramePrefix<'a> {
        let mut walk = FrameWalk::new(bytes, *limits);
        let mut good = Self {
            bytes: &[],
            limits: *limits,
            frame_count: 0,
            record_count: 0,
            has_batches: false,
        };
        let stop = loop {
            let start = walk.position();
            match walk.next() {
                Some(Ok(frame)) => match admit(&frame, limits) {
                    Ok(()) => {
                        good.frame_count += 1;
                        good.record_count += u64::from(frame.header.logical_count());
                        good.has_batches |= frame.header.kind == FrameKind::Batch;
                        good.bytes = &bytes[..walk.position()];
                    }
                    Err(error) => {
                        break FrameStop::Refused {
                            error,
                            skip_bytes: Some(walk.position() - start),
                        };
                    }
                },
                Some(Err(error)) => {
                    break FrameStop::Refused {
                        error,
                        skip_bytes: None,
                    };
                }
                None if walk.rest().is_empty() => break FrameStop::End,
                None => {
                    break FrameStop::Incomplete {
                        needed_bytes: walk.needed_bytes(),
                        available_bytes: walk.rest().len(),
                    };
                }
            }
        };
        FramePrefix {
            batch: (good.frame_count > 0).then_some(good),
            stop,
        }
    }

    /// The frames, one after the other.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many frames; at least 1.
    #[must_use]
    pub const fn frame_count(&self) -> usize {
        self.frame_count
    }

    /// How many offsets they span; at least 1.
    #[must_use]
    pub const fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Whether any of them is a batch frame.
    #[must_use]
    pub const fn has_batches(&self) -> bool {
        self.has_batches
    }

    /// The frames again. Yields no error and no less than [`FrameBatch::frame_count`].
    #[must_use]
    pub const fn frames(&self) -> FrameWalk<'a> {
        FrameWalk::new(self.bytes, self.limits)
    }
}

/// Whether a whole frame within the limits may be appended: a record frame always, a batch frame if its batch is sound.
///
/// The records are read once, decompressed if need be, since a batch that cannot be read would be found out only when it
/// is cooled or queried. Decompressed they may be as large as an uncompressed batch's could be, so that compression does
/// not get around the limit.
#[inline]
fn admit(frame: &Frame<'_>, limits: &FrameLimits) -> Result<(), FrameError> {
    if frame.header.kind == FrameKind::Record {
        return Ok(());
    }
    let batch = RecordBatch::validate(frame.payload)?;
    if batch.is_control() {
        return Err(BatchError::Control.into());
    }
    if frame.header.record_count != batch.record_count {
        return Err(FrameError::BatchCount {
            found: frame.header.record_count,
            expected: batch.record_count,
        });
    }
    let limit = u64::from(limits.max_payload_bytes).min(MAX_DECOMPRESSED_BYTES);
    RecordBatch::verify_records(frame.payload, limit)?;
    Ok(())
}
