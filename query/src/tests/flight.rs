//! The Flight SQL service, called over a real connection.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Schema, UInt32Type, UnionMode};
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes,
    CommandGetTables, CommandGetXdbcTypeInfo, CommandPreparedStatementQuery, CommandStatementQuery,
    ProstMessageExt, SqlInfo,
};
use arrow_flight::{Action, FlightDescriptor, FlightInfo, IpcMessage, Ticket};
use basalt_proto::Frame;
use futures::TryStreamExt;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::codegen::tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};

use super::{Fixture, eventually, rows_of};

type Client = FlightSqlServiceClient<Channel>;

pub(super) struct Serving {
    pub(super) fixture: Fixture,
    pub(super) client: Client,
    server: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(super) async fn serving() -> Serving {
    let fixture = Fixture::new().await;
    let Other { client, server } = serving_over(&fixture).await;
    Serving {
        fixture,
        client,
        server,
    }
}

/// A server over a fixture's engine, and a client of it.
pub(super) struct Other {
    pub(super) client: Client,
    server: JoinHandle<()>,
}

pub(super) async fn serving_over(fixture: &Fixture) -> Other {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = fixture.engine.flight_service();
    let server = tokio::spawn(async move {
        Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener))
            .await
            .unwrap();
    });
    let channel = Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    Other {
        client: FlightSqlServiceClient::new(channel),
        server,
    }
}

impl Serving {
    async fn announce(
        &mut self,
        command: &impl ProstMessageExt,
    ) -> Result<FlightInfo, tonic::Status> {
        let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        Ok(self
            .client
            .inner_mut()
            .get_flight_info(descriptor)
            .await?
            .into_inner())
    }

    pub(super) async fn fetch(&mut self, info: &FlightInfo) -> (Arc<Schema>, Vec<RecordBatch>) {
        assert_eq!(info.endpoint.len(), 1);
        assert!(info.endpoint[0].location.is_empty());
        let mut rows = self
            .client
            .do_get(info.endpoint[0].ticket.clone().unwrap())
            .await
            .unwrap();
        let mut batches = Vec::new();
        while let Some(batch) = rows.try_next().await.unwrap() {
            batches.push(batch);
        }
        (
            Arc::clone(rows.schema().expect("a schema even with no rows")),
            batches,
        )
    }

    /// Announced by GetFlightInfo, answered by GetSchema and streamed: one schema, byte for byte.
    pub(super) async fn same_schemas(
        &mut self,
        command: &impl ProstMessageExt,
    ) -> Vec<RecordBatch> {
        let info = self.announce(command).await.unwrap();
        let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        let schema = self
            .client
            .inner_mut()
            .get_schema(descriptor)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(schema.schema, info.schema, "GetSchema");
        let announced = Schema::try_from(IpcMessage(info.schema.clone())).unwrap();
        let (streamed, batches) = self.fetch(&info).await;
        assert_eq!(*streamed, announced);
        let IpcMessage(bytes) = IpcMessage::try_from(arrow_flight::SchemaAsIpc::new(
            &streamed,
            &Default::default(),
        ))
        .unwrap();
        assert_eq!(bytes, info.schema, "byte for byte");
        assert!(batches.iter().all(|batch| *batch.schema() == announced));
        batches
    }

    async fn query(&mut self, sql: &str) -> Vec<RecordBatch> {
        self.same_schemas(&CommandStatementQuery {
            query: sql.to_owned(),
            transaction_id: None,
        })
        .await
    }
}

