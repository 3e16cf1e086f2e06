//! What may be set about the cold tier.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of cooling, cold replay and the hot window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdConfig {
    /// Bytes of frames in a row group. Default 16 MiB; at least 1 KiB. A row group is what a cold read hydrates at a
    /// time and what compaction holds in memory: larger compresses better, smaller starts sooner. A single larger frame
    /// makes a larger row group.
    pub row_group_bytes: u64,
    /// The folder for hydrated row groups. It belongs to this store alone: files called `*.frames` in it are deleted at start.
    pub cache_dir: PathBuf,
    /// Bytes of hydrated row groups to keep. Default 1 GiB. A row group that a reader holds counts until it is
    /// dropped, and a single row group larger than this is kept while it is the newest.
    pub cache_bytes: u64,
    /// Bytes of a partition that stay hot, unless its topic says otherwise. Default 1 GiB. Sealed segments beyond it are
    /// cooled, oldest first.
    pub hot_bytes: u64,
    /// Bytes of frames that may be hot in all partitions together; 0, the default, for as many as the disk holds. Beyond it appends
    /// are refused until segments have been cooled, and from three quarters of it on whatever is sealed is cooled. At least two
    /// segments, or producers wait for each other.
    pub hot_limit_bytes: u64,
    /// How long a sealed segment stays hot after its last append, unless its topic says otherwise. Default 1 h.
    pub hot_age: Duration,
    /// The Zstandard level of cold files, 1 to 22. Default 3.
    pub zstd_level: i32,
    /// Whether the fields of JSON payloads become columns, and payloads that these give back byte for byte are left out
    /// ([`crate::shred`]), unless their topic says otherwise: smaller files, SQL that reads fields without their payloads, slower
    /// cooling. Default on. It concerns files that are written from then on; those that are there are read whatever it says.
    pub shred_json: bool,
    /// Whether the object that was written is read back as a whole, and every row group rebuilt from it and compared with the
    /// segment's frames by checksum, before the segment may go. Default on: it costs about a third of the time of cooling.
    pub verify_replay: bool,
    /// Bytes of file up to which neighbouring cold files of a partition are merged into one; 0 switches merging off. Default
    /// 128 MiB; at most 16 GiB. Files of half of it are left alone. Larger: fewer files, more bytes written again for them, and
    /// retention lets go in larger steps where a topic has none at the time of merging.
    pub merge_bytes: u64,
    /// How often maintenance looks at the hot window and at retention when no segment was sealed. Default 30 s; at
    /// least 100 ms.
    pub maintenance_interval: Duration,
}

/// Why a [`ColdConfig`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is out of its range.
    #[error("{field} is {found}, but must be {expected}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
}

impl ColdConfig {
    /// The defaults, with hydrated row groups in `cache_dir`.
    #[must_use]
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            row_group_bytes: 16 << 20,
            cache_dir: cache_dir.into(),
            cache_bytes: 1 << 30,
            hot_bytes: 1 << 30,
            hot_limit_bytes: 0,
            hot_age: Duration::from_secs(3600),
            zstd_level: 3,
            shred_json: true,
            verify_replay: true,
            merge_bytes: 128 << 20,
            maintenance_interval: Duration::from_secs(30),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] names the first field that cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |field, found: String, expected| {
            Err(ConfigError::OutOfRange {
                field,
                found,
                expected,
            })
        };
        if !(1 << 10..=1 << 30).contains(&self.row_group_bytes) {
            return refuse(
                "row_group_bytes",
                self.row_group_bytes.to_string(),
                "1024 (1 KiB) to 1073741824 (1 GiB)",
            );
        }
        if !(1..=22).contains(&self.zstd_level) {
            return refuse("zstd_level", self.zstd_level.to_string(), "1 to 22");
        }
        if self.merge_bytes > 16 << 30 {
            return refuse(
                "merge_bytes",
                self.merge_bytes.to_string(),
                "0 (off) to 17179869184 (16 GiB)",
            );
        }
        if self.maintenance_interval < Duration::from_millis(100) {
            return refuse(
                "maintenance_interval",
                format!("{:?}", self.maintenance_interval),
                "at least 100 ms",
            );
        }
        if self.cache_dir.as_os_str().is_empty() {
            return refuse("cache_dir", "empty".to_owned(), "a folder");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_bad_fields_are_named() {
        let good = ColdConfig::new("cache");
        good.validate().unwrap();
        for (bad, name) in [
            (
                ColdConfig {
                    row_group_bytes: 0,
                    ..good.clone()
                },
                "row_group_bytes",
            ),
            (
                ColdConfig {
                    zstd_level: 0,
                    ..good.clone()
                },
                "zstd_level",
            ),
            (
                ColdConfig {
                    merge_bytes: u64::MAX,
                    ..good.clone()
                },
                "merge_bytes",
            ),
            (
                ColdConfig {
                    maintenance_interval: Duration::ZERO,
                    ..good.clone()
                },
                "maintenance_interval",
            ),
            (
                ColdConfig {
                    cache_dir: PathBuf::new(),
                    ..good.clone()
                },
                "cache_dir",
            ),
        ] {
            assert!(bad.validate().unwrap_err().to_string().contains(name));
        }
    }
}
