//! The schemas of topics: checked before they are stored, and read once.

use std::collections::HashMap;
use std::sync::Arc;

use basalt_log::{Topic, TopicConfig, TopicError};
use basalt_schema::{SchemaError, TopicSchema};
use parking_lot::Mutex;

/// Schemas that were read, by topic id.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    read: Mutex<HashMap<u64, ReadSchema>>,
}

#[derive(Debug)]
struct ReadSchema {
    text: Arc<str>,
    schema: Arc<TopicSchema>,
}

impl Schemas {
    /// The schema of `topic`, if it has one.
    pub(crate) fn of(&self, topic: &Topic) -> Result<Option<Arc<TopicSchema>>, SchemaError> {
        self.read(topic.id().0, topic.config().schema)
    }

    /// The schema with this text, which is that of the topic `id`.
    pub(crate) fn read(
        &self,
        id: u64,
        text: Option<Arc<str>>,
    ) -> Result<Option<Arc<TopicSchema>>, SchemaError> {
        let Some(text) = text else {
            self.read.lock().remove(&id);
            return Ok(None);
        };
        if let Some(known) = self.read.lock().get(&id)
            && known.text == text
        {
            return Ok(Some(Arc::clone(&known.schema)));
        }
        // Read without the lock: this may take milliseconds.
        let schema = Arc::new(TopicSchema::parse(&text)?);
        let read = ReadSchema {
            text,
            schema: Arc::clone(&schema),
        };
        self.read.lock().insert(id, read);
        Ok(Some(schema))
    }

    /// Forgets a topic that is deleted.
    pub(crate) fn forget(&self, topic_id: u64) {
        self.read.lock().remove(&topic_id);
    }
}

/// `config` with its schema as it is stored: read, and written out on one line.
pub(crate) fn checked(mut config: TopicConfig) -> Result<TopicConfig, TopicError> {
    if let Some(text) = &config.schema {
        let schema = TopicSchema::parse(text).map_err(|error| TopicError::BadSetting {
            reason: error.to_string(),
        })?;
        config.schema = Some(schema.text().into());
    }
    Ok(config)
}
