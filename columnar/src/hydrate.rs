//! Reading a cold file: its row groups as frames, and its footer as proof.

use std::io::Write;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::RecordBatch;
use crc_fast::{CrcAlgorithm, Digest};
use futures::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::ParquetRecordBatchStream;
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

use crate::error::{CoolError, HydrateError};
use crate::file::{ColdChunk, ColdFile};
use crate::object_reader::{Footers, ObjectReader};
use crate::replay::{ALL_COLUMNS, FrameRebuilder, RECORD_COLUMNS, ReplayError};
use crate::schema::column;
use crate::shred::{ShredError, Shredding};
use crate::store::StoreError;
use crate::writer::crc32_value;

/// Rows are decoded in pieces of at most this size. Columns and frames of a piece stay in a core's own cache: with eight times as many
/// rows replay takes 1.4 times as long.
const PIECE_BYTES: i64 = 4 << 20;
const PIECE_ROWS: i64 = 1024;

/// Writes the frames of a row group to `out`, as they were appended (COL-6) and whole ones at a time, and checks them against the
/// manifest. Decodes
/// where it is polled: to be driven by a thread that may block.
///
/// # Errors
/// [`HydrateError`]; some frames may have been written then.
pub(crate) async fn read_chunk(
    object_store: &Arc<dyn ObjectStore>,
    footers: &Footers,
    file: &ColdFile,
    chunk: &ColdChunk,
    out: &mut (dyn Write + Send),
) -> Result<Rebuilt, HydrateError> {
    let columns = if chunk.has_batches() {
        ProjectedColumns::Some(&ALL_COLUMNS)
    } else {
        ProjectedColumns::Some(&RECORD_COLUMNS)
    };
    let mut reader = ChunkReader::open(object_store, footers, file, chunk, columns).await?;
    while reader.next_frames().await? {
        out.write_all(reader.frames())
            .map_err(|source| HydrateError::Cache {
                path: file.path.to_string().into(),
                source,
            })?;
    }
    reader.finish()
}

/// Which columns to decode.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProjectedColumns {
    /// Every one.
    All,
    /// Those at these positions of [`cold_schema`], enough to rebuild frames.
    Some(&'static [usize]),
}

impl ProjectedColumns {
    /// `metadata`, for a reader of these columns: where only frames are wanted, bytes and texts are decoded as views of the
    /// decompressed pages, and are copied once, into the frames.
    fn layout(self, metadata: ArrowReaderMetadata) -> Result<ArrowReaderMetadata, ParquetError> {
        if matches!(self, Self::All) {
            return Ok(metadata);
        }
        let view = |field: &Arc<Field>| {
            let data_type = match field.data_type() {
                DataType::Utf8 => DataType::Utf8View,
                DataType::Binary => DataType::BinaryView,
                _ => return Arc::clone(field),
            };
            Arc::new(field.as_ref().clone().with_data_type(data_type))
        };
        let fields: Fields = metadata.schema().fields().iter().map(view).collect();
        let schema = Schema::new_with_metadata(fields, metadata.schema().metadata().clone());
        ArrowReaderMetadata::try_new(
            Arc::clone(metadata.metadata()),
            ArrowReaderOptions::new().with_schema(Arc::new(schema)),
        )
    }
}

/// What frames a row group's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rebuilt {
    pub(crate) frame_bytes: u64,
    pub(crate) frames_crc32c: u32,
}

/// A row group's rows in pieces, each with the frames that end in it.
pub(crate) struct ChunkReader<'a> {
    file: &'a ColdFile,
    chunk: &'a ColdChunk,
    shredding: Option<Shredding>,
    rows: ParquetRecordBatchStream<ObjectReader>,
    value_bytes: u64,
    rebuilder: FrameRebuilder,
    frames: Vec<u8>,
    frame_bytes: u64,
    crc: Digest,
}

