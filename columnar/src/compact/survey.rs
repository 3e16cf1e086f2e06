//! Which rows go, by their keys alone (COL-37).
//!
//! The latest offset of each key of the dirty files is held in memory, by 128 bits of a keyed hash (SipHash-1-3). Where those are too many
//! they are looked at in shares, by their lowest bits: what goes is the same, the key columns are read once for each share.

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
use crate::hydrate::{open_rows, unplayable, unreadable};
use crate::merge::Source;
use crate::replay::{ReplayError, mistyped};
use crate::schema::column;

/// Keys that are held at a time: seven eighths of 2^20, which is as full as a table of that size gets. 35 MB.
const MAX_KEYS: usize = 7 << 17;

/// Looks at the keys of `files`, of which those from `dirty_from` on are dirty: of each the rows that go. Where `sweeps` says so a
/// file's tombstones go, too. Blocks.
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
    let mut gone = vec![RowSet::default(); files.len()];
    let dirty = files.get(dirty_from..).unwrap_or_default();
    let mut shares = match dirty.is_empty() {
        true => Vec::new(),
        false => vec![Share::default()],
    };
    while let Some(mut share) = shares.pop() {
        let mut latest = Latest::default();
        for file in dirty {
            each_row(source, file, false, |row| {
                let Some(hash) = row.key.map(|key| hash(&hasher, key)) else {
                    return;
                };
                if !share.has(hash) {
                    return;
                }
                latest.insert(hash, row.offset);
                while latest.len() > max_keys {
                    shares.push(share.halve());
                    latest.retain(|hash, _| share.has(*hash));
                }
            })?;
        }
        for (file, gone) in files.iter().zip(&mut gone) {
            each_row(source, file, false, |row| {
                let last = row.key.and_then(|key| latest.get(&hash(&hasher, key)));
                if last.is_some_and(|last| row.offset < *last) {
                    gone.insert(row.row);
                }
            })?;
        }
    }
    for ((file, gone), _) in files
        .iter()
        .zip(&mut gone)
        .zip(sweeps)
        .filter(|(_, sweeps)| **sweeps)
    {
        each_row(source, file, true, |row| {
            if row.is_tombstone && row.key.is_some() {
                gone.insert(row.row);
            }
        })?;
    }
    Ok(gone)
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

fn hash(hasher: &SipHasher13, key: &[u8]) -> u128 {
    hasher.hash(key).as_u128()
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
