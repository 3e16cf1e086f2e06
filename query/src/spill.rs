//! The folder of what queries put aside.

use std::io;
use std::path::Path;

/// How the names begin of what DataFusion makes in it.
const PREFIX: &str = "datafusion-";

/// Makes `folder` if it is not there, and deletes what queries of a process that was killed have left in it. Anything else in it
/// stays.
pub(crate) fn empty(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