impl<'a> ChunkReader<'a> {
    /// Reads the footer, if that is not among `footers`, and compares the row group's number of rows and the schema with the manifest.
    ///
    /// # Errors
    /// [`HydrateError::Parquet`] and [`HydrateError::Damaged`].
    pub(crate) async fn open(
        object_store: &Arc<dyn ObjectStore>,
        footers: &Footers,
        file: &'a ColdFile,
        chunk: &'a ColdChunk,
        columns: ProjectedColumns,
    ) -> Result<Self, HydrateError> {
        let parquet = unreadable(file, chunk);
        let mut reader = reader(object_store, file, file.file_bytes);
        let metadata = footers.get(&mut reader).await.map_err(&parquet)?;
        let (index, piece_rows) = check_row_group(&metadata, file, chunk)?;
        let shredding =
            shredding(&metadata, file).map_err(|error| unplayable(file, chunk)(error.into()))?;
        let group = metadata.metadata().row_group(index);
        let value_bytes = u64::try_from(group.total_byte_size()).unwrap_or_default();
        let mask = match columns {
            ProjectedColumns::All => ProjectionMask::all(),
            ProjectedColumns::Some(columns) => {
                let of_payloads = shredding.iter().flat_map(Shredding::payload_columns);
                ProjectionMask::roots(
                    metadata.parquet_schema(),
                    columns.iter().copied().chain(of_payloads),
                )
            }
        };
        let metadata = columns.layout(metadata).map_err(&parquet)?;
        let rows = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata)
            .with_row_groups(vec![index])
            .with_projection(mask)
            .with_batch_size(piece_rows)
            .build()
            .map_err(&parquet)?;
        Ok(Self {
            file,
            chunk,
            shredding,
            rows,
            value_bytes,
            rebuilder: FrameRebuilder::default(),
            frames: Vec::new(),
            frame_bytes: 0,
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
        })
    }

    /// Bytes of the row group's columns before compression.
    pub(crate) const fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// The next rows, with their payloads.
    ///
    /// # Errors
    /// [`HydrateError::Parquet`] and [`HydrateError::Rows`].
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>, HydrateError> {
        let Some(mut piece) = self.decode().await? else {
            return Ok(None);
        };
        if let Some(shredding) = &self.shredding {
            piece = shredding
                .restore(&piece)
                .map_err(|error| unplayable(self.file, self.chunk)(error.into()))?;
        }
        self.frames.clear();
        let pushed = self.rebuilder.push(&piece, None, &mut self.frames);
        pushed.map_err(unplayable(self.file, self.chunk))?;
        self.count();
        Ok(Some(piece))
    }

    /// The frames of the next rows, if there are any more: payloads are rendered into them, and nowhere else.
    ///
    /// # Errors
    /// [`HydrateError::Parquet`] and [`HydrateError::Rows`].
    pub(crate) async fn next_frames(&mut self) -> Result<bool, HydrateError> {
        let Some(piece) = self.decode().await? else {
            return Ok(false);
        };
        self.frames.clear();
        let shredding = self.shredding.as_ref();
        let pushed = self.rebuilder.push(&piece, shredding, &mut self.frames);
        pushed.map_err(unplayable(self.file, self.chunk))?;
        self.count();
        Ok(true)
    }

    async fn decode(&mut self) -> Result<Option<RecordBatch>, HydrateError> {
        let piece = self.rows.next().await.transpose();
        piece.map_err(unreadable(self.file, self.chunk))
    }

    fn count(&mut self) {
        self.crc.update(&self.frames);
        self.frame_bytes += self.frames.len() as u64;
    }

    /// The frames that end in the rows that came last.
    pub(crate) fn frames(&self) -> &[u8] {
        &self.frames
    }

    /// What all frames were, once all rows came.
    ///
    /// # Errors
    /// [`HydrateError::Rows`] when the last frame is not whole, [`HydrateError::Damaged`] when the frames are not those that
    /// were appended.
    pub(crate) fn finish(self) -> Result<Rebuilt, HydrateError> {
        let (file, chunk) = (self.file, self.chunk);
        self.rebuilder.finish().map_err(unplayable(file, chunk))?;
        let rebuilt = Rebuilt {
            frame_bytes: self.frame_bytes,
            frames_crc32c: crc32_value(&self.crc),
        };
        if let Some(frames_crc32c) = chunk.frames_crc32c {
            let appended = Rebuilt {
                frame_bytes: chunk.frame_bytes,
                frames_crc32c,
            };
            check_frames(file, chunk, rebuilt, appended)?;
        }
        Ok(rebuilt)
    }
}

