//! Time lookups, exact in Kafka's unit.
//!
//! A record's time is what clients see: the batch's milliseconds, or those of a record frame rounded down. A frame is at or
//! after `ms` exactly when its nanoseconds are at or after `ms * 10^6`, so that the log's own lookup answers. That lookup
//! saturates what nanoseconds since 1970 cannot hold. Where its answer is such a record, or could have passed over one,
//! records are looked at one by one.

use std::ops::{ControlFlow, Range};

use basalt_columnar::TieredPartition;
use basalt_proto::batch::RecordBatch;
use basalt_proto::{ExpandedRecord, FrameError, FrameKind, FrameLimits, FrameWalk, Offset, expand};

use crate::connection::Connection;
use crate::error::Refusal;

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
    connection: &Connection<'_>,
    partition: &TieredPartition,
    timestamp_ms: i64,
) -> Result<Option<Found>, Refusal> {
    let wanted_ms = u64::try_from(timestamp_ms).unwrap_or(0);
    let wanted_ns = wanted_ms.checked_mul(NS_PER_MS);
    let looked_up = connection
        .lane
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
    let end = partition.offsets().high_watermark;
    let scan = Scan {
        connection,
        partition,
        range: offset..end,
    };
    scan.first_from(timestamp_ms).await
}

/// The record with the latest stamp, the first of them if there are several; `None` in an empty partition.
///
/// # Errors
/// As [`first_from`].
pub(super) async fn latest(
    connection: &Connection<'_>,
    partition: &TieredPartition,
) -> Result<Option<Found>, Refusal> {
    // What an index says is the latest of some records may be later than each of them: of records that are gone, or saturated. So
    // the places are looked at from the latest on, until no other can have a later one.
    let mut places = places(partition);
    places.sort_by_key(|(latest_ns, _)| std::cmp::Reverse(*latest_ns));
    let mut latest_ms = None;
    for (place_ns, range) in places {
        let place_ms = (place_ns / NS_PER_MS).cast_signed();
        if place_ns < u64::MAX && latest_ms.is_some_and(|latest_ms| place_ms <= latest_ms) {
            break;
        }
        let scan = Scan {
            connection,
            partition,
            range,
        };
        latest_ms = latest_ms.max(scan.latest_ms(latest_ms).await?);
    }
    match latest_ms {
        Some(latest_ms) => first_from(connection, partition, latest_ms).await,
        None => Ok(None),
    }
}

/// The row groups and blocks of a partition: each one's latest stamp, as its index has it, and its offsets.
fn places(partition: &TieredPartition) -> Vec<(u64, Range<Offset>)> {
    let snapshot = partition.snapshot();
    let start = snapshot.log_start_offset;
    let cold = snapshot.cold.iter().flat_map(|file| file.chunks.iter());
    let cold = cold.map(|chunk| {
        let range = chunk.base_offset.max(start)..chunk.end_offset;
        (chunk.max_timestamp_ns, range)
    });
    let hot_start = snapshot.cold_end_offset.max(start);
    let hot = snapshot.hot.iter().flat_map(|segment| segment.blocks());
    let hot = hot.map(|block| {
        let end = block.end_offset().min(snapshot.high_watermark);
        (
            block.max_timestamp_ns,
            block.base_offset.max(hot_start)..end,
        )
    });
    cold.chain(hot)
        .filter(|(_, range)| range.start < range.end)
        .collect()
}

/// Looks at the records of some offsets one by one.
struct Scan<'a> {
    connection: &'a Connection<'a>,
    partition: &'a TieredPartition,
    range: Range<Offset>,
}

impl Scan<'_> {
    async fn first_from(self, timestamp_ms: i64) -> Result<Option<Found>, Refusal> {
        let can_hold = |latest_ms: i64| latest_ms >= timestamp_ms;
        self.each(can_hold, |found| {
            if found.timestamp_ms >= timestamp_ms {
                return ControlFlow::Break(found);
            }
            ControlFlow::Continue(())
        })
        .await
    }

    /// The latest stamp, if it is later than `known_ms`.
    async fn latest_ms(self, known_ms: Option<i64>) -> Result<Option<i64>, Refusal> {
        let mut latest_ms = known_ms;
        let can_hold = |latest_ms: i64| known_ms.is_none_or(|known_ms| latest_ms > known_ms);
        self.each(can_hold, |found| {
            latest_ms = latest_ms.max(Some(found.timestamp_ms));
            ControlFlow::Continue(())
        })
        .await?;
        Ok(latest_ms)
    }

    /// Hands every record on to `look`, until that breaks, but for batches whose latest stamp says that they hold none that is
    /// wanted.
    async fn each(
        self,
        can_hold: impl Fn(i64) -> bool,
        mut look: impl FnMut(Found) -> ControlFlow<Found>,
    ) -> Result<Option<Found>, Refusal> {
        let Range { start, end } = self.range;
        let verifier = &self.connection.shared.verifier;
        let mut position = start;
        while position < end {
            let lane = &self.connection.lane;
            let slice = lane
                .read_ready(self.partition, position, end, SCAN_BYTES)
                .await?;
            for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
                let frame = frame?;
                let mut of_frame = || {
                    expand(&frame, |record| {
                        if record.offset < start || record.offset >= end {
                            return ControlFlow::Continue(());
                        }
                        look(found(&record))
                    })
                };
                let looked = match frame.header.kind {
                    FrameKind::Record => of_frame(),
                    FrameKind::Batch => {
                        let header =
                            RecordBatch::header(frame.payload).map_err(FrameError::from)?;
                        if !can_hold(header.max_timestamp_ms) {
                            continue;
                        }
                        verifier.beside(of_frame).await
                    }
                };
                if let ControlFlow::Break(found) = looked.map_err(FrameError::from)? {
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
}

fn found(record: &ExpandedRecord<'_>) -> Found {
    let ms = |ns: u64| (ns / NS_PER_MS).cast_signed();
    let own = record.timestamp_ns.map_or(0, ms);
    Found {
        offset: record.offset,
        timestamp_ms: record.timestamp_ms.unwrap_or(own),
    }
}
