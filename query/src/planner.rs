//! From text to plans that can be run, against one snapshot.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use basalt_columnar::TieredLog;
use basalt_log::Isolation;
use datafusion::common::ParamValues;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::RwLock;

use crate::arithmetic::CheckedOperators;
use crate::as_of::{SnapshotError, Token};
use crate::catalog::QueryCatalog;
use crate::comparison::ComparisonRewrite;
use crate::control::{Admission, Lane, QueryPool, Registry, cancel_function};
use crate::ddl::{self, Change, TopicChanges};
use crate::edge::plain_schema;
use crate::inferred::PayloadColumns;
use crate::json::FieldFunctions;
use crate::parameters::{Bindings, Query, inferred, nullable, parameter_names, typed_plan};
use crate::parse::{Parsed, parameter_count, parse};
use crate::plan_walk::{batch_rows, lane, topics};
use crate::session::{physical_rules, repeatable, runtime_env, session_config};
use crate::snapshot::QuerySnapshots;
use crate::sys_tables::SysSources;
use crate::text_rewrite::TextRewrite;
use crate::{QueryConfig, QueryError, Setting, arithmetic, json, sized, spill};

/// Longest statement that is read, in bytes.
pub(crate) const STATEMENT_BYTES: usize = 1 << 20;

/// Turns text into plans. Has no threads.
pub(crate) struct Planner {
    log: Arc<TieredLog>,
    pub(crate) config: QueryConfig,
    /// Everything that queries share; each query gets a copy with its own catalog.
    pub(crate) template: SessionState,
    pub(crate) registry: Arc<Registry>,
    pub(crate) admission: Admission,
    /// What `sys.settings` shows.
    pub(crate) settings: RwLock<Arc<[Setting]>>,
    fields: FieldFunctions,
    /// Who changes topics; without one no statement does.
    topics: OnceLock<Arc<dyn TopicChanges>>,
}

/// What a statement changes, and who does it.
type ChangeBy<'a> = (Change, &'a Arc<dyn TopicChanges>);

/// A statement that was understood.
pub(crate) struct Planned {
    /// Its catalog holds the snapshots, which pin what the query reads.
    state: SessionState,
    snapshots: Arc<QuerySnapshots>,
    /// Analysed, unless values are to be put in the place of parameters first.
    plan: LogicalPlan,
    bindings: Option<Bindings>,
    /// What leaves the engine.
    pub(crate) schema: SchemaRef,
}

/// What a statement would give, and take.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) schema: SchemaRef,
    /// A field a parameter.
    pub(crate) parameters: SchemaRef,
}

impl Planner {
    pub(crate) fn new(log: Arc<TieredLog>, config: QueryConfig) -> Result<Self, QueryError> {
        if let Some(folder) = &config.spill_dir {
            spill::empty(folder).map_err(|source| QueryError::Start { source })?;
        }
        let runtime = runtime_env(&log, &config)?;
        let registry = Arc::new(Registry::new(Arc::clone(log.log().clock())));
        let mut template = SessionStateBuilder::new()
            .with_default_features()
            .with_config(session_config(&config))
            .with_runtime_env(runtime)
            .with_analyzer_rule(Arc::new(CheckedOperators::new()))
            .with_physical_optimizer_rules(physical_rules())
            .build();
        json::register(&mut template)?;
        arithmetic::register(&mut template)?;
        sized::register(&mut template)?;
        template.register_udf(cancel_function(Arc::clone(&registry)))?;
        template.register_function_rewrite(Arc::new(TextRewrite))?;
        template.register_function_rewrite(Arc::new(ComparisonRewrite))?;
        Ok(Self {
            log,
            admission: Admission::new(&config),
            settings: RwLock::new(Arc::clone(&config.settings)),
            config,
            fields: FieldFunctions::of(&template)?,
            template,
            registry,
            topics: OnceLock::new(),
        })
    }

    /// Lets statements change topics from now on. Whoever comes first stays.
    pub(crate) fn set_topics(&self, topics: Arc<dyn TopicChanges>) {
        let _ = self.topics.set(topics);
    }

    pub(crate) fn allows_changes(&self) -> bool {
        self.topics.get().is_some()
    }

