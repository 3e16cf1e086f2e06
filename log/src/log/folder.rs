//! Where things are in the data folder, and its lock. What is in them it does not know.

use std::any::Any;
use std::path::{Path, PathBuf};

use basalt_proto::{PartitionId, TopicName};

use crate::disk::Disk;
use crate::error::{OnDisk, OpenError};

/// Where the topics' folders are.
pub(crate) fn topics_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("topics")
}

/// Where the folders of a topic's partitions are.
pub(crate) fn topic_dir(data_dir: &Path, topic: &TopicName) -> PathBuf {
    topics_dir(data_dir).join(topic.as_str())
}

/// Where a partition's files are.
pub(crate) fn partition_dir(data_dir: &Path, topic: &TopicName, partition: PartitionId) -> PathBuf {
    topic_dir(data_dir, topic).join(partition.0.to_string())
}

pub(crate) fn catalogue_path(data_dir: &Path) -> PathBuf {
    data_dir.join("catalogue")
}

pub(crate) fn groups_path(data_dir: &Path) -> PathBuf {
    data_dir.join("groups")
}

/// Takes the lock of a data folder.
pub(crate) fn lock_data_dir(
    disk: &dyn Disk,
    data_dir: &Path,
) -> Result<Box<dyn Any + Send + Sync>, OpenError> {
    let path = data_dir.join("LOCK");
    disk.lock(&path)
        .on("lock", &path)?
        .ok_or_else(|| OpenError::Locked {
            path: data_dir.to_owned(),
        })
}
