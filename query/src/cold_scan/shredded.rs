//! The table's columns, and functions of them, out of the columns of a file whose payloads were shredded.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use basalt_columnar::shred::Shredding;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{Operator, ScalarUDF};
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::path::{FieldOfPayload, PathCall};
use super::payload::{PAYLOAD, damaged, rendered};

type Derived = Transformed<Arc<dyn PhysicalExpr>>;

/// Of [`Shredding::payload_columns`], the first are the payloads that stand as they are, and the templates.
const RAW_COLUMNS: usize = 2;

/// What stands in the place of expressions over the table's columns in those over one file.
#[derive(Debug)]
pub(super) struct ShreddedFile {
    schema: SchemaRef,
    shredding: Arc<Shredding>,
    payload: Arc<dyn PhysicalExpr>,
}

/// A field of payloads, as a column or computed from one.
struct Field {
    computed: Arc<dyn PhysicalExpr>,
    /// The column, if it has just these values in all rows that have a template.
    column: Option<Arc<dyn PhysicalExpr>>,
}

impl ShreddedFile {
    /// `None` for a file that has its payloads as they are. `file` is its schema, with the footer's metadata.
    pub(super) fn of(file: &SchemaRef) -> Result<Option<Self>> {
        let shredding = Shredding::from_schema(file).map_err(damaged)?;
        let Some(shredding) = shredding.map(Arc::new) else {
            return Ok(None);
        };
        Ok(Some(Self {
            schema: Arc::clone(file),
            payload: rendered(file, Arc::clone(&shredding))?,
            shredding,
        }))
    }

    /// `expr`, or what has to be computed for it. The inputs of that are columns of the file already.
    pub(super) fn derive(&self, expr: Arc<dyn PhysicalExpr>) -> Result<Derived> {
        let derived = |expr| Ok(Transformed::new(expr, true, TreeNodeRecursion::Jump));
        if let Some(column) = expr.downcast_ref::<Column>() {
            return match column.name() == PAYLOAD {
                true => derived(Arc::clone(&self.payload)),
                false => Ok(Transformed::no(expr)),
            };
        }
        if let Some(field) = self.field(&expr)? {
            return derived(field.computed);
        }
        match self.pruning(&expr)? {
            Some(prunable) => derived(prunable),
            None => Ok(Transformed::no(expr)),
        }
    }

    /// A JSON function whose result the file's columns have.
    fn field(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Option<Field>> {
        let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
            return Ok(None);
        };
        let Some(call) = PathCall::of(call)? else {
            return Ok(None);
        };
        let Some(field) = FieldOfPayload::new(call, &self.shredding)? else {
            return Ok(None);
        };
        let positions = self.shredding.payload_columns();
        let column = |at: usize| {
            let position = positions.get(at).copied().unwrap_or_default();
            Arc::new(Column::new(self.schema.field(position).name(), position))
                as Arc<dyn PhysicalExpr>
        };
        let values = field.column().map(|number| column(RAW_COLUMNS + number));
        let inputs = (0..RAW_COLUMNS).map(column).chain(values.clone()).collect();
        let return_field = Arc::clone(field.return_field());
        let is_the_column = field.is_the_column();
        Ok(Some(Field {
            computed: Arc::new(ScalarFunctionExpr::new(
                "field_of_payload",
                Arc::new(ScalarUDF::new_from_impl(field)),
                inputs,
                return_field,
                Arc::new(ConfigOptions::default()),
            )),
            column: values.filter(|_| is_the_column),
        }))
    }

    /// A condition on a field, said so that the statistics of its column can answer it: `p(field) AND (_template IS NULL OR p(column))`
    /// is `p(field)`, since the column is the field where there is a template.
    fn pruning(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        if !is_condition(expr) {
            return Ok(None);
        }
        let mut has_fields = false;
        let mut all_columns = true;
        let of_columns = Arc::clone(expr).transform_down(|inner| {
            let Some(field) = self.field(&inner)? else {
                all_columns &= inner.downcast_ref::<Column>().is_none();
                return Ok(Transformed::no(inner));
            };
            has_fields = true;
            all_columns &= field.column.is_some();
            let column = field.column.unwrap_or(inner);
            Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
        })?;
        if !has_fields || !all_columns {
            return Ok(None);
        }
        let of_fields = Arc::clone(expr).transform_down(|inner| {
            Ok(match self.field(&inner)? {
                Some(field) => Transformed::new(field.computed, true, TreeNodeRecursion::Jump),
                None => Transformed::no(inner),
            })
        })?;
        let templates = self.shredding.payload_columns()[1];
        let name = self.schema.field(templates).name();
        let no_template = Arc::new(IsNullExpr::new(Arc::new(Column::new(name, templates))));
        let of_columns = BinaryExpr::new(no_template, Operator::Or, of_columns.data);
        Ok(Some(Arc::new(BinaryExpr::new(
            of_fields.data,
            Operator::And,
            Arc::new(of_columns),
        ))))
    }
}

/// Whether it is a condition that is not made of others.
fn is_condition(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let is_comparison = expr.downcast_ref::<BinaryExpr>().is_some_and(|expr| {
        matches!(
            expr.op(),
            Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
        )
    });
    is_comparison
        || expr.is::<InListExpr>()
        || expr.is::<LikeExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
}
