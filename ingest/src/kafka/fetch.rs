//! Fetch: batches of many partitions in one answer, waited for if need be.
//!
//! There are no fetch sessions: each request names all its partitions, and the answer's session id is 0. The partition that
//! is read first is the one behind the first of the fetch before, so that one with large batches does not keep the others
//! waiting for ever, be their order the same each time or not.

mod encode;

use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::TieredPartition;
use basalt_log::{Aborted, AbortedTransactions, FrameSlice, Isolation};
use basalt_proto::batch::gap_end;
use basalt_proto::{Offset, PartitionId, TopicName};
use futures::stream::{FuturesUnordered, StreamExt};
use kafka_protocol::messages::FetchRequest;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

use super::PARTITION_BYTES;
use encode::{put_count, put_length, put_tags, put_top};

use super::error::{code, of_fetch};
use super::node::{KnownIds, TopicsById};
use super::records::{Piece, Want, collect};
use super::request::{Head, LENGTH_BYTES, Request};
use super::response::put_header;
use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::output::{Output, Then};
use crate::shared::Shared;
use crate::{Counters, ShutdownSignal};

/// Records of transactions that were committed, and of none.
const READ_COMMITTED: i8 = 1;
/// Topics by id instead of by name.
const IDS_FROM: i16 = 13;
/// A session's epoch when there is none, or a new one is asked for.
const SESSIONLESS: [i32; 2] = [-1, 0];
/// So many times as long as frames their batches are at most: those of one small record each.
const MAX_GROWTH: u64 = 3;
/// What an answer copies of the log when there is no share for it.
const UNSHARED_BYTES: u64 = 64 << 10;
/// So many partitions are read before others run.
const TURN_PARTS: usize = 256;

/// What a connection remembers from one fetch to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Which partition was read first the last time.
    first: Option<(TopicName, PartitionId)>,
    ids: KnownIds,
}

/// A fetch that waits for its turn.
pub(super) struct Fetch {
    head: Head,
    /// Its texts are parts of the body.
    body_bytes: usize,
    request: FetchRequest,
}

/// One partition of the request and what is found there.
struct Part {
    found: Result<Arc<TieredPartition>, i16>,
    index: i32,
    fetch_offset: i64,
    max_bytes: u64,
    bounds: Option<Bounds>,
    error_code: i16,
    slice: Option<FrameSlice>,
    /// Where the offsets end that have no record and are followed by none, if it asks for such a one.
    hole_end: Option<Offset>,
    /// The void transactions of what is hot, for whoever leaves their records out.
    aborted: Option<Arc<AbortedTransactions>>,
    pieces: Vec<Piece>,
    /// Those that `pieces` have batches of.
    aborted_there: Vec<Aborted>,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    log_start_offset: Offset,
    high_watermark: Offset,
    stable_offset: Offset,
    /// Where what is read ends: one of the two.
    end: Offset,
}

/// What is read of the partitions: a request's, in its order.
struct Fetching<'a> {
    connection: &'a Connection<'a>,
    output: &'a Output<'a>,
    isolation: Isolation,
    parts: Vec<Part>,
    /// Which part is read first.
    first: usize,
    max_bytes: u64,
}

impl Memory {
    /// Which of `parts` is read first.
    fn turn(&mut self, parts: &[Part]) -> usize {
        let last = self.first.take();
        let last = last.and_then(|(topic, partition)| {
            let last = Some((&topic, partition));
            parts.iter().position(|part| part.id() == last)
        });
        let first = last.map_or(0, |last| (last + 1) % parts.len());
        let id = parts.get(first).and_then(Part::id);
        self.first = id.map(|(topic, partition)| (topic.clone(), partition));
        first
    }
}

