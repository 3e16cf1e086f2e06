//! Flights, as JSON: the bundled sample, or a year of them in the folder that `BASALT_TEST_DATA` names.
//!
//! With the year, `cargo test --release -p basalt-columnar --lib flights -- --nocapture` prints what docs/SHREDDING.md says.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use basalt_log::{AbortedTransactions, SegmentView};
use basalt_proto::Frame;

use super::super::support::{Setup, append};
use crate::file::ColdFile;
use crate::hydrate::read_chunk;
use crate::manifest::PartitionKey;
use crate::sink::{self, parts};
use crate::writer::{WriteOptions, Written, survey, write_segment};

fn flights() -> Vec<u8> {
    match std::env::var_os("BASALT_TEST_DATA") {
        Some(folder) => {
            let file = std::fs::File::open(PathBuf::from(folder).join("flights.ndjson.gz"));
            let mut lines = Vec::new();
            flate2::read::MultiGzDecoder::new(file.unwrap())
                .read_to_end(&mut lines)
                .unwrap();
            lines
        }
        None => include_bytes!("../../../../examples/flights.ndjson").to_vec(),
    }
}

#[expect(clippy::disallowed_methods, reason = "figures for a person, printed")]
fn now() -> Instant {
    Instant::now()
}

struct Figures {
    written: Written,
    cool_mb_per_s: f64,
    replay_mb_per_s: f64,
}

/// Writes a segment's cold file, and replays it into nothing.
async fn through_parquet(segment: &Arc<SegmentView>, setup: &Setup, shred_json: bool) -> Figures {
    let store = crate::ColdStore::local(setup.cold_dir()).unwrap();
    let key = PartitionKey {
        topic: super::super::support::topic("t"),
        topic_id: 1,
        partition: basalt_proto::PartitionId(0),
    };
    let options = WriteOptions {
        row_group_bytes: 16 << 20,
        zstd_level: 3,
        shred_json,
        typed: None,
    };
    let (parts_in, parts_out) = parts();
    let path = key.prefix().join(format!("{shred_json}.parquet"));
    let megabytes = |started: Instant| {
        let bytes = u32::try_from(segment.frame_bytes()).unwrap();
        f64::from(bytes) / 1e6 / started.elapsed().as_secs_f64()
    };
    let started = now();
    let writing = {
        let segment = Arc::clone(segment);
        tokio::task::spawn_blocking(move || {
            let surveyed = survey(&segment, &AbortedTransactions::default()).unwrap();
            {
                let aborted = AbortedTransactions::default();
                write_segment(&segment, &aborted, surveyed, &key, &options, parts_in).unwrap()
            }
        })
    };
    let mut written = None;
    let whole = async {
        written = Some(writing.await.unwrap());
        Ok::<(), ()>(())
    };
    sink::upload(
        &store,
        &crate::litter::Litter::default(),
        &path,
        parts_out,
        whole,
    )
    .await
    .unwrap()
    .unwrap();
    let cool_mb_per_s = megabytes(started);
    let written = written.unwrap();
    let file = ColdFile {
        path,
        base_offset: segment.base_offset,
        end_offset: segment.end_offset,
        rows: written.rows,
        file_bytes: written.file_bytes,
        file_crc32c: written.file_crc32c,
        frame_bytes: written.frame_bytes,
        min_timestamp_ns: written.min_timestamp_ns,
        max_timestamp_ns: written.max_timestamp_ns,
        appended_at_ns: 0,
        chunks: written.chunks.clone(),
        shredded: written.shredded.clone(),
        typed: None,
    };
    let started = now();
    let mut frames = Vec::new();
    for chunk in &file.chunks {
        read_chunk(
            store.object_store(),
            &crate::object_reader::Footers::default(),
            &file,
            chunk,
            &mut frames,
        )
        .await
        .unwrap();
    }
    let replay_mb_per_s = megabytes(started);
    assert!(
        frames == *segment.bytes().unwrap(),
        "every byte of every flight"
    );
    Figures {
        written,
        cool_mb_per_s,
        replay_mb_per_s,
    }
}

#[tokio::test]
async fn shredded_flights_are_all_there_and_far_smaller() {
    let setup = Setup {
        segment_bytes: 1 << 30,
        ..Setup::new()
    };
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let lines = flights();
    let lines: Vec<_> = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    let mut stamp = 1_700_000_000_000_000_000;
    for some in lines.chunks(10_000) {
        let mut frames = Vec::new();
        for line in some {
            // As a producer's clock would: some microseconds apart, never the same.
            stamp += 1_000 + (stamp / 1_000) % 7_919;
            Frame::record(stamp, b"", line).encode_into(&mut frames);
        }
        append(&partition, &frames).await;
    }
    partition.hot().seal_active().unwrap();
    let segment = partition.hot().sealed_segments()[0].clone();
    let rows = u64::try_from(lines.len()).unwrap();
    let joined = lines.join(&b'\n');
    let zstd_rows = zstd::bulk::compress(&joined, 3).unwrap().len() as u64;
    let zstd_frames = zstd::bulk::compress(&segment.bytes().unwrap(), 3)
        .unwrap()
        .len() as u64;
    println!(
        "{rows} rows, {} bytes of frames; zstd -3: {zstd_rows} of the rows, {zstd_frames} of the frames",
        segment.frame_bytes()
    );
    let mut plain_bytes = 0;
    for shred_json in [false, true] {
        let Figures {
            written,
            cool_mb_per_s,
            replay_mb_per_s,
        } = through_parquet(&segment, &setup, shred_json).await;
        println!(
            "shred_json {shred_json}: {} bytes, {} rows shredded, cooled at {cool_mb_per_s:.0} MB/s, replayed at {replay_mb_per_s:.0} MB/s",
            written.file_bytes, written.shredded_rows
        );
        assert_eq!(written.rows, rows);
        assert_eq!(written.shredded_rows, if shred_json { rows } else { 0 });
        if !shred_json {
            plain_bytes = written.file_bytes;
            continue;
        }
        assert_eq!(written.shredded.unwrap().len(), 19);
        assert!(written.file_bytes * 10 < plain_bytes * 6);
        // Of a few thousand rows the footer is a large part.
        assert!(rows < 300_000 || written.file_bytes * 2 < zstd_rows);
    }
}
