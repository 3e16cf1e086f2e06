//! `basalt demo`: the whole path on real data, in a temporary folder, with every byte verified on the way.

mod queries;
mod verify;

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, ensure};
use basalt_client::{AckLevel, Client, ProducerConfig};
use basalt_proto::{Offset, PartitionId, TopicName};
use clap::Args;

use super::ServerArg;
use crate::config::Config;
use crate::input::Source;
use crate::output::say;
use crate::progress::{Progress, rate};
use crate::serve::{Instance, Signals};
use crate::stopwatch::Stopwatch;

/// The sample; its origin and licence are told in examples/README.md.
const SAMPLE: &[u8] = include_bytes!("../../examples/flights.ndjson");
const TOPIC: &str = "flights";
const PARTITION: PartitionId = PartitionId(0);
/// This part of the sample is cooled; the rest arrives afterwards and is still hot when the queries run.
const COLD_PART: (usize, usize) = (4, 5);

/// Arguments of `basalt demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
It needs no network and no files, and leaves nothing behind. To go on from there:
  basalt serve
  basalt produce flights examples/flights.ndjson
  basalt sql \"SELECT _payload->>'dest' AS dest, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC LIMIT 10\"")]
pub(crate) struct DemoArgs {}

pub(crate) async fn run(_args: &DemoArgs) -> anyhow::Result<()> {
    let took = Stopwatch::start();
    let mut signals = Signals::new()?;
    let folder = tempfile::Builder::new()
        .prefix("basalt-demo-")
        .tempdir()
        .context("cannot make a temporary folder (TMPDIR names another place for it)")?;
    let path = folder.path().to_owned();
    let shown = tokio::select! {
        shown = show(&path) => shown,
        (name, _) = signals.next() => Err(anyhow::anyhow!("{name}: the demo was stopped")),
    };
    signals.exit_on_next();
    let cleaned = Stopwatch::start();
    let removed = folder
        .close()
        .with_context(|| format!("cannot remove {}", path.display()));
    shown?;
    removed?;
    step(
        9,
        "Clean up",
        cleaned,
        &format!("{} is gone", path.display()),
    )?;
    say(&format!(
        "\nEvery byte came back as it was produced: hot, from Parquet, and across the seam. In all {:.1} s.\n\
         For a server of your own: basalt serve   (see README.md for what to paste next)",
        took.elapsed().as_secs_f64()
    ))
}

/// A server that is stopped, whatever happens to the steps in between.
async fn show(folder: &Path) -> anyhow::Result<()> {
    say(&format!(
        "{} flights out of New York in 2013 ({} bytes, in this binary). No network but 127.0.0.1; data in {}.\n",
        SAMPLE.iter().filter(|byte| **byte == b'\n').count(),
        SAMPLE.len(),
        folder.display()
    ))?;
    let took = Stopwatch::start();
    let mut config = Config {
        data_dir: folder.join("data"),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        ..Config::default()
    };
    // Small segments: the demo is to cool several.
    config.log.segment_bytes = 512 << 10;
    let cold_dir = config.cold_dir();
    let instance = Instance::start(config).await?;
    let address = instance
        .addresses()
        .first()
        .context("the server has no address")?
        .to_string();
    step(
        1,
        "Server",
        took,
        &format!("native protocol, Flight SQL and HTTP on {address}"),
    )?;
    let steps = steps(&ServerArg::of(address), &instance, &cold_dir).await;
    let stopped = instance.stop().await;
    steps.and(stopped)
}

async fn steps(server: &ServerArg, instance: &Instance, cold_dir: &Path) -> anyhow::Result<()> {
    let topic = TopicName::new(TOPIC)?;
    let client = server.connect().await?;
    let (early, late) = SAMPLE.split_at(line_end_near(SAMPLE.len() * COLD_PART.0 / COLD_PART.1));

    let took = Stopwatch::start();
    let sent = produce(&client, &topic, early).await?;
    step(
        2,
        "Produce",
        took,
        &format!("{sent}; each acknowledged when it was on disk"),
    )?;

    let took = Stopwatch::start();
    let before = instance.counters().snapshot();
    let replay = verify::replay(&client, &topic, PARTITION, early).await?;
    let after = instance.counters().snapshot();
    let sendfile = after.bytes_sendfile - before.bytes_sendfile;
    let copied = after.bytes_copied - before.bytes_copied;
    step(
        3,
        "Consume",
        took,
        &format!("{replay}; {sendfile} bytes of frames by sendfile, {copied} copied"),
    )?;

    let took = Stopwatch::start();
    let report = client
        .cool_topic(&topic, true)
        .await
        .context("cannot cool the topic")?;
    let files = parquet_files(cold_dir);
    ensure!(
        files > 0,
        "cooling left no Parquet file under {}",
        cold_dir.display()
    );
    let ratio = report.bytes_in as f64 / report.bytes_out.max(1) as f64;
    step(
        4,
        "Cool",
        took,
        &format!(
            "{} segments are now {files} Parquet files: {} rows, {} bytes -> {} bytes ({ratio:.1} : 1)",
            report.segment_count, report.row_count, report.bytes_in, report.bytes_out
        ),
    )?;

    let took = Stopwatch::start();
    let replay = verify::replay(&client, &topic, PARTITION, early).await?;
    step(
        5,
        "Replay",
        took,
        &format!("{replay}, rebuilt from Parquet"),
    )?;

    let took = Stopwatch::start();
    let sent = produce(&client, &topic, late).await?;
    step(6, "Produce", took, &format!("{sent}; these stay hot"))?;

    let took = Stopwatch::start();
    let replay = verify::replay(&client, &topic, PARTITION, SAMPLE).await?;
    let seam = seam(&client, &topic).await?;
    step(
        7,
        "Replay",
        took,
        &format!("{replay}, across the seam at offset {seam}"),
    )?;

    queries::run(server, SAMPLE).await
}

async fn produce(
    client: &Client,
    topic: &TopicName,
    lines: &'static [u8],
) -> anyhow::Result<String> {
    let config = ProducerConfig {
        ack: AckLevel::Fsync,
        ..ProducerConfig::default()
    };
    let producer = client.producer(topic.clone(), PARTITION, config);
    let mut progress = Progress::new("produce", None, true);
    super::produce::produce(producer, Source::Embedded(lines), None, &mut progress).await?;
    Ok(rate(
        progress.records(),
        progress.bytes(),
        progress.elapsed(),
    ))
}

/// Where hot and cold meet.
async fn seam(client: &Client, topic: &TopicName) -> anyhow::Result<Offset> {
    let topics = client.metadata(std::slice::from_ref(topic)).await?;
    let partition = topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .context("the topic has vanished")?;
    ensure!(
        Offset::ZERO < partition.cold_end_offset
            && partition.cold_end_offset < partition.high_watermark,
        "the topic is not half hot and half cold: {partition:?}"
    );
    Ok(partition.cold_end_offset)
}

/// The end of the line that `position` lies in.
fn line_end_near(position: usize) -> usize {
    SAMPLE[position..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(SAMPLE.len(), |at| position + at + 1)
}

fn parquet_files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .map(|path| {
            if path.is_dir() {
                parquet_files(&path)
            } else {
                usize::from(path.extension() == Some("parquet".as_ref()))
            }
        })
        .sum()
}

fn step(number: u32, name: &str, took: Stopwatch, what: &str) -> anyhow::Result<()> {
    say(&format!(
        "{number}. {name:<8} {:>6.0} ms  {what}",
        took.elapsed().as_secs_f64() * 1e3
    ))
}
