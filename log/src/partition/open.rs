//! Opening a partition's folder.

mod producers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use basalt_proto::{Offset, PartitionId, TopicName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::producers::Producers;
use super::settle::LEAST_TOGETHER;
use super::{Partition, Progress, State, Unsealed, due_snapshot};
use crate::config::{TopicConfig, TopicDurability};
use crate::disk::{Disk, DiskFile, replace_file};
use crate::error::{DiskError, OnDisk};
use crate::index::SegmentIdentity;
use crate::recovery::{
    Finding, IndexState, RecoveredSegment, SegmentNames, SegmentOnDisk, list_segments,
    recover_segment,
};
use crate::reserve::{self, Reserved};
use crate::segment::{Active, Recovered, index_path, segment_path, young_index_path};
use crate::sync::Shared;
use crate::topic::TopicId;
use crate::view::SegmentView;
use crate::wal::{FoundRecord, Replay};

/// Which partition is opened, and where.
pub(crate) struct PartitionSpec {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) id: PartitionId,
    pub(crate) dir: PathBuf,
    pub(crate) config: Arc<RwLock<TopicConfig>>,
}

/// What opening gathers, segment by segment.
struct Opening<'a> {
    spec: &'a PartitionSpec,
    records: &'a [FoundRecord<'a>],
    shared: &'a Shared,
    sealed: Vec<Arc<SegmentView>>,
    unsealed: Vec<Unsealed>,
    active: Option<Active>,
    log_end_offset: Offset,
    /// Whether the last segment's index reads to its end, so that it lacks no frame that anyone was told of.
    ends_for_sure: bool,
    /// Where what must be settled begins.
    settled_offset: Option<Offset>,
    /// Of everything below the offset beside it.
    producers: Producers,
    producers_offset: Offset,
    /// The snapshots that are kept.
    producer_snapshots: Vec<Offset>,
    findings: Vec<Finding>,
}

/// Allocates room for the index entries that an active segment lacks; `false` when the disk is full.
fn room_for_entries(active: &Active) -> Result<bool, DiskError> {
    let lacking = active.blocks().len() - active.index.covered().blocks;
    match active.index.make_room(lacking) {
        Ok(()) => Ok(true),
        Err(error) if error.is_full() => Ok(false),
        Err(error) => Err(error),
    }
}

impl Partition {
    /// A partition that has no folder yet.
    pub(crate) fn new_empty(spec: PartitionSpec, shared: &Arc<Shared>) -> Arc<Self> {
        Self::assemble(spec, shared, State::new(Offset::ZERO), Offset::ZERO)
    }

    /// Recovers a partition from its folder and the write-ahead log. All that is accepted is on the disk, in its segments, on
    /// return (LOG-8).
    pub(crate) fn open(
        spec: PartitionSpec,
        shared: &Arc<Shared>,
        replay: &Replay,
    ) -> Result<Arc<Self>, DiskError> {
        let disk = shared.disk.as_ref();
        let records = replay.of(spec.topic_id, spec.id);
        let mut opening = Opening {
            spec: &spec,
            records: &records,
            shared,
            sealed: Vec::new(),
            unsealed: Vec::new(),
            active: None,
            log_end_offset: Offset::ZERO,
            ends_for_sure: false,
            settled_offset: None,
            producers: Producers::default(),
            producers_offset: Offset::ZERO,
            producer_snapshots: Vec::new(),
            findings: Vec::new(),
        };
        let reserved_offset = opening.open(disk)?;
        let Opening {
            sealed,
            unsealed,
            active,
            log_end_offset,
            settled_offset,
            producers,
            producer_snapshots,
            findings,
            ..
        } = opening;
        let state = State {
            sealed,
            unsealed,
            active,
            settled_offset: settled_offset.unwrap_or(log_end_offset),
            producers,
            producer_snapshots,
            ..State::new(log_end_offset)
        };
        let partition = Self::assemble(spec, shared, state, reserved_offset);
        partition.log_findings(&findings);
        Ok(partition)
    }

    /// Makes everything durable that the recovery of these partitions relies on (LOG-8), by a file on their disk.
    ///
    /// # Errors
    /// [`DiskError`]: none of them may be used.
    pub(crate) fn settle_recovered(
        partitions: &[Arc<Self>],
        on_disk: &dyn DiskFile,
    ) -> Result<(), DiskError> {
        // A rename that an earlier process saw fail may be in the page cache alone: what was read under the names is only
        // relied on once the names are durable.
        if partitions.len() < LEAST_TOGETHER || on_disk.sync_file_system().is_err() {
            for partition in partitions {
                let disk = partition.shared.disk.as_ref();
                disk.sync_dir(&partition.dir).on("sync", &partition.dir)?;
            }
        }
        let unsettled = |partition: &&Arc<Self>| {
            let state = partition.state.lock();
            state.settled_offset < state.log_end_offset
        };
        let unsettled: Vec<_> = partitions.iter().filter(unsettled).cloned().collect();
        if let Err(error) = Self::settle_all(&unsettled, on_disk) {
            let path = unsettled
                .first()
                .map_or_else(PathBuf::new, |first| first.dir.clone());
            let failed: std::io::Result<()> = Err(std::io::Error::other(error));
            return failed.on("settle what was recovered in", &path);
        }
        for partition in partitions {
            let mut state = partition.state.lock();
            if !state.unsealed.is_empty() {
                partition.queue_disk_work(&mut state, TopicDurability::Fsync);
            }
        }
        Ok(())
    }

