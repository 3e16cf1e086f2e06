//! What each request but fetch does.

use std::sync::Arc;

use basalt_columnar::{TierBounds, TieredPartition};
use basalt_log::{Durability, Topic};
use basalt_proto::session::{
    AckLevel, CommittedResponse, ConfigPairs, CoolTopicResponse, EmptyResponse, GroupEntry,
    GroupsResponse, MetadataResponse, PartitionMetadata, ProduceRequest, ProduceResponse, Request,
    ResponseBody, TopicMetadata,
};
use basalt_proto::{ErrorKind, FrameBatch, GroupName, Offset, PartitionId, TopicName};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Answer, fetch};
use crate::commit;
use crate::commit_wait::CommitWait;
use crate::error::Refusal;
use crate::shared::Shared;
use crate::topics::detached;

/// A produce request whose frames were checked and whose partition was found.
#[derive(Debug)]
pub(super) struct Admitted<'b> {
    batch: FrameBatch<'b>,
    pub(super) partition: Arc<TieredPartition>,
    durability: Durability,
}

/// Finds the partition of a produce request, and what its level demands.
///
/// # Errors
/// A [`Refusal`]: no such topic or partition, or a topic that could not be made.
pub(super) async fn admit<'b>(
    shared: &Shared,
    request: &ProduceRequest<'_>,
    batch: FrameBatch<'b>,
) -> Result<Admitted<'b>, Refusal> {
    let partition = shared
        .partition_or_create(&request.topic, request.partition)
        .await?;
    let durability = match request.ack {
        AckLevel::None => Durability::None,
        AckLevel::Os => Durability::Os,
        AckLevel::Fsync => Durability::Fsync,
        AckLevel::TopicDefault => partition.hot().config().durability.into(),
    };
    Ok(Admitted {
        batch,
        partition,
        durability,
    })
}

impl Admitted<'_> {
    /// Whether the answer has to wait for a group commit.
    pub(super) fn waits(&self) -> bool {
        self.durability == Durability::Fsync
    }

    /// Appends the frames; they are in the page cache on return.
    ///
    /// # Errors
    /// A [`Refusal`]: nothing was appended.
    pub(super) fn append(&self, shared: &Shared) -> Result<ProduceResponse, Refusal> {
        let appended = self.partition.append(&self.batch, self.durability);
        let appended = appended.map_err(|error| shared.append_refusal(&self.partition, error))?;
        shared.counters.stored(&self.batch);
        Ok(ProduceResponse {
            base_offset: appended.base_offset,
            end_offset: appended.end_offset,
        })
    }
}

/// Answers an append once it is on disk (ING-1).
pub(super) async fn acknowledge(
    shared: &Shared,
    correlation_id: u32,
    partition: Arc<TieredPartition>,
    response: ProduceResponse,
    wait: CommitWait,
) -> Answer {
    let durable = partition.hot().wait_durable(response.end_offset).await;
    drop(wait);
    respond(
        shared,
        correlation_id,
        durable
            .map(|()| response)
            .map_err(|error| shared.append_refusal(&partition, error)),
    )
}

fn respond(
    shared: &Shared,
    correlation_id: u32,
    result: Result<impl ResponseBody, Refusal>,
) -> Answer {
    match result {
        Ok(body) => Answer::ok(correlation_id, &body),
        Err(refusal) => {
            shared.counters.refuse(refusal.kind, 1);
            Answer::refused(correlation_id, &refusal)
        }
    }
}

/// The future that answers a request which is neither produce nor fetch nor options.
pub(super) fn answer<'a>(
    shared: &'a Shared,
    id: u32,
    request: Request<'_>,
) -> BoxFuture<'a, Answer> {
    match request {
        Request::Authenticate { .. } => {
            let message = "nobody is asked here who they are, or not now: go on without";
            let refusal = Refusal::new(ErrorKind::InvalidRequest, message);
            std::future::ready(respond(shared, id, Err::<EmptyResponse, _>(refusal))).boxed()
        }
        // They are served before they get here.
        Request::Produce(_) | Request::Fetch(_) | Request::Options { .. } => {
            let refusal = Refusal::new(ErrorKind::Internal, "the request came to the wrong place");
            std::future::ready(Answer::refused(id, &refusal)).boxed()
        }
        Request::Ping => std::future::ready(Answer::ok(id, &EmptyResponse)).boxed(),
        Request::ListOffsets(request) => {
            async move { respond(shared, id, fetch::list_offsets(shared, &request).await) }.boxed()
        }
        Request::Metadata { topics } => {
            async move { respond(shared, id, metadata(shared, &topics)) }.boxed()
        }
        Request::Commit {
            group,
            topic,
            partition,
            offset,
        } => async move {
            let stored = commit::store(shared, &group, &topic, partition, offset).await;
            respond(shared, id, stored.map(|()| EmptyResponse))
        }
        .boxed(),
        Request::Seek {
            group,
            topic,
            partition,
            offset,
        } => async move {
            let moved = commit::seek(shared, &group, &topic, partition, offset).await;
            respond(shared, id, moved.map(|()| EmptyResponse))
        }
        .boxed(),
        Request::Committed {
            group,
            topic,
            partition,
        } => {
            let offset = shared
                .log
                .log()
                .groups()
                .committed(&group, &topic, partition)
                .map(|committed| committed.offset);
            std::future::ready(Answer::ok(id, &CommittedResponse { offset })).boxed()
        }
        Request::CreateTopic {
            topic,
            partitions,
            config,
        } => async move {
            respond(
                shared,
                id,
                create_topic(shared, topic, partitions, config).await,
            )
        }
        .boxed(),
        Request::DeleteTopic { topic } => {
            async move { respond(shared, id, delete_topic(shared, topic).await) }.boxed()
        }
        Request::AlterTopic { topic, config } => {
            async move { respond(shared, id, alter_topic(shared, topic, config).await) }.boxed()
        }
        Request::AddPartitions { topic, partitions } => {
            async move { respond(shared, id, add_partitions(shared, topic, partitions).await) }
                .boxed()
        }
        Request::CoolTopic { topic, wait } => {
            async move { respond(shared, id, cool_topic(shared, topic, wait).await) }.boxed()
        }
        Request::Groups { group } => {
            async move { respond(shared, id, Ok(groups(shared, group.as_ref()))) }.boxed()
        }
    }
}

