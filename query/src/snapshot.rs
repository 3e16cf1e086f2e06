//! One snapshot of each topic for the whole of a query.
//!
//! **QRY-3**: a topic's partitions are snapshotted once, all topics of a statement together before it is run, and every scan
//! of that query reads that snapshot, so a self-join agrees with itself. The snapshot pins its segments and cold files until
//! the query ends. The same holds for a topic's schema.
//!
//! Each partition's part is exact by itself. That of all partitions together is of one moment if none of their high watermarks
//! moved while they were taken, which takes some microseconds and is tried again a few times: under appends to very many
//! partitions at once they may be microseconds apart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::datatypes::{Schema, SchemaRef};
use basalt_columnar::{
    ColdFile, PartitionSnapshot, SQL_COLUMN_COUNT, TieredLog, TieredPartition, cold_schema,
};
use basalt_log::{Isolation, TopicId};
use basalt_proto::{Offset, TopicName};
use basalt_schema::SchemaError;
use parking_lot::Mutex;

use crate::as_of::{Cut, SnapshotError, Token, TopicCut};
use crate::columns::TopicColumns;

/// How often snapshots are taken anew because a record came in between.
const TRIES: usize = 8;

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
    taken: Mutex<BTreeMap<TopicName, Taken>>,
    columns: Mutex<BTreeMap<TopicName, TopicColumns>>,
    /// What is to be read again.
    as_of: Option<Token>,
    isolation: Isolation,
    rows_to_scan: AtomicU64,
    /// Some scan may end before its last row.
    limited: AtomicBool,
}

/// A topic as a query sees it; without partitions if it is gone.
#[derive(Debug, Clone)]
struct Taken {
    id: Option<TopicId>,
    partitions: Arc<[PartitionSnapshot]>,
    /// Whether its records are read, and not only what the server says of it.
    read: bool,
}

impl QuerySnapshots {
    pub(crate) fn new(log: Arc<TieredLog>, as_of: Option<Token>, isolation: Isolation) -> Self {
        Self {
            log,
            taken: Mutex::default(),
            columns: Mutex::default(),
            as_of,
            isolation,
            rows_to_scan: AtomicU64::new(0),
            limited: AtomicBool::new(false),
        }
    }

    pub(crate) fn log(&self) -> &Arc<TieredLog> {
        &self.log
    }

    /// What is to be read again, if the statement says so.
    pub(crate) fn as_of(&self) -> Option<&Token> {
        self.as_of.as_ref()
    }

    /// Takes the snapshots of all of `names` that were not taken yet, of one moment if that can be had.
    pub(crate) fn take(&self, names: &[TopicName]) {
        let mut taken = self.taken.lock();
        let new: Vec<_> = names
            .iter()
            .filter(|name| !taken.contains_key(*name))
            .collect();
        for _ in 0..TRIES {
            let topics: Vec<_> = new.iter().map(|name| self.look(name)).collect();
            for (name, (topic, _)) in new.iter().zip(&topics) {
                taken.insert((*name).clone(), topic.clone());
            }
            let mut partitions = topics
                .iter()
                .flat_map(|(topic, partitions)| topic.partitions.iter().zip(partitions));
            let end = |partition: &TieredPartition| match self.isolation {
                Isolation::Uncommitted => partition.offsets().high_watermark,
                Isolation::Committed => partition.offsets().stable_offset,
            };
            if partitions.all(|(snapshot, partition)| end(partition) == snapshot.high_watermark) {
                break;
            }
        }
        for name in names {
            if let Some(topic) = taken.get_mut(name) {
                topic.read = true;
            }
        }
    }

    /// The topic's partitions now, by their number.
    fn look(&self, name: &TopicName) -> (Taken, Vec<Arc<TieredPartition>>) {
        let (id, partitions) = self.partitions(name);
        let snapshots = partitions
            .iter()
            .map(|partition| partition.snapshot_of(self.isolation));
        let taken = Taken {
            id,
            partitions: snapshots.collect(),
            read: false,
        };
        (taken, partitions)
    }

    fn partitions(&self, name: &TopicName) -> (Option<TopicId>, Vec<Arc<TieredPartition>>) {
        let id = self.log.log().topic(name).map(|topic| topic.id());
        let mut partitions = self.log.topic_partitions(name);
        partitions.retain(|partition| Some(partition.topic_id()) == id);
        partitions.sort_by_key(|partition| partition.id());
        (id, partitions)
    }

    /// The topic's partitions as they are, once for the query; empty if the topic is gone.
    pub(crate) fn topic(&self, name: &TopicName) -> Arc<[PartitionSnapshot]> {
        self.taken(name).partitions
    }

    /// The topic's partitions now, with what is not decided yet. A look, which settles nothing for the query.
    pub(crate) fn whole(&self, name: &TopicName) -> Vec<PartitionSnapshot> {
        let (_, partitions) = self.partitions(name);
        partitions
            .iter()
            .map(|partition| partition.snapshot())
            .collect()
    }

