//! The first bytes of a native connection: who calls, and for what.
//!
//! | first byte | caller | then |
//! |---|---|---|
//! | `01` | producer | u8 length + topic, u32 partition |
//! | `02` | consumer | u8 length + group, u8 length + topic, u32 partition |
//! | `03` | commit | u8 length + group, u8 length + topic, u32 partition, u64 offset; answered with `01` |
//! | `04` | session | u8 version; answered with the version, or `FF` and the end |
//!
//! Parsing is incremental and refuses at the first byte that cannot be right, so that a silent or hostile peer is never
//! waited for longer than needed, and never holds more than [`MAX_OPENING_BYTES`].

use crate::wire::{Reader, Short, put_name};
use crate::{ErrorKind, GroupName, NameError, Offset, PartitionId, TopicName};

/// The longest opening: a commit with two names of 255 bytes.
pub const MAX_OPENING_BYTES: usize = 1 + 1 + 255 + 1 + 255 + 4 + 8;

/// The byte that answers a commit once it is durable.
pub const COMMIT_ACCEPTED: u8 = 0x01;

const PRODUCE: u8 = 0x01;
const CONSUME: u8 = 0x02;
const COMMIT: u8 = 0x03;
const SESSION: u8 = 0x04;

/// What a native connection is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// Frames follow, each answered with an [`crate::Ack`].
    Produce {
        /// Where to.
        topic: TopicName,
        /// Which partition.
        partition: PartitionId,
    },
    /// The server streams frames from the group's committed offset.
    Consume {
        /// Whose committed offset.
        group: GroupName,
        /// Where from.
        topic: TopicName,
        /// Which partition.
        partition: PartitionId,
    },
    /// The group will resume at this offset.
    Commit {
        /// Whose.
        group: GroupName,
        /// Of which topic.
        topic: TopicName,
        /// Which partition.
        partition: PartitionId,
        /// The next offset to read.
        offset: Offset,
    },
    /// Requests with correlation ids follow (see [`crate::session`]).
    Session {
        /// The version the client speaks; the server decides whether it does too.
        version: u8,
    },
}

/// Why the first bytes are no opening.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpeningError {
    /// The first byte is not 01 to 04.
    #[error("the connection opens with {found:#04x}, expected 0x01 (produce) to 0x04 (session)")]
    UnknownCaller {
        /// The byte.
        found: u8,
    },
    /// The topic's name is not allowed.
    #[error("the topic's name is refused: {source}")]
    Topic {
        /// The rule it breaks.
        source: NameError,
    },
    /// The group's name is not allowed.
    #[error("the group's name is refused: {source}")]
    Group {
        /// The rule it breaks.
        source: NameError,
    },
}

impl OpeningError {
    /// What the caller should do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownCaller { .. } => ErrorKind::InvalidRequest,
            Self::Topic { .. } | Self::Group { .. } => ErrorKind::InvalidName,
        }
    }
}

/// Why a piece of the opening could not be read: not yet there, or never right.
enum Stop {
    NeedMore,
    Refused(OpeningError),
}

impl From<Short> for Stop {
    fn from(_: Short) -> Self {
        Self::NeedMore
    }
}

impl Opening {
    /// Reads the opening at the start of `bytes`: it and its length, or `None` when more bytes are needed. Never needs
    /// more than [`MAX_OPENING_BYTES`].
    ///
    /// # Errors
    /// [`OpeningError`] as soon as a byte is there that no opening has.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, OpeningError> {
        let mut reader = Reader::new(bytes);
        match Self::read(&mut reader) {
            Ok(opening) => Ok(Some((opening, reader.position()))),
            Err(Stop::NeedMore) => Ok(None),
            Err(Stop::Refused(error)) => Err(error),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Stop> {
        match reader.u8()? {
            PRODUCE => Ok(Self::Produce {
                topic: topic(reader)?,
                partition: PartitionId(reader.u32()?),
            }),
            CONSUME => Ok(Self::Consume {
                group: group(reader)?,
                topic: topic(reader)?,
                partition: PartitionId(reader.u32()?),
            }),
            COMMIT => Ok(Self::Commit {
                group: group(reader)?,
                topic: topic(reader)?,
                partition: PartitionId(reader.u32()?),
                offset: Offset(reader.u64()?),
            }),
            SESSION => Ok(Self::Session {
                version: reader.u8()?,
            }),
            found => Err(Stop::Refused(OpeningError::UnknownCaller { found })),
        }
    }

    /// Appends the bytes on the wire.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Produce { topic, partition } => {
                out.push(PRODUCE);
                put_name(out, topic.as_str());
                out.extend_from_slice(&partition.0.to_be_bytes());
            }
            Self::Consume {
                group,
                topic,
                partition,
            } => {
                out.push(CONSUME);
                put_name(out, group.as_str());
                put_name(out, topic.as_str());
                out.extend_from_slice(&partition.0.to_be_bytes());
            }
            Self::Commit {
                group,
                topic,
                partition,
                offset,
            } => {
                out.push(COMMIT);
                put_name(out, group.as_str());
                put_name(out, topic.as_str());
                out.extend_from_slice(&partition.0.to_be_bytes());
                out.extend_from_slice(&offset.0.to_be_bytes());
            }
            Self::Session { version } => out.extend_from_slice(&[SESSION, *version]),
        }
    }
}

fn topic(reader: &mut Reader<'_>) -> Result<TopicName, Stop> {
    name(reader, TopicName::from_bytes, |source| {
        OpeningError::Topic { source }
    })
}

fn group(reader: &mut Reader<'_>) -> Result<GroupName, Stop> {
    name(reader, GroupName::from_bytes, |source| {
        OpeningError::Group { source }
    })
}

fn name<T>(
    reader: &mut Reader<'_>,
    make: impl Fn(&[u8]) -> Result<T, NameError>,
    refuse: impl Fn(NameError) -> OpeningError,
) -> Result<T, Stop> {
    let length = usize::from(reader.u8()?);
    // A length that no name has is refused before its bytes are waited for.
    if length == 0 {
        return Err(Stop::Refused(refuse(NameError::Empty)));
    }
    if length > crate::MAX_NAME_BYTES {
        return Err(Stop::Refused(refuse(NameError::TooLong {
            found_bytes: length,
        })));
    }
    make(reader.take(length)?).map_err(|source| Stop::Refused(refuse(source)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn refusal_does_not_wait_for_the_rest() {
        assert_eq!(
            Opening::parse(&[0x05]),
            Err(OpeningError::UnknownCaller { found: 5 })
        );
        assert_eq!(
            Opening::parse(b"G"),
            Err(OpeningError::UnknownCaller { found: b'G' })
        );
        assert_eq!(
            Opening::parse(&[1, 0]),
            Err(OpeningError::Topic {
                source: NameError::Empty
            })
        );
        assert_eq!(
            Opening::parse(&[2, 250]),
            Err(OpeningError::Group {
                source: NameError::TooLong { found_bytes: 250 }
            })
        );
        assert_eq!(
            Opening::parse(b"\x01\x02.."),
            Err(OpeningError::Topic {
                source: NameError::Dots
            })
        );
    }

    #[test]
    fn bytes_behind_the_opening_are_left_alone() {
        let (opening, used) = Opening::parse(&[4, 1, 9, 9]).unwrap().unwrap();
        assert_eq!((opening, used), (Opening::Session { version: 1 }, 2));
    }
}
