use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

use basalt_log::{ChunkBlocks, RealDisk};
use basalt_proto::{Frame, Offset};

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk::new())
}

fn frames(bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    Frame::record(1, b"", &vec![b'x'; bytes - 29]).encode_into(&mut out);
    out
}

fn write(unfinished: &FsPath, path: &FsPath, bytes: usize) -> Result<SegmentView, HydrateError> {
    let frames = frames(bytes);
    std::fs::write(unfinished, &frames).unwrap();
    std::fs::rename(unfinished, path).unwrap();
    let mut blocks = ChunkBlocks::default();
    blocks.push(&frames);
    SegmentView::open_chunk(&RealDisk::new(), path, Offset(0), Offset(1), &blocks)
        .map_err(HydrateError::Open)
}

fn open(limit_bytes: u64) -> (tempfile::TempDir, Arc<ChunkCache>) {
    let folder = tempfile::tempdir().unwrap();
    let cache = ChunkCache::open(folder.path(), limit_bytes, disk(), Handle::current()).unwrap();
    (folder, cache)
}

async fn get(cache: &Arc<ChunkCache>, name: &str, loads: &Arc<AtomicU32>) -> Hydrated {
    let loads = Arc::clone(loads);
    cache
        .get(name, |unfinished, path| async move {
            loads.fetch_add(1, Ordering::SeqCst);
            write(&unfinished, &path, 100)
        })
        .await
}

#[tokio::test]
async fn the_least_recently_used_goes_first_and_is_loaded_again() {
    let (_folder, cache) = open(250);
    let loads = Arc::new(AtomicU32::new(0));
    get(&cache, "a", &loads).await.unwrap();
    get(&cache, "b", &loads).await.unwrap();
    get(&cache, "a", &loads).await.unwrap();
    assert_eq!(loads.load(Ordering::SeqCst), 2);
    get(&cache, "c", &loads).await.unwrap();
    assert!(cache.has("a") && !cache.has("b") && cache.has("c"));
    assert_eq!(cache.ready_bytes(), 200);
    get(&cache, "b", &loads).await.unwrap();
    assert_eq!(loads.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn one_load_serves_all_and_its_failure_too_and_the_next_tries_again() {
    let (folder, cache) = open(1000);
    let loads = Arc::new(AtomicU32::new(0));
    let (gate, opened) = tokio::sync::watch::channel(false);
    let waiting = (0..20).map(|_| {
        let (cache, loads, mut opened) = (Arc::clone(&cache), Arc::clone(&loads), opened.clone());
        async move {
            cache
                .get("a", |unfinished, _| async move {
                    opened.wait_for(|open| *open).await.unwrap();
                    loads.fetch_add(1, Ordering::SeqCst);
                    std::fs::write(unfinished, b"half").unwrap();
                    Err(HydrateError::ShutDown)
                })
                .await
        }
    });
    let (results, ()) = futures::join!(futures::future::join_all(waiting), async {
        gate.send_replace(true);
    });
    assert!(results.iter().all(Result::is_err));
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing half is left"
    );
    get(&cache, "a", &loads).await.unwrap();
    assert_eq!(loads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_load_goes_on_when_nobody_waits_any_more() {
    let (_folder, cache) = open(1000);
    let loads = Arc::new(AtomicU32::new(0));
    let (gate, mut opened) = tokio::sync::watch::channel(false);
    let (started, mut has_started) = tokio::sync::watch::channel(false);
    {
        let cancelled = cache.get("a", |unfinished, path| async move {
            started.send_replace(true);
            opened.wait_for(|open| *open).await.unwrap();
            write(&unfinished, &path, 100)
        });
        tokio::select! {
            _ = cancelled => panic!("the gate is shut"),
            _ = has_started.wait_for(|started| *started) => {}
        }
    }
    gate.send_replace(true);
    get(&cache, "a", &loads).await.unwrap();
    assert_eq!(loads.load(Ordering::SeqCst), 0, "the first load served it");
}

#[tokio::test]
async fn leftovers_are_removed_at_start_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.frames", "b.frames.unfinished", "precious.txt"] {
        std::fs::write(folder.path().join(name), b"x").unwrap();
    }
    ChunkCache::open(folder.path(), 10, disk(), Handle::current()).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["precious.txt"]);
}

/// The cache filled the disk, and readers of what was not in it waited for room that it never gave.
#[tokio::test]
async fn a_full_disk_empties_the_cache_so_that_the_next_try_finds_room() {
    let (folder, cache) = open(1000);
    let loads = Arc::new(AtomicU32::new(0));
    get(&cache, "a", &loads).await.unwrap();
    get(&cache, "b", &loads).await.unwrap();
    let full = cache
        .get("c", |unfinished, _| async move {
            Err(HydrateError::Cache {
                path: unfinished,
                source: io::Error::from(io::ErrorKind::StorageFull),
            })
        })
        .await;
    assert!(full.is_err());
    assert_eq!(cache.ready_bytes(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    get(&cache, "c", &loads).await.unwrap();
}
