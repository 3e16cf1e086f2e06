//! An object, as the Parquet reader wants to read it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

/// What is read of an object's end at first, in the hope that the whole footer is in it.
const FOOTER_GUESS_BYTES: usize = 64 << 10;

/// Ranged reads of an object whose length is known.
#[derive(Debug, Clone)]
pub(crate) struct ObjectReader {
    pub(crate) object_store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    pub(crate) file_bytes: u64,
}

/// Footers that were read, newest last: a file is read row group by row group, and its footer would be asked for each time.
#[derive(Debug, Default)]
pub(crate) struct Footers(Mutex<VecDeque<(Path, ArrowReaderMetadata)>>);

/// How many are kept: some tens of KB each.
const KEPT_FOOTERS: usize = 64;

impl Footers {
    /// The footer of `reader`'s object, which never changes.
    pub(crate) async fn get(&self, reader: &mut ObjectReader) -> Result<ArrowReaderMetadata> {
        let known = {
            let footers = self.0.lock();
            let known = footers.iter().find(|(path, _)| *path == reader.path);
            known.map(|(_, footer)| footer.clone())
        };
        if let Some(footer) = known {
            return Ok(footer);
        }
        let footer = ArrowReaderMetadata::load_async(reader, ArrowReaderOptions::new()).await?;
        let mut footers = self.0.lock();
        if footers.len() == KEPT_FOOTERS {
            footers.pop_front();
        }
        footers.push_back((reader.path.clone(), footer.clone()));
        Ok(footer)
    }
}

fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.object_store
            .get_range(&self.path, range)
            .map_err(external)
            .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            self.object_store
                .get_ranges(&self.path, &ranges)
                .await
                .map_err(external)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let file_bytes = self.file_bytes;
            let reader = ParquetMetaDataReader::new()
                .with_arrow_reader_options(options)
                .with_prefetch_hint(Some(FOOTER_GUESS_BYTES));
            reader.load_and_finish(self, file_bytes).await.map(Arc::new)
        }
        .boxed()
    }
}
