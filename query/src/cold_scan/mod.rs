//! The cold side of a scan: Parquet files, read by DataFusion's own source with all its pruning, and the table's columns out of
//! those that they store ([`columns`]).

mod columns;
mod footers;
mod path;
mod payload;
mod shredded;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use basalt_columnar::{ColdFile, PartitionSnapshot};
use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::parquet::CachedParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use object_store::ObjectMeta;

use crate::columns::scanned;
use crate::prune::RowRange;
use crate::topic_table::{Chosen, ScanRequest};
use columns::TableColumns;
use footers::ReadersInTurn;

/// Under this name the runtime knows the store of cold files.
pub(crate) fn store_url() -> Result<ObjectStoreUrl> {
    ObjectStoreUrl::parse("basalt-cold://store")
}

/// The files that the request's filter can touch.
pub(crate) fn choose(
    request: &ScanRequest<'_>,
    snapshots: &[PartitionSnapshot],
) -> Result<Chosen<Arc<ColdFile>>> {
    let files: Vec<_> = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.cold.iter().map(move |file| (snapshot, file)))
        .collect();
    let ranges: Vec<RowRange> = files
        .iter()
        .map(|(snapshot, file)| range(snapshot, file))
        .collect();
    let keep = request.pruner.keep(&ranges)?;
    let mut chosen = Chosen {
        whole: Vec::new(),
        straddling: Vec::new(),
    };
    for ((snapshot, file), keep) in files.into_iter().zip(keep) {
        let start = snapshot.log_start_offset;
        if !keep || file.end_offset <= start {
            continue;
        }
        match file.base_offset < start {
            true => chosen.straddling.push((start, Arc::clone(file))),
            false => chosen.whole.push(Arc::clone(file)),
        }
    }
    Ok(chosen)
}

fn range(snapshot: &PartitionSnapshot, file: &ColdFile) -> RowRange {
    RowRange {
        partition: snapshot.partition,
        base_offset: file.base_offset,
        end_offset: file.end_offset,
        timestamps_ns: Some((file.min_timestamp_ns, file.max_timestamp_ns)),
    }
}

/// Reads `files` in the columns of `projection`, which are positions in `table`: the server's own columns, or also the declared ones,
/// if all of the files store them.
pub(crate) fn plan(
    request: &ScanRequest<'_>,
    table: &SchemaRef,
    files: &[Arc<ColdFile>],
    projection: &[usize],
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let runtime = request.state.runtime_env();
    let store = Arc::clone(request.snapshots.log().store().object_store());
    let footers = runtime.cache_manager.get_file_metadata_cache();
    let options = TableParquetOptions {
        global: request.state.config_options().execution.parquet.clone(),
        ..TableParquetOptions::default()
    };
    let mut source = ParquetSource::new(with_fields(table, files))
        .with_table_parquet_options(options)
        .with_parquet_file_reader_factory(Arc::new(ReadersInTurn::new(
            CachedParquetFileReaderFactory::new(store, footers),
        )));
    if let Some(filter) = &request.filter {
        source = source.with_predicate(Arc::clone(filter));
    }
    let files = files.iter().map(|file| partitioned_file(file)).collect();
    let groups = FileGroup::new(files).split_files(request.state.config().target_partitions());
    let config = FileScanConfigBuilder::new(store_url()?, Arc::new(source))
        .with_file_groups(groups)
        .with_projection_indices(Some(projection.to_vec()))?
        .with_limit(limit)
        .with_expr_adapter(Some(Arc::new(TableColumns)))
        .build();
    Ok(DataSourceExec::from_data_source(config))
}

/// `table`, and behind its columns those fields of shredded payloads that are text in each file that has them, so that they are
/// read in the layout of the table's own.
fn with_fields(table: &SchemaRef, files: &[Arc<ColdFile>]) -> SchemaRef {
    let shredded = files.iter().filter_map(|file| file.shredded.as_ref());
    let mut columns: HashMap<&str, (FieldRef, bool)> = HashMap::new();
    for column in shredded.flat_map(|columns| columns.iter()) {
        let is_text = column.form.data_type() == DataType::Utf8;
        columns
            .entry(&column.name)
            .or_insert_with(|| (scanned(&column.field()), true))
            .1 &= is_text;
    }
    let texts = columns.into_values().filter(|(_, is_text)| *is_text);
    let fields = table.fields().iter().cloned();
    let fields: Vec<_> = fields.chain(texts.map(|(field, _)| field)).collect();
    Arc::new(Schema::new(fields))
}

fn partitioned_file(file: &ColdFile) -> PartitionedFile {
    PartitionedFile::new_from_meta(ObjectMeta {
        location: file.path.clone(),
        // A path names one content for ever, so that the footer cache never has to compare times.
        last_modified: Default::default(),
        size: file.file_bytes,
        e_tag: None,
        version: None,
    })
}
