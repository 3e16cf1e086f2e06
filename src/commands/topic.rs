//! `basalt topic`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use basalt_client::TopicMetadata;
use basalt_proto::TopicName;
use basalt_schema::TopicSchema;
use clap::{Args, Subcommand, ValueEnum};

use super::{ServerArg, key_value, schema};
use crate::output::{Format, print_listing, say};
use crate::stopwatch::Stopwatch;

const SETTINGS_HELP: &str = "\
Settings of a topic (an empty value takes the server's default again):
  durability         fsync | os: what an acknowledgement promises
  segment_bytes      size at which a segment is sealed
  retention_bytes    bytes of a partition above which the oldest records go
  retention_age_ms   milliseconds after which a segment's records go
  hot_bytes          bytes of a partition that stay in hot segments
  hot_age_ms         milliseconds that a sealed segment stays hot
  shred_json         on | off: whether fields of JSON payloads become columns of cold files (--shred)
  cleanup_policy     delete | compact | compact,delete: whether retention applies, and whether of each key
                     only the latest record is sure to stay
  max_message_bytes  bytes of a payload, or of a whole record batch, above which it is refused
  delete_retention_ms, min_cleanable_dirty_ratio, min_compaction_lag_ms
                     of compacted topics: see docs/COMPACTION.md
  schema             what payloads are, and their columns in SQL; --schema FILE sets it from a file";

/// `basalt topic ...`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  basalt topic create orders --partitions 4 --config retention_age_ms=604800000
  basalt topic alter orders --schema schema.json
  basalt topic list --format json
  basalt topic cool orders --wait")]
pub(crate) enum TopicCommand {
    /// Create a topic.
    #[command(after_help = SETTINGS_HELP)]
    Create(CreateArgs),
    /// List topics.
    List(ListArgs),
    /// Show a topic's partitions and settings.
    Describe(DescribeArgs),
    /// Change a topic's settings; those not named stay.
    #[command(after_help = SETTINGS_HELP)]
    Alter(AlterArgs),
    /// Delete a topic with all its records.
    Delete(DeleteArgs),
    /// Seal a topic's segments and rewrite all that is sealed as Parquet.
    #[command(after_help = "\
Without --wait it returns when the segments are sealed and queued. With --wait everything that was
in the topic at the start is in Parquet when it returns, but for what lies behind the first record
of a Kafka transaction that is open; and a compacted topic is compacted.")]
    Cool(CoolArgs),
}

/// Whether a topic's payloads are shredded.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shred {
    On,
    Off,
    /// As the server's configuration says.
    Default,
}

/// `config` with what `--shred` says.
fn with_shred(mut config: Vec<(String, String)>, shred: Option<Shred>) -> Vec<(String, String)> {
    let value = shred.map(|shred| match shred {
        Shred::On => "on",
        Shred::Off => "off",
        Shred::Default => "",
    });
    config.extend(value.map(|value| ("shred_json".to_owned(), value.to_owned())));
    config
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    topic: TopicName,
    /// Partitions.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// A setting, any number of times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = key_value)]
    config: Vec<(String, String)>,
    /// What the payloads are, and their columns in SQL: `basalt schema infer` proposes such a file.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Whether fields of JSON payloads become columns of cold files.
    #[arg(long, value_enum)]
    shred: Option<Shred>,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// How the listing is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct DescribeArgs {
    topic: TopicName,
    /// How the listing is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct AlterArgs {
    topic: TopicName,
    /// A setting, any number of times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = key_value, required_unless_present_any = ["schema", "shred", "partitions"])]
    config: Vec<(String, String)>,
    /// Partitions that it has from now on: more than before. Records stay where they are, so a key may go elsewhere from now on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    partitions: Option<u32>,
    /// What the payloads are from now on, and their columns in SQL; records that are there already are read by it too.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Whether fields of JSON payloads become columns of cold files.
    #[arg(long, value_enum)]
    shred: Option<Shred>,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    topic: TopicName,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct CoolArgs {
    topic: TopicName,
    /// Return when the topic is entirely cold.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    server: ServerArg,
}

pub(crate) async fn run(command: TopicCommand) -> anyhow::Result<()> {
    match command {
        TopicCommand::Create(args) => create(args).await,
        TopicCommand::List(args) => list(args).await,
        TopicCommand::Describe(args) => describe(args).await,
        TopicCommand::Alter(args) => alter(args).await,
        TopicCommand::Delete(args) => delete(args).await,
        TopicCommand::Cool(args) => cool(args).await,
    }
}

async fn create(mut args: CreateArgs) -> anyhow::Result<()> {
    if let Some(file) = &args.schema {
        let text = schema::read_file(file)?.text();
        args.config.push((schema::SETTING.to_owned(), text));
    }
    let client = args.server.connect().await?;
    client
        .create_topic(
            &args.topic,
            args.partitions,
            with_shred(args.config, args.shred),
        )
        .await
        .with_context(|| format!("cannot create topic {}", args.topic))?;
    say(&format!(
        "created topic {} with {} partition(s)",
        args.topic, args.partitions
    ))
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let topics = client
        .metadata(&[])
        .await
        .context("cannot list the topics")?;
    let column = |value: fn(&basalt_client::PartitionMetadata) -> u64| -> ArrayRef {
        let sums = topics
            .iter()
            .map(|topic| topic.partitions.iter().map(value).sum::<u64>());
        Arc::new(UInt64Array::from_iter_values(sums))
    };
    let partitions = topics
        .iter()
        .map(|topic| u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX));
    print_listing(
        args.format,
        vec![
            (
                "topic",
                strings(topics.iter().map(|topic| topic.topic.to_string())),
            ),
            (
                "partitions",
                Arc::new(UInt32Array::from_iter_values(partitions)),
            ),
            (
                "records",
                column(|partition| {
                    partition
                        .high_watermark
                        .distance_from(partition.log_start_offset)
                }),
            ),
            ("hot_bytes", column(|partition| partition.hot_bytes)),
            ("cold_bytes", column(|partition| partition.cold_bytes)),
            ("config", strings(topics.iter().map(settings))),
            (
                "schema",
                strings(topics.iter().map(|topic| {
                    let text = schema::of_topic(topic);
                    text.as_deref().map(schema::summary).unwrap_or_default()
                })),
            ),
        ],
    )
}

