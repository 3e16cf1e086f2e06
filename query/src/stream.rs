//! A running query: a task on the engine's threads, and the stream its reader holds.
//!
//! **QRY-7**: a query ends with its last row, its first error, its deadline or when its reader drops the stream, and then
//! holds nothing: plan, snapshots, memory and spill files go with the task. A panic in it is its own error.

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
use crate::counters::Outcome;
use crate::edge::plain_batch;
use crate::parameters::Query;
use crate::planner::Planner;

/// Batches that wait for the reader before the query does.
const WAITING_BATCHES: usize = 2;

/// The rows of a query. Dropping it cancels the query.
#[derive(Debug)]
pub struct QueryStream {
    schema: SchemaRef,
    rows: mpsc::Receiver<Result<RecordBatch, QueryError>>,
    task: Option<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl QueryStream {
    /// Schema of every batch.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
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
    let (started, schema) = oneshot::channel();
    let (send, rows) = mpsc::channel(WAITING_BATCHES);
    let mut task = AbortOnDrop(runtime.spawn(run(planner, query, started, send)));
    match schema.await {
        Ok(schema) => Ok(QueryStream {
            schema: schema?,
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

type Started = oneshot::Sender<Result<SchemaRef, QueryError>>;
type Rows = mpsc::Sender<Result<RecordBatch, QueryError>>;

async fn run(planner: Arc<Planner>, query: Query, started: Started, rows: Rows) {
    planner.counters.start();
    // Counts a query that is dropped or panics on the way, too.
    let mut ending = Ending {
        planner: Arc::clone(&planner),
        outcome: Outcome::Cancelled,
    };
    let timeout = planner.config.timeout;
    let mut started = Some(started);
    let finished =
        tokio::time::timeout(timeout, answer(&planner, &query, &mut started, &rows)).await;
    let error = match finished {
        Ok(Ok(outcome)) => {
            ending.outcome = outcome;
            return;
        }
        Ok(Err(error)) => error,
        Err(_) => QueryError::Deadline { timeout },
    };
    ending.outcome = Outcome::Failed;
    // Counted before the reader can know.
    drop(ending);
    tracing::debug!(%error, "a query failed");
    // A reader that is gone needs no answer.
    match started {
        Some(started) => drop(started.send(Err(error))),
        None => drop(rows.send(Err(error)).await),
    }
}

struct Ending {
    planner: Arc<Planner>,
    outcome: Outcome,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let outcome = if std::thread::panicking() {
            Outcome::Failed
        } else {
            self.outcome
        };
        self.planner.counters.end(outcome);
    }
}

async fn answer(
    planner: &Planner,
    query: &Query,
    started: &mut Option<Started>,
    rows: &Rows,
) -> Result<Outcome, QueryError> {
    if let Some((change, topics)) = planner.change(query)? {
        change.run(topics).await?;
        if let Some(started) = started.take() {
            drop(started.send(Ok(Arc::new(Schema::empty()))));
        }
        return Ok(Outcome::Succeeded);
    }
    let mut planned = planner.plan(query).await?;
    let schema = Arc::clone(&planned.schema);
    let mut announce = || {
        if let Some(started) = started.take() {
            drop(started.send(Ok(Arc::clone(&schema))));
        }
    };
    for run in 0..planned.run_count() {
        let plan = planned.physical_plan(run).await?;
        let mut batches = execute_stream(plan, planned.task_context())?;
        announce();
        while let Some(batch) = batches.next().await {
            let batch = plain_batch(&batch?, &schema)?;
            planner.counters.rows(batch.num_rows());
            if rows.send(Ok(batch)).await.is_err() {
                return Ok(Outcome::Cancelled);
            }
        }
    }
    // Where no run was asked for there are no rows, but there is a schema.
    announce();
    Ok(Outcome::Succeeded)
}
