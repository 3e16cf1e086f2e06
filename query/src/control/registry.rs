//! The queries that are there, and the last ones that were.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use basalt_log::Clock;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::progress::Progress;
use super::{QueryId, QueryPool};
use crate::counters::{Counters, Outcome};

/// Queries that ended and are still shown.
const HISTORY: usize = 200;
/// Ids that were cancelled before their query came.
const REFUSALS: usize = 200;
/// Characters of a statement, and of an error, that are kept.
const TEXT_CHARS: usize = 2_000;

/// Where a query is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Planning,
    Queued,
    Running,
    Ended(Outcome),
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ended(Outcome::Succeeded) => "finished",
            Self::Ended(Outcome::Failed) => "failed",
            Self::Ended(Outcome::Cancelled) => "cancelled",
        }
    }
}

/// What is shown of a query.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) id: QueryId,
    pub(crate) state: State,
    /// Address, and what it calls itself.
    pub(crate) client: Option<String>,
    pub(crate) sql: String,
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: Option<u64>,
    /// Handed to the client.
    pub(crate) rows: u64,
    pub(crate) scanned_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) spilled_bytes: u64,
    /// Between 0 and 1; none where it is not known how much there is to read.
    pub(crate) progress: Option<f64>,
    pub(crate) snapshot: Option<String>,
    pub(crate) error: Option<String>,
}

/// All queries of an engine.
#[derive(Debug)]
pub(crate) struct Registry {
    epoch_ns: u64,
    next: AtomicU64,
    clock: Arc<dyn Clock>,
    counters: Counters,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By arrival. A ticket that is used twice is two queries with one id.
    running: BTreeMap<u64, Arc<Entry>>,
    ended: VecDeque<Line>,
    refused: VecDeque<QueryId>,
}

/// A query that has not ended.
#[derive(Debug)]
pub(crate) struct Entry {
    id: QueryId,
    client: Option<String>,
    sql: String,
    started_ns: u64,
    rows: AtomicU64,
    pool: Arc<QueryPool>,
    cancelled: Notify,
    changing: Mutex<Changing>,
}

#[derive(Debug)]
struct Changing {
    state: State,
    plan: Option<Arc<dyn ExecutionPlan>>,
    /// Of runs before this one.
    before: Progress,
    rows_to_scan: Option<u64>,
    snapshot: Option<String>,
    error: Option<String>,
}

impl Registry {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            epoch_ns: clock.now_ns(),
            next: AtomicU64::new(1),
            clock,
            counters: Counters::default(),
            inner: Mutex::default(),
        }
    }

    /// An id that no other query has.
    pub(crate) fn next_id(&self) -> QueryId {
        QueryId {
            epoch_ns: self.epoch_ns,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Enters a query, which is listed as running until the value is dropped.
    pub(crate) fn begin(
        self: &Arc<Self>,
        id: QueryId,
        sql: &str,
        client: Option<String>,
        memory: Arc<dyn MemoryPool>,
    ) -> Running {
        self.counters.start();
        let entry = Arc::new(Entry {
            id,
            client: client.map(|client| shortened(&client)),
            sql: shortened(sql),
            started_ns: self.clock.now_ns(),
            rows: AtomicU64::new(0),
            pool: Arc::new(QueryPool::new(memory)),
            cancelled: Notify::new(),
            changing: Mutex::new(Changing {
                state: State::Planning,
                plan: None,
                before: Progress::default(),
                rows_to_scan: None,
                snapshot: None,
                error: None,
            }),
        });
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        if inner.refused.contains(&id) {
            entry.cancelled.notify_one();
        }
        inner.running.insert(key, Arc::clone(&entry));
        Running {
            registry: Arc::clone(self),
            entry,
            key,
            outcome: Outcome::Cancelled,
        }
    }

    /// Tells every query of this id to stop; whether there was one.
    pub(crate) fn cancel(&self, id: QueryId) -> bool {
        let inner = self.inner.lock();
        let mut found = false;
        for entry in inner.running.values().filter(|entry| entry.id == id) {
            entry.cancelled.notify_one();
            found = true;
        }
        found
    }

    /// As [`Registry::cancel`]; a query of this id that was announced and has not come yet is refused when it does. None if it
    /// has ended, or nobody was ever given this id.
    pub(crate) fn cancel_announced(&self, id: QueryId) -> bool {
        if self.cancel(id) {
            return true;
        }
        let mut inner = self.inner.lock();
        let known = id.epoch_ns == self.epoch_ns && id.number < self.next.load(Ordering::Relaxed);
        if !known || inner.ended.iter().any(|line| line.id == id) {
            return false;
        }
        inner.refused.push_back(id);
        if inner.refused.len() > REFUSALS {
            inner.refused.pop_front();
        }
        true
    }

    /// Every query that is there, and the last ones that ended, by arrival.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let (mut lines, running) = {
            let inner = self.inner.lock();
            let running: Vec<_> = inner.running.values().cloned().collect();
            (inner.ended.iter().cloned().collect::<Vec<_>>(), running)
        };
        lines.extend(running.iter().map(|entry| entry.line()));
        lines.sort_by_key(|line| (line.started_ns, line.id));
        lines
    }

    /// How many wait for a place, and how many plan or run.
    pub(crate) fn queued_and_running(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let queued = inner.running.values().filter(|entry| entry.is_queued());
        let queued = queued.count() as u64;
        (queued, inner.running.len() as u64 - queued)
    }
}

