//! The command line: what can be asked, and how the answer becomes an exit code (0 ok, 1 failed, 2 usage).

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use basalt_client::{ClientError, ConnectError, ErrorKind, SendError};
use basalt_load::LoadError;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::commands::{bench, check, consume, demo, group, produce, schema, sql, topic, user};
use crate::config::ConfigError;
use crate::serve;

#[derive(Debug, Parser)]
#[command(
    name = "basalt",
    version,
    about = "A streaming log store whose history is a table",
    after_help = "\
Examples:
  basalt demo                                       everything at once, in a temporary folder
  basalt serve --data ./basalt-data                 a server on 127.0.0.1:9092
  basalt produce flights examples/flights.ndjson    a record a line
  basalt consume flights --from earliest --to end
  basalt sql \"SELECT count(*) FROM flights\"

Exit codes: 0 ok, 1 failed, 2 usage. Environment: BASALT_SERVER stands for --server, BASALT_USER for
--user, BASALT_PASSWORD_FILE for --password-file; BASALT_PASSWORD is the password. BASALT_LOG
filters the log on stderr (for example `debug` or `basalt_log=trace`)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server.
    Serve(serve::ServeArgs),
    /// Create, list, describe, alter, delete and cool topics.
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Propose and check schemas of topics.
    #[command(subcommand)]
    Schema(schema::SchemaCommand),
    /// List, describe and rewind consumer groups.
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Add, remove and list the users of a server that asks who calls.
    #[command(subcommand)]
    User(user::UserCommand),
    /// Append a record per line of a file or of standard input.
    Produce(produce::ProduceArgs),
    /// Print the records of a topic's partition.
    Consume(consume::ConsumeArgs),
    /// Run SQL over topics, or open a prompt for it.
    Sql(sql::SqlArgs),
    /// Measure a running server.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Verify a data folder while no server uses it.
    Check(check::CheckArgs),
    /// Show the whole path on real data: produce, consume, cool, replay, query.
    Demo(demo::DemoArgs),
}

/// Parses the arguments of this process, does what they ask, and reports.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // A server tells what it does; a client speaks up only when something is wrong.
    log_to_stderr(if matches!(cli.command, Command::Serve(_)) {
        "info"
    } else {
        "warn"
    });
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::new(error).context("cannot start threads")),
    };
    let result = runtime.block_on(run(cli.command));
    // A thread that reads a silent pipe must not hold up the end.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => serve::run(args).await,
        Command::Topic(command) => topic::run(command).await,
        Command::Schema(command) => schema::run(command).await,
        Command::Group(command) => group::run(command).await,
        Command::User(command) => user::run(command),
        Command::Produce(args) => produce::run(args).await,
        Command::Consume(args) => consume::run(args).await,
        Command::Sql(args) => sql::run(args).await,
        Command::Bench(command) => bench::run(command).await,
        Command::Check(args) => check::run(&args).await,
        Command::Demo(args) => demo::run(&args).await,
    }
}

fn log_to_stderr(default: &str) {
    let filter = std::env::var("BASALT_LOG").unwrap_or_else(|_| default.to_owned());
    let (filter, wrong) = match EnvFilter::try_new(&filter) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(default), Some(error)),
    };
    // Only a second subscriber in this process would be an error, and the first one logs as well.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    if let Some(error) = wrong {
        tracing::warn!("BASALT_LOG is not understood ({error}); using `{default}`");
    }
}

/// `error: what: why: why of that`, without saying the same twice.
fn report(error: &anyhow::Error) -> ExitCode {
    let mut text = format!("error: {}", sentence(error));
    if let Some(step) = refusal(error).and_then(next_step) {
        text.push_str("\nhint: ");
        text.push_str(step);
    }
    // Nothing can be said about a stderr that is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
    let usage = error
        .chain()
        .any(|cause| match cause.downcast_ref::<LoadError>() {
            Some(error) => matches!(error, LoadError::Args(_)),
            None => cause
                .downcast_ref::<ConfigError>()
                .is_some_and(ConfigError::is_usage),
        });
    ExitCode::from(if usage { 2 } else { 1 })
}

/// What the server refused with, if it was the server that said no.
fn refusal(error: &anyhow::Error) -> Option<ErrorKind> {
    error.chain().find_map(|cause| {
        let call = cause
            .downcast_ref::<ClientError>()
            .and_then(ClientError::kind);
        let connect = || {
            cause
                .downcast_ref::<ConnectError>()
                .and_then(ConnectError::kind)
        };
        call.or_else(connect)
            .or_else(|| cause.downcast_ref::<SendError>().and_then(SendError::kind))
            .or_else(|| cause.downcast_ref::<LoadError>().and_then(LoadError::kind))
    })
}

/// What its user can do about it.
fn next_step(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::UnknownTopic => {
            Some("`basalt topic list` shows the topics, `basalt topic create NAME` makes one")
        }
        ErrorKind::UnknownPartition => Some("`basalt topic describe TOPIC` shows the partitions"),
        ErrorKind::OffsetOutOfRange => Some(
            "--from earliest and --from latest always exist, `basalt group seek` moves a group; `basalt topic describe TOPIC` shows the bounds",
        ),
        ErrorKind::TooLarge => Some(
            "the server's limits are log.max_payload_bytes, log.max_key_bytes and server.max_request_bytes (`basalt serve --print-config`)",
        ),
        ErrorKind::StorageFull => Some(
            "free space on the server's disk, or lower the topic's retention; producing then works again by itself",
        ),
        ErrorKind::StorageFailed | ErrorKind::Corrupt => Some(
            "see the server's log for the file; `basalt check DIR` verifies the folder once the server is stopped",
        ),
        ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::ShuttingDown => {
            Some("try again in a moment")
        }
        ErrorKind::Unauthenticated => Some(
            "log in with --user NAME and --password-file FILE (or BASALT_USER and BASALT_PASSWORD); `basalt user add` makes users. \
             `basalt bench` cannot log in",
        ),
        ErrorKind::TopicExists => {
            Some("`basalt topic alter` changes the settings of a topic that exists")
        }
        _ => None,
    }
}

fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = cause.trim_end();
        // Some errors print their source themselves.
        if text.ends_with(cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(cause);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn an_error_names_every_cause_once() {
        let error = anyhow::anyhow!("no space left")
            .context("cannot write: no space left")
            .context("cannot produce");
        assert_eq!(
            sentence(&error),
            "cannot produce: cannot write: no space left"
        );
    }
}
