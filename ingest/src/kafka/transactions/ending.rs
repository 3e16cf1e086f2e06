//! How a transaction ends: decided, told to its partitions, written down.

use std::sync::Arc;

use basalt_log::{Change, Commit, Durability, Partition, Topic, TransactionChange};
use basalt_proto::batch::Marker;
use basalt_proto::{FrameBatch, GroupName};
use futures::future::join_all;

use super::state::{Phase, Place, Transaction};
use super::{Transactions, failed};

impl Transactions {
    /// Decides an open transaction and ends it.
    pub(super) async fn end_open(
        &self,
        id: &str,
        state: &mut Option<Transaction>,
        decided: Transaction,
        marker: Marker,
    ) -> Result<(), i16> {
        let groups = match marker {
            Marker::Abort => Vec::new(),
            Marker::Commit => {
                // What is decided is on the disk before the decision, whatever the topics' levels promise.
                let places = decided.places.iter();
                let durable = join_all(places.map(|place| self.settle(place))).await;
                durable.into_iter().collect::<Result<(), i16>>()?;
                self.commits(&decided)
            }
        };
        self.store(id, state, decided, groups).await?;
        self.finish(id, state).await
    }

    /// What groups commit with a transaction. A topic that is gone has no offsets.
    pub(super) fn commits(&self, transaction: &Transaction) -> Vec<(GroupName, Change)> {
        let groups = transaction.offsets.iter().map(|(group, offsets)| {
            let commits = offsets.iter().filter_map(|(place, (offset, metadata))| {
                let topic = self.log.log().topic(&place.topic)?;
                (topic.id() == place.topic_id()).then(|| Commit {
                    topic,
                    partition: place.partition,
                    offset: *offset,
                    metadata: metadata.clone(),
                })
            });
            (group.clone(), Change::Commit(commits.collect()))
        });
        groups.collect()
    }

    /// Tells all partitions what was decided, and writes down that they know.
    pub(super) async fn finish(
        &self,
        id: &str,
        state: &mut Option<Transaction>,
    ) -> Result<(), i16> {
        let Some(transaction) = &*state else {
            return Ok(());
        };
        let Phase::Ending(marker) = transaction.phase else {
            return Ok(());
        };
        let told = transaction.places.iter();
        let producer = (transaction.producer_id, transaction.epoch);
        let told = join_all(told.map(|place| self.tell(place, producer, marker))).await;
        told.into_iter().collect::<Result<(), i16>>()?;
        let ended = transaction.ended(marker);
        let change = TransactionChange {
            id: id.to_owned(),
            state: Some(ended.encode()),
        };
        // Not waited for. Whatever comes next for the id is stored behind it, and where it is lost partitions are told again, who know.
        drop(
            self.log
                .log()
                .groups()
                .begin_transaction(change, Vec::new()),
        );
        self.count(id, state.as_ref(), Some(&ended));
        *state = Some(ended);
        Ok(())
    }

    /// The partition, unless its topic is gone.
    pub(super) fn partition(&self, place: &Place) -> Option<(Arc<Topic>, Arc<Partition>)> {
        let found = self.log.log().topic(&place.topic);
        let topic = found.filter(|topic| topic.id() == place.topic_id())?;
        let partition = topic.partition(place.partition)?;
        Some((topic, partition))
    }

    /// Makes what a partition has durable.
    pub(super) async fn settle(&self, place: &Place) -> Result<(), i16> {
        let Some((topic, partition)) = self.partition(place) else {
            return Ok(());
        };
        let durable = match partition.request_commit() {
            Ok(end) => partition.wait_durable(end).await,
            Err(error) => Err(error),
        };
        match durable {
            Err(error) if !topic.is_deleted() => Err(failed(place, &error)),
            _ => Ok(()),
        }
    }

    /// Ends a producer's transaction in one partition; durable on return, whatever the topic's level promises: a marker that was lost
    /// would be told again by nobody.
    pub(super) async fn tell(
        &self,
        place: &Place,
        (producer_id, epoch): (i64, i16),
        marker: Marker,
    ) -> Result<(), i16> {
        let Some((topic, partition)) = self.partition(place) else {
            return Ok(());
        };
        let now_ms = self.log.log().now_ns() / 1_000_000;
        let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
        let frame = marker.frame(producer_id, epoch, now_ms);
        let frame = frame.map_err(|error| failed(place, &error))?;
        let batch = FrameBatch::marker(&frame).map_err(|error| failed(place, &error))?;
        let durability = Durability::Fsync;
        let told = match partition.end_transaction(producer_id, &batch, durability) {
            Ok(appended) => partition.acknowledged(&appended, durability).await,
            Err(error) => Err(error),
        };
        // What waited for it can be cooled.
        self.log.wake_maintenance();
        match told {
            Err(error) if !topic.is_deleted() => Err(failed(place, &error)),
            _ => Ok(()),
        }
    }

    /// Aborts what is open under the next epoch, so that whoever had it writes no more.
    pub(super) async fn fence(&self, id: &str, state: &mut Option<Transaction>) -> Result<(), i16> {
        let Some(transaction) = &*state else {
            return Ok(());
        };
        let fenced = transaction.fenced().unwrap_or_else(|| transaction.clone());
        let decided = fenced.decided(Marker::Abort);
        self.end_open(id, state, decided, Marker::Abort).await
    }
}
