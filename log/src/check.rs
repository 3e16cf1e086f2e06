//! Verifying a data folder while no server has it: every checksum, every offset, every index. Nothing is changed.

use std::any::Any;
use std::path::{Path, PathBuf};

use basalt_proto::{FrameLimits, FrameWalk, Offset, PartitionId, TopicName};

use crate::block::{Block, crc32c};
use crate::disk::Disk;
use crate::error::{DiskError, OnDisk, OpenError};
use crate::index::SegmentIdentity;
use crate::journal::read_journal;
use crate::log::{
    catalogue_path, groups_path, lock_data_dir, partition_dir, replay_catalogue, topics_dir,
};
use crate::recovery::{Finding, SegmentNames, judge, list_segments, load_index};
use crate::segment::{index_path, segment_path};
use crate::topic::TopicId;
use crate::wal::{FoundRecord, read_wal};

/// A locked data folder to be checked.
#[derive(Debug)]
pub struct CheckedFolder<'a> {
    disk: &'a dyn Disk,
    data_dir: PathBuf,
    _lock: Box<dyn Any + Send + Sync>,
}

/// What a check went through, and what it found.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Topics in the catalogue.
    pub topics: u64,
    /// Partition folders.
    pub partitions: u64,
    /// Segments.
    pub segments: u64,
    /// Frames in them.
    pub frames: u64,
    /// Offsets they span.
    pub records: u64,
    /// All that is wrong.
    pub findings: Vec<Finding>,
}

/// A partition that the catalogue knows.
#[derive(Debug, Clone)]
pub struct CheckedPartition {
    /// Its topic.
    pub topic: TopicName,
    /// The topic's id.
    pub topic_id: TopicId,
    /// Its number.
    pub partition: PartitionId,
}

impl<'a> CheckedFolder<'a> {
    /// Takes the folder's lock.
    ///
    /// # Errors
    /// [`OpenError::Locked`] while a server has it; [`OpenError::Disk`] when it is not there.
    pub fn lock(disk: &'a dyn Disk, data_dir: &Path) -> Result<Self, OpenError> {
        let lock = lock_data_dir(disk, data_dir)?;
        Ok(Self {
            disk,
            data_dir: data_dir.to_owned(),
            _lock: lock,
        })
    }

    /// The partitions in the catalogue.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] when the catalogue does not read, [`OpenError::Disk`].
    pub fn partitions(&self) -> Result<Vec<CheckedPartition>, OpenError> {
        let path = catalogue_path(&self.data_dir);
        let bytes = self
            .disk
            .open(&path)
            .and_then(|file| file.read_all())
            .on("read", &path)?;
        let (payloads, _) = read_journal(&path, &bytes)?;
        let replayed = replay_catalogue(&path, &payloads)?;
        let partitions = replayed.topics.into_values().flat_map(|topic| {
            (0..topic.partitions).map(move |number| CheckedPartition {
                topic: topic.name.clone(),
                topic_id: topic.id,
                partition: PartitionId(number),
            })
        });
        Ok(partitions.collect())
    }

    /// Checks catalogue, committed offsets and every segment. Damage is a finding; `progress` is called once for each
    /// partition.
    ///
    /// # Errors
    /// [`OpenError`] only when the catalogue does not read or the disk refuses.
    pub fn check(
        &self,
        mut progress: impl FnMut(&CheckedPartition),
    ) -> Result<CheckReport, OpenError> {
        let mut report = CheckReport::default();
        for path in [groups_path(&self.data_dir), catalogue_path(&self.data_dir)] {
            report.findings.extend(check_journal(self.disk, &path)?);
        }
        let replay = read_wal(self.disk, &self.data_dir)?;
        let mut names = std::collections::BTreeSet::new();
        for partition in self.partitions()? {
            progress(&partition);
            report.partitions += 1;
            names.insert(partition.topic.to_string());
            let dir = partition_dir(&self.data_dir, &partition.topic, partition.partition);
            check_partition(
                self.disk,
                &dir,
                partition.topic_id,
                partition.partition,
                &replay.of(partition.topic_id, partition.partition),
                &mut report,
            )?;
        }
        report.topics = names.len() as u64;
        let topics_dir = topics_dir(&self.data_dir);
        for name in self.disk.list(&topics_dir).on("list", &topics_dir)? {
            if !names.contains(&name) {
                let what = "the catalogue knows no topic of this name".to_owned();
                report.findings.push(Finding {
                    path: topics_dir.join(name),
                    position: 0,
                    what,
                });
            }
        }
        Ok(report)
    }
}

