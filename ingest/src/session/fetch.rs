//! Fetch: frames from an offset on, waited for if need be, up to an end if one is given.

use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::TieredPartition;
use basalt_log::FrameSlice;
use basalt_proto::session::{
    FetchRequest, FetchResponseHeader, ListOffsetsRequest, ListOffsetsResponse, Start,
    encode_fetch_header,
};
use basalt_proto::{ErrorKind, Offset};
use tokio::time::{Instant, sleep_until};

use super::Answer;
use crate::ShutdownSignal;
use crate::error::Refusal;
use crate::shared::Shared;

/// Answers a fetch once it has `min_bytes`, reached its end offset, waited long enough, or no more requests will come.
pub(super) async fn answer(
    shared: &Shared,
    correlation_id: u32,
    request: FetchRequest,
    ending: ShutdownSignal,
) -> Answer {
    match fetch(shared, &request, &ending).await {
        Ok(fetched) => fetched.into_answer(correlation_id),
        Err(refusal) => {
            shared.counters.refuse(refusal.kind, 1);
            Answer::refused(correlation_id, &refusal)
        }
    }
}

#[derive(Debug)]
struct Fetched {
    header: FetchResponseHeader,
    frames: Option<FrameSlice>,
}

impl Fetched {
    fn into_answer(self, correlation_id: u32) -> Answer {
        let frames = self.frames.filter(|frames| !frames.is_empty());
        let frames_bytes = frames.as_ref().map_or(0, FrameSlice::len);
        let Ok(frames_bytes) = u32::try_from(frames_bytes) else {
            let message = format!("{frames_bytes} bytes of frames do not fit one response");
            return Answer::refused(correlation_id, &Refusal::new(ErrorKind::Internal, message));
        };
        let mut head = Vec::new();
        encode_fetch_header(correlation_id, &self.header, frames_bytes, &mut head);
        match frames {
            Some(frames) => Answer::Frames { head, frames },
            None => Answer::Message(head),
        }
    }
}

async fn fetch(
    shared: &Shared,
    request: &FetchRequest,
    ending: &ShutdownSignal,
) -> Result<Fetched, Refusal> {
    let (partition, mut deletions) = shared
        .watched_partition(&request.topic, request.partition)
        .await?;
    let wait =
        Duration::from_millis(u64::from(request.max_wait_ms)).min(shared.config.max_fetch_wait);
    let deadline = Instant::now() + wait;
    let max_bytes = u64::from(request.max_bytes.min(shared.config.max_fetch_bytes));
    let mut high_watermark = partition.subscribe();
    let mut position = start(&partition, request.start).await?;
    loop {
        // Seen before the read, so that what is appended after the read wakes the wait.
        high_watermark.borrow_and_update();
        let bounds = partition.bounds();
        let mut next_offset = position;
        let mut frames = None;
        // Beyond the high watermark, but not beyond the end, lies what is being made durable: it is waited for.
        if position < request.end_offset && position <= bounds.high_watermark {
            let slice = partition
                .read(position, request.end_offset, max_bytes)
                .await?;
            next_offset = next_offset.max(slice.next_offset);
            frames = Some(slice);
        }
        let bytes = frames.as_ref().map_or(0, FrameSlice::len);
        let end_reached = next_offset >= request.end_offset;
        // Frames that end before what is readable does were cut by a limit or a segment's end: waiting adds nothing.
        let cut = bytes > 0 && next_offset < bounds.high_watermark;
        let expired = Instant::now() >= deadline || ending.is_triggered();
        if end_reached || cut || bytes >= u64::from(request.min_bytes) || expired {
            let bounds = partition.bounds();
            let header = FetchResponseHeader {
                log_start_offset: bounds.log_start_offset,
                high_watermark: bounds.high_watermark,
                next_offset,
                end_reached,
            };
            return Ok(Fetched { header, frames });
        }
        if bytes == 0 && next_offset > position {
            // Offsets without records: read on behind them.
            position = next_offset;
            continue;
        }
        tokio::select! {
            _ = high_watermark.changed() => {}
            _ = deletions.changed() => shared.still_there(&partition)?,
            () = sleep_until(deadline) => {}
            () = ending.wait() => {}
        }
    }
}

/// The offset a fetch begins at.
///
/// # Errors
/// A [`Refusal`] with the bounds when an explicit offset lies outside them.
async fn start(partition: &Arc<TieredPartition>, start: Start) -> Result<Offset, Refusal> {
    let bounds = partition.bounds();
    match start {
        Start::Offset(offset)
            if offset < bounds.log_start_offset || offset > bounds.log_end_offset =>
        {
            Err(Refusal::out_of_range(
                offset,
                bounds.log_start_offset,
                bounds.high_watermark,
            ))
        }
        Start::Offset(offset) => Ok(offset),
        Start::Earliest => Ok(bounds.log_start_offset),
        Start::Latest => Ok(bounds.high_watermark),
        Start::Timestamp(timestamp_ns) => {
            let found = partition.offset_for_timestamp(timestamp_ns).await?;
            Ok(found.map_or(bounds.high_watermark, |(offset, _)| offset))
        }
    }
}

/// Where a start lies, without reading from it.
///
/// # Errors
/// A [`Refusal`]: no such topic or partition, or the disk refused.
pub(super) async fn list_offsets(
    shared: &Shared,
    request: &ListOffsetsRequest,
) -> Result<ListOffsetsResponse, Refusal> {
    let partition = shared.existing_partition(&request.topic, request.partition)?;
    let bounds = partition.bounds();
    let (log_start, high_watermark) = (bounds.log_start_offset, bounds.high_watermark);
    let at = |offset, found| ListOffsetsResponse {
        offset,
        timestamp_ns: 0,
        found,
    };
    Ok(match request.start {
        Start::Offset(offset) if offset < log_start || offset > high_watermark => {
            at(high_watermark, false)
        }
        Start::Offset(offset) => at(offset, true),
        Start::Earliest => at(log_start, true),
        Start::Latest => at(high_watermark, true),
        Start::Timestamp(timestamp_ns) => match partition.offset_for_timestamp(timestamp_ns).await?
        {
            Some((offset, timestamp_ns)) => ListOffsetsResponse {
                offset,
                timestamp_ns,
                found: true,
            },
            None => at(high_watermark, false),
        },
    })
}
