//! Functions whose result may be far larger than what they are given.
//!
//! One call is one step: nothing ends it at the query's deadline, and its result is in no account of memory. So what it would
//! make is reckoned first, and refused beyond a limit.
//!
//! - **QRY-14**: no call of a function makes more than [`RESULT_BYTES`] out of a few numbers.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{
    DataType, FieldRef, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::{DataFusionError, exec_err};
use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature,
};

/// Bytes that one call may make for one batch of rows.
const RESULT_BYTES: i128 = 256 << 20;

const DAY_NS: i128 = 86_400_000_000_000;
/// The shortest month, so that no series is taken for shorter than it is.
const MONTH_NS: i128 = 28 * DAY_NS;

/// The functions, and how the size of each result is reckoned.
const GROWING: [(&str, Growth); 8] = [
    ("lpad", Growth::Padding),
    ("rpad", Growth::Padding),
    ("repeat", Growth::Repeating),
    ("replace", Growth::Replacing),
    ("array_repeat", Growth::Elements),
    ("array_resize", Growth::Elements),
    ("range", Growth::Series),
    ("generate_series", Growth::Series),
];

/// Registers each in the place of the stock one.
pub(crate) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for (name, growth) in GROWING {
        let stock = registry.udf(name)?;
        registry.register_udf(Arc::new(ScalarUDF::new_from_impl(Sized { stock, growth })))?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Growth {
    /// Text of a length that the second argument says, in characters.
    Padding,
    /// The first argument as often as the second says.
    Repeating,
    /// The third argument wherever the second stands in the first.
    Replacing,
    /// A list of as many elements as the second argument says.
    Elements,
    /// A list of the numbers or moments from the first argument to the second, in steps of the third.
    Series,
}

/// A function of DataFusion that refuses to make too much.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sized {
    stock: Arc<ScalarUDF>,
    growth: Growth,
}

impl ScalarUDFImpl for Sized {
    fn name(&self) -> &str {
        self.stock.name()
    }

    fn aliases(&self) -> &[String] {
        self.stock.aliases()
    }

    fn signature(&self) -> &Signature {
        self.stock.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.stock.return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.stock.return_field_from_args(args)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.stock.coerce_types(arg_types)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.stock.simplify(args, info)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let found_bytes = self.growth.bytes(&args)?;
        if found_bytes > RESULT_BYTES {
            return exec_err!(
                "{} would make {found_bytes} bytes at a time, the limit is {RESULT_BYTES}",
                self.name()
            );
        }
        self.stock.invoke_with_args(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.stock.documentation()
    }
}

impl Growth {
    /// An upper bound of what a call makes.
    fn bytes(self, args: &ScalarFunctionArgs) -> Result<i128> {
        // Constants alone are one row, however many the batch has.
        let constant = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let arrays = args
            .args
            .iter()
            .map(|arg| arg.to_array(rows))
            .collect::<Result<Vec<_>>>()?;
        match (self, arrays.as_slice()) {
            // A character has four bytes at most.
            (Self::Padding, [_, count, ..]) => Ok(positive(&numbers(count)?).sum::<i128>() * 4),
            (Self::Repeating, [text, count, ..]) => {
                let counts = numbers(count)?;
                let lengths = numbers(&length(text)?)?;
                let products = lengths.iter().zip(&counts);
                Ok(products
                    .map(|(length, count)| length.unwrap_or(0) * count.unwrap_or(0).max(0))
                    .sum())
            }
            (Self::Replacing, [text, from, to, ..]) => replaced_bytes(text, from, to),
            (Self::Elements, [elements, count, ..]) => {
                let average = elements.get_array_memory_size() / elements.len().max(1);
                let average = i128::try_from(average).unwrap_or(i128::MAX).max(8);
                let total: i128 = positive(&numbers(count)?).sum();
                Ok(total.saturating_mul(average))
            }
            (Self::Series, [stop]) => Ok(positive(&numbers(stop)?).sum::<i128>() * 8),
            (Self::Series, [start, stop, steps @ ..]) => {
                let steps = steps.first().map(numbers).transpose()?;
                let (starts, stops) = (numbers(start)?, numbers(stop)?);
                let count = |row: usize| {
                    let (Some(start), Some(stop)) = (starts[row], stops[row]) else {
                        return 0;
                    };
                    let step = steps.as_ref().map_or(Some(1), |steps| steps[row]);
                    // A step of nothing is refused by the function itself.
                    match step.map(i128::abs) {
                        None | Some(0) => 0,
                        Some(step) => (stop - start).abs() / step + 1,
                    }
                };
                Ok((0..rows).map(count).sum::<i128>() * 8)
            }
            _ => Ok(0),
        }
    }
}

fn positive(numbers: &[Option<i128>]) -> impl Iterator<Item = i128> + '_ {
    numbers.iter().flatten().copied().filter(|count| *count > 0)
}

/// Integers as they are, moments and spans in nanoseconds; nothing where there is no number.
fn numbers(array: &ArrayRef) -> Result<Vec<Option<i128>>, DataFusionError> {
    let integers = |array: &ArrayRef, unit: i128| -> Result<Vec<Option<i128>>, DataFusionError> {
        let array = cast(array, &DataType::Int64)?;
        let values = array.as_primitive::<Int64Type>().iter();
        Ok(values
            .map(|value| value.map(|value| i128::from(value) * unit))
            .collect())
    };
    match array.data_type() {
        integer if integer.is_integer() => integers(array, 1),
        DataType::Date32 => integers(&cast(array, &DataType::Int32)?, DAY_NS),
        DataType::Timestamp(unit, _) => integers(
            array,
            match unit {
                TimeUnit::Second => 1_000_000_000,
                TimeUnit::Millisecond => 1_000_000,
                TimeUnit::Microsecond => 1_000,
                TimeUnit::Nanosecond => 1,
            },
        ),
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let spans = array.as_primitive::<IntervalMonthDayNanoType>().iter();
            Ok(spans
                .map(|span| {
                    let span = span?;
                    Some(
                        i128::from(span.months) * MONTH_NS
                            + i128::from(span.days) * DAY_NS
                            + i128::from(span.nanoseconds),
                    )
                })
                .collect())
        }
        _ => Ok(vec![None; array.len()]),
    }
}

/// Counted only where it could be too much.
fn replaced_bytes(text: &ArrayRef, from: &ArrayRef, to: &ArrayRef) -> Result<i128> {
    let (texts, froms, tos) = (
        numbers(&length(text)?)?,
        numbers(&length(from)?)?,
        numbers(&length(to)?)?,
    );
    let bound = |row: usize| {
        let of = |numbers: &[Option<i128>]| numbers[row].unwrap_or(0);
        of(&texts) + (of(&texts) / of(&froms).max(1) + 1) * of(&tos)
    };
    let bound: i128 = (0..texts.len()).map(bound).sum();
    if bound <= RESULT_BYTES {
        return Ok(bound);
    }
    let as_text = |array: &ArrayRef| cast(array, &DataType::Utf8);
    let (text, from, to) = (as_text(text)?, as_text(from)?, as_text(to)?);
    let rows = text
        .as_string::<i32>()
        .iter()
        .zip(from.as_string::<i32>())
        .zip(to.as_string::<i32>());
    let bytes = |((text, from), to): ((Option<&str>, Option<&str>), Option<&str>)| {
        let (Some(text), Some(from), Some(to)) = (text, from, to) else {
            return 0;
        };
        let count = text.matches(from).count() as i128;
        text.len() as i128 + count * (to.len() as i128 - from.len() as i128)
    };
    Ok(rows.map(bytes).sum())
}
