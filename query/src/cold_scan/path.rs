//! JSON functions with a literal path, over the columns of shredded payloads.
//!
//! A function's result for a payload and a path is its result for the value at that path and none. Where a payload was shredded,
//! that value is in a column, and neither the payload nor the other columns are read. What a path leads to is asked of the JSON
//! functions themselves, once for each of the file's templates: so keys that come twice, paths into arrays and paths that lead
//! nowhere are what they are in the payloads.
//!
//! **QRY-10**: a JSON function over a cold row gives what it gives over the bytes that were produced. Where that is not certain for
//! all templates of a file, its payloads are rendered.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray, StringBuilder};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, is_not_null};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use basalt_columnar::shred::{Form, Shredding};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion_functions_json::udfs;

use super::payload::{PAYLOAD, damaged};
use crate::json::JsonFunction;

/// A JSON function of `_payload` and a literal path.
pub(super) struct PathCall {
    function: Arc<ScalarUDF>,
    path: Vec<ScalarValue>,
    return_field: FieldRef,
}

impl PathCall {
    /// `None` if `call` is none.
    pub(super) fn of(call: &ScalarFunctionExpr) -> Result<Option<Self>> {
        let function = call.fun();
        let is_of_a_path = function
            .inner()
            .downcast_ref::<JsonFunction>()
            .is_some_and(JsonFunction::is_of_a_path);
        let [document, steps @ ..] = call.args() else {
            return Ok(None);
        };
        let is_payload = document
            .downcast_ref::<Column>()
            .is_some_and(|column| column.name() == PAYLOAD);
        if !is_of_a_path || !is_payload {
            return Ok(None);
        }
        let mut path = Vec::new();
        for step in steps {
            match step.downcast_ref::<Literal>().map(Literal::value) {
                None => return Ok(None),
                // A whole path as one list.
                Some(ScalarValue::List(list)) if list.len() == 1 && list.is_valid(0) => {
                    let steps = list.value(0);
                    for row in 0..steps.len() {
                        path.push(ScalarValue::try_from_array(&steps, row)?);
                    }
                }
                Some(step) => path.push(step.clone()),
            }
        }
        Ok(Some(Self {
            function: Arc::new(function.clone()),
            path,
            return_field: call.return_field(&Schema::empty())?,
        }))
    }
}

/// What a path leads to in all payloads of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// To the column's value, or into it.
    Column,
    Null,
    Nowhere,
}

/// What a path leads to in an outline.
enum Found {
    /// To the value of a column, by so many steps.
    Column(usize, usize),
    Null,
    Nowhere,
    /// To an object, or a value that is no column.
    Other,
}

/// A JSON function over the columns of one file.
///
/// Its inputs are the payloads that stand as they are, the templates, and the column to which the path leads, if it does to any.
#[derive(Debug)]
pub(super) struct FieldOfPayload {
    function: Arc<ScalarUDF>,
    path: Vec<ScalarValue>,
    /// The steps of the path from the column's values on.
    rest: Vec<ScalarValue>,
    shredding: Arc<Shredding>,
    column: Option<usize>,
    /// By template.
    places: Vec<Place>,
    return_field: FieldRef,
    signature: Signature,
}

impl FieldOfPayload {
    /// `None` where the payloads have to be rendered.
    pub(super) fn new(call: PathCall, shredding: &Arc<Shredding>) -> Result<Option<Self>> {
        let mut column = None;
        let mut places = Vec::with_capacity(shredding.template_count());
        for template in 0..shredding.template_count() {
            let outline = shredding.outline(template).unwrap_or_default();
            places.push(match find(&outline, &call.path)? {
                Found::Column(number, steps) => {
                    if column.is_some_and(|column| column != (number, steps)) {
                        return Ok(None);
                    }
                    column = Some((number, steps));
                    Place::Column
                }
                Found::Null => Place::Null,
                Found::Nowhere => Place::Nowhere,
                Found::Other => return Ok(None),
            });
        }
        let steps = column.map_or(call.path.len(), |(_, steps)| steps);
        let rest = call.path.get(steps..).unwrap_or_default().to_vec();
        let column = column.map(|(number, _)| number);
        // Elsewhere the column must be NULL, so that its values stand for all rows.
        let hidden = column.is_some_and(|column| {
            let is_hidden = |(template, place): (usize, &Place)| {
                *place != Place::Column && shredding.has_column(template, column)
            };
            places.iter().enumerate().any(is_hidden)
        });
        if hidden || (!rest.is_empty() && places.contains(&Place::Null)) {
            return Ok(None);
        }
        Ok(Some(Self {
            function: call.function,
            path: call.path,
            rest,
            shredding: Arc::clone(shredding),
            column,
            places,
            return_field: call.return_field,
            signature: Signature::variadic_any(Volatility::Immutable),
        }))
    }

    /// The column whose values it needs.
    pub(super) const fn column(&self) -> Option<usize> {
        self.column
    }

    pub(super) fn return_field(&self) -> &FieldRef {
        &self.return_field
    }

    fn form(&self) -> Option<Form> {
        let column = self.shredding.columns().get(self.column?)?;
        self.rest.is_empty().then_some(column.form)
    }

