//! What is said in words that PostgreSQL's grammar has not.
//!
//! `FROM t AS OF '<token>'` reads a snapshot again, and so does the whole statement: its topics are read as of that one
//! snapshot. `CANCEL '<id>'` is `SELECT cancel_query('<id>') AS cancelled`.

use datafusion::common::DataFusionError;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::control::CANCEL_FUNCTION;

/// Removes each `AS OF '<token>'`, and gives the token.
pub(super) fn take_as_of(
    tokens: &mut Vec<TokenWithSpan>,
) -> Result<Option<String>, DataFusionError> {
    let written: Vec<usize> = (0..tokens.len())
        .filter(|index| !matches!(tokens[*index].token, Token::Whitespace(_)))
        .collect();
    let mut found: Option<String> = None;
    let mut removed = vec![false; tokens.len()];
    for window in written.windows(4) {
        let [name, alias, of, text] = *window else {
            continue;
        };
        if !(is_word(&tokens[alias].token, "AS") && is_word(&tokens[of].token, "OF")) {
            continue;
        }
        let Token::SingleQuotedString(text) = &tokens[text].token else {
            // A column or a table may be called that: `SELECT a AS of`.
            continue;
        };
        if !matches!(tokens[name].token, Token::Word(_)) {
            return Err(refusal("AS OF stands behind the name of a topic"));
        }
        match &found {
            Some(other) if other != text => {
                return Err(refusal(
                    "the statement names two snapshots: all its topics are read as of one",
                ));
            }
            _ => found = Some(text.clone()),
        }
        for index in &window[1..] {
            removed[*index] = true;
        }
    }
    let mut removed = removed.into_iter();
    tokens.retain(|_| !removed.next().unwrap_or(false));
    Ok(found)
}

/// `CANCEL '<id>'` as the call that it stands for; anything else as it is.
pub(super) fn cancel_as_select(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let written: Vec<&TokenWithSpan> = tokens
        .iter()
        .filter(|token| !matches!(token.token, Token::Whitespace(_) | Token::EOF))
        .collect();
    let id = match written.as_slice() {
        [cancel, id] if is_word(&cancel.token, "CANCEL") => *id,
        [cancel, id, end] if is_word(&cancel.token, "CANCEL") && end.token == Token::SemiColon => {
            *id
        }
        _ => return tokens,
    };
    if !matches!(
        id.token,
        Token::SingleQuotedString(_) | Token::Placeholder(_) | Token::Question
    ) {
        return tokens;
    }
    [
        Token::make_keyword("SELECT"),
        Token::make_word(CANCEL_FUNCTION, None),
        Token::LParen,
        id.token.clone(),
        Token::RParen,
        Token::make_keyword("AS"),
        Token::make_word("cancelled", None),
    ]
    .map(|token| TokenWithSpan::new(token, id.span))
    .to_vec()
}

fn is_word(token: &Token, text: &str) -> bool {
    matches!(
        token,
        Token::Word(Word { value, quote_style: None, .. }) if value.eq_ignore_ascii_case(text)
    )
}

fn refusal(reason: &str) -> DataFusionError {
    DataFusionError::Plan(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    fn parsed(sql: &str) -> (String, Option<String>) {
        let parsed = parse(sql).unwrap();
        (parsed.statement.to_string(), parsed.as_of)
    }

    #[test]
    fn a_snapshot_is_taken_out_wherever_a_topic_is_named() {
        for (sql, plain) in [
            ("SELECT a FROM t AS OF 'x'", "SELECT a FROM t"),
            (
                "SELECT a FROM t as of 'x' WHERE b = 'y'",
                "SELECT a FROM t WHERE b = 'y'",
            ),
            (
                "SELECT a FROM \"t-1\" AS OF 'x' AS f",
                "SELECT a FROM \"t-1\" AS f",
            ),
            (
                "SELECT a FROM t AS OF 'x' f JOIN u AS\n OF 'x' USING (b)",
                "SELECT a FROM t f JOIN u USING(b)",
            ),
            (
                "EXPLAIN SELECT a FROM t AS OF 'x'",
                "EXPLAIN SELECT a FROM t",
            ),
        ] {
            assert_eq!(
                parsed(sql),
                (parsed(plain).0, Some("x".to_owned())),
                "{sql}"
            );
        }
        assert_eq!(parsed("SELECT a AS of FROM t").1, None);
        assert_eq!(parsed("SELECT $$AS OF 'x'$$").1, None);
        for refused in [
            "SELECT a FROM t AS OF 'x' JOIN u AS OF 'y' USING (b)",
            "SELECT a FROM (SELECT 1) AS OF 'x'",
            "SELECT a FROM t AS OF x",
            "SELECT a FROM t AS OF 1",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn cancel_is_a_statement_of_one_id() {
        let call = "SELECT cancel_query('a-1') AS cancelled";
        assert_eq!(parsed("CANCEL 'a-1'").0, call);
        assert_eq!(parsed(" cancel\n'a-1' ; ").0, call);
        assert_eq!(parse("CANCEL ?").unwrap().parameter_count, 1);
        for refused in [
            "CANCEL",
            "CANCEL a-1",
            "CANCEL 'a' 'b'",
            "CANCEL 1",
            "\"CANCEL\" 'a'",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }
}
