//! A sample of the payloads of files that are merged.

use arrow::array::{Array, AsArray};

use super::copy::Inputs;
use crate::error::CoolError;
use crate::hydrate::{ChunkReader, ProjectedColumns};
use crate::schema::column;
use crate::shred::{Inference, Inferred, SAMPLE_BYTES, SAMPLE_PAYLOADS};

/// Row groups that payloads are taken from, far apart: each has to be opened, and its first piece decoded.
const ROW_GROUPS: usize = 32;

/// Looks at some payloads of the inputs, and chooses the columns; `None` where shredding would not pay. Blocks.
///
/// # Errors
/// [`CoolError::Merge`], and [`CoolError::Closed`] once the sign is raised.
pub(super) fn sample(inputs: &Inputs) -> Result<Option<Inferred>, CoolError> {
    let files = inputs.files.iter();
    let chunks: Vec<_> = files
        .flat_map(|file| file.chunks.iter().map(move |chunk| (file, chunk)))
        .collect();
    let every = chunks.len().div_ceil(ROW_GROUPS).max(1);
    let sampled = chunks.len().div_ceil(every).max(1);
    let mut inference = Inference::default();
    for (file, chunk) in chunks.iter().step_by(every) {
        let source = &inputs.source;
        source.sign.check()?;
        let (store, handle) = (&source.object_store, &source.handle);
        let opened = ChunkReader::open(store, &source.footers, file, chunk, ProjectedColumns::All);
        let mut reader = handle.block_on(opened).map_err(CoolError::Merge)?;
        let first = handle.block_on(reader.next()).map_err(CoolError::Merge)?;
        let Some(rows) = first else { continue };
        let payloads = rows.column(column::PAYLOAD).as_binary::<i32>();
        let mut bytes_left = SAMPLE_BYTES / sampled;
        let step = payloads.len().div_ceil(SAMPLE_PAYLOADS / sampled).max(1);
        for payload in payloads.iter().step_by(step).flatten() {
            inference.observe(payload);
            bytes_left = bytes_left.saturating_sub(payload.len());
            if bytes_left == 0 {
                break;
            }
        }
    }
    Ok(inference.finish())
}
