//! The table's columns out of what a cold file stores.
//!
//! Files differ in what they store: a column of the table may be one of the file, may have to be made of others, or may be missing.
//! A scan therefore asks for the table's columns only, and says so in expressions; when a file is opened, [`TableColumns`] rewrites
//! these over the columns that this file has. What an expression does not name in the end is not read.
//!
//! - `_payload` of a file with shredded payloads is rendered ([`super::payload`]); of JSON functions of it with a literal path the
//!   field's column is read instead ([`super::path`]).
//! - Any other column is the file's of the same name, cast to the table's type; NULL where there is none.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};

use super::shredded::ShreddedFile;

/// Makes expressions over the table's columns those over a file's.
#[derive(Debug)]
pub(super) struct TableColumns;

impl PhysicalExprAdapterFactory for TableColumns {
    fn create(&self, table: SchemaRef, file: SchemaRef) -> Result<Arc<dyn PhysicalExprAdapter>> {
        Ok(Arc::new(FileColumns {
            shredded: ShreddedFile::of(&file)?,
            stored: DefaultPhysicalExprAdapterFactory.create(table, file)?,
        }))
    }
}

/// The same for one file.
#[derive(Debug)]
struct FileColumns {
    shredded: Option<ShreddedFile>,
    /// For the columns that are stored as they are.
    stored: Arc<dyn PhysicalExprAdapter>,
}

impl PhysicalExprAdapter for FileColumns {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let over_file = match &self.shredded {
            Some(shredded) => expr.transform_down(|expr| shredded.derive(expr)).data()?,
            None => expr,
        };
        self.stored.rewrite(over_file)
    }
}
