//! Which rows go, by their keys alone (COL-37).
//!
//! The latest offset of each key of the dirty files is held in memory, by 128 bits of a keyed hash (SipHash-1-3). Dirty files whose keys
//! find no more room are left for another pass. Where the first one alone has too many they are looked at in shares, by their lowest bits:
//! what goes is the same, the key columns are read once for each share.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, PrimitiveArray};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use siphasher::sip128::SipHasher13;

use super::RowSet;
use crate::error::CoolError;
use crate::file::ColdFile;
use crate::hydrate::{open_rows, unplayable, unreadable, verify_bytes};
use crate::merge::Source;
use crate::replay::{ReplayError, mistyped};
use crate::schema::column;

/// Keys that are held at a time: seven eighths of 2^20, which is as full as a table of that size gets. 35 MB.
const MAX_KEYS: usize = 7 << 17;

/// Looks at the keys of `files`, of which those from `dirty_from` on are dirty: of each the rows that go. As many dirty files are looked at
/// as there are keys for in memory, but one at least. Where `sweeps` says so a file's tombstones go, too. Blocks.
///
/// # Errors
/// [`CoolError::Merge`] when a file cannot be read, [`CoolError::Closed`] once the sign is raised.
pub(super) fn survey(
    source: &Source,
    files: &[Arc<ColdFile>],
    dirty_from: usize,
    sweeps: &[bool],
    hash_keys: (u64, u64),
) -> Result<Vec<RowSet>, CoolError> {
    survey_holding(source, files, dirty_from, sweeps, hash_keys, MAX_KEYS)
}

fn survey_holding(
    source: &Source,
    files: &[Arc<ColdFile>],
    dirty_from: usize,
    sweeps: &[bool],
    hash_keys: (u64, u64),
    max_keys: usize,
) -> Result<Vec<RowSet>, CoolError> {
    let hasher = SipHasher13::new_with_keys(hash_keys.0, hash_keys.1);
    let hash = |key: &[u8]| hasher.hash(key).as_u128();
    let mut keys = Keys {
        share: Share::default(),
        latest: Latest::default(),
        max_keys,
        others: Vec::new(),
    };
    let mut end = dirty_from;
    for file in files.get(dirty_from..).unwrap_or_default() {
        let is_first = end == dirty_from;
        let mut fits = true;
        // Damage would be taken for keys, and cost other files their rows.
        let sound = verify_bytes(&source.object_store, file);
        source.handle.block_on(sound)?;
        each_row(source, file, false, |row| {
            if let Some(key) = row.key.filter(|_| fits) {
                fits = keys.insert(hash(key), row.offset, is_first);
            }
        })?;
        if !fits {
            // What was taken of it shows nothing that is not so, but not all of it.
            break;
        }
        end += 1;
        if !keys.others.is_empty() {
            break;
        }
    }
    let files = files.get(..end).unwrap_or_default();
    let mut gone = vec![RowSet::default(); files.len()];
    loop {
        if !keys.latest.is_empty() {
            for (file, gone) in files.iter().zip(&mut gone) {
                each_row(source, file, false, |row| {
                    let last = row.key.and_then(|key| keys.latest.get(&hash(key)));
                    if last.is_some_and(|last| row.offset < *last) {
                        gone.insert(row.row);
                    }
                })?;
            }
        }
        let Some(share) = keys.others.pop() else {
            break;
        };
        // Then there is one dirty file.
        (keys.share, keys.latest) = (share, Latest::default());
        for file in files.get(dirty_from..).unwrap_or_default() {
            each_row(source, file, false, |row| {
                if let Some(key) = row.key {
                    keys.insert(hash(key), row.offset, true);
                }
            })?;
        }
    }
    let swept = files.iter().zip(&mut gone).zip(sweeps);
    for ((file, gone), _) in swept.filter(|(_, sweeps)| **sweeps) {
        each_row(source, file, true, |row| {
            if row.is_tombstone && row.key.is_some() {
                gone.insert(row.row);
            }
        })?;
    }
    Ok(gone)
}

/// The keys that are held, and what is left for another look.
struct Keys {
    share: Share,
    latest: Latest,
    max_keys: usize,
    others: Vec<Share>,
}

