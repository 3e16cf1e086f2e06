//! Proving who one is, before anything else is asked on a connection.

use std::io;
use std::sync::Arc;

use basalt_auth::{ClientExchange, ServerUnproved};
use basalt_proto::session::{
    AuthenticateResponse, ErrorResponse, RESPONSE_HEADER_BYTES, Request, ResponseBody as _,
    ResponseHeader, STATUS_OK, SessionError,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::Credentials;
use crate::error::ConnectError;

/// Bytes of a response in an exchange.
const MAX_RESPONSE_BYTES: u32 = 64 << 10;

pub(crate) async fn authenticate(
    stream: &mut TcpStream,
    address: &str,
    credentials: &Credentials,
) -> Result<(), ConnectError> {
    let unproved = |source| ConnectError::ServerUnproved {
        address: address.to_owned(),
        source,
    };
    let (mut exchange, mut message) =
        ClientExchange::start(&credentials.user, &credentials.password);
    loop {
        let answer = step(stream, &message)
            .await
            .map_err(|source| ConnectError::Unreachable {
                address: address.to_owned(),
                source: Arc::new(source),
            })?;
        let answer = answer.map_err(|response| ConnectError::NotLoggedIn {
            address: address.to_owned(),
            response,
        })?;
        // Milliseconds, while which nothing else of this connection could go on.
        let stepped = exchange.step(&answer.message).map_err(unproved)?;
        match stepped {
            Some(next) if !answer.done => message = next,
            None if answer.done => return Ok(()),
            // One side is done and the other is not.
            _ => return Err(unproved(ServerUnproved)),
        }
    }
}

async fn step(
    stream: &mut TcpStream,
    message: &[u8],
) -> io::Result<Result<AuthenticateResponse, ErrorResponse>> {
    let garbled = |error: SessionError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut out = Vec::new();
    let mechanism = ClientExchange::MECHANISM;
    Request::Authenticate { mechanism, message }.encode_into(0, &mut out);
    stream.write_all(&out).await?;
    let mut head = [0; RESPONSE_HEADER_BYTES];
    stream.read_exact(&mut head).await?;
    let head = ResponseHeader::decode(&head, MAX_RESPONSE_BYTES).map_err(garbled)?;
    let mut body = vec![0; head.body_bytes as usize];
    stream.read_exact(&mut body).await?;
    match head.status {
        STATUS_OK => AuthenticateResponse::decode(&body).map(Ok),
        status => ErrorResponse::decode(status, &body).map(Err),
    }
    .map_err(garbled)
}
