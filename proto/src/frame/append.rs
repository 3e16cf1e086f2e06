//! Frames that have been checked and may be appended.

use super::{FrameCheck, FrameError, FrameLimits, FrameWalk};
use crate::batch::{BatchError, Marker};

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

impl<'a> FramePrefix<'a> {
    /// The frames, if they are all there is.
    ///
    /// # Errors
    /// As [`FrameBatch::parse`].
    pub fn into_whole(self) -> Result<FrameBatch<'a>, FrameError> {
        let position = self.batch.map_or(0, |batch| batch.bytes.len());
        match self.stop {
            FrameStop::End => self.batch.ok_or(FrameError::Empty),
            FrameStop::Incomplete {
                needed_bytes,
                available_bytes,
            } => Err(FrameError::Incomplete {
                position,
                needed_bytes,
                available_bytes,
            }),
            FrameStop::Refused { error, .. } => Err(error),
        }
    }
}

impl<'a> FrameBatch<'a> {
    /// Checks that `bytes` are whole frames that may be appended, and nothing else.
    ///
    /// # Errors
    /// [`FrameError::Empty`] for no bytes, [`FrameError::Incomplete`] when the last frame is cut, else what is wrong with
    /// the first bad frame.
    pub fn parse(bytes: &'a [u8], limits: &FrameLimits) -> Result<Self, FrameError> {
        Self::parse_prefix(bytes, limits).into_whole()
    }

    /// As many whole good frames as stand at the start of `bytes`, and what ended them.
    #[must_use]
    pub fn parse_prefix(bytes: &'a [u8], limits: &FrameLimits) -> FramePrefix<'a> {
        FrameCheck::new(bytes, *limits).finish(bytes.len())
    }

    /// The frame of a control batch, which only a broker makes ([`Marker::frame`]).
    ///
    /// # Errors
    /// [`FrameError`] for anything else.
    pub fn marker(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let mut walk = FrameWalk::new(bytes, FrameLimits::UNLIMITED);
        let frame = walk.next().ok_or(FrameError::Empty)??;
        if Marker::of(frame.payload).is_none() || !walk.rest().is_empty() {
            return Err(BatchError::Control.into());
        }
        let count = frame.header.logical_count().into();
        Ok(Self::checked(bytes, FrameLimits::UNLIMITED, 1, count, true))
    }

    /// Frames that [`FrameCheck`] has looked at, at least one.
    pub(super) const fn checked(
        bytes: &'a [u8],
        limits: FrameLimits,
        frame_count: usize,
        record_count: u64,
        has_batches: bool,
    ) -> Self {
        Self {
            bytes,
            limits,
            frame_count,
            record_count,
            has_batches,
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
