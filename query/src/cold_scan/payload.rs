//! `_payload` of files whose payloads were shredded.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use basalt_columnar::shred::{ShredError, Shredding};
use datafusion::common::DataFusionError;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use parking_lot::Mutex;

/// The column that is left out where its rows can be rendered.
pub(super) const PAYLOAD: &str = "_payload";

pub(super) fn damaged(error: ShredError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The payloads of a file with the schema `file`, out of its columns.
pub(super) fn rendered(file: &Schema, shredding: Arc<Shredding>) -> Result<Arc<dyn PhysicalExpr>> {
    let positions = shredding.payload_columns();
    let stored = Arc::new(file.project(&positions)?);
    let inputs = positions.into_iter().zip(stored.fields());
    let inputs = inputs
        .map(|(position, field)| Arc::new(Column::new(field.name(), position)) as _)
        .collect();
    let render = RenderPayload {
        shredding,
        stored: Arc::clone(&stored),
        signature: Signature::variadic_any(Volatility::Immutable),
        last: Mutex::new(None),
    };
    Ok(Arc::new(ScalarFunctionExpr::new(
        RenderPayload::NAME,
        Arc::new(ScalarUDF::new_from_impl(render)),
        inputs,
        FieldRef::new(Field::new(PAYLOAD, DataType::Binary, true)),
        Arc::new(ConfigOptions::default()),
    )))
}

/// Payloads out of the columns that [`Shredding::payload_columns`] names, in their order.
///
/// Several expressions of one scan may ask for the payloads of the same rows: those that were rendered last are remembered.
#[derive(Debug)]
struct RenderPayload {
    shredding: Arc<Shredding>,
    stored: Arc<Schema>,
    signature: Signature,
    /// The templates' column, which tells rows apart as long as it is held, and the payloads.
    last: Mutex<Option<(ArrayRef, ArrayRef)>>,
}

impl RenderPayload {
    const NAME: &str = "render_payload";
    /// Where the templates' column stands among the inputs.
    const TEMPLATES: usize = 1;

    fn render(&self, columns: Vec<ArrayRef>) -> Result<ArrayRef> {
        let templates = columns.get(Self::TEMPLATES).cloned();
        let mut last = self.last.lock();
        if let (Some((rows, payloads)), Some(templates)) = (&*last, &templates)
            && Arc::ptr_eq(rows, templates)
        {
            return Ok(Arc::clone(payloads));
        }
        *last = None;
        let rows = RecordBatch::try_new(Arc::clone(&self.stored), columns)?;
        let payloads: ArrayRef = Arc::new(self.shredding.render(&rows).map_err(damaged)?);
        *last = templates.map(|templates| (templates, Arc::clone(&payloads)));
        Ok(payloads)
    }
}

impl PartialEq for RenderPayload {
    fn eq(&self, other: &Self) -> bool {
        self.shredding == other.shredding && self.stored == other.stored
    }
}

impl Eq for RenderPayload {}

impl Hash for RenderPayload {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.shredding.hash(state);
    }
}

impl ScalarUDFImpl for RenderPayload {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        self.render(columns).map(ColumnarValue::Array)
    }
}
