//! Queries over a gigabyte of hot segments, beside reading the same bytes once with `memchr`.

use basalt_log::TopicConfig;

use super::data;
use super::measure::{RUNS, in_turn};
use super::store::Store;

const QUESTIONS: [(&str, &str); 4] = [
    ("count", "SELECT count(*) FROM flights"),
    (
        "stamps of one hour",
        "SELECT count(*) FROM flights WHERE _timestamp >= '2013-01-01T11:00:00Z' AND _timestamp < '2013-01-01T12:00:00Z'",
    ),
    (
        "stamps, not in order of storage",
        "SELECT count(*) FROM flights WHERE date_part('minute', _timestamp) = 7",
    ),
    (
        "sum by JSON path",
        "SELECT sum(json_get_int(_payload, 'distance')) FROM flights",
    ),
];

pub(crate) fn run() {
    let store = Store::open();
    let config = TopicConfig {
        segment_bytes: Some(256 << 20),
        ..TopicConfig::default()
    };
    store.create("flights", config);
    let set = data::flights();
    let mut bytes = 0;
    while bytes < 1 << 30 {
        let appended = store.append("flights", set.payloads.iter().map(Vec::as_slice));
        bytes += appended.frame_bytes;
    }
    let views = store.partition("flights").snapshot().hot;
    println!(
        "{:.2} GB of frames in {} segments, {} threads; medians of {RUNS} runs in turn",
        bytes as f64 / 1e9,
        views.len(),
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    );
    for (name, sql) in QUESTIONS {
        let (ours, reading) = in_turn(
            || assert_eq!(store.rows(sql), 1),
            || {
                // All of them are read. One thread.
                let found = views
                    .iter()
                    .map(|view| memchr::memchr_iter(0xfe, view.bytes()).count());
                std::hint::black_box(found.sum::<usize>());
            },
        );
        println!(
            "{name:<34} {:>8.1} ms, {:>7.2} GB/s; memchr on one thread {:.1} GB/s: {:.2} of it",
            ours * 1e3,
            bytes as f64 / 1e9 / ours,
            bytes as f64 / 1e9 / reading,
            reading / ours,
        );
    }
}
