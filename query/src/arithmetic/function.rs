//! The functions that stand for operators on integers.

use std::fmt::Display;

use arrow::array::{Array, ArrayRef, Datum};
use arrow::compute::kernels::numeric;
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, ScalarValue, exec_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature,
    Volatility,
};

use super::out_of_range;

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
    Negate,
}

impl Operation {
    pub(super) const ALL: [Self; 4] = [Self::Add, Self::Subtract, Self::Multiply, Self::Negate];

    pub(super) fn of(operator: Operator) -> Option<Self> {
        match operator {
            Operator::Plus => Some(Self::Add),
            Operator::Minus => Some(Self::Subtract),
            Operator::Multiply => Some(Self::Multiply),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Add => "checked_add",
            Self::Subtract => "checked_subtract",
            Self::Multiply => "checked_multiply",
            Self::Negate => "checked_negate",
        }
    }

    /// As the operator is written.
    fn written(self, arguments: &[impl Display]) -> String {
        let sign = match self {
            Self::Add => "+",
            Self::Subtract | Self::Negate => "-",
            Self::Multiply => "*",
        };
        match arguments {
            [left, right] => format!("{left} {sign} {right}"),
            [only] => format!("({sign} {only})"),
            _ => self.name().to_owned(),
        }
    }
}

/// An operation on integers of one type that fails where its result does not fit that type.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct CheckedFunction {
    pub(super) operation: Operation,
    signature: Signature,
}

impl CheckedFunction {
    pub(super) fn new(operation: Operation) -> Self {
        let arguments = if operation == Operation::Negate { 1 } else { 2 };
        Self {
            operation,
            // Types were settled before the function took the operator's place.
            signature: Signature::any(arguments, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for CheckedFunction {
    fn name(&self) -> &str {
        self.operation.name()
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.operation.written(args))
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let names: Vec<_> = args.iter().map(Expr::schema_name).collect();
        Ok(self.operation.written(&names))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let first = arg_types.first().cloned();
        first.ok_or_else(|| exec_datafusion_err!("{} without an argument", self.name()))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<_> = args
            .arg_fields
            .iter()
            .map(|field| field.data_type().clone())
            .collect();
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Field::new(self.name(), self.return_type(&types)?, nullable).into())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let computed = match (self.operation, args.args.as_slice()) {
            (Operation::Negate, [value]) => apply_one(value, |value| numeric::neg(value)),
            (Operation::Add, [left, right]) => apply_two(left, right, numeric::add),
            (Operation::Subtract, [left, right]) => apply_two(left, right, numeric::sub),
            (Operation::Multiply, [left, right]) => apply_two(left, right, numeric::mul),
            _ => Err(exec_datafusion_err!("{} of other arguments", self.name())),
        };
        computed.map_err(|error| match error {
            DataFusionError::ArrowError(error, _)
                if matches!(*error, ArrowError::ArithmeticOverflow(_)) =>
            {
                out_of_range(&error.to_string())
            }
            other => other,
        })
    }
}

fn apply_one(
    value: &ColumnarValue,
    compute: impl Fn(&dyn Array) -> Result<ArrayRef, ArrowError>,
) -> Result<ColumnarValue> {
    Ok(match value {
        ColumnarValue::Array(array) => ColumnarValue::Array(compute(array)?),
        ColumnarValue::Scalar(scalar) => {
            let result = compute(scalar.to_array()?.as_ref())?;
            ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)
        }
    })
}

fn apply_two(
    left: &ColumnarValue,
    right: &ColumnarValue,
    compute: impl Fn(&dyn Datum, &dyn Datum) -> Result<ArrayRef, ArrowError>,
) -> Result<ColumnarValue> {
    Ok(match (left, right) {
        (ColumnarValue::Array(left), ColumnarValue::Array(right)) => {
            ColumnarValue::Array(compute(left, right)?)
        }
        (ColumnarValue::Scalar(left), ColumnarValue::Array(right)) => {
            ColumnarValue::Array(compute(&left.to_scalar()?, right)?)
        }
        (ColumnarValue::Array(left), ColumnarValue::Scalar(right)) => {
            ColumnarValue::Array(compute(left, &right.to_scalar()?)?)
        }
        (ColumnarValue::Scalar(left), ColumnarValue::Scalar(right)) => {
            let result = compute(&left.to_scalar()?, &right.to_scalar()?)?;
            ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)
        }
    })
}
