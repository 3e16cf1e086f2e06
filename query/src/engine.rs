//! The engine: starts statements on threads of their own.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use basalt_columnar::TieredLog;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::control::QueryId;
use crate::flight::FlightSql;
use crate::parameters::Query;
use crate::planner::{Description, Planner};
use crate::stream::{self, QueryStream};
use crate::{QueryConfig, QueryCounters, QueryError, Setting, TopicChanges};

/// Stack of the threads that plan and run: planning recurses over what a statement nests, up to the limits in `parse`.
/// Address space, not memory, until it is used.
const STACK_BYTES: usize = 64 << 20;
/// Threads that wait for local files.
const BLOCKING_THREADS: usize = 32;

/// Plans and runs statements over a tiered log.
///
/// It has threads of its own, so that a query's work, and its page faults in cold parts of the log, never hold up the
/// threads that serve producers and consumers.
pub struct QueryEngine {
    planner: Arc<Planner>,
    /// `None` only while the engine is dropped.
    runtime: Option<Runtime>,
}

impl QueryEngine {
    /// An engine over `log`.
    ///
    /// # Errors
    /// [`QueryError::Start`] if its threads cannot be made, [`QueryError::Internal`] if its functions cannot be
    /// registered.
    pub fn new(log: Arc<TieredLog>, config: QueryConfig) -> Result<Arc<Self>, QueryError> {
        let nice = config.nice;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.target_partitions.max(1))
            .thread_name("basalt-query")
            .on_thread_start(move || stand_behind(nice))
            .thread_stack_size(STACK_BYTES)
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()
            .map_err(|source| QueryError::Start { source })?;
        Ok(Arc::new(Self {
            planner: Arc::new(Planner::new(log, config)?),
            runtime: Some(runtime),
        }))
    }

    /// Starts one statement, and gives its rows as they come. Dropping the stream cancels the query and frees
    /// what it holds.
    ///
    /// # Errors
    /// Whatever keeps it from starting; what goes wrong later comes in the stream. [`QueryError::Invalid`],
    /// [`QueryError::TooLong`], [`QueryError::ReadOnly`], [`QueryError::Parameters`] and [`QueryError::ColumnType`] are the
    /// statement's fault.
    pub async fn query(&self, sql: &str) -> Result<QueryStream, QueryError> {
        self.run(Query::plain(sql)).await
    }

    /// [`QueryEngine::query`], with values bound to the statement's parameters.
    pub(crate) async fn run(&self, query: Query) -> Result<QueryStream, QueryError> {
        let runtime = self.runtime.as_ref().ok_or(QueryError::Stopping)?;
        stream::start(runtime, Arc::clone(&self.planner), query).await
    }

    /// The schema of what [`QueryEngine::run`] would give, without running it.
    pub(crate) async fn describe(&self, query: Query) -> Result<SchemaRef, QueryError> {
        self.planning(|planner| async move {
            match planner.change(&query)? {
                // Described is not run.
                Some(_) => Ok(Arc::new(Schema::empty())),
                None => Ok(planner.plan(&query).await?.schema),
            }
        })
        .await
    }

    /// Lets `CREATE TABLE`, `ALTER TABLE` and `DROP TABLE` change topics. Without this, and by default, no statement changes
    /// anything.
    pub fn allow_changes(&self, topics: Arc<dyn TopicChanges>) {
        self.planner.set_topics(topics);
    }

    /// Whether statements may change topics.
    pub(crate) fn allows_changes(&self) -> bool {
        self.planner.allows_changes()
    }

    /// Whether `query` changes topics when it is run.
    pub(crate) fn changes(&self, query: &Query) -> Result<bool, QueryError> {
        Ok(self.planner.change(query)?.is_some())
    }

    /// The schemas of what `sql` would give and of the values that it takes.
    pub(crate) async fn prepare(&self, sql: String) -> Result<Description, QueryError> {
        self.planning(|planner| async move { planner.describe(&sql).await })
            .await
    }

    /// Plans on the engine's threads, within the time that a query has.
    async fn planning<T, F>(
        &self,
        plan: impl FnOnce(Arc<Planner>) -> F + Send + 'static,
    ) -> Result<T, QueryError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, QueryError>> + Send + 'static,
    {
        let runtime = self.runtime.as_ref().ok_or(QueryError::Stopping)?;
        let planner = Arc::clone(&self.planner);
        let timeout = planner.config.timeout;
        let task = runtime.spawn(async move {
            tokio::time::timeout(timeout, plan(planner))
                .await
                .map_err(|_| QueryError::Deadline { timeout })?
        });
        task.await.map_err(stream::join_error)?
    }

    /// What the engine has done so far, and does now: what `sys.queries` shows one by one.
    #[must_use]
    pub fn counters(&self) -> QueryCounters {
        let registry = &self.planner.registry;
        let (queued, running) = registry.queued_and_running();
        let runtime = self.planner.template.runtime_env();
        QueryCounters {
            queued,
            running,
            memory_bytes: runtime.memory_pool.reserved() as u64,
            spill_bytes: runtime.disk_manager.used_disk_space(),
            ..registry.counters().snapshot()
        }
    }

    /// From now on `sys.settings` shows these.
    pub fn show_settings(&self, settings: Arc<[Setting]>) {
        *self.planner.settings.write() = settings;
    }

    /// An id for a query that is announced before it runs.
    pub(crate) fn next_id(&self) -> QueryId {
        self.planner.registry.next_id()
    }

    /// Tells a query that runs, waits or was announced to stop; whether there is one.
    pub(crate) fn cancel(&self, id: QueryId) -> bool {
        self.planner.registry.cancel_announced(id)
    }

    /// Runs `work` on the engine's threads, which stand behind those that serve producers and consumers.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<JoinHandle<T>, QueryError> {
        let runtime = self.runtime.as_ref().ok_or(QueryError::Stopping)?;
        Ok(runtime.spawn(work))
    }

    /// The Flight SQL service over this engine, to be mounted in a tonic server.
    #[must_use]
    pub fn flight_service(self: &Arc<Self>) -> FlightSql {
        FlightSql::new(Arc::clone(self))
    }

    pub(crate) fn config(&self) -> &QueryConfig {
        &self.planner.config
    }

    pub(crate) fn log(&self) -> &Arc<TieredLog> {
        self.planner.log()
    }
}

/// Lets the calling thread run only where others leave the processor idle, the more so the larger `nice` is.
fn stand_behind(nice: i32) {
    // On Linux priorities are those of threads.
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::warn!(%error, nice, "a thread for queries keeps its priority");
    }
}

#[cfg(test)]
impl QueryEngine {
    pub(crate) fn planner(&self) -> &Arc<Planner> {
        &self.planner
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }
}

impl Debug for QueryEngine {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryEngine")
            .field("config", &self.planner.config)
            .finish_non_exhaustive()
    }
}

impl Drop for QueryEngine {
    fn drop(&mut self) {
        // Dropped in an asynchronous context a runtime must not wait for its threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
