//! SQL text to a statement.
//!
//! The dialect is PostgreSQL's ([`dialect`]): it has the JSON operators. Which `?` are parameters is told by where they
//! stand ([`parameters`]). What PostgreSQL has not, `AS OF` and `CANCEL`, is taken out before it is parsed ([`extensions`]).

mod dialect;
mod extensions;
mod parameters;

use datafusion::common::DataFusionError;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use crate::inferred::PREFIX;
use dialect::BoundedDialect;

/// Nesting of parentheses and subqueries that is followed before a statement is refused.
const NESTING_LIMIT: usize = 50;
/// Expressions that parsing may begin, a token; it begins one more than once where it has to try.
const STEPS_A_TOKEN: usize = 8;
/// And how many more, for short statements.
const STEPS: usize = 10_000;
/// Operators in a statement. A chain of them is a tree as deep as the chain is long, which planning, and even forgetting
/// it again, walks on the stack, in time that grows with its square. Lists of values are flat and have no such limit.
const OPERATOR_LIMIT: usize = 1_000;

/// A statement that was read.
pub(crate) struct Parsed {
    pub(crate) statement: Statement,
    /// Values that it takes: the number of its `?`, or its highest `$n`.
    pub(crate) parameter_count: usize,
    /// The snapshot that it is to read again.
    pub(crate) as_of: Option<String>,
    /// Quoted names in it that begin with [`PREFIX`], each once.
    pub(crate) payload_columns: Vec<String>,
}

/// Values that `sql` takes, without a look at the rest of it.
pub(crate) fn parameter_count(sql: &str) -> Result<usize, DataFusionError> {
    parameters::mark(&mut tokens(sql)?)
}

fn tokens(sql: &str) -> Result<Vec<TokenWithSpan>, DataFusionError> {
    let found = Tokenizer::new(&BoundedDialect::new(0), sql)
        .tokenize_with_location()
        .map_err(ParserError::from)?;
    let mut tokens = Vec::with_capacity(found.len());
    for token in found {
        match parameters::operator_before_mark(&token.token) {
            // `>=?` is one operator in PostgreSQL, which has no use for it.
            Some(operator) => {
                let operator = Tokenizer::new(&BoundedDialect::new(0), operator)
                    .tokenize()
                    .map_err(ParserError::from)?;
                let pieces = operator.into_iter().chain([Token::Question]);
                tokens.extend(pieces.map(|piece| TokenWithSpan::new(piece, token.span)));
            }
            None => tokens.push(token),
        }
    }
    Ok(tokens)
}

/// Parses exactly one statement.
pub(crate) fn parse(sql: &str) -> Result<Parsed, DataFusionError> {
    let mut tokens = extensions::cancel_as_select(tokens(sql)?);
    let as_of = extensions::take_as_of(&mut tokens)?;
    // First: a `?` that is no operator does not count as one.
    let parameter_count = parameters::mark(&mut tokens)?;
    refuse_deep(&tokens)?;
    let payload_columns = payload_columns(&tokens);
    let dialect = BoundedDialect::new(STEPS + tokens.len() * STEPS_A_TOKEN);
    let mut statements = DFParserBuilder::new(tokens)
        .with_dialect(&dialect)
        .with_recursion_limit(NESTING_LIMIT)
        .build()?
        .parse_statements()?;
    match (statements.pop_front(), statements.len()) {
        (Some(statement), 0) => Ok(Parsed {
            statement,
            parameter_count,
            as_of,
            payload_columns,
        }),
        (None, _) => Err(DataFusionError::Plan(
            "the text holds no statement".to_owned(),
        )),
        (Some(_), more) => Err(DataFusionError::Plan(format!(
            "the text holds {} statements, send one at a time",
            more + 1
        ))),
    }
}

fn payload_columns(tokens: &[TokenWithSpan]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for token in tokens {
        if let Token::Word(word) = &token.token
            && word.quote_style == Some('"')
            && word.value.starts_with(PREFIX)
            && !names.contains(&word.value)
        {
            names.push(word.value.clone());
        }
    }
    names
}

/// Refuses what would take too much stack.
fn refuse_deep(tokens: &[TokenWithSpan]) -> Result<(), DataFusionError> {
    let mut operators = tokens.iter().filter(|token| is_operator(&token.token));
    match operators.nth(OPERATOR_LIMIT) {
        Some(_) => Err(DataFusionError::Plan(format!(
            "the statement has more than {OPERATOR_LIMIT} operators"
        ))),
        None => Ok(()),
    }
}

