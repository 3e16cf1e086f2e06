//! Stamps beside moments that their unit cannot say.
//!
//! A constant is compared as the stamp at or before it, with the operator that then says the same: whole milliseconds before
//! `09.0005` are those up to `09.000`. Left to DataFusion, it would be cut to the column's unit and compared by the operator as
//! it stands. A constant beyond the unit's range (the years 1 and 9999 of many programs, for nanoseconds) is later, or
//! earlier, than every stamp. Where both sides are stamps of records, the coarser one becomes the finer; beyond that one's range it is
//! unknown (NULL), as `_timestamp` is, and does not fail the query.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::{Between, Cast, InList, TryCast};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, lit};

const DAY_NS: i128 = 86_400_000_000_000;

/// A comparison of stamps, rewritten if it has to be.
pub(super) fn binary(comparison: &BinaryExpr, left: &DataType, right: &DataType) -> Option<Expr> {
    let BinaryExpr {
        left: left_side,
        op,
        right: right_side,
    } = comparison;
    if let Some(floor) = Floor::of(right_side, left) {
        return floor.compare(left_side, *op);
    }
    if let Some(floor) = Floor::of(left_side, right) {
        return floor.compare(right_side, op.swap()?);
    }
    let (left_unit, right_unit) = (unit_ns(left)?, unit_ns(right)?);
    let finer = |side: &Expr, data_type: &DataType| {
        Expr::TryCast(TryCast::new(Box::new(side.clone()), data_type.clone()))
    };
    let (left_side, right_side) = match left_unit.cmp(&right_unit) {
        std::cmp::Ordering::Greater => (finer(left_side, right), right_side.as_ref().clone()),
        std::cmp::Ordering::Less => (left_side.as_ref().clone(), finer(right_side, left)),
        std::cmp::Ordering::Equal => return None,
    };
    Some(compared(left_side, *op, right_side))
}

/// `BETWEEN` constants.
pub(super) fn range(between: &Between, schema: &DFSchema) -> Option<Expr> {
    let data_type = between.expr.get_type(schema).ok()?;
    let low = Floor::of(&between.low, &data_type);
    let high = Floor::of(&between.high, &data_type);
    if low.is_none() && high.is_none() {
        return None;
    }
    Some(Expr::Between(Between {
        low: low.map_or_else(
            || between.low.clone(),
            |floor| Box::new(floor.at_or_after()),
        ),
        high: high.map_or_else(|| between.high.clone(), |floor| Box::new(floor.stamp)),
        ..between.clone()
    }))
}

/// `IN` constants.
pub(super) fn list(list: &InList, schema: &DFSchema) -> Option<Expr> {
    let data_type = list.expr.get_type(schema).ok()?;
    let floors: Vec<_> = list
        .list
        .iter()
        .map(|moment| Floor::of(moment, &data_type))
        .collect();
    let never = floors
        .iter()
        .flatten()
        .find(|floor| !floor.is_exact)
        .cloned();
    if floors.iter().all(Option::is_none) {
        return None;
    }
    // No stamp is a moment that it cannot say.
    let items: Vec<Expr> = list
        .list
        .iter()
        .zip(floors)
        .filter_map(|(moment, floor)| match floor {
            None => Some(moment.clone()),
            Some(floor) => floor.is_exact.then_some(floor.stamp),
        })
        .collect();
    match (items.is_empty(), never) {
        (true, Some(floor)) => {
            let op = match list.negated {
                true => Operator::NotEq,
                false => Operator::Eq,
            };
            floor.compare(&list.expr, op)
        }
        _ => Some(Expr::InList(InList {
            list: items,
            ..list.clone()
        })),
    }
}

/// The stamp at or before a moment.
#[derive(Debug, Clone)]
struct Floor {
    stamp: Expr,
    /// The next one; there is none in the range of the unit behind the last.
    next: Expr,
    /// Whether it is the moment.
    is_exact: bool,
}

