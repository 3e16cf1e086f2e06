//! Who asks over HTTP: a name and a password, or the token that such a one was given, in the `authorization` header.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use basalt_auth::Authenticator;
use basalt_query::BearerToken;
use tonic::Status;
use tonic::transport::server::TcpConnectInfo;

use super::Metrics;

/// What is known of whoever is on a connection, shared by all its requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Visitor(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// A request of it came from a user.
    logged_in: AtomicBool,
    /// The log has a line on a request that did not.
    told: AtomicBool,
}

impl Visitor {
    pub(super) fn is_logged_in(&self) -> bool {
        self.0.logged_in.load(Ordering::Relaxed)
    }
}

/// What asks who calls.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) authenticator: Authenticator,
    pub(super) metrics: Arc<Metrics>,
    /// For looking at one password, the wait for a turn at it included.
    pub(super) patience: Duration,
}

/// Lets users through, with the token that a handshake is to answer.
pub(super) async fn guard(
    State(guard): State<Guard>,
    Extension(visitor): Extension<Visitor>,
    Extension(caller): Extension<TcpConnectInfo>,
    mut request: Request,
    next: Next,
) -> Response {
    let shown = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let identified = guard.authenticator.identify(shown);
    match tokio::time::timeout(guard.patience, identified).await {
        Ok(Some(identity)) => {
            visitor.0.logged_in.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(BearerToken(identity.token));
            next.run(request).await
        }
        Ok(None) => {
            guard.metrics.count_stranger();
            if !visitor.0.told.swap(true, Ordering::Relaxed) {
                tracing::info!(peer = ?caller.remote_addr, "an HTTP request was refused: not authenticated");
            }
            let why = "log in: a user and a password that this server knows are asked for";
            refusal(
                &request,
                StatusCode::UNAUTHORIZED,
                Status::unauthenticated(why),
            )
        }
        Err(_) => {
            let why = "too many passwords are being looked at: try again, or show a token";
            refusal(
                &request,
                StatusCode::SERVICE_UNAVAILABLE,
                Status::unavailable(why),
            )
        }
    }
}

fn refusal(request: &Request, code: StatusCode, status: Status) -> Response {
    let is_grpc = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        return status.into_http::<Body>();
    }
    let asks = [(header::WWW_AUTHENTICATE, "Basic realm=\"basalt\"")];
    (code, asks, format!("{}\n", status.message())).into_response()
}
