//! The builders of shredded columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Decimal128Builder, Float64Builder, Int64Builder, StringBuilder,
    UInt64Builder,
};

use super::form::{Form, Leaf};

/// One column's builder. Nulls are added many at a time, when a value follows or the rows end.
#[derive(Debug)]
pub(super) struct ColumnBuilder {
    kind: Kind,
    rows: usize,
}

#[derive(Debug)]
enum Kind {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Uint(UInt64Builder),
    Double(Float64Builder),
    Decimal(Decimal128Builder),
    Text(StringBuilder),
}

/// Does the same with each kind of builder.
macro_rules! each_kind {
    ($kind:expr, $builder:ident => $do:expr) => {
        match $kind {
            Kind::Bool($builder) => $do,
            Kind::Int($builder) => $do,
            Kind::Uint($builder) => $do,
            Kind::Double($builder) => $do,
            Kind::Decimal($builder) => $do,
            Kind::Text($builder) => $do,
        }
    };
}

impl ColumnBuilder {
    pub(super) fn new(form: Form) -> Self {
        let kind = match form {
            Form::Bool => Kind::Bool(BooleanBuilder::new()),
            Form::Int => Kind::Int(Int64Builder::new()),
            Form::Uint => Kind::Uint(UInt64Builder::new()),
            Form::Double | Form::DoubleShort => Kind::Double(Float64Builder::new()),
            Form::Decimal(_) => {
                Kind::Decimal(Decimal128Builder::new().with_data_type(form.data_type()))
            }
            Form::String | Form::AsciiString | Form::Json => Kind::Text(StringBuilder::new()),
        };
        Self { kind, rows: 0 }
    }

    /// Sets the value of row `row`, which is none of those set before. A value of another kind is NULL, and found when rendered.
    pub(super) fn set(&mut self, row: usize, leaf: Leaf, payload: &str, unescaped: &str) {
        self.fill(row);
        match (&mut self.kind, leaf) {
            (Kind::Bool(builder), Leaf::Bool(value)) => builder.append_value(value),
            (Kind::Int(builder), Leaf::Int(value)) => builder.append_value(value),
            (Kind::Uint(builder), Leaf::Uint(value)) => builder.append_value(value),
            (Kind::Double(builder), Leaf::Double(value)) => builder.append_value(value),
            (Kind::Decimal(builder), Leaf::Decimal(value)) => builder.append_value(value.into()),
            (Kind::Text(builder), Leaf::Text(from, to)) => {
                builder.append_option(payload.get(from..to));
            }
            (Kind::Text(builder), Leaf::Unescaped(from, to)) => {
                builder.append_option(unescaped.get(from..to));
            }
            (kind, _) => each_kind!(kind, builder => builder.append_null()),
        }
        self.rows = row + 1;
    }

    /// The array of `rows` rows.
    pub(super) fn finish(&mut self, rows: usize) -> ArrayRef {
        self.fill(rows);
        self.rows = 0;
        each_kind!(&mut self.kind, builder => Arc::new(builder.finish()))
    }

    fn fill(&mut self, rows: usize) {
        let missing = rows.saturating_sub(self.rows);
        if missing > 0 {
            each_kind!(&mut self.kind, builder => builder.append_nulls(missing));
        }
        self.rows = self.rows.max(rows);
    }
}
