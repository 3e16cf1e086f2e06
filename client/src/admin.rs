//! The calls that are neither producing nor consuming.

use std::time::Duration;

use basalt_proto::session::{
    CommittedResponse, ConfigPairs, CoolTopicResponse, EmptyResponse, FetchRequest, GroupEntry,
    GroupsResponse, ListOffsetsRequest, ListOffsetsResponse, MetadataResponse, Request,
    ResponseBody, Start, TopicMetadata,
};
use basalt_proto::{GroupName, Offset, PartitionId, TopicName};

use crate::client::Client;
use crate::consumer::FetchedFrames;
use crate::error::ClientError;

/// Where a start lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedOffset {
    /// The offset.
    pub offset: Offset,
    /// The stamp of the record there, in ns; 0 where there is none to tell.
    pub timestamp_ns: u64,
}

/// All of these fail with [`ClientError::Refused`] when the server says no, [`ClientError::Connect`] when there is no
/// server, and [`ClientError::OutcomeUnknown`] when the connection is lost before the answer; those that change nothing,
/// or nothing twice, are tried again first.
impl Client {
    /// One response's worth of frames. A [`crate::Consumer`] is the better way to read many.
    ///
    /// # Errors
    /// See [`Client`]; [`basalt_proto::ErrorKind::OffsetOutOfRange`] brings the bounds with it.
    pub async fn fetch(&self, request: FetchRequest) -> Result<FetchedFrames, ClientError> {
        let wait = Duration::from_millis(u64::from(request.max_wait_ms));
        let body = self.call(&Request::Fetch(request), Some(wait)).await?;
        FetchedFrames::decode(&body)
    }

    /// Where `start` lies; `None` when no record is as late as its timestamp.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn list_offsets(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        start: Start,
    ) -> Result<Option<ListedOffset>, ClientError> {
        let request = ListOffsetsRequest {
            topic: topic.clone(),
            partition,
            start,
        };
        let found: ListOffsetsResponse = self.ask(&Request::ListOffsets(request)).await?;
        Ok(found.found.then_some(ListedOffset {
            offset: found.offset,
            timestamp_ns: found.timestamp_ns,
        }))
    }

    /// These topics as they stand; all of them if none is named.
    ///
    /// # Errors
    /// See [`Client`]; [`basalt_proto::ErrorKind::UnknownTopic`] when a named one does not exist.
    pub async fn metadata(&self, topics: &[TopicName]) -> Result<Vec<TopicMetadata>, ClientError> {
        let answer: MetadataResponse = self
            .ask(&Request::Metadata {
                topics: topics.to_vec(),
            })
            .await?;
        Ok(answer.topics)
    }

    /// Makes `group` resume at `offset`, durably.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn commit(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), ClientError> {
        let request = Request::Commit {
            group: group.clone(),
            topic: topic.clone(),
            partition,
            offset,
        };
        self.tell(&request).await
    }

    /// As [`Self::commit`], for an operator: members of the group that agree among themselves who reads what, as Kafka's do, have to
    /// join again, and read from there.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn seek(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), ClientError> {
        let request = Request::Seek {
            group: group.clone(),
            topic: topic.clone(),
            partition,
            offset,
        };
        self.tell(&request).await
    }

    /// Where `group` will resume; `None` when it never committed.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn committed(
        &self,
        group: &GroupName,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Result<Option<Offset>, ClientError> {
        let request = Request::Committed {
            group: group.clone(),
            topic: topic.clone(),
            partition,
        };
        let answer: CommittedResponse = self.ask(&request).await?;
        Ok(answer.offset)
    }

    /// Makes a topic; `config` is what differs from the defaults.
    ///
    /// # Errors
    /// See [`Client`]; [`basalt_proto::ErrorKind::TopicExists`] and [`basalt_proto::ErrorKind::InvalidConfig`].
    pub async fn create_topic(
        &self,
        topic: &TopicName,
        partitions: u32,
        config: ConfigPairs,
    ) -> Result<(), ClientError> {
        self.tell(&Request::CreateTopic {
            topic: topic.clone(),
            partitions,
            config,
        })
        .await
    }

    /// Removes a topic and all its records.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn delete_topic(&self, topic: &TopicName) -> Result<(), ClientError> {
        self.tell(&Request::DeleteTopic {
            topic: topic.clone(),
        })
        .await
    }

    /// Changes a topic's configuration; an empty value goes back to the default.
    ///
    /// # Errors
    /// See [`Client`]; [`basalt_proto::ErrorKind::InvalidConfig`].
    pub async fn alter_topic(
        &self,
        topic: &TopicName,
        config: ConfigPairs,
    ) -> Result<(), ClientError> {
        self.tell(&Request::AlterTopic {
            topic: topic.clone(),
            config,
        })
        .await
    }

    /// Gives a topic more partitions, `partitions` in all. Records stay where they are.
    ///
    /// # Errors
    /// See [`Client`]; [`basalt_proto::ErrorKind::InvalidConfig`] unless it has fewer.
    pub async fn add_partitions(
        &self,
        topic: &TopicName,
        partitions: u32,
    ) -> Result<(), ClientError> {
        self.tell(&Request::AddPartitions {
            topic: topic.clone(),
            partitions,
        })
        .await
    }

    /// Seals a topic's active segments and has all that is sealed rewritten as Parquet. With `wait` it returns when the
    /// topic is cold, however long that takes.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn cool_topic(
        &self,
        topic: &TopicName,
        wait: bool,
    ) -> Result<CoolTopicResponse, ClientError> {
        let request = Request::CoolTopic {
            topic: topic.clone(),
            wait,
        };
        decode(
            &self
                .call(&request, (!wait).then_some(Duration::ZERO))
                .await?,
        )
    }

    /// Where this group stands, or every group.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn groups(&self, group: Option<&GroupName>) -> Result<Vec<GroupEntry>, ClientError> {
        let answer: GroupsResponse = self
            .ask(&Request::Groups {
                group: group.cloned(),
            })
            .await?;
        Ok(answer.groups)
    }

    /// Whether the server answers.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn ping(&self) -> Result<(), ClientError> {
        self.tell(&Request::Ping).await
    }

    async fn ask<T: ResponseBody>(&self, request: &Request<'_>) -> Result<T, ClientError> {
        decode(&self.call(request, Some(Duration::ZERO)).await?)
    }

    async fn tell(&self, request: &Request<'_>) -> Result<(), ClientError> {
        self.ask::<EmptyResponse>(request).await.map(drop)
    }
}

fn decode<T: ResponseBody>(body: &[u8]) -> Result<T, ClientError> {
    T::decode(body).map_err(|source| ClientError::Garbled { source })
}
