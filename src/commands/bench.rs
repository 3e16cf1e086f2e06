//! `basalt bench`: measures a running server with made records, and says how many of them it verified.
//!
//! Records are made from their number alone, so that every run sends the same bytes. Latency is measured from the moment a
//! record was handed to the client, or, with `--rate`, from the moment at which it was due (open loop: a server that stalls
//! does not slow the clock that measures it).

mod load;
mod read;
mod report;

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use basalt_client::Client;
use basalt_proto::TopicName;
use clap::{Args, Subcommand};

use super::ServerArg;
use super::produce::AckArg;
use crate::serve::Signals;
use report::Report;

/// `basalt bench ...`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Each ends with one JSON line on stdout: records_per_s, mb_per_s (frames, 10^6 bytes), p50_us,
p99_us, p999_us (null where nothing is waited for) and the counts expected, seen and verified.
Exit code 1 if a record is missing or wrong. Client and server share the machine's cores; use a
release build.

Examples:
  basalt bench produce --records 1000000 --payload 100 --connections 4
  basalt bench consume --records 1000000
  basalt bench e2e --rate 1000 --records 10000")]
pub(crate) enum BenchCommand {
    /// Append records; latency is from handing over to acknowledgement.
    Produce(BenchArgs),
    /// Read records from the earliest on; they are appended first unless --topic names some.
    Consume(BenchArgs),
    /// Append and read at once; latency is from handing over to arrival at the reader.
    E2e(BenchArgs),
}

/// Arguments of every bench.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// Bytes of a record's payload.
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=16 << 20))]
    payload: u32,
    /// Records in all.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Connections; each has a partition of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Records per second in all, open loop; as fast as possible without it.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// When a record counts as stored [default: what the topic says].
    #[arg(long, value_enum)]
    ack: Option<AckArg>,
    /// Topic to use and to keep; without it one is made and deleted.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<TopicName>,
    #[command(flatten)]
    server: ServerArg,
}

impl BenchArgs {
    /// Records of the connection with this number: the first ones take what does not divide.
    fn records_of(&self, connection: u32) -> u64 {
        let connections = u64::from(self.connections);
        self.records / connections + u64::from(u64::from(connection) < self.records % connections)
    }
}

pub(crate) async fn run(command: BenchCommand) -> anyhow::Result<()> {
    let (BenchCommand::Produce(args) | BenchCommand::Consume(args) | BenchCommand::E2e(args)) =
        &command;
    let args = Arc::new(args.clone());
    let client = args.server.connect().await?;
    let made = args.topic.is_none();
    let topic = match &args.topic {
        Some(topic) => topic.clone(),
        None => make_topic(&client, &args).await?,
    };
    let mut signals = Signals::new()?;
    let result = tokio::select! {
        report = measure(&command, &args, &client, &topic) => report,
        (name, _) = signals.next() => Err(anyhow::anyhow!("{name}: the bench was stopped")),
    };
    if made {
        client
            .delete_topic(&topic)
            .await
            .with_context(|| format!("cannot delete the bench's topic {topic}"))?;
    }
    let report = result?;
    report.print()?;
    ensure!(
        report.is_complete(),
        "records are missing or wrong: see the counts above"
    );
    Ok(())
}

async fn make_topic(client: &Client, args: &BenchArgs) -> anyhow::Result<TopicName> {
    let name = format!(
        "basalt-bench-{}-{}",
        std::process::id(),
        crate::stopwatch::wall_clock_ns()
    );
    let topic = TopicName::new(&name).context("the bench's topic has no valid name")?;
    client
        .create_topic(&topic, args.connections, Vec::new())
        .await
        .with_context(|| format!("cannot create the bench's topic {topic}"))?;
    Ok(topic)
}

async fn measure(
    command: &BenchCommand,
    args: &Arc<BenchArgs>,
    client: &Client,
    topic: &TopicName,
) -> anyhow::Result<Report> {
    match command {
        BenchCommand::Produce(_) => load::produce(args, client, topic).await,
        BenchCommand::Consume(_) => {
            if args.topic.is_none() {
                let unpaced = Arc::new(BenchArgs {
                    rate: None,
                    ..BenchArgs::clone(args)
                });
                load::produce(&unpaced, client, topic).await?;
            }
            read::consume(args, client, topic).await
        }
        BenchCommand::E2e(_) => read::end_to_end(args, client, topic).await,
    }
}
