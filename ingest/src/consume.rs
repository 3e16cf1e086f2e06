//! Native consumers: frames from the group's committed offset on, for ever.
//!
//! Rules of where it begins (ING-3):
//! - no committed offset: at offset 0, or the log start if that is later;
//! - before the log start: at the log start, since what was committed is gone by retention;
//! - beyond the high watermark (a topic made anew, a tail lost with a disk): at the high watermark, with a warning. So a
//!   record produced from now on is never passed over, and none that is there is sent again.
//!
//! The first frame sent is the one that holds the offset, whole, or the next one behind a gap. Batch frames are expanded,
//! since HermitMQ's clients know record frames only: headers are lost to them, null becomes empty, and a stamp that
//! nanoseconds cannot hold saturates.

use std::io;
use std::sync::Arc;

use basalt_columnar::{ReadError, TieredPartition};
use basalt_log::FrameSlice;
use basalt_proto::batch::{BatchReader, MAX_DECOMPRESSED_BYTES};
use basalt_proto::{
    ErrorKind, Frame, FrameHeader, FrameKind, FrameLimits, FrameWalk, GroupName, Offset,
    PartitionId, TopicName,
};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::warn;

use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::output::{Output, TURN_BYTES};
use crate::verify::Verifier;

/// Expanded records are sent whenever so many bytes of them have come together.
const EXPANDED_BYTES: usize = 256 << 10;
/// What a consumer may send although nothing is expected of it.
const MAX_IGNORED_BYTES: usize = 64 << 10;
const NS_PER_MS: u64 = 1_000_000;

pub(crate) async fn serve(
    connection: &Connection<'_>,
    group: &GroupName,
    topic: &TopicName,
    partition: PartitionId,
) -> Result<(), ConnectionError> {
    match Consumer::open(connection, group, topic, partition).await {
        Ok(consumer) => consumer.run().await,
        Err(refusal) => {
            connection.shared.counters.refuse(refusal.kind, 1);
            Err(refusal.into())
        }
    }
}

/// Where a group that committed `committed` begins (see the module's rules).
fn start_offset(
    committed: Option<Offset>,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> Offset {
    committed
        .unwrap_or(Offset::ZERO)
        .max(log_start_offset)
        .min(high_watermark.max(log_start_offset))
}

struct Consumer<'a> {
    connection: &'a Connection<'a>,
    partition: Arc<TieredPartition>,
    /// From before the partition was looked up.
    deletions: watch::Receiver<u64>,
    /// The next offset to send.
    position: Offset,
}

