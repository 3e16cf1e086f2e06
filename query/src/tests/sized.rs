//! One call cannot fill the memory.

use tonic::Code;

use super::Fixture;

#[tokio::test]
async fn a_call_that_would_make_too_much_is_refused_with_the_limit() {
    let fixture = Fixture::new().await;
    for sql in [
        "SELECT length(lpad('x', 300000000))",
        "SELECT length(rpad('x', 300000000, 'ab'))",
        "SELECT length(repeat('x', 1000000000))",
        "SELECT length(repeat('0123456789', value)) FROM generate_series(1000000, 1001000)",
        "SELECT length(replace(repeat('a', 1000000), 'a', repeat('b', 1000)))",
        "SELECT length(replace(repeat('a', 1000000), '', repeat('b', 1000)))",
        "SELECT cardinality(array_repeat(1, 100000000))",
        "SELECT cardinality(list_repeat('abc', 100000000))",
        "SELECT cardinality(array_resize([1, 2], 1000000000, 0))",
        "SELECT cardinality(range(1000000000))",
        "SELECT cardinality(range(1, 1000000000, 2))",
        "SELECT cardinality(generate_series(1, 1000000000))",
        "SELECT cardinality(generate_series(TIMESTAMP '2020-01-01', TIMESTAMP '2020-01-02', INTERVAL '1 nanosecond'))",
        "SELECT cardinality(range(1, value * 100000)) FROM generate_series(1, 3000)",
    ] {
        let error = fixture.error(sql).await;
        assert_eq!(
            error.status().code(),
            Code::InvalidArgument,
            "{sql}: {error}"
        );
        assert!(
            error.to_string().contains("the limit is 268435456"),
            "{sql}: {error}"
        );
    }
}

#[tokio::test]
async fn a_call_that_fits_is_answered() {
    let fixture = Fixture::new().await;
    for (sql, expected) in [
        (
            "SELECT lpad('x', 3), rpad('é', 3, 'ö'), lpad('abc', 2), lpad('a', -1), lpad(NULL, 3)",
            "  x|éöö|ab||",
        ),
        (
            "SELECT repeat('ab', 2), repeat('x', -5), length(repeat('x', 1000000))",
            "abab||1000000",
        ),
        (
            "SELECT replace('banana', 'a', 'oo'), length(replace(repeat('xa', 1000000), 'a', ''))",
            "boonoonoo|1000000",
        ),
        // More than the limit if it stood everywhere, which it does not.
        (
            "SELECT length(replace(repeat('a', 1000000), 'b', repeat('c', 1000)))",
            "1000000",
        ),
        (
            "SELECT array_repeat(1, 2), array_resize([1], 2, 5), range(3), generate_series(3, 1, -1)",
            "[1, 1]|[1, 5]|[0, 1, 2]|[3, 2, 1]",
        ),
        (
            "SELECT range(DATE '2020-01-01', DATE '2020-03-01', INTERVAL '1 month')",
            "[2020-01-01, 2020-02-01]",
        ),
        (
            "SELECT sum(cardinality(range(value))) FROM generate_series(1, 2000)",
            "2001000",
        ),
    ] {
        let rows = fixture.rows(sql).await;
        let trimmed = expected.trim();
        assert_eq!(rows, [trimmed], "{sql}");
    }
}