    /// Whether the column's values are the function's results, for all rows that have a template.
    pub(super) fn is_the_column(&self) -> bool {
        matches!(
            (self.function.name(), self.form()),
            (
                "json_as_text" | "json_get_str",
                Some(Form::String | Form::AsciiString)
            ) | ("json_get_int", Some(Form::Int))
                | ("json_get_float", Some(Form::Double | Form::DoubleShort))
                | ("json_get_bool", Some(Form::Bool))
        )
    }

    fn compute(&self, inputs: &[ArrayRef]) -> Result<ArrayRef> {
        let [payloads, templates, values @ ..] = inputs else {
            return Err(DataFusionError::Internal(format!(
                "{} inputs for a field of payloads",
                inputs.len()
            )));
        };
        let of_payloads = || {
            call(
                &self.function,
                Arc::clone(payloads),
                &self.path,
                &self.return_field,
            )
        };
        if templates.null_count() == templates.len() {
            return of_payloads();
        }
        let of_columns = self.of_columns(templates.as_primitive(), values.first())?;
        if templates.null_count() == 0 {
            return Ok(of_columns);
        }
        Ok(zip(&is_not_null(templates)?, &of_columns, &of_payloads()?)?)
    }

    /// The results for the rows that have a template; anything for the others.
    fn of_columns(&self, templates: &Int32Array, values: Option<&ArrayRef>) -> Result<ArrayRef> {
        if let Some(values) = values {
            if self.is_the_column() {
                return Ok(cast(values, self.return_field.data_type())?);
            }
            match (self.function.name(), self.form()) {
                ("json_get_float", Some(Form::Int)) => {
                    return Ok(cast(values, &DataType::Float64)?);
                }
                ("json_as_text", Some(form)) if form != Form::Json => {
                    let texts = self.json_values(values)?;
                    return Ok(cast(&texts, self.return_field.data_type())?);
                }
                _ => {}
            }
        }
        let documents = Arc::new(self.documents(templates, values)?);
        call(&self.function, documents, &self.rest, &self.return_field)
    }

    fn json_values(&self, values: &ArrayRef) -> Result<StringArray> {
        let column = self.column.unwrap_or(usize::MAX);
        self.shredding.json_values(column, values).map_err(damaged)
    }

    /// What stands at the path's place, as JSON.
    fn documents(&self, templates: &Int32Array, values: Option<&ArrayRef>) -> Result<StringArray> {
        let values = values.map(|values| self.json_values(values)).transpose()?;
        let mut documents = StringBuilder::new();
        for (row, template) in templates.iter().enumerate() {
            let place = template.and_then(|template| usize::try_from(template).ok());
            match place.and_then(|template| self.places.get(template)) {
                Some(Place::Column) => {
                    let value = values.as_ref().filter(|values| values.is_valid(row));
                    documents.append_value(value.map_or("null", |values| values.value(row)));
                }
                Some(Place::Null) => documents.append_value("null"),
                Some(Place::Nowhere) | None => documents.append_null(),
            }
        }
        Ok(documents.finish())
    }
}

/// Follows a path through a template's outline.
fn find(outline: &str, path: &[ScalarValue]) -> Result<Found> {
    let json = udfs::json_get_json_udf();
    let text = Arc::new(Field::new("json", DataType::Utf8, true));
    let outline: ArrayRef = Arc::new(StringArray::from(vec![outline]));
    for steps in 0..=path.len() {
        let there = call(&json, Arc::clone(&outline), &path[..steps], &text)?;
        let there = there.as_string::<i32>();
        if there.is_null(0) {
            return Ok(Found::Nowhere);
        }
        let there = there.value(0);
        if let Ok(column) = there.parse() {
            return Ok(Found::Column(column, steps));
        }
        if steps == path.len() {
            return Ok(if there == "null" {
                Found::Null
            } else {
                Found::Other
            });
        }
    }
    Ok(Found::Other)
}

/// Calls a JSON function.
fn call(
    function: &Arc<ScalarUDF>,
    documents: ArrayRef,
    path: &[ScalarValue],
    return_field: &FieldRef,
) -> Result<ArrayRef> {
    let number_rows = documents.len();
    let types = std::iter::once(documents.data_type().clone());
    let types = types.chain(path.iter().map(ScalarValue::data_type));
    let arg_fields = types
        .map(|data_type| FieldRef::new(Field::new("argument", data_type, true)))
        .collect();
    let args = std::iter::once(ColumnarValue::Array(documents))
        .chain(path.iter().cloned().map(ColumnarValue::Scalar))
        .collect();
    function
        .invoke_with_args(ScalarFunctionArgs {
            args,
            arg_fields,
            number_rows,
            return_field: Arc::clone(return_field),
            config_options: Arc::new(ConfigOptions::default()),
        })?
        .into_array(number_rows)
}

impl PartialEq for FieldOfPayload {
    fn eq(&self, other: &Self) -> bool {
        self.function == other.function
            && self.path == other.path
            && self.shredding == other.shredding
    }
}

impl Eq for FieldOfPayload {}

impl Hash for FieldOfPayload {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.hash(state);
        self.path.hash(state);
    }
}

impl ScalarUDFImpl for FieldOfPayload {
    fn name(&self) -> &'static str {
        "field_of_payload"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.return_field.data_type().clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let inputs = ColumnarValue::values_to_arrays(&args.args)?;
        self.compute(&inputs).map(ColumnarValue::Array)
    }
}
