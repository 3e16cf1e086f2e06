//! How long appends have been waiting for their group commit, measured for each partition: what tells a producer that would
//! rather be refused than wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::TieredPartition;
use basalt_log::TopicId;
use basalt_proto::{Offset, PartitionId};
use parking_lot::Mutex;
use tokio::time::Instant;

/// All appends of a server that wait to become durable. It grows with those alone: a partition without any is not in it.
#[derive(Debug, Default)]
pub(crate) struct CommitWaits {
    state: Mutex<State>,
}

type Key = (TopicId, PartitionId);

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    partitions: HashMap<Key, BTreeMap<u64, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Where what was appended ends, once that is known.
    end: Option<Offset>,
}

/// An append that waits, until dropped.
#[derive(Debug)]
pub(crate) struct CommitWait {
    key: Key,
    id: u64,
    waits: Arc<CommitWaits>,
}

impl CommitWaits {
    /// Notes an append to `partition` that is about to be made and will wait.
    pub(crate) fn enter(self: &Arc<Self>, partition: &TieredPartition) -> CommitWait {
        let key = key(partition);
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        let waiting = state.partitions.entry(key).or_default();
        let since = Instant::now();
        waiting.insert(id, Waiting { since, end: None });
        CommitWait {
            key,
            id,
            waits: Arc::clone(self),
        }
    }

    /// How long the append to `partition` that came first among those that wait has waited; zero when none does. What is durable
    /// waits no more, although its answer may.
    pub(crate) fn oldest(&self, partition: &TieredPartition) -> Duration {
        let durable_offset = partition.hot().durable_offset();
        let state = self.state.lock();
        let waiting = state.partitions.get(&key(partition));
        let mut waiting = waiting.into_iter().flat_map(BTreeMap::values);
        waiting
            .find(|waiting| waiting.end.is_none_or(|end| end > durable_offset))
            .map_or(Duration::ZERO, |waiting| waiting.since.elapsed())
    }
}

fn key(partition: &TieredPartition) -> Key {
    (partition.hot().topic_id(), partition.hot().id())
}

impl CommitWait {
    /// The append was made, and ends there.
    pub(crate) fn appended(&self, end: Offset) {
        let mut state = self.waits.state.lock();
        let waiting = state.partitions.get_mut(&self.key);
        if let Some(waiting) = waiting.and_then(|waiting| waiting.get_mut(&self.id)) {
            waiting.end = Some(end);
        }
    }
}

impl Drop for CommitWait {
    fn drop(&mut self) {
        let mut state = self.waits.state.lock();
        if let Some(waiting) = state.partitions.get_mut(&self.key) {
            waiting.remove(&self.id);
            if waiting.is_empty() {
                state.partitions.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use basalt_proto::TopicName;

    use super::*;
    use crate::tests::shared;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wait_is_that_of_the_append_that_came_first_and_is_not_durable() {
        let (_dir, shared) = shared(|_| {}).await;
        let topic = TopicName::new("t").unwrap();
        let partition = shared.partition_or_create(&topic, PartitionId(0)).await;
        let partition = partition.unwrap();
        let waits = Arc::new(CommitWaits::default());
        assert_eq!(waits.oldest(&partition), Duration::ZERO);
        let first = waits.enter(&partition);
        let between = Instant::now();
        while between.elapsed() < Duration::from_millis(2) {
            tokio::task::yield_now().await;
        }
        let second = waits.enter(&partition);
        assert!(waits.oldest(&partition) >= Duration::from_millis(2));
        drop(first);
        assert!(waits.oldest(&partition) < between.elapsed());
        // What the log has on disk is not waited for, be it answered or not.
        second.appended(Offset(1));
        assert!(waits.oldest(&partition) > Duration::ZERO);
        second.appended(Offset::ZERO);
        assert_eq!(waits.oldest(&partition), Duration::ZERO);
        drop(second);
        assert!(waits.state.lock().partitions.is_empty());
    }
}
