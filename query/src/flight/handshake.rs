//! The handshake: basic or bearer in, a bearer token out. Whoever guards the service has looked at what came in, and says which token
//! goes out.

use arrow_flight::HandshakeResponse;
use bytes::Bytes;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

/// What a handshake is to answer, in the extensions of its request: put there by whoever found out who asks.
#[derive(Debug, Clone)]
pub struct BearerToken(pub String);

/// The token of everybody while authentication is off.
const ANONYMOUS: &str = "Bearer anonymous";

/// The answer to a handshake: the token stands in the `authorization` header, where drivers look, and in the payload.
pub(super) fn answer<T>(request: &Request<T>) -> Result<Response<HandshakeResponse>, Status> {
    let bearer = match request.extensions().get::<BearerToken>() {
        Some(BearerToken(token)) => MetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|_| Status::internal("the token is no text of a header"))?,
        None => bearer(request.metadata())?,
    };
    let token = bearer
        .to_str()
        .ok()
        .and_then(|bearer| bearer.split_once(' '))
        .map_or("", |(_, token)| token)
        .to_owned();
    let mut response = Response::new(HandshakeResponse {
        protocol_version: 0,
        payload: Bytes::from(token),
    });
    response.metadata_mut().insert("authorization", bearer);
    Ok(response)
}

/// A bearer token is echoed; a name and password, or nothing at all, gets the anonymous one.
fn bearer(request: &MetadataMap) -> Result<MetadataValue<Ascii>, Status> {
    let anonymous = || MetadataValue::from_static(ANONYMOUS);
    let Some(value) = request.get("authorization") else {
        return Ok(anonymous());
    };
    let scheme = value
        .to_str()
        .ok()
        .and_then(|value| value.split(' ').next())
        .unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "basic" => Ok(anonymous()),
        "bearer" => Ok(value.clone()),
        _ => Err(Status::unauthenticated(
            "the authorization header must be `Basic ...` or `Bearer ...`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: Option<&'static str>) -> Result<String, tonic::Code> {
        let mut request = Request::new(());
        if let Some(header) = header {
            let value = MetadataValue::from_static(header);
            request.metadata_mut().insert("authorization", value);
        }
        let response = answer(&request).map_err(|status| status.code())?;
        let header = response
            .metadata()
            .get("authorization")
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert_eq!(
            header,
            format!(
                "Bearer {}",
                String::from_utf8(response.get_ref().payload.to_vec()).unwrap()
            )
        );
        Ok(header)
    }

    #[test]
    fn basic_and_nothing_get_a_token_and_bearer_is_echoed() {
        assert_eq!(token(None).unwrap(), "Bearer anonymous");
        assert_eq!(token(Some("Basic dTpw")).unwrap(), "Bearer anonymous");
        assert_eq!(token(Some("Bearer mine")).unwrap(), "Bearer mine");
        assert_eq!(token(Some("Digest x")), Err(tonic::Code::Unauthenticated));
    }
}
