//! HTTP on the shared port: `/healthz`, `/metrics` and Flight SQL, over HTTP/1 and HTTP/2 without TLS.
//!
//! The listener hands over a socket whose first byte is a letter, with nothing read from it.

mod guard;
mod io;
mod metrics;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use basalt_auth::Authenticator;
use basalt_ingest::{HttpHandler, ShutdownSignal};
use basalt_query::{FlightSql, QueryEngine};
use futures::future::BoxFuture;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tonic::server::NamedService as _;
use tonic::transport::server::TcpConnectInfo;
use tower::ServiceExt as _;

use guard::{Guard, Visitor};
use io::Counted;
pub(crate) use metrics::Metrics;

/// Bytes that tell HTTP/1 from HTTP/2: the length of the latter's preface.
const PREFACE_BYTES: u64 = 24;
/// A vanished peer is noticed after at most twice this time.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// HTTP/2 windows: a query's rows fill the pipe without waiting for a window update every 64 KiB.
const WINDOW_BYTES: u32 = 4 << 20;

/// Serves HTTP connections.
pub(crate) struct Http {
    router: Router,
    opening_timeout: Duration,
    /// So that a connection of nobody's does not stay.
    asks_who_calls: bool,
}

impl Http {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        engine: &Arc<QueryEngine>,
        opening_timeout_ms: u64,
        authenticator: Option<Authenticator>,
    ) -> Self {
        let flight = engine
            .flight_service()
            .map_request(|request: Request| request.map(tonic::body::Body::new));
        let calls = Router::new()
            .route_service(&format!("/{}/{{method}}", FlightSql::NAME), flight)
            .layer(from_fn_with_state(Arc::clone(&metrics), count_call));
        let mut told = Router::new()
            .route("/metrics", get(exposition))
            .with_state(Arc::clone(&metrics))
            .merge(calls);
        let opening_timeout = Duration::from_millis(opening_timeout_ms);
        let asks_who_calls = authenticator.is_some();
        if let Some(authenticator) = authenticator {
            let guard = Guard {
                authenticator,
                metrics,
                patience: opening_timeout,
            };
            told = told.layer(from_fn_with_state(guard, guard::guard));
        }
        let router = Router::new()
            .route("/", get(root))
            .route("/healthz", get(healthz))
            .merge(told);
        Self {
            router,
            opening_timeout,
            asks_who_calls,
        }
    }
}

impl HttpHandler for Http {
    fn serve(&self, stream: TcpStream, shutdown: ShutdownSignal) -> BoxFuture<'static, ()> {
        let router = self.router.clone();
        let (opening_timeout, asks_who_calls) = (self.opening_timeout, self.asks_who_calls);
        Box::pin(async move {
            // Small answers must not wait for more to come; a socket that refuses this still works.
            let _ = stream.set_nodelay(true);
            if let Err(error) =
                serve_connection(stream, router, opening_timeout, asks_who_calls, shutdown).await
            {
                tracing::debug!(error = %error, "an HTTP connection ended with an error");
            }
        })
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    opening_timeout: Duration,
    asks_who_calls: bool,
    shutdown: ShutdownSignal,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let caller = TcpConnectInfo {
        local_addr: stream.local_addr().ok(),
        remote_addr: stream.peer_addr().ok(),
    };
    let visitor = Visitor::default();
    let router = router
        .layer(Extension(caller))
        .layer(Extension(visitor.clone()));
    let (stream, received) = Counted::new(stream);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    // While it is unknown whether this is HTTP/1 or 2, neither's timeout runs: `P` and then silence would stay for ever. And so would
    // a stranger.
    let silent = async {
        tokio::time::sleep(opening_timeout).await;
        let is_silent = received.total() < PREFACE_BYTES;
        if !is_silent && (!asks_who_calls || visitor.is_logged_in()) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        result = connection.as_mut() => return result,
        () = silent => return Err("nothing was asked in time, or by nobody who is known".into()),
        () = shutdown.wait() => {}
    }
    // Requests in progress end; the grace time of the server cuts those that do not.
    connection.as_mut().graceful_shutdown();
    connection.await
}

async fn root() -> &'static str {
    concat!(
        "Basalt ",
        env!("CARGO_PKG_VERSION"),
        "\nThis port speaks Kafka's protocol, the native one, Arrow Flight SQL (gRPC), and HTTP: /healthz, /metrics\n"
    )
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn exposition(State(metrics): State<Arc<Metrics>>) -> Response {
    // Looks at every partition, which may touch the disk.
    match tokio::task::spawn_blocking(move || metrics.to_text()).await {
        Ok(Ok(text)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn count_call(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    metrics.count_flight_call(request.uri().path());
    next.run(request).await
}
