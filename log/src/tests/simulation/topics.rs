//! Topics that are made, deleted, made anew under the same name, and changed.

use std::sync::Arc;

use basalt_proto::{PartitionId, TopicName};

use super::history::History;
use super::model::PartitionModel;
use crate::{Log, Partition, Topic, TopicConfig, TopicDurability, TopicError, TopicId};

pub(super) const PARTITIONS: u32 = 2;

/// A topic, and what is known of it.
pub(super) struct TopicModel {
    pub(super) name: TopicName,
    pub(super) topic: Arc<Topic>,
    pub(super) level: TopicDurability,
    /// Whether the high watermark has always meant that records are durable, since the log was opened.
    pub(super) shown_durably: bool,
    pub(super) partitions: Vec<PartitionModel>,
    /// What was begun and may or may not have happened.
    pub(super) changing: Option<Change>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    /// Deleted, and perhaps made anew at a level.
    Deleted(TopicDurability),
    Altered,
}

impl TopicModel {
    pub(super) fn id(&self) -> TopicId {
        self.topic.id()
    }

    pub(super) fn partition(&self, number: usize) -> Arc<Partition> {
        let id = PartitionId(u32::try_from(number).unwrap());
        self.topic.partition(id).unwrap()
    }

    pub(super) fn forget(&mut self) {
        self.partitions = (0..PARTITIONS).map(|_| PartitionModel::default()).collect();
        self.shown_durably = self.level == TopicDurability::Fsync;
    }
}

impl History<'_> {
    /// Deletes a topic and makes another one of the name.
    pub(super) fn make_anew(&mut self) {
        let at = self.choices.below(self.topics.len());
        let levels = [TopicDurability::Fsync, TopicDurability::Os];
        let level = self.choices.pick(&levels);
        self.meanwhile(true);
        let (name, id) = (self.topics[at].name.clone(), self.topics[at].id());
        self.topics[at].changing = Some(Change::Deleted(level));
        let deleted = self.log.delete_topic(&name, id);
        self.note(format!("delete {name}: {deleted:?}"));
        // Appends that went on meanwhile are the old topic's.
        self.came_back(None);
        if self.log.topic(&name).is_some() {
            let excused = self.full || self.faulty || self.disk.has_stopped();
            assert!(excused, "{deleted:?}");
            return;
        }
        // A catalogue that failed takes nothing until the log is opened anew.
        match create(&self.log, &name, level) {
            Ok(topic) => {
                self.tally.topics_made += 1;
                self.took_over(at, topic, level);
            }
            Err(error) => {
                let excused = self.full || self.faulty || self.disk.has_stopped();
                assert!(excused, "{error:?}");
                self.note(format!("create {name}: {error:?}"));
                self.set_full(false);
                self.restart(false);
            }
        }
    }

    /// The topic is another one of the name.
    pub(super) fn took_over(&mut self, at: usize, topic: Arc<Topic>, level: TopicDurability) {
        let model = &mut self.topics[at];
        assert!(topic.id() > model.id(), "an id was given twice");
        (model.topic, model.level, model.changing) = (topic, level, None);
        model.forget();
    }

    pub(super) fn alter(&mut self) {
        let at = self.choices.below(self.topics.len());
        let level = match self.topics[at].level {
            TopicDurability::Fsync => TopicDurability::Os,
            TopicDurability::Os => TopicDurability::Fsync,
        };
        let model = &mut self.topics[at];
        model.shown_durably = false;
        let altered = self.log.alter_topic(&model.name, config_of(level));
        match altered {
            Ok(()) => model.level = level,
            Err(_) => drop(model.changing.get_or_insert(Change::Altered)),
        }
        self.note(format!("topic {at} to {level:?}: {altered:?}"));
    }
}

pub(super) fn config_of(durability: TopicDurability) -> TopicConfig {
    TopicConfig {
        durability,
        ..TopicConfig::default()
    }
}

pub(super) fn create(
    log: &Log,
    name: &TopicName,
    level: TopicDurability,
) -> Result<Arc<Topic>, TopicError> {
    log.create_topic(name, PARTITIONS, config_of(level))
}
