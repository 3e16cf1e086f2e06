//! How what the coordinators know is written down: big-endian numbers, a text as its length in two bytes and itself, a blob the same
//! with four bytes.

use bytes::{Buf, BufMut, Bytes, TryGetError};

/// Why bytes are not what was stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadStored {
    #[error("version {0} is not known")]
    Version(u8),
    #[error("{0}")]
    Short(#[from] TryGetError),
    #[error("{needed} bytes are needed, {available} are there")]
    Cut { needed: usize, available: usize },
    #[error("{0}")]
    Text(#[from] std::str::Utf8Error),
    #[error("{0}")]
    Name(#[from] basalt_proto::NameError),
    #[error("the state {0} is none")]
    State(u8),
}

/// The bytes behind a version that is known.
pub(super) fn open(bytes: &[u8], known: u8) -> Result<Bytes, BadStored> {
    let mut bytes = Bytes::copy_from_slice(bytes);
    match bytes.try_get_u8()? {
        version if version == known => Ok(bytes),
        version => Err(BadStored::Version(version)),
    }
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    // What came over the wire is no longer than that.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.put_u16(length);
    out.put_slice(&text.as_bytes()[..usize::from(length)]);
}

pub(super) fn put_blob(out: &mut Vec<u8>, blob: &[u8]) {
    put_count(out, blob.len());
    out.put_slice(blob);
}

pub(super) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
}

pub(super) fn put_millis(out: &mut Vec<u8>, duration: std::time::Duration) {
    out.put_u32(u32::try_from(duration.as_millis()).unwrap_or(u32::MAX));
}

pub(super) fn take_text(bytes: &mut Bytes) -> Result<String, BadStored> {
    let length = usize::from(bytes.try_get_u16()?);
    Ok(std::str::from_utf8(&take(bytes, length)?)?.to_owned())
}

pub(super) fn take_blob(bytes: &mut Bytes) -> Result<Bytes, BadStored> {
    let length = bytes.try_get_u32()? as usize;
    // Its own memory: all of what was stored would be kept for one blob otherwise.
    Ok(Bytes::copy_from_slice(&take(bytes, length)?))
}

pub(super) fn take_millis(bytes: &mut Bytes) -> Result<std::time::Duration, BadStored> {
    Ok(std::time::Duration::from_millis(u64::from(
        bytes.try_get_u32()?,
    )))
}

fn take(bytes: &mut Bytes, needed: usize) -> Result<Bytes, BadStored> {
    let available = bytes.len();
    match needed <= available {
        true => Ok(bytes.split_to(needed)),
        false => Err(BadStored::Cut { needed, available }),
    }
}
