//! From a blocking writer to an upload: parts of equal size through a short queue.

use std::io::{self, Write};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::sync::mpsc;

use crate::litter::Litter;
use crate::store::{ColdStore, StoreError};
use crate::writer::crc32_value;

/// Bytes of an upload's part. Object stores want at least 5 MiB, and parts of equal size.
const PART_BYTES: usize = 8 << 20;
/// Parts that wait for the store: with the one being filled and the one being sent, what an upload holds in memory.
const QUEUED_PARTS: usize = 1;

/// The writing end: blocks while the store is slower.
#[derive(Debug)]
pub(crate) struct PartSink {
    part: Vec<u8>,
    written_bytes: u64,
    crc: Digest,
    parts: mpsc::Sender<Bytes>,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct PartSource(mpsc::Receiver<Bytes>);

/// Both ends of an upload.
pub(crate) fn parts() -> (PartSink, PartSource) {
    let (sender, receiver) = mpsc::channel(QUEUED_PARTS);
    (
        PartSink {
            part: Vec::new(),
            written_bytes: 0,
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
            parts: sender,
        },
        PartSource(receiver),
    )
}

impl PartSink {
    /// Sends what is left, and returns how many bytes there were in all, and their CRC-32C.
    pub(crate) fn finish(mut self) -> io::Result<(u64, u32)> {
        if !self.part.is_empty() {
            self.send()?;
        }
        Ok((self.written_bytes, crc32_value(&self.crc)))
    }

    fn send(&mut self) -> io::Result<()> {
        let part = Bytes::from(std::mem::take(&mut self.part));
        // The other end is gone only when the store has failed, and then it has the error.
        self.parts
            .blocking_send(part)
            .map_err(|_| io::Error::other("the upload has failed"))
    }
}

impl Write for PartSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PART_BYTES - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        self.crc.update(&bytes[..taken]);
        self.written_bytes += taken as u64;
        if self.part.len() == PART_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Uploads the parts as one object, which appears under its name only when all of them came: `whole` says whether they did. What fits
/// into one part goes to a remote store by one request.
///
/// # Errors
/// The first error of the store; the upload is then aborted, or is litter.
pub(crate) async fn upload<E>(
    store: &ColdStore,
    litter: &Litter,
    path: &Path,
    mut parts: PartSource,
    whole: impl Future<Output = Result<(), E>>,
) -> Result<Result<(), E>, StoreError> {
    let write_error = || StoreError::object("write", path);
    let first = parts.0.recv().await;
    let second = parts.0.recv().await;
    if second.is_none() && store.root().is_none() {
        let whole = whole.await;
        if whole.is_ok() {
            let payload = PutPayload::from_bytes(first.unwrap_or_default());
            let put = store.object_store().put(path, payload).await;
            put.map_err(write_error())?;
        }
        return Ok(whole);
    }
    let upload = store
        .object_store()
        .put_multipart(path)
        .await
        .map_err(write_error())?;
    let mut open = litter.open_upload(path, upload);
    let mut sent = Ok(());
    let mut next = first;
    let mut waiting = second;
    while let Some(part) = next {
        sent = match open.upload() {
            Ok(upload) => upload.put_part(PutPayload::from_bytes(part)).await,
            Err(error) => Err(error),
        };
        if sent.is_err() {
            break;
        }
        next = match waiting.take() {
            Some(part) => Some(part),
            None => parts.0.recv().await,
        };
    }
    // Lets a writer that waits for room go on to find out.
    drop(parts);
    let whole = whole.await;
    if sent.is_err() || whole.is_err() {
        let aborted = open.upload().map_err(write_error())?.abort().await;
        if aborted.is_ok() {
            open.finish();
        }
        return sent.map_err(write_error()).map(|()| whole);
    }
    let upload = open.upload().map_err(write_error())?;
    upload.complete().await.map_err(write_error())?;
    open.finish();
    Ok(whole)
}
