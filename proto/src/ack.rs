//! The 9-byte answer to each frame on a produce connection.
//!
//! | field | bytes | at | stored | refused |
//! |---|---|---|---|---|
//! | status | 1 | 0 | `00` | `FF` |
//! | offset | 8 | 1 | the record's offset | |
//! | kind | 1 | 1 | | [`ErrorKind`] code |
//! | reserved | 3 | 2 | | zero |
//! | retry_after_ms | 4 | 5 | | when to try again; 0 = no advice |
//!
//! HermitMQ's clients look at the status alone.

use crate::{ErrorKind, Offset};

/// Bytes of an [`Ack`].
pub const ACK_BYTES: usize = 9;

const STORED: u8 = 0x00;
const REFUSED: u8 = 0xFF;

/// The answer to one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// The frame is stored at this offset, as durably as its topic promises.
    Stored(Offset),
    /// The frame is not stored.
    Refused {
        /// What the producer should do about it.
        kind: ErrorKind,
        /// When to try again, in milliseconds; 0 when waiting alone does not help.
        retry_after_ms: u32,
    },
}

/// Why 9 bytes are not an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AckError {
    /// The first byte is neither of the two statuses.
    #[error("the ack has the status {found:#04x}, expected 0x00 or 0xff")]
    UnknownStatus {
        /// The byte.
        found: u8,
    },
    /// A refusal of a kind this version does not know.
    #[error("the refusal has the unknown kind {found}")]
    UnknownKind {
        /// The byte.
        found: u8,
    },
    /// Reserved bytes are not zero.
    #[error("the reserved bytes of the refusal are {found:02x?}, expected zero")]
    Reserved {
        /// The bytes.
        found: [u8; 3],
    },
}

impl Ack {
    /// The bytes on the wire.
    #[must_use]
    pub const fn encode(self) -> [u8; ACK_BYTES] {
        match self {
            Self::Stored(Offset(offset)) => {
                let [a, b, c, d, e, f, g, h] = offset.to_be_bytes();
                [STORED, a, b, c, d, e, f, g, h]
            }
            Self::Refused {
                kind,
                retry_after_ms,
            } => {
                let [a, b, c, d] = retry_after_ms.to_be_bytes();
                [REFUSED, kind.code(), 0, 0, 0, a, b, c, d]
            }
        }
    }

    /// Reads the bytes on the wire.
    ///
    /// # Errors
    /// [`AckError`] when a status, kind or reserved byte is not one this version writes.
    pub fn decode(bytes: [u8; ACK_BYTES]) -> Result<Self, AckError> {
        let [status, a, b, c, d, e, f, g, h] = bytes;
        match status {
            STORED => Ok(Self::Stored(Offset(u64::from_be_bytes([
                a, b, c, d, e, f, g, h,
            ])))),
            REFUSED => {
                let kind = ErrorKind::from_code(a).ok_or(AckError::UnknownKind { found: a })?;
                if [b, c, d] != [0; 3] {
                    return Err(AckError::Reserved { found: [b, c, d] });
                }
                Ok(Self::Refused {
                    kind,
                    retry_after_ms: u32::from_be_bytes([e, f, g, h]),
                })
            }
            found => Err(AckError::UnknownStatus { found }),
        }
    }
}
