//! The one look at a producer's frames before they are appended: header after header, in order.

use super::append::{FrameBatch, FramePrefix, FrameStop};
use super::{FRAME_HEADER_BYTES, Frame, FrameError, FrameHeader, FrameKind, FrameLimits};
use crate::batch::{BatchError, BatchReader, MAX_DECOMPRESSED_BYTES, RecordBatch};

/// Below it no offset and record count together can pass the last offset: what producers send, which is 0, always is.
const LOW_OFFSET_BYTE: u8 = 0x40;

const _: () = assert!(((LOW_OFFSET_BYTE as u64) << 56) - 1 + (u32::MAX as u64) < i64::MAX as u64);

/// Checks the frames at the start of a buffer, in two steps: record frames are checked by their headers, at a few
/// nanoseconds each; a batch frame is read to its last record, which may take long, so that the caller may choose where.
#[derive(Debug, Clone)]
pub struct FrameCheck<'a> {
    bytes: &'a [u8],
    limits: FrameLimits,
    takes_transactions: bool,
    /// 1 where each record has to have a key.
    min_key_bytes: u32,
    position: usize,
    frame_count: usize,
    record_count: u64,
    has_batches: bool,
}

impl<'a> FrameCheck<'a> {
    /// A check of `bytes`, whose first byte is a frame's magic.
    #[must_use]
    pub const fn new(bytes: &'a [u8], limits: FrameLimits) -> Self {
        Self {
            bytes,
            limits,
            takes_transactions: false,
            min_key_bytes: 0,
            position: 0,
            frame_count: 0,
            record_count: 0,
            has_batches: false,
        }
    }

    /// The same, that takes batches of transactions, too: for one who knows which there are.
    #[must_use]
    pub const fn with_transactions(mut self) -> Self {
        self.takes_transactions = true;
        self
    }

    /// The same, where `needs_keys` says whether each record has to have a key, as those of compacted topics have to.
    #[must_use]
    pub const fn with_keys(mut self, needs_keys: bool) -> Self {
        self.min_key_bytes = needs_keys as u32;
        self
    }

    /// Checks record frames. `Some` when a whole batch frame stands behind them: the position behind that one, which has
    /// not been looked into yet. `None` when there is nothing left for [`Self::finish`] that takes long.
    pub fn records(&mut self) -> Option<usize> {
        self.pass_records();
        let rest = self.bytes.get(self.position..)?;
        let header = FrameHeader::decode(rest.first_chunk::<FRAME_HEADER_BYTES>()?).ok()?;
        let frame_bytes = usize::try_from(header.frame_bytes()).ok()?;
        let whole = header.kind == FrameKind::Batch && frame_bytes <= rest.len();
        whole.then(|| self.position + frame_bytes)
    }

