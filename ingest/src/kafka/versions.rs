//! ApiVersions: what is served, in the layout of any version that a client may ask in.

use kafka_protocol::messages::ApiVersionsResponse;
use kafka_protocol::messages::api_versions_response::ApiVersion;

use super::api::{APIS, Api};
use super::error::code;
use super::request::{Head, Request};
use super::response::message;
use crate::error::Refusal;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest};

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn answer(request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: ApiVersionsRequest = request.decode()?;
    let is_name = |text: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.".contains(byte);
        let bytes = text.as_bytes();
        edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
    };
    let named = request.head.version < 3
        || (is_name(&asked.client_software_name) && is_name(&asked.client_software_version));
    let error_code = if named {
        code::NONE
    } else {
        code::INVALID_REQUEST
    };
    let body = ApiVersionsResponse::default()
        .with_error_code(error_code)
        .with_api_keys(APIS.iter().map(entry).collect());
    message(&request.head, &body)
}

/// The answer to a version that is not served: in the layout of version 0, with the range that is.
///
/// # Errors
/// A [`Refusal`] only by a defect.
pub(super) fn answer_unknown(correlation_id: i32) -> Result<Vec<u8>, Refusal> {
    let own = |api: &&Api| api.key == ApiKey::ApiVersions;
    let body = ApiVersionsResponse::default()
        .with_error_code(code::UNSUPPORTED_VERSION)
        .with_api_keys(APIS.iter().filter(own).map(entry).collect());
    let Some(api) = Api::of(ApiKey::ApiVersions as i16) else {
        return Err(Refusal::new(
            basalt_proto::ErrorKind::Internal,
            "the table of APIs lacks ApiVersions",
        ));
    };
    let head = Head {
        api,
        version: 0,
        correlation_id,
    };
    message(&head, &body)
}

fn entry(api: &Api) -> ApiVersion {
    ApiVersion::default()
        .with_api_key(api.key as i16)
        .with_min_version(api.announced_first())
        .with_max_version(api.last)
}
