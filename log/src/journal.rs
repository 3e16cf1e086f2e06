//! An append-only file of checksummed entries: what the catalogue and the committed offsets are kept in.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `BSLTJRN1` |
//! | then, entry by entry | 4 | bytes of the entry's payload, big-endian |
//! | | 4 | CRC-32C of the length field and the payload, big-endian |
//! | | n | payload |
//!
//! - **LOG-4**: an entry counts once its append has returned. Each append is one entry and is synced before the next, so
//!   a crash can tear the last one only; anything else that does not read is damage and is reported, never skipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::block::{digest_value, new_digest};
use crate::disk::{Disk, DiskFile, put_in_place, replace_file, write_temporary};
use crate::error::{DiskError, OnDisk, OpenError};

const MAGIC: &[u8; 8] = b"BSLTJRN1";
const ENTRY_HEADER_BYTES: usize = 8;

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    end: u64,
    /// Set by a failed write or sync: what the file holds after `end` is not known any more.
    failed: Option<String>,
}

/// Why an entry was not appended.
#[derive(Debug)]
pub(crate) enum JournalError {
    /// This append failed and left nothing behind.
    Refused(DiskError),
    /// This or an earlier append failed in a way that only opening anew can mend.
    Failed(String),
}

fn encode(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    let mut out = Vec::with_capacity(ENTRY_HEADER_BYTES + payload.len());
    out.extend_from_slice(&length);
    out.extend_from_slice(&entry_crc(length, payload).to_be_bytes());
    out.extend_from_slice(payload);
    out
}

fn entry_crc(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut digest = new_digest();
    digest.update(&length);
    digest.update(payload);
    digest_value(&digest)
}

/// The payloads in a journal's bytes and where they end.
pub(crate) fn read_journal<'a>(
    path: &Path,
    bytes: &'a [u8],
) -> Result<(Vec<&'a [u8]>, u64), OpenError> {
    let damaged = |position: usize, what: &str| OpenError::Damaged {
        path: path.to_owned(),
        position: position as u64,
        what: what.to_owned(),
    };
    if bytes.get(..MAGIC.len()) != Some(MAGIC.as_slice()) {
        return Err(damaged(0, "this is no journal of Basalt"));
    }
    let mut payloads = Vec::new();
    let mut at = MAGIC.len();
    while at < bytes.len() {
        let Some(payload) = entry_at(bytes, at) else {
            // A crash tears the last entry only. Whatever has an entry behind it was whole once.
            if (at + 1..bytes.len()).any(|later| entry_at(bytes, later).is_some()) {
                return Err(damaged(
                    at,
                    "an entry does not read and there are more after it",
                ));
            }
            break;
        };
        payloads.push(payload);
        at += ENTRY_HEADER_BYTES + payload.len();
    }
    Ok((payloads, at as u64))
}

/// A last entry that does not read is a torn one, most likely; in case it is not, it is kept beside the journal.
fn keep_aside(disk: &dyn Disk, path: &Path, bytes: &[u8], end: u64) {
    let rest = &bytes[usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len())..];
    if rest.iter().all(|byte| *byte == 0) {
        return;
    }
    let aside = path.with_extension("cut");
    // Without room for it the start goes on: what a crash tears was never acknowledged.
    let kept = replace_file(disk, &aside, rest).map(drop);
    tracing::warn!(path = %path.display(), position = end, bytes = rest.len(), aside = %aside.display(), kept = kept.is_ok(), "the last entry of a journal does not read; it is cut");
}

/// The payload of the entry that begins at `at`, if one does. No entry is empty.
fn entry_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let (header, rest) = bytes.get(at..)?.split_first_chunk::<ENTRY_HEADER_BYTES>()?;
    let [a, b, c, d, crc @ ..] = *header;
    let length = [a, b, c, d];
    let payload = rest.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)?;
    let sound = !payload.is_empty() && entry_crc(length, payload) == u32::from_be_bytes(crc);
    sound.then_some(payload)
}

