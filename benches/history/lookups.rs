//! Finding a record in ten gigabytes of cold ones: what is read for it, and how long that takes.

use basalt_log::TopicConfig;

use super::data;
use super::measure::{RUNS, median, megabytes, read_bytes, seconds};
use super::store::Store;

/// Bytes of frames.
const FRAME_BYTES: u64 = 10_000_000_000;

pub(crate) fn run() {
    let store = Store::open();
    let config = TopicConfig {
        segment_bytes: Some(256 << 20),
        ..TopicConfig::default()
    };
    store.create("flights", config);
    let set = data::flights();
    let (mut bytes, mut records) = (0, 0);
    while bytes < FRAME_BYTES {
        let appended = store.append("flights", set.payloads.iter().map(Vec::as_slice));
        bytes += appended.frame_bytes;
        records += appended.records;
        store.cool("flights");
    }
    println!(
        "{:.1} GB of frames, {records} records, in {} files of {:.0} MB together; medians of {RUNS} lookups, each elsewhere",
        bytes as f64 / 1e9,
        store.cold_files("flights").len(),
        megabytes(store.partition("flights").bounds().cold_bytes)
    );
    let by_offset = |offset: u64| format!("SELECT * FROM flights WHERE _offset = {offset}");
    let by_key = |offset: u64| {
        // A key every tenth record; stamps a millisecond apart, the first at this second.
        let second = 1_357_034_400 + offset / 1_000;
        format!(
            "SELECT * FROM flights WHERE _key = 'key-{}' AND _timestamp > to_timestamp_seconds({second}) - INTERVAL '1 hour' \
             AND _timestamp < to_timestamp_seconds({second}) + INTERVAL '1 hour'",
            offset / 10
        )
    };
    let open_end = |offset: u64| {
        let second = 1_357_034_400 + offset / 1_000;
        format!(
            "SELECT * FROM flights WHERE _key = 'key-{}' AND _timestamp > to_timestamp_seconds({second}) - INTERVAL '1 hour'",
            offset / 10
        )
    };
    show(&store, records, "by offset", by_offset);
    show(&store, records, "by key and a time of two hours", by_key);
    show(&store, records, "by key and an earliest time", open_end);
}

fn show(store: &Store, records: u64, name: &str, question: impl Fn(u64) -> String) {
    let (mut took, mut read, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS as u64 {
        // A multiple of ten, so that it has a key.
        let offset = records / (RUNS as u64 + 2) * (run + 1) / 10 * 10;
        let sql = question(offset);
        let before = read_bytes("self");
        let (seconds, rows) = seconds(|| store.rows(&sql));
        assert_eq!(rows, 1, "{sql}");
        took.push(seconds);
        read.push((read_bytes("self") - before) as f64);
        files.push(store.metric(&sql, "files_opened") as f64);
    }
    println!(
        "{name:<34} {:>8.1} ms, {:>8.2} MB read, {} files opened; the first one {:.1} ms, {:.2} MB",
        median(took[1..].to_vec()) * 1e3,
        median(read[1..].to_vec()) / 1e6,
        median(files),
        took[0] * 1e3,
        read[0] / 1e6
    );
}
