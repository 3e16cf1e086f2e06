//! Reading the footer of a file once, however many threads of a scan begin with it.
//!
//! DataFusion keeps footers that were read. A large file is read by several threads, each of which asks for its footer first: without
//! turns all of them would find it unknown and fetch it, which over a network is as slow as it is dear.

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::parquet::CachedParquetFileReaderFactory;
use datafusion::error::Result;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::ParquetMetaData;

/// Held by whoever asks for a file's footer.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// Readers of the files of one scan.
pub(super) struct ReadersInTurn {
    readers: CachedParquetFileReaderFactory,
    turns: Mutex<HashMap<Path, Turn>>,
}

impl ReadersInTurn {
    pub(super) fn new(readers: CachedParquetFileReaderFactory) -> Self {
        Self {
            readers,
            turns: Mutex::default(),
        }
    }
}

impl Debug for ReadersInTurn {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ReadersInTurn")
    }
}

impl ParquetFileReaderFactory for ReadersInTurn {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let path = file.object_meta.location.clone();
        let turn = Arc::clone(self.turns.lock().entry(path).or_default());
        let reader =
            self.readers
                .create_reader(partition_index, file, metadata_size_hint, metrics)?;
        Ok(Box::new(Reader { reader, turn }))
    }
}

struct Reader {
    reader: Box<dyn AsyncFileReader + Send>,
    turn: Turn,
}

impl AsyncFileReader for Reader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        self.reader.get_byte_ranges(ranges)
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        async move {
            // The second finds what the first has read. A turn ends with its reader, whether it succeeded or was dropped.
            let _turn = self.turn.lock().await;
            self.reader.get_metadata(options).await
        }
        .boxed()
    }
}
