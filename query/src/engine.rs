//! The engine: plans a statement against one snapshot and starts it.

use std::collections::HashSet;
use std::fmt::{Debug, Formatter};
use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use basalt_columnar::TieredLog;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::Dialect;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use tokio::runtime::Runtime;

use crate::catalog::{CATALOG, QueryCatalog, TOPICS_SCHEMA};
use crate::cold_scan::store_url;
use crate::counters::Counters;
use crate::edge::plain_schema;
use crate::flight::FlightSql;
use crate::parse::parse;
use crate::snapshot::QuerySnapshots;
use crate::stream::{self, QueryStream};
use crate::text_rewrite::TextRewrite;
use crate::topic_table::TopicTable;
use crate::yielding::YieldingJoins;
use crate::{QueryConfig, QueryCounters, QueryError, json};

/// Longest statement that is read, in bytes.
pub(crate) const STATEMENT_BYTES: usize = 1 << 20;
/// Stack of the threads that plan and run: planning recurses over what a statement nests, up to the limits in `parse`.
/// Address space, not memory, until it is used.
const STACK_BYTES: usize = 64 << 20;
/// Threads that wait for local files.
const BLOCKING_THREADS: usize = 32;
/// No batch of a query should pass this: Arrow's columns end at 2 GiB.
const BATCH_BYTES: u64 = 1 << 30;

/// Plans and runs statements over a tiered log.
///
/// It has threads of its own, so that a query's work, and its page faults in cold parts of the log, never hold up the
/// threads that serve producers and consumers.
pub struct QueryEngine {
    planner: Arc<Planner>,
    /// `None` only while the engine is dropped.
    runtime: Option<Runtime>,
}

/// What a statement would give.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) schema: SchemaRef,
}

