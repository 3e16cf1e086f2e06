//! PUB-26: a client that is killed in the middle of a query that spills.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{ServerProcess, binary, deadline, now};

/// Sorts far more than the server lets queries have, and goes on for minutes.
const HEAVY: &str = "SELECT a.value, repeat('x', 200) AS text FROM generate_series(1, 20000000) a ORDER BY a.value % 1000, text, a.value DESC";

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    // What is spilled comes and goes while it is looked at.
    let bytes = |path: std::path::PathBuf| match path.is_dir() {
        true => bytes_below(&path),
        false => std::fs::metadata(path).map_or(0, |file| file.len()),
    };
    entries.flatten().map(|entry| bytes(entry.path())).sum()
}

fn until(what: &str, limit: std::time::Instant, condition: impl Fn() -> bool) {
    while !condition() {
        assert!(now() < limit, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn pub_26_what_a_killed_client_made_the_server_spill_is_gone_in_two_seconds() {
    let data = tempfile::tempdir().expect("folder");
    let settings = ["query.memory_bytes=67108864", "query.max_concurrent=1"];
    let server = ServerProcess::start(data.path(), &settings);
    let spill = data.path().join("spill");
    for _ in 0..3 {
        let mut client = binary()
            .args(["sql", HEAVY, "--server", &server.address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        until("nothing is spilled", deadline(), || {
            bytes_below(&spill) > 4 << 20
        });
        // SIGKILL: nobody says goodbye.
        client.kill().expect("it runs");
        client.wait().expect("an end");
        let two_seconds = now() + Duration::from_secs(2);
        until("it is not free after two seconds", two_seconds, || {
            bytes_below(&spill) == 0
                && server.metric("basalt_queries_running") == 0
                && server.metric("basalt_query_memory_bytes") == 0
        });
        // It had the only place.
        assert_eq!(server.sql_value("SELECT 1 + 1"), "2");
    }
    server.stop();
}
