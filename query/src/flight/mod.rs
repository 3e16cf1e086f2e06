//! The Flight SQL service.
//!
//! What drivers call and how they are answered: metadata commands ([`metadata`], [`sql_info`], [`xdbc_types`]),
//! statements and prepared statements ([`service`], [`rows`]), actions ([`actions`]). The service holds no state of a client: a
//! ticket and a prepared statement's handle are the statement itself and the values bound to it ([`ticket`], [`bind`]), planned
//! again when they are used. A ticket also has the id by which its query can be cancelled.
//!
//! Who asks is not looked at here: a handshake answers the token that it is given for its caller ([`BearerToken`]), or one for everybody.

mod actions;
mod bind;
mod caller;
mod handshake;
mod metadata;
mod rows;
mod service;
mod sql_info;
mod ticket;
mod xdbc_types;

use std::convert::Infallible;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use tonic::body::Body;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::NamedService;

use crate::QueryEngine;
pub use handshake::BearerToken;
use service::FlightSqlServer;

const GET_SCHEMA: &str = "/arrow.flight.protocol.FlightService/GetSchema";
const GET_FLIGHT_INFO: &str = "/arrow.flight.protocol.FlightService/GetFlightInfo";

/// The Flight SQL service: a tonic service, cheap to clone.
///
/// `GetSchema`, which arrow-flight's Flight SQL trait leaves out, is answered as `GetFlightInfo`: both take a descriptor,
/// and a `SchemaResult` is a message whose only field, the schema, is field 1 of a `FlightInfo` too.
#[derive(Clone)]
pub struct FlightSql {
    server: FlightServiceServer<FlightSqlServer>,
}

impl FlightSql {
    pub(crate) fn new(engine: Arc<QueryEngine>) -> Self {
        Self {
            server: FlightServiceServer::new(FlightSqlServer::new(engine)),
        }
    }
}

impl Debug for FlightSql {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlightSql").finish_non_exhaustive()
    }
}

impl Service<http::Request<Body>> for FlightSql {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.server, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if request.uri().path() == GET_SCHEMA {
            *request.uri_mut() = Uri::from_static(GET_FLIGHT_INFO);
        }
        self.server.call(request)
    }
}

impl NamedService for FlightSql {
    const NAME: &'static str = <FlightServiceServer<FlightSqlServer> as NamedService>::NAME;
}