fn metadata(shared: &Shared, names: &[TopicName]) -> Result<MetadataResponse, Refusal> {
    let topics: Vec<Arc<Topic>> = if names.is_empty() {
        shared.log.log().topics()
    } else {
        names
            .iter()
            .map(|name| shared.topic(name))
            .collect::<Result<_, _>>()?
    };
    let mut topics: Vec<TopicMetadata> =
        topics.iter().map(|topic| describe(shared, topic)).collect();
    topics.sort_by(|a, b| a.topic.cmp(&b.topic));
    Ok(MetadataResponse { topics })
}

fn describe(shared: &Shared, topic: &Topic) -> TopicMetadata {
    let describe = |(partition, bounds): (PartitionId, TierBounds)| PartitionMetadata {
        partition,
        log_start_offset: bounds.log_start_offset,
        cold_end_offset: bounds.cold_end_offset,
        high_watermark: bounds.high_watermark,
        log_end_offset: bounds.log_end_offset,
        hot_bytes: bounds.hot_bytes,
        cold_bytes: bounds.cold_bytes,
    };
    TopicMetadata {
        topic: topic.name().clone(),
        topic_id: topic.id().0,
        config: topic.config().to_pairs(),
        partitions: shared.log.topic_bounds(topic).map(describe).collect(),
    }
}

fn groups(shared: &Shared, only: Option<&GroupName>) -> GroupsResponse {
    let mut groups = Vec::new();
    for (group, topic, partition, committed) in shared.log.log().groups().list() {
        if only.is_some_and(|only| *only != group) {
            continue;
        }
        // Of a topic that is gone nothing can be read.
        let high_watermark = shared
            .log
            .partition(&topic, partition)
            .map_or(Offset::ZERO, |found| found.bounds().high_watermark);
        groups.push(GroupEntry {
            group,
            topic,
            partition,
            committed,
            high_watermark,
        });
    }
    groups
        .sort_by(|a, b| (&a.group, &a.topic, a.partition).cmp(&(&b.group, &b.topic, b.partition)));
    GroupsResponse { groups }
}

async fn create_topic(
    shared: &Shared,
    topic: TopicName,
    partitions: u32,
    config: ConfigPairs,
) -> Result<EmptyResponse, Refusal> {
    shared
        .topics
        .create(topic, Some(partitions), config)
        .await?;
    Ok(EmptyResponse)
}

async fn alter_topic(
    shared: &Shared,
    topic: TopicName,
    config: ConfigPairs,
) -> Result<EmptyResponse, Refusal> {
    shared.topics.alter(topic, config).await?;
    Ok(EmptyResponse)
}

async fn add_partitions(
    shared: &Shared,
    topic: TopicName,
    partitions: u32,
) -> Result<EmptyResponse, Refusal> {
    shared.topics.add_partitions(topic, partitions).await?;
    Ok(EmptyResponse)
}

async fn delete_topic(shared: &Shared, topic: TopicName) -> Result<EmptyResponse, Refusal> {
    shared.topics.delete(topic).await?;
    Ok(EmptyResponse)
}

async fn cool_topic(
    shared: &Shared,
    topic: TopicName,
    wait: bool,
) -> Result<CoolTopicResponse, Refusal> {
    shared.topic(&topic)?;
    let log = Arc::clone(&shared.log);
    let report = detached(async move { log.cool_topic(&topic, wait).await }).await??;
    Ok(CoolTopicResponse {
        segment_count: report.segments,
        row_count: report.rows,
        bytes_in: report.bytes_in,
        bytes_out: report.bytes_out,
    })
}