    /// The cold files that the topic has now. A look, which settles nothing for the query.
    pub(crate) fn cold_files(&self, name: &TopicName) -> Vec<Arc<ColdFile>> {
        let (topic, _) = self.look(name);
        let files = topic.partitions.iter().flat_map(|snapshot| &snapshot.cold);
        files.cloned().collect()
    }

    fn taken(&self, name: &TopicName) -> Taken {
        let mut taken = self.taken.lock();
        let topic = taken
            .entry(name.clone())
            .or_insert_with(|| self.look(name).0);
        topic.clone()
    }

    /// The topic's partitions as this query reads them: as they are, or cut to what is to be read again.
    ///
    /// # Errors
    /// [`SnapshotError`] where not all of that is there.
    pub(crate) fn cut(&self, name: &TopicName) -> Result<Arc<[PartitionSnapshot]>, SnapshotError> {
        let taken = self.taken(name);
        let Some(token) = &self.as_of else {
            return Ok(taken.partitions);
        };
        let topic = token
            .topic(name)
            .ok_or_else(|| SnapshotError::NotIncluded {
                topic: name.clone(),
            })?;
        if taken.id != Some(topic.id) {
            return Err(SnapshotError::Remade {
                topic: name.clone(),
            });
        }
        let cuts = topic.partitions.iter().filter(|cut| cut.start < cut.end);
        cuts.map(|cut| cut_to(&taken.partitions, name, *cut))
            .collect()
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

    /// What this query reads, as a token: the one it was given, or one of the snapshots that it took. None where it reads no
    /// topic, or far too many partitions, or what may be void.
    pub(crate) fn token(&self, batch_rows: usize) -> Option<String> {
        if self.isolation == Isolation::Uncommitted {
            return None;
        }
        if let Some(token) = &self.as_of {
            return token.to_text();
        }
        let taken = self.taken.lock();
        // What compaction may have taken some of cannot be told by its bounds.
        let is_whole = |topic: &Taken| {
            let mut partitions = topic.partitions.iter();
            partitions.all(|one| one.compacted_end_offset <= one.log_start_offset)
        };
        if !taken.values().filter(|topic| topic.read).all(is_whole) {
            return None;
        }
        let topics: Vec<_> = taken
            .iter()
            .filter(|(_, topic)| topic.read)
            .filter_map(|(name, topic)| {
                let partitions = topic.partitions.iter().map(|snapshot| Cut {
                    partition: snapshot.partition,
                    start: snapshot.log_start_offset,
                    end: snapshot.high_watermark,
                });
                Some(TopicCut {
                    name: name.clone(),
                    id: topic.id?,
                    partitions: partitions.collect(),
                })
            })
            .collect();
        let token = Token {
            batch_rows: u32::try_from(batch_rows).unwrap_or(u32::MAX),
            topics,
        };
        (!token.topics.is_empty()).then(|| token.to_text())?
    }

    /// A scan will give so many rows, or fewer if it has a limit.
    pub(crate) fn add_rows_to_scan(&self, rows: u64, limited: bool) {
        self.rows_to_scan.fetch_add(rows, Ordering::Relaxed);
        self.limited.fetch_or(limited, Ordering::Relaxed);
    }

    /// Rows that all scans planned so far will give; none where that is not known.
    pub(crate) fn rows_to_scan(&self) -> Option<u64> {
        let known = self.as_of.is_none() && !self.limited.load(Ordering::Relaxed);
        known.then(|| self.rows_to_scan.load(Ordering::Relaxed))
    }
}

/// The partition of `now` that `cut` is of, with its bounds. Where records lie is as it is now.
fn cut_to(
    now: &[PartitionSnapshot],
    topic: &TopicName,
    cut: Cut,
) -> Result<PartitionSnapshot, SnapshotError> {
    let found = now
        .iter()
        .find(|snapshot| snapshot.partition == cut.partition);
    let (start, end) = found.map_or((Offset::ZERO, Offset::ZERO), |found| {
        (found.log_start_offset, found.high_watermark)
    });
    if found.is_some_and(|found| cut.start < found.compacted_end_offset) {
        return Err(SnapshotError::Compacted {
            topic: topic.clone(),
            partition: cut.partition,
        });
    }
    if cut.start < start {
        return Err(SnapshotError::Expired {
            topic: topic.clone(),
            partition: cut.partition,
            gone: cut.start..cut.end.min(start),
        });
    }
    match found.filter(|_| cut.end <= end) {
        Some(found) => Ok(PartitionSnapshot {
            log_start_offset: cut.start,
            high_watermark: cut.end,
            ..found.clone()
        }),
        None => Err(SnapshotError::Lost {
            topic: topic.clone(),
            partition: cut.partition,
            lost: end.max(cut.start)..cut.end,
        }),
    }
}
