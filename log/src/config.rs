//! What the log can be told, with units, defaults and trade-offs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use basalt_proto::FrameLimits;

use crate::cleanup::{CleanupPolicy, Ratio};
use crate::reserve::MAX_STEP;
use crate::retention::RetentionPolicy;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// When one append is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Once a group commit's fsync covers it: it survives a power loss.
    Fsync,
    /// Once it is in the page cache: it survives the process, not the machine.
    Os,
    /// Not at all.
    None,
}

/// What a topic's high watermark promises: how safe a record is before anyone may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopicDurability {
    /// Readers see what an fsync covers.
    #[default]
    Fsync,
    /// Readers see what is in the page cache; it is flushed by interval and bytes.
    Os,
}

impl From<TopicDurability> for Durability {
    fn from(level: TopicDurability) -> Self {
        match level {
            TopicDurability::Fsync => Self::Fsync,
            TopicDurability::Os => Self::Os,
        }
    }
}

/// What is set for one topic. `None` means the server's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicConfig {
    /// What the high watermark promises. Default `fsync`.
    pub durability: TopicDurability,
    /// A segment is sealed before it would grow past this.
    pub segment_bytes: Option<u64>,
    /// The oldest records go once a partition holds more than this. No limit unless set.
    pub retention_bytes: Option<u64>,
    /// Records go once their segment's last append is this long ago. No limit unless set.
    pub retention_age: Option<Duration>,
    /// Sealed segments beyond this many bytes, counted from the newest, are cooled.
    pub hot_bytes: Option<u64>,
    /// Sealed segments whose last append is this long ago are cooled.
    pub hot_age: Option<Duration>,
    /// What payloads are and which columns they have, for those above the log who know. None unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Arc<str>>,
    /// Whether the fields of JSON payloads become columns of cold files.
    pub shred_json: Option<bool>,
    /// How older records go.
    #[serde(skip_serializing_if = "is_default")]
    pub cleanup_policy: CleanupPolicy,
    /// How long a tombstone stays after what is older than it has gone. Default [`TopicConfig::DELETE_RETENTION`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_retention: Option<Duration>,
    /// The part of a partition's bytes that is new before it is compacted. Default a half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_cleanable_dirty_ratio: Option<Ratio>,
    /// How long a record stays at least, whatever comes after it. Default not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_compaction_lag: Option<Duration>,
    /// Bytes of a payload, or of a whole record batch, at most; above the server's limit that one holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message_bytes: Option<u32>,
}

fn is_default(policy: &CleanupPolicy) -> bool {
    *policy == CleanupPolicy::default()
}

