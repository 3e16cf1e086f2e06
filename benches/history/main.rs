//! What becomes of records after the append: how fast and how small they cool, how fast they are scanned, found and replayed, and
//! how soon SQL sees them. Every figure is printed beside one of the same run that bounds it.
//!
//! Run `cargo bench --bench history`, or some parts of it: `cargo bench --bench history -- cooling scans`. The table of
//! flights in the folder that `BASALT_TEST_DATA` names is used if there is one, else the bundled sample, over and over.
//! `BASALT_BENCH_PYTHON` may name a Python with the package `duckdb`, which then scans the same files.
#![allow(
    clippy::expect_used,
    clippy::cast_precision_loss,
    reason = "a bench that cannot set up has nothing to measure, and figures are rounded"
)]

mod beside;
mod cooling;
mod data;
mod hot_scans;
mod lookups;
mod measure;
mod quiet_topics;
mod scans;
mod server;
mod serving;
mod store;

/// Counts what is allocated.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// A part of the bench: its name and what runs it.
type Part = (&'static str, fn());

const PARTS: [Part; 7] = [
    ("cooling", cooling::run),
    ("scans", scans::run),
    ("hot-scans", hot_scans::run),
    ("lookups", lookups::run),
    ("serving", serving::run),
    ("quiet-topics", quiet_topics::run),
    ("beside", beside::run),
];

fn main() {
    // Cargo adds `--bench`.
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_unknown = |asked: &&String| PARTS.iter().all(|(name, _)| name != *asked);
    if let Some(unknown) = asked.iter().find(is_unknown) {
        let names = PARTS.map(|(name, _)| name).join(", ");
        eprintln!("error: there is no part `{unknown}`; there are {names}");
        std::process::exit(2);
    }
    for (name, run) in PARTS {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            println!("\n{name}");
            run();
        }
    }
}
