//! `basalt sql`: a statement over Flight SQL, or a prompt for many.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::{FlightData, FlightInfo};
use basalt_client::Credentials;
use clap::{Args, ValueEnum};
use futures::{StreamExt as _, TryStreamExt as _};
use rustyline::error::ReadlineError;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use super::ServerArg;
use crate::output::{PrintError, Printer, SqlFormat};
use crate::serve::Signals;
use crate::stopwatch::Stopwatch;

/// Arguments of `basalt sql`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every topic is a table with _partition, _offset, _timestamp, _key, _headers, _payload and
_record_count, and the columns of its schema if it has one (`basalt schema --help`); names with
capitals, dots or dashes go in double quotes. JSON payloads need no schema. CREATE TABLE, ALTER
TABLE and DROP TABLE change topics; CANCEL 'ID' ends a query. sys.topics, sys.partitions,
sys.queries and others show the server. Without QUERY, on a terminal, a prompt with history opens; a
statement ends with `;`. Without a terminal, standard input is read as one query.

In table, json and csv, binary values are shown as text where they are UTF-8, else as \\x and hex
digits; arrow is exact.

Examples:
  basalt sql \"SELECT count(*) FROM flights\"
  basalt sql \"SELECT _payload->>'carrier' AS c, count(*) FROM flights GROUP BY 1\" --format csv
  basalt sql \"SELECT * FROM flights WHERE _timestamp > now() - interval '5 minutes'\" --format json
  basalt sql 'SELECT * FROM \"eu-1\" LIMIT 10'
  basalt sql \"SELECT _offset, _payload FROM flights\" --format arrow > flights.arrows")]
pub(crate) struct SqlArgs {
    /// Statement; a prompt without it.
    query: Option<String>,
    /// How rows are printed.
    #[arg(long, value_enum, default_value_t)]
    format: SqlFormat,
    /// Print to stderr what was read, for `FROM topic AS OF '...'` to read again.
    #[arg(long)]
    snapshot: bool,
    /// What is seen of transactions: committed records, or all that are in the log (void ones are gone once they are cold).
    #[arg(long, value_enum, default_value_t)]
    isolation: SqlIsolation,
    #[command(flatten)]
    server: ServerArg,
}

/// What a statement sees of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum SqlIsolation {
    #[default]
    ReadCommitted,
    ReadUncommitted,
}

pub(crate) async fn run(args: SqlArgs) -> anyhow::Result<()> {
    let mut session = SqlClient::connect(&args.server).await?;
    if args.isolation == SqlIsolation::ReadUncommitted {
        session
            .client
            .set_header("basalt-isolation", "read_uncommitted");
    }
    session.say_snapshot = args.snapshot;
    let query = match args.query {
        Some(query) => query,
        None if io::stdin().is_terminal() => return prompt(session, args.format).await,
        None => {
            io::read_to_string(io::stdin()).context("cannot read the query from standard input")?
        }
    };
    let mut signals = Signals::new()?;
    tokio::select! {
        result = session.print(&query, args.format, io::BufWriter::new(io::stdout())) => { result?; }
        // Dropping the stream cancels the query.
        (signal, _) = signals.next() => anyhow::bail!("{signal}: the query was cancelled"),
    }
    Ok(())
}

/// What a server answers to a handshake that lets everybody in.
const EVERYBODY: &str = "Bearer anonymous";

/// What each call shows of who asks.
#[derive(Clone)]
struct Identity(Option<MetadataValue<Ascii>>);

impl Interceptor for Identity {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        if let Some(shown) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", shown.clone());
        }
        Ok(request)
    }
}

/// A connection that runs statements.
pub(crate) struct SqlClient {
    client: FlightSqlServiceClient<InterceptedService<Channel, Identity>>,
    say_snapshot: bool,
}

