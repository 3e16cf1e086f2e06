//! Fetch: frames from an offset on, waited for if need be, up to an end if one is given.

use std::time::Duration;

use basalt_columnar::TieredPartition;
use basalt_log::{Bounds, FrameSlice};
use basalt_proto::session::{
    FetchRequest, FetchResponseHeader, ListOffsetsRequest, ListOffsetsResponse, Start,
    encode_fetch_header,
};
use basalt_proto::{ErrorKind, Offset};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Answer;
use crate::ShutdownSignal;
use crate::connection::Connection;
use crate::error::Refusal;
use crate::read_ahead::Lane;
use crate::shared::Shared;

/// Answers a fetch once it has `min_bytes`, reached its end offset, waited long enough, or no more requests will come.
pub(super) async fn answer(
    connection: &Connection<'_>,
    correlation_id: u32,
    request: FetchRequest,
    ending: ShutdownSignal,
) -> Answer {
    match fetch(connection, &request, &ending).await {
        Ok(fetched) => fetched.into_answer(correlation_id),
        Err(refusal) => {
            connection.shared.counters.refuse(refusal.kind, 1);
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
    connection: &Connection<'_>,
    request: &FetchRequest,
    ending: &ShutdownSignal,
) -> Result<Fetched, Refusal> {
    let shared = connection.shared;
    let partition = shared
        .partition_or_create(&request.topic, request.partition)
        .await?;
    let max_bytes = u64::from(request.max_bytes.min(shared.config.max_fetch_bytes));
    let mut bounds = partition.offsets();
    let mut position = start(connection, &partition, &bounds, request.start).await?;
    // Made once it has to wait: most fetches have not.
    let mut wait = None;
    loop {
        let mut next_offset = position;
        let mut frames = None;
        // Beyond the high watermark, but not beyond the end, lies what is being made durable: it is waited for.
        if position < request.end_offset.min(bounds.high_watermark) {
            let slice = connection
                .lane
                .read_ready(&partition, position, request.end_offset, max_bytes)
                .await?;
            next_offset = next_offset.max(slice.next_offset);
            frames = Some(slice);
        }
        // It may have risen since.
        bounds.high_watermark = bounds.high_watermark.max(next_offset);
        let bytes = frames.as_ref().map_or(0, FrameSlice::len);
        let end_reached = next_offset >= request.end_offset;
        // Frames that end before what is readable does were cut by a limit or a segment's end: waiting adds nothing.
        let cut = bytes > 0 && next_offset < bounds.high_watermark;
        let enough = bytes >= u64::from(request.min_bytes) || request.max_wait_ms == 0;
        if end_reached
            || cut
            || enough
            || wait.as_ref().is_some_and(Wait::is_over)
            || ending.is_triggered()
        {
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
        } else if let Some(wait) = &mut wait {
            wait.for_news(shared, &partition, ending).await?;
        } else {
            // What came before the wait was begun is read first.
            wait = Some(Wait::begin(shared, &partition, request)?);
        }
        if let Some(wait) = &mut wait {
            // Seen before the read, so that what is appended after the read wakes the wait.
            wait.high_watermark.borrow_and_update();
        }
        bounds = partition.offsets();
    }
}

/// A fetch's wait for more.
struct Wait {
    high_watermark: watch::Receiver<Offset>,
    deletions: watch::Receiver<u64>,
    deadline: Instant,
}

impl Wait {
    /// # Errors
    /// A [`Refusal`] when the topic was deleted before deletions were watched.
    fn begin(
        shared: &Shared,
        partition: &TieredPartition,
        request: &FetchRequest,
    ) -> Result<Self, Refusal> {
        let limit = Duration::from_millis(u64::from(request.max_wait_ms));
        let deletions = shared.topics.deletions().subscribe();
        shared.still_there(partition)?;
        Ok(Self {
            high_watermark: partition.subscribe(),
            deletions,
            deadline: Instant::now() + limit.min(shared.config.max_fetch_wait),
        })
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Waits until there may be more to read, or no reason to wait any longer.
    ///
    /// # Errors
    /// A [`Refusal`] when the topic was deleted.
    async fn for_news(
        &mut self,
        shared: &Shared,
        partition: &TieredPartition,
        ending: &ShutdownSignal,
    ) -> Result<(), Refusal> {
        tokio::select! {
            _ = self.high_watermark.changed() => {}
            _ = self.deletions.changed() => shared.still_there(partition)?,
            () = sleep_until(self.deadline) => {}
            () = ending.wait() => {}
        }
        Ok(())
    }
}

/// The offset a fetch begins at.
///
/// # Errors
/// A [`Refusal`] with the bounds when an explicit offset lies outside them.
async fn start(
    connection: &Connection<'_>,
    partition: &TieredPartition,
    bounds: &Bounds,
    start: Start,
) -> Result<Offset, Refusal> {
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
            let found = connection
                .lane
                .offset_for_timestamp(partition, timestamp_ns)
                .await?;
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
    let bounds = partition.offsets();
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
        Start::Timestamp(timestamp_ns) => match Lane::new(&shared.read_ahead)
            .offset_for_timestamp(&partition, timestamp_ns)
            .await?
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
