//! Names in the object store.
//!
//! ```text
//! <topic>/<topic id, 16 hex>/<partition>/<base, 20 digits>-<end, 20 digits>-<nonce>.parquet
//! <topic>/<topic id, 16 hex>/<partition>/manifest/<version, 20 digits>.json
//! <topic>/<topic id, 16 hex>/DELETED        the topic is being deleted: what is beside it goes once the
//!                                           catalogue does not know the topic
//! ```
//! Topic ids keep a topic apart from a deleted one of the same name. A name that is none of these is left alone.

use std::ops::Range;

use basalt_proto::{Offset, PartitionId, TopicName};
use object_store::path::Path;

/// The folder of a topic's cold objects.
pub(crate) fn topic_prefix(topic: &TopicName, topic_id: u64) -> Path {
    Path::from_iter([topic.as_str(), &format!("{topic_id:016x}")])
}

/// The folder of a partition's cold objects.
pub(crate) fn partition_prefix(topic: &TopicName, topic_id: u64, partition: PartitionId) -> Path {
    topic_prefix(topic, topic_id).join(partition.0.to_string())
}

/// The object that says that a topic is being deleted.
pub(crate) fn tombstone(topic_prefix: &Path) -> Path {
    topic_prefix.clone().join("DELETED")
}

/// The file name of a Parquet object.
pub(crate) fn object_name(base: Offset, end: Offset, nonce: &str) -> String {
    format!("{:020}-{:020}-{nonce}.parquet", base.0, end.0)
}

/// The folder of a partition's manifests.
pub(crate) fn manifest_prefix(partition_prefix: &Path) -> Path {
    partition_prefix.clone().join("manifest")
}

/// A manifest's path.
pub(crate) fn manifest_path(partition_prefix: &Path, version: u64) -> Path {
    manifest_prefix(partition_prefix).join(format!("{version:020}.json"))
}

/// The topic in whose folder an object is, and its id.
pub(crate) fn topic_of(path: &Path) -> Option<(TopicName, u64)> {
    let mut parts = path.parts();
    let topic = TopicName::new(parts.next()?.as_ref()).ok()?;
    let id = parts.next()?;
    let topic_id = u64::from_str_radix(id.as_ref(), 16).ok()?;
    // No other way to write it than ours.
    (format!("{topic_id:016x}") == id.as_ref()).then_some((topic, topic_id))
}

/// What an object below a topic's folder is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A partition's Parquet file, by its file name.
    Object {
        partition: PartitionId,
        name: String,
    },
    /// A partition's manifest.
    Manifest {
        partition: PartitionId,
        version: u64,
    },
    /// What a crash left of a manifest that was being written.
    Leftover,
    /// The topic's tombstone.
    Tombstone,
    /// Not ours.
    Foreign,
}

/// Tells what `path` below `topic_prefix` is.
pub(crate) fn classify(topic_prefix: &Path, path: &Path) -> Found {
    let Some(parts) = path.prefix_match(topic_prefix) else {
        return Found::Foreign;
    };
    let parts: Vec<_> = parts.collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match parts[..] {
        ["DELETED"] => Found::Tombstone,
        [partition, name] => match partition_number(partition) {
            Some(partition) if is_object_name(name) => Found::Object {
                partition,
                name: name.to_owned(),
            },
            _ => Found::Foreign,
        },
        [partition, "manifest", name] => {
            match (partition_number(partition), manifest_version(name)) {
                (Some(partition), Some(version)) => Found::Manifest { partition, version },
                (Some(_), None) if name.ends_with(crate::store::UNCOMMITTED_SUFFIX) => {
                    Found::Leftover
                }
                _ => Found::Foreign,
            }
        }
        _ => Found::Foreign,
    }
}

fn partition_number(part: &str) -> Option<PartitionId> {
    part.parse()
        .ok()
        .filter(|number: &u32| number.to_string() == part)
        .map(PartitionId)
}

/// The version in a manifest's file name.
pub(crate) fn manifest_version(name: &str) -> Option<u64> {
    digits(name.strip_suffix(".json")?)
}

/// Whether a file name is one of [`object_name`]'s.
pub(crate) fn is_object_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".parquet") else {
        return false;
    };
    let mut parts = stem.splitn(3, '-');
    let (base, end, nonce) = (
        parts.next().and_then(digits),
        parts.next().and_then(digits),
        parts.next(),
    );
    base.is_some()
        && end.is_some()
        && nonce.is_some_and(|nonce| {
            !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

/// The offsets in a Parquet object's name.
pub(crate) fn object_range(path: &Path) -> Option<Range<Offset>> {
    let name = path.filename().filter(|name| is_object_name(name))?;
    let (base, end) = (digits(name.get(..20)?)?, digits(name.get(21..41)?)?);
    Some(Offset(base)..Offset(end))
}

fn digits(part: &str) -> Option<u64> {
    if part.len() == 20 && part.bytes().all(|byte| byte.is_ascii_digit()) {
        part.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_we_make_is_recognised_and_no_other() {
        let topic = TopicName::new("flights.v1").unwrap();
        let prefix = topic_prefix(&topic, 0x1f);
        assert_eq!(prefix.as_ref(), "flights.v1/000000000000001f");
        let partition = partition_prefix(&topic, 0x1f, PartitionId(12));
        let name = object_name(Offset(5), Offset(10), "00ff");
        let object = partition.clone().join(name.as_str());
        assert_eq!(object_range(&object), Some(Offset(5)..Offset(10)));
        assert_eq!(
            classify(&prefix, &object),
            Found::Object {
                partition: PartitionId(12),
                name
            }
        );
        let manifest = manifest_path(&partition, 7);
        assert_eq!(
            classify(&prefix, &manifest),
            Found::Manifest {
                partition: PartitionId(12),
                version: 7
            }
        );
        assert_eq!(classify(&prefix, &tombstone(&prefix)), Found::Tombstone);
        for foreign in [
            "flights.v1/000000000000001f/12/notes.txt",
            "flights.v1/000000000000001f/012/00000000000000000005-00000000000000000010-00ff.parquet",
            "flights.v1/000000000000001f/12/5-10-00ff.parquet",
            "flights.v1/000000000000001f/12/manifest/7.json",
            "flights.v1/0000000000000020/DELETED",
            "flights.v1",
        ] {
            assert_eq!(
                classify(&prefix, &Path::from(foreign)),
                Found::Foreign,
                "{foreign}"
            );
        }
    }
}