impl SqlClient {
    pub(crate) async fn connect(server: &ServerArg) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.server))
            .with_context(|| format!("--server {}: give HOST:PORT", server.server))?
            .connect_timeout(std::time::Duration::from_secs(10))
            .tcp_nodelay(true);
        let channel = endpoint
            .connect()
            .await
            .with_context(|| server.unreachable())?;
        let identity = match server.credentials()? {
            Some(Credentials { user, password }) => {
                let mut client = FlightSqlServiceClient::new(channel.clone());
                let logged_in = client.handshake(&user, &password).await;
                logged_in
                    .map_err(reason)
                    .with_context(|| format!("cannot log in at {}", server.server))?;
                let token = client.token().map(|token| format!("Bearer {token}"));
                let token = token.context("the server answered the handshake without a token")?;
                ensure!(
                    token != EVERYBODY,
                    "the server at {} asks nobody who they are: go on without --user",
                    server.server
                );
                Identity(Some(
                    token.parse().context("the server's token is no text")?,
                ))
            }
            None => Identity(None),
        };
        // A row may be as large as a payload.
        let inner = FlightServiceClient::with_interceptor(channel, identity)
            .max_decoding_message_size(usize::MAX);
        Ok(Self {
            client: FlightSqlServiceClient::new_from_inner(inner),
            say_snapshot: false,
        })
    }

    /// Runs `query`, prints its rows as they come and returns how many. Without a reader it ends quietly.
    pub(crate) async fn print(
        &mut self,
        query: &str,
        format: SqlFormat,
        out: impl Write,
    ) -> anyhow::Result<u64> {
        match self.try_print(query, format, out).await {
            Err(error)
                if error
                    .downcast_ref::<PrintError>()
                    .is_some_and(PrintError::is_broken_pipe) =>
            {
                Ok(0)
            }
            result => result,
        }
    }

    async fn try_print(
        &mut self,
        query: &str,
        format: SqlFormat,
        out: impl Write,
    ) -> anyhow::Result<u64> {
        let info: FlightInfo = self
            .client
            .execute(query.to_owned(), None)
            .await
            .map_err(reason)
            .context("the query failed")?;
        let mut out = Some(out);
        let mut printer = None;
        for endpoint in info.endpoint {
            let ticket = endpoint
                .ticket
                .context("the server answered without a ticket")?;
            let data = self.client.inner_mut().do_get(ticket).await;
            let data = data
                .map_err(|status| reason(status.into()))
                .context("the query failed")?;
            let say_snapshot = self.say_snapshot;
            let data = data.into_inner().map_err(FlightError::from);
            let mut rows =
                FlightRecordBatchStream::new_from_flight_data(data.inspect_ok(move |message| {
                    if say_snapshot && let Some(snapshot) = snapshot_of(message) {
                        eprintln!("snapshot {snapshot}");
                    }
                }));
            while let Some(batch) = rows.next().await {
                let batch = batch.map_err(reason).context("the query failed")?;
                if let Some(out) = out.take() {
                    printer = Some(Printer::new(out, format, &batch.schema())?);
                }
                if let Some(printer) = &mut printer {
                    printer.push(&batch)?;
                }
            }
            if let (Some(schema), Some(out)) = (rows.schema(), out.take()) {
                printer = Some(Printer::new(out, format, schema)?);
            }
        }
        Ok(match printer {
            Some(printer) => printer.finish()?,
            None => 0,
        })
    }
}

/// What the first message of an answer says was read.
fn snapshot_of(message: &FlightData) -> Option<String> {
    let said: serde_json::Value = serde_json::from_slice(&message.app_metadata).ok()?;
    said.get("snapshot")?.as_str().map(str::to_owned)
}

/// The server's own words, without the wrapping of gRPC.
fn reason(error: FlightError) -> anyhow::Error {
    match error {
        FlightError::Tonic(status) => anyhow::anyhow!("{}", status.message()),
        other => anyhow::Error::new(other),
    }
}

async fn prompt(mut session: SqlClient, format: SqlFormat) -> anyhow::Result<()> {
    let mut editor = rustyline::DefaultEditor::new().context("cannot use this terminal")?;
    let history = history_file();
    if let Some(path) = &history {
        // There is none the first time.
        let _ = editor.load_history(path);
    }
    eprintln!(
        "A statement ends with `;`. Topics: SELECT * FROM sys.topics;  Leave with Ctrl-D or `exit`."
    );
    let mut statement = String::new();
    loop {
        let prompt = if statement.is_empty() {
            "basalt> "
        } else {
            "     -> "
        };
        let line = tokio::task::block_in_place(|| editor.readline(prompt));
        match line {
            Ok(line) if statement.is_empty() && matches!(line.trim(), "exit" | "quit" | "\\q") => {
                break;
            }
            Ok(line) if statement.is_empty() && line.trim().is_empty() => continue,
            Ok(line) => {
                statement.push_str(&line);
                if !line.trim_end().ends_with(';') {
                    statement.push('\n');
                    continue;
                }
            }
            Err(ReadlineError::Interrupted) => {
                statement.clear();
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
        let query = std::mem::take(&mut statement);
        // A history that cannot be kept is no reason to stop.
        let _ = editor.add_history_entry(query.trim());
        answer(&mut session, &query, format).await?;
    }
    if let Some(path) = &history {
        let _ = editor.save_history(path);
    }
    Ok(())
}

/// A statement that fails, or is interrupted, is reported, and the prompt comes again.
async fn answer(session: &mut SqlClient, query: &str, format: SqlFormat) -> anyhow::Result<()> {
    let took = Stopwatch::start();
    let result = tokio::select! {
        result = session.print(query, format, io::stdout()) => result,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("cannot watch for Ctrl-C")?;
            eprintln!("cancelled");
            return Ok(());
        }
    };
    match result {
        Ok(rows) => eprintln!("{rows} rows in {:.3} s", took.elapsed().as_secs_f64()),
        Err(error) => eprintln!("error: {error:#}"),
    }
    Ok(())
}

fn history_file() -> Option<PathBuf> {
    let folder = match std::env::var_os("XDG_STATE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".local/state"),
    }
    .join("basalt");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("sql_history"))
}
