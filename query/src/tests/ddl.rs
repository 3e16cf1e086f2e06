//! Statements that change topics.

use std::sync::Arc;

use arrow_flight::sql::client::FlightSqlServiceClient;
use basalt_columnar::TieredLog;
use basalt_log::{TopicConfig, TopicError};
use basalt_proto::{ErrorKind, Frame, TopicName};
use futures::FutureExt as _;
use futures::TryStreamExt as _;
use futures::future::BoxFuture;
use tonic::Code;

use super::flight::{serving, serving_over};
use super::{Fixture, name};
use crate::{SchemaEdit, TopicChangeError, TopicChanges};

/// Changes topics as a server does.
struct Changing(Arc<TieredLog>);

fn refused(error: &TopicError) -> TopicChangeError {
    TopicChangeError {
        kind: error.kind(),
        message: error.to_string(),
    }
}

impl TopicChanges for Changing {
    fn create(
        &self,
        topic: TopicName,
        partitions: Option<u32>,
        settings: Vec<(String, String)>,
    ) -> BoxFuture<'static, Result<(), TopicChangeError>> {
        let log = Arc::clone(&self.0);
        async move {
            let config = TopicConfig::from_pairs(settings).map_err(|error| TopicChangeError {
                kind: ErrorKind::InvalidConfig,
                message: error.to_string(),
            })?;
            let made = log.create_topic(&topic, partitions.unwrap_or(1), config);
            made.map(drop).map_err(|error| refused(&error))
        }
        .boxed()
    }

    fn alter_schema(
        &self,
        topic: TopicName,
        edit: SchemaEdit,
    ) -> BoxFuture<'static, Result<(), TopicChangeError>> {
        let log = Arc::clone(&self.0);
        async move {
            let altered = log.alter_topic(&topic, |config| {
                let schema = edit(config.schema.as_deref())
                    .map_err(|reason| TopicError::BadSetting { reason })?;
                Ok::<_, TopicError>(TopicConfig {
                    schema: schema.map(Into::into),
                    ..config.clone()
                })
            });
            altered.map_err(|error| refused(&error))
        }
        .boxed()
    }

    fn delete(&self, topic: TopicName) -> BoxFuture<'static, Result<(), TopicChangeError>> {
        let log = Arc::clone(&self.0);
        async move {
            log.delete_topic(&topic)
                .await
                .map_err(|error| TopicChangeError {
                    kind: error.kind(),
                    message: error.to_string(),
                })
        }
        .boxed()
    }
}

async fn changing() -> Fixture {
    let fixture = Fixture::new().await;
    let topics = Changing(Arc::clone(&fixture.tiered));
    fixture.engine.allow_changes(Arc::new(topics));
    fixture
}

impl Fixture {
    fn schema_of(&self, topic: &str) -> Option<String> {
        let topic = self.tiered.log().topic(&name(topic))?;
        topic.config().schema.map(|text| text.to_string())
    }
}

