//! What stands before a session where users are known: the exchange in which its client proves to be one.

use basalt_auth::{Authenticator, Step};
use basalt_proto::ErrorKind;
use basalt_proto::session::{
    AuthenticateResponse, REQUEST_HEADER_BYTES, Request, SessionError, encode_response,
};
use tracing::debug;

use super::front::{Front, front};
use super::put_refusal;
use crate::Counters;
use crate::connection::{Connection, MAX_UNPROVED_BYTES, NO_SUCH_USER};
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::output::{Output, Then};

/// Takes requests until the client has proved who it is; false when it left, or the server stops.
///
/// # Errors
/// Those of the connection, and the refusal that was answered.
pub(super) async fn authenticate(
    connection: &Connection<'_>,
    authenticator: &Authenticator,
    output: &Output<'_>,
    input: &mut Input,
) -> Result<bool, ConnectionError> {
    let shared = connection.shared;
    let mut exchange = None;
    loop {
        let taken = match front(input, MAX_UNPROVED_BYTES) {
            Front::Part { needed_bytes } => {
                let (stream, shutdown) = (connection.stream, connection.shutdown);
                match input.fill(stream, needed_bytes, shared, shutdown).await? {
                    Filled::More => continue,
                    Filled::Eof | Filled::Stopping => return Ok(false),
                }
            }
            Front::Refused {
                correlation_id,
                refusal,
            } => (correlation_id, Err(refusal)),
            Front::Whole { header, bytes } => {
                Counters::increment(&shared.counters.requests);
                let body = input.unread().get(REQUEST_HEADER_BYTES..bytes);
                let request = Request::decode(header.kind, body.unwrap_or_default());
                let taken = match message(request) {
                    Ok((mechanism, message)) => {
                        let begun = match exchange.take() {
                            None => authenticator.exchange(mechanism).await,
                            Some((begun_by, exchange)) if begun_by == mechanism => Some(exchange),
                            Some(_) => None,
                        };
                        match begun {
                            Some(mut begun) => {
                                let step = begun.step(message).await;
                                if let Step::Done { user, .. } = &step {
                                    debug!(peer = %connection.peer, %user, "logged in");
                                }
                                exchange = Some((mechanism.to_owned(), begun));
                                answer(step)
                            }
                            None => Err(unauthenticated("there is no such mechanism here")),
                        }
                    }
                    Err(refusal) => Err(refusal),
                };
                input.consume(bytes);
                (header.correlation_id, taken)
            }
        };
        let (id, taken) = taken;
        let mut out = Vec::new();
        match &taken {
            Ok(response) => encode_response(id, response, &mut out),
            Err(refusal) => {
                shared.counters.refuse(refusal.kind, 1);
                put_refusal(id, refusal, &mut out);
            }
        }
        output.send(&out, Then::Nothing).await?;
        if taken?.done {
            return Ok(true);
        }
    }
}

/// Mechanism and message of a step.
fn message<'a>(request: Result<Request<'a>, SessionError>) -> Result<(&'a str, &'a [u8]), Refusal> {
    match request {
        Ok(Request::Authenticate { mechanism, message }) => Ok((mechanism, message)),
        Ok(_) => Err(unauthenticated("this server asks who you are, first")),
        Err(error) => Err(Refusal::new(error.kind(), error.to_string())),
    }
}

fn answer(step: Step) -> Result<AuthenticateResponse, Refusal> {
    match step {
        Step::Continue(message) => Ok(AuthenticateResponse {
            done: false,
            message,
        }),
        Step::Done { message, .. } => Ok(AuthenticateResponse {
            done: true,
            message,
        }),
        Step::Refused => Err(unauthenticated(NO_SUCH_USER)),
    }
}

fn unauthenticated(message: &str) -> Refusal {
    Refusal::new(ErrorKind::Unauthenticated, message)
}
