//! What queries run in: memory, spill files, DataFusion's settings and rules.

use std::num::NonZeroUsize;
use std::sync::Arc;

use basalt_columnar::TieredLog;
use datafusion::config::Dialect;
use datafusion::execution::SessionState;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::SessionConfig;

use crate::as_of::{Token, UnionsInOrder};
use crate::catalog::{CATALOG, TOPICS_SCHEMA};
use crate::cold_scan::store_url;
use crate::yielding::YieldingJoins;
use crate::{QueryConfig, QueryError};

pub(crate) fn runtime_env(
    log: &TieredLog,
    config: &QueryConfig,
) -> Result<Arc<RuntimeEnv>, QueryError> {
    let named = NonZeroUsize::MIN.saturating_add(4);
    let pool = TrackConsumersPool::new(FairSpillPool::new(config.memory_bytes), named);
    let spilling = match &config.spill_dir {
        Some(folder) => DiskManagerMode::Directories(vec![folder.clone()]),
        None => DiskManagerMode::Disabled,
    };
    let disk = DiskManagerBuilder::default()
        .with_mode(spilling)
        .with_max_temp_directory_size(config.spill_bytes);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_disk_manager_builder(disk)
        .build_arc()?;
    runtime.register_object_store(
        store_url()?.as_ref(),
        Arc::clone(log.store().object_store()),
    );
    Ok(runtime)
}

/// DataFusion's own rules, with ours before and behind them.
pub(crate) fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> =
        vec![Arc::new(UnionsInOrder)];
    rules.extend(PhysicalOptimizer::new().rules);
    rules.push(Arc::new(YieldingJoins));
    rules
}

pub(crate) fn session_config(config: &QueryConfig) -> SessionConfig {
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

/// Lets nothing decide but the rows themselves (QRY-15).
pub(crate) fn repeatable(state: &mut SessionState, token: &Token) {
    let config = state.config_mut();
    *config = config
        .clone()
        .with_target_partitions(1)
        .with_batch_size(usize::try_from(token.batch_rows).unwrap_or(usize::MAX));
    // What a join or a limit learns on its way prunes otherwise in Parquet than in segments.
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.enable_dynamic_filter_pushdown = false;
    optimizer.enable_topk_dynamic_filter_pushdown = false;
    optimizer.enable_join_dynamic_filter_pushdown = false;
    optimizer.enable_aggregate_dynamic_filter_pushdown = false;
}
