//! Numbers that do not fit.

use basalt_proto::Frame;
use tonic::Code;

use super::{Fixture, TIERS, rows_of};

const MAX: &str = "9223372036854775807";
const MIN: &str = "-9223372036854775808";

/// Every statement whose rows are others than expected.
async fn differing(fixture: &Fixture, cases: &[(&str, Vec<&str>)]) -> Vec<String> {
    let mut differing = Vec::new();
    for (sql, expected) in cases {
        let rows = match fixture.batches(sql).await {
            Ok(batches) => rows_of(&batches),
            Err(error) => vec![error.to_string()],
        };
        if rows != *expected {
            differing.push(format!("{sql}: {rows:?}"));
        }
    }
    differing
}

async fn refused(fixture: &Fixture, sql: &str) {
    let error = fixture.error(sql).await;
    assert_eq!(error.status().code(), Code::InvalidArgument, "{sql}");
    let text = error.to_string().to_lowercase();
    let named = ["overflow", "does not fit", "too large", "out of range"];
    assert!(
        named.iter().any(|name| text.contains(name)),
        "{sql}: {error}"
    );
}

/// Stock DataFusion gave a negative total for large positive numbers, without an error.
#[tokio::test]
async fn pub_26_a_sum_that_does_not_fit_is_an_error_and_a_decimal_has_room() {
    let payloads = [r#"{"n":9000000000000000000,"g":1}"#; 2];
    let stamp = 1_700_000_000_000_000_000;
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("two", 1, 1 << 20).await;
        let two: Vec<_> = payloads
            .iter()
            .map(|payload| Frame::record(1, b"", payload.as_bytes()))
            .collect();
        fixture.place("two", tier, &two).await;
        let n = "json_get_int(_payload, 'n')";
        for sum in [
            format!("SELECT sum({n}) FROM two"),
            format!("SELECT sum({n}) FROM two GROUP BY json_get_int(_payload, 'g')"),
            format!("SELECT sum({n}) OVER () FROM two"),
            format!("SELECT sum({n}) OVER (ORDER BY _offset) FROM two"),
            format!("SELECT sum({n}) OVER (ORDER BY _offset ROWS 1 PRECEDING) FROM two"),
            format!("SELECT sum(DISTINCT {n} + _offset) FROM two"),
            format!("SELECT sum(DISTINCT {n} + _offset), count(DISTINCT _offset) FROM two"),
            format!(
                "SELECT sum(DISTINCT {n} + _offset) OVER (ORDER BY _offset ROWS 1 PRECEDING) FROM two"
            ),
        ] {
            refused(&fixture, &sum).await;
        }
        let wide = format!("SELECT sum({n}::DECIMAL(38, 0)) FROM two");
        assert_eq!(
            fixture.rows(&wide).await,
            ["18000000000000000000"],
            "{tier:?}"
        );
        // On its way a sum may be larger than its result.
        let ends = format!(
            "SELECT sum(m) FROM (SELECT {n} m FROM two UNION ALL SELECT -{n} FROM two UNION ALL SELECT _offset FROM two)"
        );
        assert_eq!(fixture.rows(&ends).await, ["1"]);
        for (count, unsigned_fits) in [(6, true), (11, false)] {
            let topic = format!("stamps{count}");
            fixture.create(&topic, 1, 1 << 20).await;
            fixture
                .place(&topic, tier, &vec![Frame::record(stamp, b"", b""); count])
                .await;
            let raw = "arrow_cast(_timestamp, 'Int64')";
            refused(&fixture, &format!("SELECT sum({raw}) FROM {topic}")).await;
            let total = (stamp as u128 * count as u128).to_string();
            let wide = format!("SELECT sum({raw}::DECIMAL(38, 0)) FROM {topic}");
            assert_eq!(fixture.rows(&wide).await, [total.as_str()]);
            let unsigned = format!("SELECT sum(arrow_cast({raw}, 'UInt64')) FROM {topic}");
            match unsigned_fits {
                true => assert_eq!(fixture.rows(&unsigned).await, [total.as_str()]),
                false => refused(&fixture, &unsigned).await,
            }
        }
    }
}

#[tokio::test]
async fn sums_that_fit_are_what_they_were() {
    let fixture = Fixture::new().await;
    let cases = [
        (
            "SELECT sum(value) FROM generate_series(1, 100000)",
            vec!["5000050000"],
        ),
        (
            "SELECT arrow_typeof(sum(value)) FROM generate_series(1, 3)",
            vec!["Int64"],
        ),
        (
            "SELECT sum(value) FROM generate_series(1, 3) WHERE value > 5",
            vec![""],
        ),
        (
            "SELECT value % 3 g, sum(value), sum(DISTINCT value % 10), sum(value) FILTER (WHERE value > 4) FROM generate_series(1, 100000) GROUP BY g ORDER BY g",
            vec![
                "0|1666683333|45|1666683330",
                "1|1666716667|45|1666716662",
                "2|1666650000|45|1666649998",
            ],
        ),
        (
            "SELECT sum(value) OVER (ORDER BY value ROWS 1 PRECEDING) FROM generate_series(1, 4)",
            vec!["1", "3", "5", "7"],
        ),
        (
            "SELECT sum(DISTINCT value % 2) OVER (ORDER BY value ROWS 2 PRECEDING) FROM generate_series(1, 4)",
            vec!["1", "1", "1", "1"],
        ),
        (
            "SELECT sum(1.5), sum(1.25::decimal(5,2)), sum(x) FROM (VALUES (1), (NULL)) t(x)",
            vec!["3.0|2.50|1"],
        ),
        (
            "SELECT sum(TIMESTAMP '2020-01-02' - TIMESTAMP '2020-01-01') FROM generate_series(1, 2)",
            vec!["PT172800S"],
        ),
    ];
    let differing = differing(&fixture, &cases).await;
    assert!(differing.is_empty(), "{differing:#?}");
    // Nothing that goes in narrow goes round on its way through a spilled or a merged state either.
    let grouped = "SELECT count(*), max(s) FROM (SELECT value % 50000 g, sum(value) s FROM generate_series(1, 200000) GROUP BY g)";
    assert_eq!(fixture.rows(grouped).await, ["50000|500000"]);
}

