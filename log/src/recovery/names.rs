//! The names in a partition's folder. What is in the files it does not know.

use std::path::Path;

use basalt_proto::Offset;

use crate::disk::Disk;
use crate::error::{DiskError, OnDisk};
use crate::partition::producers::snapshot_offset;
use crate::segment::{PREPARED_INDEX, PREPARED_SEGMENT};

/// What is in a partition's folder.
pub(crate) struct SegmentNames {
    /// Base offsets of the segments, in order.
    pub(crate) bases: Vec<Offset>,
    /// Names that do not belong there.
    pub(crate) strange: Vec<String>,
    /// Files of a segment that was made ahead.
    pub(crate) prepared: Vec<String>,
    /// Where snapshots of producers are, in order.
    pub(crate) producers: Vec<Offset>,
    /// Whether there is a reservation.
    pub(crate) is_reserved: bool,
}

/// Looks at the names in a partition's folder.
pub(crate) fn list_segments(disk: &dyn Disk, dir: &Path) -> Result<SegmentNames, DiskError> {
    let names = disk.list(dir).on("list", dir)?;
    let base = |name: &str| {
        name.strip_suffix(".seg")
            .filter(|digits| digits.len() == 20)?
            .parse()
            .ok()
            .map(Offset)
    };
    let mut bases: Vec<Offset> = names.iter().filter_map(|name| base(name)).collect();
    bases.sort_unstable();
    let known = |name: &String| {
        let index_base = name
            .strip_suffix(".idx")
            .or_else(|| name.strip_suffix(".new"))
            .map(|digits| format!("{digits}.seg"));
        base(name).is_some()
            || index_base
                .is_some_and(|segment| base(&segment).is_some_and(|base| bases.contains(&base)))
            || name == crate::reserve::FILE_NAME
            || name == PREPARED_SEGMENT
            || name == PREPARED_INDEX
            || name.ends_with(".cut")
            || snapshot_offset(name).is_some()
    };
    let mut producers: Vec<_> = names
        .iter()
        .filter_map(|name| snapshot_offset(name))
        .collect();
    producers.sort_unstable();
    let strange = names.iter().filter(|name| !known(name)).cloned().collect();
    let is_reserved = names.iter().any(|name| name == crate::reserve::FILE_NAME);
    let is_prepared = |name: &String| name == PREPARED_SEGMENT || name == PREPARED_INDEX;
    Ok(SegmentNames {
        strange,
        producers,
        is_reserved,
        prepared: names
            .iter()
            .filter(|name| is_prepared(name))
            .cloned()
            .collect(),
        bases,
    })
}