/// A row group's rows as they are stored, some columns of them, in the order in which the file has these.
///
/// # Errors
/// As [`ChunkReader::open`].
pub(crate) async fn open_rows(
    object_store: &Arc<dyn ObjectStore>,
    footers: &Footers,
    file: &ColdFile,
    chunk: &ColdChunk,
    columns: impl Iterator<Item = usize>,
) -> Result<ParquetRecordBatchStream<ObjectReader>, HydrateError> {
    let parquet = unreadable(file, chunk);
    let mut reader = reader(object_store, file, file.file_bytes);
    let metadata = footers.get(&mut reader).await.map_err(&parquet)?;
    let (index, piece_rows) = check_row_group(&metadata, file, chunk)?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), columns);
    ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata)
        .with_row_groups(vec![index])
        .with_projection(mask)
        .with_batch_size(piece_rows)
        .build()
        .map_err(&parquet)
}

/// Compares what a row group was rebuilt to with what it should be.
///
/// # Errors
/// [`HydrateError::Damaged`].
pub(crate) fn check_frames(
    file: &ColdFile,
    chunk: &ColdChunk,
    found: Rebuilt,
    expected: Rebuilt,
) -> Result<(), HydrateError> {
    if found == expected {
        return Ok(());
    }
    let show = |frames: Rebuilt| {
        format!(
            "{:08x} over {} bytes",
            frames.frames_crc32c, frames.frame_bytes
        )
    };
    let what = "checksum of frames";
    Err(damaged(file, chunk, what, show(found), show(expected)))
}

pub(crate) fn unreadable(
    file: &ColdFile,
    chunk: &ColdChunk,
) -> impl Fn(ParquetError) -> HydrateError {
    let (path, row_group) = (file.path.to_string(), chunk.row_group);
    move |source| HydrateError::Parquet {
        path: path.clone(),
        row_group,
        source,
    }
}

pub(crate) fn unplayable(
    file: &ColdFile,
    chunk: &ColdChunk,
) -> impl Fn(ReplayError) -> HydrateError {
    let (path, row_group) = (file.path.to_string(), chunk.row_group);
    move |source| HydrateError::Rows {
        path: path.clone(),
        row_group,
        source,
    }
}

fn damaged(
    file: &ColdFile,
    chunk: &ColdChunk,
    what: &'static str,
    found: String,
    expected: String,
) -> HydrateError {
    HydrateError::Damaged {
        path: file.path.to_string(),
        row_group: chunk.row_group,
        what,
        found,
        expected,
    }
}

/// Whether a file has a bloom filter of its keys, which says that there are any.
///
/// # Errors
/// [`CoolError::ReadBack`].
pub(crate) async fn has_keys(
    object_store: &Arc<dyn ObjectStore>,
    file: &ColdFile,
) -> Result<bool, CoolError> {
    let mut reader = reader(object_store, file, file.file_bytes);
    let metadata = ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new())
        .await
        .map_err(|source| CoolError::ReadBack {
            path: file.path.to_string(),
            source,
        })?;
    let groups = metadata.metadata().row_groups().iter();
    Ok(groups
        .filter_map(|group| group.columns().get(column::KEY))
        .any(|keys| keys.bloom_filter_offset().is_some()))
}

/// Compares a row group with the manifest: its index, and how many rows to decode at a time.
fn check_row_group(
    metadata: &ArrowReaderMetadata,
    file: &ColdFile,
    chunk: &ColdChunk,
) -> Result<(usize, usize), HydrateError> {
    let damaged =
        |what, found: String, expected: String| Err(damaged(file, chunk, what, found, expected));
    let groups = metadata.metadata().row_groups();
    let index = usize::try_from(chunk.row_group).unwrap_or(usize::MAX);
    let Some(group) = groups.get(index) else {
        return damaged(
            "row group count",
            groups.len().to_string(),
            format!("at least {}", u64::from(chunk.row_group) + 1),
        );
    };
    if u64::try_from(group.num_rows()) != Ok(chunk.rows) {
        return damaged(
            "row count",
            group.num_rows().to_string(),
            chunk.rows.to_string(),
        );
    }
    if metadata.schema().fields() != file.schema().fields() {
        return damaged(
            "schema",
            format!("{:?}", metadata.schema().fields()),
            format!("{:?}", file.schema().fields()),
        );
    }
    Ok((index, piece_rows(group, chunk)))
}

fn reader(object_store: &Arc<dyn ObjectStore>, file: &ColdFile, file_bytes: u64) -> ObjectReader {
    ObjectReader {
        object_store: Arc::clone(object_store),
        path: file.path.clone(),
        file_bytes,
    }
}

