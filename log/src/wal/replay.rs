//! What the files of the write-ahead log held when they were opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use basalt_proto::PartitionId;

use super::record::{self, FoundRecord};
use super::{FILE_HEADER_BYTES, MAGIC};
use crate::block::crc32c;
use crate::disk::Disk;
use crate::error::{DiskError, OnDisk};
use crate::topic::TopicId;

/// Everything the files held when they were opened.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// Whole files, in the order of their sequence numbers, with the bytes before the first record cut off.
    pub(super) files: Vec<(u64, Vec<u8>)>,
    by_partition: BTreeMap<(TopicId, PartitionId), Vec<(usize, usize)>>,
}

impl Replay {
    /// The records of a partition, in the order in which they were written.
    pub(crate) fn of(&self, topic_id: TopicId, partition: PartitionId) -> Vec<FoundRecord<'_>> {
        let places = self.by_partition.get(&(topic_id, partition));
        let read = |(file, at): &(usize, usize)| {
            let (sequence, bytes) = self.files.get(*file)?;
            record::read_record(bytes.get(*at..)?, *sequence).map(|(found, _)| found)
        };
        places.into_iter().flatten().filter_map(read).collect()
    }

    /// The partitions of a topic that have records.
    pub(crate) fn partitions_of(&self, topic_id: TopicId) -> impl Iterator<Item = PartitionId> {
        self.by_partition
            .range((topic_id, PartitionId(0))..=(topic_id, PartitionId(u32::MAX)))
            .map(|((_, partition), _)| *partition)
    }

    /// Adds a file's bytes; they are added in the order of their sequence numbers.
    fn add(&mut self, sequence: u64, bytes: Vec<u8>) {
        let file = self.files.len();
        let mut at = 0;
        while let Some((found, rest)) = record::read_record(&bytes[at..], sequence) {
            let key = (found.header.topic_id, found.header.partition);
            self.by_partition.entry(key).or_default().push((file, at));
            at = bytes.len() - rest.len();
        }
        self.files.push((sequence, bytes));
    }
}

pub(super) fn file_header(sequence: u64) -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&sequence.to_be_bytes());
    let crc = crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_be_bytes());
    header
}

/// The sequence number of a file that begins so; `None` for one that was never put to use.
fn read_file_header(bytes: &[u8]) -> Option<u64> {
    let header = bytes.first_chunk::<FILE_HEADER_BYTES>()?;
    let mut sequence = [0; 8];
    sequence.copy_from_slice(&header[8..16]);
    let sequence = u64::from_be_bytes(sequence);
    (*header == file_header(sequence)).then_some(sequence)
}

pub(super) fn wal_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("wal")
}

/// Paths of the files in a folder.
pub(super) fn wal_paths(disk: &dyn Disk, dir: &Path) -> Result<Vec<(u64, PathBuf)>, DiskError> {
    let names = disk.list(dir).on("list", dir)?;
    let number = |name: &String| name.strip_suffix(".wal")?.parse().ok();
    let mut found: Vec<(u64, PathBuf)> = names
        .iter()
        .filter_map(|name| Some((number(name)?, dir.join(name))))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Reads all files of a data folder, changing nothing.
pub(crate) fn read_wal(disk: &dyn Disk, data_dir: &Path) -> Result<Replay, DiskError> {
    let dir = wal_dir(data_dir);
    let mut files = Vec::new();
    for (_, path) in wal_paths(disk, &dir)? {
        let bytes = disk
            .open(&path)
            .and_then(|file| file.read_all())
            .on("read", &path)?;
        files.extend(read_file_header(&bytes).map(|sequence| (sequence, bytes)));
    }
    files.sort_unstable_by_key(|(sequence, _)| *sequence);
    let mut replay = Replay::default();
    for (sequence, mut bytes) in files {
        bytes.drain(..FILE_HEADER_BYTES);
        replay.add(sequence, bytes);
    }
    Ok(replay)
}
