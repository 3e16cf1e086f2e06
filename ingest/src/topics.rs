//! Making, changing and deleting topics, whoever asks.

use std::sync::Arc;

use basalt_columnar::TieredLog;
use basalt_log::{TopicConfig, TopicId};
use basalt_proto::session::ConfigPairs;
use basalt_proto::{ErrorKind, TopicName};
use tokio::sync::watch;

use crate::error::Refusal;

/// Changes the topics of a server, and tells those who wait on them.
#[derive(Debug, Clone)]
pub struct Topics {
    log: Arc<TieredLog>,
    /// Counts deleted topics.
    deletions: watch::Sender<u64>,
}

impl Topics {
    pub(crate) fn new(log: Arc<TieredLog>) -> Self {
        Self {
            log,
            deletions: watch::Sender::new(0),
        }
    }

    /// Counts deleted topics. Whoever waits on a partition looks after each whether it was its own: what it holds keeps
    /// the partition alive, so that nothing else would tell.
    pub(crate) fn deletions(&self) -> &watch::Sender<u64> {
        &self.deletions
    }

    /// Makes a topic: durably, on return. Without a number of partitions it has as many as one made on first use.
    ///
    /// # Errors
    /// [`Refusal`]: the topic exists, a setting is wrong, the disk failed.
    pub async fn create(
        &self,
        topic: TopicName,
        partitions: Option<u32>,
        config: ConfigPairs,
    ) -> Result<(), Refusal> {
        let log = Arc::clone(&self.log);
        blocking(move || {
            let defaults = log.log().config();
            let partitions = partitions.unwrap_or(defaults.default_partitions);
            let config = changed(&defaults.topic_defaults, &config)?;
            log.create_topic(&topic, partitions, config)?;
            Ok(())
        })
        .await
    }

    /// Changes settings of a topic; an empty value goes back to the default.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such topic, a setting is wrong, the disk failed.
    pub async fn alter(&self, topic: TopicName, config: ConfigPairs) -> Result<(), Refusal> {
        let log = Arc::clone(&self.log);
        blocking(move || log.alter_topic(&topic, |current| changed(current, &config))).await
    }

    /// Gives a topic more partitions, `partitions` in all.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such topic, it has as many already, the disk failed.
    pub async fn add_partitions(&self, topic: TopicName, partitions: u32) -> Result<(), Refusal> {
        let log = Arc::clone(&self.log);
        blocking(move || Ok(log.log().add_partitions(&topic, partitions)?)).await
    }

    /// Changes a topic's schema to what `change` makes of it; its error is the words of a refusal.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such topic, `change` refuses, the disk failed.
    pub async fn alter_schema(
        &self,
        topic: TopicName,
        change: impl FnOnce(Option<&str>) -> Result<Option<String>, String> + Send + 'static,
    ) -> Result<(), Refusal> {
        let log = Arc::clone(&self.log);
        blocking(move || {
            log.alter_topic(&topic, |current| {
                let schema = change(current.schema.as_deref())
                    .map_err(|reason| Refusal::new(ErrorKind::InvalidConfig, reason))?;
                Ok::<_, Refusal>(TopicConfig {
                    schema: schema.map(Into::into),
                    ..current.clone()
                })
            })
        })
        .await
    }

    /// Deletes a topic. It is carried out whether or not the future is polled to its end.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such topic, the disk or the store failed.
    pub async fn delete(&self, topic: TopicName) -> Result<(), Refusal> {
        let found = self.log.log().topic(&topic);
        let found = found.ok_or_else(|| Refusal::unknown_topic(&topic))?;
        self.delete_with_id(topic, found.id()).await
    }

    /// [`Topics::delete`], only if the topic of that name still has that id.
    ///
    /// # Errors
    /// As [`Topics::delete`]; one with another id is unknown.
    pub async fn delete_with_id(&self, topic: TopicName, id: TopicId) -> Result<(), Refusal> {
        let (log, deletions) = (Arc::clone(&self.log), self.deletions.clone());
        detached(async move {
            let deleted = log.delete_topic_with_id(&topic, id).await;
            // Here, so that those who wait are told although the peer that asked is gone; and also after a failure: the
            // topic may be gone although its files are not.
            deletions.send_modify(|count| *count += 1);
            deleted
        })
        .await??;
        Ok(())
    }
}

fn changed(config: &TopicConfig, pairs: &ConfigPairs) -> Result<TopicConfig, Refusal> {
    let pairs = pairs
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    let changed = config.clone().with_pairs(pairs);
    changed.map_err(|error| Refusal::new(ErrorKind::InvalidConfig, error.to_string()))
}

/// Runs what writes and syncs files on a thread that serves no sockets.
async fn blocking(
    work: impl FnOnce() -> Result<(), Refusal> + Send + 'static,
) -> Result<(), Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Refusal::new(ErrorKind::Internal, error.to_string()))?
}

/// Runs what must not be cut in the middle when the peer goes away.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work)
        .await
        .map_err(|error| Refusal::new(ErrorKind::Internal, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;
    use crate::tests::{patient, shared};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn deletion_is_told_although_the_peer_that_asked_is_gone() {
        let (_dir, shared) = shared(|_| {}).await;
        let topic = TopicName::new("t").unwrap();
        let topics = shared.topics.clone();
        topics
            .create(topic.clone(), None, Vec::new())
            .await
            .unwrap();
        let mut deletions = topics.deletions().subscribe();
        {
            let mut deleting = std::pin::pin!(topics.delete(topic));
            assert!(matches!(futures::poll!(&mut deleting), Poll::Pending));
        }
        patient(deletions.changed()).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_schema_is_checked_and_stored_on_one_line() {
        let (_dir, shared) = shared(|_| {}).await;
        let topic = TopicName::new("t").unwrap();
        let setting = |text: &str| vec![("schema".to_owned(), text.to_owned())];
        let topics = shared.topics.clone();
        let refused = topics
            .create(topic.clone(), None, setting(r#"{"format":"jsn"}"#))
            .await
            .unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidConfig);
        assert!(refused.message.contains("jsn"), "{refused}");
        assert!(shared.log.log().topic(&topic).is_none());

        let text =
            "{ \"format\": \"json\",\n \"columns\": [ {\"name\": \"a\", \"type\": \"BIGINT\"} ] }";
        topics
            .create(topic.clone(), Some(2), setting(text))
            .await
            .unwrap();
        let stored = || shared.log.log().topic(&topic).unwrap().config().schema;
        let line = r#"{"format":"json","columns":[{"name":"a","type":"int64"}]}"#;
        assert_eq!(stored().as_deref(), Some(line));

        let refused = topics
            .alter(topic.clone(), setting("{}"))
            .await
            .unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidConfig);
        assert_eq!(stored().as_deref(), Some(line), "a refusal changes nothing");
        let keep = vec![("hot_bytes".to_owned(), "5".to_owned())];
        topics.alter(topic.clone(), keep).await.unwrap();
        assert_eq!(stored().as_deref(), Some(line));
        topics.alter(topic.clone(), setting("")).await.unwrap();
        assert_eq!(stored(), None);
    }
}