impl<'a> Consumer<'a> {
    /// Finds the partition and where to begin.
    ///
    /// # Errors
    /// A [`Refusal`]: unknown topic or partition, or a topic that could not be made.
    async fn open(
        connection: &'a Connection<'a>,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Result<Self, Refusal> {
        let shared = connection.shared;
        let (found, deletions) = shared.watched_partition(topic, partition).await?;
        let committed = shared.log.log().groups().committed(group, topic, partition);
        let committed = committed.map(|committed| committed.offset);
        let bounds = found.offsets();
        let start = start_offset(committed, bounds.log_start_offset, bounds.high_watermark);
        if let Some(committed) = committed.filter(|committed| *committed > bounds.high_watermark) {
            warn!(
                peer = %connection.peer, %group, %topic, %partition, %committed, resumed_at = %start,
                "the group's committed offset is beyond the end of the log"
            );
        }
        Ok(Self {
            connection,
            partition: found,
            deletions,
            position: start,
        })
    }

    async fn run(mut self) -> Result<(), ConnectionError> {
        let output = self.connection.output();
        let mut high_watermark = self.partition.subscribe();
        while !self.connection.shutdown.is_triggered() {
            // Seen before the read, so that what is appended after the read wakes the wait.
            high_watermark.borrow_and_update();
            let slice = self.read().await?;
            if !slice.is_empty() {
                self.send(&output, &slice).await?;
                self.position = self.position.max(slice.next_offset);
                tokio::task::yield_now().await;
                continue;
            }
            // There may be offsets that hold no record up to here.
            self.position = self.position.max(slice.next_offset);
            tokio::select! {
                biased;
                _ = high_watermark.changed() => {}
                _ = self.deletions.changed() => self.connection.shared.still_there(&self.partition)?,
                gone = peer_gone(self.connection.stream) => return gone,
                () = self.connection.shutdown.wait() => {}
            }
        }
        Ok(())
    }

    /// The next frames; none at the tail.
    async fn read(&mut self) -> Result<FrameSlice, ConnectionError> {
        loop {
            let lane = &self.connection.lane;
            let error = match lane
                .read(&self.partition, self.position, Offset(u64::MAX), TURN_BYTES)
                .await
            {
                Ok(slice) => return Ok(slice),
                Err(error) => error,
            };
            match error {
                // Retention has overtaken this consumer.
                ReadError::OutOfRange {
                    log_start_offset, ..
                } if self.position < log_start_offset => {
                    self.position = log_start_offset;
                }
                other => {
                    let refusal = Refusal::from(other);
                    self.connection.shared.counters.refuse(refusal.kind, 1);
                    return Err(refusal.into());
                }
            }
        }
    }

    async fn send(&self, output: &Output<'_>, slice: &FrameSlice) -> Result<(), ConnectionError> {
        if slice.has_batches {
            let verifier = &self.connection.shared.verifier;
            send_expanded(output, verifier, slice, self.position).await
        } else {
            output.send_file(slice).await
        }
    }
}

/// Returns once the peer has closed its side or failed. A consumer is heard of only at the tail: until then a dead
/// connection shows in sending, and one closed on the peer's side alone still gets what there is.
async fn peer_gone(stream: &TcpStream) -> Result<(), ConnectionError> {
    let mut ignored = [0; 1024];
    let mut ignored_bytes = 0;
    loop {
        stream.readable().await?;
        match stream.try_read(&mut ignored) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                ignored_bytes += count;
                if ignored_bytes > MAX_IGNORED_BYTES {
                    let message =
                        format!("a consumer sends nothing, but {ignored_bytes} bytes came");
                    return Err(Refusal::new(ErrorKind::InvalidRequest, message).into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends the frames of `slice` as record frames, from the record at `from` on.
async fn send_expanded(
    output: &Output<'_>,
    verifier: &Verifier,
    slice: &FrameSlice,
    from: Offset,
) -> Result<(), ConnectionError> {
    output.load(slice).await?;
    let bytes = slice.bytes();
    let mut walk = FrameWalk::new(bytes, FrameLimits::UNLIMITED);
    // Record frames in a row go out as they stand.
    let mut run_start = 0;
    loop {
        let frame_start = walk.position();
        let Some(frame) = walk.next() else { break };
        let frame = frame.map_err(|error| unreadable(slice.first_offset, &error))?;
        if frame.header.kind == FrameKind::Record {
            continue;
        }
        output.send_counted(&bytes[run_start..frame_start]).await?;
        send_batch(output, verifier, &frame, from).await?;
        run_start = walk.position();
    }
    output
        .send_counted(&bytes[run_start..walk.position()])
        .await
}

async fn send_batch(
    output: &Output<'_>,
    verifier: &Verifier,
    frame: &Frame<'_>,
    from: Offset,
) -> Result<(), ConnectionError> {
    let base = frame.header.offset;
    let reader = verifier
        .beside(|| BatchReader::open(frame.payload, MAX_DECOMPRESSED_BYTES))
        .await
        .map_err(|error| unreadable(base, &error))?;
    if reader.header().is_control() {
        return Ok(());
    }
    let mut out = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| unreadable(base, &error))?;
        let offset = base.saturating_add(u64::try_from(record.offset_delta).unwrap_or(0));
        if offset < from {
            continue;
        }
        let (key, payload) = (
            record.key.unwrap_or_default(),
            record.value.unwrap_or_default(),
        );
        let timestamp_ns =
            u64::try_from(record.timestamp_ms).map_or(0, |ms| ms.saturating_mul(NS_PER_MS));
        let header = FrameHeader {
            offset,
            ..Frame::record(timestamp_ns, key, payload).header
        };
        Frame {
            header,
            key,
            payload,
        }
        .encode_into(&mut out);
        if out.len() >= EXPANDED_BYTES {
            output.send_counted(&out).await?;
            out.clear();
        }
    }
    output.send_counted(&out).await
}

fn unreadable(offset: Offset, error: &dyn std::error::Error) -> Refusal {
    Refusal::new(
        ErrorKind::Corrupt,
        format!("the stored frame at or after offset {offset} cannot be read: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;
    use crate::ShutdownTrigger;
    use crate::read_ahead::Lane;
    use crate::tests::{patient, shared, stream_pair};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn deletion_between_opening_and_reading_is_not_missed() {
        let (_dir, shared) = shared(|_| {}).await;
        let (peer, stream) = stream_pair().await;
        let trigger = ShutdownTrigger::new();
        let shutdown = trigger.signal();
        let connection = Connection {
            stream: &stream,
            peer: peer.local_addr().unwrap(),
            shared: &shared,
            shutdown: &shutdown,
            lane: Lane::new(&shared.read_ahead),
        };
        let (group, topic) = (GroupName::new("g").unwrap(), TopicName::new("t").unwrap());
        let consumer = Consumer::open(&connection, &group, &topic, PartitionId(0)).await;
        let consumer = consumer.unwrap();
        shared.log.delete_topic(&topic).await.unwrap();
        shared.topics.deletions().send_modify(|count| *count += 1);
        match patient(consumer.run()).await {
            Err(ConnectionError::Refused(refusal)) => {
                assert_eq!(refusal.kind, ErrorKind::UnknownTopic);
            }
            other => panic!("not told: {other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn deletion_during_the_lookup_is_not_missed() {
        let (_dir, shared) = shared(|_| {}).await;
        let topic = TopicName::new("t").unwrap();
        let mut lookup = std::pin::pin!(shared.watched_partition(&topic, PartitionId(0)));
        // The topic is made on another thread.
        assert!(matches!(futures::poll!(&mut lookup), Poll::Pending));
        shared.topics.deletions().send_modify(|count| *count += 1);
        let (_, deletions) = lookup.await.unwrap();
        assert!(deletions.has_changed().unwrap());
    }

    #[test]
    fn start_follows_the_committed_offset_within_the_log() {
        let start =
            |committed: Option<u64>| start_offset(committed.map(Offset), Offset(50), Offset(60)).0;
        assert_eq!(start(None), 50);
        assert_eq!(start(Some(0)), 50);
        assert_eq!(start(Some(49)), 50);
        assert_eq!(start(Some(55)), 55);
        assert_eq!(start(Some(60)), 60);
        assert_eq!(start(Some(61)), 60);
        assert_eq!(start(Some(1000)), 60);
        assert_eq!(
            start_offset(Some(Offset(7)), Offset(5), Offset(5)),
            Offset(5)
        );
        assert_eq!(start_offset(None, Offset::ZERO, Offset::ZERO), Offset::ZERO);
    }
}
