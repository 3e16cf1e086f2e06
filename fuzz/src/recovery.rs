//! A data folder with any bytes in its files: it opens or is refused, what it serves is in the files, and once it was
//! opened it keeps what it serves.
//!
//! The input is a list of files, each a byte for what it is, two for its length, and so many bytes. The checksums of
//! indexes and write-ahead logs are put right for some, or no change of a byte would ever get past them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use basalt_log::check::CheckedFolder;
use basalt_log::disk::sim::SimDisk;
use basalt_log::{
    Disk, Durability, Log, LogConfig, ManualClock, Partition, ReadError, TopicConfig, crc32c,
};
use basalt_proto::{Frame, FrameBatch, FrameLimits, FrameWalk, Offset, PartitionId, TopicName};

const FOLDER: &str = "/data/topics/t/0";

pub fn run(data: &[u8]) {
    let disk = SimDisk::new();
    // A catalogue that knows the topic, unless the input brings one.
    let log = open(&disk).expect("an empty folder opens");
    log.create_topic(&topic_name(), 1, TopicConfig::default())
        .expect("a topic");
    drop(log);
    let given = put_files(&disk, data);
    let _ = check(&disk);
    let Some(log) = open(&disk) else { return };
    let Some(partition) = partition_of(&log) else {
        return;
    };
    let served = read(&partition);
    for (offset, frame) in &served {
        let from_files = given.iter().any(|file| contains(file, frame));
        assert!(from_files, "offset {offset} is in no file");
    }
    // With checksums that were put right things pass that the log never writes: what becomes of those is not promised.
    let sound = check(&disk.beside()) == Some(0);
    let mut expected = served;
    for payload in [&b"first"[..], b"second"] {
        let mut bytes = Vec::new();
        Frame::record(1, b"", payload).encode_into(&mut bytes);
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).expect("a frame");
        let end = partition.bounds().log_end_offset;
        if let Ok(appended) = partition.append(&batch, Durability::Fsync)
            && partition.commit_now().is_ok()
        {
            assert!(appended.base_offset == end);
            basalt_proto::patch_offset(&mut bytes, end);
            basalt_proto::patch_record_count(&mut bytes, 1);
            expected.insert(end.0, bytes);
        }
    }
    drop(partition);
    let closed = log.close();
    drop(log);
    let _ = check(&disk);
    let log = open(&disk).expect("what was opened opens again");
    let partition = partition_of(&log).expect("the topic is still there");
    let again = read(&partition);
    if sound && closed.is_ok() {
        for (offset, frame) in &expected {
            assert_eq!(again.get(offset), Some(frame), "offset {offset} is gone");
        }
    }
}

fn topic_name() -> TopicName {
    TopicName::new("t").expect("a name")
}

fn open(disk: &SimDisk) -> Option<Arc<Log>> {
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
    .ok()
}

fn partition_of(log: &Log) -> Option<Arc<Partition>> {
    log.topic(&topic_name())?.partition(PartitionId(0))
}

fn check(disk: &SimDisk) -> Option<usize> {
    let folder = CheckedFolder::lock(disk, Path::new("/data")).ok()?;
    Some(folder.check(|_| ()).ok()?.findings.len())
}

/// Everything that is served, as bytes; damage is passed over.
fn read(partition: &Partition) -> BTreeMap<u64, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut next = partition.bounds().log_start_offset;
    loop {
        let slice = match partition.read(next, Offset(u64::MAX), 4096) {
            Ok(slice) => slice,
            Err(ReadError::Corrupt { next_offset, .. }) if next_offset > next => {
                next = next_offset;
                continue;
            }
            Err(error) => panic!("at {next}: {error:?}"),
        };
        for frame in FrameWalk::new(slice.bytes(), FrameLimits::UNLIMITED) {
            let frame = frame.expect("whole frames");
            let mut bytes = Vec::new();
            frame.encode_into(&mut bytes);
            let offset = frame.header.offset.0;
            let last = found.last_key_value().map(|(last, _)| *last);
            assert!(last < Some(offset), "offset {offset} after {last:?}");
            found.insert(offset, bytes);
        }
        if slice.next_offset == next {
            return found;
        }
        assert!(slice.next_offset > next);
        next = slice.next_offset;
    }
}

