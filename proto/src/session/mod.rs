//! The session protocol: requests with correlation ids, many in flight on one connection. `SESSION.md` in this crate
//! describes it for other languages; this is its code.
//!
//! | request | bytes | at | | response | bytes | at |
//! |---|---|---|---|---|---|---|
//! | length of the rest | 4 | 0 | | length of the rest | 4 | 0 |
//! | kind | 1 | 4 | | correlation_id | 4 | 4 |
//! | correlation_id | 4 | 5 | | status: 0, or an [`ErrorKind`] code | 1 | 8 |
//! | body | | 9 | | body | | 9 |
//!
//! A server reads 9 bytes, decodes a [`RequestHeader`] against its limit, reads as many bytes as that says and gives
//! them to [`Request::decode`]. A client does the same with [`ResponseHeader`], and knows by the correlation id which
//! [`ResponseBody`] to decode.
//!
//! **PROTO-11**: a body is refused unless every byte of it is accounted for, and lists grow with what was read, never
//! with what was claimed.

mod request;
mod response;

pub use request::{
    AckLevel, ConfigPairs, FetchRequest, ListOffsetsRequest, NO_END_OFFSET, NO_MAX_QUEUE_WAIT,
    ProduceRequest, Request, Start,
};
pub use response::{
    AuthenticateResponse, CommittedResponse, CoolTopicResponse, EmptyResponse, ErrorResponse,
    FETCH_RESPONSE_HEADER_BYTES, FetchResponseHeader, GroupEntry, GroupsResponse,
    ListOffsetsResponse, MetadataResponse, PartitionMetadata, ProduceResponse, ResponseBody,
    TopicMetadata, encode_error, encode_fetch_header, encode_response,
};

use crate::wire::{Reader, Short};
use crate::{ErrorKind, GroupName, NameError, TopicName};

/// The version that this crate speaks: the byte behind `04` in the opening, and the server's answer to it.
pub const SESSION_VERSION: u8 = 1;
/// The server's answer to a version it does not speak, before it closes.
pub const SESSION_REFUSED: u8 = 0xFF;
/// Bytes before a request's body.
pub const REQUEST_HEADER_BYTES: usize = 9;
/// Bytes before a response's body.
pub const RESPONSE_HEADER_BYTES: usize = 9;
/// The status of a response that is no error.
pub const STATUS_OK: u8 = 0;

/// What the length field counts besides the body, in both directions.
const COUNTED_HEADER_BYTES: u32 = 5;

/// Why bytes are no request or response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The length field is below what a header takes.
    #[error(
        "the message says it is {found_bytes} bytes long, its header alone takes {COUNTED_HEADER_BYTES}"
    )]
    TooShort {
        /// The field.
        found_bytes: u32,
    },
    /// The length field is over the limit.
    #[error("the message is {found_bytes} bytes long, the limit is {limit_bytes}")]
    TooLarge {
        /// The field.
        found_bytes: u32,
        /// The limit, inclusive.
        limit_bytes: u32,
    },
    /// A request of a kind this version does not know.
    #[error("the request has the unknown kind {found}")]
    UnknownRequest {
        /// The byte.
        found: u8,
    },
    /// The body ends inside a field.
    #[error(
        "the body ends inside the {field}: {needed_bytes} bytes at position {position}, {available_bytes} are there"
    )]
    Truncated {
        /// Which.
        field: &'static str,
        /// Where in the body.
        position: usize,
        /// What the field takes.
        needed_bytes: usize,
        /// What is there.
        available_bytes: usize,
    },
    /// Bytes behind the last field.
    #[error("{found_bytes} bytes are left behind the body's last field")]
    TrailingBytes {
        /// How many.
        found_bytes: usize,
    },
    /// A name that is not allowed.
    #[error("the {field} is refused: {source}")]
    Name {
        /// Whose name.
        field: &'static str,
        /// The rule it breaks.
        source: NameError,
    },
    /// A field with a value that has no meaning.
    #[error("the {field} has the value {found}, which means nothing")]
    Value {
        /// Which.
        field: &'static str,
        /// The value.
        found: u8,
    },
    /// Text that is not UTF-8.
    #[error("the {field} is not UTF-8")]
    NotUtf8 {
        /// Which.
        field: &'static str,
    },
}

impl SessionError {
    /// What the caller should do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Name { .. } => ErrorKind::InvalidName,
            _ => ErrorKind::InvalidRequest,
        }
    }
}

/// The 9 bytes before a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Bytes of the body.
    pub body_bytes: u32,
    /// What is asked; see [`Request`]. Not checked here, so that an unknown kind can be answered by its id.
    pub kind: u8,
    /// Comes back in the response.
    pub correlation_id: u32,
}

impl RequestHeader {
    /// Reads the header; the length field may be at most `max_request_bytes`.
    ///
    /// # Errors
    /// [`SessionError::TooShort`] and [`SessionError::TooLarge`]. The connection cannot go on after either.
    pub fn decode(
        bytes: &[u8; REQUEST_HEADER_BYTES],
        max_request_bytes: u32,
    ) -> Result<Self, SessionError> {
        let [a, b, c, d, kind, e, f, g, h] = *bytes;
        let body_bytes = body_bytes(u32::from_be_bytes([a, b, c, d]), max_request_bytes)?;
        Ok(Self {
            body_bytes,
            kind,
            correlation_id: u32::from_be_bytes([e, f, g, h]),
        })
    }
}

