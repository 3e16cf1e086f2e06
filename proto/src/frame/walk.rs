//! Walking whole frames in a byte slice, without a copy and without an allocation.

use super::{FRAME_HEADER_BYTES, Frame, FrameError, FrameHeader, FrameLimits};

/// Yields the whole frames at the start of a slice, in order. Ends at the first frame that is not wholly there; a
/// header that breaks the format or the limits is yielded once as an error, and then the walk ends.
#[derive(Debug, Clone)]
pub struct FrameWalk<'a> {
    bytes: &'a [u8],
    position: usize,
    limits: FrameLimits,
    failed: bool,
}

impl<'a> FrameWalk<'a> {
    /// A walk over `bytes`, whose first byte is a frame's magic.
    #[must_use]
    pub const fn new(bytes: &'a [u8], limits: FrameLimits) -> Self {
        Self {
            bytes,
            position: 0,
            limits,
            failed: false,
        }
    }

    /// The position behind the last whole frame yielded.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// The bytes from [`FrameWalk::position`] on.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    /// How many bytes the frame at [`FrameWalk::position`] needs in all: the header's while that is incomplete.
    /// Meaningful once the walk has ended without an error.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        match self
            .rest()
            .first_chunk::<FRAME_HEADER_BYTES>()
            .map(FrameHeader::decode)
        {
            Some(Ok(header)) => header.frame_bytes(),
            _ => FRAME_HEADER_BYTES as u64,
        }
    }

    fn refuse(&mut self, error: FrameError) -> Option<Result<Frame<'a>, FrameError>> {
        self.failed = true;
        Some(Err(error))
    }
}

impl<'a> Iterator for FrameWalk<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let rest = self.rest();
        let Some((head, body)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            // A byte that no frame starts with is refused before 28 more are waited for.
            return match rest.first() {
                None | Some(1 | 2) => None,
                Some(&found) => self.refuse(FrameError::UnknownMagic { found }),
            };
        };
        let header = match FrameHeader::decode(head) {
            Ok(header) => header,
            Err(error) => return self.refuse(error),
        };
        if let Err(error) = header.check(&self.limits) {
            return self.refuse(error);
        }
        let frame_bytes = usize::try_from(header.frame_bytes()).ok()?;
        if frame_bytes > rest.len() {
            return None;
        }
        let (key, behind) = body.split_at(header.key_bytes as usize);
        let payload = &behind[..header.payload_bytes as usize];
        self.position += frame_bytes;
        Some(Ok(Frame {
            header,
            key,
            payload,
        }))
    }
}

impl std::iter::FusedIterator for FrameWalk<'_> {}