    /// What `query` changes, and who does it; `None` for one that does not change topics, or may not.
    pub(crate) fn change(&self, query: &Query) -> Result<Option<ChangeBy<'_>>, QueryError> {
        let Some(topics) = self.topics.get() else {
            return Ok(None);
        };
        let parsed = read(&query.sql)?;
        let change = ddl::read(&parsed.statement)?;
        Ok(change.map(|change| (change, topics)))
    }

    pub(crate) fn log(&self) -> &Arc<TieredLog> {
        &self.log
    }

    /// Understands `query`; takes no snapshot yet.
    pub(crate) async fn plan(&self, query: &Query) -> Result<Planned, QueryError> {
        let parsed = read(&query.sql)?;
        let bound = query.bindings.as_ref();
        let found = bound.map_or(0, Bindings::column_count);
        if parsed.parameter_count != found {
            return Err(QueryError::Parameters {
                expected: parsed.parameter_count,
                found,
            });
        }
        let isolation = match query.sees_uncommitted {
            // A cut is read again as it was, and what is void goes.
            true if parsed.as_of.is_some() => return Err(SnapshotError::Uncommitted.into()),
            true => Isolation::Uncommitted,
            false => Isolation::Committed,
        };
        let (state, snapshots) = self.state(&parsed, isolation)?;
        let Some(bindings) = bound else {
            let plan = state.statement_to_plan(parsed.statement).await?;
            check(&plan, 0)?;
            let plan = analysed(&state, plan)?;
            return Ok(Planned {
                schema: plain_schema(plan.schema().as_arrow())?,
                bindings: None,
                state,
                snapshots,
                plan,
            });
        };
        let untyped = state.statement_to_plan(parsed.statement.clone()).await.ok();
        let bindings = bindings.with_null_types(&inferred(untyped.as_ref(), found)?)?;
        let types: Vec<_> = data_types(&bindings.schema());
        let plan = typed_plan(state.clone(), parsed.statement, &types).await?;
        check(&plan, found)?;
        let mut planned = Planned {
            schema: Arc::new(Schema::empty()),
            bindings: Some(bindings),
            state,
            snapshots,
            plan,
        };
        planned.schema = planned.schema_of_runs()?;
        Ok(planned)
    }

    /// The schemas of what `sql` gives, and of the values that it takes.
    pub(crate) async fn describe(&self, sql: &str) -> Result<Description, QueryError> {
        if self.change(&Query::plain(sql))?.is_some() {
            return Ok(Description {
                schema: Arc::new(Schema::empty()),
                parameters: Arc::new(Schema::empty()),
            });
        }
        let parsed = read(sql)?;
        let count = parsed.parameter_count;
        if count == 0 {
            let planned = self.plan(&Query::plain(sql)).await?;
            return Ok(Description {
                schema: planned.schema,
                parameters: Arc::new(Schema::empty()),
            });
        }
        let (state, _) = self.state(&parsed, Isolation::Committed)?;
        let untyped = state.statement_to_plan(parsed.statement.clone()).await;
        let types = inferred(untyped.as_ref().ok(), count)?;
        let typed = typed_plan(state.clone(), parsed.statement, &types).await;
        // One of both is enough: a function may take a NULL where it takes no text, and the other way round.
        let typed = typed.and_then(|plan| analysed(&state, plan));
        let plan = match (typed, untyped) {
            (Ok(plan), _) => plan,
            (Err(_), Ok(untyped)) => analysed(&state, untyped)?,
            (Err(_), Err(error)) => return Err(error.into()),
        };
        check(&plan, count)?;
        let parameter = |(index, data_type)| Field::new(format!("${}", index + 1), data_type, true);
        let parameters: Vec<_> = types.into_iter().enumerate().map(parameter).collect();
        Ok(Description {
            schema: nullable(plain_schema(plan.schema().as_arrow())?.as_ref()),
            parameters: Arc::new(Schema::new(parameters)),
        })
    }

    /// The state of one query, with its own snapshots, or those that a token names.
    fn state(
        &self,
        parsed: &Parsed,
        isolation: Isolation,
    ) -> Result<(SessionState, Arc<QuerySnapshots>), QueryError> {
        let token = parsed.as_of.as_deref().map(Token::from_text).transpose()?;
        let mut state = self.template.clone();
        if let Some(token) = &token {
            repeatable(&mut state, token);
        }
        let snapshots = QuerySnapshots::new(Arc::clone(&self.log), token, isolation);
        let snapshots = Arc::new(snapshots);
        let sources = SysSources {
            settings: Arc::clone(&self.settings.read()),
            registry: Arc::clone(&self.registry),
        };
        let payload_columns = PayloadColumns {
            names: parsed.payload_columns.clone().into(),
            functions: self.fields.clone(),
        };
        state.register_catalog_list(Arc::new(QueryCatalog::new(
            Arc::clone(&snapshots),
            sources,
            payload_columns,
        )));
        state.mark_start_execution();
        Ok((state, snapshots))
    }
}

fn read(sql: &str) -> Result<Parsed, QueryError> {
    if sql.len() > STATEMENT_BYTES {
        return Err(QueryError::TooLong {
            found_bytes: sql.len(),
            limit_bytes: STATEMENT_BYTES,
        });
    }
    Ok(parse(sql)?)
}

/// Values that the statement `sql` takes.
pub(crate) fn values_taken(sql: &str) -> Result<usize, QueryError> {
    match sql.len() > STATEMENT_BYTES {
        true => read(sql).map(|parsed| parsed.parameter_count),
        false => Ok(parameter_count(sql)?),
    }
}

