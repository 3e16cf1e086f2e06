//! Commits: one offset a connection, answered once it is durable.
//!
//! A refused commit is answered by the end of the connection alone: HermitMQ's clients take any byte for a success.

use basalt_proto::{COMMIT_ACCEPTED, GroupName, Offset, PartitionId, TopicName};

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
    shared
        .log
        .log()
        .groups()
        .commit(group, topic, partition, offset)
        .await?;
    Counters::increment(&shared.counters.commits);
    Ok(())
}