    fn assemble(
        spec: PartitionSpec,
        shared: &Arc<Shared>,
        state: State,
        reserved_offset: Offset,
    ) -> Arc<Self> {
        let end = state.log_end_offset;
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            topic: spec.topic,
            topic_id: spec.topic_id,
            id: spec.id,
            dir: spec.dir,
            dir_settled: AtomicBool::new(false),
            shared: Arc::clone(shared),
            config: spec.config,
            this: this.clone(),
            state: Mutex::new(state),
            reserved: Reserved::new(reserved_offset, shared.config.reserved_step),
            disk_work: Mutex::new(()),
            prepare_work: Mutex::new(()),
            high_watermark: watch::Sender::new(end),
            progress: watch::Sender::new(Progress {
                synced_offset: end,
                failed: None,
            }),
        })
    }
}

impl Opening<'_> {
    /// Opens what is in the folder; up to where offsets are reserved.
    fn open(&mut self, disk: &dyn Disk) -> Result<Offset, DiskError> {
        let dir = &self.spec.dir;
        let SegmentNames {
            mut bases,
            strange,
            prepared,
            producers,
            is_reserved,
        } = list_segments(disk, dir)?;
        for name in prepared {
            let path = dir.join(name);
            disk.remove_file(&path).on("remove", &path)?;
        }
        bases.extend(self.restore_newest(disk, bases.last().copied())?);
        for name in strange {
            let path = dir.join(&name);
            // An index without its segment, or a file that was being written when the process stopped.
            if [".idx", ".new", ".tmp"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                disk.remove_file(&path).on("remove", &path)?;
            } else {
                self.find(&path, 0, "this file does not belong here; it is left alone");
            }
        }
        self.read_snapshot(disk, producers)?;
        for (at, base_offset) in bases.iter().enumerate() {
            let path = segment_path(dir, *base_offset);
            let is_last = at + 1 == bases.len();
            self.segment(disk, &path, *base_offset, is_last)?;
            self.fold_newest()?;
        }
        self.fold_without_snapshot()?;
        if is_reserved {
            self.reservation(disk)
        } else {
            Ok(Offset::ZERO)
        }
    }

    /// Makes the segments again whose names had not reached the disk when the frames in them were committed: those after
    /// the newest that is there. Of others that are not there the records were released.
    fn restore_newest(
        &self,
        disk: &dyn Disk,
        newest: Option<Offset>,
    ) -> Result<BTreeSet<Offset>, DiskError> {
        let known = self.records.iter().map(|record| record.header.segment);
        let lost: BTreeSet<Offset> = known
            .filter(|base_offset| newest.is_none_or(|newest| *base_offset > newest))
            .collect();
        for base_offset in &lost {
            let identity = SegmentIdentity::new(self.spec.topic_id, self.spec.id, *base_offset);
            Active::create(
                disk,
                &self.spec.dir,
                identity,
                self.seal_bytes(),
                self.shared.config.block_bytes,
                0,
            )?;
        }
        Ok(lost)
    }

    fn seal_bytes(&self) -> u64 {
        let config = self.spec.config.read();
        config
            .segment_bytes
            .unwrap_or(self.shared.config.segment_bytes)
    }

    fn find(&mut self, path: &Path, position: u64, what: &str) {
        self.findings.push(Finding {
            path: path.to_owned(),
            position,
            what: what.to_owned(),
        });
    }

    fn segment(
        &mut self,
        disk: &dyn Disk,
        path: &Path,
        base_offset: Offset,
        is_last: bool,
    ) -> Result<(), DiskError> {
        let segment = SegmentOnDisk {
            disk,
            path,
            identity: SegmentIdentity::new(self.spec.topic_id, self.spec.id, base_offset),
            seal_bytes: self.seal_bytes(),
            block_bytes: self.shared.config.block_bytes,
            now_ns: self.shared.clock.now_ns(),
            records: self.records,
        };
        let recovered = recover_segment(&segment, &mut self.findings)?;
        if base_offset < self.log_end_offset {
            let empty = matches!(&recovered, RecoveredSegment::Open(open, _) if open.end_offset == base_offset);
            if empty {
                // A roll that was given up, or was cut off by a crash before its first frame.
                return remove_empty(disk, path);
            }
            self.find(path, 0, "it begins before the segment before it ends; the records there are served from the earlier one");
        }
        match recovered {
            RecoveredSegment::Sealed(view) => {
                self.log_end_offset = self.log_end_offset.max(view.end_offset);
                self.sealed.push(Arc::new(view));
            }
            RecoveredSegment::Open(open, index) => {
                self.open_segment(disk, *open, index, is_last, segment.seal_bytes)?
            }
        }
        Ok(())
    }

    /// Goes on with an unsealed segment if it is the last and its index can be appended to, else has it sealed.
    fn open_segment(
        &mut self,
        disk: &dyn Disk,
        open: Recovered,
        index: IndexState,
        is_last: bool,
        seal_bytes: u64,
    ) -> Result<(), DiskError> {
        let (base_offset, end_offset) = (open.file.identity.base_offset, open.end_offset);
        if end_offset == base_offset {
            return self.empty_segment(disk, open, index, is_last, seal_bytes);
        }
        self.log_end_offset = self.log_end_offset.max(end_offset);
        self.ends_for_sure = open.ends_for_sure;
        let unsettled = open.unsettled;
        if unsettled {
            let settled = self.settled_offset.unwrap_or(base_offset);
            self.settled_offset = Some(settled.min(base_offset));
        }
        let active = Active::from_recovered(open, seal_bytes);
        // With no room for the entries it is sealed instead, once there is some. Until then the write-ahead log keeps what it
        // has, and what only the published mark vouches for stays at the level at which it was acknowledged.
        let has_index = index == IndexState::Usable && room_for_entries(&active)?;
        if has_index && is_last {
            self.active = Some(active);
            return Ok(());
        }
        let unsealed = Unsealed::of(&active);
        self.unsealed.push(Unsealed {
            // A young index without the entries must not get its name: it would be believed.
            named: if has_index {
                unsealed.named
            } else {
                Arc::new(AtomicBool::new(true))
            },
            index: unsealed.index.filter(|_| has_index),
            settled: !unsettled,
            ..unsealed
        });
        self.sealed.push(Arc::new(active.view(true)));
        Ok(())
    }

    /// An empty segment keeps the next offset if it is the last: its file is never taken away, whatever else fails.
    fn empty_segment(
        &mut self,
        disk: &dyn Disk,
        mut open: Recovered,
        index: IndexState,
        is_last: bool,
        seal_bytes: u64,
    ) -> Result<(), DiskError> {
        let identity = open.file.identity;
        let path = open.file.path.clone();
        // Begun after frames that a crash took before anyone was told of them: the log goes on where they were.
        let follows = self.unsealed.last().map(|segment| segment.end_offset);
        let is_premature = self.ends_for_sure
            && follows == Some(self.log_end_offset)
            && self.log_end_offset < identity.base_offset;
        if !is_last || is_premature {
            return remove_empty(disk, &path);
        }
        self.log_end_offset = self.log_end_offset.max(identity.base_offset);
        if index == IndexState::Damaged {
            let index_path = index_path(&path);
            match replace_file(disk, &index_path, &identity.header()).on("write", &index_path) {
                Ok(file) => (open.index, open.young) = (file, false),
                // The first append makes it, once there is room.
                Err(error) if error.is_full() || error.is_passing() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.active = Some(Active::from_recovered(open, seal_bytes));
        Ok(())
    }

    /// LOG-5: after a restart of the machine the log goes on at the bound.
    fn reservation(&mut self, disk: &dyn Disk) -> Result<Offset, DiskError> {
        match reserve::load(disk, &self.spec.dir)? {
            Err(what) => {
                let path = self.spec.dir.join(reserve::FILE_NAME);
                let careful = Offset(self.log_end_offset.0.saturating_add(2 * reserve::MAX_STEP));
                self.find(
                    &path,
                    0,
                    &format!("{what}; the log goes on at offset {careful}"),
                );
                self.skip_to(careful);
                Ok(Offset::ZERO)
            }
            Ok(reservation) => {
                // With the page cache intact nothing is missing, but for what an earlier start had skipped.
                let goes_on_at = if reservation.same_boot {
                    reservation.floor
                } else {
                    reservation.bound
                };
                if goes_on_at > self.log_end_offset {
                    self.skip_to(goes_on_at);
                }
                Ok(reservation.bound)
            }
        }
    }

    fn skip_to(&mut self, offset: Offset) {
        self.log_end_offset = offset;
        if let Some(active) = self.active.take() {
            if active.base_offset() == active.end_offset() {
                // Its name would tell a lower next offset than what is acknowledged now; the reservation tells it.
                return;
            }
            self.unsealed.push(Unsealed {
                settled: self.settled_offset.is_none(),
                producers: due_snapshot(active.blocks(), &self.producers),
                ..Unsealed::of(&active)
            });
            self.sealed.push(Arc::new(active.view(true)));
        }
    }
}

/// Removes a segment without a frame, and its index.
fn remove_empty(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    disk.remove_file(path).on("remove", path)?;
    for index in [index_path(path), young_index_path(path)] {
        if disk.exists(&index).on("look for", &index)? {
            disk.remove_file(&index).on("remove", &index)?;
        }
    }
    Ok(())
}
