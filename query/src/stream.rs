//! A running query: a task on the engine's threads, and the stream its reader holds.
//!
//! **QRY-7**: a query ends with its last row, its first error, its deadline, a cancellation or when its reader drops the
//! stream, and then holds nothing: plan, snapshots, memory and spill files go with the task. A panic in it is its own error.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::physical_plan::execute_stream;
use futures::{Stream, StreamExt};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};

use crate::QueryError;
use crate::control::{Entry, QueryId, State};
use crate::counters::Outcome;
use crate::edge::plain_batch;
use crate::parameters::Query;
use crate::planner::Planner;

/// Batches that wait for the reader before the query does.
const WAITING_BATCHES: usize = 2;

/// The rows of a query. Dropping it cancels the query.
#[derive(Debug)]
pub struct QueryStream {
    id: QueryId,
    begun: Begun,
    rows: mpsc::Receiver<Result<RecordBatch, QueryError>>,
    task: Option<AbortOnDrop>,
}

/// Ends a task when nobody waits for what it does.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is known of a query before its first row.
#[derive(Debug)]
struct Begun {
    schema: SchemaRef,
    snapshot: Option<String>,
}

impl QueryStream {
    /// Schema of every batch.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.begun.schema)
    }

    /// Its id, as `sys.queries` shows it and `CANCEL` takes it.
    #[must_use]
    pub fn id(&self) -> String {
        self.id.to_string()
    }

    /// What it reads, to be read again by `FROM ... AS OF '<snapshot>'`. None where it reads no topic, or so many partitions
    /// that their bounds do not fit a token.
    #[must_use]
    pub fn snapshot(&self) -> Option<&str> {
        self.begun.snapshot.as_deref()
    }
}

impl Stream for QueryStream {
    type Item = Result<RecordBatch, QueryError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(item) = ready!(self.rows.poll_recv(context)) {
            return Poll::Ready(Some(item));
        }
        // No more rows: the task has ended, and says whether it came to its end.
        let Some(task) = self.task.as_mut() else {
            return Poll::Ready(None);
        };
        let ended = ready!(Pin::new(&mut task.0).poll(context));
        self.task = None;
        Poll::Ready(ended.err().map(|error| Err(join_error(error))))
    }
}

/// Starts `sql` and waits until its schema is known.
pub(crate) async fn start(
    runtime: &Runtime,
    planner: Arc<Planner>,
    query: Query,
) -> Result<QueryStream, QueryError> {
    let (started, begun) = oneshot::channel();
    let (send, rows) = mpsc::channel(WAITING_BATCHES);
    let id = query.id.unwrap_or_else(|| planner.registry.next_id());
    let mut task = AbortOnDrop(runtime.spawn(run(planner, query, id, started, send)));
    match begun.await {
        Ok(begun) => Ok(QueryStream {
            id,
            begun: begun?,
            rows,
            task: Some(task),
        }),
        Err(_) => Err((&mut task.0)
            .await
            .err()
            .map_or(QueryError::Stopping, join_error)),
    }
}

/// What a task that did not come to its end means.
pub(crate) fn join_error(error: JoinError) -> QueryError {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let message = text
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(%message, "a query panicked");
            QueryError::Panicked { message }
        }
        // Nothing but the end of the engine's threads cancels a task whose handle is still held.
        Err(_) => QueryError::Stopping,
    }
}

type Started = oneshot::Sender<Result<Begun, QueryError>>;
type Rows = mpsc::Sender<Result<RecordBatch, QueryError>>;

async fn run(planner: Arc<Planner>, query: Query, id: QueryId, started: Started, rows: Rows) {
    let memory = Arc::clone(&planner.template.runtime_env().memory_pool);
    // Counts and lists a query that is dropped or panics on the way, too.
    let running = planner
        .registry
        .begin(id, &query.sql, query.client.clone(), memory);
    let entry = Arc::clone(running.entry());
    let limit = planner.config.timeout;
    let timeout = query.timeout.map_or(limit, |asked| asked.min(limit));
    let mut started = Some(started);
    let finished = {
        let answer = answer(&planner, &query, &entry, &mut started, &rows);
        tokio::select! {
            biased;
            () = entry.cancelled() => Err(QueryError::Cancelled),
            finished = tokio::time::timeout(timeout, answer) => {
                finished.unwrap_or(Err(QueryError::Deadline { timeout }))
            }
        }
    };
    let error = match finished {
        Ok(outcome) => return running.end(outcome, None),
        Err(error) => error,
    };
    let outcome = match error {
        QueryError::Cancelled => Outcome::Cancelled,
        _ => Outcome::Failed,
    };
    // Counted before the reader can know.
    running.end(outcome, Some(error.to_string()));
    tracing::debug!(%error, "a query failed");
    // A reader that is gone needs no answer.
    match started {
        Some(started) => drop(started.send(Err(error))),
        None => drop(rows.send(Err(error)).await),
    }
}

async fn answer(
    planner: &Planner,
    query: &Query,
    entry: &Entry,
    started: &mut Option<Started>,
    rows: &Rows,
) -> Result<Outcome, QueryError> {
    if let Some((change, topics)) = planner.change(query)? {
        change.run(topics).await?;
        if let Some(started) = started.take() {
            drop(started.send(Ok(Begun {
                schema: Arc::new(Schema::empty()),
                snapshot: None,
            })));
        }
        return Ok(Outcome::Succeeded);
    }
    let mut planned = planner.plan(query).await?;
    entry.set_state(State::Queued);
    // Held until everything below is gone.
    let _place = planner.admission.enter(planned.lane()?).await?;
    entry.set_state(State::Running);
    let schema = Arc::clone(&planned.schema);
    let mut announce = |snapshot: Option<String>| {
        if let Some(started) = started.take() {
            let schema = Arc::clone(&schema);
            drop(started.send(Ok(Begun { schema, snapshot })));
        }
    };
    for run in 0..planned.run_count() {
        let plan = planned.physical_plan(run).await?;
        let token = planned.token();
        entry.set_plan(&plan, planned.rows_to_scan(), token.as_deref());
        let mut batches = execute_stream(plan, planned.task_context(entry.pool())?)?;
        announce(token);
        while let Some(batch) = batches.next().await {
            let batch = plain_batch(&batch?, &schema)?;
            planner.registry.counters().rows(batch.num_rows());
            entry.add_rows(batch.num_rows());
            if rows.send(Ok(batch)).await.is_err() {
                return Ok(Outcome::Cancelled);
            }
        }
    }
    // Where no run was asked for there are no rows, but there is a schema.
    announce(None);
    Ok(Outcome::Succeeded)
}
