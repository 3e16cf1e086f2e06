//! The command line of a load, shared by `basalt bench` and the example of this crate.

use std::path::PathBuf;
use std::time::Duration;

use basalt_proto::TopicName;
use basalt_proto::session::AckLevel;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::limits::{LimitsArgs, LimitsCommand};
use crate::payload::PayloadSize;
use crate::verify::Verify;

/// Records of a request, unless their bytes come to more than [`DEFAULT_BATCH_BYTES`].
const DEFAULT_BATCH: u32 = 1000;
const DEFAULT_BATCH_BYTES: f64 = 256.0 * 1024.0;
const DEFAULT_RECORDS: u64 = 100_000;

/// What `basalt bench` can do.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = "\
Each ends with one JSON line on stdout: records_per_s, mb_per_s (frames, 10^6 bytes), p50_us to
max_us (null where nothing is waited for), the counts expected, seen and verified, and the settings.
Exit code 1 if a record is missing or wrong. Client and server share the machine's cores; use a
release build. docs/BENCHMARKS.md explains what is measured.

Examples:
  basalt bench produce --duration 10 --warmup 2 --connections 2 --ack os
  basalt bench consume --records 10000000 --payload 100
  basalt bench e2e --rate 1000 --duration 30 --plot latency.svg
  basalt bench limits --limits-dir /var/lib/basalt")]
pub enum LoadCommand {
    /// Append records; latency is from sending, or from when it was due, to acknowledgement.
    Produce(Box<LoadArgs>),
    /// Read records from the earliest on; they are appended first unless --topic names some.
    Consume(Box<LoadArgs>),
    /// Append and read at once; latency is as for produce, and that of arrival is given beside it.
    Both(Box<LoadArgs>),
    /// Append and read at once; latency is from sending, or from when it was due, to arrival at the reader.
    E2e(Box<LoadArgs>),
    /// Measure what this machine can do without any server.
    Limits(LimitsCommand),
}

/// What a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Append.
    Produce,
    /// Read what is there.
    Consume,
    /// Append and read, as fast as both can.
    Both,
    /// Append and read, for the time between the two.
    E2e,
}

impl Mode {
    /// As in the JSON line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Both => "both",
            Self::E2e => "e2e",
        }
    }
}

/// `--protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Requests with many records, many in flight.
    Session,
    /// Frame by frame, each with an answer of 9 bytes, as HermitMQ's clients do it.
    Hermitmq,
}

/// `--ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AckArg {
    /// On disk.
    Fsync,
    /// In the page cache of the server.
    Os,
    /// Sent; nothing is reported back.
    None,
    /// As the topic is configured.
    Topic,
}

impl AckArg {
    pub(crate) const fn level(self) -> AckLevel {
        match self {
            Self::Fsync => AckLevel::Fsync,
            Self::Os => AckLevel::Os,
            Self::None => AckLevel::None,
            Self::Topic => AckLevel::TopicDefault,
        }
    }
}

/// `--durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityArg {
    /// Synced before it is acknowledged.
    Fsync,
    /// In the page cache, synced from time to time.
    Os,
}

impl DurabilityArg {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Os => "os",
        }
    }
}

