//! Flight SQL's calls, each a few lines over the engine.

use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any,
    CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes,
    CommandGetTables, CommandGetXdbcTypeInfo, CommandPreparedStatementQuery,
    CommandPreparedStatementUpdate, CommandStatementIngest, CommandStatementQuery,
    CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo,
    TicketStatementQuery,
};
use arrow_flight::{
    Action, ActionType, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, IpcMessage, SchemaAsIpc, Ticket,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::caller::Caller;
use super::metadata::MetadataCommand;
use super::{actions, bind, handshake, rows, ticket};
use crate::QueryEngine;
use crate::parameters::Query;

type DoGetStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;
type DoGetResponse = Result<Response<DoGetStream>, Status>;
type InfoResponse = Result<Response<FlightInfo>, Status>;

/// Answers Flight SQL from an engine.
pub(super) struct FlightSqlServer {
    engine: Arc<QueryEngine>,
}

impl FlightSqlServer {
    pub(super) fn new(engine: Arc<QueryEngine>) -> Self {
        Self { engine }
    }

    async fn rows_of<T>(&self, query: Query, request: &Request<T>) -> DoGetResponse {
        let Caller {
            client,
            timeout,
            sees_uncommitted,
        } = Caller::of(request)?;
        let query = Query {
            client,
            timeout,
            sees_uncommitted,
            ..query
        };
        let rows = self.engine.run(query).await;
        let rows = rows.map_err(|error| error.status())?;
        Ok(Response::new(Box::pin(rows::encoded(&self.engine, rows)?)))
    }

    /// Announces the rows of `query` under an id of their own.
    async fn announce_query(
        &self,
        query: Query,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        let id = self.engine.next_id();
        let query = Query {
            id: Some(id),
            ..query
        };
        let statement = TicketStatementQuery {
            statement_handle: ticket::encode(&query)?,
        };
        let schema = self.described(query).await?;
        let announced = announce(&schema, &statement, request)?;
        Ok(announced.map(|info| info.with_app_metadata(rows::metadata(&id.to_string(), None))))
    }

    async fn described(&self, query: Query) -> Result<SchemaRef, Status> {
        let schema = self.engine.describe(query).await;
        schema.map_err(|error| error.status())
    }

    /// Runs a statement that changes topics. It has changed no rows.
    async fn update(&self, query: Query) -> Result<i64, Status> {
        let changes = self.engine.changes(&query);
        if !changes.map_err(|error| error.status())? {
            return Err(read_only());
        }
        let rows = self.engine.run(query).await;
        let ended = rows
            .map_err(|error| error.status())?
            .try_collect::<Vec<_>>();
        ended.await.map_err(|error| error.status())?;
        Ok(0)
    }

    async fn rows_of_metadata(&self, command: impl MetadataCommand) -> DoGetResponse {
        Ok(Response::new(encoded(command.rows(&self.engine).await?)))
    }
}

fn encoded(batch: RecordBatch) -> DoGetStream {
    let schema = batch.schema();
    let data = FlightDataEncoderBuilder::new()
        .with_schema(schema)
        .build(stream::iter([Ok(batch)]));
    Box::pin(data.map_err(Status::from))
}

/// Announces rows of `schema`, to be had from the one endpoint with a ticket that is `message`.
fn announce(
    schema: &Schema,
    message: &impl ProstMessageExt,
    request: Request<FlightDescriptor>,
) -> InfoResponse {
    let ticket = Ticket::new(message.as_any().encode_to_vec());
    let info = FlightInfo::new()
        .try_with_schema(schema)
        .map_err(|error| Status::internal(error.to_string()))?
        .with_endpoint(FlightEndpoint::new().with_ticket(ticket))
        .with_descriptor(request.into_inner());
    Ok(Response::new(info))
}

fn announce_metadata(
    command: &impl MetadataCommand,
    request: Request<FlightDescriptor>,
) -> InfoResponse {
    announce(&command.schema(), command, request)
}

fn ipc_schema(schema: &Schema) -> Result<Bytes, Status> {
    let message = IpcMessage::try_from(SchemaAsIpc::new(schema, &Default::default()));
    message
        .map(|IpcMessage(bytes)| bytes)
        .map_err(|error| Status::internal(error.to_string()))
}

fn read_only() -> Status {
    Status::invalid_argument(
        "only statements that read, CREATE TABLE, ALTER TABLE and DROP TABLE are allowed: records are produced over the native protocol; \
         what reads is executed as a query, also for many rows of values",
    )
}

#[tonic::async_trait]
impl FlightSqlService for FlightSqlServer {
    type FlightService = Self;

    async fn do_handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<
        Response<Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>>,
        Status,
    > {
        let answer = handshake::answer(&request)?;
        Ok(answer.map(|message| stream::iter([Ok(message)]).boxed() as _))
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        self.announce_query(Query::plain(&query.query), request)
            .await
    }

    async fn do_get_statement(
        &self,
        statement: TicketStatementQuery,
        request: Request<Ticket>,
    ) -> DoGetResponse {
        let query = ticket::decode(&statement.statement_handle)?;
        self.rows_of(query, &request).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        _request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let handle = ticket::encode(&Query::plain(&query.query))?;
        let description = self
            .engine
            .prepare(query.query)
            .await
            .map_err(|error| error.status())?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle,
            dataset_schema: ipc_schema(&description.schema)?,
            parameter_schema: ipc_schema(&description.parameters)?,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        _query: ActionClosePreparedStatementRequest,
        _request: Request<Action>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        let prepared = ticket::decode(&query.prepared_statement_handle)?;
        self.announce_query(prepared, request).await
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> DoGetResponse {
        let prepared = ticket::decode(&query.prepared_statement_handle)?;
        self.rows_of(prepared, &request).await
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let prepared = ticket::decode(&query.prepared_statement_handle)?;
        let bound = bind::bind(prepared, request.into_inner()).await?;
        Ok(DoPutPreparedStatementResult {
            prepared_statement_handle: Some(ticket::encode(&bound)?),
        })
    }

    async fn do_put_statement_update(
        &self,
        command: CommandStatementUpdate,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        self.update(Query::plain(&command.query)).await
    }

    async fn do_put_statement_ingest(
        &self,
        _command: CommandStatementIngest,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        Err(read_only())
    }

    async fn do_put_prepared_statement_update(
        &self,
        command: CommandPreparedStatementUpdate,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        self.update(ticket::decode(&command.prepared_statement_handle)?)
            .await
    }

    async fn do_action_fallback(
        &self,
        request: Request<Action>,
    ) -> Result<Response<<Self as FlightService>::DoActionStream>, Status> {
        let body = actions::answer(&self.engine, &request.into_inner())?;
        let result = arrow_flight::Result { body };
        Ok(Response::new(stream::iter([Ok(result)]).boxed()))
    }

    async fn list_custom_actions(&self) -> Option<Vec<Result<ActionType, Status>>> {
        Some(actions::types().into_iter().map(Ok).collect())
    }

    async fn do_action_cancel_query(
        &self,
        query: ActionCancelQueryRequest,
        _request: Request<Action>,
    ) -> Result<ActionCancelQueryResult, Status> {
        let info = FlightInfo::decode(query.info)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        // The values of both enumerations are the same.
        let result = actions::cancel(&self.engine, &info)? as i32;
        Ok(ActionCancelQueryResult { result })
    }

    async fn do_get_fallback(&self, _request: Request<Ticket>, message: Any) -> DoGetResponse {
        Err(Status::unimplemented(format!(
            "there are no rows for a ticket of {:?}",
            message.type_url
        )))
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_catalogs(
        &self,
        query: CommandGetCatalogs,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_schemas(
        &self,
        query: CommandGetDbSchemas,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_tables(
        &self,
        query: CommandGetTables,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_sql_info(
        &self,
        query: CommandGetSqlInfo,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_primary_keys(
        &self,
        query: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_primary_keys(
        &self,
        query: CommandGetPrimaryKeys,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_exported_keys(
        &self,
        query: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_exported_keys(
        &self,
        query: CommandGetExportedKeys,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_imported_keys(
        &self,
        query: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_imported_keys(
        &self,
        query: CommandGetImportedKeys,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_cross_reference(
        &self,
        query: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_cross_reference(
        &self,
        query: CommandGetCrossReference,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> InfoResponse {
        announce_metadata(&query, request)
    }

    async fn do_get_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        _request: Request<Ticket>,
    ) -> DoGetResponse {
        self.rows_of_metadata(query).await
    }

    async fn register_sql_info(&self, _id: i32, _result: &SqlInfo) {}
}
