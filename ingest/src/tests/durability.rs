//! ING-1 against a disk whose syncs can be held back and failed: nothing is acknowledged before it is durable.

use std::any::Any;
use std::io;
use std::path::Path;

use basalt_log::{Descriptor, DiskFile, Map};
use basalt_proto::ErrorKind;
use parking_lot::{Condvar, Mutex};

use super::*;

/// What the files of frames of a [`GatedDisk`] do when they are synced, and its segments when they are grown.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    held: bool,
    fail_syncs: bool,
    full: bool,
    syncs: u64,
    /// Changes that the disk still takes, if their number is limited.
    left: Option<u64>,
}

/// Holds syncs back until dropped, so that a test that fails does not wait for them for ever.
pub(super) struct Hold(Arc<Gate>);

impl Hold {
    pub(super) fn on(gate: &Arc<Gate>) -> Self {
        gate.set(|gate| gate.held = true);
        Self(Arc::clone(gate))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.set(|gate| gate.held = false);
    }
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock());
        self.opened.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.syncs += 1;
        self.opened.wait_while(&mut state, |state| state.held);
        if state.fail_syncs {
            Err(io::Error::other("the disk is broken"))
        } else {
            Ok(())
        }
    }

    /// From so many changes on the disk takes none, of any file: as if the process had died there.
    pub(super) fn die_after(&self, changes: u64) {
        self.set(|gate| gate.left = Some(changes));
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state.lock().left == Some(0)
    }

    /// One change.
    fn take(&self) -> io::Result<()> {
        match &mut self.state.lock().left {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the process is dead")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn grow(&self) -> io::Result<()> {
        if self.state.lock().full {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }
}

/// The real disk with a gate before its segments and the write-ahead log.
#[derive(Debug)]
struct GatedDisk {
    gate: Arc<Gate>,
    real: RealDisk,
}

impl GatedDisk {
    fn new(gate: &Arc<Gate>) -> Self {
        Self {
            gate: Arc::clone(gate),
            real: RealDisk::new(),
        }
    }

    fn wrap(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let extension = path.extension().unwrap_or_default();
        let is_segment = extension == "seg";
        Arc::new(GatedFile {
            file,
            gate: Arc::clone(&self.gate),
            is_segment,
            has_frames: is_segment || extension == "wal",
        })
    }
}

impl Disk for GatedDisk {
    fn boot_id(&self) -> String {
        self.real.boot_id()
    }

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
        self.gate.take()?;
        self.real.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.real.remove_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.gate.take()?;
        self.real.rename(from, to)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.gate.take()?;
        Ok(self.wrap(path, self.real.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(path, self.real.open(path)?))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.real.lock(path)
    }
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
    is_segment: bool,
    has_frames: bool,
}

impl GatedFile {
    /// The disk is full for segments only: without room the write-ahead log is not used at all.
    fn grow(&self) -> io::Result<()> {
        if self.is_segment {
            self.gate.grow()
        } else {
            Ok(())
        }
    }
}

impl DiskFile for GatedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.grow()?;
        self.file.allocate(bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.grow()?;
        self.file.reserve(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.gate.take()?;
        self.file.set_len(bytes)
    }

    fn map(&self, readable: usize, expected: usize) -> io::Result<Map> {
        self.file.map(readable, expected)
    }

    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_at(bytes, position)
    }

    fn read_all(&self) -> io::Result<Vec<u8>> {
        self.file.read_all()
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.gate.take()?;
        self.file.write_at(bytes, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.take()?;
        if self.has_frames {
            self.gate.pass()?;
        }
        self.file.sync()
    }

    fn zero_from(&self, from: u64) -> io::Result<()> {
        self.gate.take()?;
        self.file.zero_from(from)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.gate.take()?;
        if self.has_frames {
            self.gate.pass()?;
        }
        self.file.sync_file_system()
    }

    fn descriptor(&self) -> io::Result<Option<Descriptor>> {
        self.file.descriptor()
    }
}

pub(super) async fn start_gated() -> (Harness, Arc<Gate>) {
    let gate = Arc::default();
    let harness = start_gated_with(&gate, |_| {}).await;
    (harness, gate)
}

pub(super) async fn start_gated_with(
    gate: &Arc<Gate>,
    adjust: impl FnOnce(&mut ServerConfig),
) -> Harness {
    Harness::start_on(Arc::new(GatedDisk::new(gate)), adjust, None).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_before_its_fsync_and_what_comes_meanwhile_shares_the_next() {
    let (harness, gate) = start_gated().await;
    // The write-ahead log has its first file after that.
    harness.produce("first", &numbered_frames(1)).await;
    gate.set(|gate| (gate.held, gate.syncs) = (true, 0));
    let mut producer = harness.producer("t").await;
    producer.send(&numbered_frames(1).concat()).await;
    harness
        .until("it is appended", |count| count.frames_in == 2)
        .await;
    let mut consumer = harness.consumer("g", "t").await;
    producer
        .stays_open_and_silent(Duration::from_millis(50))
        .await;
    for _ in 0..99 {
        producer.send(&numbered_frames(1).concat()).await;
    }
    harness
        .until("reading goes on during the fsync", |count| {
            count.frames_in == 101
        })
        .await;
    producer
        .stays_open_and_silent(Duration::from_millis(50))
        .await;
    consumer
        .stays_open_and_silent(Duration::from_millis(10))
        .await;
    gate.set(|gate| gate.held = false);
    for expected in 0..100 {
        assert_eq!(producer.stored().await, expected);
    }
    assert_eq!(consumer.frame().await.offset, 0);
    let syncs = gate.state.lock().syncs;
    assert!(
        syncs <= 3,
        "{syncs} fsyncs for two rounds, and one for a file made ahead"
    );
    drop((producer, consumer));
    harness.stop().await;
}

/// PUB-04, as a client sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_04_frames_whose_fsync_failed_are_refused_and_so_is_what_follows() {
    let (harness, gate) = start_gated().await;
    harness.produce("t", &numbered_frames(4)).await;
    gate.set(|gate| gate.held = true);
    let mut producer = harness.producer("t").await;
    producer.send(&numbered_frames(3).concat()).await;
    harness
        .until("they are appended", |count| count.frames_in == 7)
        .await;
    gate.set(|gate| {
        gate.fail_syncs = true;
        gate.held = false;
    });
    for _ in 0..3 {
        assert_eq!(
            refused(producer.ack().await),
            (ErrorKind::StorageFailed.code(), 0)
        );
    }
    // The disk works again, and that helps nobody.
    gate.set(|gate| gate.fail_syncs = false);
    producer.send(&numbered_frames(1).concat()).await;
    assert_eq!(
        refused(producer.ack().await),
        (ErrorKind::StorageFailed.code(), 0)
    );
    assert_eq!(producer.rest().await, b"");
    let mut consumer = harness.consumer("g", "t").await;
    for offset in 0..4 {
        assert_eq!(consumer.frame().await.offset, offset);
    }
    consumer
        .stays_open_and_silent(Duration::from_millis(20))
        .await;
    drop(consumer);
    harness.trigger.trigger();
    patient(harness.running).await.unwrap().unwrap();
}

/// PUB-03, as a client sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_03_full_disk_is_refused_with_advice_and_the_connection_goes_on() {
    let (harness, gate) = start_gated().await;
    gate.set(|gate| gate.full = true);
    let mut producer = harness.producer("t").await;
    producer.send(&numbered_frames(3).concat()).await;
    for _ in 0..3 {
        assert_eq!(
            refused(producer.ack().await),
            (ErrorKind::StorageFull.code(), 1000)
        );
    }
    gate.set(|gate| gate.full = false);
    producer.send(&numbered_frames(2).concat()).await;
    assert_eq!((producer.stored().await, producer.stored().await), (0, 1));
    assert_eq!(harness.count().refused(ErrorKind::StorageFull), 3);
    drop(producer);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_waits_until_what_is_in_flight_is_durable() {
    let (harness, gate) = start_gated().await;
    gate.set(|gate| gate.held = true);
    let mut producer = harness.producer("t").await;
    producer.send(&numbered_frames(10).concat()).await;
    harness
        .until("they are appended", |count| count.frames_in == 10)
        .await;
    harness.trigger.trigger();
    producer
        .stays_open_and_silent(Duration::from_millis(50))
        .await;
    gate.set(|gate| gate.held = false);
    let acks = producer.rest().await;
    assert_eq!(acks.len(), 90);
    assert!(acks.chunks(9).all(|ack| ack[0] == 0x00));
    harness.stop().await;
}