impl Entry {
    /// Its account of the memory that all share.
    pub(crate) fn pool(&self) -> &Arc<QueryPool> {
        &self.pool
    }

    /// Ends when somebody cancels it.
    pub(crate) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }

    pub(crate) fn set_state(&self, state: State) {
        self.changing.lock().state = state;
    }

    fn is_queued(&self) -> bool {
        self.changing.lock().state == State::Queued
    }

    /// What is about to run, and the cut it reads.
    pub(crate) fn set_plan(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        rows_to_scan: Option<u64>,
        snapshot: Option<&str>,
    ) {
        let mut changing = self.changing.lock();
        let before = changing.progress();
        changing.before = before;
        changing.plan = Some(Arc::clone(plan));
        changing.rows_to_scan = rows_to_scan;
        changing.snapshot = snapshot.map(str::to_owned);
    }

    pub(crate) fn add_rows(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    fn line(&self) -> Line {
        let changing = self.changing.lock();
        let progress = changing.progress();
        let known = changing.rows_to_scan.filter(|rows| *rows > 0);
        Line {
            id: self.id,
            state: changing.state,
            client: self.client.clone(),
            sql: self.sql.clone(),
            started_ns: self.started_ns,
            ended_ns: None,
            rows: self.rows.load(Ordering::Relaxed),
            scanned_bytes: progress.scanned_bytes,
            memory_bytes: self.pool.held_bytes() as u64,
            spilled_bytes: progress.spilled_bytes,
            progress: known.map(|rows| share(progress.scanned_rows, rows)),
            snapshot: changing.snapshot.clone(),
            error: changing.error.clone(),
        }
    }
}

impl Changing {
    fn progress(&self) -> Progress {
        let mut progress = self.before;
        if let Some(plan) = &self.plan {
            let now = Progress::of(plan);
            progress.scanned_rows += now.scanned_rows;
            progress.scanned_bytes += now.scanned_bytes;
            progress.spilled_bytes += now.spilled_bytes;
        }
        progress
    }
}

/// Not more than all: rows that a join reads twice count twice.
fn share(done: u64, all: u64) -> f64 {
    (done as f64 / all as f64).min(1.0)
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}

/// A query as long as it runs; counts and lists it as ended when dropped, however that comes.
#[derive(Debug)]
pub(crate) struct Running {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
    key: u64,
    outcome: Outcome,
}

impl Running {
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// It ended, and how; without this it was dropped on the way.
    pub(crate) fn end(mut self, outcome: Outcome, error: Option<String>) {
        self.outcome = outcome;
        self.entry.changing.lock().error = error.map(|error| shortened(&error));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let outcome = match std::thread::panicking() {
            true => Outcome::Failed,
            false => self.outcome,
        };
        let mut line = self.entry.line();
        line.state = State::Ended(outcome);
        line.ended_ns = Some(self.registry.clock.now_ns());
        line.memory_bytes = 0;
        if outcome == Outcome::Succeeded {
            line.progress = Some(1.0);
        }
        // Metrics stay readable as long as somebody holds the plan.
        self.entry.changing.lock().plan = None;
        let mut inner = self.registry.inner.lock();
        inner.running.remove(&self.key);
        inner.ended.push_back(line);
        if inner.ended.len() > HISTORY {
            inner.ended.pop_front();
        }
        // Counted while nobody can look: whoever sees that it ended sees it counted.
        self.registry.counters.end(outcome);
    }
}