impl Fetch {
    /// # Errors
    /// A [`Refusal`] when the request is malformed.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            head: request.head,
            body_bytes: request.body.len(),
            request: request.decode()?,
        })
    }

    /// What it holds while it waits, about.
    pub(super) fn held_bytes(&self) -> usize {
        let topics = self.request.topics.iter();
        let partitions: usize = topics.map(|topic| topic.partitions.len() + 1).sum();
        self.body_bytes + partitions * PARTITION_BYTES
    }

    /// Writes the answer once there is enough to read, the time is over, or no more requests will come.
    pub(super) async fn answer(
        self,
        connection: &Connection<'_>,
        output: &Output<'_>,
        memory: &mut Memory,
        ending: &ShutdownSignal,
    ) -> Result<(), ConnectionError> {
        let request = &self.request;
        if request.session_id != 0 {
            return self.refuse(output, code::FETCH_SESSION_ID_NOT_FOUND).await;
        }
        if !SESSIONLESS.contains(&request.session_epoch) {
            return self.refuse(output, code::INVALID_FETCH_SESSION_EPOCH).await;
        }
        let shared = connection.shared;
        let parts = self.parts(shared, &mut memory.ids);
        let asked = u64::try_from(request.max_bytes).unwrap_or(0);
        let mut fetching = Fetching {
            connection,
            output,
            isolation: match request.isolation_level {
                READ_COMMITTED => Isolation::Committed,
                _ => Isolation::Uncommitted,
            },
            first: memory.turn(&parts),
            parts,
            max_bytes: asked.min(u64::from(shared.config.max_fetch_bytes)),
        };
        let min_bytes = u64::try_from(request.min_bytes).unwrap_or(0);
        let max_wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
        fetching.wait(min_bytes, max_wait, ending).await;
        let _share = fetching.collect().await;
        self.send(output, fetching.parts).await
    }

    fn parts(&self, shared: &Shared, ids: &mut KnownIds) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut all = TopicsById::new(shared);
        for topic in &self.request.topics {
            let name = match self.head.version {
                IDS_FROM.. => ids
                    .topic(shared, &mut all, topic.topic_id.as_bytes())
                    .map(|topic| topic.name().clone())
                    .ok_or(code::UNKNOWN_TOPIC_ID),
                _ => TopicName::new(&topic.topic).map_err(|_| code::UNKNOWN_TOPIC_OR_PARTITION),
            };
            parts.extend(topic.partitions.iter().map(|asked| Part {
                found: name.clone().and_then(|name| {
                    let index = u32::try_from(asked.partition)
                        .map_err(|_| code::UNKNOWN_TOPIC_OR_PARTITION)?;
                    let found = shared.existing_partition(&name, PartitionId(index));
                    found.map_err(|refusal| of_fetch(refusal.kind))
                }),
                index: asked.partition,
                fetch_offset: asked.fetch_offset,
                max_bytes: u64::try_from(asked.partition_max_bytes).unwrap_or(0),
                bounds: None,
                error_code: code::NONE,
                slice: None,
                hole_end: None,
                aborted: None,
                pieces: Vec::new(),
                aborted_there: Vec::new(),
            }));
        }
        parts
    }

    /// An answer that is an error as a whole.
    async fn refuse(&self, output: &Output<'_>, error_code: i16) -> Result<(), ConnectionError> {
        let mut out = vec![0; LENGTH_BYTES];
        let flexible = self.head.is_flexible();
        put_header(&self.head, &mut out);
        put_top(&mut out, error_code);
        put_count(&mut out, 0, flexible);
        put_tags(&mut out, flexible);
        put_length(&mut out, 0)?;
        output.send(&out, Then::Nothing).await
    }

    async fn send(&self, output: &Output<'_>, parts: Vec<Part>) -> Result<(), ConnectionError> {
        let pieces = self.encode(parts)?;
        let last = pieces.len().saturating_sub(1);
        for (at, piece) in pieces.iter().enumerate() {
            let then = if at == last {
                Then::Nothing
            } else {
                Then::More
            };
            match piece {
                Piece::Bytes(bytes) => output.send(bytes, then).await?,
                Piece::File { slice, from, bytes } => {
                    output.send_part(slice, *from, *bytes).await?;
                }
            }
        }
        Ok(())
    }
}

