//! The reading side.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use basalt_client::{Client, Consumer, ConsumerConfig, Start};
use basalt_proto::{Offset, PartitionId, TopicName};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::BenchArgs;
use super::load::{ends, nanoseconds, parse_payload, producer, send};
use super::report::{Report, histogram};
use crate::commands::position::offset_of;
use crate::stopwatch::Stopwatch;

/// What one reader found.
struct Found {
    records: u64,
    payload_bytes: u64,
    verified: u64,
    latencies: Option<Histogram<u64>>,
}

pub(super) async fn consume(
    args: &Arc<BenchArgs>,
    client: &Client,
    topic: &TopicName,
) -> anyhow::Result<Report> {
    let ends = ends(args, client, topic).await?;
    let mut expected = 0;
    let mut readers = Vec::new();
    for (partition, end) in (0..args.connections).map(PartitionId).zip(ends) {
        let start = offset_of(client, topic, partition, Start::Earliest).await?;
        expected += end.distance_from(start);
        if start < end {
            readers.push((args.server.connect().await?, partition, start, end));
        }
    }
    let started = Stopwatch::start();
    let mut tasks = JoinSet::new();
    // Records of a topic that somebody else wrote are checked for their offsets only.
    let payload_bytes = args.topic.is_none().then_some(args.payload);
    for (client, partition, start, end) in readers {
        let config = ConsumerConfig {
            end_offset: Some(end),
            ..ConsumerConfig::default()
        };
        let consumer = client.consumer(topic.clone(), partition, Start::Offset(start), config);
        tasks.spawn(async move {
            let found = read(consumer, start, end, payload_bytes, None).await;
            drop(client);
            found
        });
    }
    let found = join(tasks).await?;
    Ok(report("consume", args, started, expected, found))
}

pub(super) async fn end_to_end(
    args: &Arc<BenchArgs>,
    client: &Client,
    topic: &TopicName,
) -> anyhow::Result<Report> {
    let starts = ends(args, client, topic).await?;
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push((args.server.connect().await?, args.server.connect().await?));
    }
    let started = Stopwatch::start();
    let mut readers = JoinSet::new();
    let mut senders = JoinSet::new();
    for ((connection, start), (writing, reading)) in (0..args.connections).zip(starts).zip(clients)
    {
        let end = start.saturating_add(args.records_of(connection));
        if start == end {
            continue;
        }
        let config = ConsumerConfig {
            end_offset: Some(end),
            ..ConsumerConfig::default()
        };
        let consumer = reading.consumer(
            topic.clone(),
            PartitionId(connection),
            Start::Offset(start),
            config,
        );
        let payload_bytes = Some(args.payload);
        readers.spawn(async move {
            let found = read(consumer, start, end, payload_bytes, Some(started)).await;
            drop(reading);
            found
        });
        let producer = producer(args, &writing, topic, connection);
        let args = Arc::clone(args);
        senders.spawn_blocking(move || {
            let sent = send(&args, connection, &producer, started, None);
            drop(writing);
            sent
        });
    }
    // A sender that fails must not leave its reader waiting.
    while let Some(sent) = senders.join_next().await {
        sent.context("a sender was interrupted")??;
    }
    let found = join(readers).await?;
    Ok(report("e2e", args, started, args.records, found))
}

/// Reads [start, end) and checks that every offset is there, in order, and, where the bench made them, every byte.
async fn read(
    mut consumer: Consumer,
    start: Offset,
    end: Offset,
    payload_bytes: Option<u32>,
    started: Option<Stopwatch>,
) -> anyhow::Result<Found> {
    let mut found = Found {
        records: 0,
        payload_bytes: 0,
        verified: 0,
        latencies: if started.is_some() {
            Some(histogram()?)
        } else {
            None
        },
    };
    let mut next = start;
    while next < end {
        let Some(fetched) = consumer.next().await? else {
            bail!("the records ended at offset {next}, before {end}");
        };
        let arrived_ns = started.map(|started| nanoseconds(started.elapsed()));
        for frame in fetched.frames() {
            let frame = frame?;
            let count = u64::from(frame.header.logical_count());
            found.records += count;
            found.payload_bytes += frame.payload.len() as u64;
            let made = match payload_bytes {
                Some(payload_bytes) => parse_payload(frame.payload, payload_bytes)
                    .filter(|(number, _)| *number == next.distance_from(start)),
                None => Some((0, 0)),
            };
            if frame.header.offset == next && made.is_some() {
                found.verified += count;
            }
            if let (Some((_, due_ns)), Some(arrived_ns), Some(latencies)) =
                (made, arrived_ns, &mut found.latencies)
            {
                latencies.record(arrived_ns.saturating_sub(due_ns).max(1))?;
            }
            next = frame.header.end_offset();
        }
    }
    Ok(found)
}

async fn join(mut tasks: JoinSet<anyhow::Result<Found>>) -> anyhow::Result<Vec<Found>> {
    let mut all = Vec::new();
    while let Some(found) = tasks.join_next().await {
        all.push(found.context("a reader was interrupted")??);
    }
    Ok(all)
}

fn report(
    bench: &'static str,
    args: &Arc<BenchArgs>,
    started: Stopwatch,
    expected: u64,
    found: Vec<Found>,
) -> Report {
    let mut report = Report {
        bench,
        args: BenchArgs::clone(args),
        elapsed: started.elapsed(),
        expected,
        seen: 0,
        verified: 0,
        payload_bytes: 0,
        latencies: None,
    };
    for part in found {
        report.seen += part.records;
        report.verified += part.verified;
        report.payload_bytes += part.payload_bytes;
        match (&mut report.latencies, part.latencies) {
            // Both have three digits and grow as needed: adding cannot fail.
            (Some(all), Some(part)) => all.add(part).unwrap_or_default(),
            (all @ None, part) => *all = part,
            (Some(_), None) => {}
        }
    }
    report
}
