//! Reading a cold file: its row groups as frames, and its footer as proof.

use std::io::Write;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use futures::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

use crate::error::{CoolError, HydrateError};
use crate::file::{ColdChunk, ColdFile};
use crate::object_reader::ObjectReader;
use crate::replay::{ALL_COLUMNS, FrameRebuilder, RECORD_COLUMNS};
use crate::schema::column;
use crate::shred::{ShredError, Shredding};
use crate::store::StoreError;
use crate::writer::crc32_value;

/// Rows are decoded in pieces of about this size.
const PIECE_BYTES: i64 = 4 << 20;
const PIECE_ROWS: i64 = 8192;

/// Writes the frames of a row group to `out`, as they were appended (COL-6), and checks them against the manifest. Decodes
/// where it is polled: to be driven by a thread that may block.
///
/// # Errors
/// [`HydrateError`]; some frames may have been written then.
pub(crate) async fn read_chunk(
    object_store: &Arc<dyn ObjectStore>,
    file: &ColdFile,
    chunk: &ColdChunk,
    out: &mut (dyn Write + Send),
) -> Result<u64, HydrateError> {
    let row_group = chunk.row_group;
    let path = || file.path.to_string();
    let parquet = |source| HydrateError::Parquet {
        path: path(),
        row_group,
        source,
    };
    let bad_rows = |source| HydrateError::Rows {
        path: path(),
        row_group,
        source,
    };
    let mut reader = reader(object_store, file, file.file_bytes);
    let metadata = ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new())
        .await
        .map_err(parquet)?;
    let (index, piece_rows) = check_row_group(&metadata, file, chunk)?;
    let shredding = shredding(&metadata, file).map_err(|error| bad_rows(error.into()))?;
    let columns: &[usize] = if chunk.has_batches() {
        &ALL_COLUMNS
    } else {
        &RECORD_COLUMNS
    };
    let of_payloads = shredding.iter().flat_map(Shredding::payload_columns);
    let mask = ProjectionMask::roots(
        metadata.parquet_schema(),
        columns.iter().copied().chain(of_payloads),
    );
    let mut rows = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata)
        .with_row_groups(vec![index])
        .with_projection(mask)
        .with_batch_size(piece_rows)
        .build()
        .map_err(parquet)?;

    let mut rebuilder = FrameRebuilder::default();
    let mut frames = Vec::new();
    let mut frame_bytes = 0_u64;
    let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    while let Some(piece) = rows.next().await {
        let mut piece = piece.map_err(parquet)?;
        if let Some(shredding) = &shredding {
            piece = shredding
                .restore(&piece)
                .map_err(|error| bad_rows(error.into()))?;
        }
        frames.clear();
        rebuilder.push(&piece, &mut frames).map_err(bad_rows)?;
        crc.update(&frames);
        frame_bytes += frames.len() as u64;
        out.write_all(&frames)
            .map_err(|source| HydrateError::Cache {
                path: path().into(),
                source,
            })?;
    }
    rebuilder.finish().map_err(bad_rows)?;
    if let Some(expected) = chunk.frames_crc32c {
        let found = crc32_value(&crc);
        if found != expected || frame_bytes != chunk.frame_bytes {
            let show = |crc: u32, bytes: u64| format!("{crc:08x} over {bytes} bytes");
            return Err(HydrateError::Damaged {
                path: path(),
                row_group,
                what: "checksum of frames",
                found: show(found, frame_bytes),
                expected: show(expected, chunk.frame_bytes),
            });
        }
    }
    Ok(frame_bytes)
}

/// Compares a row group with the manifest: its index, and how many rows to decode at a time.
fn check_row_group(
    metadata: &ArrowReaderMetadata,
    file: &ColdFile,
    chunk: &ColdChunk,
) -> Result<(usize, usize), HydrateError> {
    let damaged = |what, found: String, expected: String| {
        Err(HydrateError::Damaged {
            path: file.path.to_string(),
            row_group: chunk.row_group,
            what,
            found,
            expected,
        })
    };
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
