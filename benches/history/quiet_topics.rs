//! Many topics with small requests: files, memory and descriptors as the history grows.
//!
//! A hundred partitions with a thousand records a second each for ten minutes are 60 million records, six gigabytes of
//! payloads. They are produced as fast as requests of one record go, with segments, files and the hot window so small that all of
//! it rolls, cools and merges: what is kept depends on the records, not on the time between them.

use std::time::Duration;

use super::measure::status_bytes;
use super::server::Server;

const RECORDS: u64 = 60_000_000;
const LOOKS: usize = 10;

pub(crate) fn run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        "log.segment_bytes=4194304",
        "cold.hot_bytes=4194304",
        "cold.maintenance_interval_ms=1000",
        "log.durability=os",
    ];
    let server = Server::start(folder.path(), &settings);
    let load = |records: u64| {
        server.spawn(&[
            "bench",
            "produce",
            "--topic",
            "quiet",
            "--payload",
            "100",
            "--batch",
            "1",
            "--pipeline",
            "64",
            "--connections",
            "4",
            "--partitions",
            "100",
            "--verify",
            "count",
            "--records",
            &records.to_string(),
        ])
    };
    server.run(&["topic", "create", "quiet", "--partitions", "100"]);
    println!(
        "{:>12} {:>8} {:>8} {:>10} {:>10} {:>12}",
        "records", "files", "GB", "files/GB", "memory", "descriptors"
    );
    for look in 1..=LOOKS as u64 {
        let mut load = load(RECORDS / LOOKS as u64);
        let ended = load.wait().expect("an end");
        assert!(ended.success(), "{ended}");
        // The backlog at this moment counts too: what cooling has not reached is files as well.
        std::thread::park_timeout(Duration::from_secs(2));
        let process = server.process();
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"))
            .expect("/proc")
            .count();
        let (files, bytes) = files_below(folder.path());
        println!(
            "{:>12} {files:>8} {:>8.2} {:>10.0} {:>7.0} MB {descriptors:>12}",
            RECORDS / LOOKS as u64 * look,
            bytes as f64 / 1e9,
            files as f64 / (bytes as f64 / 1e9),
            status_bytes(&process, "RssAnon:") as f64 / 1e6,
        );
    }
}

/// Files below a folder, and their bytes.
fn files_below(folder: &std::path::Path) -> (u64, u64) {
    let mut sum = (0, 0);
    // A file may go while one looks.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else {
            continue;
        };
        let (files, bytes) = if about.is_dir() {
            files_below(&entry.path())
        } else {
            (1, about.len())
        };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    sum
}
