//! The names SQL can use: catalog `basalt`, schema `public` for topics, schema `sys` for the server's own state.

use std::sync::Arc;

use async_trait::async_trait;
use basalt_proto::TopicName;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::TableType;

use crate::inferred::PayloadColumns;
use crate::snapshot::QuerySnapshots;
use crate::sys_tables::{SysSources, SysTable, SysTableKind};
use crate::topic_table::TopicTable;

/// The one catalog.
pub(crate) const CATALOG: &str = "basalt";
/// The schema of topics, and the default one.
pub(crate) const TOPICS_SCHEMA: &str = "public";
/// The schema of the server's own tables.
pub(crate) const SYS_SCHEMA: &str = "sys";
/// The schema that SQL itself defines for looking up names.
pub(crate) const INFORMATION_SCHEMA: &str = "information_schema";

/// What one query can name.
#[derive(Debug)]
pub(crate) struct QueryCatalog {
    schemas: Schemas,
}

impl QueryCatalog {
    pub(crate) fn new(
        snapshots: Arc<QuerySnapshots>,
        sources: SysSources,
        payload_columns: PayloadColumns,
    ) -> Self {
        Self {
            schemas: Schemas {
                snapshots,
                sources,
                payload_columns,
            },
        }
    }
}

impl CatalogProviderList for QueryCatalog {
    fn register_catalog(
        &self,
        _name: String,
        _catalog: Arc<dyn CatalogProvider>,
    ) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![CATALOG.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        (name == CATALOG).then(|| Arc::new(self.schemas.clone()) as Arc<dyn CatalogProvider>)
    }
}

#[derive(Debug, Clone)]
struct Schemas {
    snapshots: Arc<QuerySnapshots>,
    sources: SysSources,
    payload_columns: PayloadColumns,
}

impl CatalogProvider for Schemas {
    fn schema_names(&self) -> Vec<String> {
        vec![TOPICS_SCHEMA.to_owned(), SYS_SCHEMA.to_owned()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        match name {
            TOPICS_SCHEMA => Some(Arc::new(Topics {
                snapshots: Arc::clone(&self.snapshots),
                payload_columns: self.payload_columns.clone(),
            })),
            SYS_SCHEMA => Some(Arc::new(Sys(self.clone()))),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Topics {
    snapshots: Arc<QuerySnapshots>,
    payload_columns: PayloadColumns,
}

impl Topics {
    /// The topic of exactly this name: no folding, no nearest match.
    fn find(&self, name: &str) -> Option<TopicName> {
        let name = TopicName::new(name).ok()?;
        self.snapshots.log().log().topic(&name).map(|_| name)
    }
}

#[async_trait]
impl SchemaProvider for Topics {
    fn table_names(&self) -> Vec<String> {
        self.snapshots
            .topic_names()
            .iter()
            .map(|name| name.as_str().to_owned())
            .collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(topic) = self.find(name) else {
            return Ok(None);
        };
        let columns = self.snapshots.columns(&topic);
        let columns = columns.map_err(|error| DataFusionError::External(Box::new(error)))?;
        let table = TopicTable::new(topic.clone(), columns, Arc::clone(&self.snapshots));
        let with_columns = self
            .payload_columns
            .add_to(Arc::new(table), &topic, &self.snapshots)?;
        Ok(Some(with_columns))
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        Ok(self.find(name).map(|_| TableType::Base))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
}

#[derive(Debug)]
struct Sys(Schemas);

#[async_trait]
impl SchemaProvider for Sys {
    fn table_names(&self) -> Vec<String> {
        SysTableKind::ALL
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Schemas {
            snapshots, sources, ..
        } = &self.0;
        let table = SysTableKind::from_name(name)
            .map(|kind| SysTable::new(kind, Arc::clone(snapshots), sources.clone()));
        Ok(table.map(|table| Arc::new(table) as Arc<dyn TableProvider>))
    }

    fn table_exist(&self, name: &str) -> bool {
        SysTableKind::from_name(name).is_some()
    }
}
