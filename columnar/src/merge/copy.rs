//! Copying rows of several files into one (COL-20). Memory is bounded as cooling's is (COL-9): a piece of decoded rows, the bytes of
//! the row group they are in, one encoded row group, and the upload's parts.

use std::io::Write;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use basalt_proto::Offset;
use crc_fast::{CrcAlgorithm, Digest};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use super::{Source, sample};
use crate::compact::{RowSet, Survivors};
use crate::error::CoolError;
use crate::file::{ColdChunk, ColdFile};
use crate::hydrate::{ChunkReader, ProjectedColumns, Rebuilt, unplayable};
use crate::manifest::PartitionKey;
use crate::properties::properties;
use crate::schema::{cold_schema, column};
use crate::sink::PartSink;
use crate::typed::MoreColumns;
use crate::writer::{
    EXPANSION_LIMIT, WriteOptions, Written, crc32_value, describe, keys_per_row_group,
    row_group_limit,
};

/// What is copied, and from where.
pub(super) struct Inputs {
    pub(super) source: Source,
    /// Neighbours, in order, whose bytes were compared with their checksums.
    pub(super) files: Vec<Arc<ColdFile>>,
    /// Rows that are not copied, of the only file.
    pub(super) gone: Option<Arc<RowSet>>,
    pub(super) has_keys: bool,
}

/// What was written.
pub(super) struct Copied {
    pub(super) written: Written,
    /// What the frames of each row group must be when they are rebuilt from it: what they were when rebuilt from the inputs.
    pub(super) rebuilt: Vec<Rebuilt>,
}

/// Writes the rows of `inputs` into `sink`. Blocks.
///
/// # Errors
/// [`CoolError::Merge`] when an input cannot be read or is not what its manifest says, [`CoolError::Parquet`], and
/// [`CoolError::Closed`] once the sign is raised.
pub(super) fn copy(
    inputs: &Inputs,
    key: &PartitionKey,
    options: &WriteOptions,
    sink: PartSink,
) -> Result<Copied, CoolError> {
    let (Some(first), Some(last)) = (inputs.files.first(), inputs.files.last()) else {
        return Err(CoolError::Closed);
    };
    let parquet = |source| CoolError::Parquet {
        path: key.prefix().to_string(),
        source,
    };
    let sum = |of: fn(&ColdFile) -> u64| inputs.files.iter().map(|file| of(file)).sum::<u64>();
    let frame_bytes = sum(|file| file.frame_bytes);
    let row_group_bytes = row_group_limit(options, frame_bytes);
    let keys = inputs
        .has_keys
        .then(|| keys_per_row_group(sum(|file| file.rows), frame_bytes, row_group_bytes));
    let inferred = match options.shred_json {
        true => sample::sample(inputs)?,
        false => None,
    };
    let typed = options.typed.as_ref();
    let properties =
        properties(options.zstd_level, keys, inferred.as_ref(), typed).map_err(parquet)?;
    let columns = MoreColumns::new(inferred, typed);
    let schema = Arc::clone(columns.schema());
    let mut merger = Merger {
        writer: ArrowWriter::try_new(sink, schema, Some(properties)).map_err(parquet)?,
        columns,
        row_group_bytes,
        open: None,
        chunks: Vec::new(),
        rebuilt: Vec::new(),
    };
    for file in &inputs.files {
        let mut next_row = 0;
        for chunk in &file.chunks {
            let gone = inputs.gone.as_deref();
            let survivors = gone.map(|gone| Survivors::new(gone, next_row));
            next_row += usize::try_from(chunk.rows).unwrap_or(usize::MAX);
            merger
                .copy_chunk(inputs, file, chunk, survivors)
                .map_err(|error| match error {
                    CopyError::Parquet(source) => parquet(source),
                    CopyError::Cool(error) => error,
                })?;
        }
    }
    merger.end_row_group().map_err(parquet)?;
    describe(&mut merger.writer, key, first.base_offset, last.end_offset);
    let Merger {
        mut writer,
        columns,
        chunks,
        rebuilt,
        ..
    } = merger;
    for pair in columns.metadata() {
        writer.append_key_value_metadata(pair);
    }
    let sink = writer.into_inner().map_err(parquet)?;
    let (file_bytes, file_crc32c) = sink
        .finish()
        .map_err(|error| parquet(ParquetError::External(Box::new(error))))?;
    let written = Written::of(chunks, file_bytes, file_crc32c);
    Ok(Copied {
        written: written.with_columns(&columns),
        rebuilt,
    })
}

/// A failure before it is known in which file it is written.
enum CopyError {
    Parquet(ParquetError),
    Cool(CoolError),
}

impl From<ParquetError> for CopyError {
    fn from(source: ParquetError) -> Self {
        Self::Parquet(source)
    }
}

impl From<CoolError> for CopyError {
    fn from(error: CoolError) -> Self {
        Self::Cool(error)
    }
}