/// Lets only statements through that read and have at most `count` parameters, by number.
fn check(plan: &LogicalPlan, count: usize) -> Result<(), QueryError> {
    reads_only()
        .verify_plan(plan)
        .map_err(|source| QueryError::ReadOnly {
            source: Box::new(source),
        })?;
    let known = |name: &String| {
        let number = name
            .strip_prefix('$')
            .and_then(|number| number.parse().ok());
        number.is_some_and(|number: usize| (1..=count).contains(&number))
    };
    let names = parameter_names(plan)?;
    match names.into_iter().find(|name| !known(name)) {
        Some(name) => Err(DataFusionError::Plan(format!(
            "parameter {name}: parameters are written ? or $1"
        ))
        .into()),
        None => Ok(()),
    }
}

fn analysed(state: &SessionState, plan: LogicalPlan) -> Result<LogicalPlan, DataFusionError> {
    match plan {
        // Explaining shows each step of the analysis, so it happens there.
        explain @ LogicalPlan::Explain(_) => Ok(explain),
        plan => state
            .analyzer()
            .execute_and_check(plan, state.config_options(), |_, _| {}),
    }
}

fn data_types(schema: &Schema) -> Vec<DataType> {
    let fields = schema.fields().iter();
    fields.map(|field| field.data_type().clone()).collect()
}

impl Planned {
    /// How many times the statement is to run: once for each row that is bound to it.
    pub(crate) fn run_count(&self) -> usize {
        self.bindings.as_ref().map_or(1, Bindings::row_count)
    }

    /// The plan of one run; the topics' snapshots are taken at the first.
    pub(crate) async fn physical_plan(
        &mut self,
        run: usize,
    ) -> Result<Arc<dyn ExecutionPlan>, QueryError> {
        let plan = self.bound(run)?;
        self.snapshots.take(&topics(&plan)?);
        if self.snapshots.as_of().is_none() {
            let batch_rows = batch_rows(&plan, self.state.config().batch_size())?;
            let config = self.state.config_mut();
            *config = config.clone().with_batch_size(batch_rows);
        }
        Ok(self.state.create_physical_plan(&plan).await?)
    }

    /// What it runs in, where its memory counts as `pool`'s.
    pub(crate) fn task_context(
        &self,
        pool: &Arc<QueryPool>,
    ) -> Result<Arc<TaskContext>, QueryError> {
        let shared = self.state.runtime_env();
        let mut runtime =
            RuntimeEnvBuilder::from_runtime_env(shared).with_memory_pool(Arc::clone(pool) as _);
        if self.snapshots.as_of().is_some() {
            // When to spill depends on what others hold, and the order of rows on that (QRY-15).
            let disabled = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
            runtime = runtime.with_disk_manager_builder(disabled);
        }
        let context = TaskContext::from(&self.state).with_runtime(runtime.build_arc()?);
        Ok(Arc::new(context))
    }

    /// Whose places it competes for.
    pub(crate) fn lane(&self) -> Result<Lane, QueryError> {
        Ok(lane(&self.plan)?)
    }

    /// The cut that it reads, once it has a physical plan.
    pub(crate) fn token(&self) -> Option<String> {
        self.snapshots.token(self.state.config().batch_size())
    }

    /// Rows that its scans will give, where that is known.
    pub(crate) fn rows_to_scan(&self) -> Option<u64> {
        self.snapshots.rows_to_scan()
    }

    /// The statement with the values of one run, which must give what the first gives.
    fn bound(&self, run: usize) -> Result<LogicalPlan, QueryError> {
        let Some(bindings) = &self.bindings else {
            return Ok(self.plan.clone());
        };
        let plan = self.with_values(&bindings.row(run)?)?;
        let schema = nullable(plain_schema(plan.schema().as_arrow())?.as_ref());
        match schema == self.schema {
            true => Ok(plan),
            false => Err(DataFusionError::Plan(format!(
                "with the values of row {run} the statement gives other columns than with those of row 0"
            ))
            .into()),
        }
    }

    fn with_values(&self, values: &ParamValues) -> Result<LogicalPlan, DataFusionError> {
        let plan = self.plan.clone().replace_params_with_values(values)?;
        analysed(&self.state, plan)
    }

    /// What each run gives. A value may be NULL in one run and not in another, so every column may be.
    fn schema_of_runs(&self) -> Result<SchemaRef, QueryError> {
        let plan = match &self.bindings {
            Some(bindings) if bindings.row_count() > 0 => self.with_values(&bindings.row(0)?)?,
            _ => analysed(&self.state, self.plan.clone())?,
        };
        Ok(nullable(plain_schema(plan.schema().as_arrow())?.as_ref()))
    }
}

fn reads_only() -> SQLOptions {
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
}