impl Fetching<'_> {
    /// Reads until there are `min_bytes`, a partition has an error, or the time is over.
    async fn wait(&mut self, min_bytes: u64, max_wait: Duration, ending: &ShutdownSignal) {
        if self.parts.is_empty() {
            return;
        }
        // Made once it has to wait: most fetches have not.
        let mut news: Option<News> = None;
        loop {
            if let Some(news) = &mut news {
                // Seen before the read, so that what is appended after the read wakes the wait.
                news.mark_seen();
            }
            let bytes = self.read().await;
            let failed = self.parts.iter().any(|part| part.error_code != code::NONE);
            // A read may end before what there is to read does; there is nothing to wait for then.
            let cut = self.parts.iter().any(Part::is_cut);
            let holes = self.parts.iter().any(|part| part.hole_end.is_some());
            let over = news.as_ref().map_or(max_wait.is_zero(), News::is_over);
            if bytes >= min_bytes || failed || cut || holes || over || ending.is_triggered() {
                return;
            }
            // What was read keeps its file: not while it waits.
            self.parts
                .iter_mut()
                .for_each(|part| (part.slice, part.aborted) = (None, None));
            match &mut news {
                Some(news) => news.wait(ending).await,
                None => news = Some(News::of(self, max_wait)),
            }
        }
    }

    /// Reads frames of each partition, from the first part on round the others, as much as the request takes; how many
    /// bytes of frames that are.
    async fn read(&mut self) -> u64 {
        let count = self.parts.len();
        let mut bytes = 0;
        for at in 0..count {
            let at = (self.first + at) % count;
            let left = self.max_bytes.saturating_sub(bytes);
            let part = &mut self.parts[at];
            // The first one gets a batch in any case; for the others there has to be room.
            let wanted = part.max_bytes.min(left).max(1);
            let skip = bytes > 0 && (left == 0 || part.max_bytes == 0);
            let shared = self.connection.shared;
            part.read(shared, self.output, self.isolation, wanted, skip)
                .await;
            bytes += part.slice.as_ref().map_or(0, FrameSlice::len);
            if at % TURN_PARTS == TURN_PARTS - 1 {
                tokio::task::yield_now().await;
            }
        }
        bytes
    }

    /// Makes batches of what was read. Returns what stands for the memory that the copies among them take, until they are sent. Where
    /// others have taken all of it, the answer is small: consumers that do not read theirs hold nobody up.
    async fn collect(&mut self) -> Option<OwnedSemaphorePermit> {
        let read = self.parts.iter().filter_map(|part| part.slice.as_ref());
        let read_bytes = read.map(FrameSlice::len).sum::<u64>();
        let wanted = read_bytes.saturating_mul(MAX_GROWTH).min(self.max_bytes);
        let copies = &self.connection.shared.copies;
        let share = copies.try_take(usize::try_from(wanted).unwrap_or(usize::MAX));
        let mut copies_left = match &share {
            Some(_) => wanted,
            None => UNSHARED_BYTES,
        };
        let count = self.parts.len();
        let mut total = 0_u64;
        for at in 0..count {
            let at = (self.first + at) % count;
            let part = &mut self.parts[at];
            if let Some(end) = part.hole_end.and_then(|end| gap_end(end).ok()) {
                part.pieces = vec![Piece::Bytes(end)];
            }
            let (Some(slice), Some(bounds), Ok(partition)) =
                (part.slice.take(), part.bounds, &part.found)
            else {
                continue;
            };
            let want = Want {
                log_start_offset: bounds.log_start_offset,
                end: bounds.end,
                max_bytes: part.max_bytes.min(self.max_bytes.saturating_sub(total)),
                max_copied_bytes: copies_left,
                at_least_one: total == 0,
            };
            let aborted = part.aborted.as_deref();
            match collect(self.output.lane, partition, want, aborted, slice).await {
                Ok(collected) => {
                    (part.pieces, part.aborted_there) = (collected.pieces, collected.aborted);
                }
                Err(refusal) => part.fail(self.connection.shared, &refusal),
            }
            total += part.pieces.iter().map(Piece::len).sum::<u64>();
            let copied = part.pieces.iter().map(|piece| match piece {
                Piece::Bytes(bytes) => bytes.len() as u64,
                Piece::File { .. } => 0,
            });
            let copied = copied.sum();
            copies_left = copies_left.saturating_sub(copied);
            let counters = &self.connection.shared.counters;
            Counters::add(&counters.bytes_copied, copied);
        }
        share
    }
}

