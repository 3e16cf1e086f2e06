//! A sealed segment becomes a Parquet file: streamed, row group by row group.
//!
//! - **COL-7**: every block's checksum is compared before any of its bytes is used; a damaged block stops the segment.
//! - **COL-8**: a row group holds whole frames. A batch frame's rows are never split, so each row group can be replayed by
//!   itself.
//! - **COL-9**: memory is bounded by one encoded row group, one slice of rows and the upload's parts.

use std::io::Write;
use std::sync::Arc;

use basalt_log::{AbortedTransactions, Block, ReadError, SegmentView};
use basalt_proto::{Frame, FrameKind, FrameLimits, FrameWalk, Offset};
use basalt_schema::TopicSchema;
use crc_fast::{CrcAlgorithm, Digest};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;

use crate::error::CoolError;
use crate::file::ColdChunk;
use crate::manifest::PartitionKey;
use crate::properties::properties;
use crate::rows::RowBuilder;
use crate::shred::{self, ShreddedColumn};
use crate::sink::PartSink;
use crate::typed::{MoreColumns, TypedColumns};

/// Rows are handed to the Parquet encoder once they measure this much, or are this many.
const SLICE_BYTES: u64 = 1 << 20;
const SLICE_ROWS: usize = 8192;
/// Compressed batches may be far larger as rows: a row group ends at this multiple of its frame bytes, too.
pub(crate) const EXPANSION_LIMIT: u64 = 4;
/// Parquet numbers row groups in 15 bits.
pub(crate) const MAX_ROW_GROUPS: u64 = 1 << 14;

/// How to write.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub(crate) row_group_bytes: u64,
    pub(crate) zstd_level: i32,
    pub(crate) shred_json: bool,
    /// What the declared columns are computed by, if there are any.
    pub(crate) typed: Option<Arc<TopicSchema>>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) chunks: Vec<ColdChunk>,
    pub(crate) rows: u64,
    pub(crate) file_bytes: u64,
    pub(crate) file_crc32c: u32,
    pub(crate) frame_bytes: u64,
    pub(crate) min_timestamp_ns: u64,
    pub(crate) max_timestamp_ns: u64,
    /// The shredded columns, if payloads were shredded.
    pub(crate) shredded: Option<Arc<[ShreddedColumn]>>,
    /// Rows whose payload was left out.
    pub(crate) shredded_rows: u64,
    /// The declared columns, if there are any.
    pub(crate) typed: Option<Arc<TypedColumns>>,
}

/// What the first pass over a segment found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Surveyed {
    /// Whether any record may have a key.
    pub(crate) has_keys: bool,
    /// Frames that are shown to whoever reads what is committed.
    pub(crate) frame_count: u64,
}

/// Compares every block with its checksum, and walks its frames' headers (COL-7).
///
/// # Errors
/// [`CoolError::Damaged`] names the first block that is not sound; [`CoolError::Read`].
pub(crate) fn survey(
    segment: &SegmentView,
    aborted: &AbortedTransactions,
) -> Result<Surveyed, CoolError> {
    let mut surveyed = Surveyed {
        has_keys: false,
        frame_count: 0,
    };
    let mut next = segment.base_offset;
    for block in segment.blocks() {
        segment
            .verify_block(block)
            .map_err(|error| unreadable(segment, block, error))?;
        let bytes = segment.block_bytes(block).map_err(CoolError::Read)?;
        let mut walk = FrameWalk::new(&bytes, FrameLimits::UNLIMITED);
        let at = |walk: &FrameWalk<'_>| block.position + walk.position() as u64;
        loop {
            let position = at(&walk);
            let Some(frame) = walk.next() else { break };
            let frame = frame.map_err(|error| damaged(segment, position, error.to_string()))?;
            let header = frame.header;
            if header.offset < next || header.end_offset() > segment.end_offset {
                let what = format!(
                    "offset {} is not in {next}..{}",
                    header.offset, segment.end_offset
                );
                return Err(damaged(segment, position, what));
            }
            next = header.end_offset();
            if !aborted.shows(&frame) {
                continue;
            }
            surveyed.frame_count += 1;
            surveyed.has_keys |= header.key_bytes > 0 || header.kind == FrameKind::Batch;
        }
        if !walk.rest().is_empty() {
            return Err(damaged(
                segment,
                at(&walk),
                "the block ends inside a frame".to_owned(),
            ));
        }
    }
    Ok(surveyed)
}

fn unreadable(segment: &SegmentView, block: &Block, error: ReadError) -> CoolError {
    match error {
        ReadError::Corrupt { .. } => damaged(segment, block.position, error.to_string()),
        error => CoolError::Read(error),
    }
}

fn damaged(segment: &SegmentView, position: u64, what: String) -> CoolError {
    CoolError::Damaged {
        path: segment.path().to_owned(),
        position,
        what,
    }
}

