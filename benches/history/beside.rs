//! What producers and consumers notice of queries that run beside them without a pause.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::data;
use super::measure::{RUNS, median};
use super::server::{Server, number};

/// How often the flights are produced: a query over them takes seconds.
const TIMES: usize = 10;
/// Queries at a time: one for each core of a small machine.
const QUERIES: usize = 2;
/// Every payload is parsed, for each of its carriers.
const HEAVY: &str = "SELECT _payload->>'carrier', _payload->>'dest', count(*), avg(json_get_int(_payload, 'arr_delay')), \
    max(json_get_int(_payload, 'distance')) FROM flights GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 5";

/// A load whose figure is compared.
struct Load {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Of its line.
    figures: &'static [&'static str],
}

const LOADS: [Load; 3] = [
    Load {
        name: "end to end, 10,000 records/s",
        arguments: &[
            "bench",
            "e2e",
            "--rate",
            "10000",
            "--duration",
            "8",
            "--warmup",
            "1",
            "--ack",
            "os",
            "--durability",
            "os",
        ],
        figures: &["p50_us", "p99_us"],
    },
    Load {
        name: "produce, as fast as it goes",
        arguments: &[
            "bench",
            "produce",
            "--duration",
            "4",
            "--warmup",
            "1",
            "--ack",
            "os",
            "--durability",
            "os",
            "--verify",
            "count",
        ],
        figures: &["records_per_s"],
    },
    Load {
        name: "consume hot, as fast as it goes",
        arguments: &[
            "bench",
            "consume",
            "--records",
            "20000000",
            "--verify",
            "headers",
            "--durability",
            "os",
        ],
        figures: &["records_per_s"],
    },
];

pub(crate) fn run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Whole payloads, so that queries have much to do.
    let server = Arc::new(Server::start(
        &folder.path().join("data"),
        &["cold.shred_json=false"],
    ));
    let lines = folder.path().join("flights.ndjson");
    let payloads = data::flights().payloads;
    fs::write(&lines, payloads.join(&b'\n')).expect("a file");
    let lines = lines.to_str().expect("text");
    for _ in 0..TIMES {
        server.run(&["produce", "flights", lines, "--quiet"]);
    }
    server.run(&["topic", "cool", "flights", "--wait"]);
    for load in &LOADS {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        let mut queries = 0;
        for _ in 0..RUNS {
            alone.push(server.run(load.arguments));
            let running = Queries::start(&server);
            beside.push(server.run(load.arguments));
            queries += running.stop();
        }
        for figure in load.figures {
            let figures =
                |lines: &[String]| median(lines.iter().map(|line| number(line, figure)).collect());
            let (alone, beside) = (figures(&alone), figures(&beside));
            println!(
                "{:<32} {figure:>14}: alone {alone:>12.0}, beside {QUERIES} queries at a time ({queries} ended) {beside:>12.0}: {:.2}",
                load.name,
                beside / alone
            );
        }
    }
}

/// Queries, one after the other on each of some threads.
struct Queries {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Queries {
    fn start(server: &Arc<Server>) -> Self {
        let (stop, ended) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let threads = (0..QUERIES).map(|_| {
            let (server, stop, ended) = (Arc::clone(server), Arc::clone(&stop), Arc::clone(&ended));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    server.run(&["sql", HEAVY]);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
            ended,
        }
    }

    /// Returns when the last of them has ended: how many did.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("every query is answered");
        }
        self.ended.load(Ordering::Relaxed)
    }
}