/// How the payloads of a file are rendered, if they are not there as they are. What the footer and the manifest say is compared.
fn shredding(
    metadata: &ArrowReaderMetadata,
    file: &ColdFile,
) -> Result<Option<Shredding>, ShredError> {
    let pairs = metadata.metadata().file_metadata().key_value_metadata();
    let shredding = Shredding::from_metadata(pairs)?;
    if shredding.as_ref().map(Shredding::columns) == file.shredded.as_ref() {
        return Ok(shredding);
    }
    Err(ShredError::Metadata {
        what: "the manifest names other columns".to_owned(),
    })
}

fn piece_rows(group: &RowGroupMetaData, chunk: &ColdChunk) -> usize {
    let rows = group.num_rows().max(1);
    // Values in dictionaries and shredded payloads are larger than what holds them.
    let bytes = i64::try_from(chunk.frame_bytes).unwrap_or(i64::MAX);
    let bytes_per_row = (bytes.max(group.total_byte_size()) / rows).max(1);
    usize::try_from((PIECE_BYTES / bytes_per_row).clamp(1, PIECE_ROWS)).unwrap_or(1)
}

/// Reads the footer of an object that was just written, and compares it with what is about to be committed.
///
/// # Errors
/// [`CoolError::Verify`] when it differs, [`CoolError::ReadBack`] or [`CoolError::Store`] when it cannot be read.
pub(crate) async fn verify_footer(
    object_store: &Arc<dyn ObjectStore>,
    file: &ColdFile,
) -> Result<(), CoolError> {
    let path = || file.path.to_string();
    let same = |what, found: String, expected: String| {
        if found == expected {
            Ok(())
        } else {
            Err(CoolError::Verify {
                path: path(),
                what,
                found,
                expected,
            })
        }
    };
    let head = object_store
        .head(&file.path)
        .await
        .map_err(StoreError::object("read back", &file.path))?;
    same("length", head.size.to_string(), file.file_bytes.to_string())?;
    let read_back = |source: ParquetError| CoolError::ReadBack {
        path: path(),
        source,
    };
    let mut reader = reader(object_store, file, head.size);
    let metadata = ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new())
        .await
        .map_err(read_back)?;
    if metadata.schema().fields() != file.schema().fields() {
        return same(
            "schema",
            format!("{:?}", metadata.schema().fields()),
            format!("{:?}", file.schema().fields()),
        );
    }
    shredding(&metadata, file)
        .map_err(|error| read_back(ParquetError::External(Box::new(error))))?;
    let rows = metadata.metadata().file_metadata().num_rows();
    same("row count", rows.to_string(), file.rows.to_string())?;
    let groups = metadata.metadata().row_groups();
    same(
        "row group count",
        groups.len().to_string(),
        file.chunks.len().to_string(),
    )?;
    for (group, chunk) in groups.iter().zip(&file.chunks) {
        same(
            "row count of a row group",
            group.num_rows().to_string(),
            chunk.rows.to_string(),
        )?;
        let offsets = match group
            .columns()
            .get(column::OFFSET)
            .and_then(|column| column.statistics())
        {
            Some(Statistics::Int64(offsets)) => {
                offsets.min_opt().copied().zip(offsets.max_opt().copied())
            }
            _ => None,
        };
        let range =
            offsets.and_then(|(min, max)| u64::try_from(min).ok().zip(u64::try_from(max).ok()));
        let right = range.is_some_and(|(min, max)| {
            min == chunk.base_offset.0 && (chunk.base_offset.0..chunk.end_offset.0).contains(&max)
        });
        if !right {
            let expected = format!("{}..{}", chunk.base_offset, chunk.end_offset);
            return same(
                "offset range of a row group",
                format!("{range:?}"),
                expected,
            );
        }
    }
    Ok(())
}

/// Reads an object as a whole and compares its checksum with that of what was written.
///
/// # Errors
/// As [`verify_footer`].
pub(crate) async fn verify_bytes(
    object_store: &Arc<dyn ObjectStore>,
    file: &ColdFile,
) -> Result<(), CoolError> {
    let unread = || StoreError::object("read back", &file.path);
    let mut bytes = object_store
        .get(&file.path)
        .await
        .map_err(unread())?
        .into_stream();
    let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    while let Some(piece) = bytes.next().await {
        crc.update(&piece.map_err(unread())?);
    }
    let found = crc32_value(&crc);
    if found == file.file_crc32c {
        return Ok(());
    }
    Err(CoolError::Verify {
        path: file.path.to_string(),
        what: "checksum",
        found: format!("{found:08x}"),
        expected: format!("{:08x}", file.file_crc32c),
    })
}
