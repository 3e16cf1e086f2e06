//! A disk without room: what was committed stands, and what could not be tidied up is tidied up once there is room.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;

use basalt_log::{Descriptor, Disk, DiskFile, Map, RealDisk};
use basalt_proto::Offset;
use parking_lot::Mutex;

use super::support::{
    Fixture, Setup, append_numbered, assert_dense, files_below, records, replay, rows, topic,
};
use crate::DeleteError;

/// What the removal of a file is called to [`FullDisk::fill`].
const REMOVAL: &str = "removal of ";

/// Has no room for files with some words in their path.
#[derive(Debug, Clone, Default)]
struct FullDisk {
    full_for: Arc<Mutex<Option<&'static str>>>,
    real: RealDisk,
}

impl FullDisk {
    fn fill(&self, part: &'static str) {
        *self.full_for.lock() = Some(part);
    }

    fn make_room(&self) {
        *self.full_for.lock() = None;
    }

    fn check(&self, path: &str) -> io::Result<()> {
        match *self.full_for.lock() {
            Some(part)
                if path.starts_with(part) || !path.starts_with(REMOVAL) && path.contains(part) =>
            {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn wrap(&self, path: &Path, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FullDiskFile {
            disk: self.clone(),
            path: path.to_string_lossy().into_owned(),
            inner,
        })
    }
}

impl Disk for FullDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.real.create_dir_all(path)
    }

    fn make_dir_all(&self, path: &Path) -> io::Result<()> {
        self.real.make_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.real.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.real.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.real.sync_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        // A file system that copies on write needs room for this, too.
        self.check(&format!("{REMOVAL}{}", path.display()))?;
        self.real.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.real.remove_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.check(&path.to_string_lossy())?;
        Ok(self.wrap(path, self.real.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(path, self.real.open(path)?))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.real.lock(path)
    }

    fn boot_id(&self) -> String {
        self.real.boot_id()
    }
}

#[derive(Debug)]
struct FullDiskFile {
    disk: FullDisk,
    path: String,
    inner: Arc<dyn DiskFile>,
}

impl DiskFile for FullDiskFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.inner.allocate(bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.inner.reserve(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }

    fn map(&self, readable: usize, expected: usize) -> io::Result<Map> {
        self.inner.map(readable, expected)
    }

    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<()> {
        self.inner.read_at(bytes, position)
    }

    fn read_all(&self) -> io::Result<Vec<u8>> {
        self.inner.read_all()
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.disk.check(&self.path)?;
        self.inner.write_at(bytes, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn zero_from(&self, from: u64) -> io::Result<()> {
        self.inner.zero_from(from)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.inner.sync_file_system()
    }

    fn descriptor(&self) -> io::Result<Option<Descriptor>> {
        self.inner.descriptor()
    }
}

fn full_setup() -> (FullDisk, Setup) {
    let disk = FullDisk::default();
    let mut setup = Setup::new();
    setup.disk = Arc::new(disk.clone());
    (disk, setup)
}

async fn assert_all_cold(fixture: &Fixture, released: bool) {
    let partition = fixture.partition();
    assert_eq!(partition.bounds().cold_end_offset, Offset(300));
    assert_eq!(partition.hot().sealed_segments().is_empty(), released);
    let snapshot = partition.snapshot();
    assert!(snapshot.hot.is_empty());
    assert_dense(&rows(&fixture.tiered, &snapshot).await, 0, 300);
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 300);
}

#[tokio::test]
async fn a_release_without_room_fails_no_cooling_and_is_made_up_for() {
    let (disk, setup) = full_setup();
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 300).await;
    // The last segment goes only after another one was created to keep the next offset.
    fixture.partition().hot().seal_active().unwrap();
    disk.fill(".seg");
    let report = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(report.rows, 300);
    assert_all_cold(&fixture, false).await;
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    disk.make_room();
    fixture.tiered.maintain().await;
    assert_all_cold(&fixture, true).await;
}

#[tokio::test]
async fn a_release_without_room_stops_no_start() {
    let (disk, setup) = full_setup();
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 300).await;
    disk.fill(".seg");
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    drop(fixture);
    let fixture = setup.open().await;
    assert_all_cold(&fixture, false).await;
    disk.make_room();
    fixture.tiered.maintain().await;
    assert_all_cold(&fixture, true).await;
}

#[tokio::test]
async fn a_segment_that_cannot_be_removed_for_lack_of_room_fails_no_cooling_and_no_start() {
    let (disk, setup) = full_setup();
    let fixture = setup.open().await;
    append_numbered(&fixture.partition(), 300).await;
    disk.fill(REMOVAL);
    let report = fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(report.rows, 300);
    disk.make_room();
    drop(fixture);
    let segments = || {
        files_below(&setup.folder.path().join("data/topics"))
            .into_keys()
            .filter(|name| name.ends_with(".seg"))
            .count()
    };
    assert!(segments() > 1, "they are there still");

    disk.fill(REMOVAL);
    let fixture = setup.open().await;
    assert_eq!(fixture.partition().bounds().cold_end_offset, Offset(300));
    disk.make_room();
    drop(fixture);
    let fixture = setup.open().await;
    assert_all_cold(&fixture, true).await;
    assert_eq!(segments(), 1);
}

#[tokio::test]
async fn a_deletion_that_the_log_refuses_is_as_if_nobody_had_tried() {
    let (disk, setup) = full_setup();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 300).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    disk.fill("catalogue");
    let refused = fixture.tiered.delete_topic(&topic("t")).await;
    assert!(matches!(refused, Err(DeleteError::Topic(_))), "{refused:?}");
    disk.make_room();
    let tombstone = |setup: &Setup| {
        files_below(&setup.cold_dir())
            .keys()
            .any(|name| name.ends_with("DELETED"))
    };
    assert!(!tombstone(&setup));

    // It is not closed either.
    append_numbered(&partition, 100).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(partition.bounds().cold_end_offset, Offset(400));
    drop((partition, fixture));
    let fixture = setup.open().await;
    let partition = fixture.partition();
    assert_eq!(records(&replay(&partition, Offset::ZERO).await).len(), 400);
    drop((partition, fixture));

    // And it can be deleted later.
    let fixture = setup.open().await;
    fixture.tiered.delete_topic(&topic("t")).await.unwrap();
    assert!(files_below(&setup.cold_dir()).is_empty());
}