#[tokio::test]
async fn tables_are_made_changed_and_dropped() {
    let fixture = changing().await;
    let run = async |sql: &str| assert_eq!(fixture.rows(sql).await, Vec::<String>::new());
    run("CREATE TABLE Orders (id BIGINT, \"Name\" VARCHAR, price DECIMAL(10, 2), at TIMESTAMP(3), tags TEXT[]) WITH (format = 'json', partitions = 3, retention_bytes = 1000000)").await;
    let topic = fixture.tiered.log().topic(&name("orders")).unwrap();
    assert_eq!(topic.partition_count(), 3);
    assert_eq!(topic.config().retention_bytes, Some(1_000_000));
    assert_eq!(
        fixture.schema_of("orders").unwrap(),
        r#"{"format":"json","columns":[{"name":"id","type":"int64"},{"name":"Name","type":"string"},{"name":"price","type":"decimal(10, 2)"},{"name":"at","type":"timestamp(ms)"},{"name":"tags","type":"list<string>"}]}"#
    );
    let payload =
        br#"{"id":1,"Name":"x","price":1.5,"at":"1970-01-01T00:00:01Z","tags":["a"],"more":7}"#;
    fixture
        .append("orders", 2, &[Frame::record(1, b"", payload)])
        .await;
    let all = "SELECT id, \"Name\", price, at, tags FROM orders";
    assert_eq!(
        fixture.rows(all).await,
        ["1|x|1.50|1970-01-01T00:00:01Z|[a]"]
    );

    run("ALTER TABLE orders ADD COLUMN more INT, DROP COLUMN tags").await;
    run("ALTER TABLE orders ADD COLUMN IF NOT EXISTS more INT").await;
    run("ALTER TABLE orders DROP COLUMN IF EXISTS tags").await;
    run("ALTER TABLE IF EXISTS nothing DROP COLUMN tags").await;
    assert_eq!(fixture.rows("SELECT more, id FROM orders").await, ["7|1"]);
    let gone = fixture.error("SELECT tags FROM orders").await;
    assert!(gone.to_string().contains("tags"), "{gone}");

    run("CREATE TABLE IF NOT EXISTS orders (x INT)").await;
    run("DROP TABLE orders").await;
    run("DROP TABLE IF EXISTS orders").await;
    assert!(fixture.tiered.log().topic(&name("orders")).is_none());

    run("CREATE TABLE plain ()").await;
    assert_eq!(fixture.schema_of("plain"), None);
    run("ALTER TABLE plain DROP COLUMN IF EXISTS a").await;
    assert_eq!(fixture.schema_of("plain"), None);
    run("ALTER TABLE plain ADD COLUMN a BIGINT").await;
    assert!(fixture.schema_of("plain").unwrap().contains("int64"));
    run("CREATE TABLE whole WITH (schema = '{\"format\":\"raw\"}')").await;
    assert_eq!(fixture.schema_of("whole").unwrap(), r#"{"format":"raw"}"#);
    run("CREATE TABLE \"with-dash\" (a INT) WITH (format = ndjson)").await;
    assert!(fixture.schema_of("with-dash").unwrap().contains("ndjson"));
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of statements")]
async fn what_cannot_be_is_refused_and_changes_nothing() {
    let fixture = changing().await;
    fixture.rows("CREATE TABLE t (a INT)").await;
    let before = fixture.schema_of("t");
    for (sql, reason, code) in [
        ("CREATE TABLE t (a INT)", "exists", Code::AlreadyExists),
        (
            "CREATE TABLE \"a b\" (a INT)",
            "no name of a topic",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE \"..\" (a INT)",
            "no name of a topic",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE sys.t (a INT)",
            "only tables of schema public",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT NOT NULL)",
            "NOT NULL",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT PRIMARY KEY)",
            "column a",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT, PRIMARY KEY (a))",
            "constraints",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a UUID)",
            "no type of a column",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (_offset INT)",
            "`_offset`",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT, A INT)",
            "columns[1].name",
            Code::InvalidArgument,
        ),
        ("CREATE TABLE u AS SELECT 1", "no AS", Code::InvalidArgument),
        (
            "CREATE TEMPORARY TABLE u (a INT)",
            "TEMPORARY",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT) WITH (format = 'xml')",
            "json, ndjson or raw",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT) WITH (format = 'avro')",
            "schema = '...'",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT) WITH (partitions = 'many')",
            "whole number",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u (a INT) WITH (colour = 'red')",
            "colour",
            Code::InvalidArgument,
        ),
        (
            "CREATE TABLE u WITH (schema = '{}')",
            "format",
            Code::InvalidArgument,
        ),
        (
            "CREATE VIEW u AS SELECT 1",
            "only statements that read",
            Code::InvalidArgument,
        ),
        ("ALTER TABLE u ADD COLUMN a INT", "no topic", Code::NotFound),
        (
            "ALTER TABLE t ADD COLUMN a INT",
            "`a` is the name of columns[0]",
            Code::InvalidArgument,
        ),
        (
            "ALTER TABLE t DROP COLUMN b",
            "no declared column",
            Code::InvalidArgument,
        ),
        (
            "ALTER TABLE t DROP COLUMN _payload",
            "no declared column",
            Code::InvalidArgument,
        ),
        (
            "ALTER TABLE t RENAME TO u",
            "ADD COLUMN and DROP COLUMN",
            Code::InvalidArgument,
        ),
        ("DROP TABLE u", "no topic", Code::NotFound),
        (
            "DROP TABLE sys.topics",
            "only tables of schema public",
            Code::InvalidArgument,
        ),
        (
            "DROP VIEW t",
            "only statements that read",
            Code::InvalidArgument,
        ),
        (
            "DELETE FROM t",
            "only statements that read",
            Code::InvalidArgument,
        ),
        (
            "EXPLAIN CREATE TABLE u (a INT)",
            "only statements that read",
            Code::InvalidArgument,
        ),
    ] {
        let error = fixture.error(sql).await;
        assert!(error.to_string().contains(reason), "{sql}: {error}");
        assert_eq!(error.status().code(), code, "{sql}: {error}");
    }
    assert_eq!(fixture.schema_of("t"), before);
    assert_eq!(fixture.tiered.log().topics().len(), 1);
}

#[tokio::test]
async fn without_somebody_who_changes_topics_nothing_is_changed() {
    let mut serving = serving().await;
    let sql = "CREATE TABLE t (a INT)";
    let error = serving.fixture.error(sql).await;
    assert!(
        error.to_string().contains("only statements that read"),
        "{error}"
    );
    let update = serving.client.execute_update(sql.to_owned(), None).await;
    assert!(
        update
            .unwrap_err()
            .to_string()
            .contains("only statements that read")
    );
    assert!(serving.fixture.tiered.log().topics().is_empty());
}

#[tokio::test]
async fn described_is_not_run_and_every_way_to_run_it_is() {
    let fixture = changing().await;
    let mut other = serving_over(&fixture).await;
    let client: &mut FlightSqlServiceClient<_> = &mut other.client;
    let exists = |topic: &str| fixture.tiered.log().topic(&name(topic)).is_some();

    let info = client
        .execute("CREATE TABLE a (x INT)".to_owned(), None)
        .await
        .unwrap();
    assert!(!exists("a"), "announced only");
    assert!(
        info.clone()
            .try_decode_schema()
            .unwrap()
            .fields()
            .is_empty()
    );
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let rows: Vec<_> = client
        .do_get(ticket)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert!(rows.iter().all(|batch| batch.num_rows() == 0));
    assert!(exists("a"));

    let changed = client
        .execute_update("CREATE TABLE b (x INT)".to_owned(), None)
        .await;
    assert_eq!(changed.unwrap(), 0);
    assert!(exists("b"));

    let mut prepared = client
        .prepare("DROP TABLE b".to_owned(), None)
        .await
        .unwrap();
    assert!(exists("b"), "prepared only");
    assert!(prepared.dataset_schema().unwrap().fields().is_empty());
    assert_eq!(prepared.execute_update().await.unwrap(), 0);
    assert!(!exists("b"));
}
