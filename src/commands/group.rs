//! `basalt group`.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use basalt_client::GroupEntry;
use basalt_proto::{GroupName, PartitionId, TopicName};
use clap::{Args, Subcommand};

use super::ServerArg;
use super::position::{From, offset_of};
use crate::output::{Format, print_listing, say};

/// `basalt group ...`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  basalt group list
  basalt group describe billing --format json
  basalt group seek billing orders --to earliest
  basalt group seek billing orders --partition 2 --to 2026-01-31T09:00:00Z")]
pub(crate) enum GroupCommand {
    /// List groups.
    List(ListArgs),
    /// Show where a group stands in each partition.
    Describe(DescribeArgs),
    /// Move a group to another place of a topic; its consumers resume there when they next connect.
    Seek(SeekArgs),
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
    group: GroupName,
    /// How the listing is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, Args)]
pub(crate) struct SeekArgs {
    group: GroupName,
    topic: TopicName,
    /// Partition; every one of the topic without it.
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// Where to: `earliest`, `latest`, an offset, or a time (RFC 3339).
    #[arg(long, value_name = "WHERE")]
    to: From,
    #[command(flatten)]
    server: ServerArg,
}

pub(crate) async fn run(command: GroupCommand) -> anyhow::Result<()> {
    match command {
        GroupCommand::List(args) => list(args).await,
        GroupCommand::Describe(args) => describe(args).await,
        GroupCommand::Seek(args) => seek(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let entries = client
        .groups(None)
        .await
        .context("cannot list the groups")?;
    let mut groups: BTreeMap<&GroupName, (u32, u64)> = BTreeMap::new();
    for entry in &entries {
        let (partitions, lag) = groups.entry(&entry.group).or_default();
        *partitions += 1;
        *lag = lag.saturating_add(entry.lag_records());
    }
    print_listing(
        args.format,
        vec![
            ("group", strings(groups.keys().map(ToString::to_string))),
            (
                "partitions",
                Arc::new(UInt32Array::from_iter_values(
                    groups.values().map(|(partitions, _)| *partitions),
                )),
            ),
            (
                "lag_records",
                Arc::new(UInt64Array::from_iter_values(
                    groups.values().map(|(_, lag)| *lag),
                )),
            ),
        ],
    )
}

async fn describe(args: DescribeArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let entries = client
        .groups(Some(&args.group))
        .await
        .with_context(|| format!("cannot describe group {}", args.group))?;
    if entries.is_empty() {
        bail!(
            "there is no group {}: it has committed nothing (`basalt group list` shows them all)",
            args.group
        );
    }
    let numbers = |value: fn(&GroupEntry) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(entries.iter().map(value)))
    };
    print_listing(
        args.format,
        vec![
            (
                "group",
                strings(entries.iter().map(|entry| entry.group.to_string())),
            ),
            (
                "topic",
                strings(entries.iter().map(|entry| entry.topic.to_string())),
            ),
            (
                "partition",
                Arc::new(UInt32Array::from_iter_values(
                    entries.iter().map(|entry| entry.partition.0),
                )),
            ),
            ("committed", numbers(|entry| entry.committed.0)),
            ("high_watermark", numbers(|entry| entry.high_watermark.0)),
            ("lag_records", numbers(GroupEntry::lag_records)),
        ],
    )
}

async fn seek(args: SeekArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let what = || format!("cannot move group {} in topic {}", args.group, args.topic);
    let topics = client
        .metadata(std::slice::from_ref(&args.topic))
        .await
        .with_context(what)?;
    let Some(topic) = topics.first() else {
        bail!(
            "there is no topic {} (`basalt topic list` shows them all)",
            args.topic
        );
    };
    let partitions: Vec<PartitionId> = match args.partition {
        Some(partition) => vec![PartitionId(partition)],
        None => topic
            .partitions
            .iter()
            .map(|partition| partition.partition)
            .collect(),
    };
    for partition in partitions {
        let offset = offset_of(&client, &args.topic, partition, args.to.0)
            .await
            .with_context(what)?;
        let end = topic
            .partitions
            .iter()
            .find(|known| known.partition == partition)
            .map_or(offset, |known| known.log_end_offset);
        if offset > end {
            bail!(
                "offset {offset} is beyond the end {end} of topic {}, partition {partition}: a group there would read nothing",
                args.topic
            );
        }
        client
            .seek(&args.group, &args.topic, partition, offset)
            .await
            .with_context(what)?;
        say(&format!(
            "group {} is at offset {offset} of topic {}, partition {partition}",
            args.group, args.topic
        ))?;
    }
    Ok(())
}

fn strings(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}
