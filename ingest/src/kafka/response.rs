//! Answers as they go back: a length, a header, a body.

use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::Encodable;

use super::request::{Head, LENGTH_BYTES};
use crate::error::Refusal;
use basalt_proto::ErrorKind;

/// A whole answer.
///
/// # Errors
/// A [`Refusal`] when the body cannot be said in the version: a defect.
pub(super) fn message(head: &Head, body: &impl Encodable) -> Result<Vec<u8>, Refusal> {
    let mut out = vec![0; LENGTH_BYTES];
    put_header(head, &mut out);
    finish(head, body, out)
}

/// The header: the correlation id, and tagged fields where the version has them. ApiVersions never does, since whoever
/// asks does not know yet what is understood here.
pub(super) fn put_header(head: &Head, out: &mut Vec<u8>) {
    out.extend_from_slice(&head.correlation_id.to_be_bytes());
    if head.is_flexible() && head.api.key != ApiKey::ApiVersions {
        out.push(0);
    }
}

fn finish(head: &Head, body: &impl Encodable, mut out: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    let failed = |why: &str| {
        let message = format!("an answer to {:?} cannot be made: {why}", head.api.key);
        Refusal::new(ErrorKind::Internal, message)
    };
    body.encode(&mut out, head.version)
        .map_err(|error| failed(&error.to_string()))?;
    let length = i32::try_from(out.len() - LENGTH_BYTES).map_err(|_| failed("it is too long"))?;
    out[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(out)
}
