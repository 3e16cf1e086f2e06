//! Handles that carry their statement, so that any server, and this one after a restart, can answer them.
//!
//! | byte | meaning |
//! |---|---|
//! | 0 | version, `1` |
//! | 1.. | the statement, UTF-8 |

use bytes::{BufMut, Bytes, BytesMut};
use tonic::Status;

const VERSION: u8 = 1;

/// The handle of `sql`.
pub(super) fn encode(sql: &str) -> Bytes {
    let mut handle = BytesMut::with_capacity(1 + sql.len());
    handle.put_u8(VERSION);
    handle.put_slice(sql.as_bytes());
    handle.freeze()
}

/// The statement of `handle`.
pub(super) fn decode(handle: &[u8]) -> Result<&str, Status> {
    match handle.split_first() {
        Some((&VERSION, sql)) => std::str::from_utf8(sql)
            .map_err(|error| Status::invalid_argument(format!("the handle's statement: {error}"))),
        Some((version, _)) => Err(Status::invalid_argument(format!(
            "a handle of version {version}, expected {VERSION}"
        ))),
        None => Err(Status::invalid_argument("an empty handle")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_gives_its_statement_back_and_a_strange_one_is_refused() {
        assert_eq!(decode(&encode("SELECT 'é'")).unwrap(), "SELECT 'é'");
        assert_eq!(encode("S").as_ref(), b"\x01S");
        for strange in [&b""[..], b"\x02SELECT 1", b"\x01\xff"] {
            assert_eq!(
                decode(strange).unwrap_err().code(),
                tonic::Code::InvalidArgument
            );
        }
    }
}
