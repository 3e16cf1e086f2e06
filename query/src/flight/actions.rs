//! Actions that arrow-flight has no call for: cancelling a query, and sessions.
//!
//! A query is known by the id in its ticket. The server keeps nothing of a session: catalog and schema are what they always
//! are, may be set to that, and nothing else may be set.

use std::collections::HashMap;

use arrow_flight::sql::{Any, TicketStatementQuery};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightInfo,
};
use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::ticket;
use crate::QueryEngine;
use crate::catalog::{CATALOG, TOPICS_SCHEMA};

const CANCEL_FLIGHT_INFO: &str = "CancelFlightInfo";
const SET_OPTIONS: &str = "SetSessionOptions";
const GET_OPTIONS: &str = "GetSessionOptions";
const CLOSE_SESSION: &str = "CloseSession";

/// Value of [`CloseSessionResult::status`]: the session is closed.
const CLOSED: i32 = 1;
/// Values of [`OptionError::value`].
const INVALID_NAME: i32 = 1;
const INVALID_VALUE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct CloseSessionResult {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Of the types that a value may have only text is read: no option has another.
#[derive(Clone, PartialEq, Message)]
struct OptionValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Options {
    #[prost(map = "string, message", tag = "1")]
    session_options: HashMap<String, OptionValue>,
}

#[derive(Clone, PartialEq, Message)]
struct OptionError {
    #[prost(int32, tag = "1")]
    value: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OptionErrors {
    #[prost(map = "string, message", tag = "1")]
    errors: HashMap<String, OptionError>,
}

/// What there is, with its description.
pub(super) fn types() -> Vec<ActionType> {
    let known = [
        (
            CANCEL_FLIGHT_INFO,
            "Cancels a query, before or while it runs",
        ),
        (SET_OPTIONS, "Takes catalog and schema as they are"),
        (GET_OPTIONS, "Gives catalog and schema"),
        (CLOSE_SESSION, "Says that the client is done"),
    ];
    known
        .map(|(name, description)| ActionType {
            r#type: name.to_owned(),
            description: description.to_owned(),
        })
        .to_vec()
}

/// The one result of `action`.
pub(super) fn answer(engine: &QueryEngine, action: &Action) -> Result<Bytes, Status> {
    Ok(match action.r#type.as_str() {
        CANCEL_FLIGHT_INFO => {
            let request: CancelFlightInfoRequest = decode(&action.body)?;
            let info = request
                .info
                .ok_or_else(|| Status::invalid_argument("CancelFlightInfo without a FlightInfo"))?;
            encode(&CancelFlightInfoResult::new(cancel(engine, &info)?))
        }
        SET_OPTIONS => encode(&set(&decode(&action.body)?)),
        GET_OPTIONS => encode(&options()),
        CLOSE_SESSION => encode(&CloseSessionResult { status: CLOSED }),
        other => {
            return Err(Status::unimplemented(format!(
                "there is no action {other:?}"
            )));
        }
    })
}

/// Cancels what `info` announced.
pub(super) fn cancel(engine: &QueryEngine, info: &FlightInfo) -> Result<CancelStatus, Status> {
    let tickets = info
        .endpoint
        .iter()
        .filter_map(|endpoint| endpoint.ticket.as_ref());
    let mut found = false;
    for ticket in tickets {
        let any: Any = decode(&ticket.ticket)?;
        let statement = any
            .unpack::<TicketStatementQuery>()
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Some(statement) = statement else {
            // What metadata calls give is given at once.
            return Ok(CancelStatus::NotCancellable);
        };
        let id = ticket::decode(&statement.statement_handle)?.id;
        found |= id.is_some_and(|id| engine.cancel(id));
    }
    match found {
        true => Ok(CancelStatus::Cancelled),
        false => Err(Status::not_found("no such query runs or waits")),
    }
}

fn options() -> Options {
    let option = |name: &str, value: &str| {
        let text = Some(value.to_owned());
        (name.to_owned(), OptionValue { text })
    };
    Options {
        session_options: [option("catalog", CATALOG), option("schema", TOPICS_SCHEMA)].into(),
    }
}

fn set(asked: &Options) -> OptionErrors {
    let known = options().session_options;
    let errors = asked.session_options.iter().filter_map(|(name, value)| {
        let value = match known.get(name) {
            Some(there) if there == value => return None,
            Some(_) => INVALID_VALUE,
            None => INVALID_NAME,
        };
        Some((name.clone(), OptionError { value }))
    });
    OptionErrors {
        errors: errors.collect(),
    }
}

fn decode<M: Message + Default>(body: &Bytes) -> Result<M, Status> {
    M::decode(body.clone()).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_be_set_to_what_they_are_and_to_nothing_else() {
        assert_eq!(set(&options()), OptionErrors::default());
        let text = |text: &str| OptionValue {
            text: Some(text.to_owned()),
        };
        let asked = Options {
            session_options: [
                ("catalog".to_owned(), text("other")),
                ("schema".to_owned(), OptionValue { text: None }),
                ("colour".to_owned(), text("blue")),
            ]
            .into(),
        };
        let errors = set(&asked).errors;
        let of = |name: &str| errors.get(name).map(|error| error.value);
        assert_eq!(of("catalog"), Some(INVALID_VALUE));
        assert_eq!(of("schema"), Some(INVALID_VALUE));
        assert_eq!(of("colour"), Some(INVALID_NAME));
        // As the protocol has it: a map of a string and a message whose first field is the text.
        let bytes = options().session_options["catalog"].encode_to_vec();
        assert_eq!(bytes, b"\x0a\x06basalt");
    }
}