/// Writes a surveyed segment's frames as a Parquet file into `sink`. Blocks; holds no more than a row group (COL-9).
///
/// # Errors
/// [`CoolError::Damaged`], [`CoolError::Read`], [`CoolError::Rows`] or [`CoolError::Parquet`].
pub(crate) fn write_segment(
    segment: &SegmentView,
    aborted: &AbortedTransactions,
    surveyed: Surveyed,
    key: &PartitionKey,
    options: &WriteOptions,
    sink: PartSink,
) -> Result<Written, CoolError> {
    let frame_bytes = segment.frame_bytes();
    let row_group_bytes = row_group_limit(options, frame_bytes);
    let keys = surveyed
        .has_keys
        .then(|| keys_per_row_group(surveyed.frame_count, frame_bytes, row_group_bytes));
    let parquet = |source| CoolError::Parquet {
        path: key.prefix().to_string(),
        source,
    };
    let inferred = options
        .shred_json
        .then(|| shred::sample(segment, aborted))
        .flatten();
    let typed = options.typed.as_ref();
    let properties =
        properties(options.zstd_level, keys, inferred.as_ref(), typed).map_err(parquet)?;
    let columns = MoreColumns::new(inferred, typed);
    let schema = Arc::clone(columns.schema());
    let writer = ArrowWriter::try_new(sink, schema, Some(properties)).map_err(parquet)?;
    let mut file = FileWriter {
        writer,
        columns,
        rows: RowBuilder::new(key.partition),
        chunks: Vec::new(),
        open: None,
        row_group_bytes,
    };
    for block in segment.blocks() {
        file.push_block(segment, aborted, block)
            .map_err(|error| error.of(segment, key))?;
    }
    file.end_chunk().map_err(parquet)?;
    describe(
        &mut file.writer,
        key,
        segment.base_offset,
        segment.end_offset,
    );
    let FileWriter {
        mut writer,
        columns,
        chunks,
        ..
    } = file;
    for pair in columns.metadata() {
        writer.append_key_value_metadata(pair);
    }
    let sink = writer.into_inner().map_err(parquet)?;
    let (file_bytes, file_crc32c) = sink
        .finish()
        .map_err(|error| parquet(ParquetError::External(Box::new(error))))?;
    Ok(Written::of(chunks, file_bytes, file_crc32c).with_columns(&columns))
}

/// Bytes of frames in a row group of a file of `frame_bytes`.
pub(crate) fn row_group_limit(options: &WriteOptions, frame_bytes: u64) -> u64 {
    options
        .row_group_bytes
        .max(frame_bytes.div_ceil(MAX_ROW_GROUPS))
}

/// How many keys a row group may have, if all `rows` have one.
pub(crate) fn keys_per_row_group(rows: u64, frame_bytes: u64, row_group_bytes: u64) -> u64 {
    (rows / frame_bytes.div_ceil(row_group_bytes).max(1)).max(1024)
}

/// Says in the file's own metadata whose rows it has.
pub(crate) fn describe<W: Write + Send>(
    writer: &mut ArrowWriter<W>,
    key: &PartitionKey,
    base_offset: Offset,
    end_offset: Offset,
) {
    for (name, value) in [
        ("basalt.topic", key.topic.to_string()),
        ("basalt.topic_id", format!("{:016x}", key.topic_id)),
        ("basalt.partition", key.partition.to_string()),
        ("basalt.base_offset", base_offset.to_string()),
        ("basalt.end_offset", end_offset.to_string()),
    ] {
        writer.append_key_value_metadata(KeyValue::new(name.to_owned(), value));
    }
}

impl Written {
    /// A file of `chunks` whose payloads stand as they are.
    pub(crate) fn of(chunks: Vec<ColdChunk>, file_bytes: u64, file_crc32c: u32) -> Self {
        let lowest = chunks.iter().map(|chunk| chunk.min_timestamp_ns).min();
        let highest = chunks.iter().map(|chunk| chunk.max_timestamp_ns).max();
        Self {
            rows: chunks.iter().map(|chunk| chunk.rows).sum(),
            file_bytes,
            file_crc32c,
            frame_bytes: chunks.iter().map(|chunk| chunk.frame_bytes).sum(),
            min_timestamp_ns: lowest.unwrap_or_default(),
            max_timestamp_ns: highest.unwrap_or_default(),
            chunks,
            shredded: None,
            shredded_rows: 0,
            typed: None,
        }
    }

    /// The same with the columns that were made of its payloads.
    pub(crate) fn with_columns(self, columns: &MoreColumns) -> Self {
        let (shredded, shredded_rows) = columns.shredded();
        Self {
            shredded,
            shredded_rows,
            typed: columns.typed(),
            ..self
        }
    }
}

/// A failure before it is known in which segment.
enum PushError {
    Frame {
        position: u64,
        what: String,
    },
    Read(ReadError),
    Rows {
        offset: Offset,
        source: crate::rows::RowError,
    },
    Parquet(ParquetError),
}

