//! Queries over a gigabyte of hot segments, beside reading the same bytes once with `memchr`; and what they allocate, which shows
//! whether payloads were copied.

use basalt_log::TopicConfig;

use super::data;
use super::measure::{RUNS, in_turn, megabytes};
use super::store::Store;

struct Question {
    name: &'static str,
    sql: &'static str,
    /// Whether it needs payloads: all else must not copy them.
    reads_payloads: bool,
}

const QUESTIONS: [Question; 5] = [
    Question {
        name: "count",
        sql: "SELECT count(*) FROM flights",
        reads_payloads: false,
    },
    Question {
        name: "count by an earliest stamp",
        sql: "SELECT count(*) FROM flights WHERE _timestamp >= '2013-01-01T10:01:00Z'",
        reads_payloads: false,
    },
    Question {
        name: "count by stamps that prune nothing",
        sql: "SELECT count(*) FROM flights WHERE date_part('second', _timestamp) = 7",
        reads_payloads: false,
    },
    Question {
        name: "sum of offsets by a remainder",
        sql: "SELECT sum(_offset) FROM flights WHERE _offset % 7 = 3",
        reads_payloads: false,
    },
    Question {
        name: "sum by JSON path",
        sql: "SELECT sum(json_get_int(_payload, 'distance')) FROM flights",
        reads_payloads: true,
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
    for question in &QUESTIONS {
        let counted = stats_alloc::Region::new(crate::ALLOCATOR);
        store.rows(question.sql);
        let allocated = counted.change().bytes_allocated as u64;
        assert!(
            question.reads_payloads || allocated < bytes / 5,
            "{}: {allocated} bytes allocated",
            question.name
        );
        let (ours, reading) = in_turn(
            || assert_eq!(store.rows(question.sql), 1),
            || {
                // All of them are read. One thread.
                let found = views
                    .iter()
                    .map(|view| memchr::memchr_iter(0xfe, &view.bytes().expect("a map")).count());
                std::hint::black_box(found.sum::<usize>());
            },
        );
        println!(
            "{:<34} {:>8.1} ms, {:>7.2} GB/s; memchr on one thread {:.1} GB/s: {:.2} of it; {:.1} MB allocated",
            question.name,
            ours * 1e3,
            bytes as f64 / 1e9 / ours,
            bytes as f64 / 1e9 / reading,
            reading / ours,
            megabytes(allocated),
        );
    }
}
