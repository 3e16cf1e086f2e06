//! SQL changes topics as the native protocol does.

use basalt_ingest::{Refusal, Topics};
use basalt_proto::TopicName;
use basalt_query::{SchemaEdit, TopicChangeError, TopicChanges};
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// The topics of this server.
#[derive(Debug)]
pub(super) struct ServedTopics(pub(super) Topics);

impl TopicChanges for ServedTopics {
    fn create(
        &self,
        topic: TopicName,
        partitions: Option<u32>,
        settings: Vec<(String, String)>,
    ) -> BoxFuture<'static, Result<(), TopicChangeError>> {
        let topics = self.0.clone();
        async move { done(topics.create(topic, partitions, settings).await) }.boxed()
    }

    fn alter_schema(
        &self,
        topic: TopicName,
        edit: SchemaEdit,
    ) -> BoxFuture<'static, Result<(), TopicChangeError>> {
        let topics = self.0.clone();
        async move { done(topics.alter_schema(topic, edit).await) }.boxed()
    }

    fn delete(&self, topic: TopicName) -> BoxFuture<'static, Result<(), TopicChangeError>> {
        let topics = self.0.clone();
        async move { done(topics.delete(topic).await) }.boxed()
    }
}

fn done(result: Result<(), Refusal>) -> Result<(), TopicChangeError> {
    result.map_err(|refusal| TopicChangeError {
        kind: refusal.kind(),
        message: refusal.message().to_owned(),
    })
}