impl PushError {
    fn of(self, segment: &SegmentView, key: &PartitionKey) -> CoolError {
        match self {
            Self::Frame { position, what } => damaged(segment, position, what),
            Self::Read(source) => CoolError::Read(source),
            Self::Rows { offset, source } => CoolError::Rows {
                path: segment.path().to_owned(),
                offset,
                source,
            },
            Self::Parquet(source) => CoolError::Parquet {
                path: key.prefix().to_string(),
                source,
            },
        }
    }
}

impl From<ParquetError> for PushError {
    fn from(source: ParquetError) -> Self {
        Self::Parquet(source)
    }
}

struct FileWriter<W: Write + Send> {
    writer: ArrowWriter<W>,
    columns: MoreColumns,
    rows: RowBuilder,
    chunks: Vec<ColdChunk>,
    open: Option<OpenChunk>,
    row_group_bytes: u64,
}

/// A row group that is being filled.
struct OpenChunk {
    chunk: ColdChunk,
    has_batches: bool,
    crc: Digest,
    /// Bytes of values in the rows that were handed to the encoder.
    encoded_value_bytes: u64,
}

impl<W: Write + Send> FileWriter<W> {
    fn push_block(
        &mut self,
        segment: &SegmentView,
        aborted: &AbortedTransactions,
        block: &Block,
    ) -> Result<(), PushError> {
        let bytes = segment.block_bytes(block).map_err(PushError::Read)?;
        let mut walk = FrameWalk::new(&bytes, FrameLimits::UNLIMITED);
        loop {
            let start = walk.position();
            let Some(frame) = walk.next() else { break };
            let bad = |what| PushError::Frame {
                position: block.position + start as u64,
                what,
            };
            let frame = frame.map_err(|error| bad(error.to_string()))?;
            let frame_bytes = bytes.get(start..walk.position()).unwrap_or_default();
            if !aborted.shows(&frame) {
                continue;
            }
            self.push(&frame, frame_bytes)?;
        }
        Ok(())
    }

    fn push(&mut self, frame: &Frame<'_>, bytes: &[u8]) -> Result<(), PushError> {
        if self
            .open
            .as_ref()
            .is_some_and(|open| self.is_full(open, bytes.len() as u64))
        {
            self.end_chunk()?;
        }
        let added = self
            .rows
            .push_measured(frame)
            .map_err(|source| PushError::Rows {
                offset: frame.header.offset,
                source,
            })?;
        let row_group = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        let open = self
            .open
            .get_or_insert_with(|| OpenChunk::new(row_group, frame.header.offset));
        open.crc.update(bytes);
        open.has_batches |= frame.header.kind == FrameKind::Batch;
        let chunk = &mut open.chunk;
        chunk.end_offset = frame.header.end_offset();
        chunk.frame_bytes += bytes.len() as u64;
        chunk.rows += added.rows;
        chunk.min_timestamp_ns = chunk.min_timestamp_ns.min(added.min_timestamp_ns);
        chunk.max_timestamp_ns = chunk.max_timestamp_ns.max(added.max_timestamp_ns);
        if self.rows.value_bytes() >= SLICE_BYTES || self.rows.row_count() >= SLICE_ROWS {
            self.encode_rows()?;
        }
        Ok(())
    }

    fn is_full(&self, open: &OpenChunk, next_frame_bytes: u64) -> bool {
        let value_bytes = open.encoded_value_bytes + self.rows.value_bytes();
        open.chunk.frame_bytes.saturating_add(next_frame_bytes) > self.row_group_bytes
            || value_bytes > self.row_group_bytes.saturating_mul(EXPANSION_LIMIT)
    }

    fn encode_rows(&mut self) -> Result<(), ParquetError> {
        if let Some(open) = &mut self.open {
            open.encoded_value_bytes += self.rows.value_bytes();
        }
        if self.rows.row_count() > 0 {
            let rows = self.rows.finish();
            let Self {
                writer, columns, ..
            } = self;
            columns.extend(rows, |piece| writer.write(piece))?;
        }
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<(), ParquetError> {
        self.encode_rows()?;
        if let Some(open) = self.open.take() {
            self.writer.flush()?;
            self.chunks.push(open.close());
        }
        Ok(())
    }
}

impl OpenChunk {
    fn new(row_group: u32, base_offset: Offset) -> Self {
        Self {
            chunk: ColdChunk {
                row_group,
                base_offset,
                end_offset: base_offset,
                frame_bytes: 0,
                rows: 0,
                min_timestamp_ns: u64::MAX,
                max_timestamp_ns: 0,
                frames_crc32c: None,
            },
            has_batches: false,
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
            encoded_value_bytes: 0,
        }
    }

    fn close(self) -> ColdChunk {
        let crc = (!self.has_batches).then(|| crc32_value(&self.crc));
        ColdChunk {
            frames_crc32c: crc,
            ..self.chunk
        }
    }
}

/// The value of a 32-bit checksum, which the crate hands out in 64 bits.
pub(crate) fn crc32_value(digest: &Digest) -> u32 {
    u32::try_from(digest.finalize()).unwrap_or(u32::MAX)
}