fn contains(file: &[u8], part: &[u8]) -> bool {
    file.windows(part.len()).any(|window| window == part)
}

/// Puts the files of the input in place and gives their bytes back.
fn put_files(disk: &SimDisk, data: &[u8]) -> Vec<Vec<u8>> {
    let mut given = Vec::new();
    let mut rest = data;
    while let [kind, a, b, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*a, *b])).min(more.len());
        let (bytes, behind) = more.split_at(length);
        rest = behind;
        let bytes = put_right(*kind, bytes);
        let path = path(*kind);
        let file = disk.create(&path).expect("a file");
        file.write_at(&bytes, 0).expect("room");
        file.sync().expect("a disk that works");
        disk.sync_dir(path.parent().expect("a folder"))
            .expect("a disk that works");
        given.push(bytes);
    }
    given
}

fn base_of(kind: u8) -> u64 {
    [0, 1, 3, 10][usize::from(kind >> 4 & 3)]
}

fn path(kind: u8) -> PathBuf {
    let segment = |suffix: &str| format!("{FOLDER}/{:020}.{suffix}", base_of(kind));
    let path = match kind & 15 {
        0..=3 => segment("seg"),
        4..=7 => segment("idx"),
        8 | 9 => "/data/wal/1.wal".to_owned(),
        10 => "/data/wal/2.wal".to_owned(),
        11 => format!("{FOLDER}/reserved"),
        12 => "/data/catalogue".to_owned(),
        13 => "/data/groups".to_owned(),
        14 => format!("{FOLDER}/next.idx"),
        _ => format!("{FOLDER}/next.seg"),
    };
    PathBuf::from(path)
}

/// The bytes, with checksums that fit for most kinds.
fn put_right(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match kind & 15 {
        5..=7 => put_index_right(&mut bytes),
        9 | 10 => put_wal_right(&mut bytes),
        11 if bytes.len() == 64 => seal(&mut bytes),
        _ => {}
    }
    bytes
}

/// The CRC of all but the last four bytes goes there.
fn seal(part: &mut [u8]) {
    let (body, crc) = part.split_at_mut(part.len() - 4);
    crc.copy_from_slice(&crc32c(body).to_be_bytes());
}

/// An index: its header, then the published mark and entries, bound to it.
fn put_index_right(bytes: &mut [u8]) {
    let Some((header, entries)) = bytes.split_at_mut_checked(128) else {
        return;
    };
    seal(&mut header[..64]);
    let mut bound = [0; 64];
    bound[..4].copy_from_slice(&header[60..64]);
    for entry in std::iter::once(&mut header[64..]).chain(entries.chunks_exact_mut(64)) {
        if entry.iter().any(|byte| *byte != 0) {
            bound[4..].copy_from_slice(&entry[..60]);
            entry[60..].copy_from_slice(&crc32c(&bound).to_be_bytes());
        }
    }
}

/// A file of the write-ahead log: its header, then records.
fn put_wal_right(bytes: &mut [u8]) {
    let Some((header, mut rest)) = bytes.split_at_mut_checked(64) else {
        return;
    };
    seal(header);
    while let Some((record, behind)) = rest.split_at_mut_checked(64) {
        let length = u32::from_be_bytes([record[4], record[5], record[6], record[7]]);
        let Some((frames, behind)) = behind.split_at_mut_checked(length as usize) else {
            return;
        };
        record[8..16].copy_from_slice(&header[8..16]);
        record[28..32].copy_from_slice(&crc32c(frames).to_be_bytes());
        let crc = crc32c(&record[4..]);
        record[..4].copy_from_slice(&crc.to_be_bytes());
        rest = behind;
    }
}
