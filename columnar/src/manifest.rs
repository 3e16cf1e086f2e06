//! The manifest: which objects are a partition's cold part.
//!
//! One JSON object per version, `<partition>/manifest/<20-digit version>.json`. Its first 22 bytes are fixed:
//!
//! ```text
//! {"crc32c":"xxxxxxxx",\n      CRC-32C, 8 hex digits, of everything behind this line
//! "format":1,"version":7, ...  the fields of `Manifest`
//! ```
//!
//! - **COL-3**: creating the next version is the commit. The highest version is the truth; a version is never rewritten.
//! - **COL-4**: a writer that is not the only one finds out, at the latest when it commits, and changes nothing after that.
//! - **COL-5**: files are in offset order, do not overlap, and end at or below `cold_end_offset`;
//!   `log_start_offset <= cold_end_offset`. So are the passes of compaction.

use std::collections::HashMap;
use std::sync::Arc;

use basalt_proto::{Offset, PartitionId, TopicName};
use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::compact::{self, Cleaned};
use crate::file::{ColdChunk, ColdFile, offset_number};
use crate::paths;
use crate::shred::ShreddedColumn;
use crate::store::{ColdStore, StoreError};
use crate::typed::{TypedColumns, TypedText};

/// The format of manifests whose files are all of [`crate::cold_schema`].
const FORMAT: u32 = 1;
/// The format of those with shredded files, which builds that know the other alone would misread. This build reads both.
const FORMAT_SHREDDED: u32 = 2;
/// The format of those with files that have declared columns.
const FORMAT_TYPED: u32 = 3;
/// The format of those whose files were compacted, whatever columns these have.
const FORMAT_COMPACTED: u32 = 4;
/// Bytes of the first line, which holds the checksum of the rest.
const CHECKSUM_BYTES: usize = "{'crc32c':'xxxxxxxx',\n".len();

/// Whose manifest it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionKey {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: u64,
    pub(crate) partition: PartitionId,
}

impl PartitionKey {
    pub(crate) fn prefix(&self) -> Path {
        paths::partition_prefix(&self.topic, self.topic_id, self.partition)
    }
}

/// A partition's cold part at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) version: u64,
    /// Raised by one each time the store is opened: later owners have higher ones.
    pub(crate) epoch: u64,
    /// Who wrote it: a nonce for each opening of the store.
    pub(crate) writer: String,
    pub(crate) log_start_offset: Offset,
    pub(crate) cold_end_offset: Offset,
    pub(crate) files: Vec<Arc<ColdFile>>,
    /// Records below may have gone because a later one of their key replaced them (COL-39).
    pub(crate) compacted_end_offset: Offset,
    /// Which files are clean, and since when.
    pub(crate) cleaned: Vec<Cleaned>,
}

impl Manifest {
    /// What a partition without any manifest has.
    pub(crate) const fn empty(epoch: u64, writer: String) -> Self {
        Self {
            version: 0,
            epoch,
            writer,
            log_start_offset: Offset::ZERO,
            cold_end_offset: Offset::ZERO,
            files: Vec::new(),
            compacted_end_offset: Offset::ZERO,
            cleaned: Vec::new(),
        }
    }
}