impl Keys {
    /// Notes a key's offset if it is of this share. Where there is no room half of the share is left for later, or, unless `may_share`,
    /// the answer is `false`.
    fn insert(&mut self, hash: u128, offset: i64, may_share: bool) -> bool {
        while self.share.has(hash) {
            if let Some(last) = self.latest.get_mut(&hash) {
                *last = offset;
                return true;
            }
            if self.latest.len() < self.max_keys {
                self.latest.insert(hash, offset);
                return true;
            }
            if !may_share {
                return false;
            }
            self.others.push(self.share.halve());
            let share = self.share;
            self.latest.retain(|hash, _| share.has(*hash));
        }
        true
    }
}

/// The keys whose hash ends with these bits.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    bits: u32,
    value: u128,
}

impl Share {
    fn has(self, hash: u128) -> bool {
        hash & ((1 << self.bits) - 1) == self.value
    }

    /// Keeps half of itself, and gives the other away.
    fn halve(&mut self) -> Self {
        let bits = self.bits + 1;
        let other = Self {
            bits,
            value: self.value | 1 << self.bits,
        };
        self.bits = bits;
        other
    }
}

/// The last offset of each key, by the key's hash.
type Latest = HashMap<u128, i64, BuildHasherDefault<HashOfHash>>;

/// What is a hash already is its own.
#[derive(Debug, Default)]
struct HashOfHash(u64);

impl Hasher for HashOfHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Its upper half: of the lower one all in a share have some bits.
        if let Some(upper) = bytes.last_chunk() {
            self.0 = u64::from_le_bytes(*upper);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        self.write(&hash.to_le_bytes());
    }
}

/// What is looked at.
struct Row<'a> {
    /// Its number in the file.
    row: usize,
    offset: i64,
    /// `None` where there is none.
    key: Option<&'a [u8]>,
    /// Only looked at when asked for.
    is_tombstone: bool,
}

fn each_row(
    source: &Source,
    file: &ColdFile,
    with_tombstones: bool,
    mut look: impl FnMut(Row<'_>),
) -> Result<(), CoolError> {
    let mut next_row = 0;
    // Behind the columns that all files have stands the one of templates.
    let of_values = [
        with_tombstones.then_some(column::PAYLOAD),
        (with_tombstones && file.shredded.is_some()).then_some(column::COUNT),
    ];
    let roots = [column::OFFSET, column::KEY]
        .into_iter()
        .chain(of_values.into_iter().flatten());
    for chunk in &file.chunks {
        let opened = open_rows(
            &source.object_store,
            &source.footers,
            file,
            chunk,
            roots.clone(),
        );
        let mut pieces = source.handle.block_on(opened).map_err(CoolError::Merge)?;
        while let Some(piece) = source.handle.block_on(pieces.next()) {
            source.sign.check()?;
            let piece = piece.map_err(unreadable(file, chunk));
            let piece = piece.map_err(CoolError::Merge)?;
            let columns = Columns::of(&piece).map_err(unplayable(file, chunk));
            let columns = columns.map_err(CoolError::Merge)?;
            for at in 0..piece.num_rows() {
                look(columns.row(at, next_row + at));
            }
            next_row += piece.num_rows();
        }
    }
    Ok(())
}

/// The columns of some rows, in the order of the file.
struct Columns<'a> {
    offsets: &'a PrimitiveArray<Int64Type>,
    keys: &'a BinaryArray,
    /// Payloads and templates, as far as they were asked for. A row that has neither is a tombstone.
    values: &'a [ArrayRef],
}

impl<'a> Columns<'a> {
    fn of(piece: &'a RecordBatch) -> Result<Self, ReplayError> {
        let [offsets, keys, values @ ..] = piece.columns() else {
            return Err(mistyped(column::OFFSET));
        };
        let offsets = offsets.as_primitive_opt();
        Ok(Self {
            offsets: offsets.ok_or_else(|| mistyped(column::OFFSET))?,
            keys: keys.as_binary_opt().ok_or_else(|| mistyped(column::KEY))?,
            values,
        })
    }

    fn row(&self, at: usize, row: usize) -> Row<'a> {
        let is_null = |column: &ArrayRef| column.is_null(at);
        Row {
            row,
            offset: self.offsets.value(at),
            key: self.keys.is_valid(at).then(|| self.keys.value(at)),
            is_tombstone: !self.values.is_empty() && self.values.iter().all(is_null),
        }
    }
}

#[cfg(test)]
mod tests;
