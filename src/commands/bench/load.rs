//! The producing side: threads that hand records over, tasks that wait for their acknowledgements.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use basalt_client::{Client, Delivery, Producer, ProducerConfig, RecordToSend, Start};
use basalt_proto::{Offset, PartitionId, TopicName};
use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::report::{Report, histogram};
use super::{AckArg, BenchArgs};
use crate::commands::position::offset_of;
use crate::commands::produce::ack_level;
use crate::stopwatch::{Stopwatch, wall_clock_ns};

/// Deliveries that may wait to be looked at.
const DELIVERIES_AHEAD: usize = 65_536;

/// The payload of a record: its number, when it was due (ns since the start), then bytes that follow from its number.
pub(super) fn payload(number: u64, due_ns: u64, payload_bytes: u32) -> Bytes {
    let mut bytes = Vec::with_capacity(payload_bytes as usize + 8);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&due_ns.to_be_bytes());
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < payload_bytes as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_be_bytes());
    }
    bytes.truncate(payload_bytes as usize);
    bytes.into()
}

/// The number and due time of a payload, if its other bytes are those that belong to it.
pub(super) fn parse_payload(bytes: &[u8], payload_bytes: u32) -> Option<(u64, u64)> {
    let number = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
    let due_ns = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
    (payload(number, due_ns, payload_bytes) == bytes).then_some((number, due_ns))
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sends this connection's records, each when it is due, from a thread that may sleep precisely.
pub(super) fn send(
    args: &BenchArgs,
    connection: u32,
    producer: &Producer,
    started: Stopwatch,
    deliveries: Option<&mpsc::Sender<(Delivery, u64)>>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Handle::current();
    // Each connection carries its share of the rate, and they take turns.
    let interval = args
        .rate
        .map(|rate| f64::from(args.connections) / rate as f64);
    let phase = interval.map_or(0.0, |interval| {
        interval * f64::from(connection) / f64::from(args.connections)
    });
    for number in 0..args.records_of(connection) {
        let due =
            interval.map(|interval| Duration::from_secs_f64(phase + interval * number as f64));
        if let Some(early) = due.and_then(|due| due.checked_sub(started.elapsed())) {
            std::thread::sleep(early);
        }
        let due_ns = nanoseconds(due.unwrap_or_else(|| started.elapsed()));
        let payload = payload(number, due_ns, args.payload);
        let record = RecordToSend {
            timestamp_ns: wall_clock_ns(),
            key: None,
            payload,
        };
        let delivery = runtime.block_on(producer.send(record))?;
        if let Some(deliveries) = deliveries {
            // The other side ends early only with an error of its own, which is the one to report.
            let _ = deliveries.blocking_send((delivery, due_ns));
        }
    }
    runtime.block_on(producer.flush())?;
    Ok(())
}

pub(super) fn producer(
    args: &BenchArgs,
    client: &Client,
    topic: &TopicName,
    partition: u32,
) -> Producer {
    let mut config = ProducerConfig {
        ack: ack_level(args.ack),
        ..ProducerConfig::default()
    };
    if args.rate.is_some() {
        // What is measured is the way through the server, not a wait for company.
        config.linger = Duration::ZERO;
    }
    client.producer(topic.clone(), PartitionId(partition), config)
}

pub(super) async fn produce(
    args: &Arc<BenchArgs>,
    client: &Client,
    topic: &TopicName,
) -> anyhow::Result<Report> {
    let stored_before = stored(args, client, topic).await?;
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(args.server.connect().await?);
    }
    let started = Stopwatch::start();
    let mut senders = JoinSet::new();
    let mut waiters = JoinSet::new();
    for (connection, client) in (0..args.connections).zip(clients) {
        let producer = producer(args, &client, topic, connection);
        let (sender, receiver) = mpsc::channel(DELIVERIES_AHEAD);
        let args = Arc::clone(args);
        // Without acknowledgements there is nothing to wait for.
        let waits = args.ack != Some(AckArg::None);
        senders.spawn_blocking(move || {
            let sent = send(
                &args,
                connection,
                &producer,
                started,
                waits.then_some(&sender),
            );
            drop(client);
            sent
        });
        if waits {
            waiters.spawn(wait(receiver, started));
        }
    }
    let mut latencies = histogram()?;
    let mut acknowledged = 0;
    while let Some(sent) = senders.join_next().await {
        sent.context("a sender was interrupted")??;
    }
    while let Some(waited) = waiters.join_next().await {
        let part = waited.context("a waiter was interrupted")??;
        acknowledged += part.len();
        latencies.add(part)?;
    }
    let elapsed = started.elapsed();
    let verified = stored(args, client, topic)
        .await?
        .saturating_sub(stored_before);
    let waited = args.ack != Some(AckArg::None);
    Ok(Report {
        bench: "produce",
        args: BenchArgs::clone(args),
        elapsed,
        expected: args.records,
        seen: if waited { acknowledged } else { args.records },
        verified,
        payload_bytes: args.records * u64::from(args.payload),
        latencies: waited.then_some(latencies),
    })
}

async fn wait(
    mut deliveries: mpsc::Receiver<(Delivery, u64)>,
    started: Stopwatch,
) -> anyhow::Result<Histogram<u64>> {
    let mut latencies = histogram()?;
    while let Some((delivery, due_ns)) = deliveries.recv().await {
        delivery.await?;
        latencies.record(nanoseconds(started.elapsed()).saturating_sub(due_ns).max(1))?;
    }
    Ok(latencies)
}

/// The high watermark of each partition that the bench uses.
pub(super) async fn ends(
    args: &BenchArgs,
    client: &Client,
    topic: &TopicName,
) -> anyhow::Result<Vec<Offset>> {
    let mut ends = Vec::new();
    for partition in 0..args.connections {
        ends.push(offset_of(client, topic, PartitionId(partition), Start::Latest).await?);
    }
    Ok(ends)
}

/// Offsets that were given out in the partitions that the bench uses. Acknowledged at a weaker level than the topic's, a
/// record is stored before it is below the high watermark.
async fn stored(args: &BenchArgs, client: &Client, topic: &TopicName) -> anyhow::Result<u64> {
    let topics = client.metadata(std::slice::from_ref(topic)).await?;
    let partitions = topics.iter().flat_map(|topic| &topic.partitions);
    let used = partitions.filter(|partition| partition.partition.0 < args.connections);
    Ok(used.map(|partition| partition.log_end_offset.0).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_recognised_and_every_flipped_bit_is_not() {
        for payload_bytes in [16, 17, 24, 100] {
            let bytes = payload(7, 9, payload_bytes);
            assert_eq!(bytes.len(), payload_bytes as usize);
            assert_eq!(parse_payload(&bytes, payload_bytes), Some((7, 9)));
            for bit in 128..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(parse_payload(&damaged, payload_bytes), None);
            }
            assert_eq!(parse_payload(&bytes[1..], payload_bytes), None);
        }
    }
}
