//! What goes over Basalt's wires and onto its disks, as encoders and decoders.
//!
//! This crate turns bytes into checked values and back. It is deliberately *not* a client, a server or a file format
//! reader: no I/O, no clock, no runtime, no `unsafe`. Everything above it shares these types.
//!
//! Start with [`FrameBatch`] (frames fit to be appended), [`FrameWalk`] (a walk over stored frames),
//! [`Opening`] (how a native connection begins) and [`session::Request`] (what a session asks). Batch frames carry
//! Kafka record batches, which [`batch`] reads, writes and expands into records.
//!
//! Invariants:
//! - **PROTO-1**: nothing is allocated, added or sliced by a length from outside before that length was checked, in
//!   64-bit arithmetic, against its limit and the bytes at hand.
//! - **PROTO-2**: `decode(encode(x)) == x` for every value, and each layout is pinned by a golden vector.
//! - **PROTO-3**: no input panics; whatever is refused says what was found and what was expected.
//! - **PROTO-4**: walking frames and patching their headers allocates nothing.
//!
//! ```
//! use basalt_proto::{Frame, FrameBatch, FrameHeader, FrameKind, FrameLimits, Offset, patch_offset};
//!
//! let mut bytes = Vec::new();
//! Frame::record(1_000, b"k1", b"a").encode_into(&mut bytes);
//! patch_offset(&mut bytes, Offset(7));
//!
//! let batch = FrameBatch::parse(&bytes, &FrameLimits::default())?;
//! assert_eq!(batch.record_count(), 1);
//! for frame in batch.frames() {
//!     let frame = frame?;
//!     assert_eq!((frame.header.offset, frame.key, frame.payload), (Offset(7), &b"k1"[..], &b"a"[..]));
//! }
//! # Ok::<(), basalt_proto::FrameError>(())
//! ```
#![forbid(unsafe_code)]

mod ack;
pub mod batch;
mod error_kind;
mod frame;
mod name;
mod offset;
mod opening;
pub mod session;
mod wire;

pub use ack::{ACK_BYTES, Ack, AckError};
pub use batch::{BatchError, ExpandedRecord, RecordHeader, expand};
pub use error_kind::ErrorKind;
pub use frame::{
    DEFAULT_MAX_KEY_BYTES, DEFAULT_MAX_PAYLOAD_BYTES, FRAME_HEADER_BYTES, Frame, FrameBatch,
    FrameCheck, FrameError, FrameHeader, FrameKind, FrameLimits, FramePrefix, FrameStop, FrameWalk,
    copy_frames, patch_offset, patch_record_count,
};
pub use name::{GroupName, MAX_NAME_BYTES, NameError, TopicName};
pub use offset::{Offset, PartitionId};
pub use opening::{COMMIT_ACCEPTED, MAX_OPENING_BYTES, Opening, OpeningError};