#[tokio::test]
async fn pub_26_arithmetic_on_integers_is_right_or_an_error() {
    let fixture = Fixture::new().await;
    let literal = [
        format!("SELECT {MAX} + 1"),
        format!("SELECT {MIN} - 1"),
        format!("SELECT {MAX} * 2"),
        format!("SELECT -({MIN})"),
        format!("SELECT abs({MIN})"),
        "SELECT 127::TINYINT + 1::TINYINT".to_owned(),
        "SELECT 32767::SMALLINT + 1::SMALLINT".to_owned(),
        "SELECT 2147483647::INT + 1::INT".to_owned(),
        "SELECT arrow_cast(0, 'UInt64') - arrow_cast(1, 'UInt64')".to_owned(),
        format!("SELECT {MIN} / -1"),
    ];
    for sql in literal {
        refused(&fixture, &sql).await;
    }
    let column = "FROM (SELECT CAST(value AS BIGINT) + 9223372036854775806 AS n FROM generate_series(0, 1)) WHERE n > 0";
    for expression in [
        "n + 1",
        "n * 2",
        "-n - 2",
        "n - -1",
        "sum(n * 3)",
        "abs(-n - n)",
    ] {
        refused(&fixture, &format!("SELECT {expression} {column}")).await;
    }
    refused(&fixture, &format!("SELECT n {column} AND n + 1 > -5 * n")).await;
    let fits = [
        (
            format!("SELECT {MAX} + 0, {MIN} + 0, -{MAX}"),
            format!("{MAX}|{MIN}|-{MAX}"),
        ),
        (
            format!("SELECT {MAX}::DECIMAL(38,0) + 1"),
            "9223372036854775808".to_owned(),
        ),
        (
            "SELECT 2 + 3 * 4 - 5, -(-7), 7 % 3, 7 / 2, 2.5 + 1".to_owned(),
            "9|7|1|3|3.5".to_owned(),
        ),
        ("SELECT NULL + 1, 1 + NULL::int".to_owned(), "|".to_owned()),
        (format!("SELECT {MIN} % -1"), "0".to_owned()),
    ];
    let mut different = Vec::new();
    for (sql, expected) in &fits {
        different.extend(differing(&fixture, &[(sql, vec![expected])]).await);
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// The operators are functions now: names, grouping, limits, joins and correlated subqueries must not notice.
#[tokio::test]
async fn checked_operators_change_nothing_else() {
    let fixture = Fixture::new().await;
    let schema = fixture
        .engine
        .query("SELECT value + 1, -value, value * 2 - 1 AS x FROM generate_series(1, 3)")
        .await
        .unwrap()
        .schema();
    let names: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    assert_eq!(names[2], "x");
    assert!(
        names[0].contains('+') && !names[0].contains("checked"),
        "{names:?}"
    );
    let cases = [
        (
            "SELECT value + 1, count(*) FROM generate_series(1, 2) GROUP BY value + 1 ORDER BY value + 1",
            vec!["2|1", "3|1"],
        ),
        (
            "SELECT value FROM generate_series(1, 9) ORDER BY -value LIMIT 1 + 1 OFFSET 2 * 1",
            vec!["7", "6"],
        ),
        (
            "SELECT a.value FROM generate_series(1, 5) a JOIN generate_series(1, 5) b ON a.value + 3 = b.value ORDER BY 1",
            vec!["1", "2"],
        ),
        (
            "SELECT value FROM generate_series(1, 5) a WHERE value * 2 IN (SELECT value + 1 FROM generate_series(1, 5)) ORDER BY 1",
            vec!["1", "2", "3"],
        ),
        (
            "SELECT value, (SELECT max(b.value) FROM generate_series(1, 5) b WHERE b.value = a.value + 1) FROM generate_series(1, 2) a ORDER BY 1",
            vec!["1|2", "2|3"],
        ),
        (
            "SELECT CASE WHEN value = 1 THEN value + 9223372036854775806 ELSE value END FROM generate_series(1, 2) ORDER BY 1",
            vec!["2", "9223372036854775807"],
        ),
        (
            "SELECT sum(value + 1) FILTER (WHERE value - 1 > 0) FROM generate_series(1, 3)",
            vec!["7"],
        ),
        (
            "SELECT x + 1 FROM (VALUES (1 + 1), (2 * 3)) t(x) ORDER BY x + 1",
            vec!["3", "7"],
        ),
        (
            "SELECT row_number() OVER (ORDER BY -value) + value FROM generate_series(1, 2)",
            vec!["3", "3"],
        ),
        (
            "SELECT DATE '2024-01-31' + 1, DATE '2024-03-01' - DATE '2024-02-01'",
            vec!["2024-02-01|29"],
        ),
        (
            "SELECT value FROM generate_series(1, 5) UNION SELECT value + 4 FROM generate_series(1, 2) ORDER BY 1 LIMIT 2",
            vec!["1", "2"],
        ),
    ];
    let differing = differing(&fixture, &cases).await;
    assert!(differing.is_empty(), "{differing:#?}");
    let explained = fixture
        .rows("EXPLAIN SELECT value + 1 FROM generate_series(1, 2)")
        .await;
    assert!(!explained.is_empty());
}