/// A topic setting that could not be read.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TopicConfigError {
    /// No setting has this name.
    #[error(
        "unknown topic setting `{key}`; known are durability, segment_bytes, retention_bytes, retention_age_ms, hot_bytes, hot_age_ms, shred_json, schema, cleanup_policy, delete_retention_ms, min_cleanable_dirty_ratio, min_compaction_lag_ms, max_message_bytes"
    )]
    UnknownKey {
        /// As given.
        key: String,
    },
    /// The value does not fit the setting.
    #[error("topic setting `{key}` is `{value}`, but takes {expected}")]
    BadValue {
        /// The setting.
        key: String,
        /// As given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl TopicConfig {
    /// How long tombstones stay unless a topic says otherwise.
    pub const DELETE_RETENTION: Duration = Duration::from_hours(24);

    /// What retention keeps: everything, where it does not apply.
    #[must_use]
    pub fn retention(&self) -> RetentionPolicy {
        if !self.cleanup_policy.deletes() {
            return RetentionPolicy::default();
        }
        RetentionPolicy {
            bytes: self.retention_bytes,
            age: self.retention_age,
        }
    }

    /// The settings as text, those at their default left out.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(String, String)> {
        let age_ms = |age: Option<Duration>| age.map(|age| age.as_millis().to_string());
        let level = match self.durability {
            TopicDurability::Fsync => "fsync",
            TopicDurability::Os => "os",
        };
        let mut pairs = vec![("durability".to_owned(), level.to_owned())];
        let optional = [
            (
                "segment_bytes",
                self.segment_bytes.map(|bytes| bytes.to_string()),
            ),
            (
                "retention_bytes",
                self.retention_bytes.map(|bytes| bytes.to_string()),
            ),
            ("retention_age_ms", age_ms(self.retention_age)),
            ("hot_bytes", self.hot_bytes.map(|bytes| bytes.to_string())),
            ("hot_age_ms", age_ms(self.hot_age)),
            ("schema", self.schema.as_deref().map(str::to_owned)),
            ("shred_json", self.shred_json.map(on_or_off)),
            (
                "cleanup_policy",
                (!is_default(&self.cleanup_policy)).then(|| self.cleanup_policy.to_string()),
            ),
            ("delete_retention_ms", age_ms(self.delete_retention)),
            (
                "min_cleanable_dirty_ratio",
                self.min_cleanable_dirty_ratio
                    .map(|ratio| ratio.to_string()),
            ),
            ("min_compaction_lag_ms", age_ms(self.min_compaction_lag)),
            (
                "max_message_bytes",
                self.max_message_bytes.map(|bytes| bytes.to_string()),
            ),
        ];
        pairs.extend(
            optional
                .into_iter()
                .filter_map(|(key, value)| value.map(|value| (key.to_owned(), value))),
        );
        pairs
    }

    /// Settings from text, over the defaults.
    ///
    /// # Errors
    /// As [`Self::with_pairs`].
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, TopicConfigError> {
        Self::default().with_pairs(pairs)
    }

    /// These settings with some changed; an empty value sets one back to its default.
    ///
    /// # Errors
    /// A key that does not exist, a value that does not fit.
    pub fn with_pairs<K: AsRef<str>, V: AsRef<str>>(
        mut self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, TopicConfigError> {
        for (key, value) in pairs {
            let (key, value) = (key.as_ref(), value.as_ref());
            match key {
                "durability" => {
                    self.durability = match value {
                        "" | "fsync" => TopicDurability::Fsync,
                        "os" => TopicDurability::Os,
                        _ => return Err(bad(key, value, "`fsync` or `os`")),
                    }
                }
                "segment_bytes" => self.segment_bytes = segment_bytes(key, value)?,
                "retention_bytes" => self.retention_bytes = number(key, value)?,
                "retention_age_ms" => {
                    self.retention_age = number(key, value)?.map(Duration::from_millis)
                }
                "hot_bytes" => self.hot_bytes = number(key, value)?,
                "hot_age_ms" => self.hot_age = number(key, value)?.map(Duration::from_millis),
                "schema" => self.schema = (!value.is_empty()).then(|| value.into()),
                "shred_json" => {
                    self.shred_json = match value {
                        "" => None,
                        "on" => Some(true),
                        "off" => Some(false),
                        _ => {
                            return Err(bad(
                                key,
                                value,
                                "`on` or `off`, or nothing for the default",
                            ));
                        }
                    }
                }
                "cleanup_policy" => {
                    self.cleanup_policy = match value {
                        "" => CleanupPolicy::default(),
                        value => value.parse().map_err(|_| {
                            bad(key, value, "`delete`, `compact` or `compact,delete`")
                        })?,
                    }
                }
                "delete_retention_ms" => {
                    self.delete_retention = number(key, value)?.map(Duration::from_millis)
                }
                "min_cleanable_dirty_ratio" => {
                    self.min_cleanable_dirty_ratio = match value {
                        "" => None,
                        value => Some(
                            value
                                .parse()
                                .map_err(|_| bad(key, value, "a number from 0 to 1"))?,
                        ),
                    }
                }
                "min_compaction_lag_ms" => {
                    self.min_compaction_lag = number(key, value)?.map(Duration::from_millis)
                }
                "max_message_bytes" => {
                    let bytes = number(key, value)?.map(u32::try_from).transpose();
                    let bytes = bytes.ok().filter(|bytes| *bytes != Some(0));
                    self.max_message_bytes =
                        bytes.ok_or_else(|| bad(key, value, "1 to 4294967295 bytes"))?;
                }
                _ => {
                    return Err(TopicConfigError::UnknownKey {
                        key: key.to_owned(),
                    });
                }
            }
        }
        Ok(self)
    }
}

fn bad(key: &str, value: &str, expected: &'static str) -> TopicConfigError {
    TopicConfigError::BadValue {
        key: key.to_owned(),
        value: value.to_owned(),
        expected,
    }
}

fn on_or_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

fn number(key: &str, value: &str) -> Result<Option<u64>, TopicConfigError> {
    if value.is_empty() {
        return Ok(None);
    }
    value
        .parse()
        .map(Some)
        .map_err(|_| bad(key, value, "a whole number, or nothing for the default"))
}

fn segment_bytes(key: &str, value: &str) -> Result<Option<u64>, TopicConfigError> {
    match number(key, value)? {
        Some(bytes) if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) => {
            Err(bad(key, value, "1024 to 4294967296 bytes"))
        }
        other => Ok(other),
    }
}

/// Segments smaller than this would be more index than log.
pub const MIN_SEGMENT_BYTES: u64 = 1024;
/// Segments larger than this would make recovery and cooling coarse.
pub const MAX_SEGMENT_BYTES: u64 = 4 << 30;

