//! SASL, before anything else is served: SaslHandshake names a mechanism, SaslAuthenticate carries its messages. After a handshake of
//! version 0 they come bare instead, each behind its length, as Kafka had them before it had the second request.
//!
//! - **KAF-7**: where users are known, nothing but ApiVersions and these is answered before a client has proved to be one.

use std::time::Duration;

use basalt_auth::{Authenticator, Exchange, MECHANISMS, Step, UserName};
use basalt_proto::ErrorKind;
use kafka_protocol::messages::{
    ApiKey, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;
use tracing::debug;

use super::error::code;
use super::request::{Front, LENGTH_BYTES, MIN_REQUEST_BYTES, Parsed, Request, front, parse};
use super::response::message;
use super::versions;
use crate::Counters;
use crate::connection::{Connection, MAX_UNPROVED_BYTES, NO_SUCH_USER};
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::output::{Output, Then};

/// Requests in which a client proves who it is: versions in two ways, a handshake, two steps, and some.
const MAX_REQUESTS: usize = 16;

/// Between a refusal and the connection's end, as in Kafka (KIP-306): some clients (kafka-python) drop an answer that comes together with
/// the end, and then know nothing but that.
const END_AFTER: Duration = Duration::from_millis(100);

/// What the client has to say next.
enum Awaited {
    Handshake,
    /// Messages of the exchange, each in a request.
    Requests(Exchange),
    /// Messages of the exchange, each behind its length.
    Bare(Exchange),
}

/// What a request came to.
struct Taken {
    /// What is sent.
    answer: Vec<u8>,
    then: Next,
}

enum Next {
    Await(Awaited),
    Serve(UserName),
    /// The connection ends, since this was refused.
    End(Refusal),
}

/// Takes requests until the client has proved who it is; false when it left, or the server stops.
///
/// # Errors
/// Those of the connection, and the refusal with which it ends.
pub(super) async fn authenticate(
    connection: &Connection<'_>,
    authenticator: &Authenticator,
    output: &Output<'_>,
    input: &mut Input,
) -> Result<bool, ConnectionError> {
    let shared = connection.shared;
    let mut awaited = Awaited::Handshake;
    let mut requests = 0;
    loop {
        let min_bytes = match awaited {
            Awaited::Bare(_) => 0,
            _ => MIN_REQUEST_BYTES,
        };
        let bytes = match front(input, min_bytes..=MAX_UNPROVED_BYTES) {
            Ok(Front::Whole { bytes }) => bytes,
            Ok(Front::Part { needed_bytes }) => {
                let (stream, shutdown) = (connection.stream, connection.shutdown);
                match input.fill(stream, needed_bytes, shared, shutdown).await? {
                    Filled::More => continue,
                    Filled::Eof | Filled::Stopping => return Ok(false),
                }
            }
            Err(refusal) => return Err(refused(connection, refusal)),
        };
        Counters::increment(&shared.counters.requests);
        requests += 1;
        if requests > MAX_REQUESTS {
            let message = format!("{requests} requests of a client that has not proved who it is");
            return Err(refused(connection, unauthenticated(message)));
        }
        let request = &input.unread()[LENGTH_BYTES..bytes];
        let taken = match awaited {
            Awaited::Bare(exchange) => bare(exchange, request).await,
            awaited => take(authenticator, awaited, request).await,
        };
        let Taken { answer, then } = taken.map_err(|refusal| refused(connection, refusal))?;
        input.consume(bytes);
        output.send(&answer, Then::Nothing).await?;
        match then {
            Next::Await(next) => awaited = next,
            Next::Serve(user) => {
                debug!(peer = %connection.peer, %user, "logged in");
                return Ok(true);
            }
            Next::End(refusal) => {
                tokio::time::sleep(END_AFTER).await;
                return Err(refused(connection, refusal));
            }
        }
    }
}

fn refused(connection: &Connection<'_>, refusal: Refusal) -> ConnectionError {
    connection.shared.counters.refuse(refusal.kind, 1);
    refusal.into()
}

fn unauthenticated(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorKind::Unauthenticated, message)
}