impl Part {
    fn id(&self) -> Option<(&TopicName, PartitionId)> {
        let partition = self.found.as_ref().ok()?;
        Some((partition.topic(), partition.id()))
    }

    /// Whether there is more to read than was read.
    fn is_cut(&self) -> bool {
        let (Some(slice), Some(bounds)) = (&self.slice, self.bounds) else {
            return false;
        };
        slice.next_offset < bounds.end
    }

    /// Reads frames from the offset asked for on, unless `skip`; notes bounds and errors.
    async fn read(
        &mut self,
        shared: &Shared,
        output: &Output<'_>,
        isolation: Isolation,
        max_bytes: u64,
        skip: bool,
    ) {
        (self.slice, self.hole_end) = (None, None);
        let partition = match &self.found {
            Ok(partition) => Arc::clone(partition),
            Err(code) => {
                self.error_code = *code;
                return;
            }
        };
        if let Err(refusal) = shared.still_there(&partition) {
            return self.fail(shared, &refusal);
        }
        let bounds = partition.offsets();
        let end = match isolation {
            Isolation::Uncommitted => bounds.high_watermark,
            Isolation::Committed => bounds.stable_offset,
        };
        self.bounds = Some(Bounds {
            log_start_offset: bounds.log_start_offset,
            high_watermark: bounds.high_watermark,
            stable_offset: bounds.stable_offset,
            end,
        });
        // Before anything is read: what is forgotten after that is not read hot any more.
        self.aborted = match isolation {
            Isolation::Uncommitted => None,
            Isolation::Committed => Some(partition.hot().aborted_transactions()),
        };
        let from = match u64::try_from(self.fetch_offset).map(Offset) {
            Ok(from) if from >= bounds.log_start_offset && from <= bounds.log_end_offset => from,
            _ => {
                self.error_code = code::OFFSET_OUT_OF_RANGE;
                return;
            }
        };
        // Beyond it, but not beyond the log's end, lies what is being made durable, or is not decided.
        if skip || from >= end {
            return;
        }
        match output
            .lane
            .read_ready(&partition, from, end, max_bytes)
            .await
        {
            Ok(slice) if slice.is_empty() => {
                // No record follows, but offsets do: after a restart the log may go on behind a hole.
                self.hole_end = Some(slice.next_offset).filter(|next| *next > from);
            }
            Ok(slice) => self.slice = Some(slice),
            Err(refusal) => self.fail(shared, &refusal),
        }
    }

    fn fail(&mut self, shared: &Shared, refusal: &Refusal) {
        shared.counters.refuse(refusal.kind, 1);
        self.error_code = of_fetch(refusal.kind);
        self.slice = None;
        self.pieces = Vec::new();
    }
}

/// What a fetch waits for.
struct News {
    high_watermarks: Vec<watch::Receiver<Offset>>,
    deletions: watch::Receiver<u64>,
    deadline: Instant,
}

impl News {
    fn of(fetching: &Fetching<'_>, max_wait: Duration) -> Self {
        let shared = fetching.connection.shared;
        let partitions = fetching.parts.iter().flat_map(|part| &part.found);
        Self {
            high_watermarks: partitions.map(|partition| partition.subscribe()).collect(),
            deletions: shared.topics.deletions().subscribe(),
            deadline: Instant::now() + max_wait.min(shared.config.max_fetch_wait),
        }
    }

    fn mark_seen(&mut self) {
        for high_watermark in &mut self.high_watermarks {
            high_watermark.borrow_and_update();
        }
        self.deletions.borrow_and_update();
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Waits until there may be more to read, or no reason to wait any longer.
    async fn wait(&mut self, ending: &ShutdownSignal) {
        let watched = self.high_watermarks.iter_mut();
        let mut changes: FuturesUnordered<_> = watched.map(|watched| watched.changed()).collect();
        tokio::select! {
            Some(_) = changes.next() => {}
            _ = self.deletions.changed() => {}
            () = sleep_until(self.deadline) => {}
            () = ending.wait() => {}
        }
    }
}
