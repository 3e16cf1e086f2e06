//! `sum` whose result is exact or an error.

use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, FieldRef,
};
use datafusion::error::Result;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature,
};

use super::wide::{SlidingDistinctSum, WideAccumulator, WideGroups};

/// The stock sum over a wider type, narrowed at the end.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CheckedSum {
    stock: Sum,
}

/// The type in which numbers of `narrow` are added; `None` where the stock sum may add them as they are.
fn wide_type(narrow: &DataType) -> Option<DataType> {
    match narrow {
        DataType::Int64 | DataType::UInt64 | DataType::Duration(_) => {
            Some(DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0))
        }
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) => {
            Some(DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale))
        }
        DataType::Decimal128(_, scale) => {
            Some(DataType::Decimal256(DECIMAL256_MAX_PRECISION, *scale))
        }
        _ => None,
    }
}

fn wide_field(narrow: &FieldRef) -> Option<FieldRef> {
    let wide = wide_type(narrow.data_type())?;
    Some(Field::clone(narrow).with_data_type(wide).into())
}

/// Types of the values, of the sum over them as it is made, and of the result.
#[derive(Debug, Clone)]
pub(super) struct Types {
    pub(super) wide: DataType,
    pub(super) result: DataType,
}

impl CheckedSum {
    /// The same call in the wider type.
    fn widened<'a>(args: &AccumulatorArgs<'a>) -> Option<(AccumulatorArgs<'a>, Types)> {
        let return_field = wide_field(&args.return_field)?;
        let types = Types {
            wide: return_field.data_type().clone(),
            result: args.return_type().clone(),
        };
        let wide = AccumulatorArgs {
            return_field,
            ..args.clone()
        };
        Some((wide, types))
    }
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        self.stock.name()
    }

    fn signature(&self) -> &Signature {
        self.stock.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.stock.return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match Self::widened(&args) {
            Some((wide, types)) => Ok(Box::new(WideAccumulator::new(
                self.stock.accumulator(wide)?,
                types,
            ))),
            None => self.stock.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        match wide_field(&args.return_field) {
            Some(return_field) => self.stock.state_fields(StateFieldsArgs {
                return_field,
                ..args
            }),
            None => self.stock.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.stock.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        match Self::widened(&args) {
            Some((wide, types)) => Ok(Box::new(WideGroups::new(
                self.stock.create_groups_accumulator(wide)?,
                types,
            ))),
            None => self.stock.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        match Self::widened(&args) {
            Some((_, types)) if args.is_distinct && *args.return_type() == DataType::Int64 => {
                Ok(Box::new(SlidingDistinctSum::new(types)))
            }
            Some((wide, types)) if !args.is_distinct => Ok(Box::new(WideAccumulator::new(
                self.stock.create_sliding_accumulator(wide)?,
                types,
            ))),
            _ => self.stock.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.stock.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.stock.order_sensitivity()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.stock.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.stock.set_monotonicity(data_type)
    }
}
