//! PostgreSQL's dialect with a bound on the parser's work.
//!
//! Where a nested expression does not parse as one thing the parser goes back and tries another, and so again at each
//! level inside: an unfinished `CAST(ABS(CAST(...` a dozen deep would keep it busy for hours, and nothing can stop it.
//! Every expression begins with a call of [`Dialect::parse_prefix`], so the calls are counted there.

use std::any::TypeId;
use std::cell::Cell;

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

/// PostgreSQL's dialect for one statement.
#[derive(Debug)]
pub(super) struct BoundedDialect {
    postgres: PostgreSqlDialect,
    steps_left: Cell<usize>,
}

impl BoundedDialect {
    /// At most `steps` expressions are begun.
    pub(super) fn new(steps: usize) -> Self {
        Self {
            postgres: PostgreSqlDialect {},
            steps_left: Cell::new(steps),
        }
    }
}

/// Answers as PostgreSQL's dialect does.
macro_rules! as_postgres {
    ($($question:ident),* $(,)?) => {$(
        fn $question(&self) -> bool {
            self.postgres.$question()
        }
    )*};
}

impl Dialect for BoundedDialect {
    /// For the parser this is PostgreSQL's.
    fn dialect(&self) -> TypeId {
        self.postgres.dialect()
    }

    fn parse_prefix(&self, _parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        match self.steps_left.get() {
            // The one error after which the parser tries nothing else.
            0 => Some(Err(ParserError::RecursionLimitExceeded)),
            steps => {
                self.steps_left.set(steps - 1);
                None
            }
        }
    }

    /// Not as PostgreSQL's: with it each argument of a function is parsed twice, for `json_object(expr : value)`, which is
    /// not planned anyway.
    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    // What PostgreSQL's dialect answers differently from the default.
    as_postgres!(
        allow_extract_custom,
        allow_extract_single_quotes,
        supports_alter_column_type_using,
        supports_array_typedef_with_brackets,
        supports_bitwise_shift_operators,
        supports_comma_separated_trim,
        supports_comment_on,
        supports_comment_optimizer_hint,
        supports_create_index_with_clause,
        supports_create_table_like_parenthesized,
        supports_empty_projections,
        supports_explain_with_utility_options,
        supports_factorial_operator,
        supports_filter_during_aggregation,
        supports_geometric_types,
        supports_group_by_expr,
        supports_insert_table_alias,
        supports_interval_options,
        supports_listen_notify,
        supports_load_extension,
        supports_named_fn_args_with_colon_operator,
        supports_nested_comments,
        supports_notnull_operator,
        supports_numeric_literal_underscores,
        supports_select_wildcard_with_alias,
        supports_set_names,
        supports_string_escape_constant,
        supports_unicode_string_literal,
        supports_xml_expressions,
    );

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        self.postgres.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        self.postgres.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        self.postgres.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        self.postgres.is_identifier_part(ch)
    }

    fn is_reserved_for_identifier(&self, keyword: Keyword) -> bool {
        self.postgres.is_reserved_for_identifier(keyword)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        self.postgres.is_custom_operator_part(ch)
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        self.postgres.get_next_precedence(parser)
    }

    fn prec_value(&self, precedence: Precedence) -> u8 {
        self.postgres.prec_value(precedence)
    }
}
