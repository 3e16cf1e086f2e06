//! Reading a whole partition; and as readers do who begin anywhere, ask for little (PUB-09, PUB-10, PUB-18) or stand still
//! (PUB-19).

use std::collections::BTreeMap;
use std::ops::Range;

use basalt_proto::{FrameLimits, FrameWalk, Offset};

use crate::{FrameSlice, Partition, ReadError};

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

/// A read of one byte from `from` on gives one whole frame: that which covers `from`, or the first one behind it. At the high
/// watermark it gives none, and beyond it says so. Whether it began inside of a frame.
pub(super) fn read_one(partition: &Partition, from: u64, found: &BTreeMap<u64, Vec<u8>>) -> bool {
    let high_watermark = partition.bounds().high_watermark;
    let beyond = partition.read(Offset(high_watermark.0 + 1), Offset(u64::MAX), 1);
    assert!(
        matches!(beyond, Err(ReadError::OutOfRange { .. })),
        "{beyond:?}"
    );
    let mut next = Offset(from);
    let slice = loop {
        let slice = partition.read(next, Offset(u64::MAX), 1).unwrap();
        if !slice.is_empty() || slice.next_offset == high_watermark {
            break slice;
        }
        assert!(slice.next_offset > next, "a reader that gets nowhere");
        next = slice.next_offset;
    };
    let mut frames = FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED);
    let Some(frame) = frames.next() else {
        assert_eq!(found.range(from..).next(), None, "from {from}");
        return false;
    };
    let frame = frame.unwrap();
    assert!(frames.next().is_none(), "more than was asked for");
    let (offset, end) = (frame.header.offset.0, frame.header.end_offset().0);
    assert!(end > from, "the frame at {offset} ends before {from}");
    let between = found.range(from..offset.max(from)).next();
    assert_eq!(between, None, "passed over from {from} to {offset}");
    assert_eq!(found[&offset], frame.payload);
    assert_eq!(slice.next_offset, frame.header.end_offset());
    offset < from
}

/// What a reader that stands still has of the log.
pub(super) struct Pinned {
    slice: FrameSlice,
    bytes: Vec<u8>,
}

impl Pinned {
    pub(super) fn begin(partition: &Partition, from: u64) -> Self {
        let slice = partition
            .read(Offset(from), Offset(u64::MAX), 4096)
            .unwrap();
        let bytes = slice.bytes().to_vec();
        Self { slice, bytes }
    }

    /// It goes on with the bytes that were there when it began.
    pub(super) fn check(&self) {
        assert!(
            self.slice.bytes() == self.bytes,
            "{:?} has changed",
            self.slice
        );
    }
}
