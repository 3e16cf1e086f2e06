//! A JSON function that also reads bytes.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};

use super::text::{text_type, text_value};

/// A function of `datafusion-functions-json` whose first argument may be bytes.
///
/// It stays where the query put it (`placement` is the default): the crate would have its functions computed at the
/// scan, below any filter, and parsing the payload of rows that a filter on `_offset` drops costs more than it saves.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct JsonFunction {
    text: Arc<ScalarUDF>,
}

impl JsonFunction {
    pub(super) fn wrap(text: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::new_from_impl(Self { text }))
    }
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        self.text.name()
    }

    fn aliases(&self) -> &[String] {
        self.text.aliases()
    }

    fn signature(&self) -> &Signature {
        self.text.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let mut arg_types = arg_types.to_vec();
        if let Some(first) = arg_types.first_mut()
            && let Some(text) = text_type(first)
        {
            *first = text;
        }
        self.text.return_type(&arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let arg_fields = text_fields(args.arg_fields);
        self.text.return_field_from_args(ReturnFieldArgs {
            arg_fields: &arg_fields,
            scalar_arguments: args.scalar_arguments,
        })
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if !args.args.is_empty() {
            let first = args.args.remove(0);
            args.args.insert(0, text_value(first));
        }
        args.arg_fields = text_fields(&args.arg_fields);
        self.text.invoke_with_args(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.text.documentation()
    }
}

fn text_fields(fields: &[FieldRef]) -> Vec<FieldRef> {
    let mut fields = fields.to_vec();
    if let Some(first) = fields.first_mut()
        && let Some(text) = text_type(first.data_type())
    {
        *first = Arc::new(first.as_ref().clone().with_data_type(text));
    }
    fields
}
