//! `basalt schema`, and what `basalt topic` does with schemas.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use basalt_client::{Client, PartitionMetadata, TopicMetadata};
use basalt_proto::session::{FetchRequest, NO_END_OFFSET, Start};
use basalt_proto::{Offset, TopicName, expand};
use basalt_schema::{Sample, TopicSchema, infer};
use clap::{Args, Subcommand};

use super::ServerArg;
use crate::output::say;

/// The setting that holds a schema.
pub(super) const SETTING: &str = "schema";

/// Bytes of frames asked for at once.
const FETCH_BYTES: u32 = 4 << 20;
/// How long one fetch may wait for frames that are known to be there.
const FETCH_WAIT_MS: u32 = 1_000;

/// `basalt schema ...`
#[derive(Debug, Subcommand)]
pub(crate) enum SchemaCommand {
    /// Propose a schema for a topic from its last records.
    #[command(after_help = "\
Prints a schema.json. Look it over, change it, and give it to the topic:
  basalt schema infer flights > schema.json
  basalt topic alter flights --schema schema.json")]
    Infer(InferArgs),
    /// Read a schema file and print it with everything written out.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct InferArgs {
    topic: TopicName,
    /// How many of the topic's last records to look at.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    records: u64,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The file.
    file: PathBuf,
}

pub(crate) async fn run(command: SchemaCommand) -> anyhow::Result<()> {
    match command {
        SchemaCommand::Infer(args) => {
            let client = args.server.connect().await?;
            let schema = inferred(&client, &args.topic, args.records)
                .await
                .with_context(|| format!("cannot infer a schema for topic {}", args.topic))?;
            say(&schema.pretty_text())
        }
        SchemaCommand::Check(args) => say(&read_file(&args.file)?.pretty_text()),
    }
}

/// The schema in a file.
pub(super) fn read_file(file: &Path) -> anyhow::Result<TopicSchema> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the schema file {}", file.display()))?;
    TopicSchema::parse(&text).with_context(|| format!("in {}", file.display()))
}

/// The schema among a topic's settings. One that cannot be read is left as it is.
pub(super) fn of_topic(topic: &TopicMetadata) -> Option<String> {
    let setting = topic.config.iter().find(|(key, _)| key == SETTING);
    setting
        .map(|(_, text)| text.clone())
        .filter(|text| !text.is_empty())
}

/// `json, 5 columns`.
pub(super) fn summary(text: &str) -> String {
    match TopicSchema::parse(text) {
        Ok(schema) => format!(
            "{}, {} columns",
            schema.format().name(),
            schema.columns().len()
        ),
        Err(_) => "unknown to this program".to_owned(),
    }
}

/// What a schema changes for records that are there already, a line each.
pub(super) fn changes(old: Option<&str>, new: &TopicSchema) -> Vec<String> {
    let Some(old) = old.and_then(|text| TopicSchema::parse(text).ok()) else {
        return Vec::new();
    };
    let changes = new.changes_since(&old);
    let mut lines = Vec::new();
    if changes.encoding {
        lines.push("payloads are read in another way".to_owned());
    }
    let names = |what: &str, names: &[String]| format!("{what}: {}", names.join(", "));
    if !changes.added.is_empty() {
        lines.push(names("added", &changes.added));
    }
    if !changes.removed.is_empty() {
        lines.push(names("removed", &changes.removed));
    }
    for (name, change) in &changes.changed {
        lines.push(format!("{name}: {change}"));
    }
    if !changes.is_additive() {
        lines.push("records that do not fit it have NULL columns and say so in _error; nothing is rewritten".to_owned());
    }
    lines
}

/// Looks at the topic's last `records`, as many of each partition.
async fn inferred(client: &Client, topic: &TopicName, records: u64) -> anyhow::Result<TopicSchema> {
    let topics = client.metadata(std::slice::from_ref(topic)).await?;
    let Some(found) = topics.first() else {
        bail!("there is no such topic");
    };
    let used =
        |partition: &&PartitionMetadata| partition.high_watermark > partition.log_start_offset;
    let partitions: Vec<_> = found.partitions.iter().filter(used).collect();
    let share = records.div_ceil(u64::try_from(partitions.len().max(1)).unwrap_or(u64::MAX));
    let mut payloads = Payloads::default();
    for partition in partitions {
        let end = partition.high_watermark;
        let start = Offset(end.0.saturating_sub(share)).max(partition.log_start_offset);
        read_payloads(client, topic, partition, start, &mut payloads).await?;
    }
    if payloads.samples.is_empty() {
        bail!("it holds no records");
    }
    Ok(infer(payloads.samples())?)
}

/// Payloads of records, and how many records each stands for.
#[derive(Default)]
struct Payloads {
    bytes: Vec<u8>,
    samples: Vec<(Range<usize>, u64)>,
}

impl Payloads {
    fn push(&mut self, payload: &[u8], record_count: u64) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.samples.push((start..self.bytes.len(), record_count));
    }

    fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        self.samples.iter().map(|(range, record_count)| Sample {
            payload: &self.bytes[range.clone()],
            record_count: *record_count,
        })
    }
}

async fn read_payloads(
    client: &Client,
    topic: &TopicName,
    partition: &PartitionMetadata,
    start: Offset,
    payloads: &mut Payloads,
) -> anyhow::Result<()> {
    let mut next = start;
    while next < partition.high_watermark {
        let fetched = client
            .fetch(FetchRequest {
                topic: topic.clone(),
                partition: partition.partition,
                start: Start::Offset(next),
                max_bytes: FETCH_BYTES,
                min_bytes: 1,
                max_wait_ms: FETCH_WAIT_MS,
                end_offset: NO_END_OFFSET,
            })
            .await?;
        for frame in fetched.frames() {
            let frame = frame.context("the server sent a frame that cannot be read")?;
            let _ = expand(&frame, |record| {
                let payload = record.payload.unwrap_or_default();
                payloads.push(payload, record.record_count.into());
                ControlFlow::<()>::Continue(())
            })
            .context("the server sent a batch that cannot be read")?;
        }
        // What was asked for may end before the end if records were deleted meanwhile.
        if fetched.next_offset <= next {
            break;
        }
        next = fetched.next_offset;
    }
    Ok(())
}
