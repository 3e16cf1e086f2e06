//! The fuzzers' corpus of data folders (`fuzz/corpus/recovery`), run without libFuzzer. `BASALT_WRITE_CORPUS=1` writes the
//! seeds anew from real folders: one of a process that was killed, one closed in order, one with sealed segments.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use basalt_log::disk::sim::SimDisk;
use basalt_log::{Disk, Durability, Log, LogConfig, ManualClock, TopicConfig, TopicDurability};
use basalt_proto::{Frame, FrameBatch, FrameLimits, PartitionId, TopicName};

#[path = "../../fuzz/src/recovery.rs"]
mod recovery;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/recovery")
}

fn open(disk: &SimDisk) -> Arc<Log> {
    let config = LogConfig {
        segment_bytes: 4096,
        block_bytes: 1024,
        sync_threads: 0,
        wal_bytes: 64 << 10,
        ..LogConfig::new("/data")
    };
    Log::open(
        config,
        Arc::new(disk.clone()),
        Arc::new(ManualClock::new(1)),
    )
    .unwrap()
}

/// A folder with some records in it.
fn folder(level: TopicDurability, appends: u8, committed: bool, closed: bool) -> SimDisk {
    let disk = SimDisk::new();
    let log = open(&disk);
    let name = TopicName::new("t").unwrap();
    let durability = level;
    let config = TopicConfig {
        durability,
        ..TopicConfig::default()
    };
    let topic = log.create_topic(&name, 1, config).unwrap();
    let partition = topic.partition(PartitionId(0)).unwrap();
    for number in 0..appends {
        let mut bytes = Vec::new();
        Frame::record(1, b"k", &[number; 600]).encode_into(&mut bytes);
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
        partition.append(&batch, Durability::Fsync).unwrap();
        if committed {
            partition.commit_now().unwrap();
        } else {
            partition.sync_now().unwrap();
        }
    }
    if !closed {
        return disk.process_loss();
    }
    partition.seal_active().unwrap();
    log.close().unwrap();
    disk
}

/// The files of a folder as one input: without the zeros they end with, but for one.
fn input(disk: &SimDisk) -> Vec<u8> {
    let mut input = Vec::new();
    for path in disk.paths() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let base: u64 = name[..name.len().saturating_sub(4)].parse().unwrap_or(0);
        let Some(slot) = [0, 1, 3, 10].iter().position(|slot| *slot == base) else {
            continue;
        };
        let slot = u8::try_from(slot).unwrap() << 4;
        let kind = match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("seg") => slot,
            Some("idx") => slot | 5,
            Some("wal") if base == 1 => 9,
            _ if name == "reserved" => 11,
            _ => continue,
        };
        let mut bytes = disk.open(&path).unwrap().read_all().unwrap();
        let end = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 2);
        bytes.truncate(end);
        input.push(kind);
        input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        input.extend(bytes);
    }
    input
}

#[test]
fn the_corpus_of_folders_meets_no_surprise() {
    if std::env::var_os("BASALT_WRITE_CORPUS").is_some() {
        std::fs::create_dir_all(corpus()).unwrap();
        let (fsync, os) = (TopicDurability::Fsync, TopicDurability::Os);
        for (name, disk) in [
            ("committed", folder(fsync, 2, true, false)),
            ("settled", folder(fsync, 2, false, false)),
            ("published", folder(os, 2, true, false)),
            ("closed", folder(fsync, 2, false, true)),
            ("sealed", folder(fsync, 14, true, true)),
        ] {
            std::fs::write(corpus().join(name), input(&disk)).unwrap();
        }
    }
    let mut files = 0;
    for entry in std::fs::read_dir(corpus()).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        recovery::run(&std::fs::read(path).unwrap());
        files += 1;
    }
    assert!(files > 0, "no corpus");
}