impl QueryEngine {
    /// An engine over `log`.
    ///
    /// # Errors
    /// [`QueryError::Start`] if its threads cannot be made, [`QueryError::Internal`] if its functions cannot be
    /// registered.
    pub fn new(log: Arc<TieredLog>, config: QueryConfig) -> Result<Arc<Self>, QueryError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.target_partitions.max(1))
            .thread_name("basalt-query")
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

    /// Starts one statement that reads, and gives its rows as they come. Dropping the stream cancels the query and frees
    /// what it holds.
    ///
    /// # Errors
    /// Whatever keeps it from starting; what goes wrong later comes in the stream. [`QueryError::Invalid`],
    /// [`QueryError::TooLong`], [`QueryError::ReadOnly`], [`QueryError::Parameters`] and [`QueryError::ColumnType`] are the
    /// statement's fault.
    pub async fn query(&self, sql: &str) -> Result<QueryStream, QueryError> {
        let runtime = self.runtime.as_ref().ok_or(QueryError::Stopping)?;
        stream::start(runtime, Arc::clone(&self.planner), sql.to_owned()).await
    }

    /// The schema of what [`QueryEngine::query`] would give, without running it.
    pub(crate) async fn describe(&self, sql: &str) -> Result<Description, QueryError> {
        let runtime = self.runtime.as_ref().ok_or(QueryError::Stopping)?;
        let planner = Arc::clone(&self.planner);
        let sql = sql.to_owned();
        let timeout = planner.config.timeout;
        let task = runtime.spawn(async move {
            tokio::time::timeout(timeout, planner.plan(&sql))
                .await
                .map_err(|_| QueryError::Deadline { timeout })?
        });
        let planned = task.await.map_err(stream::join_error)??;
        Ok(Description {
            schema: planned.schema,
        })
    }

    /// What the engine has done so far.
    #[must_use]
    pub fn counters(&self) -> QueryCounters {
        self.planner.counters.snapshot()
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
        &self.planner.log
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

/// Turns text into plans. Has no threads.
pub(crate) struct Planner {
    log: Arc<TieredLog>,
    pub(crate) config: QueryConfig,
    /// Everything that queries share; each query gets a copy with its own catalog.
    pub(crate) template: SessionState,
    pub(crate) counters: Counters,
}

/// A statement that was understood.
pub(crate) struct Planned {
    /// Its catalog holds the snapshots, which pin what the query reads.
    state: SessionState,
    plan: LogicalPlan,
    /// What leaves the engine.
    pub(crate) schema: SchemaRef,
}

impl Planner {
    pub(crate) fn new(log: Arc<TieredLog>, config: QueryConfig) -> Result<Self, QueryError> {
        let runtime = runtime_env(&log, &config)?;
        let mut template = SessionStateBuilder::new()
            .with_default_features()
            .with_config(session_config(&config))
            .with_runtime_env(runtime)
            .with_physical_optimizer_rule(Arc::new(YieldingJoins))
            .build();
        json::register(&mut template)?;
        template.register_function_rewrite(Arc::new(TextRewrite))?;
        Ok(Self {
            log,
            config,
            template,
            counters: Counters::default(),
        })
    }

    /// Understands `sql`; takes no snapshot yet.
    pub(crate) async fn plan(&self, sql: &str) -> Result<Planned, QueryError> {
        if sql.len() > STATEMENT_BYTES {
            return Err(QueryError::TooLong {
                found_bytes: sql.len(),
                limit_bytes: STATEMENT_BYTES,
            });
        }
        let snapshots = Arc::new(QuerySnapshots::new(Arc::clone(&self.log)));
        let mut state = self.template.clone();
        state.register_catalog_list(Arc::new(QueryCatalog::new(snapshots)));
        state.mark_start_execution();
        let plan = state.statement_to_plan(parse(sql)?).await?;
        reads_only()
            .verify_plan(&plan)
            .map_err(|source| QueryError::ReadOnly {
                source: Box::new(source),
            })?;
        refuse_parameters(&plan)?;
        let plan = match plan {
            // Explaining shows each step of the analysis, so it happens there.
            explain @ LogicalPlan::Explain(_) => explain,
            plan => state
                .analyzer()
                .execute_and_check(plan, state.config_options(), |_, _| {})?,
        };
        let schema = plain_schema(plan.schema().as_arrow())?;
        Ok(Planned {
            state,
            plan,
            schema,
        })
    }
}

impl Planned {
    /// The plan to run; here the topics' snapshots are taken.
    pub(crate) async fn physical_plan(&mut self) -> Result<Arc<dyn ExecutionPlan>, QueryError> {
        let batch_rows = batch_rows(&self.plan, self.state.config().batch_size())?;
        let config = self.state.config_mut();
        *config = config.clone().with_batch_size(batch_rows);
        Ok(self.state.create_physical_plan(&self.plan).await?)
    }

    pub(crate) fn task_context(&self) -> Arc<TaskContext> {
        self.state.task_ctx()
    }
}

fn runtime_env(log: &TieredLog, config: &QueryConfig) -> Result<Arc<RuntimeEnv>, QueryError> {
    let named = NonZeroUsize::MIN.saturating_add(4);
    let pool = TrackConsumersPool::new(FairSpillPool::new(config.memory_bytes), named);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .build_arc()?;
    runtime.register_object_store(
        store_url()?.as_ref(),
        Arc::clone(log.store().object_store()),
    );
    Ok(runtime)
}

fn session_config(config: &QueryConfig) -> SessionConfig {
    let mut session = SessionConfig::new()
        .with_default_catalog_and_schema(CATALOG, TOPICS_SCHEMA)
        .with_create_default_catalog_and_schema(false)
        .with_information_schema(true)
        .with_target_partitions(config.target_partitions.max(1))
        .with_batch_size(config.batch_rows.max(1));
    let options = session.options_mut();
    options.sql_parser.dialect = Dialect::PostgreSQL;
    // Drivers do not read view types.
    options.sql_parser.map_string_types_to_utf8view = false;
    options.execution.parquet.schema_force_view_types = false;
    session
}

fn reads_only() -> SQLOptions {
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
}

fn refuse_parameters(plan: &LogicalPlan) -> Result<(), QueryError> {
    let names: HashSet<String> = plan.get_parameter_names()?;
    if names.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_unstable();
    Err(QueryError::Parameters { names })
}

/// Rows in a batch: as configured, fewer where a topic's rows are so wide that an Arrow column could not hold them.
fn batch_rows(plan: &LogicalPlan, configured: usize) -> Result<usize, DataFusionError> {
    let mut widest_bytes = 1;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(topic) = provider.downcast_ref::<TopicTable>()
        {
            widest_bytes = widest_bytes.max(topic.widest_row_bytes());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let fitting = usize::try_from(BATCH_BYTES / widest_bytes).unwrap_or(usize::MAX);
    Ok(configured.min(fitting.max(1)))
}
