//! Handles that carry their statement, so that any server, and this one after a restart, can answer them.
//!
//! | byte | meaning |
//! |---|---|
//! | 0 | version: `1` a statement, `2` a statement with values for its parameters, `3` either with the id of its query |
//! | 1.. | version 1: the statement, UTF-8 |
//! | 1..5 | version 2: bytes of the statement, big-endian |
//! | 5.. | version 2: the statement, UTF-8, and behind it the values, an Arrow IPC stream |
//! | 1..17 | version 3: the id |
//! | 17.. | version 3: a handle of version 1 or 2 |

use bytes::{BufMut, Bytes, BytesMut};
use tonic::Status;

use crate::control::QueryId;
use crate::parameters::{Bindings, BindingsError, Query};

const PLAIN: u8 = 1;
const BOUND: u8 = 2;
const ANNOUNCED: u8 = 3;

/// The handle of `query`.
pub(super) fn encode(query: &Query) -> Result<Bytes, Status> {
    let sql = query.sql.as_bytes();
    let mut handle = BytesMut::with_capacity(22 + sql.len());
    if let Some(id) = query.id {
        handle.put_u8(ANNOUNCED);
        handle.put_slice(&id.to_bytes());
    }
    match &query.bindings {
        None => {
            handle.put_u8(PLAIN);
            handle.put_slice(sql);
        }
        Some(bindings) => {
            let sql_bytes = u32::try_from(sql.len())
                .map_err(|_| Status::invalid_argument("the statement is too long"))?;
            handle.put_u8(BOUND);
            handle.put_u32(sql_bytes);
            handle.put_slice(sql);
            handle.put_slice(&bindings.to_ipc().map_err(|error| refused(&error))?);
        }
    }
    Ok(handle.freeze())
}

/// What stands in `handle`.
pub(super) fn decode(handle: &[u8]) -> Result<Query, Status> {
    let Some((&ANNOUNCED, rest)) = handle.split_first() else {
        return decode_statement(handle);
    };
    let (id, rest) = rest
        .split_first_chunk::<{ QueryId::BYTES }>()
        .ok_or_else(|| Status::invalid_argument("a handle that ends too soon"))?;
    Ok(Query {
        id: Some(QueryId::from_bytes(*id)),
        ..decode_statement(rest)?
    })
}

fn decode_statement(handle: &[u8]) -> Result<Query, Status> {
    let (sql, bindings) = match handle.split_first() {
        Some((&PLAIN, sql)) => (sql, None),
        Some((&BOUND, rest)) => {
            let (sql, values) = split(rest)
                .ok_or_else(|| Status::invalid_argument("a handle that ends too soon"))?;
            let bindings = Bindings::from_ipc(values).map_err(|error| refused(&error))?;
            (sql, Some(bindings))
        }
        Some((version, _)) => {
            return Err(Status::invalid_argument(format!(
                "a handle of version {version}, expected {PLAIN} to {ANNOUNCED}"
            )));
        }
        None => return Err(Status::invalid_argument("an empty handle")),
    };
    let sql = std::str::from_utf8(sql)
        .map_err(|error| Status::invalid_argument(format!("the handle's statement: {error}")))?;
    Ok(Query {
        sql: sql.to_owned(),
        bindings,
        ..Query::default()
    })
}

fn split(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (sql_bytes, rest) = rest.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*sql_bytes)).ok()?)
}

/// The status of values that cannot be bound.
pub(super) fn refused(error: &BindingsError) -> Status {
    Status::invalid_argument(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};

    use super::*;

    fn bound(sql: &str) -> Query {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![5, 6]));
        let batch = RecordBatch::try_from_iter([("0", values)]).unwrap();
        Query {
            sql: sql.to_owned(),
            bindings: Some(Bindings::new(&batch.schema(), &[batch]).unwrap()),
            ..Query::default()
        }
    }

    #[test]
    fn a_handle_gives_its_statement_back_and_a_strange_one_is_refused() {
        let plain = encode(&Query::plain("SELECT 'é'")).unwrap();
        assert_eq!(decode(&plain).unwrap().sql, "SELECT 'é'");
        assert_eq!(encode(&Query::plain("S")).unwrap().as_ref(), b"\x01S");
        let id = Some(QueryId {
            epoch_ns: 5,
            number: 1 << 40,
        });
        let announced = encode(&Query {
            id,
            ..bound("SELECT ?")
        })
        .unwrap();
        let decoded = decode(&announced).unwrap();
        assert_eq!((decoded.id, decoded.sql), (id, "SELECT ?".to_owned()));
        assert_eq!(decoded.bindings, bound("SELECT ?").bindings);
        let nested = [&announced[..17], &announced[..]].concat();
        for strange in [
            &b""[..],
            &nested,
            b"\x03",
            b"\x030123456789012345",
            b"\x040123456789012345\x01SELECT 1",
            b"\x03SELECT 1",
            b"\x01\xff",
            b"\x02",
            b"\x02\0\0\0",
            b"\x02\0\0\0\x02S",
            b"\x02\xff\xff\xff\xffS",
            b"\x02\0\0\0\x01S",
            b"\x02\0\0\0\x01Sabcdefgh",
        ] {
            assert_eq!(
                decode(strange).unwrap_err().code(),
                tonic::Code::InvalidArgument,
                "{strange:?}"
            );
        }
    }

    #[test]
    fn a_handle_gives_its_values_back_and_a_damaged_one_never_panics() {
        let query = bound("SELECT ?");
        let handle = encode(&query).unwrap();
        assert_eq!(&handle[..13], b"\x02\0\0\0\x08SELECT ?");
        let decoded = decode(&handle).unwrap();
        assert_eq!((decoded.sql, decoded.bindings), (query.sql, query.bindings));
        for index in (0..handle.len()).step_by(5) {
            let mut damaged = handle.to_vec();
            damaged[index] ^= 1 << (index % 8);
            drop(decode(&damaged));
        }
    }
}
