//! `basalt consume`: the records of one partition, in order.

use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use anyhow::Context as _;
use basalt_client::{Client, ConsumerConfig, Start};
use basalt_proto::{Frame, GroupName, Offset, PartitionId, TopicName, expand};
use clap::{Args, ValueEnum};

use super::ServerArg;
use super::position::{From, To, offset_of};
use crate::serve::Signals;

mod json;

/// A group's offset is committed at most this long after its records were printed.
const COMMIT_AFTER: Duration = Duration::from_millis(500);
const OUT_BYTES: usize = 256 << 10;

/// Arguments of `basalt consume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --to it follows the topic until Ctrl-C. Without --from it starts where the group committed
last, or at the earliest record. With --group, an offset is committed after its record was written
to stdout: after a crash the last records may be printed again, but none is left out. A group is a
cursor, not a team: two consumers of one group on one partition each get every record.

raw prints the payload and a line feed, so that a topic made of lines comes back byte for byte; a
null payload prints an empty line. json prints an object with offset, timestamp (ns since 1970),
key, headers and payload; bytes that are not UTF-8 are given in base64 under key_base64,
value_base64 and payload_base64. Records that were produced together in a batch frame are printed
one by one.

Examples:
  basalt consume flights --to end > all.ndjson
  basalt consume flights --from 5000 --to 5010 --format json
  basalt consume flights --from 2026-01-31T09:00:00Z
  basalt consume flights --group billing                     resumes where it stopped")]
pub(crate) struct ConsumeArgs {
    /// Topic.
    topic: TopicName,
    /// Partition.
    #[arg(long, value_name = "N", default_value_t = 0)]
    partition: u32,
    /// Where to start: `earliest`, `latest`, an offset, or a time (RFC 3339).
    #[arg(long, value_name = "WHERE")]
    from: Option<From>,
    /// Where to stop: `end` (the high watermark at the start), or the first offset that is not printed.
    #[arg(long, value_name = "WHERE")]
    to: Option<To>,
    /// Consumer group whose offset is committed.
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupName>,
    /// How a record is printed.
    #[arg(long, value_enum, default_value_t)]
    format: RecordFormat,
    #[command(flatten)]
    server: ServerArg,
}

/// `--format` of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordFormat {
    /// The payload and a line feed.
    #[default]
    Raw,
    /// One JSON object a line.
    Json,
}

pub(crate) async fn run(args: ConsumeArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let partition = PartitionId(args.partition);
    let what = || {
        format!(
            "cannot consume topic {}, partition {partition} at {}",
            args.topic, args.server.server
        )
    };
    let committed = match &args.group {
        Some(group) => client
            .committed(group, &args.topic, partition)
            .await
            .with_context(what)?,
        None => None,
    };
    let end = match args.to {
        Some(to) => Some(
            to.resolve(&client, &args.topic, partition)
                .await
                .with_context(what)?,
        ),
        None => None,
    };
    let start = match (args.from, committed) {
        (Some(from), _) => from.0,
        (None, Some(committed)) => Start::Offset(committed),
        (None, None) => Start::Earliest,
    };
    let start = offset_of(&client, &args.topic, partition, start)
        .await
        .with_context(what)?;
    let commits = args.group.map(|group| Commits {
        client: &client,
        group,
        topic: args.topic.clone(),
        partition,
        done: committed,
        next: None,
    });
    let consumer = Consumption {
        client: &client,
        topic: &args.topic,
        partition,
        start,
        end,
    };
    consumer
        .print(args.format, commits)
        .await
        .with_context(what)
}

/// What is read.
struct Consumption<'a> {
    client: &'a Client,
    topic: &'a TopicName,
    partition: PartitionId,
    start: Offset,
    end: Option<Offset>,
}