/// What is wrong with a journal: damage, or a last entry that does not read.
fn check_journal(disk: &dyn Disk, path: &Path) -> Result<Option<Finding>, DiskError> {
    if !disk.exists(path).on("look for", path)? {
        return Ok(None);
    }
    let bytes = disk
        .open(path)
        .and_then(|file| file.read_all())
        .on("read", path)?;
    let (position, what) = match read_journal(path, &bytes) {
        Ok((_, end)) if end < bytes.len() as u64 => (
            end,
            "the last entry does not read; the next start puts it aside".to_owned(),
        ),
        Err(OpenError::Damaged { position, what, .. }) => (position, what),
        _ => return Ok(None),
    };
    Ok(Some(Finding {
        path: path.to_owned(),
        position,
        what,
    }))
}

fn check_partition(
    disk: &dyn Disk,
    dir: &Path,
    topic_id: TopicId,
    partition: PartitionId,
    records: &[FoundRecord<'_>],
    report: &mut CheckReport,
) -> Result<(), DiskError> {
    let SegmentNames { bases, strange, .. } = list_segments(disk, dir)?;
    // One that was being written when the process stopped goes with the next start.
    for name in strange.into_iter().filter(|name| !name.ends_with(".tmp")) {
        let what = "this file does not belong here".to_owned();
        report.findings.push(Finding {
            path: dir.join(name),
            position: 0,
            what,
        });
    }
    let mut next_offset = Offset::ZERO;
    for base_offset in bases {
        let path = segment_path(dir, base_offset);
        if base_offset < next_offset {
            let what = format!(
                "it begins at offset {base_offset}, before the end {next_offset} of the segment before it"
            );
            report.findings.push(Finding {
                path: path.clone(),
                position: 0,
                what,
            });
        }
        let identity = SegmentIdentity::new(topic_id, partition, base_offset);
        let end = check_segment(disk, &path, identity, records, report)?;
        next_offset = next_offset.max(end);
    }
    Ok(())
}

/// Checks one segment and returns its end offset.
fn check_segment(
    disk: &dyn Disk,
    path: &Path,
    identity: SegmentIdentity,
    records: &[FoundRecord<'_>],
    report: &mut CheckReport,
) -> Result<Offset, DiskError> {
    let base_offset = identity.base_offset;
    report.segments += 1;
    let mut data = disk
        .open(path)
        .and_then(|file| file.read_all())
        .on("read", path)?;
    let index_path = index_path(path);
    let mut index = load_index(disk, path, &identity)?.index;
    if index.sealed.is_none() {
        // What the next start would do.
        let records = records
            .iter()
            .filter(|record| record.header.segment == base_offset);
        let applied = records.take_while(|record| apply(record, &mut data));
        index.add_runs(applied.map(FoundRecord::run));
    }
    let mut find = |path: &Path, position: u64, what: String| {
        report.findings.push(Finding {
            path: path.to_owned(),
            position,
            what,
        });
    };
    // A segment without a frame may have been cut off in the making: its index is nothing to miss.
    let has_frames = data.iter().any(|byte| *byte != 0);
    if let Some(damage) = index.damage.as_ref().filter(|_| has_frames) {
        find(
            &index_path,
            0,
            format!("{damage}; the next start rebuilds it"),
        );
    }
    if let Some(marker) = index
        .sealed
        .filter(|marker| marker.frame_bytes > data.len() as u64)
    {
        let what = format!(
            "it was sealed at {} bytes but has {}",
            marker.frame_bytes,
            data.len()
        );
        find(path, data.len() as u64, what);
        index.sealed = None;
    }
    let (end, mut damaged) = match index.sealed {
        Some(marker) => (marker.frame_bytes, Vec::new()),
        None => {
            let published = index.published_in(&disk.boot_id());
            let verdict = judge(&data, base_offset, &index, published);
            (verdict.end, verdict.damaged)
        }
    };
    if index.sealed.is_some() {
        damaged = index
            .blocks
            .iter()
            .filter(|block| !matches(&data, block))
            .copied()
            .collect();
    }
    for block in &damaged {
        let what = format!(
            "{} bytes fail their checksum (offsets {} to {})",
            block.bytes,
            block.base_offset,
            block.end_offset()
        );
        find(path, block.position, what);
    }
    let behind = usize::try_from(end).ok().and_then(|end| data.get(end..));
    if index.torn && behind.is_some_and(|behind| behind.iter().any(|byte| *byte != 0)) {
        let what = "nothing vouches for the bytes from here on, since the index does not read to its end; the next start puts them aside";
        find(path, end, what.to_owned());
    }
    let promised = index.blocks.last().map_or(0, Block::end_position);
    if promised > end {
        find(
            path,
            end,
            format!("whole frames end here, but {promised} bytes were begun"),
        );
    }
    Ok(check_frames(
        &data,
        end,
        base_offset,
        &damaged,
        path,
        report,
    ))
}

/// Puts a record of the write-ahead log into a segment's bytes; `false` for one that does not follow them.
fn apply(record: &FoundRecord<'_>, data: &mut Vec<u8>) -> bool {
    let run = record.run();
    let range = usize::try_from(run.position)
        .ok()
        .zip(usize::try_from(run.end_position()).ok());
    // A record begins in or right behind what was there before it; one that does not speaks of nothing.
    let Some((from, to)) = range.filter(|(from, _)| *from <= data.len()) else {
        return false;
    };
    if data.len() <= to {
        data.resize(to + 1, 0);
    }
    data[from..to].copy_from_slice(record.frames);
    true
}

fn matches(data: &[u8], block: &Block) -> bool {
    let range = usize::try_from(block.position)
        .ok()
        .zip(usize::try_from(block.end_position()).ok());
    range
        .and_then(|(from, to)| data.get(from..to))
        .is_some_and(|bytes| crc32c(bytes) == block.crc32c)
}

/// Walks the frames up to `end`, skipping damaged blocks, and checks that their offsets go on without a hole.
fn check_frames(
    data: &[u8],
    end: u64,
    base_offset: Offset,
    damaged: &[Block],
    path: &Path,
    report: &mut CheckReport,
) -> Offset {
    let clamp = |position: u64| {
        usize::try_from(position)
            .unwrap_or(usize::MAX)
            .min(data.len())
    };
    let (mut at, mut expected) = (0_u64, base_offset);
    let mut damaged = damaged.iter();
    loop {
        let next_damage = damaged.next();
        let stop = next_damage.map_or(end, |block| block.position);
        let mut walk = FrameWalk::new(&data[clamp(at)..clamp(stop)], FrameLimits::UNLIMITED);
        loop {
            let position = at + walk.position() as u64;
            let Some(frame) = walk.next() else {
                if position < stop {
                    report.findings.push(Finding {
                        path: path.to_owned(),
                        position,
                        what: "a frame is cut here".to_owned(),
                    });
                }
                break;
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    report.findings.push(Finding {
                        path: path.to_owned(),
                        position,
                        what: error.to_string(),
                    });
                    break;
                }
            };
            if frame.header.offset != expected {
                let what = format!(
                    "a frame has offset {} where {expected} comes next",
                    frame.header.offset
                );
                report.findings.push(Finding {
                    path: path.to_owned(),
                    position,
                    what,
                });
            }
            report.frames += 1;
            report.records += u64::from(frame.header.logical_count());
            expected = frame.header.end_offset();
        }
        match next_damage {
            Some(block) => (at, expected) = (block.end_position(), block.end_offset()),
            None => return expected,
        }
    }
}