/// The 9 bytes before a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Of the request that is answered.
    pub correlation_id: u32,
    /// [`STATUS_OK`], or the code of an [`ErrorKind`].
    pub status: u8,
}

impl ResponseHeader {
    /// Reads the header; the length field may be at most `max_response_bytes`.
    ///
    /// # Errors
    /// [`SessionError::TooShort`] and [`SessionError::TooLarge`]. The connection cannot go on after either.
    pub fn decode(
        bytes: &[u8; RESPONSE_HEADER_BYTES],
        max_response_bytes: u32,
    ) -> Result<Self, SessionError> {
        let [a, b, c, d, e, f, g, h, status] = *bytes;
        let body_bytes = body_bytes(u32::from_be_bytes([a, b, c, d]), max_response_bytes)?;
        Ok(Self {
            body_bytes,
            correlation_id: u32::from_be_bytes([e, f, g, h]),
            status,
        })
    }
}

fn body_bytes(length: u32, limit_bytes: u32) -> Result<u32, SessionError> {
    if length > limit_bytes {
        return Err(SessionError::TooLarge {
            found_bytes: length,
            limit_bytes,
        });
    }
    length
        .checked_sub(COUNTED_HEADER_BYTES)
        .ok_or(SessionError::TooShort {
            found_bytes: length,
        })
}

/// Reads a body field by field; errors name the field.
struct Fields<'a> {
    reader: Reader<'a>,
}

impl<'a> Fields<'a> {
    const fn new(body: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(body),
        }
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, SessionError> {
        self.reader.u8().map_err(|short| truncated(field, short))
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, SessionError> {
        self.reader.u16().map_err(|short| truncated(field, short))
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, SessionError> {
        self.reader.u32().map_err(|short| truncated(field, short))
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, SessionError> {
        self.reader.u64().map_err(|short| truncated(field, short))
    }

    /// 0 or 1.
    fn flag(&mut self, field: &'static str) -> Result<bool, SessionError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(SessionError::Value { field, found }),
        }
    }

    fn topic(&mut self) -> Result<TopicName, SessionError> {
        let field = "topic";
        let name = self.short_bytes(field)?;
        TopicName::from_bytes(name).map_err(|source| SessionError::Name { field, source })
    }

    fn group(&mut self) -> Result<GroupName, SessionError> {
        let field = "group";
        let name = self.short_bytes(field)?;
        GroupName::from_bytes(name).map_err(|source| SessionError::Name { field, source })
    }

    fn short_bytes(&mut self, field: &'static str) -> Result<&'a [u8], SessionError> {
        self.reader
            .short_bytes()
            .map_err(|short| truncated(field, short))
    }

    fn short_text(&mut self, field: &'static str) -> Result<&'a str, SessionError> {
        str::from_utf8(self.short_bytes(field)?).map_err(|_| SessionError::NotUtf8 { field })
    }

    fn long_text(&mut self, field: &'static str) -> Result<&'a str, SessionError> {
        let bytes = self
            .reader
            .long_bytes()
            .map_err(|short| truncated(field, short))?;
        str::from_utf8(bytes).map_err(|_| SessionError::NotUtf8 { field })
    }

    fn rest(&mut self) -> &'a [u8] {
        self.reader.rest()
    }

    fn end(self) -> Result<(), SessionError> {
        match self.reader.remaining() {
            0 => Ok(()),
            found_bytes => Err(SessionError::TrailingBytes { found_bytes }),
        }
    }
}

const fn truncated(field: &'static str, short: Short) -> SessionError {
    SessionError::Truncated {
        field,
        position: short.position,
        needed_bytes: short.needed,
        available_bytes: short.available,
    }
}

/// Makes `message` whole again after bytes were appended to it, and gives it another correlation id: so a producer encodes
/// a request without frames once, and then adds frames to it without copying any.
///
/// # Panics
/// If `message` is shorter than a header, or has 4 GiB or more.
pub fn seal_request(message: &mut [u8], correlation_id: u32) {
    message[5..REQUEST_HEADER_BYTES].copy_from_slice(&correlation_id.to_be_bytes());
    seal(message, 0, 0);
}

/// Fills in the length field of the message that starts at `start` and ends with `out`, plus `more_bytes` that are sent
/// from elsewhere.
///
/// # Panics
/// If the message has 4 GiB or more; senders bound what they put in.
fn seal(out: &mut [u8], start: usize, more_bytes: u32) {
    let length = u32::try_from(out.len() - start - 4)
        .ok()
        .and_then(|length| length.checked_add(more_bytes));
    assert!(
        length.is_some(),
        "a session message cannot hold {} bytes",
        out.len() - start
    );
    out[start..start + 4].copy_from_slice(&length.unwrap_or(u32::MAX).to_be_bytes());
}

#[cfg(test)]
mod tests;