/// Why a manifest could not be read or committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The object is not a manifest, or damaged.
    #[error("the manifest {path} is damaged: {what}")]
    Damaged {
        /// The object.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The object was written by a later build.
    #[error("the manifest {path} has format {found}, this build reads those up to {expected}")]
    Format {
        /// The object.
        path: String,
        /// Its format.
        found: u32,
        /// The highest of ours.
        expected: u32,
    },
    /// Someone else writes this partition's manifests.
    #[error(
        "another writer owns {prefix}: it wrote version {found_version}, ours would have been {our_version}"
    )]
    AnotherWriter {
        /// The partition's folder.
        prefix: String,
        /// The version found.
        found_version: u64,
        /// The version that we tried to write.
        our_version: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct ManifestJson<'a> {
    format: u32,
    version: u64,
    epoch: u64,
    writer: String,
    nonce: String,
    topic: std::borrow::Cow<'a, str>,
    topic_id: String,
    partition: u32,
    #[serde(with = "offset_number")]
    log_start_offset: Offset,
    #[serde(with = "offset_number")]
    cold_end_offset: Offset,
    files: Vec<FileJson>,
    /// The different sets of shredded columns in its files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shredded: Vec<Arc<[ShreddedColumn]>>,
    /// The different sets of declared columns in its files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    typed: Vec<TypedText>,
    #[serde(default, with = "offset_number", skip_serializing_if = "is_zero")]
    compacted_end_offset: Offset,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cleaned: Vec<Cleaned>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(offset: &Offset) -> bool {
    *offset == Offset::ZERO
}

#[derive(Serialize, Deserialize)]
struct FileJson {
    name: String,
    #[serde(with = "offset_number")]
    base_offset: Offset,
    #[serde(with = "offset_number")]
    end_offset: Offset,
    rows: u64,
    file_bytes: u64,
    file_crc32c: u32,
    frame_bytes: u64,
    min_timestamp_ns: u64,
    max_timestamp_ns: u64,
    appended_at_ns: u64,
    chunks: Vec<ColdChunk>,
    /// Which of the manifest's sets of shredded columns it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shredded: Option<usize>,
    /// Which of the manifest's sets of declared columns it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typed: Option<usize>,
}

impl FileJson {
    fn of(file: &ColdFile, sets: &mut ColumnSets) -> Self {
        Self {
            name: file.path.filename().unwrap_or_default().to_owned(),
            base_offset: file.base_offset,
            end_offset: file.end_offset,
            rows: file.rows,
            file_bytes: file.file_bytes,
            file_crc32c: file.file_crc32c,
            frame_bytes: file.frame_bytes,
            min_timestamp_ns: file.min_timestamp_ns,
            max_timestamp_ns: file.max_timestamp_ns,
            appended_at_ns: file.appended_at_ns,
            chunks: file.chunks.clone(),
            shredded: file.shredded.as_ref().map(|columns| sets.number(columns)),
            typed: file
                .typed
                .as_ref()
                .map(|columns| sets.typed_number(columns)),
        }
    }

    fn into_file(
        self,
        prefix: &Path,
        sets: &[Arc<[ShreddedColumn]>],
        typed_sets: &[Arc<TypedColumns>],
    ) -> Result<ColdFile, String> {
        if !paths::is_object_name(&self.name) {
            return Err(format!("`{}` is no name of a cold file", self.name));
        }
        let shredded = match self.shredded.map(|number| sets.get(number)) {
            Some(None) => return Err(format!("the columns of {} are not there", self.name)),
            Some(columns) => columns.cloned(),
            None => None,
        };
        let typed = match self.typed.map(|number| typed_sets.get(number)) {
            Some(None) => return Err(format!("the columns of {} are not there", self.name)),
            Some(columns) => columns.cloned(),
            None => None,
        };
        let file = ColdFile {
            path: prefix.clone().join(self.name.as_str()),
            base_offset: self.base_offset,
            end_offset: self.end_offset,
            rows: self.rows,
            file_bytes: self.file_bytes,
            file_crc32c: self.file_crc32c,
            frame_bytes: self.frame_bytes,
            min_timestamp_ns: self.min_timestamp_ns,
            max_timestamp_ns: self.max_timestamp_ns,
            appended_at_ns: self.appended_at_ns,
            chunks: self.chunks,
            shredded,
            typed,
        };
        let mut end = file.base_offset;
        for (index, chunk) in file.chunks.iter().enumerate() {
            if usize::try_from(chunk.row_group) != Ok(index)
                || chunk.base_offset < end
                || chunk.end_offset <= chunk.base_offset
            {
                return Err(format!(
                    "row group {index} of {} is out of order",
                    self.name
                ));
            }
            end = chunk.end_offset;
        }
        if end > file.end_offset || file.chunks.is_empty() {
            return Err(format!(
                "the row groups of {} end at {end}, the file at {}",
                self.name, file.end_offset
            ));
        }
        Ok(file)
    }
}

/// Sets of shredded and of declared columns, each of them once.
#[derive(Default)]
struct ColumnSets {
    /// Few: one for each schema that the topic had.
    typed: Vec<Arc<TypedColumns>>,
    all: Vec<Arc<[ShreddedColumn]>>,
    numbers: HashMap<Arc<[ShreddedColumn]>, usize>,
}

impl ColumnSets {
    fn typed_number(&mut self, columns: &Arc<TypedColumns>) -> usize {
        let known = self.typed.iter().position(|known| known == columns);
        known.unwrap_or_else(|| {
            self.typed.push(Arc::clone(columns));
            self.typed.len() - 1
        })
    }

    fn number(&mut self, columns: &Arc<[ShreddedColumn]>) -> usize {
        let next = self.all.len();
        let number = *self.numbers.entry(Arc::clone(columns)).or_insert(next);
        if number == next {
            self.all.push(Arc::clone(columns));
        }
        number
    }
}

/// The bytes of a manifest's object.
pub(crate) fn encode(key: &PartitionKey, manifest: &Manifest) -> Bytes {
    let mut sets = ColumnSets::default();
    let files: Vec<_> = manifest
        .files
        .iter()
        .map(|file| FileJson::of(file, &mut sets))
        .collect();
    let json = ManifestJson {
        format: match (sets.typed.is_empty(), sets.all.is_empty()) {
            _ if manifest.compacted_end_offset > Offset::ZERO || !manifest.cleaned.is_empty() => {
                FORMAT_COMPACTED
            }
            (false, _) => FORMAT_TYPED,
            (true, false) => FORMAT_SHREDDED,
            (true, true) => FORMAT,
        },
        version: manifest.version,
        epoch: manifest.epoch,
        writer: manifest.writer.clone(),
        nonce: crate::store::nonce(),
        topic: key.topic.as_str().into(),
        topic_id: format!("{:016x}", key.topic_id),
        partition: key.partition.0,
        log_start_offset: manifest.log_start_offset,
        cold_end_offset: manifest.cold_end_offset,
        files,
        shredded: sets.all,
        typed: sets
            .typed
            .iter()
            .map(|columns| columns.text().clone())
            .collect(),
        compacted_end_offset: manifest.compacted_end_offset,
        cleaned: manifest.cleaned.clone(),
    };
    // Strings and numbers only: this cannot fail. An empty body would be refused by every reader.
    let body = serde_json::to_string(&json).unwrap_or_default();
    let body = body.strip_prefix('{').unwrap_or_default();
    Bytes::from(format!(
        "{{\"crc32c\":\"{:08x}\",\n{body}",
        crc_fast::crc32_iscsi(body.as_bytes())
    ))
}

/// Reads the object at `path`, which is version `version` of `key`'s manifests.
pub(crate) fn decode(
    key: &PartitionKey,
    version: u64,
    bytes: &[u8],
) -> Result<Manifest, ManifestError> {
    let prefix = key.prefix();
    let path = paths::manifest_path(&prefix, version);
    let damaged = |what: String| ManifestError::Damaged {
        path: path.to_string(),
        what,
    };
    let (head, body) = bytes
        .split_at_checked(CHECKSUM_BYTES)
        .ok_or_else(|| damaged(format!("it has only {} bytes", bytes.len())))?;
    let expected = format!("{{\"crc32c\":\"{:08x}\",\n", crc_fast::crc32_iscsi(body));
    if head != expected.as_bytes() {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    let whole: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    match whole
        .get("format")
        .and_then(serde_json::Value::as_u64)
        .map(u32::try_from)
    {
        Some(Ok(FORMAT | FORMAT_SHREDDED | FORMAT_TYPED | FORMAT_COMPACTED)) => {}
        Some(Ok(found)) => {
            return Err(ManifestError::Format {
                path: path.to_string(),
                found,
                expected: FORMAT_COMPACTED,
            });
        }
        _ => return Err(damaged("it names no format".to_owned())),
    }
    let json: ManifestJson<'_> =
        serde_json::from_value(whole).map_err(|error| damaged(error.to_string()))?;
    let is_ours = json.version == version
        && json.topic == key.topic.as_str()
        && json.topic_id == format!("{:016x}", key.topic_id)
        && json.partition == key.partition.0;
    if !is_ours {
        return Err(damaged(format!(
            "it is version {} of {}/{}/{}",
            json.version, json.topic, json.topic_id, json.partition
        )));
    }
    let typed = json.typed.into_iter().map(TypedColumns::from_text);
    let typed = typed.map(|columns| columns.map(Arc::new));
    let typed: Vec<_> = typed.collect::<Result<_, _>>().map_err(damaged)?;
    let mut files = Vec::with_capacity(json.files.len());
    let mut end = Offset::ZERO;
    for file in json.files {
        let file = file
            .into_file(&prefix, &json.shredded, &typed)
            .map_err(damaged)?;
        if file.base_offset < end {
            return Err(damaged(format!(
                "{} overlaps the file before it",
                file.path
            )));
        }
        end = file.end_offset;
        files.push(Arc::new(file));
    }
    if end > json.cold_end_offset || json.log_start_offset > json.cold_end_offset {
        return Err(damaged(format!(
            "log start {}, last file's end {end} and cold end {} contradict each other",
            json.log_start_offset, json.cold_end_offset
        )));
    }
    let ends = json.cleaned.iter().map(|cleaned| cleaned.end_offset);
    if !ends.is_sorted() || compact::clean_end_offset(&json.cleaned) > json.cold_end_offset {
        return Err(damaged(
            "its passes of compaction are out of order".to_owned(),
        ));
    }
    Ok(Manifest {
        version,
        epoch: json.epoch,
        writer: json.writer,
        log_start_offset: json.log_start_offset,
        cold_end_offset: json.cold_end_offset,
        files,
        compacted_end_offset: json.compacted_end_offset,
        cleaned: json.cleaned,
    })
}

/// Reads one version.
pub(crate) async fn load(
    store: &ColdStore,
    key: &PartitionKey,
    version: u64,
) -> Result<Manifest, ManifestError> {
    let bytes = store
        .get(&paths::manifest_path(&key.prefix(), version))
        .await?;
    decode(key, version, &bytes)
}

/// How a commit that returned ended.
#[derive(Debug)]
pub(crate) enum Committed {
    /// The manifest is the partition's truth.
    New,
    /// An earlier attempt of ours, whose outcome was not known, had succeeded: this is the truth, and the new manifest is not.
    Earlier(Manifest),
}

/// Makes `manifest` the truth, if its version is the next one (COL-3, COL-4).
///
/// # Errors
/// [`ManifestError::AnotherWriter`]: nothing more may be written. After a [`StoreError::Sync`] the outcome is unknowable;
/// after any other error of the store the next attempt will find out.
pub(crate) async fn commit(
    store: &ColdStore,
    key: &PartitionKey,
    manifest: &Manifest,
) -> Result<Committed, ManifestError> {
    let prefix = key.prefix();
    let path = paths::manifest_path(&prefix, manifest.version);
    let another = |found_version| ManifestError::AnotherWriter {
        prefix: prefix.to_string(),
        found_version,
        our_version: manifest.version,
    };
    let committed = match store.put_new(&path, encode(key, manifest)).await {
        Ok(()) => Committed::New,
        Err(StoreError::Exists { .. }) => {
            let there = load(store, key, manifest.version).await?;
            if there.writer != manifest.writer {
                return Err(another(there.version));
            }
            // The attempt that put it there may have ended before its sync.
            store.sync(&path).await?;
            if there == *manifest {
                // A put that the store's client tried twice finds itself.
                Committed::New
            } else {
                Committed::Earlier(there)
            }
        }
        Err(error) => return Err(error.into()),
    };
    // Someone who is far ahead may have deleted the version that ours should have collided with.
    let highest = versions(store, &prefix)
        .await?
        .into_iter()
        .max()
        .unwrap_or_default();
    if highest > manifest.version {
        return Err(another(highest));
    }
    Ok(committed)
}

/// The versions that are there, in no order.
pub(crate) async fn versions(
    store: &ColdStore,
    partition_prefix: &Path,
) -> Result<Vec<u64>, StoreError> {
    let found = store
        .list(&paths::manifest_prefix(partition_prefix))
        .await?;
    Ok(found
        .iter()
        .filter_map(|path| paths::manifest_version(path.filename()?))
        .collect())
}

#[cfg(test)]
mod tests;
