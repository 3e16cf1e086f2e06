//! What stands at the front of a Kafka connection's input: a length, a header, a body.

use std::ops::RangeInclusive;

use bytes::Bytes;
use kafka_protocol::protocol::Decodable;

use super::api::Api;
use super::wire::{Malformed, Reader};
use crate::error::Refusal;
use crate::input::Input;
use basalt_proto::ErrorKind;

/// Bytes of the length before a request.
pub(super) const LENGTH_BYTES: usize = 4;
/// API, version, correlation id and the length of the client's name.
pub(super) const MIN_REQUEST_BYTES: u32 = 2 + 2 + 4 + 2;

/// What stands at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// A request of so many bytes, its length included.
    Whole { bytes: usize },
    /// The beginning of one.
    Part { needed_bytes: usize },
}

/// Looks at the front of the input.
///
/// # Errors
/// A [`Refusal`] for a length that no request has, or that is over the limit.
pub(super) fn front(input: &Input, lengths: RangeInclusive<u32>) -> Result<Front, Refusal> {
    let unread = input.unread();
    let Some(length) = unread.first_chunk::<LENGTH_BYTES>() else {
        return Ok(Front::Part {
            needed_bytes: LENGTH_BYTES,
        });
    };
    let length = u32::from_be_bytes(*length);
    if !lengths.contains(&length) {
        let (min, max) = lengths.into_inner();
        let message = format!("a Kafka request of {length} bytes, which takes {min} to {max}");
        return Err(Refusal::new(ErrorKind::InvalidRequest, message));
    }
    let bytes = LENGTH_BYTES + length as usize;
    Ok(if unread.len() >= bytes {
        Front::Whole { bytes }
    } else {
        Front::Part {
            needed_bytes: bytes,
        }
    })
}

/// A request whose header is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) head: Head,
    /// What the client calls itself.
    pub(super) client_id: &'a [u8],
    pub(super) body: &'a [u8],
}

/// What an answer has to know of its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) api: &'static Api,
    pub(super) version: i16,
    pub(super) correlation_id: i32,
}

impl Head {
    pub(super) const fn is_flexible(&self) -> bool {
        self.api.is_flexible(self.version)
    }
}

/// A request's header, or what was wrong with it.
#[derive(Debug)]
pub(super) enum Parsed<'a> {
    Request(Request<'a>),
    /// An ApiVersions request in a version that is not served: the one that is answered all the same.
    UnknownApiVersions {
        correlation_id: i32,
    },
}

/// Reads the header of a request.
///
/// # Errors
/// A [`Refusal`]: it is cut off, or asks for what is not served.
pub(super) fn parse(request: &[u8]) -> Result<Parsed<'_>, Refusal> {
    let malformed = |error: Malformed| {
        let message = format!("a Kafka request with a malformed header: {error}");
        Refusal::new(ErrorKind::InvalidRequest, message)
    };
    let mut reader = Reader::new(request, false);
    let mut number = || reader.i16();
    let (key, version) = (number().map_err(malformed)?, number().map_err(malformed)?);
    let correlation_id = reader.i32().map_err(malformed)?;
    let Some(api) = Api::of(key) else {
        let message = format!("a Kafka request for the API {key}, which is not served");
        return Err(Refusal::new(ErrorKind::InvalidRequest, message));
    };
    if !api.serves(version) {
        if api.key == kafka_protocol::messages::ApiKey::ApiVersions {
            return Ok(Parsed::UnknownApiVersions { correlation_id });
        }
        let message = format!(
            "a Kafka request for {:?} in version {version}, versions {} to {} are served",
            api.key, api.first, api.last
        );
        return Err(Refusal::new(ErrorKind::UnsupportedVersion, message));
    }
    let client_id = reader.text().map_err(malformed)?.unwrap_or_default();
    reader.set_flexible(api.is_flexible(version));
    reader.tags().map_err(malformed)?;
    Ok(Parsed::Request(Request {
        head: Head {
            api,
            version,
            correlation_id,
        },
        client_id,
        body: reader.rest(),
    }))
}

impl Request<'_> {
    /// The body as its struct. It is walked over first, so that the decoder finds as much as it reserves memory for.
    ///
    /// # Errors
    /// A [`Refusal`]: the body is not what the version says.
    pub(super) fn decode<T: Decodable>(&self) -> Result<T, Refusal> {
        let Head { api, version, .. } = self.head;
        Reader::new(self.body, self.head.is_flexible())
            .walk_body(api.request, version, api.own_tags)
            .map_err(|error| self.malformed(&error.to_string()))?;
        T::decode(&mut Bytes::copy_from_slice(self.body), version)
            .map_err(|error| self.malformed(&error.to_string()))
    }

    pub(super) fn malformed(&self, why: &str) -> Refusal {
        let Head { api, version, .. } = self.head;
        let message = format!(
            "a malformed Kafka request for {:?} in version {version}: {why}",
            api.key
        );
        Refusal::new(ErrorKind::InvalidRequest, message)
    }
}
