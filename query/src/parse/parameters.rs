//! Which tokens are parameters.
//!
//! In PostgreSQL's dialect `?` is a JSON operator and `$1` a parameter. Drivers that know only `?` as a parameter are
//! understood by where it stands: a `?` that has no operand before it cannot be the operator.

use datafusion::common::DataFusionError;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Highest parameter that a statement may have; PostgreSQL's limit.
const PARAMETER_LIMIT: usize = 65_535;

/// Turns each `?` without an operand before it into the parameter of its number, in written order, and gives how many
/// values the statement takes.
pub(super) fn mark(tokens: &mut [TokenWithSpan]) -> Result<usize, DataFusionError> {
    let numbered = highest_number(tokens)?;
    let marks = number_marks(tokens);
    let count = numbered.max(marks);
    if numbered > 0 && marks > 0 {
        return Err(refusal(
            "the statement has parameters of both kinds, ? and $1: use one of them",
        ));
    }
    if count > PARAMETER_LIMIT {
        return Err(refusal(&format!(
            "the statement has {count} parameters, the limit is {PARAMETER_LIMIT}"
        )));
    }
    Ok(count)
}

/// What stands before a `?` that was written behind an operator without a blank.
pub(super) fn operator_before_mark(token: &Token) -> Option<&str> {
    let Token::CustomBinaryOperator(operator) = token else {
        return None;
    };
    let operator = operator.strip_suffix('?')?;
    (!operator.is_empty() && !operator.contains('?')).then_some(operator)
}

fn refusal(reason: &str) -> DataFusionError {
    DataFusionError::Plan(reason.to_owned())
}

fn highest_number(tokens: &[TokenWithSpan]) -> Result<usize, DataFusionError> {
    let mut highest = 0;
    for token in tokens {
        if let Token::Placeholder(name) = &token.token {
            let number = name
                .strip_prefix('$')
                .and_then(|number| number.parse().ok())
                .filter(|number| *number > 0);
            let Some(number) = number else {
                return Err(refusal(&format!(
                    "parameter {name}: parameters are numbered, $1 is the first"
                )));
            };
            highest = highest.max(number);
        }
    }
    Ok(highest)
}

fn number_marks(tokens: &mut [TokenWithSpan]) -> usize {
    let mut after_operand = false;
    let mut count = 0;
    for token in tokens {
        if let Token::Whitespace(_) = token.token {
            continue;
        }
        if token.token == Token::Question && !after_operand {
            count += 1;
            token.token = Token::Placeholder(format!("${count}"));
        }
        after_operand = ends_operand(&token.token);
    }
    count
}

/// Whether a value can end with `token`.
fn ends_operand(token: &Token) -> bool {
    match token {
        Token::Word(word) => !matches!(
            word.keyword,
            Keyword::AND
                | Keyword::BETWEEN
                | Keyword::BY
                | Keyword::CASE
                | Keyword::DISTINCT
                | Keyword::ELSE
                | Keyword::ESCAPE
                | Keyword::FROM
                | Keyword::HAVING
                | Keyword::ILIKE
                | Keyword::IN
                | Keyword::LIKE
                | Keyword::LIMIT
                | Keyword::NOT
                | Keyword::OFFSET
                | Keyword::ON
                | Keyword::OR
                | Keyword::SELECT
                | Keyword::THEN
                | Keyword::TO
                | Keyword::VALUES
                | Keyword::WHEN
                | Keyword::WHERE
        ),
        Token::RParen
        | Token::RBracket
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::HexStringLiteral(_)
        | Token::DollarQuotedString(_)
        | Token::Placeholder(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    /// The statement with its parameters numbered, and how many values it takes.
    fn marked(sql: &str) -> (String, usize) {
        let parsed = parse(sql).unwrap();
        (parsed.statement.to_string(), parsed.parameter_count)
    }

    #[test]
    fn a_mark_needs_no_blank_before_it() {
        assert_eq!(
            marked("SELECT -? FROM t WHERE a>=? AND b<? AND c<>? AND d->>'e'=? AND f||? = g AND h->>? = 'i'"),
            (
                "SELECT -$1 FROM t WHERE a >= $2 AND b < $3 AND c <> $4 AND d ->> 'e' = $5 AND f || $6 = g AND h ->> $7 = 'i'".to_owned(),
                7
            )
        );
    }

    #[test]
    fn many_marks_are_no_operators() {
        let sql = format!("SELECT a FROM t WHERE b IN (?{})", ", ?".repeat(4_999));
        assert_eq!(marked(&sql).1, 5_000);
    }

    #[test]
    fn question_mark_is_the_operator_after_a_value_and_a_parameter_elsewhere() {
        for (sql, expected, count) in [
            (
                "SELECT _payload ? 'a' FROM t",
                "SELECT _payload ? 'a' FROM t",
                0,
            ),
            (
                "SELECT a FROM t WHERE b = ? AND c BETWEEN ? AND ? AND d IN (?, ?) LIMIT ?",
                "SELECT a FROM t WHERE b = $1 AND c BETWEEN $2 AND $3 AND d IN ($4, $5) LIMIT $6",
                6,
            ),
            (
                "SELECT (a->'b') ? 'c' FROM t",
                "SELECT (a -> 'b') ? 'c' FROM t",
                0,
            ),
            (
                "SELECT ?, p ? ? FROM t WHERE x LIKE ? ESCAPE '!'",
                "SELECT $1, p ? $2 FROM t WHERE x LIKE $3 ESCAPE '!'",
                3,
            ),
            ("SELECT '?', \"?\", $$?$$", "SELECT '?', \"?\", $$?$$", 0),
        ] {
            assert_eq!(marked(sql), (expected.to_owned(), count));
        }
    }

    #[test]
    fn numbers_count_to_the_highest() {
        assert_eq!(marked("SELECT $3, $1, $1").1, 3);
        for refused in ["SELECT $0", "SELECT $a", "SELECT $1, ?", "SELECT $65536"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
        assert_eq!(marked("SELECT $65535").1, 65_535);
    }
}
