//! Time lookups, exact in Kafka's unit.
//!
//! A record's time is what clients see: the batch's milliseconds, or those of a record frame rounded down. A frame is at or
//! after `ms` exactly when its nanoseconds are at or after `ms * 10^6`, so that the log's own lookup answers. That lookup
//! saturates what nanoseconds since 1970 cannot hold. Where its answer is such a record, or could have passed over one,
//! records are looked at one by one.

use std::ops::ControlFlow;

use basalt_columnar::TieredPartition;
use basalt_proto::{ExpandedRecord, FrameLimits, FrameWalk, Offset, expand};

use crate::error::Refusal;
use crate::read_ahead::Lane;

const NS_PER_MS: u64 = 1_000_000;
/// What is looked at in one turn.
const SCAN_BYTES: u64 = 1 << 20;

/// A record by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) offset: Offset,
    pub(super) timestamp_ms: i64,
}

/// The earliest offset whose record is stamped `timestamp_ms` or later; `None` when there is none.
///
/// # Errors
/// A [`Refusal`] when the disk or the store cannot be read.
pub(super) async fn first_from(
    lane: &Lane,
    partition: &TieredPartition,
    timestamp_ms: i64,
) -> Result<Option<Found>, Refusal> {
    let wanted_ms = u64::try_from(timestamp_ms).unwrap_or(0);
    let wanted_ns = wanted_ms.checked_mul(NS_PER_MS);
    let looked_up = lane
        .offset_for_timestamp(partition, wanted_ns.unwrap_or(u64::MAX))
        .await?;
    let Some((offset, timestamp_ns)) = looked_up else {
        return Ok(None);
    };
    // Zero may stand for an earlier time, and the largest number for any later one.
    if wanted_ns.is_some() && wanted_ms > 0 && timestamp_ns < u64::MAX {
        return Ok(Some(Found {
            offset,
            timestamp_ms: (timestamp_ns / NS_PER_MS).cast_signed(),
        }));
    }
    scan(lane, partition, offset, |found| {
        if found.timestamp_ms >= timestamp_ms {
            return ControlFlow::Break(found);
        }
        ControlFlow::Continue(())
    })
    .await
}

/// The record with the latest stamp, the first of them if there are several; `None` in an empty partition.
///
/// # Errors
/// As [`first_from`].
pub(super) async fn latest(
    lane: &Lane,
    partition: &TieredPartition,
) -> Result<Option<Found>, Refusal> {
    let snapshot = partition.snapshot();
    let cold = snapshot.cold.iter().map(|file| file.max_timestamp_ns);
    let blocks = snapshot.hot.iter().flat_map(|segment| segment.blocks());
    let hot = blocks.map(|block| block.max_timestamp_ns);
    let Some(latest_ns) = cold.chain(hot).max() else {
        return Ok(None);
    };
    let start = snapshot.log_start_offset;
    drop(snapshot);
    let looked_up = lane.offset_for_timestamp(partition, latest_ns).await?;
    match looked_up {
        Some((_, timestamp_ns)) if latest_ns > 0 && timestamp_ns < u64::MAX => {
            // To the millisecond others may be as late, and before it.
            first_from(lane, partition, (timestamp_ns / NS_PER_MS).cast_signed()).await
        }
        // An index that says later than any record is: of records that are gone, or saturated.
        _ => {
            let mut latest: Option<Found> = None;
            scan(lane, partition, start, |found| {
                if latest.is_none_or(|latest| found.timestamp_ms > latest.timestamp_ms) {
                    latest = Some(found);
                }
                ControlFlow::Continue(())
            })
            .await?;
            Ok(latest)
        }
    }
}

/// Hands every record from `from` on to `look`, until that breaks.
async fn scan(
    lane: &Lane,
    partition: &TieredPartition,
    from: Offset,
    mut look: impl FnMut(Found) -> ControlFlow<Found>,
) -> Result<Option<Found>, Refusal> {
    let end = partition.offsets().high_watermark;
    let mut position = from;
    while position < end {
        let slice = lane
            .read_ready(partition, position, end, SCAN_BYTES)
            .await?;
        for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
            let looked = expand(&frame?, |record| {
                if record.offset < position {
                    return ControlFlow::Continue(());
                }
                look(found(&record))
            });
            if let ControlFlow::Break(found) = looked.map_err(basalt_proto::FrameError::from)? {
                return Ok(Some(found));
            }
        }
        if slice.next_offset <= position {
            break;
        }
        position = slice.next_offset;
        tokio::task::yield_now().await;
    }
    Ok(None)
}

fn found(record: &ExpandedRecord<'_>) -> Found {
    let ms = |ns: u64| (ns / NS_PER_MS).cast_signed();
    let own = record.timestamp_ns.map_or(0, ms);
    Found {
        offset: record.offset,
        timestamp_ms: record.timestamp_ms.unwrap_or(own),
    }
}