/// Arguments of every load.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Address of the server.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "BASALT_SERVER",
        default_value = "127.0.0.1:9092"
    )]
    pub server: String,
    /// How to speak to it; `hermitmq` works with any broker that speaks it.
    #[arg(long, value_enum, default_value_t = Protocol::Session)]
    pub protocol: Protocol,
    /// Connections that send, and as many that read.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// Partitions to use, from 0 on [default: one a connection; 1 with hermitmq].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub partitions: Option<u32>,
    /// Bytes of a record's payload: a number, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA or zipf:HIGH.
    #[arg(long, value_name = "BYTES", default_value = "100")]
    pub payload: PayloadSize,
    /// Part of each payload that repeats, 0 to 1.
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    pub compressibility: f64,
    /// Bytes of a record's key; 0 for none.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub key: u32,
    /// When a record counts as stored.
    #[arg(long, value_enum, default_value_t = AckArg::Topic)]
    pub ack: AckArg,
    /// Records of a request at most [default: 1000, or what 256 KiB hold].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub batch: Option<u32>,
    /// Requests of a connection that may wait for their answer [default: 8, or 64 with --rate].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub pipeline: Option<u32>,
    /// Records in all [default: 100000, or no bound with --duration].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// Seconds to go on for, after the warm-up; `consume` reads the records again and again.
    #[arg(long, value_name = "S")]
    pub duration: Option<f64>,
    /// Seconds at the start that no figure counts.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub warmup: f64,
    /// Records per second in all, open loop; as fast as possible without it.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Durability of the topic that is made [default: the server's].
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityArg>,
    /// Topic to use and to keep; without it one is made and deleted.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<TopicName>,
    /// Keep the topic that is made.
    #[arg(long)]
    pub keep: bool,
    /// How closely records are looked at [default: full; headers for `consume --topic`].
    #[arg(long, value_enum)]
    pub verify: Option<Verify>,
    /// Bytes of a fetch's answer at most.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub fetch_bytes: u32,
    /// Seconds without anything from the server until the run fails.
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub timeout: f64,
    /// Draw latency by percentile and throughput over time.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Do it so many times, each with a topic of its own; the line is the median run's.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Measure the machine's limits first, and give the ratios to them.
    #[arg(long)]
    pub limits: bool,
    /// How the limits are measured.
    #[command(flatten)]
    pub limits_args: LimitsArgs,
}

/// Arguments that do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgsError {
    /// A number outside its range.
    #[error("--{name} must be {range}")]
    Range {
        /// The argument.
        name: &'static str,
        /// What it may be.
        range: &'static str,
    },
    /// Two arguments that exclude each other, or an argument that the mode has no use for.
    #[error("{what}")]
    Conflict {
        /// What does not go together.
        what: &'static str,
    },
}

/// Arguments that go together, with the defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) partitions: u32,
    pub(crate) batch: u32,
    pub(crate) pipeline: u32,
    /// Bound of what is sent; none with a duration.
    pub(crate) records: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) warmup: Duration,
    pub(crate) timeout: Duration,
    pub(crate) verify: Verify,
    pub(crate) args: LoadArgs,
}

impl Plan {
    /// Checks the arguments of a mode.
    ///
    /// # Errors
    /// [`ArgsError`] says which do not go together.
    pub(crate) fn new(mode: Mode, args: &LoadArgs) -> Result<Self, ArgsError> {
        let hermitmq = args.protocol == Protocol::Hermitmq;
        let partitions = args
            .partitions
            .unwrap_or(if hermitmq { 1 } else { args.connections });
        let conflict = |found: bool, what| {
            if found {
                Err(ArgsError::Conflict { what })
            } else {
                Ok(())
            }
        };
        conflict(
            hermitmq && args.ack != AckArg::Topic,
            "--protocol hermitmq has no --ack: the topic says when a record counts as stored",
        )?;
        conflict(
            hermitmq && args.durability.is_some(),
            "--protocol hermitmq cannot make a topic with --durability: its topics are made by their first use",
        )?;
        conflict(
            hermitmq && partitions > args.connections,
            "--protocol hermitmq has one partition a connection: give as many --connections as --partitions",
        )?;
        conflict(
            hermitmq && mode == Mode::Consume && args.topic.is_some() && args.records.is_none(),
            "--protocol hermitmq cannot ask how many records a topic has: say it with --records",
        )?;
        conflict(
            hermitmq && mode == Mode::Consume && args.duration.is_some(),
            "--protocol hermitmq reads a topic once: bound it with --records, not with --duration",
        )?;
        conflict(
            mode != Mode::Consume && args.records.is_some() && args.duration.is_some(),
            "give --records or --duration, not both",
        )?;
        conflict(
            mode == Mode::Consume && args.rate.is_some(),
            "consume has no --rate",
        )?;
        let between = |name, value: f64, from: f64, to: f64, range| {
            if (from..=to).contains(&value) {
                Ok(value)
            } else {
                Err(ArgsError::Range { name, range })
            }
        };
        let seconds = |name, value| between(name, value, 0.0, 1e6, "from 0 to 1000000 seconds");
        between(
            "compressibility",
            args.compressibility,
            0.0,
            1.0,
            "from 0 to 1",
        )?;
        let duration = match args.duration {
            Some(value) => Some(between(
                "duration",
                value,
                0.001,
                1e6,
                "from 0.001 to 1000000 seconds",
            )?),
            None => None,
        };
        let records = match (args.records, duration, mode) {
            (None, Some(_), Mode::Produce | Mode::Both | Mode::E2e) => None,
            (records, ..) => Some(records.unwrap_or(DEFAULT_RECORDS)),
        };
        let foreign = mode == Mode::Consume && args.topic.is_some();
        Ok(Self {
            mode,
            partitions,
            batch: args.batch.unwrap_or(DEFAULT_BATCH),
            pipeline: args
                .pipeline
                .unwrap_or(if args.rate.is_some() { 64 } else { 8 }),
            records,
            duration: duration.map(Duration::from_secs_f64),
            warmup: Duration::from_secs_f64(seconds("warmup", args.warmup)?),
            timeout: Duration::from_secs_f64(between(
                "timeout",
                args.timeout,
                0.1,
                1e6,
                "from 0.1 to 1000000 seconds",
            )?),
            verify: args.verify.unwrap_or(if foreign {
                Verify::Headers
            } else {
                Verify::Full
            }),
            args: args.clone(),
        })
    }

