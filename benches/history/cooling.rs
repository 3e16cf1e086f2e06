//! How fast segments cool, into how much, with how much memory, and what a byte costs the disk.

use basalt_log::TopicConfig;

use super::data::{self, DataSet};
use super::measure::{PeakMemory, median, megabytes, processor_seconds, seconds, written_bytes};
use super::store::Store;

const RUNS: usize = 3;

struct Figures {
    mb_per_core_s: f64,
    mb_per_s: f64,
    peak_bytes: u64,
    frame_bytes: u64,
    cold_bytes: u64,
    written: f64,
}

pub(crate) fn run() {
    println!(
        "{:<18} {:>9} {:>11} {:>8} {:>9} {:>10} {:>11} {:>12} {:>10}",
        "data",
        "frames",
        "per core",
        "wall",
        "memory",
        "of frames",
        "zstd frames",
        "of zstd rows",
        "written"
    );
    for set in [data::flights(), data::access_log(), data::noise()] {
        show(&set);
    }
    println!(
        "MB of frames a second and core of processor time; memory beyond what was held before; the files' bytes as a part of the frames', \
         of zstd -3 of the frames, of zstd -3 of the payloads, a line each; bytes written to the disk for each byte of frames, append and cooling"
    );
}

fn show(set: &DataSet) {
    let runs: Vec<Figures> = (0..RUNS).map(|_| cool(set)).collect();
    let middle = |of: fn(&Figures) -> f64| median(runs.iter().map(of).collect());
    let cold_bytes = runs[0].cold_bytes as f64;
    let (mut rows, mut frames) = (Vec::new(), Vec::new());
    for (number, payload) in set.payloads.iter().enumerate() {
        rows.extend_from_slice(payload);
        rows.push(b'\n');
        basalt_proto::Frame::record(number as u64, b"", payload).encode_into(&mut frames);
    }
    let zstd = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).expect("memory").len() as f64;
    println!(
        "{:<18} {:>6.0} MB {:>6.0} MB/s {:>3.0} MB/s {:>6.0} MB {:>10.3} {:>11.2} {:>12.2} {:>10.2}",
        set.name,
        megabytes(runs[0].frame_bytes),
        middle(|run| run.mb_per_core_s),
        middle(|run| run.mb_per_s),
        megabytes(runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0)),
        cold_bytes / runs[0].frame_bytes as f64,
        cold_bytes / zstd(&frames),
        cold_bytes / zstd(&rows),
        middle(|run| run.written),
    );
}

fn cool(set: &DataSet) -> Figures {
    let store = Store::open();
    let config = TopicConfig {
        segment_bytes: Some(1 << 30),
        ..TopicConfig::default()
    };
    store.create("t", config);
    let before = written_bytes("self");
    let payloads = set.payloads.iter().map(Vec::as_slice);
    let appended = store.append("t", payloads);
    let processor = processor_seconds("self");
    let memory = PeakMemory::watch();
    let (wall, ()) = seconds(|| store.cool("t"));
    let peak_bytes = memory.growth();
    let processor = processor_seconds("self") - processor;
    let written = written_bytes("self") - before;
    Figures {
        mb_per_core_s: megabytes(appended.frame_bytes) / processor,
        mb_per_s: megabytes(appended.frame_bytes) / wall,
        peak_bytes,
        frame_bytes: appended.frame_bytes,
        cold_bytes: store.partition("t").bounds().cold_bytes,
        written: written as f64 / appended.frame_bytes as f64,
    }
}