async fn describe(args: DescribeArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let topics = client
        .metadata(std::slice::from_ref(&args.topic))
        .await
        .with_context(|| format!("cannot describe topic {}", args.topic))?;
    let Some(topic) = topics.first() else {
        bail!(
            "there is no topic {} (`basalt topic list` shows them all)",
            args.topic
        );
    };
    let column = |value: fn(&basalt_client::PartitionMetadata) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(
            topic.partitions.iter().map(value),
        ))
    };
    let schema = schema::of_topic(topic);
    // Too long for a cell; what reads the other formats has it in one.
    let shown = match (&schema, args.format) {
        (Some(text), Format::Table) => schema::summary(text),
        (text, _) => text.clone().unwrap_or_default(),
    };
    let every = |text: String| strings(topic.partitions.iter().map(|_| text.clone()));
    let numbers = topic
        .partitions
        .iter()
        .map(|partition| partition.partition.0);
    print_listing(
        args.format,
        vec![
            ("topic", every(topic.topic.to_string())),
            ("topic_id", every(format!("{:016x}", topic.topic_id))),
            (
                "partition",
                Arc::new(UInt32Array::from_iter_values(numbers)),
            ),
            (
                "log_start_offset",
                column(|partition| partition.log_start_offset.0),
            ),
            (
                "cold_end_offset",
                column(|partition| partition.cold_end_offset.0),
            ),
            (
                "high_watermark",
                column(|partition| partition.high_watermark.0),
            ),
            (
                "log_end_offset",
                column(|partition| partition.log_end_offset.0),
            ),
            ("hot_bytes", column(|partition| partition.hot_bytes)),
            ("cold_bytes", column(|partition| partition.cold_bytes)),
            ("config", every(settings(topic))),
            ("schema", every(shown)),
        ],
    )?;
    match schema.filter(|_| args.format == Format::Table) {
        // As it is, if it is not one that this program knows.
        Some(text) => say(&TopicSchema::parse(&text).map_or(text, |schema| schema.pretty_text())),
        None => Ok(()),
    }
}

async fn alter(mut args: AlterArgs) -> anyhow::Result<()> {
    let cannot = || format!("cannot alter topic {}", args.topic);
    let schema = args.schema.as_deref().map(schema::read_file).transpose()?;
    let client = args.server.connect().await?;
    let mut changes = Vec::new();
    if let Some(schema) = schema {
        let topics = client.metadata(std::slice::from_ref(&args.topic)).await;
        let topics = topics.with_context(cannot)?;
        let before = topics.first().and_then(schema::of_topic);
        changes = schema::changes(before.as_deref(), &schema);
        args.config
            .push((schema::SETTING.to_owned(), schema.text()));
    }
    let config = with_shred(args.config, args.shred);
    if !config.is_empty() {
        let altered = client.alter_topic(&args.topic, config).await;
        altered.with_context(cannot)?;
    }
    if let Some(partitions) = args.partitions {
        let added = client.add_partitions(&args.topic, partitions).await;
        added.with_context(cannot)?;
    }
    say(&format!("altered topic {}", args.topic))?;
    changes
        .iter()
        .try_for_each(|change| say(&format!("  {change}")))
}

async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    client
        .delete_topic(&args.topic)
        .await
        .with_context(|| format!("cannot delete topic {}", args.topic))?;
    say(&format!("deleted topic {}", args.topic))
}

async fn cool(args: CoolArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let took = Stopwatch::start();
    let report = client
        .cool_topic(&args.topic, args.wait)
        .await
        .with_context(|| format!("cannot cool topic {}", args.topic))?;
    if !args.wait {
        return say(&format!(
            "cooling topic {}: {} segment(s) sealed and queued",
            args.topic, report.segment_count
        ));
    }
    say(&format!(
        "cooled topic {}: {} segment(s), {} rows, {} bytes of frames into {} bytes of Parquet in {:.2} s",
        args.topic,
        report.segment_count,
        report.row_count,
        report.bytes_in,
        report.bytes_out,
        took.elapsed().as_secs_f64()
    ))
}

fn settings(topic: &TopicMetadata) -> String {
    let is_shown = |(key, value): &&(String, String)| !value.is_empty() && key != schema::SETTING;
    let pairs = topic.config.iter().filter(is_shown);
    pairs
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn strings(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}
