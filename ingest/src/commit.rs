//! Commits: one offset a connection, answered once it is durable.
//!
//! A refused commit is answered by the end of the connection alone: HermitMQ's clients take any byte for a success.

use basalt_log::{Change, Commit};
use basalt_proto::{COMMIT_ACCEPTED, ErrorKind, GroupName, Offset, PartitionId, TopicName};

use crate::Counters;
use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::output::Then;
use crate::shared::Shared;

pub(crate) async fn serve(
    connection: &Connection<'_>,
    group: &GroupName,
    topic: &TopicName,
    partition: PartitionId,
    offset: Offset,
) -> Result<(), ConnectionError> {
    if let Err(refusal) = store(connection.shared, group, topic, partition, offset).await {
        connection.shared.counters.refuse(refusal.kind, 1);
        return Err(refusal.into());
    }
    connection
        .output()
        .send(&[COMMIT_ACCEPTED], Then::Nothing)
        .await
}

/// Stores the offset at which `group` resumes; durable on return. A commit is a use: it may make the topic, as HermitMQ does. An offset beyond the end is kept as given: what a
/// consumer does with it is decided when it resumes.
///
/// # Errors
/// A [`Refusal`]: no such partition, a topic that may not be made, or the disk refused.
pub(crate) async fn store(
    shared: &Shared,
    group: &GroupName,
    topic: &TopicName,
    partition: PartitionId,
    offset: Offset,
) -> Result<(), Refusal> {
    shared.partition_or_create(topic, partition).await?;
    let topic = shared.topic(topic)?;
    let groups = shared.log.log().groups();
    groups.commit(group, &topic, partition, offset).await?;
    Counters::increment(&shared.counters.commits);
    Ok(())
}

/// As [`store`], but of a topic that exists; members of the group have to join again, and find the offset.
///
/// # Errors
/// A [`Refusal`]: no such partition, or the disk refused.
pub(crate) async fn seek(
    shared: &Shared,
    group: &GroupName,
    topic: &TopicName,
    partition: PartitionId,
    offset: Offset,
) -> Result<(), Refusal> {
    shared.existing_partition(topic, partition)?;
    if shared
        .transactions
        .pending(group)
        .contains(&(topic.clone(), partition))
    {
        let message = format!(
            "group {group} has an offset of topic {topic}, partition {partition}, in an open transaction: move it when that has ended"
        );
        return Err(Refusal::new(ErrorKind::Busy, message));
    }
    let commit = Commit {
        topic: shared.topic(topic)?,
        partition,
        offset,
        metadata: String::new(),
    };
    let change = Change::Commit(vec![commit]);
    let moved = shared.coordinator.seek(group, change);
    let moved = moved.ok_or_else(|| Refusal::new(ErrorKind::Busy, "there are too many groups"))?;
    moved.durable().await?;
    Counters::increment(&shared.counters.commits);
    Ok(())
}
