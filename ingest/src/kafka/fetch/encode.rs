//! A fetch's answer as bytes, but for the batches, which lie where they are.

use basalt_proto::Offset;

use super::super::error::code;
use super::super::records::Piece;
use super::super::request::LENGTH_BYTES;
use super::super::response::put_header;
use super::{Fetch, IDS_FROM, Part, READ_COMMITTED};
use crate::error::Refusal;

/// Batches in memory of less than this are copied once more, behind what stands before them, to leave in one write.
const MAX_JOINED_BYTES: usize = 16 << 10;
const UNKNOWN_OFFSET: i64 = -1;

impl Fetch {
    /// The answer in pieces; the first begins with its length.
    pub(super) fn encode(&self, parts: Vec<Part>) -> Result<Vec<Piece>, Refusal> {
        let (head, version) = (&self.head, self.head.version);
        let flexible = head.is_flexible();
        let mut pieces = Vec::new();
        let mut out = vec![0; LENGTH_BYTES];
        put_header(head, &mut out);
        if version >= 7 {
            put_top(&mut out, code::NONE);
        } else {
            out.extend_from_slice(&[0; 4]);
        }
        put_count(&mut out, self.request.topics.len(), flexible);
        let mut parts = parts.into_iter();
        for topic in &self.request.topics {
            if version >= IDS_FROM {
                out.extend_from_slice(topic.topic_id.as_bytes());
            } else {
                put_text(&mut out, topic.topic.as_bytes(), flexible);
            }
            put_count(&mut out, topic.partitions.len(), flexible);
            for part in parts.by_ref().take(topic.partitions.len()) {
                self.put_part(&mut out, &mut pieces, part);
            }
            put_tags(&mut out, flexible);
        }
        put_tags(&mut out, flexible);
        // What is sent last pushes out what was held back for more to come: it must not be empty.
        if !out.is_empty() {
            pieces.push(Piece::Bytes(out));
        }
        let behind: u64 = pieces.iter().skip(1).map(Piece::len).sum();
        if let Some(Piece::Bytes(first)) = pieces.first_mut() {
            put_length(first, behind)?;
        }
        Ok(pieces)
    }

    fn put_part(&self, out: &mut Vec<u8>, pieces: &mut Vec<Piece>, part: Part) {
        let (version, flexible) = (self.head.version, self.head.is_flexible());
        let offset = |offset: Option<Offset>| {
            let number = offset.map_or(UNKNOWN_OFFSET, |offset| offset.0.cast_signed());
            number.to_be_bytes()
        };
        let high_watermark = part.bounds.map(|bounds| bounds.high_watermark);
        out.extend_from_slice(&part.index.to_be_bytes());
        out.extend_from_slice(&part.error_code.to_be_bytes());
        out.extend_from_slice(&offset(high_watermark));
        let stable_offset = part.bounds.map(|bounds| bounds.stable_offset);
        out.extend_from_slice(&offset(stable_offset));
        if version >= 5 {
            let start = part.bounds.map(|bounds| bounds.log_start_offset);
            out.extend_from_slice(&offset(start));
        }
        // Aborted transactions, which are null unless they matter to the client.
        if self.request.isolation_level == READ_COMMITTED {
            put_count(out, part.aborted_there.len(), flexible);
            for aborted in &part.aborted_there {
                out.extend_from_slice(&aborted.producer_id.to_be_bytes());
                out.extend_from_slice(&aborted.first_offset.0.to_be_bytes());
                put_tags(out, flexible);
            }
        } else if flexible {
            out.push(0);
        } else {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
        }
        if version >= 11 {
            // No preferred replica.
            out.extend_from_slice(&(-1_i32).to_be_bytes());
        }
        let bytes: u64 = part.pieces.iter().map(Piece::len).sum();
        put_count(out, usize::try_from(bytes).unwrap_or(usize::MAX), flexible);
        for piece in part.pieces {
            match piece {
                Piece::Bytes(bytes) if bytes.len() < MAX_JOINED_BYTES => {
                    out.extend_from_slice(&bytes);
                }
                piece => {
                    pieces.push(Piece::Bytes(std::mem::take(out)));
                    pieces.push(piece);
                }
            }
        }
        put_tags(out, flexible);
    }
}

/// Throttle time, error and session id.
pub(super) fn put_top(out: &mut Vec<u8>, error_code: i16) {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&error_code.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
}

/// How many elements or bytes follow.
pub(super) fn put_count(out: &mut Vec<u8>, count: usize, flexible: bool) {
    let count = u32::try_from(count).unwrap_or(u32::MAX - 1);
    if flexible {
        put_varint(out, count + 1);
    } else {
        out.extend_from_slice(&count.to_be_bytes());
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8], flexible: bool) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    if flexible {
        put_varint(out, u32::from(length) + 1);
    } else {
        out.extend_from_slice(&length.to_be_bytes());
    }
    out.extend_from_slice(&text[..usize::from(length)]);
}

fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7F) as u8);
}

pub(super) fn put_tags(out: &mut Vec<u8>, flexible: bool) {
    if flexible {
        out.push(0);
    }
}

/// Writes the length of an answer that goes on for `behind` bytes behind `first`.
pub(super) fn put_length(first: &mut [u8], behind: u64) -> Result<(), Refusal> {
    let length = (first.len() - LENGTH_BYTES) as u64 + behind;
    let length = i32::try_from(length).map_err(|_| {
        let message = format!("an answer of {length} bytes is too long");
        Refusal::new(basalt_proto::ErrorKind::Internal, message)
    })?;
    first[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(())
}