impl Floor {
    /// `None` where `moment` is no constant, or can be compared with `stamps` as it is.
    fn of(moment: &Expr, stamps: &DataType) -> Option<Self> {
        let DataType::Timestamp(unit, zone) = stamps else {
            return None;
        };
        let unit_ns = unit_ns(stamps)?;
        let moment = constant(moment)?;
        if moment.data_type() == *stamps {
            return None;
        }
        let ns = nanoseconds(&moment)?;
        let floor = ns.div_euclid(unit_ns);
        // No record has the first or the last stamp of a unit: in nanoseconds those that would are NULL.
        let (value, in_range) = match i64::try_from(floor) {
            Ok(value) => (value, true),
            Err(_) if floor > 0 => (i64::MAX, false),
            Err(_) => (i64::MIN, false),
        };
        let stamp = |value| {
            let zone = zone.clone();
            let value = Some(value);
            lit(match unit {
                TimeUnit::Second => ScalarValue::TimestampSecond(value, zone),
                TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(value, zone),
                TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(value, zone),
                TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(value, zone),
            })
        };
        Some(Self {
            stamp: stamp(value),
            next: stamp(value.saturating_add(1)),
            is_exact: in_range && ns.rem_euclid(unit_ns) == 0,
        })
    }

    fn at_or_after(self) -> Expr {
        match self.is_exact {
            true => self.stamp,
            false => self.next,
        }
    }

    /// `stamps` compared with the moment; `None` for what is no comparison.
    fn compare(self, stamps: &Expr, op: Operator) -> Option<Expr> {
        let than = |op, stamp: &Expr| compared(stamps.clone(), op, stamp.clone());
        if self.is_exact {
            return Some(than(op, &self.stamp));
        }
        Some(match op {
            Operator::Lt | Operator::LtEq => than(Operator::LtEq, &self.stamp),
            Operator::Gt | Operator::GtEq => than(Operator::Gt, &self.stamp),
            // Never, or always, but unknown where the stamp is.
            Operator::Eq => than(Operator::Lt, &self.stamp).and(than(Operator::Gt, &self.stamp)),
            Operator::NotEq => {
                than(Operator::LtEq, &self.stamp).or(than(Operator::Gt, &self.stamp))
            }
            Operator::IsDistinctFrom => lit(true),
            Operator::IsNotDistinctFrom => lit(false),
            _ => return None,
        })
    }
}

fn compared(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr {
        left: Box::new(left),
        op,
        right: Box::new(right),
    })
}

fn unit_ns(data_type: &DataType) -> Option<i128> {
    let DataType::Timestamp(unit, _) = data_type else {
        return None;
    };
    Some(match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    })
}

/// A literal, or one that is cast: `TIMESTAMP '...'` is.
fn constant(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value.clone()),
        Expr::Cast(Cast { expr, field }) => {
            let value = constant(expr)?;
            match value.cast_to(field.data_type()) {
                Ok(value) => Some(value),
                // A moment that its type cannot say is one all the same.
                Err(_) => unit_ns(field.data_type()).map(|_| value),
            }
        }
        _ => None,
    }
}

/// Nanoseconds since 1970 of a moment, a day, or the text of one.
fn nanoseconds(moment: &ScalarValue) -> Option<i128> {
    Some(match moment {
        ScalarValue::TimestampSecond(Some(value), _) => i128::from(*value) * 1_000_000_000,
        ScalarValue::TimestampMillisecond(Some(value), _) => i128::from(*value) * 1_000_000,
        ScalarValue::TimestampMicrosecond(Some(value), _) => i128::from(*value) * 1_000,
        ScalarValue::TimestampNanosecond(Some(value), _) => i128::from(*value),
        ScalarValue::Date32(Some(days)) => i128::from(*days) * DAY_NS,
        ScalarValue::Date64(Some(ms)) => i128::from(*ms) * 1_000_000,
        ScalarValue::Utf8(Some(_))
        | ScalarValue::Utf8View(Some(_))
        | ScalarValue::LargeUtf8(Some(_)) => {
            let as_unit = |unit| {
                let stamp = moment.cast_to(&DataType::Timestamp(unit, Some("UTC".into())));
                stamp.ok().filter(|stamp| !stamp.is_null())
            };
            // A moment out of the range of nanoseconds has no digits below microseconds that matter.
            let stamp = as_unit(TimeUnit::Nanosecond).or_else(|| as_unit(TimeUnit::Microsecond))?;
            nanoseconds(&stamp)?
        }
        _ => return None,
    })
}