    /// Fits the default batch to the size of frames.
    pub(crate) fn fit_batch(&mut self, mean_frame_bytes: f64) {
        if self.args.batch.is_none() {
            self.batch = (1..=DEFAULT_BATCH)
                .rev()
                .find(|batch| f64::from(*batch) * mean_frame_bytes <= DEFAULT_BATCH_BYTES)
                .unwrap_or(1);
        }
    }

    /// Streams of records: each has one connection and one partition, and no two have both in common.
    pub(crate) fn lanes(&self) -> u32 {
        self.args.connections.max(self.partitions)
    }

    /// Connections that read at once.
    pub(crate) fn readers(&self) -> u32 {
        if self.mode == Mode::Consume {
            self.args.connections
        } else {
            self.args.connections.min(self.partitions)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        command: LoadCommand,
    }

    pub(crate) fn plan(arguments: &str) -> Result<Plan, String> {
        let arguments = std::iter::once("bench").chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
        let (mode, args) = match cli.command {
            LoadCommand::Produce(args) => (Mode::Produce, args),
            LoadCommand::Consume(args) => (Mode::Consume, args),
            LoadCommand::Both(args) => (Mode::Both, args),
            LoadCommand::E2e(args) => (Mode::E2e, args),
            LoadCommand::Limits(_) => return Err("no plan".to_owned()),
        };
        Plan::new(mode, &args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_what_the_help_says() {
        let produce = plan("produce").unwrap();
        assert_eq!(
            (produce.records, produce.partitions, produce.verify),
            (Some(100_000), 1, Verify::Full)
        );
        assert_eq!(plan("produce --duration 3").unwrap().records, None);
        assert_eq!(plan("produce --connections 3").unwrap().partitions, 3);
        assert_eq!(
            plan("produce --connections 3 --protocol hermitmq")
                .unwrap()
                .partitions,
            1
        );
        assert_eq!(plan("consume --topic t").unwrap().verify, Verify::Headers);
        let mut large = plan("produce --payload 100000").unwrap();
        large.fit_batch(100_029.0);
        assert_eq!(large.batch, 2);
    }

    #[test]
    fn arguments_that_do_not_go_together_are_refused() {
        for (arguments, reason) in [
            ("produce --records 5 --duration 1", "not both"),
            ("produce --protocol hermitmq --ack os", "no --ack"),
            (
                "produce --protocol hermitmq --durability os",
                "--durability",
            ),
            (
                "produce --protocol hermitmq --partitions 2",
                "one partition a connection",
            ),
            ("consume --protocol hermitmq --topic t", "--records"),
            ("consume --protocol hermitmq --duration 1", "--records"),
            ("consume --rate 5", "no --rate"),
            ("produce --compressibility 1.5", "from 0 to 1"),
            ("produce --duration 0", "0.001"),
            ("produce --warmup -1", "'-1'"),
            ("produce --payload zipf", "uniform:LOW-HIGH"),
            ("produce --connections 0", "1..=1024"),
            ("produce --topic ..", "may not be"),
            ("produce --verify some", "possible values"),
        ] {
            let error = plan(arguments).expect_err(arguments);
            assert!(error.contains(reason), "{arguments}: {error}");
        }
    }
}
