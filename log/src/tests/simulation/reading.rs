//! Reading a whole partition.

use std::collections::BTreeMap;
use std::ops::Range;

use basalt_proto::{FrameLimits, FrameWalk, Offset};

use crate::{Partition, ReadError};

/// Everything that is visible: payloads by their offsets.
pub(super) fn read_all(partition: &Partition) -> BTreeMap<u64, Vec<u8>> {
    super::support::read_all(partition).into_iter().collect()
}

/// As [`read_all`], but damage is passed over; and the stretches that were refused.
pub(super) fn read_around_damage(
    partition: &Partition,
) -> (BTreeMap<u64, Vec<u8>>, Vec<Range<u64>>) {
    let (mut found, mut refused) = (BTreeMap::new(), Vec::new());
    let mut next = partition.bounds().log_start_offset;
    loop {
        match partition.read(next, Offset(u64::MAX), 1) {
            Ok(slice) if slice.next_offset == next => return (found, refused),
            Ok(slice) => {
                let limits = FrameLimits::UNLIMITED;
                for frame in FrameWalk::new(slice.bytes(), limits) {
                    let frame = frame.unwrap();
                    found.insert(frame.header.offset.0, frame.payload.to_vec());
                }
                next = slice.next_offset;
            }
            Err(ReadError::Corrupt { next_offset, .. }) => {
                assert!(next_offset > next, "a refusal that gets nowhere");
                refused.push(next.0..next_offset.0);
                next = next_offset;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}