impl Consumption<'_> {
    async fn print(
        self,
        format: RecordFormat,
        mut commits: Option<Commits<'_>>,
    ) -> anyhow::Result<()> {
        let mut signals = Signals::new()?;
        let range = self.start..self.end.unwrap_or(Offset::MAX);
        if range.is_empty() {
            return Ok(());
        }
        let config = ConsumerConfig {
            end_offset: self.end,
            ..ConsumerConfig::default()
        };
        let mut consumer = self.client.consumer(
            self.topic.clone(),
            self.partition,
            Start::Offset(self.start),
            config,
        );
        let mut out = Out {
            out: io::BufWriter::with_capacity(OUT_BYTES, io::stdout()),
            format,
            line: Vec::new(),
        };
        let result = loop {
            let due = commits
                .as_ref()
                .is_some_and(|commits| commits.next.is_some());
            let fetched = tokio::select! {
                biased;
                _ = signals.next() => break Ok(()),
                () = tokio::time::sleep(COMMIT_AFTER), if due => {
                    if let Some(commits) = &mut commits {
                        commits.commit().await?;
                    }
                    continue;
                }
                fetched = consumer.next() => fetched,
            };
            let fetched = match fetched {
                Ok(Some(fetched)) => fetched,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
            };
            // Stdout may be a pipe that nobody reads for a while.
            let printed = tokio::task::block_in_place(|| -> anyhow::Result<()> {
                for frame in fetched.frames() {
                    out.frame(&frame?, &range)?;
                }
                Ok(out.out.flush()?)
            });
            match printed {
                Ok(()) => {}
                Err(error) if is_broken_pipe(&error) => break Ok(()),
                Err(error) => break Err(error),
            }
            if let Some(commits) = &mut commits {
                commits
                    .printed_below(fetched.next_offset.min(range.end))
                    .await?;
            }
        };
        // Whatever ended it: what was printed is committed.
        signals.exit_on_next();
        if let Some(commits) = &mut commits {
            commits.commit().await?;
        }
        result
    }
}

/// Offsets of one group, written behind the printing.
struct Commits<'a> {
    client: &'a Client,
    group: GroupName,
    topic: TopicName,
    partition: PartitionId,
    done: Option<Offset>,
    next: Option<(Offset, tokio::time::Instant)>,
}

impl Commits<'_> {
    async fn printed_below(&mut self, offset: Offset) -> anyhow::Result<()> {
        let waiting_since = self
            .next
            .map_or_else(tokio::time::Instant::now, |(_, since)| since);
        self.next = Some((offset, waiting_since));
        if waiting_since.elapsed() >= COMMIT_AFTER {
            self.commit().await
        } else {
            Ok(())
        }
    }

    async fn commit(&mut self) -> anyhow::Result<()> {
        let Some((offset, _)) = self.next.take() else {
            return Ok(());
        };
        if self.done == Some(offset) {
            return Ok(());
        }
        self.client
            .commit(&self.group, &self.topic, self.partition, offset)
            .await
            .with_context(|| format!("cannot commit offset {offset} of group {}", self.group))?;
        self.done = Some(offset);
        Ok(())
    }
}

/// Prints frames as records.
pub(crate) struct Out<W: Write> {
    pub(crate) out: W,
    format: RecordFormat,
    line: Vec<u8>,
}

impl<W: Write> Out<W> {
    pub(crate) fn raw(out: W) -> Self {
        Self {
            out,
            format: RecordFormat::Raw,
            line: Vec::new(),
        }
    }

    /// Prints the records of `frame` that lie in `range`. An opaque frame of many records is one; it is printed when any
    /// of its offsets lies there.
    pub(crate) fn frame(
        &mut self,
        frame: &Frame<'_>,
        range: &Range<Offset>,
    ) -> anyhow::Result<u64> {
        let mut count = 0;
        let flow = expand(frame, |record| {
            let end = record.offset.saturating_add(u64::from(record.record_count));
            if end <= range.start || record.offset >= range.end {
                return ControlFlow::Continue(());
            }
            count += 1;
            let written = match self.format {
                RecordFormat::Raw => self
                    .out
                    .write_all(record.payload.unwrap_or_default())
                    .and_then(|()| self.out.write_all(b"\n")),
                RecordFormat::Json => {
                    self.line.clear();
                    json::record(&record, &mut self.line)
                        .and_then(|()| self.out.write_all(&self.line))
                }
            };
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        });
        match flow.with_context(|| {
            format!("the batch at offset {} cannot be read", frame.header.offset)
        })? {
            ControlFlow::Continue(()) => Ok(count),
            ControlFlow::Break(error) => {
                Err(anyhow::Error::new(error).context("cannot write to stdout"))
            }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(frame: &Frame<'_>, range: Range<u64>) -> String {
        let mut out = Out::raw(Vec::new());
        out.frame(frame, &(Offset(range.start)..Offset(range.end)))
            .unwrap();
        String::from_utf8(out.out).unwrap()
    }

    #[test]
    fn a_frame_of_many_records_is_printed_where_it_covers_the_range() {
        let mut frame = Frame::record(1, b"k", b"opaque");
        frame.header.offset = Offset(10);
        frame.header.record_count = 5;
        assert_eq!(printed(&frame, 14..20), "opaque\n");
        assert_eq!(printed(&frame, 0..11), "opaque\n");
        assert_eq!(printed(&frame, 15..20), "");
        assert_eq!(printed(&frame, 0..10), "");
    }

    #[test]
    fn an_empty_payload_is_an_empty_line() {
        assert_eq!(printed(&Frame::record(1, b"", b""), 0..1), "\n");
    }
}
