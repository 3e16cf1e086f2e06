//! What stands before a message of Avro or Protobuf.

use serde::{Deserialize, Serialize};

use crate::value::Misfit;

/// What stands before each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Framing {
    /// Nothing.
    #[default]
    Plain,
    /// A zero byte and the 4-byte id of a schema in a registry. The id is not looked up: the declared schema is used. In
    /// Protobuf the place of the message in its file follows, which is not used either.
    Confluent,
}

/// The message behind the header of a schema registry.
pub(crate) fn behind_confluent(payload: &[u8]) -> Result<&[u8], Misfit> {
    match payload {
        [0, _, _, _, _, message @ ..] => Ok(message),
        _ => Err(Misfit::new(
            "the payload does not begin with a zero byte and a 4-byte schema id",
        )),
    }
}

/// The message behind the list of places that Protobuf has after that header.
pub(crate) fn behind_indexes(message: &[u8]) -> Result<&[u8], Misfit> {
    let cut_off = || Misfit::new("the payload ends within its message index");
    let mut rest = message;
    let count = zigzag(&mut rest).ok_or_else(cut_off)?;
    for _ in 0..count {
        zigzag(&mut rest).ok_or_else(cut_off)?;
    }
    Ok(rest)
}

/// Takes a zigzag number off the front of `bytes`: 1 to 10 bytes.
pub(crate) fn zigzag(bytes: &mut &[u8]) -> Option<i64> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7F);
        // The tenth byte has room for one bit.
        if index == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = &bytes[index + 1..];
            return Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_skipped_and_checked() {
        assert_eq!(behind_confluent(&[0, 1, 2, 3, 4, 5]), Ok(&[5][..]));
        assert!(behind_confluent(&[1, 1, 2, 3, 4, 5]).is_err());
        assert!(behind_confluent(&[0, 1, 2]).is_err());
        assert_eq!(behind_indexes(&[0, 9]), Ok(&[9][..]));
        assert_eq!(behind_indexes(&[4, 0, 2, 9]), Ok(&[9][..]));
        assert!(behind_indexes(&[4, 0]).is_err());
    }

    #[test]
    fn zigzag_numbers_end() {
        let number = |mut bytes: &[u8]| zigzag(&mut bytes);
        assert_eq!(number(&[0]), Some(0));
        assert_eq!(number(&[1]), Some(-1));
        assert_eq!(number(&[0x80, 1]), Some(64));
        let most = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
        assert_eq!(number(&most), Some(i64::MIN));
        assert_eq!(number(&[0xFF; 11]), None);
        let beyond = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2];
        assert_eq!(number(&beyond), None);
        assert_eq!(number(&[0x80]), None);
        assert_eq!(number(&[]), None);
    }
}
