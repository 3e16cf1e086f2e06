//! Accumulators that add in a wider type than they give.

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Int64Type, UInt64Type, i256,
};
use datafusion::common::{ScalarValue, exec_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::out_of_range;
use super::sum::Types;

/// `values` in the type in which they are added.
fn widen(values: &ArrayRef, types: &Types) -> Result<ArrayRef> {
    let wide = &types.wide;
    Ok(match values.data_type() {
        DataType::Int64 => widened::<Int64Type, Decimal128Type>(values, wide, i128::from),
        DataType::UInt64 => widened::<UInt64Type, Decimal128Type>(values, wide, i128::from),
        DataType::Duration(_) => {
            let values = cast(values, &DataType::Int64)?;
            widened::<Int64Type, Decimal128Type>(&values, wide, i128::from)
        }
        DataType::Decimal32(..) => {
            widened::<Decimal32Type, Decimal128Type>(values, wide, i128::from)
        }
        DataType::Decimal64(..) => {
            widened::<Decimal64Type, Decimal128Type>(values, wide, i128::from)
        }
        DataType::Decimal128(..) => {
            widened::<Decimal128Type, Decimal256Type>(values, wide, i256::from_i128)
        }
        other => return Err(exec_datafusion_err!("sum of {other} has no wider type")),
    })
}

fn widened<N: ArrowPrimitiveType, W: ArrowPrimitiveType>(
    values: &ArrayRef,
    wide: &DataType,
    widen: impl Fn(N::Native) -> W::Native,
) -> ArrayRef {
    let values: PrimitiveArray<W> = values.as_primitive::<N>().unary(widen);
    Arc::new(values.with_data_type(wide.clone()))
}

/// `sums` in the type of the result; an error where one does not fit.
fn narrow(sums: &ArrayRef, types: &Types) -> Result<ArrayRef> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let narrowed = match &types.result {
        // There is no cast from a decimal to a duration.
        duration @ DataType::Duration(_) => cast_with_options(sums, &DataType::Int64, &options)
            .and_then(|sums| cast_with_options(&sums, duration, &options)),
        result => cast_with_options(sums, result, &options),
    };
    narrowed.map_err(|error| out_of_range(&format!("a sum does not fit {}: {error}", types.result)))
}

fn narrow_scalar(sum: &ScalarValue, types: &Types) -> Result<ScalarValue> {
    ScalarValue::try_from_array(&narrow(&sum.to_array()?, types)?, 0)
}

/// A sum over all rows, or over a window of them.
pub(super) struct WideAccumulator {
    wide: Box<dyn Accumulator>,
    types: Types,
}

impl WideAccumulator {
    pub(super) fn new(wide: Box<dyn Accumulator>, types: Types) -> Self {
        Self { wide, types }
    }

    fn widen(&self, values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        values
            .iter()
            .map(|values| widen(values, &self.types))
            .collect()
    }
}

impl Debug for WideAccumulator {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WideAccumulator")
            .field("types", &self.types)
            .finish_non_exhaustive()
    }
}

impl Accumulator for WideAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = self.widen(values)?;
        self.wide.update_batch(&values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        narrow_scalar(&self.wide.evaluate()?, &self.types)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.wide.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.wide.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.wide.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = self.widen(values)?;
        self.wide.retract_batch(&values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.wide.supports_retract_batch()
    }
}

/// A sum for each group.
pub(super) struct WideGroups {
    wide: Box<dyn GroupsAccumulator>,
    types: Types,
}

impl WideGroups {
    pub(super) fn new(wide: Box<dyn GroupsAccumulator>, types: Types) -> Self {
        Self { wide, types }
    }

    fn widen(&self, values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        values
            .iter()
            .map(|values| widen(values, &self.types))
            .collect()
    }
}

impl GroupsAccumulator for WideGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let values = self.widen(values)?;
        self.wide
            .update_batch(&values, group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        narrow(&self.wide.evaluate(emit_to)?, &self.types)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.wide.state(emit_to)
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.wide
            .merge_batch(values, group_indices, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        self.wide.convert_to_state(&self.widen(values)?, opt_filter)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.wide.size()
    }
}

/// The sum of the distinct BIGINTs in a window, which the stock sum knows in no wider type.
#[derive(Debug)]
pub(super) struct SlidingDistinctSum {
    /// How often each is in the window.
    counts: HashMap<i64, u64>,
    sum: i128,
    types: Types,
}

impl SlidingDistinctSum {
    pub(super) fn new(types: Types) -> Self {
        Self {
            counts: HashMap::new(),
            sum: 0,
            types,
        }
    }
}

impl Accumulator for SlidingDistinctSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Int64Type>().iter().flatten() {
            let count = self.counts.entry(value).or_default();
            if *count == 0 {
                self.sum += i128::from(value);
            }
            *count += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Int64Type>().iter().flatten() {
            if let Some(count) = self.counts.get_mut(&value) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&value);
                    self.sum -= i128::from(value);
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.counts.is_empty() {
            return Ok(ScalarValue::Int64(None));
        }
        let sum = ScalarValue::Decimal128(Some(self.sum), 38, 0);
        narrow_scalar(&sum, &self.types)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i64, u64)>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = self.counts.keys().copied();
        let values: Vec<_> = values
            .map(|value| ScalarValue::Int64(Some(value)))
            .collect();
        let list = ScalarValue::new_list_nullable(&values, &DataType::Int64);
        Ok(vec![ScalarValue::List(list)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let lists = states[0].as_list::<i32>();
        for list in lists.iter().flatten() {
            self.update_batch(&[list])?;
        }
        Ok(())
    }
}
