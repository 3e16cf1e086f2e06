//! A frame as records: the one place where both kinds become the same.

use std::ops::ControlFlow;

use super::reader::{BatchReader, RecordHeader};
use super::{BatchError, MAX_DECOMPRESSED_BYTES};
use crate::{Frame, FrameKind, Offset};

const NS_PER_MS: u64 = 1_000_000;

/// One record of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpandedRecord<'a> {
    /// Its offset: the frame's, plus its place in the batch.
    pub offset: Offset,
    /// Nanoseconds since the Unix epoch; `None` where the batch's milliseconds are negative or too many for 64 bits.
    pub timestamp_ns: Option<u64>,
    /// The milliseconds as the batch has them; `None` for a record frame.
    pub timestamp_ms: Option<i64>,
    /// `None` is null in a batch, absent (size 0) in a record frame.
    pub key: Option<&'a [u8]>,
    /// `None` is null; a record frame's payload is never null, however short.
    pub payload: Option<&'a [u8]>,
    /// In the producer's order, repeated names kept.
    pub headers: &'a [RecordHeader<'a>],
    /// How many offsets it spans: 1, or more for an opaque record frame.
    pub record_count: u32,
}

/// Calls `f` for each record of `frame`, in order of offset: once for a record frame, once a record for a batch frame, never for a
/// control batch, whose records are the broker's.
/// `f` ends the walk early by `ControlFlow::Break`, whose value is returned. Offsets are counted from the frame's, not
/// from the batch's base offset. Allocates for a batch only what its decompression takes, and one list of headers.
///
/// # Errors
/// [`BatchError`] when a batch frame's payload cannot be read to the end; records before the fault have been handed out.
pub fn expand<B>(
    frame: &Frame<'_>,
    mut f: impl FnMut(ExpandedRecord<'_>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, BatchError> {
    if frame.header.kind == FrameKind::Record {
        return Ok(f(ExpandedRecord {
            offset: frame.header.offset,
            timestamp_ns: Some(frame.header.timestamp_ns),
            timestamp_ms: None,
            key: (!frame.key.is_empty()).then_some(frame.key),
            payload: Some(frame.payload),
            headers: &[],
            record_count: frame.header.logical_count(),
        }));
    }
    let reader = BatchReader::open(frame.payload, MAX_DECOMPRESSED_BYTES)?;
    if reader.header().is_control() {
        return Ok(ControlFlow::Continue(()));
    }
    let mut walk = reader.walk();
    let mut headers = Vec::new();
    while let Some(record) = walk.next(&mut headers)? {
        let flow = f(ExpandedRecord {
            offset: frame.header.offset.saturating_add(u64::from(record.index)),
            timestamp_ns: u64::try_from(record.timestamp_ms)
                .ok()
                .and_then(|ms| ms.checked_mul(NS_PER_MS)),
            timestamp_ms: Some(record.timestamp_ms),
            key: record.key,
            payload: record.value,
            headers: &headers,
            record_count: 1,
        });
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}