impl Journal {
    /// Opens or creates the journal, and hands each payload to `replay`, in order.
    ///
    /// A torn last entry is cut. `replay` returns what is to be kept instead, if the journal should be rewritten.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        replay: impl FnOnce(&[&[u8]]) -> Result<Option<Vec<Vec<u8>>>, OpenError>,
    ) -> Result<Self, OpenError> {
        if !disk.exists(path).on("look for", path)? {
            let file = replace_file(disk, path, MAGIC).on("create", path)?;
            replay(&[])?;
            return Ok(Self {
                path: path.to_owned(),
                file,
                end: MAGIC.len() as u64,
                failed: None,
            });
        }
        let file = disk.open(path).on("open", path)?;
        let bytes = file.read_all().on("read", path)?;
        let (payloads, end) = read_journal(path, &bytes)?;
        keep_aside(disk, path, &bytes, end);
        let rewritten = replay(&payloads)?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            end,
            failed: None,
        };
        if let Some(kept) = rewritten {
            journal.rewrite(disk, &kept).or_else(|error| {
                // A rewrite needs room. Without it the longer journal serves as well.
                tracing::warn!(path = %path.display(), %error, "the journal was not made shorter");
                journal.make_durable(&bytes)
            })?;
        } else {
            journal.make_durable(&bytes)?;
        }
        Ok(journal)
    }

    /// What was read may be in the page cache alone, left by a process whose sync failed or never came: it is written again
    /// and synced before it is relied on (LOG-8). A torn tail is cut.
    fn make_durable(&self, read: &[u8]) -> Result<(), DiskError> {
        let accepted = &read[..usize::try_from(self.end).unwrap_or(read.len())];
        self.file
            .write_at(accepted, 0)
            .and_then(|()| self.file.set_len(self.end))
            .and_then(|()| self.file.sync())
            .on("rewrite", &self.path)
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    /// Appends an entry; durable on return.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        if let Some(reason) = &self.failed {
            return Err(JournalError::Failed(reason.clone()));
        }
        let entry = encode(payload);
        if let Err(source) = self.file.write_at(&entry, self.end) {
            let error = DiskError {
                action: "append to",
                path: self.path.clone(),
                source,
            };
            // What was written of the entry must not be taken for a torn tail with others behind it.
            return match self.file.set_len(self.end) {
                Ok(()) => Err(JournalError::Refused(error)),
                Err(_) => Err(self.fail(&error)),
            };
        }
        if let Err(source) = self.file.sync() {
            let error = DiskError {
                action: "sync",
                path: self.path.clone(),
                source,
            };
            return Err(self.fail(&error));
        }
        self.end += entry.len() as u64;
        Ok(())
    }

    fn fail(&mut self, error: &DiskError) -> JournalError {
        let reason = format!("{error}: {}", error.source);
        self.failed = Some(reason.clone());
        JournalError::Failed(reason)
    }

    /// Replaces all entries by `payloads`.
    pub(crate) fn rewrite(
        &mut self,
        disk: &dyn Disk,
        payloads: &[Vec<u8>],
    ) -> Result<(), DiskError> {
        let mut bytes = MAGIC.to_vec();
        payloads
            .iter()
            .for_each(|payload| bytes.extend(encode(payload)));
        let file = write_temporary(disk, &self.path, &bytes).on("rewrite", &self.path)?;
        if let Err(error) = put_in_place(disk, &self.path).on("rewrite", &self.path) {
            // Which of the two files has the name now is not known: no append may be acknowledged in either.
            self.fail(&error);
            return Err(error);
        }
        self.file = file;
        self.end = bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn open(path: &Path) -> Result<(Journal, Vec<Vec<u8>>), OpenError> {
        let mut seen = Vec::new();
        let journal = Journal::open(&RealDisk::new(), path, |payloads| {
            seen = payloads.iter().map(|payload| payload.to_vec()).collect();
            Ok(None)
        })?;
        Ok((journal, seen))
    }

    #[test]
    fn a_journal_cut_anywhere_keeps_its_whole_entries_and_goes_on() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("j");
        let (mut journal, _) = open(&path).expect("open");
        for payload in [&b"one"[..], b"2", b"three"] {
            journal.append(payload).expect("append");
        }
        let whole = std::fs::read(&path).expect("read");
        for cut in MAGIC.len()..whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("write");
            let (mut journal, seen) = open(&path).expect("open");
            assert!(
                [&b"one"[..], b"2", b"three"]
                    .iter()
                    .zip(&seen)
                    .all(|(a, b)| *a == b)
                    && seen.len() < 3
            );
            journal.append(b"after").expect("append");
            let (_, again) = open(&path).expect("open");
            assert_eq!(again.last().map(Vec::as_slice), Some(&b"after"[..]));
            assert_eq!(again.len(), seen.len() + 1);
        }
    }

    #[test]
    fn damage_before_the_last_entry_is_reported_with_its_position() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("j");
        let (mut journal, _) = open(&path).expect("open");
        journal.append(b"one").expect("append");
        journal.append(b"two").expect("append");
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[17] ^= 1;
        std::fs::write(&path, &bytes).expect("write");
        assert!(matches!(
            open(&path),
            Err(OpenError::Damaged { position: 8, .. })
        ));
    }
}
