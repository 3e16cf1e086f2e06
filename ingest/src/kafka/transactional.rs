//! What producers with transactions ask: AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn; and what operators do:
//! DescribeTransactions, ListTransactions, DescribeProducers. The rules are in [`super::transactions`].
//!
//! Each is carried out to its end, whether the client waits or not: what is written down has to count.

use std::collections::BTreeMap;
use std::sync::Arc;

use basalt_proto::batch::Marker;
use basalt_proto::{GroupName, PartitionId, TopicName};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::list_transactions_response::TransactionState as ListedTransaction;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse, DescribeProducersRequest, DescribeProducersResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse,
    ListTransactionsRequest, ListTransactionsResponse, TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::coordinator::Identity;
use super::error::code;
use super::groups::check_offset;
use super::membership::name;
use super::request::{Head, Request};
use super::response::message;
use super::transactions::Producer;
use crate::error::Refusal;
use crate::shared::Shared;
use crate::topics::detached;

/// Bytes of a transactional id, at most.
const MAX_ID_BYTES: usize = 1024;
/// From here on fenced producers have a code of their own.
const FENCED_FROM: i16 = 2;
/// From here on members say of which generation they are.
const MEMBERS_FROM: i16 = 3;
const NS_PER_MS: u64 = 1_000_000;

/// Whether that can be a transactional id.
pub(super) fn is_sound(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len())
}

fn producer(head: &Head, id: &str, producer_id: i64, epoch: i16) -> Producer {
    Producer {
        id: id.to_owned(),
        producer_id,
        epoch,
        fenced: match head.version {
            FENCED_FROM.. => code::PRODUCER_FENCED,
            _ => code::INVALID_PRODUCER_EPOCH,
        },
    }
}