/// Does what a request asks.
///
/// # Errors
/// A [`Refusal`] that is not answered: the request is malformed, or for what is not served yet.
async fn take(
    authenticator: &Authenticator,
    awaited: Awaited,
    request: &[u8],
) -> Result<Taken, Refusal> {
    let request = match parse(request)? {
        Parsed::Request(request) => request,
        Parsed::UnknownApiVersions { correlation_id } => {
            return Ok(Taken {
                answer: versions::answer_unknown(correlation_id)?,
                then: Next::Await(awaited),
            });
        }
    };
    match (request.head.api.key, awaited) {
        (ApiKey::ApiVersions, awaited) => Ok(Taken {
            answer: versions::answer(&request)?,
            then: Next::Await(awaited),
        }),
        (ApiKey::SaslHandshake, Awaited::Handshake) => handshake(authenticator, &request).await,
        (ApiKey::SaslAuthenticate, Awaited::Requests(exchange)) => step(exchange, &request).await,
        (ApiKey::SaslHandshake | ApiKey::SaslAuthenticate, _) => Ok(Taken {
            answer: out_of_place(&request)?,
            then: Next::End(unauthenticated("a step of SASL out of its order")),
        }),
        (key, _) => {
            let message = format!(
                "a Kafka request for {key:?} before the client has proved who it is (security.protocol=SASL_PLAINTEXT)"
            );
            Err(unauthenticated(message))
        }
    }
}

async fn handshake(authenticator: &Authenticator, request: &Request<'_>) -> Result<Taken, Refusal> {
    let asked: SaslHandshakeRequest = request.decode()?;
    let exchange = authenticator.exchange(&asked.mechanism).await;
    let error_code = match exchange {
        Some(_) => code::NONE,
        None => code::UNSUPPORTED_SASL_MECHANISM,
    };
    let body = SaslHandshakeResponse::default()
        .with_error_code(error_code)
        .with_mechanisms(MECHANISMS.map(StrBytes::from_static_str).to_vec());
    let answer = message(&request.head, &body)?;
    let then = match exchange {
        Some(exchange) if request.head.version == 0 => Next::Await(Awaited::Bare(exchange)),
        Some(exchange) => Next::Await(Awaited::Requests(exchange)),
        None => Next::End(unauthenticated("a SASL mechanism that is not here")),
    };
    Ok(Taken { answer, then })
}

async fn step(mut exchange: Exchange, request: &Request<'_>) -> Result<Taken, Refusal> {
    let asked: SaslAuthenticateRequest = request.decode()?;
    let body = SaslAuthenticateResponse::default().with_error_message(None);
    let (body, then) = match exchange.step(&asked.auth_bytes).await {
        Step::Continue(message) => (
            body.with_auth_bytes(message.into()),
            Next::Await(Awaited::Requests(exchange)),
        ),
        Step::Done { user, message } => (body.with_auth_bytes(message.into()), Next::Serve(user)),
        Step::Refused => (
            body.with_error_code(code::SASL_AUTHENTICATION_FAILED)
                .with_error_message(Some(StrBytes::from_static_str(NO_SUCH_USER))),
            Next::End(unauthenticated(NO_SUCH_USER)),
        ),
    };
    let answer = message(&request.head, &body)?;
    Ok(Taken { answer, then })
}

/// The answer to a step where none is due: before its turn, where nobody is asked who they are, or after all.
///
/// # Errors
/// A [`Refusal`]: the request is malformed.
pub(super) fn out_of_place(request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    match request.head.api.key {
        ApiKey::SaslHandshake => {
            let _: SaslHandshakeRequest = request.decode()?;
            let body = SaslHandshakeResponse::default().with_error_code(code::ILLEGAL_SASL_STATE);
            message(&request.head, &body)
        }
        _ => {
            let _: SaslAuthenticateRequest = request.decode()?;
            let why = "nobody is asked here who they are, or not now";
            let body = SaslAuthenticateResponse::default()
                .with_error_code(code::ILLEGAL_SASL_STATE)
                .with_error_message(Some(StrBytes::from_static_str(why)));
            message(&request.head, &body)
        }
    }
}

/// A message that came bare; a refusal is the end of the connection.
async fn bare(mut exchange: Exchange, message: &[u8]) -> Result<Taken, Refusal> {
    let (message, then) = match exchange.step(message).await {
        Step::Continue(message) => (message, Next::Await(Awaited::Bare(exchange))),
        Step::Done { user, message } => (message, Next::Serve(user)),
        Step::Refused => return Err(unauthenticated(NO_SUCH_USER)),
    };
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut answer = length.to_be_bytes().to_vec();
    answer.extend_from_slice(&message);
    Ok(Taken { answer, then })
}
