//! What queries may use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A setting of the server, as `sys.settings` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name with its section, `query.timeout_ms`.
    pub name: String,
    /// What it is set to.
    pub value: String,
    /// What it does.
    pub description: String,
}

/// Limits of the query engine.
#[derive(Debug, Clone)]
pub struct QueryConfig {
    /// Bytes that all running queries together may hold in sorts, joins and aggregates before they spill to disk or are
    /// refused. Default 1 GiB; below 64 MiB ordinary aggregates over many groups are refused.
    pub memory_bytes: usize,
    /// Queries that run at a time; others wait. Default 8. More: each has less memory and less of the processor.
    pub max_concurrent: usize,
    /// Queries that may wait for a place; any other is refused at once. Default 64.
    pub max_queued: usize,
    /// Longest a query waits for a place before it is refused. Default 30 s.
    pub queue_timeout: Duration,
    /// Folder for what does not fit the memory; queries' files that are left in it are deleted at start. Without one, which is
    /// the default, queries that would need it are refused.
    pub spill_dir: Option<PathBuf>,
    /// Bytes of files that all running queries together may have in it. Default 16 GiB.
    pub spill_bytes: u64,
    /// By how much the threads of queries stand behind all others of the machine, as in nice(1): 0 to 19. Default 10.
    pub nice: i32,
    /// Longest a query may run, from its arrival to its last row: a client that reads slowly uses it up too. Default
    /// 5 minutes.
    pub timeout: Duration,
    /// Rows in a batch. Default 8192; fewer give the first row sooner, more cost less a row. Where rows are very wide,
    /// fewer are taken. At most [`Self::MAX_BATCH_ROWS`].
    pub batch_rows: usize,
    /// Parallel streams of one query, and threads that all queries share. Default: the number of processors.
    pub target_partitions: usize,
    /// The server's settings, which the engine only shows. Default: none.
    pub settings: Arc<[Setting]>,
}

impl QueryConfig {
    /// The most rows that a batch may have: columns take room for all of them at once.
    pub const MAX_BATCH_ROWS: usize = 1 << 20;
}

impl Default for QueryConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            max_concurrent: 8,
            max_queued: 64,
            queue_timeout: Duration::from_secs(30),
            spill_dir: None,
            spill_bytes: 16 << 30,
            nice: 10,
            timeout: Duration::from_secs(300),
            batch_rows: 8192,
            target_partitions: std::thread::available_parallelism()
                .map_or(1, std::num::NonZero::get),
            settings: Arc::default(),
        }
    }
}