/// Whether `token` can stand between, before or behind operands, or statements, and so make a tree one deeper.
fn is_operator(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::AT
                | Keyword::BETWEEN
                | Keyword::COLLATE
                | Keyword::EXCEPT
                | Keyword::ILIKE
                | Keyword::IN
                | Keyword::INTERSECT
                | Keyword::INTERVAL
                | Keyword::IS
                | Keyword::JOIN
                | Keyword::LIKE
                | Keyword::NOT
                | Keyword::OR
                | Keyword::SIMILAR
                | Keyword::UNION
        ),
        Token::Whitespace(_)
        | Token::Comma
        | Token::LParen
        | Token::RParen
        | Token::RBracket
        | Token::Period
        | Token::SemiColon
        | Token::EOF
        | Token::Number(..)
        | Token::Char(_)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::NationalStringLiteral(_)
        | Token::UnicodeStringLiteral(_)
        | Token::HexStringLiteral(_)
        | Token::DollarQuotedString(_)
        | Token::Placeholder(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(sql: &str) -> String {
        parse(sql).unwrap().statement.to_string()
    }

    #[test]
    fn exactly_one_statement_is_taken() {
        assert!(parse("").is_err());
        assert!(parse("SELECT 1; SELECT 2").is_err());
        assert_eq!(normalised("SELECT 1;"), "SELECT 1");
    }

    #[test]
    fn columns_of_payloads_are_named_in_quotes() {
        let sql = r#"SELECT "payload.b", t."payload.a", payload.c, 'payload.d' FROM t WHERE "payload.b" > "_offset""#;
        assert_eq!(
            parse(sql).unwrap().payload_columns,
            ["payload.b", "payload.a"]
        );
    }

    #[test]
    fn chains_are_bounded_and_lists_are_not() {
        for chained in [
            "+1",
            " OR 1=1",
            "->'a'",
            "::int",
            " IS NULL",
            " UNION SELECT 1",
            "[1]",
        ] {
            let sql = |times| format!("SELECT 1{}", chained.repeat(times));
            assert!(parse(&sql(100)).is_ok(), "{chained}");
            assert!(parse(&sql(5_000)).is_err(), "{chained}");
        }
        assert!(parse(&format!("SELECT 1 IN (0{})", ",'x'".repeat(100_000))).is_ok());
        assert!(parse(&format!("VALUES (0){}", ",(1)".repeat(100_000))).is_ok());
    }

    #[test]
    fn unfinished_nesting_is_refused_in_no_time() {
        for open in [
            "CASE WHEN true THEN ",
            "(",
            "(SELECT ",
            "abs(",
            "CAST(",
            "ARRAY[",
            "- ",
            "EXISTS(",
        ] {
            for depth in [5, 10, 20, 40, 200] {
                let plain = open.repeat(depth);
                let mixed = format!("{open}CAST(coalesce(1, ").repeat(depth);
                assert!(parse(&format!("SELECT {plain}")).is_err(), "{plain}");
                assert!(parse(&format!("SELECT {mixed}")).is_err(), "{mixed}");
            }
        }
        for open in ["(", "(SELECT * FROM ", "LATERAL ("] {
            for depth in [5, 10, 20, 40, 200] {
                let sql = format!("SELECT * FROM {}", open.repeat(depth));
                assert!(parse(&sql).is_err(), "{sql}");
            }
        }
    }

    #[test]
    fn nesting_that_ends_is_parsed() {
        for (open, close) in [
            ("coalesce(1, ", ")"),
            ("CASE WHEN true THEN ", " END"),
            ("CAST(", " AS INT)"),
            ("(", ")"),
            ("abs(1 + ", ")"),
        ] {
            let sql = format!("SELECT {}1{}", open.repeat(12), close.repeat(12));
            assert!(parse(&sql).is_ok(), "{sql}");
        }
        let sql = format!(
            "{}SELECT 1{}",
            "SELECT * FROM (".repeat(12),
            ") t".repeat(12)
        );
        assert!(parse(&sql).is_ok(), "{sql}");
    }

    #[test]
    fn deep_nesting_is_refused_and_not_followed() {
        let sql = format!("SELECT {}1{}", "(".repeat(10_000), ")".repeat(10_000));
        assert!(parse(&sql).is_err());
    }
}
