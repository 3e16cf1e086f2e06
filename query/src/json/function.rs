//! A JSON function that also reads bytes.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature,
};

use super::text::{text_type, text_value};

/// A function of `datafusion-functions-json` whose first argument may be bytes.
///
/// With a literal path it is computed at the scan, where cold files have columns for it. What a filter drops is parsed for nothing
/// then, unless it is dropped before: so the hot half of a scan takes filters ([`crate::hot_scan`]).
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct JsonFunction {
    text: Arc<ScalarUDF>,
}

/// Functions whose result is that of the value at their path, and of nothing else in the document.
const OF_A_PATH: [&str; 11] = [
    "json_as_text",
    "json_contains",
    "json_get",
    "json_get_array",
    "json_get_bool",
    "json_get_float",
    "json_get_int",
    "json_get_json",
    "json_get_str",
    "json_length",
    "json_object_keys",
];

impl JsonFunction {
    pub(super) fn wrap(text: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::new_from_impl(Self { text }))
    }

    /// Whether its result for a document and a path is that for the value at this path and none.
    pub(crate) fn is_of_a_path(&self) -> bool {
        OF_A_PATH.contains(&self.text.name())
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
        self.text.return_type(&arg_types).map(views)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let arg_fields = text_fields(args.arg_fields);
        let field = self.text.return_field_from_args(ReturnFieldArgs {
            arg_fields: &arg_fields,
            scalar_arguments: args.scalar_arguments,
        })?;
        let data_type = views(field.data_type().clone());
        Ok(Arc::new(field.as_ref().clone().with_data_type(data_type)))
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if !args.args.is_empty() {
            let first = args.args.remove(0);
            args.args.insert(0, text_value(first));
        }
        args.arg_fields = text_fields(&args.arg_fields);
        // The function itself is held to what it gives.
        if *args.return_field.data_type() == DataType::Utf8View {
            let field = args.return_field.as_ref().clone();
            args.return_field = Arc::new(field.with_data_type(DataType::Utf8));
        }
        let result = self.text.invoke_with_args(args)?;
        match views(result.data_type()) {
            data_type if data_type == result.data_type() => Ok(result),
            data_type => result.cast_to(&data_type, None),
        }
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        match args {
            [ExpressionPlacement::Column, path @ ..]
                if !path.is_empty()
                    && self.is_of_a_path()
                    && path
                        .iter()
                        .all(|step| *step == ExpressionPlacement::Literal) =>
            {
                ExpressionPlacement::MoveTowardsLeafNodes
            }
            _ => ExpressionPlacement::KeepInPlace,
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.text.documentation()
    }
}

/// The layout of a result: texts are views, as the columns of cold files are read, so that neither is copied to meet the other.
fn views(data_type: DataType) -> DataType {
    match data_type {
        DataType::Utf8 => DataType::Utf8View,
        other => other,
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
