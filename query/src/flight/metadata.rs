//! The commands that ask what there is. Each announces a schema and gives rows of exactly that schema.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes,
    CommandGetTables, CommandGetXdbcTypeInfo, ProstMessageExt,
};
use datafusion::catalog::information_schema::INFORMATION_SCHEMA_TABLES;
use tonic::Status;

use super::{sql_info, xdbc_types};
use crate::catalog::{CATALOG, INFORMATION_SCHEMA, SYS_SCHEMA, TOPICS_SCHEMA};
use crate::columns::TopicColumns;
use crate::edge::plain_schema;
use crate::parameters::Query;
use crate::snapshot::topic_schema;
use crate::sys_tables::SysTableKind;
use crate::{QueryEngine, QueryError};

const BASE_TABLE: &str = "BASE TABLE";
const VIEW: &str = "VIEW";
const SYSTEM_TABLE: &str = "SYSTEM TABLE";

/// A command that asks what there is.
pub(super) trait MetadataCommand: ProstMessageExt {
    /// The schema of its rows.
    fn schema(&self) -> SchemaRef;

    /// Its rows.
    fn rows(self, engine: &QueryEngine)
    -> impl Future<Output = Result<RecordBatch, Status>> + Send;
}

fn built<T>(made: arrow_flight::error::Result<T>) -> Result<T, Status> {
    made.map_err(Status::from)
}

impl MetadataCommand for CommandGetCatalogs {
    fn schema(&self) -> SchemaRef {
        self.into_builder().schema()
    }

    async fn rows(self, _engine: &QueryEngine) -> Result<RecordBatch, Status> {
        let mut rows = self.into_builder();
        rows.append(CATALOG);
        built(rows.build())
    }
}

impl MetadataCommand for CommandGetDbSchemas {
    fn schema(&self) -> SchemaRef {
        self.clone().into_builder().schema()
    }

    async fn rows(self, _engine: &QueryEngine) -> Result<RecordBatch, Status> {
        let mut rows = self.into_builder();
        for schema in [INFORMATION_SCHEMA, TOPICS_SCHEMA, SYS_SCHEMA] {
            rows.append(CATALOG, schema);
        }
        built(rows.build())
    }
}

impl MetadataCommand for CommandGetTableTypes {
    fn schema(&self) -> SchemaRef {
        self.into_builder().schema()
    }

    async fn rows(self, _engine: &QueryEngine) -> Result<RecordBatch, Status> {
        let mut rows = self.into_builder();
        for table_type in [BASE_TABLE, VIEW, SYSTEM_TABLE] {
            rows.append(table_type);
        }
        built(rows.build())
    }
}

impl MetadataCommand for CommandGetTables {
    fn schema(&self) -> SchemaRef {
        self.clone().into_builder().schema()
    }

    async fn rows(self, engine: &QueryEngine) -> Result<RecordBatch, Status> {
        let include_schema = self.include_schema;
        let mut rows = self.into_builder();
        let plain = |schema: &Schema| plain_schema(schema).map_err(|error| error.status());
        let untyped = plain(&topic_schema())?;
        for topic in engine.log().log().topics() {
            // One whose schema cannot be read is listed all the same; a query says why.
            let columns = match engine.log().topic_schema(topic.name()) {
                Ok(Some(typed)) if include_schema => {
                    plain(TopicColumns::new(Some(typed)).schema())?
                }
                _ => Arc::clone(&untyped),
            };
            rows.append(
                CATALOG,
                TOPICS_SCHEMA,
                topic.name().as_str(),
                BASE_TABLE,
                &columns,
            )?;
        }
        for table in SysTableKind::ALL {
            rows.append(
                CATALOG,
                SYS_SCHEMA,
                table.name(),
                SYSTEM_TABLE,
                plain(&table.schema())?.as_ref(),
            )?;
        }
        for view in INFORMATION_SCHEMA_TABLES {
            let columns = match include_schema {
                true => information_columns(engine, view)
                    .await
                    .map_err(|error| error.status())?,
                false => Arc::new(Schema::empty()),
            };
            rows.append(CATALOG, INFORMATION_SCHEMA, view, VIEW, &columns)?;
        }
        built(rows.build())
    }
}

async fn information_columns(engine: &QueryEngine, view: &str) -> Result<SchemaRef, QueryError> {
    let sql = format!("SELECT * FROM {INFORMATION_SCHEMA}.{view}");
    engine.describe(Query::plain(&sql)).await
}

impl MetadataCommand for CommandGetSqlInfo {
    fn schema(&self) -> SchemaRef {
        sql_info::schema()
    }

    async fn rows(self, engine: &QueryEngine) -> Result<RecordBatch, Status> {
        let all = built(sql_info::rows(engine))?;
        let batch = built(self.into_builder(&all).build())?;
        batch
            .with_schema(sql_info::schema())
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl MetadataCommand for CommandGetXdbcTypeInfo {
    fn schema(&self) -> SchemaRef {
        xdbc_types::empty_schema()
    }

    async fn rows(self, _engine: &QueryEngine) -> Result<RecordBatch, Status> {
        built(xdbc_types::rows().and_then(|types| types.record_batch(self.data_type)))
    }
}

impl MetadataCommand for CommandGetPrimaryKeys {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("catalog_name", DataType::Utf8, true),
            Field::new("db_schema_name", DataType::Utf8, true),
            Field::new("table_name", DataType::Utf8, false),
            Field::new("column_name", DataType::Utf8, false),
            Field::new("key_name", DataType::Utf8, true),
            Field::new("key_sequence", DataType::Int32, false),
        ]))
    }

    /// No table declares a key.
    async fn rows(self, _engine: &QueryEngine) -> Result<RecordBatch, Status> {
        Ok(RecordBatch::new_empty(self.schema()))
    }
}

macro_rules! foreign_keys {
    ($($command:ty),*) => {$(
        impl MetadataCommand for $command {
            fn schema(&self) -> SchemaRef {
                foreign_keys_schema()
            }

            /// No table declares a key.
            async fn rows(self, _engine: &QueryEngine) -> Result<RecordBatch, Status> {
                Ok(RecordBatch::new_empty(foreign_keys_schema()))
            }
        }
    )*};
}

foreign_keys!(
    CommandGetExportedKeys,
    CommandGetImportedKeys,
    CommandGetCrossReference
);

fn foreign_keys_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("pk_catalog_name", DataType::Utf8, true),
        Field::new("pk_db_schema_name", DataType::Utf8, true),
        Field::new("pk_table_name", DataType::Utf8, false),
        Field::new("pk_column_name", DataType::Utf8, false),
        Field::new("fk_catalog_name", DataType::Utf8, true),
        Field::new("fk_db_schema_name", DataType::Utf8, true),
        Field::new("fk_table_name", DataType::Utf8, false),
        Field::new("fk_column_name", DataType::Utf8, false),
        Field::new("key_sequence", DataType::Int32, false),
        Field::new("fk_key_name", DataType::Utf8, true),
        Field::new("pk_key_name", DataType::Utf8, true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
}
