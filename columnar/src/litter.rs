//! What was written to the store and is not wanted: uploads that were not finished, objects that no manifest will ever name.
//!
//! - **COL-36**: whatever is uploaded is litter until a commit of a manifest that names it begins. A failure, or a task that is
//!   dropped half way, leaves it here; it is deleted by the next pass of maintenance whose store lets it be, or at shutdown.
//!   What only a crash leaves is found by the next start (COL-18); parts of its unfinished uploads by the bucket's own rule, if
//!   it has one.

use std::collections::VecDeque;
use std::sync::Arc;

use object_store::MultipartUpload;
use object_store::path::Path;
use parking_lot::Mutex;

use crate::store::{ColdStore, StoreError};

/// All there is of it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Litter(Arc<Mutex<VecDeque<Piece>>>);

#[derive(Debug)]
enum Piece {
    Object(Path),
    Upload(Path, Box<dyn MultipartUpload>),
}

/// An object that becomes litter when this is dropped.
#[derive(Debug)]
pub(crate) struct Unwanted {
    litter: Litter,
    path: Path,
    kept: bool,
}

impl Unwanted {
    pub(crate) const fn path(&self) -> &Path {
        &self.path
    }

    /// The object is wanted after all, or it is not known whether it is, or it is gone.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        if !self.kept {
            let piece = Piece::Object(self.path.clone());
            self.litter.0.lock().push_back(piece);
        }
    }
}

/// An upload that becomes litter when this is dropped before it ended.
#[derive(Debug)]
pub(crate) struct OpenUpload {
    litter: Litter,
    path: Path,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl OpenUpload {
    pub(crate) fn upload(&mut self) -> object_store::Result<&mut Box<dyn MultipartUpload>> {
        self.upload
            .as_mut()
            .ok_or_else(|| object_store::Error::Generic {
                store: "cold tier",
                source: "the upload has ended".into(),
            })
    }

    /// It has ended.
    pub(crate) fn finish(mut self) {
        self.upload = None;
    }
}

impl Drop for OpenUpload {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            let piece = Piece::Upload(self.path.clone(), upload);
            self.litter.0.lock().push_back(piece);
        }
    }
}

impl Litter {
    /// From now on the object at `path` is litter, unless it is kept.
    pub(crate) fn unwanted(&self, path: &Path) -> Unwanted {
        Unwanted {
            litter: self.clone(),
            path: path.clone(),
            kept: false,
        }
    }

    /// From now on the upload is litter, unless it ends.
    pub(crate) fn open_upload(&self, path: &Path, upload: Box<dyn MultipartUpload>) -> OpenUpload {
        OpenUpload {
            litter: self.clone(),
            path: path.clone(),
            upload: Some(upload),
        }
    }

    /// Deletes all of it. How many objects that were.
    ///
    /// # Errors
    /// The first failure: that piece, and those after it, stay for the next time.
    pub(crate) async fn sweep(&self, store: &ColdStore) -> Result<u64, StoreError> {
        let mut swept = 0;
        loop {
            let Some(piece) = self.0.lock().pop_front() else {
                return Ok(swept);
            };
            match piece {
                Piece::Object(path) => {
                    let unwanted = self.unwanted(&path);
                    store.delete(&path).await?;
                    unwanted.keep();
                    swept += 1;
                }
                Piece::Upload(path, upload) => {
                    let mut open = self.open_upload(&path, upload);
                    let aborted = match open.upload() {
                        Ok(upload) => upload.abort().await,
                        Err(error) => Err(error),
                    };
                    match aborted {
                        // One that is not there has ended, or the store has dropped it.
                        Ok(()) | Err(object_store::Error::NotFound { .. }) => open.finish(),
                        Err(source) => return Err(StoreError::object("abort", &path)(source)),
                    }
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