#[tokio::test]
async fn pub_25_every_command_streams_the_schema_it_announced() {
    let mut serving = serving().await;
    serving.fixture.create("flights", 1, 1 << 20).await;
    serving
        .fixture
        .append("flights", 0, &[Frame::record(1, b"k", br#"{"a":[1]}"#)])
        .await;
    serving.same_schemas(&CommandGetCatalogs {}).await;
    serving.same_schemas(&CommandGetDbSchemas::default()).await;
    serving.same_schemas(&CommandGetTables::default()).await;
    serving
        .same_schemas(&CommandGetTables {
            include_schema: true,
            ..Default::default()
        })
        .await;
    serving
        .same_schemas(&CommandGetTables {
            table_name_filter_pattern: Some("none".to_owned()),
            ..Default::default()
        })
        .await;
    serving.same_schemas(&CommandGetTableTypes {}).await;
    serving
        .same_schemas(&CommandGetSqlInfo { info: vec![] })
        .await;
    serving
        .same_schemas(&CommandGetSqlInfo { info: vec![8] })
        .await;
    serving
        .same_schemas(&CommandGetXdbcTypeInfo { data_type: None })
        .await;
    serving
        .same_schemas(&CommandGetXdbcTypeInfo {
            data_type: Some(12),
        })
        .await;
    serving
        .same_schemas(&CommandGetPrimaryKeys::default())
        .await;
    serving
        .same_schemas(&CommandGetExportedKeys::default())
        .await;
    serving
        .same_schemas(&CommandGetImportedKeys::default())
        .await;
    serving
        .same_schemas(&CommandGetCrossReference::default())
        .await;
    for cold in [false, true] {
        if cold {
            serving.fixture.cool("flights").await;
        }
        for sql in [
            "SELECT * FROM flights",
            "SELECT * FROM flights WHERE _offset > 5",
            "SELECT count(*), max(_offset), avg(_offset), count(DISTINCT _payload) FROM flights",
            "SELECT _payload->'a', _payload->>'a', json_get_json(_payload, 'a'), json_get_array(_payload, 'a') FROM flights",
            "SELECT 'a', 1, NULL, now(), DATE '2013-01-01', INTERVAL '1 day', 1.5::decimal(10,2), X'00', true, [1, 2], named_struct('a', 1)",
            "SELECT arrow_cast('a', 'Dictionary(Int32, Utf8)'), arrow_cast('a', 'Utf8View'), arrow_cast(X'61', 'BinaryView')",
            "SELECT arrow_cast([1], 'LargeList(Int64)'), array_agg(arrow_cast('a', 'Utf8View')) FROM flights",
            "SELECT * FROM sys.segments",
            "SELECT * FROM sys.files",
            "SELECT * FROM sys.groups",
            "SELECT * FROM sys.settings",
            "SELECT * FROM information_schema.columns",
            "SELECT _offset AS o, row_number() OVER (ORDER BY _offset) FROM flights UNION ALL SELECT 1, 2",
            "EXPLAIN SELECT 1",
        ] {
            serving.query(sql).await;
        }
    }
}

/// A schema as `name type`, with `not null` where it says so.
fn fields_of(schema: &Schema) -> Vec<String> {
    let shown = |data_type: &DataType| match data_type {
        DataType::List(item) => format!(
            "list<{}{}>",
            item.data_type(),
            if item.is_nullable() { "" } else { " not null" }
        ),
        other => other.to_string(),
    };
    let fields = schema.fields().iter().map(|field| {
        let null = if field.is_nullable() { "" } else { " not null" };
        format!("{} {}{null}", field.name(), shown(field.data_type()))
    });
    fields.collect()
}

/// Of the commands that tell of foreign keys.
const FOREIGN_KEYS: [&str; 13] = [
    "pk_catalog_name Utf8",
    "pk_db_schema_name Utf8",
    "pk_table_name Utf8 not null",
    "pk_column_name Utf8 not null",
    "fk_catalog_name Utf8",
    "fk_db_schema_name Utf8",
    "fk_table_name Utf8 not null",
    "fk_column_name Utf8 not null",
    "key_sequence Int32 not null",
    "fk_key_name Utf8",
    "pk_key_name Utf8",
    "update_rule UInt8 not null",
    "delete_rule UInt8 not null",
];

/// The fields that the specification names, in its order: FlightSql.proto of Arrow, at each command.
#[tokio::test]
async fn pub_25_metadata_has_the_fields_of_the_specification() {
    async fn fields(serving: &mut Serving, command: &impl ProstMessageExt) -> Vec<String> {
        let info = serving.announce(command).await.unwrap();
        fields_of(&Schema::try_from(IpcMessage(info.schema)).unwrap())
    }
    let mut serving = serving().await;
    let serving = &mut serving;
    assert_eq!(
        fields(serving, &CommandGetCatalogs {}).await,
        ["catalog_name Utf8 not null"]
    );
    assert_eq!(
        fields(serving, &CommandGetDbSchemas::default()).await,
        ["catalog_name Utf8", "db_schema_name Utf8 not null"]
    );
    let mut tables = vec![
        "catalog_name Utf8",
        "db_schema_name Utf8",
        "table_name Utf8 not null",
        "table_type Utf8 not null",
    ];
    assert_eq!(fields(serving, &CommandGetTables::default()).await, tables);
    tables.push("table_schema Binary not null");
    let with_schema = CommandGetTables {
        include_schema: true,
        ..Default::default()
    };
    assert_eq!(fields(serving, &with_schema).await, tables);
    assert_eq!(
        fields(serving, &CommandGetTableTypes {}).await,
        ["table_type Utf8 not null"]
    );
    assert_eq!(
        fields(serving, &CommandGetPrimaryKeys::default()).await,
        [
            "catalog_name Utf8",
            "db_schema_name Utf8",
            "table_name Utf8 not null",
            "column_name Utf8 not null",
            "key_name Utf8",
            "key_sequence Int32 not null",
        ]
    );
    assert_eq!(
        fields(serving, &CommandGetExportedKeys::default()).await,
        FOREIGN_KEYS
    );
    assert_eq!(
        fields(serving, &CommandGetImportedKeys::default()).await,
        FOREIGN_KEYS
    );
    assert_eq!(
        fields(serving, &CommandGetCrossReference::default()).await,
        FOREIGN_KEYS
    );
    assert_eq!(
        fields(serving, &CommandGetXdbcTypeInfo { data_type: None }).await,
        [
            "type_name Utf8 not null",
            "data_type Int32 not null",
            "column_size Int32",
            "literal_prefix Utf8",
            "literal_suffix Utf8",
            "create_params list<Utf8 not null>",
            "nullable Int32 not null",
            "case_sensitive Boolean not null",
            "searchable Int32 not null",
            "unsigned_attribute Boolean",
            "fixed_prec_scale Boolean not null",
            "auto_increment Boolean",
            "local_type_name Utf8",
            "minimum_scale Int32",
            "maximum_scale Int32",
            "sql_data_type Int32 not null",
            "datetime_subcode Int32",
            "num_prec_radix Int32",
            "interval_precision Int32",
        ]
    );
}

#[tokio::test]
async fn pub_25_facts_about_sql_are_a_union_as_in_the_specification() {
    let mut serving = serving().await;
    let info = serving
        .announce(&CommandGetSqlInfo { info: vec![] })
        .await
        .unwrap();
    let schema = Schema::try_from(IpcMessage(info.schema)).unwrap();
    let (name, value) = (schema.field(0), schema.field(1));
    assert_eq!(
        (name.name().as_str(), value.name().as_str()),
        ("info_name", "value")
    );
    assert_eq!(
        (name.data_type(), name.is_nullable()),
        (&DataType::UInt32, false)
    );
    let DataType::Union(members, UnionMode::Dense) = value.data_type() else {
        panic!("{value}");
    };
    assert!(!value.is_nullable());
    let members = members.iter().map(|(id, field)| (id, field.name().clone()));
    let expected = [
        "string_value",
        "bool_value",
        "bigint_value",
        "int32_bitmask",
        "string_list",
        "int32_to_int32_list_map",
    ];
    let expected = (0_i8..).zip(expected.map(str::to_owned));
    assert!(members.eq(expected), "{value}");
}

#[tokio::test]
async fn metadata_says_what_there_is_and_obeys_filters() {
    let mut serving = serving().await;
    for topic in ["a.b", "a_b", "Orders", "orders"] {
        serving.fixture.create(topic, 1, 1 << 20).await;
    }
    assert_eq!(
        rows_of(&serving.same_schemas(&CommandGetCatalogs {}).await),
        ["basalt"]
    );
    let schemas = rows_of(&serving.same_schemas(&CommandGetDbSchemas::default()).await);
    assert_eq!(
        schemas,
        ["basalt|information_schema", "basalt|public", "basalt|sys"]
    );
    assert_eq!(
        rows_of(&serving.same_schemas(&CommandGetTableTypes {}).await),
        ["BASE TABLE", "SYSTEM TABLE", "VIEW"]
    );
    let tables = |catalog: Option<&str>,
                  schema: Option<&str>,
                  table: Option<&str>,
                  types: &[&str]| CommandGetTables {
        catalog: catalog.map(str::to_owned),
        db_schema_filter_pattern: schema.map(str::to_owned),
        table_name_filter_pattern: table.map(str::to_owned),
        table_types: types.iter().map(|kind| (*kind).to_owned()).collect(),
        include_schema: false,
    };
    let topics = [
        "basalt|public|Orders|BASE TABLE",
        "basalt|public|a.b|BASE TABLE",
        "basalt|public|a_b|BASE TABLE",
        "basalt|public|orders|BASE TABLE",
    ];
    let sys = [
        "basalt|sys|cooling|SYSTEM TABLE",
        "basalt|sys|files|SYSTEM TABLE",
        "basalt|sys|groups|SYSTEM TABLE",
        "basalt|sys|partitions|SYSTEM TABLE",
        "basalt|sys|queries|SYSTEM TABLE",
        "basalt|sys|segments|SYSTEM TABLE",
        "basalt|sys|settings|SYSTEM TABLE",
        "basalt|sys|topics|SYSTEM TABLE",
    ];
    for (command, expected) in [
        (tables(None, Some("public"), None, &[]), topics.to_vec()),
        (
            tables(Some("basalt"), Some("pub%"), Some("%"), &[]),
            topics.to_vec(),
        ),
        (tables(Some(""), None, None, &[]), vec![]),
        (tables(Some("other"), None, None, &[]), vec![]),
        (tables(None, None, None, &["BASE TABLE"]), topics.to_vec()),
        (
            tables(None, None, None, &["BASE TABLE", "table"]),
            topics.to_vec(),
        ),
        (tables(None, None, None, &["SYSTEM TABLE"]), sys.to_vec()),
        (
            tables(None, Some("public"), Some("a_b"), &[]),
            vec![topics[1], topics[2]],
        ),
        (
            tables(None, Some("public"), Some("a\\_b"), &[]),
            vec![topics[2]],
        ),
        (tables(None, None, Some("orders"), &[]), vec![topics[3]]),
    ] {
        assert_eq!(
            rows_of(&serving.same_schemas(&command).await),
            expected,
            "{command:?}"
        );
    }
    let command = CommandGetTables {
        include_schema: true,
        ..tables(None, Some("public"), Some("orders"), &[])
    };
    let batches = serving.same_schemas(&command).await;
    let bytes = batches[0].column(4).as_binary::<i32>().value(0).to_vec();
    let columns = Schema::try_from(IpcMessage(bytes.into())).unwrap();
    let streamed = serving.query("SELECT * FROM orders").await;
    assert!(streamed.is_empty() || *streamed[0].schema() == columns);
    assert_eq!(
        columns,
        *serving
            .fixture
            .engine
            .query("SELECT * FROM orders")
            .await
            .unwrap()
            .schema()
    );
}

#[tokio::test]
async fn sql_info_gives_all_or_the_asked_and_leaves_out_the_unknown() {
    let mut serving = serving().await;
    let all = serving
        .same_schemas(&CommandGetSqlInfo { info: vec![] })
        .await;
    let ids: Vec<u32> = all[0]
        .column(0)
        .as_primitive::<UInt32Type>()
        .values()
        .to_vec();
    for id in (0..=5).chain(8..=11).chain(100..=101).chain(500..=576) {
        assert!(ids.contains(&id), "id {id}");
    }
    let some = serving
        .same_schemas(&CommandGetSqlInfo {
            info: vec![0, 8, 12_345],
        })
        .await;
    assert_eq!(
        some[0].column(0).as_primitive::<UInt32Type>().values(),
        &[0, 8]
    );
    let values = some[0].column(1).as_union();
    assert_eq!(values.value(0).as_string::<i32>().value(0), "Basalt");
    // Drivers look for the transaction support in the union's int32 child.
    assert_eq!(values.type_id(1), 3);
    assert_eq!(
        values
            .value(1)
            .as_primitive::<arrow::datatypes::Int32Type>()
            .value(0),
        0
    );
    let none = serving
        .same_schemas(&CommandGetSqlInfo { info: vec![12_345] })
        .await;
    assert_eq!(none.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
    assert_eq!(
        serving
            .client
            .get_sql_info(vec![SqlInfo::FlightSqlServerName])
            .await
            .unwrap()
            .endpoint
            .len(),
        1
    );
}

#[tokio::test]
async fn a_prepared_statement_is_its_text_and_is_never_lost() {
    let mut serving = serving().await;
    serving.fixture.create("t", 1, 1 << 20).await;
    serving
        .fixture
        .append("t", 0, &[Frame::record(1, b"", b"x")])
        .await;
    let mut prepared = serving
        .client
        .prepare("SELECT _offset, _payload FROM t".to_owned(), None)
        .await
        .unwrap();
    assert_eq!(prepared.dataset_schema().unwrap().fields().len(), 2);
    assert_eq!(*prepared.parameter_schema().unwrap(), Schema::empty());
    let announced = prepared.dataset_schema().unwrap().clone();
    for _ in 0..2 {
        let info = prepared.execute().await.unwrap();
        let (schema, batches) = serving.fetch(&info).await;
        assert_eq!(*schema, announced);
        assert_eq!(rows_of(&batches), ["0|78"]);
    }
    prepared.close().await.unwrap();
    let handle = crate_handle("SELECT _offset FROM t");
    let rows = serving
        .same_schemas(&CommandPreparedStatementQuery {
            prepared_statement_handle: handle,
        })
        .await;
    assert_eq!(rows_of(&rows), ["0"]);
}

/// A handle as the service makes them: version 1, then the text.
fn crate_handle(sql: &str) -> bytes::Bytes {
    [&[1], sql.as_bytes()].concat().into()
}

#[tokio::test]
async fn errors_have_their_code_and_cause() {
    let mut serving = serving().await;
    serving.fixture.create("t", 1, 1 << 20).await;
    for (sql, cause) in [
        ("SELEC 1", "SELEC"),
        ("SELECT * FROM missing", "missing"),
        ("DROP TABLE t", "DDL"),
        ("INSERT INTO t (_offset) VALUES (1)", "read"),
        ("SET a.b = 1", "read"),
        ("SELECT array_agg(_payload->'a') FROM t", "cast it"),
    ] {
        let command = CommandStatementQuery {
            query: sql.to_owned(),
            transaction_id: None,
        };
        let status = serving.announce(&command).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{sql}: {status}");
        assert!(status.message().contains(cause), "{sql}: {status}");
    }
    let info = serving
        .announce(&CommandStatementQuery {
            query: "SELECT 1 / (_offset - _offset) FROM t".to_owned(),
            transaction_id: None,
        })
        .await
        .unwrap();
    serving
        .fixture
        .append("t", 0, &[Frame::record(1, b"", b"x")])
        .await;
    let error = match serving
        .client
        .do_get(info.endpoint[0].ticket.clone().unwrap())
        .await
    {
        Ok(rows) => rows.try_collect::<Vec<_>>().await.unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(error.to_lowercase().contains("divide by zero"), "{error}");

    let inner = serving.client.inner_mut();
    let unknown = arrow_flight::sql::Any {
        type_url: "type.googleapis.com/x.Y".to_owned(),
        value: Default::default(),
    }
    .encode_to_vec();
    let status = inner
        .get_flight_info(FlightDescriptor::new_cmd(unknown.clone()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(
        inner.do_get(Ticket::new(unknown)).await.unwrap_err().code(),
        Code::Unimplemented
    );
    assert!(
        inner
            .do_get(Ticket::new(b"\xff\xff\xff".to_vec()))
            .await
            .is_err()
    );
    let action = Action {
        r#type: "Nonsense".to_owned(),
        body: Default::default(),
    };
    assert_eq!(
        inner.do_action(action).await.unwrap_err().code(),
        Code::Unimplemented
    );
    let action = Action {
        r#type: "CloseSession".to_owned(),
        body: Default::default(),
    };
    assert!(inner.do_action(action).await.is_ok());
    let update = serving
        .client
        .execute_update("DELETE FROM t".to_owned(), None)
        .await
        .unwrap_err();
    assert!(
        update.to_string().contains("only statements that read"),
        "{update}"
    );
}

#[tokio::test]
async fn a_handshake_gives_a_token_that_calls_may_carry() {
    let mut serving = serving().await;
    let token = serving.client.handshake("user", "password").await.unwrap();
    serving
        .client
        .set_token(String::from_utf8(token.to_vec()).unwrap());
    let info = serving
        .client
        .execute("SELECT 1".to_owned(), None)
        .await
        .unwrap();
    assert_eq!(rows_of(&serving.fetch(&info).await.1), ["1"]);
}

#[tokio::test]
async fn messages_stay_below_what_clients_take() {
    let mut serving = serving().await;
    serving.fixture.create("t", 1, 64 << 20).await;
    // Small records, and large ones that lie together.
    let large: Vec<Vec<u8>> = (0..12_u8).map(|n| vec![n; 1 << 20]).collect();
    for number in 0..200_u64 {
        serving
            .fixture
            .append("t", 0, &[Frame::record(number, b"", b"small")])
            .await;
    }
    for payload in &large {
        serving
            .fixture
            .append("t", 0, &[Frame::record(1, b"", payload)])
            .await;
    }
    for cold in [false, true] {
        if cold {
            serving.fixture.cool("t").await;
        }
        // The client's own limit is 4 MiB: a larger message would be an error here.
        let batches = serving
            .query("SELECT _offset, _payload FROM t ORDER BY _offset")
            .await;
        let payloads: Vec<Vec<u8>> = batches
            .iter()
            .flat_map(|batch| {
                batch
                    .column(1)
                    .as_binary::<i32>()
                    .iter()
                    .map(|value| value.unwrap().to_vec())
            })
            .collect();
        assert_eq!(payloads.len(), 212);
        assert_eq!(&payloads[200..], &large[..]);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_query() {
    let mut serving = serving().await;
    let endless = "SELECT value FROM generate_series(1, 9223372036854775806)";
    let info = serving
        .client
        .execute(endless.to_owned(), None)
        .await
        .unwrap();
    let mut rows = serving
        .client
        .do_get(info.endpoint[0].ticket.clone().unwrap())
        .await
        .unwrap();
    assert!(rows.try_next().await.unwrap().is_some());
    drop(rows);
    let engine = Arc::clone(&serving.fixture.engine);
    eventually("the query is cancelled", || {
        engine.counters().cancelled == 1
    })
    .await;
}
