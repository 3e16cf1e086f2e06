//! One snapshot of each topic for the whole of a query.
//!
//! **QRY-3**: a topic's partitions are snapshotted once, at the query's first use of the topic, and every scan of that
//! query reads that snapshot, so a self-join agrees with itself. The snapshot pins its segments and cold files until the
//! query ends. The same holds for the topic's schema.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use basalt_columnar::{PartitionSnapshot, SQL_COLUMN_COUNT, TieredLog, cold_schema};
use basalt_proto::TopicName;
use basalt_schema::SchemaError;
use parking_lot::Mutex;

use crate::columns::TopicColumns;

/// The columns every topic's table has, before those that its schema declares.
pub(crate) fn topic_schema() -> SchemaRef {
    static SCHEMA: std::sync::LazyLock<SchemaRef> = std::sync::LazyLock::new(|| {
        Arc::new(Schema::new(
            cold_schema()
                .fields()
                .iter()
                .take(SQL_COLUMN_COUNT)
                .cloned()
                .collect::<Vec<_>>(),
        ))
    });
    Arc::clone(&SCHEMA)
}

/// The snapshots that one query took so far.
#[derive(Debug)]
pub(crate) struct QuerySnapshots {
    log: Arc<TieredLog>,
    taken: Mutex<HashMap<TopicName, Arc<[PartitionSnapshot]>>>,
    columns: Mutex<HashMap<TopicName, TopicColumns>>,
}

impl QuerySnapshots {
    pub(crate) fn new(log: Arc<TieredLog>) -> Self {
        Self {
            log,
            taken: Mutex::default(),
            columns: Mutex::default(),
        }
    }

    pub(crate) fn log(&self) -> &Arc<TieredLog> {
        &self.log
    }

    /// The topic's partitions as this query sees them; empty if the topic is gone.
    pub(crate) fn topic(&self, name: &TopicName) -> Arc<[PartitionSnapshot]> {
        let mut taken = self.taken.lock();
        let snapshots = taken.entry(name.clone()).or_insert_with(|| {
            self.log
                .topic_partitions(name)
                .iter()
                .map(|partition| partition.snapshot())
                .collect()
        });
        Arc::clone(snapshots)
    }

    /// The columns of the topic's table as this query sees them.
    ///
    /// # Errors
    /// The topic's schema is one that only a later version of this program can read.
    pub(crate) fn columns(&self, name: &TopicName) -> Result<TopicColumns, SchemaError> {
        let mut columns = self.columns.lock();
        if let Some(known) = columns.get(name) {
            return Ok(known.clone());
        }
        let found = TopicColumns::new(self.log.topic_schema(name)?);
        columns.insert(name.clone(), found.clone());
        Ok(found)
    }

    /// The names of all topics, in order.
    pub(crate) fn topic_names(&self) -> Vec<TopicName> {
        let mut names: Vec<TopicName> = self
            .log
            .log()
            .topics()
            .iter()
            .map(|topic| topic.name().clone())
            .collect();
        names.sort_unstable();
        names
    }
}
