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

/// The columns that the typed topic declares.
const SCHEMA: &str = r#"{"format": "json", "columns": [
    {"name": "carrier", "type": "string"}, {"name": "arr_delay", "type": "int64"}, {"name": "distance", "type": "int64"}
]}"#;

/// What is asked of a topic here and of its files elsewhere: the same, in the words of each.
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

/// The same of a topic with declared columns.
const TYPED: [Question; 3] = [
    Question {
        name: "count, sum of distances",
        ours: "SELECT count(*), sum(distance) FROM flights",
        elsewhere: "SELECT count(*), sum(distance) FROM files",
    },
    Question {
        name: "records and delay by carrier",
        ours: "SELECT carrier, count(*), avg(arr_delay) FROM flights GROUP BY 1",
        elsewhere: "SELECT carrier, count(*), avg(arr_delay) FROM files GROUP BY 1",
    },
    Question {
        name: "late flights of one carrier",
        ours: "SELECT count(*) FROM flights WHERE carrier = 'UA' AND arr_delay > 60",
        elsewhere: "SELECT count(*) FROM files WHERE carrier = 'UA' AND arr_delay > 60",
    },
];

pub(crate) fn run() {
    let shredded = produced(TopicConfig::default(), TIMES);
    beside_others(&shredded, "fields of shredded payloads", &QUESTIONS);
    let typed = TopicConfig {
        schema: Some(SCHEMA.into()),
        ..TopicConfig::default()
    };
    beside_others(&produced(typed, TIMES), "declared columns", &TYPED);
    beside_payloads();
}

/// The flights so many times, cold, with a file each time.
fn produced(config: TopicConfig, times: usize) -> Store {
    let store = Store::open();
    let config = TopicConfig {
        segment_bytes: Some(256 << 20),
        ..config
    };
    store.create("flights", config);
    let set = data::flights();
    for _ in 0..times {
        store.append("flights", set.payloads.iter().map(Vec::as_slice));
        store.cool("flights");
    }
    store
}

/// Each question here, to DataFusion alone, and to DuckDB.
fn beside_others(store: &Store, what: &str, questions: &[Question]) {
    let files = store.cold_files("flights");
    let partition = store.partition("flights");
    println!(
        "{what}: {} records in {} files of {:.0} MB together; medians of {RUNS} runs in turn",
        partition.bounds().high_watermark,
        files.len(),
        megabytes(partition.bounds().cold_bytes)
    );
    let alone = alone(store, &files);
    for question in questions {
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

/// One question by JSON functions over whole payloads, by the same functions over shredded ones, and by declared columns.
fn beside_payloads() {
    const BY_PATH: &str = QUESTIONS[1].ours;
    const BY_COLUMN: &str = TYPED[1].ours;
    let topic = |shred_json, schema: Option<&str>| {
        let config = TopicConfig {
            shred_json: Some(shred_json),
            schema: schema.map(Into::into),
            ..TopicConfig::default()
        };
        produced(config, TIMES / 10)
    };
    let (whole, shredded, typed) = (
        topic(false, None),
        topic(true, None),
        topic(false, Some(SCHEMA)),
    );
    let (payloads, fields) = in_turn(
        || assert!(whole.rows(BY_PATH) > 0),
        || assert!(shredded.rows(BY_PATH) > 0),
    );
    let (again, columns) = in_turn(
        || assert!(whole.rows(BY_PATH) > 0),
        || assert!(typed.rows(BY_COLUMN) > 0),
    );
    println!(
        "{}, cold: by JSON functions over whole payloads {:.1} ms; over shredded ones {:.1} ms, {:.1} times as fast; by declared \
         columns {:.1} ms, {:.1} times as fast as over whole payloads",
        QUESTIONS[1].name,
        payloads * 1e3,
        fields * 1e3,
        payloads / fields,
        columns * 1e3,
        again / columns,
    );
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
