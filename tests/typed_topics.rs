//! A topic gets a schema by the command line and by SQL: the same columns hot, cold, half and half and after a restart, and the same
//! bytes for consumers.

use crate::support::{ServerProcess, flights};

const SUMS: &str = "SELECT count(*) || ' ' || count(carrier) || ' ' || sum(distance) || ' ' || count(_error) FROM flights";

/// What [`SUMS`] must give, from the lines themselves.
fn expected(lines: &[u8], bad: usize) -> String {
    let text = std::str::from_utf8(lines).expect("text");
    let parsed = text.lines().map(|line| {
        let flight: serde_json::Value = serde_json::from_str(line).expect("JSON");
        flight["distance"].as_i64().expect("a number")
    });
    let distances: Vec<i64> = parsed.collect();
    let (count, sum) = (distances.len(), distances.iter().sum::<i64>());
    format!("{} {count} {sum} {bad}", count + bad)
}

fn produce(server: &ServerProcess, topic: &str, lines: &[u8]) {
    let output = server.try_basalt(&["produce", topic], lines);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn refused(server: &ServerProcess, args: &[&str]) -> String {
    let output = server.try_basalt(args, b"");
    assert!(!output.status.success(), "basalt {args:?} should fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_schema_is_inferred_set_and_answers_alike_wherever_records_lie() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().join("data");
    let lines = flights();
    let server = ServerProcess::start(&data, &[]);
    produce(&server, "flights", &lines);
    let replayed = server.basalt(&["consume", "flights", "--from", "earliest", "--to", "end"]);
    let schema = server.basalt(&["schema", "infer", "flights", "--records", "1000000"]);
    assert!(schema.contains(r#""name": "carrier""#), "{schema}");
    let file = folder.path().join("schema.json");
    std::fs::write(&file, &schema).expect("schema.json");
    let file = file.to_str().expect("path");
    server.basalt(&["topic", "alter", "flights", "--schema", file]);
    let described = server.basalt(&["topic", "describe", "flights"]);
    assert!(described.contains(r#""name": "carrier""#), "{described}");
    assert_eq!(server.sql_value(SUMS), expected(&lines, 0));

    // One bad record, half of the topic cold, then all of it.
    server.basalt(&["topic", "cool", "flights", "--wait"]);
    assert_eq!(server.sql_value(SUMS), expected(&lines, 0));
    produce(&server, "flights", b"{\"carrier\":1}\n");
    assert_eq!(server.sql_value(SUMS), expected(&lines, 1));
    server.basalt(&["topic", "cool", "flights", "--wait"]);
    assert_eq!(server.sql_value(SUMS), expected(&lines, 1));
    let error = server.sql_value("SELECT _error FROM flights WHERE _error IS NOT NULL");
    assert_eq!(error, "carrier: 1 is no string");
    server.stop();

    let server = ServerProcess::start(&data, &[]);
    assert_eq!(server.sql_value(SUMS), expected(&lines, 1));
    let again = server.basalt(&["consume", "flights", "--from", "earliest", "--to", "end"]);
    assert_eq!(
        again,
        format!("{replayed}{{\"carrier\":1}}\n"),
        "a schema changes no record"
    );
    let wrong = refused(
        &server,
        &["topic", "alter", "flights", "--config", "schema={}"],
    );
    assert!(wrong.contains("format"), "{wrong}");
    server.basalt(&["topic", "alter", "flights", "--config", "schema="]);
    assert!(refused(&server, &["sql", "SELECT carrier FROM flights"]).contains("carrier"));
    server.stop();
}

#[test]
fn topics_are_made_changed_and_dropped_by_sql() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().join("data");
    let server = ServerProcess::start(&data, &[]);
    server.basalt(&[
        "sql",
        "CREATE TABLE orders (id BIGINT, price DECIMAL(10, 2)) WITH (partitions = 2)",
    ]);
    produce(
        &server,
        "orders",
        b"{\"id\":1,\"price\":2.50,\"note\":\"x\"}\n",
    );
    let value = "SELECT id || ' ' || price FROM orders";
    assert_eq!(server.sql_value(value), "1 2.50");
    server.basalt(&["sql", "ALTER TABLE orders ADD COLUMN note VARCHAR"]);
    assert_eq!(server.sql_value("SELECT note FROM orders"), "x");
    assert!(refused(&server, &["sql", "CREATE TABLE orders (x INT)"]).contains("exists"));
    server.kill();

    let server = ServerProcess::start(&data, &[]);
    assert_eq!(server.sql_value("SELECT note FROM orders"), "x", "durable");
    server.basalt(&["sql", "DROP TABLE orders"]);
    assert!(refused(&server, &["sql", "DROP TABLE orders"]).contains("no topic"));
    server.stop();
}
