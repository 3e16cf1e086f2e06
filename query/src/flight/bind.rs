//! Binding values to a prepared statement.

use std::panic::AssertUnwindSafe;

use arrow::datatypes::Schema;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::sql::server::PeekableFlightDataStream;
use futures::{FutureExt, TryStreamExt};
use tonic::Status;

use super::ticket::refused;
use crate::QueryError;
use crate::parameters::{Bindings, BindingsError, Query};
use crate::planner::values_taken;

/// Bytes of messages that are read: values within their limit, and what surrounds them.
const READ_BYTES: usize = 4 << 20;

/// `prepared` with the values of `data`, which take the place of those it had.
pub(super) async fn bind(prepared: Query, data: PeekableFlightDataStream) -> Result<Query, Status> {
    let expected = values_taken(&prepared.sql).map_err(|error| error.status())?;
    let mut read_bytes = 0;
    let data = data.map_err(FlightError::from).and_then(move |message| {
        read_bytes += message.data_header.len() + message.data_body.len();
        let within = match read_bytes > READ_BYTES {
            true => Err(FlightError::from(Status::invalid_argument(format!(
                "the values to be bound have more than {READ_BYTES} bytes"
            )))),
            false => Ok(message),
        };
        std::future::ready(within)
    });
    let mut decoded = FlightRecordBatchStream::new_from_flight_data(data);
    // Arrow checks what it reads, but by panics too.
    let read = AssertUnwindSafe((&mut decoded).try_collect::<Vec<_>>()).catch_unwind();
    let batches = read
        .await
        .unwrap_or_else(|_| Err(refused(&BindingsError::Damaged).into()))
        .map_err(malformed)?;
    let schema = decoded.schema().cloned();
    let schema = schema.unwrap_or_else(|| Schema::empty().into());
    let found = schema.fields().len();
    if found != expected {
        return Err(QueryError::Parameters { expected, found }.status());
    }
    // A statement without parameters runs once, whatever rows of nothing came for it.
    let bindings = match expected {
        0 => None,
        _ => Some(Bindings::new(&schema, &batches).map_err(|error| refused(&error))?),
    };
    Ok(Query {
        sql: prepared.sql,
        bindings,
        ..Query::default()
    })
}

fn malformed(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => Status::invalid_argument(format!("the values to be bound: {other}")),
    }
}
