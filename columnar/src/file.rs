//! A cold file and its row groups, as the manifest describes them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use basalt_proto::Offset;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::schema::schema_with;
use crate::shred::ShreddedColumn;
use crate::typed::TypedColumns;

/// One Parquet file in the object store. Immutable.
///
/// Whoever holds its `Arc` may read the object: a file that retention dropped is deleted once nobody does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdFile {
    /// Where it is in the store.
    pub path: Path,
    /// The segment's first offset. The first row may be later.
    pub base_offset: Offset,
    /// The segment's end offset, exclusive. The last row may end earlier.
    pub end_offset: Offset,
    /// Rows: one a record frame, one a record of a batch frame.
    pub rows: u64,
    /// Length of the object.
    pub file_bytes: u64,
    /// CRC-32C of the object's bytes.
    pub file_crc32c: u32,
    /// Length of the frames it was made of.
    pub frame_bytes: u64,
    /// The smallest stamp of its frames, raw.
    pub min_timestamp_ns: u64,
    /// The largest stamp of its frames, raw.
    pub max_timestamp_ns: u64,
    /// The broker's clock at the segment's last append: what retention by age counts from.
    pub appended_at_ns: u64,
    /// Its row groups, in order; at least one.
    pub chunks: Vec<ColdChunk>,
    /// Its columns behind those of [`cold_schema`] and the column of templates, if its payloads were shredded: some rows then have
    /// NULL in `_payload` and are rendered by [`crate::shred::Shredding::render`].
    ///
    /// [`cold_schema`]: crate::cold_schema
    pub shredded: Option<Arc<[ShreddedColumn]>>,
    /// Its last columns, if its topic had a schema when it was written.
    pub typed: Option<Arc<TypedColumns>>,
}

/// One row group of a [`ColdFile`]: whole frames, and what a cold read hydrates at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdChunk {
    /// Its position in the file.
    pub row_group: u32,
    /// Its first frame's offset.
    #[serde(with = "offset_number")]
    pub base_offset: Offset,
    /// Its last frame's end offset, exclusive.
    #[serde(with = "offset_number")]
    pub end_offset: Offset,
    /// Length of its frames as they were appended.
    pub frame_bytes: u64,
    /// Rows.
    pub rows: u64,
    /// The smallest stamp of its frames, raw.
    pub min_timestamp_ns: u64,
    /// The largest stamp of its frames, raw.
    pub max_timestamp_ns: u64,
    /// CRC-32C of its frames, when replay gives them back byte for byte: without batch frames. `None` with them.
    pub frames_crc32c: Option<u32>,
}

impl ColdChunk {
    /// Whether it holds batch frames, whose bytes (not records) may differ in replay.
    #[must_use]
    pub const fn has_batches(&self) -> bool {
        self.frames_crc32c.is_none()
    }
}

impl ColdFile {
    /// The Arrow schema of the object.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        schema_with(self.shredded.as_ref(), self.typed.as_deref())
    }

    /// The position in [`ColdFile::chunks`] of the first row group that ends after `from`; `None` when no record of this file
    /// does.
    #[must_use]
    pub fn chunk_at(&self, from: Offset) -> Option<usize> {
        let index = self
            .chunks
            .partition_point(|chunk| chunk.end_offset <= from);
        (index < self.chunks.len()).then_some(index)
    }
}

/// Offsets as plain numbers in JSON.
pub(crate) mod offset_number {
    use basalt_proto::Offset;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(offset: &Offset, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(offset.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Offset, D::Error> {
        u64::deserialize(from).map(Offset)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file of `chunks` of (base, end).
    pub(crate) fn file(base: u64, end: u64, chunks: &[(u64, u64)]) -> ColdFile {
        let chunk = |(row_group, (base, end)): (usize, &(u64, u64))| ColdChunk {
            row_group: u32::try_from(row_group).unwrap(),
            base_offset: Offset(*base),
            end_offset: Offset(*end),
            frame_bytes: 29 * (end - base),
            rows: end - base,
            min_timestamp_ns: *base,
            max_timestamp_ns: *end,
            frames_crc32c: Some(0),
        };
        ColdFile {
            path: Path::from(format!(
                "t/0000000000000001/0/{base:020}-{end:020}-ab.parquet"
            )),
            base_offset: Offset(base),
            end_offset: Offset(end),
            rows: chunks.iter().map(|(base, end)| end - base).sum(),
            file_bytes: 100,
            file_crc32c: 7,
            frame_bytes: chunks.iter().map(|(base, end)| 29 * (end - base)).sum(),
            min_timestamp_ns: base,
            max_timestamp_ns: end,
            appended_at_ns: end,
            chunks: chunks.iter().enumerate().map(chunk).collect(),
            shredded: None,
            typed: None,
        }
    }

    #[test]
    fn an_offset_in_a_hole_finds_the_next_chunk() {
        let file = file(0, 100, &[(0, 10), (20, 90)]);
        assert_eq!(file.chunk_at(Offset(0)), Some(0));
        assert_eq!(file.chunk_at(Offset(9)), Some(0));
        assert_eq!(file.chunk_at(Offset(10)), Some(1));
        assert_eq!(file.chunk_at(Offset(15)), Some(1));
        assert_eq!(file.chunk_at(Offset(89)), Some(1));
        assert_eq!(file.chunk_at(Offset(90)), None);
    }
}