/// What the log is told when it opens.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// The folder that holds everything; created if missing, locked while open.
    pub data_dir: PathBuf,
    /// A segment is sealed before it would grow past this. Default 128 MiB. Smaller: finer cooling and retention,
    /// quicker recovery, more files. Safe from 1 KiB to 4 GiB.
    pub segment_bytes: u64,
    /// A block (one index entry, one checksum) closes at this many bytes. Default 64 KiB. Smaller: finer lookups, a
    /// larger index. Safe from 1 KiB to 16 MiB.
    pub block_bytes: u32,
    /// Topics at level `os` are flushed this long after an append at the latest. Default 500 ms.
    pub flush_interval: Duration,
    /// Topics at level `os` are flushed once this much is waiting. Default 64 MiB.
    pub flush_bytes: u64,
    /// Bytes of disk for the write-ahead log at most. Default 64 MiB. Smaller: segments are synced more often; with 0 each
    /// partition is synced for itself. Safe from 0 up.
    pub wal_bytes: u64,
    /// Offsets reserved at a time where records are acknowledged without an fsync: one small durable write in half as many
    /// records, and the largest gap in offsets after a power loss. Default 1,048,576, which is also the most.
    pub reserved_step: u64,
    /// What one frame may be.
    pub limits: FrameLimits,
    /// Whether a topic named by a producer or consumer is created on first use. Default on.
    pub auto_create_topics: bool,
    /// Partitions of a topic created on first use. Default 1.
    pub default_partitions: u32,
    /// Settings of a topic created on first use.
    pub topic_defaults: TopicConfig,
    /// Threads that settle, seal and make segments; one more runs group commits. Default 2. With 0 nothing happens by
    /// itself: tests call [`crate::Partition::commit_now`] and [`crate::Partition::sync_now`].
    pub sync_threads: usize,
}

impl LogConfig {
    /// The defaults, for a data folder.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            segment_bytes: 128 << 20,
            block_bytes: 64 << 10,
            flush_interval: Duration::from_millis(500),
            flush_bytes: 64 << 20,
            wal_bytes: 64 << 20,
            reserved_step: MAX_STEP,
            limits: FrameLimits::default(),
            auto_create_topics: true,
            default_partitions: 1,
            topic_defaults: TopicConfig::default(),
            sync_threads: 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_way_through_text() {
        let config = TopicConfig {
            durability: TopicDurability::Os,
            segment_bytes: Some(4096),
            retention_bytes: Some(0),
            retention_age: Some(Duration::from_secs(3)),
            hot_bytes: None,
            hot_age: Some(Duration::ZERO),
            schema: Some("{\"format\":\"raw\"}".into()),
            shred_json: Some(false),
            cleanup_policy: CleanupPolicy::CompactDelete,
            delete_retention: Some(Duration::ZERO),
            min_cleanable_dirty_ratio: Some(Ratio::HALF),
            min_compaction_lag: Some(Duration::from_secs(1)),
            max_message_bytes: Some(1000),
        };
        assert_eq!(
            TopicConfig::from_pairs(config.to_pairs()),
            Ok(config.clone())
        );
        assert_eq!(
            config
                .with_pairs([("retention_bytes", "")])
                .map(|config| config.retention_bytes),
            Ok(None)
        );
    }

    #[test]
    fn topics_with_defaults_are_written_as_before_there_were_any() {
        let text = serde_json::to_string(&TopicConfig::default()).unwrap();
        assert!(!text.contains("schema"), "{text}");
        assert!(
            !text.contains("cleanup") && !text.contains("message"),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str(&text).ok(),
            Some(TopicConfig::default())
        );
    }

    #[test]
    fn unknown_and_misfit_settings_are_named() {
        let unknown = TopicConfig::from_pairs([("retention", "1")]);
        assert_eq!(
            unknown,
            Err(TopicConfigError::UnknownKey {
                key: "retention".to_owned()
            })
        );
        for (key, value) in [
            ("segment_bytes", "-1"),
            ("segment_bytes", "5"),
            ("hot_age_ms", "1s"),
            ("durability", "disk"),
            ("shred_json", "yes"),
            ("cleanup_policy", "compacted"),
            ("min_cleanable_dirty_ratio", "2"),
            ("max_message_bytes", "0"),
            ("max_message_bytes", "4294967296"),
        ] {
            let misfit = TopicConfig::from_pairs([(key, value)]);
            assert!(
                matches!(&misfit, Err(TopicConfigError::BadValue { key: named, .. }) if named == key),
                "{misfit:?}"
            );
        }
    }
}
