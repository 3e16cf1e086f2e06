//! Four questions to hot and cold records together, over Flight SQL. The JSON has no schema anywhere.

use anyhow::ensure;

use super::step;
use crate::commands::ServerArg;
use crate::commands::sql::SqlClient;
use crate::output::{SqlFormat, say};
use crate::stopwatch::Stopwatch;

struct Question {
    asks: &'static str,
    sql: &'static str,
    /// How many rows a right answer has.
    rows: u64,
}

const QUESTIONS: [Question; 4] = [
    Question {
        asks: "Where are the records? Every offset once, on both sides of the seam",
        sql: "\
SELECT CASE WHEN f._offset < p.cold_end_offset THEN 'cold: Parquet' ELSE 'hot: segments' END AS tier,
       count(*) AS flights, count(DISTINCT f._offset) AS distinct_offsets, min(f._offset) AS first, max(f._offset) AS last
FROM flights f JOIN sys.partitions p ON p.topic = 'flights' AND p.partition = f._partition
GROUP BY 1 ORDER BY first",
        rows: 2,
    },
    Question {
        asks: "Which carriers keep their customers waiting?",
        sql: "\
SELECT _payload->>'carrier' AS carrier, count(*) AS flights,
       round(avg(json_get_int(_payload, 'dep_delay')), 1) AS mean_delay_min,
       round(100.0 * count(*) FILTER (WHERE json_get_int(_payload, 'dep_delay') > 15) / count(*), 1) AS percent_late
FROM flights GROUP BY 1 HAVING count(*) >= 200 ORDER BY mean_delay_min DESC",
        rows: 8,
    },
    Question {
        asks: "When should one leave? Delays grow through the day",
        sql: "\
SELECT json_get_int(_payload, 'hour') / 6 * 6 AS from_hour, count(*) AS flights,
       count(*) - count(json_get_int(_payload, 'dep_time')) AS cancelled,
       round(avg(json_get_int(_payload, 'dep_delay')), 1) AS mean_delay_min
FROM flights GROUP BY 1 ORDER BY 1",
        rows: 4,
    },
    Question {
        asks: "The most flown routes, and the fastest flight on each",
        sql: "\
SELECT json_get_str(_payload, 'origin') || ' - ' || json_get_str(_payload, 'dest') AS route, count(*) AS flights,
       json_get_int(_payload, 'distance') AS miles, min(json_get_int(_payload, 'air_time')) AS fastest_min
FROM flights GROUP BY 1, 3 ORDER BY flights DESC, route LIMIT 5",
        rows: 5,
    },
];

pub(super) async fn run(server: &ServerArg, sample: &[u8]) -> anyhow::Result<()> {
    let took = Stopwatch::start();
    let mut session = SqlClient::connect(server).await?;
    let mut answers = String::new();
    for (number, question) in QUESTIONS.iter().enumerate() {
        let took = Stopwatch::start();
        let mut table = Vec::new();
        let rows = session
            .print(question.sql, SqlFormat::Table, &mut table)
            .await?;
        ensure!(
            rows == question.rows,
            "query {} gave {rows} rows, not {}",
            number + 1,
            question.rows
        );
        answers.push_str(&format!(
            "\n   {}) {} ({:.0} ms)\n{}\n{}",
            number + 1,
            question.asks,
            took.elapsed().as_secs_f64() * 1e3,
            indent(question.sql),
            indent(&String::from_utf8_lossy(&table))
        ));
    }
    let mut counted = Vec::new();
    session
        .print(
            "SELECT count(*) AS n FROM flights",
            SqlFormat::Csv,
            &mut counted,
        )
        .await?;
    let lines = sample.iter().filter(|byte| **byte == b'\n').count();
    ensure!(
        counted == format!("n\n{lines}\n").into_bytes(),
        "SQL does not count {lines} records"
    );
    step(
        8,
        "SQL",
        took,
        &format!("four queries over all {lines} records, hot and cold in one snapshot:"),
    )?;
    say(&answers)
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}
