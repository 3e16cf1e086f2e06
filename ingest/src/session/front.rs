//! What stands at the front of a session's input.

use basalt_proto::session::{AckLevel, REQUEST_HEADER_BYTES, Request, RequestHeader};

use crate::error::Refusal;
use crate::input::Input;

pub(super) enum Front {
    Whole {
        header: RequestHeader,
        bytes: usize,
    },
    Part {
        needed_bytes: usize,
    },
    Refused {
        correlation_id: u32,
        refusal: Refusal,
    },
}

/// What stands at the front of the input.
pub(super) fn front(input: &Input, max_request_bytes: u32) -> Front {
    let unread = input.unread();
    let Some(head) = unread.first_chunk::<REQUEST_HEADER_BYTES>() else {
        return Front::Part {
            needed_bytes: REQUEST_HEADER_BYTES,
        };
    };
    match RequestHeader::decode(head, max_request_bytes) {
        Err(error) => Front::Refused {
            correlation_id: front_id(input),
            refusal: Refusal::new(error.kind(), error.to_string()),
        },
        Ok(header) => {
            let bytes = REQUEST_HEADER_BYTES.saturating_add(header.body_bytes as usize);
            if unread.len() >= bytes {
                Front::Whole { header, bytes }
            } else {
                Front::Part {
                    needed_bytes: bytes,
                }
            }
        }
    }
}

/// The correlation id of the request at the front, which need not be whole; 0 when it is not even that far.
pub(super) fn front_id(input: &Input) -> u32 {
    let id = input.unread().get(5..).and_then(|rest| rest.first_chunk());
    id.map_or(0, |id| u32::from_be_bytes(*id))
}

/// When the produce request at the front, which need not be whole, is to be answered; `None` if it is none, or that far it
/// is not there.
pub(super) fn front_ack(input: &Input) -> Option<AckLevel> {
    let (head, body) = input.unread().split_first_chunk::<REQUEST_HEADER_BYTES>()?;
    match Request::decode(head[4], body) {
        Ok(Request::Produce(request)) => Some(request.ack),
        _ => None,
    }
}
