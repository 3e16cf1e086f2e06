//! Aggregates over cold files: beside DataFusion alone, and DuckDB, on the same files; and a field as a column beside the same
//! field by its JSON path.

use std::path::PathBuf;
use std::process::Command;

use basalt_log::TopicConfig;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};

use super::data;
use super::measure::{RUNS, in_turn, median, megabytes};
use super::store::Store;

/// How often the flights are produced: ten million records of a year's flights.
const TIMES: usize = 30;

/// What is asked of `flights` here and of the files elsewhere: the same, in the words of each.
struct Question {
    name: &'static str,
    ours: &'static str,
    elsewhere: &'static str,
}

const QUESTIONS: [Question; 3] = [
    Question {
        name: "count, sum of offsets, last stamp",
        ours: "SELECT count(*), sum(_offset), max(_timestamp) FROM flights",
        elsewhere: "SELECT count(*), sum(_offset), max(_timestamp) FROM files",
    },
    Question {
        name: "records and delay by carrier",
        ours: "SELECT _payload->>'carrier', count(*), avg(json_get_int(_payload, 'arr_delay')) FROM flights GROUP BY 1",
        elsewhere: "SELECT \"payload.carrier\", count(*), avg(\"payload.arr_delay\") FROM files GROUP BY 1",
    },
    Question {
        name: "late flights of one carrier",
        ours: "SELECT count(*) FROM flights WHERE _payload->>'carrier' = 'UA' AND json_get_int(_payload, 'arr_delay') > 60",
        elsewhere: "SELECT count(*) FROM files WHERE \"payload.carrier\" = 'UA' AND \"payload.arr_delay\" > 60",
    },
];

pub(crate) fn run() {
    let store = Store::open();
    let config = TopicConfig {
        segment_bytes: Some(256 << 20),
        ..TopicConfig::default()
    };
    store.create("flights", config);
    let set = data::flights();
    let mut records = 0;
    for _ in 0..TIMES {
        records += store
            .append("flights", set.payloads.iter().map(Vec::as_slice))
            .records;
        store.cool("flights");
    }
    let files = store.cold_files("flights");
    println!(
        "{records} records in {} files of {:.0} MB together; medians of {RUNS} runs in turn",
        files.len(),
        megabytes(store.partition("flights").bounds().cold_bytes)
    );
    let alone = alone(&store, &files);
    for question in &QUESTIONS {
        let (ours, theirs) = in_turn(
            || assert!(store.rows(question.ours) > 0),
            || {
                let rows = store.runtime.block_on(async {
                    let frame = alone.sql(question.elsewhere).await.expect("SQL");
                    frame.collect().await.expect("rows")
                });
                assert!(!rows.is_empty());
            },
        );
        println!(
            "{:<34} {:>8.1} ms; DataFusion alone {:>8.1} ms: {:.2} of it{}",
            question.name,
            ours * 1e3,
            theirs * 1e3,
            ours / theirs,
            duckdb(&files, question.elsewhere).map_or_else(String::new, |seconds| format!(
                "; DuckDB {:.1} ms: {:.2} of it",
                seconds * 1e3,
                ours / seconds
            )),
        );
    }
}

/// The same files as a table of DataFusion, with as many threads.
fn alone(store: &Store, files: &[PathBuf]) -> SessionContext {
    let config = SessionConfig::new().with_parquet_pruning(true);
    let context = SessionContext::new_with_config(config);
    let folder = files[0].parent().expect("a folder");
    store.runtime.block_on(async {
        context
            .register_parquet(
                "files",
                folder.to_str().expect("text"),
                ParquetReadOptions::default(),
            )
            .await
            .expect("Parquet files");
    });
    context
}

/// The median of DuckDB's runs, if there is a Python that has it.
fn duckdb(files: &[PathBuf], sql: &str) -> Option<f64> {
    const SCRIPT: &str = "\
import sys, time, duckdb
con = duckdb.connect()
con.sql(f\"CREATE VIEW files AS SELECT * FROM read_parquet({sys.argv[2:]}, union_by_name=true)\")
con.sql(sys.argv[1]).fetchall()
took = []
for _ in range(5):
    start = time.perf_counter(); con.sql(sys.argv[1]).fetchall(); took.append(time.perf_counter() - start)
print('\\n'.join(map(str, took)))
";
    let python = std::env::var_os("BASALT_BENCH_PYTHON")?;
    let output = Command::new(python)
        .args(["-c", SCRIPT, sql])
        .args(files)
        .output()
        .expect("Python starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let seconds = text.lines().map(|line| line.parse().expect("seconds"));
    Some(median(seconds.collect()))
}