fn error_of<T>(done: &Result<T, i16>) -> i16 {
    done.as_ref().err().copied().unwrap_or(code::NONE)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn add_partitions(
    shared: &Shared,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asked: AddPartitionsToTxnRequest = request.decode()?;
    let producer = producer(
        &request.head,
        &asked.v3_and_below_transactional_id,
        asked.v3_and_below_producer_id.0,
        asked.v3_and_below_producer_epoch,
    );
    let mut places = Vec::new();
    let mut unknown = false;
    for topic in &asked.v3_and_below_topics {
        let found = TopicName::new(&topic.name).ok();
        let found = found.and_then(|name| shared.log.log().topic(&name));
        for index in &topic.partitions {
            let place = found.as_ref().and_then(|topic| {
                let index = u32::try_from(*index).ok()?;
                (index < topic.partition_count())
                    .then(|| (topic.name().clone(), PartitionId(index)))
            });
            unknown |= place.is_none();
            places.extend(place);
        }
    }
    let known: std::collections::HashSet<_> = places.iter().cloned().collect();
    // All or none.
    let added = match unknown {
        true => Err(code::OPERATION_NOT_ATTEMPTED),
        false => {
            let transactions = Arc::clone(&shared.transactions);
            detached(async move { transactions.add_places(&producer, places).await }).await?
        }
    };
    let error = error_of(&added);
    let topics = asked.v3_and_below_topics.into_iter().map(|topic| {
        let name = TopicName::new(&topic.name).ok();
        let partitions = topic.partitions.iter().map(|index| {
            let place = name.clone().zip(u32::try_from(*index).ok());
            let place = place.map(|(name, index)| (name, PartitionId(index)));
            let error = match place.is_some_and(|place| known.contains(&place)) {
                true => error,
                false => code::UNKNOWN_TOPIC_OR_PARTITION,
            };
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*index)
                .with_partition_error_code(error)
        });
        let partitions = partitions.collect();
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic.name)
            .with_results_by_partition(partitions)
    });
    let body =
        AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect());
    message(&request.head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn add_offsets(
    shared: &Shared,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asked: AddOffsetsToTxnRequest = request.decode()?;
    let epoch = asked.producer_epoch;
    let producer = producer(
        &request.head,
        &asked.transactional_id,
        asked.producer_id.0,
        epoch,
    );
    let added = match GroupName::new(&asked.group_id) {
        Err(_) => Err(code::INVALID_GROUP_ID),
        Ok(group) => {
            let transactions = Arc::clone(&shared.transactions);
            detached(async move { transactions.add_group(&producer, group).await }).await?
        }
    };
    let body = AddOffsetsToTxnResponse::default().with_error_code(error_of(&added));
    message(&request.head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn commit_offsets(
    shared: &Shared,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asked: TxnOffsetCommitRequest = request.decode()?;
    let head = request.head;
    let producer = producer(
        &head,
        &asked.transactional_id,
        asked.producer_id.0,
        asked.producer_epoch,
    );
    let mut commits = Vec::new();
    let checked = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let metadata = partition.committed_metadata.as_deref();
            let (index, offset) = (partition.partition_index, partition.committed_offset);
            let checked = check_offset(shared, &topic.name, index, offset, metadata);
            let error = error_of(&checked);
            commits.extend(checked);
            (index, error)
        });
        (topic.name.clone(), partitions.collect::<Vec<_>>())
    });
    let checked: Vec<_> = checked.collect();
    let is_member = head.version >= MEMBERS_FROM
        && (asked.generation_id >= 0
            || !asked.member_id.is_empty()
            || asked.group_instance_id.is_some());
    let who = Identity {
        member_id: name(&asked.member_id),
        instance_id: asked.group_instance_id.as_ref().map(name),
        generation: asked.generation_id,
    };
    let group = GroupName::new(&asked.group_id).map_err(|_| code::INVALID_GROUP_ID);
    let allowed = group.and_then(|group| {
        if is_member {
            let may = shared.coordinator.check(&group, &who, true);
            may.map_err(|code| match code {
                code::GROUP_ID_NOT_FOUND => code::ILLEGAL_GENERATION,
                code => code,
            })?;
        }
        Ok(group)
    });
    let stored = match allowed {
        Err(error) => Err(error),
        Ok(group) => {
            let transactions = Arc::clone(&shared.transactions);
            let store = async move { transactions.add_offsets(&producer, &group, commits).await };
            detached(store).await?
        }
    };
    let topics = checked.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(index, checked)| {
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(stored.err().unwrap_or(checked))
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    let body = TxnOffsetCommitResponse::default().with_topics(topics.collect());
    message(&head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn end(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: EndTxnRequest = request.decode()?;
    let epoch = asked.producer_epoch;
    let producer = producer(
        &request.head,
        &asked.transactional_id,
        asked.producer_id.0,
        epoch,
    );
    let marker = match asked.committed {
        true => Marker::Commit,
        false => Marker::Abort,
    };
    let transactions = Arc::clone(&shared.transactions);
    let ended = detached(async move { transactions.end(&producer, marker).await }).await?;
    let body = EndTxnResponse::default().with_error_code(error_of(&ended));
    message(&request.head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn describe(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: DescribeTransactionsRequest = request.decode()?;
    let now_ms = (shared.log.log().now_ns() / NS_PER_MS).cast_signed();
    let mut states = Vec::with_capacity(asked.transactional_ids.len());
    for id in asked.transactional_ids {
        let Some(found) = shared.transactions.describe(&id).await else {
            let state = TransactionState::default()
                .with_transactional_id(id)
                .with_error_code(code::TRANSACTIONAL_ID_NOT_FOUND);
            states.push(state);
            continue;
        };
        let since = found.open_for.map(|age| now_ms - millis(age));
        let topics = found.places.into_iter().map(|(topic, partitions)| {
            let partitions = partitions.iter().map(|id| id.0.cast_signed());
            TopicData::default()
                .with_topic(StrBytes::from_string(topic.to_string()).into())
                .with_partitions(partitions.collect())
        });
        let state = TransactionState::default()
            .with_transactional_id(id)
            .with_transaction_state(StrBytes::from_static_str(found.state))
            .with_transaction_timeout_ms(i32::try_from(millis(found.timeout)).unwrap_or(i32::MAX))
            .with_transaction_start_time_ms(since.unwrap_or(-1))
            .with_producer_id(found.producer_id.into())
            .with_producer_epoch(found.epoch)
            .with_topics(topics.collect());
        states.push(state);
    }
    let body = DescribeTransactionsResponse::default().with_transaction_states(states);
    message(&request.head, &body)
}

fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn list(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    const STATES: [&str; 6] = [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    ];
    let asked: ListTransactionsRequest = request.decode()?;
    let unknown = asked
        .state_filters
        .iter()
        .filter(|state| !STATES.contains(&&***state));
    let unknown = unknown.cloned().collect();
    let mut states = Vec::new();
    for id in shared.transactions.ids() {
        let Some(found) = shared.transactions.describe(&id).await else {
            continue;
        };
        let filters = &asked.state_filters;
        let is_state = filters.is_empty() || filters.iter().any(|state| **state == *found.state);
        let ids = &asked.producer_id_filters;
        let is_id = ids.is_empty() || ids.iter().any(|id| id.0 == found.producer_id);
        let is_old = asked.duration_filter < 0
            || found
                .open_for
                .is_some_and(|age| millis(age) >= asked.duration_filter);
        if is_state && is_id && is_old {
            let state = ListedTransaction::default()
                .with_transactional_id(StrBytes::from_string(found.id).into())
                .with_producer_id(found.producer_id.into())
                .with_transaction_state(StrBytes::from_static_str(found.state));
            states.push(state);
        }
    }
    let body = ListTransactionsResponse::default()
        .with_unknown_state_filters(unknown)
        .with_transaction_states(states);
    message(&request.head, &body)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn describe_producers(
    shared: &Shared,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asked: DescribeProducersRequest = request.decode()?;
    // Each once: a partition's producers are told in full.
    let mut named = BTreeMap::<_, std::collections::BTreeSet<i32>>::new();
    for topic in asked.topics {
        named
            .entry(topic.name)
            .or_default()
            .extend(topic.partition_indexes);
    }
    let topics = named.into_iter().map(|(topic, indexes)| {
        let name = TopicName::new(&topic).ok();
        let partitions = indexes.into_iter().map(|index| {
            let answer = PartitionResponse::default().with_partition_index(index);
            let found = name
                .as_ref()
                .zip(u32::try_from(index).ok())
                .and_then(|(name, index)| shared.existing_partition(name, PartitionId(index)).ok());
            let Some(partition) = found else {
                return answer.with_error_code(code::UNKNOWN_TOPIC_OR_PARTITION);
            };
            let producers = partition.hot().active_producers().into_iter().map(|one| {
                ProducerState::default()
                    .with_producer_id(one.producer_id.into())
                    .with_producer_epoch(one.epoch.into())
                    .with_last_sequence(one.last_sequence.map_or(-1, u32::cast_signed))
                    .with_last_timestamp((one.last_append_ns / NS_PER_MS).cast_signed())
                    .with_coordinator_epoch(0)
                    .with_current_txn_start_offset(
                        one.transaction_start
                            .map_or(-1, |offset| offset.0.cast_signed()),
                    )
            });
            answer.with_active_producers(producers.collect())
        });
        let partitions = partitions.collect();
        TopicResponse::default()
            .with_name(topic)
            .with_partitions(partitions)
    });
    let body = DescribeProducersResponse::default().with_topics(topics.collect());
    message(&request.head, &body)
}