struct Merger<W: Write + Send> {
    writer: ArrowWriter<W>,
    columns: MoreColumns,
    row_group_bytes: u64,
    open: Option<OpenRowGroup>,
    chunks: Vec<ColdChunk>,
    rebuilt: Vec<Rebuilt>,
}

/// A row group that is being filled with whole row groups.
struct OpenRowGroup {
    chunk: ColdChunk,
    has_batches: bool,
    value_bytes: u64,
    rebuilt_bytes: u64,
    crc: Digest,
}

impl<W: Write + Send> Merger<W> {
    fn copy_chunk(
        &mut self,
        inputs: &Inputs,
        file: &ColdFile,
        chunk: &ColdChunk,
        mut survivors: Option<Survivors<'_>>,
    ) -> Result<(), CopyError> {
        let source = &inputs.source;
        source.sign.check()?;
        let (store, handle) = (&source.object_store, &source.handle);
        let opened = ChunkReader::open(store, &source.footers, file, chunk, ProjectedColumns::All);
        let mut reader = handle.block_on(opened).map_err(CoolError::Merge)?;
        let replay = |error| CoolError::Merge(unplayable(file, chunk)(error));
        if self
            .open
            .as_ref()
            .is_some_and(|open| !open.has_room(chunk, reader.value_bytes(), self.row_group_bytes))
        {
            self.end_row_group()?;
        }
        let row_group = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        // The writer waits for the store, which must not happen while this thread drives the reader.
        while let Some(rows) = handle.block_on(reader.next()).map_err(CoolError::Merge)? {
            source.sign.check()?;
            // With the payloads that were left out; what is made of them is made anew.
            let arrays = rows.columns().iter().take(column::COUNT).cloned();
            let mut rows = RecordBatch::try_new(cold_schema(), arrays.collect())
                .map_err(|error| ParquetError::ArrowError(error.to_string()))?;
            if let Some(survivors) = &mut survivors {
                rows = survivors.push(&rows).map_err(replay)?;
            }
            let frames = match &survivors {
                Some(survivors) => survivors.frames(),
                None => reader.frames(),
            };
            let open = self
                .open
                .get_or_insert_with(|| OpenRowGroup::new(row_group));
            open.crc.update(frames);
            open.rebuilt_bytes += frames.len() as u64;
            let writer = &mut self.writer;
            self.columns.extend(rows, |piece| writer.write(piece))?;
        }
        let value_bytes = reader.value_bytes();
        reader.finish().map_err(CoolError::Merge)?;
        let copied = match survivors {
            Some(survivors) => survivors.finish().map_err(replay)?,
            None => Some((chunk.clone(), chunk.has_batches())),
        };
        if let (Some(open), Some((copied, has_batches))) = (&mut self.open, copied) {
            open.add(&copied, has_batches, value_bytes);
        }
        Ok(())
    }

    fn end_row_group(&mut self) -> Result<(), ParquetError> {
        // Nothing may have stayed.
        if let Some(open) = self.open.take().filter(|open| open.chunk.rows > 0) {
            self.writer.flush()?;
            let rebuilt = Rebuilt {
                frame_bytes: open.rebuilt_bytes,
                frames_crc32c: crc32_value(&open.crc),
            };
            self.chunks.push(ColdChunk {
                frames_crc32c: (!open.has_batches).then_some(rebuilt.frames_crc32c),
                ..open.chunk
            });
            self.rebuilt.push(rebuilt);
        }
        Ok(())
    }
}

impl OpenRowGroup {
    fn new(row_group: u32) -> Self {
        Self {
            chunk: ColdChunk {
                row_group,
                base_offset: Offset::MAX,
                end_offset: Offset::ZERO,
                frame_bytes: 0,
                rows: 0,
                min_timestamp_ns: u64::MAX,
                max_timestamp_ns: 0,
                frames_crc32c: None,
            },
            has_batches: false,
            value_bytes: 0,
            rebuilt_bytes: 0,
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    fn has_room(&self, next: &ColdChunk, value_bytes: u64, row_group_bytes: u64) -> bool {
        self.chunk.frame_bytes.saturating_add(next.frame_bytes) <= row_group_bytes
            && self.value_bytes.saturating_add(value_bytes)
                <= row_group_bytes.saturating_mul(EXPANSION_LIMIT)
    }

    fn add(&mut self, next: &ColdChunk, has_batches: bool, value_bytes: u64) {
        let chunk = &mut self.chunk;
        chunk.base_offset = chunk.base_offset.min(next.base_offset);
        chunk.end_offset = next.end_offset;
        chunk.frame_bytes += next.frame_bytes;
        chunk.rows += next.rows;
        chunk.min_timestamp_ns = chunk.min_timestamp_ns.min(next.min_timestamp_ns);
        chunk.max_timestamp_ns = chunk.max_timestamp_ns.max(next.max_timestamp_ns);
        self.has_batches |= has_batches;
        self.value_bytes = self.value_bytes.saturating_add(value_bytes);
    }
}