    /// Checks what is left up to the position `end`, or the end of the buffer if that comes first, as if the buffer ended
    /// there. What was checked before is not looked at again.
    #[must_use]
    pub fn finish(mut self, end: usize) -> FramePrefix<'a> {
        self.bytes = &self.bytes[..end.clamp(self.position, self.bytes.len())];
        let stop = loop {
            self.pass_records();
            if let Some(stop) = self.pass_one() {
                break stop;
            }
        };
        let batch = (self.frame_count > 0).then(|| {
            FrameBatch::checked(
                &self.bytes[..self.position],
                self.limits,
                self.frame_count,
                self.record_count,
                self.has_batches,
            )
        });
        FramePrefix { batch, stop }
    }

    /// Goes on behind all whole record frames that are plainly good. Whatever else stands there is [`Self::pass_one`]'s.
    #[inline]
    fn pass_records(&mut self) {
        let (bytes, limits, min_key_bytes) = (self.bytes, self.limits, self.min_key_bytes);
        let (mut position, mut frame_count, mut record_count) = (self.position, 0, 0);
        while let Some(head) = bytes[position..].first_chunk::<FRAME_HEADER_BYTES>() {
            let header = head.as_slice();
            let key_bytes = word(head, 17);
            let payload_bytes = word(head, 21);
            let good = header[0] == FrameKind::Record as u8
                && header[9] < LOW_OFFSET_BYTE
                && (min_key_bytes..=limits.max_key_bytes).contains(&key_bytes)
                && payload_bytes <= limits.max_payload_bytes;
            let frame_bytes =
                FRAME_HEADER_BYTES as u64 + u64::from(key_bytes) + u64::from(payload_bytes);
            let rest_bytes = bytes.len() - position;
            match usize::try_from(frame_bytes) {
                Ok(frame_bytes) if good && frame_bytes <= rest_bytes => position += frame_bytes,
                _ => break,
            }
            frame_count += 1;
            record_count += u64::from(word(head, 25).max(1));
        }
        self.position = position;
        self.frame_count += frame_count;
        self.record_count += record_count;
    }

    /// Looks at the next frame, whatever it is, with every check there is; why it is the last one, if so.
    fn pass_one(&mut self) -> Option<FrameStop> {
        let rest = &self.bytes[self.position..];
        let refused = |error, skip_bytes| Some(FrameStop::Refused { error, skip_bytes });
        let incomplete = |needed_bytes| {
            Some(FrameStop::Incomplete {
                needed_bytes,
                available_bytes: rest.len(),
            })
        };
        let Some((head, body)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            // A byte that no frame starts with is refused before 28 more are waited for.
            return match rest.first() {
                None => Some(FrameStop::End),
                Some(1 | 2) => incomplete(FRAME_HEADER_BYTES as u64),
                Some(&found) => refused(FrameError::UnknownMagic { found }, None),
            };
        };
        let header = match FrameHeader::decode(head) {
            Ok(header) => header,
            Err(error) => return refused(error, None),
        };
        if let Err(error) = header.check(&self.limits) {
            return refused(error, None);
        }
        let whole = usize::try_from(header.frame_bytes())
            .ok()
            .filter(|frame_bytes| *frame_bytes <= rest.len());
        let Some(frame_bytes) = whole else {
            return incomplete(header.frame_bytes());
        };
        let (key, payload) =
            body[..frame_bytes - FRAME_HEADER_BYTES].split_at(header.key_bytes as usize);
        let frame = Frame {
            header,
            key,
            payload,
        };
        if let Err(error) = self.admit(&frame) {
            return refused(error, Some(frame_bytes));
        }
        self.position += frame_bytes;
        self.frame_count += 1;
        self.record_count += u64::from(header.logical_count());
        self.has_batches |= header.kind == FrameKind::Batch;
        None
    }

    /// Whether a whole frame within the limits may be appended: a record frame if it has a key or needs none, a batch frame if its
    /// batch is sound.
    ///
    /// The records are read once, decompressed if need be, since a batch that cannot be read would be found out only when it
    /// is cooled or queried. Decompressed they may be as large as an uncompressed batch's could be, so that compression does
    /// not get around the limit.
    fn admit(&self, frame: &Frame<'_>) -> Result<(), FrameError> {
        if frame.header.kind == FrameKind::Record {
            return match frame.header.key_bytes < self.min_key_bytes {
                true => Err(FrameError::NoKey),
                false => Ok(()),
            };
        }
        let batch = RecordBatch::validate(frame.payload)?;
        if batch.is_control() {
            return Err(BatchError::Control.into());
        }
        if batch.is_transactional() && !self.takes_transactions {
            return Err(BatchError::Transactional.into());
        }
        if frame.header.record_count != batch.record_count {
            return Err(FrameError::BatchCount {
                found: frame.header.record_count,
                expected: batch.record_count,
            });
        }
        let limit = u64::from(self.limits.max_records_bytes).min(MAX_DECOMPRESSED_BYTES);
        BatchReader::open(frame.payload, limit)?.verify(self.min_key_bytes > 0)?;
        Ok(())
    }
}

/// The big-endian u32 at `at`, which is within the header.
#[inline]
fn word(head: &[u8; FRAME_HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes(super::field(head, at))
}
