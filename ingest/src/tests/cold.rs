//! ING-7 against a disk on which the segments of one topic are never in memory before they were loaded, and whose loads can
//! be held back and failed.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;

use basalt_log::{Descriptor, DiskFile, Map};
use basalt_proto::ErrorKind;
use basalt_proto::session::{EmptyResponse, FetchRequest, NO_END_OFFSET, Request, Start};
use parking_lot::{Condvar, Mutex};

use super::session::{Session, fetch, offsets, topic};
use super::*;

/// The topic whose segments are not in memory.
const OLD: &str = "old";
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// From here on what was not loaded is absent.
    is_cold: bool,
    held: bool,
    failing: bool,
    /// What was loaded is gone again when it is looked for.
    evicting: bool,
    loading: usize,
    most_loading: usize,
    /// Where each load began, in order.
    positions: Vec<u64>,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn pass(&self, position: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.positions.push(position);
        state.loading += 1;
        state.most_loading = state.most_loading.max(state.loading);
        // With an end, so that a thread that should not be here does not stop the test for ever.
        let held = |state: &mut GateState| state.held;
        self.changed.wait_while_for(&mut state, held, PATIENCE);
        state.loading -= 1;
        if state.failing {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }

    /// Waits until so many loads are held.
    async fn until_loading(&self, count: usize) {
        let waiting = async {
            while self.state.lock().loading != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        patient(waiting).await;
    }
}

/// The real disk with a gate before what reads from it.
#[derive(Debug)]
struct ColdDisk {
    gate: Arc<Gate>,
    real: RealDisk,
}

impl ColdDisk {
    fn new(gate: &Arc<Gate>) -> Self {
        Self {
            gate: Arc::clone(gate),
            real: RealDisk::new(),
        }
    }

    fn wrap(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let is_segment = path.extension().is_some_and(|extension| extension == "seg");
        if !is_segment || !path.components().any(|part| part.as_os_str() == OLD) {
            return file;
        }
        Arc::new(ColdFile {
            file,
            gate: Arc::clone(&self.gate),
            loaded: Mutex::default(),
        })
    }
}

impl Disk for ColdDisk {
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
        self.real.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.real.remove_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
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
struct ColdFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
    loaded: Mutex<BTreeSet<u64>>,
}

fn pages(position: u64, bytes: u64) -> std::ops::Range<u64> {
    position / PAGE_BYTES..(position + bytes).div_ceil(PAGE_BYTES)
}

impl DiskFile for ColdFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
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
        self.file.write_at(bytes, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn is_resident(&self, position: u64, bytes: u64) -> bool {
        let loaded = self.loaded.lock();
        !self.gate.state.lock().is_cold || pages(position, bytes).all(|page| loaded.contains(&page))
    }

    fn load(&self, position: u64, bytes: u64, see: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.gate.pass(position)?;
        self.file.load(position, bytes, see)?;
        if !self.gate.state.lock().evicting {
            self.loaded.lock().extend(pages(position, bytes));
        }
        Ok(())
    }

    fn zero_from(&self, from: u64) -> io::Result<()> {
        self.file.zero_from(from)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.file.sync_file_system()
    }

    fn descriptor(&self) -> io::Result<Option<Descriptor>> {
        self.file.descriptor()
    }
}

/// A server with `count` frames of 100 KiB in the topic [`OLD`], of which nothing is in memory, and ten small ones in `hot`.
async fn start_cold(count: u32, cold_reads: usize) -> (Harness, Arc<Gate>, Vec<Vec<u8>>) {
    let gate = Arc::new(Gate::default());
    let disk = Arc::new(ColdDisk::new(&gate));
    let harness = Harness::start_on(disk, |config| config.cold_reads = cold_reads, None).await;
    let frames: Vec<Vec<u8>> = (0..count)
        .map(|number| frame(1, b"", &number.to_be_bytes().repeat(25 << 10), 1))
        .collect();
    harness.produce(OLD, &frames).await;
    harness.produce("hot", &numbered_frames(10)).await;
    gate.set(|gate| gate.is_cold = true);
    (harness, gate, frames)
}

fn one_frame(offset: u64) -> Request<'static> {
    Request::Fetch(FetchRequest {
        topic: topic(OLD),
        partition: PartitionId(0),
        start: Start::Offset(Offset(offset)),
        max_bytes: 1,
        min_bytes: 1,
        max_wait_ms: 0,
        end_offset: NO_END_OFFSET,
    })
}

/// One thread serves all sockets: it must not be the one that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn hot_readers_of_the_same_thread_are_served_while_a_cold_one_waits() {
    let (harness, gate, _) = start_cold(3, 4).await;
    gate.set(|gate| gate.held = true);
    let mut session = Session::open(&harness).await;
    let cold = session.send(&fetch(OLD, Start::Earliest)).await;
    gate.until_loading(1).await;

    let response = session.send(&fetch("hot", Start::Earliest)).await;
    let hot = session.receive().await;
    assert_eq!(hot.id, response, "the cold one is not answered yet");
    assert_eq!(offsets(&hot.fetched().1), (0..10).collect::<Vec<_>>());
    let mut consumer = harness.consumer("g", "hot").await;
    assert_eq!(consumer.frame().await.payload, b"0");
    let mut cold_consumer = harness.consumer("g", OLD).await;
    gate.until_loading(2).await;
    harness.produce("hot", &numbered_frames(1)).await;
    assert_eq!(gate.state.lock().loading, 2);

    gate.set(|gate| gate.held = false);
    let response = session.receive().await;
    assert_eq!(response.id, cold);
    assert_eq!(offsets(&response.fetched().1), [0, 1, 2]);
    assert_eq!(cold_consumer.frame().await.offset, 0);
    drop((session, consumer, cold_consumer));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_cannot_read_is_an_error_of_that_fetch_alone() {
    let (harness, gate, frames) = start_cold(3, 4).await;
    gate.set(|gate| gate.failing = true);
    let mut session = Session::open(&harness).await;
    // What is sent, and what is walked.
    for start in [
        Start::Offset(Offset(1)),
        Start::Earliest,
        Start::Timestamp(1),
    ] {
        let error = session.ask(&fetch(OLD, start)).await.refused();
        assert_eq!(error.kind, ErrorKind::StorageFailed, "{error:?}");
        assert!(error.message.contains(".seg"), "{error:?}");
    }
    session.ask(&Request::Ping).await.ok::<EmptyResponse>();
    let (_, hot) = session.ask(&fetch("hot", Start::Earliest)).await.fetched();
    assert_eq!(offsets(&hot).len(), 10);
    // A native consumer cannot be told: its connection ends, without a byte that is no frame.
    let mut consumer = harness.consumer("g", OLD).await;
    assert_eq!(consumer.rest().await, b"");
    assert_eq!(harness.count().refused(ErrorKind::StorageFailed), 4);

    gate.set(|gate| gate.failing = false);
    let (_, bytes) = session.ask(&fetch(OLD, Start::Earliest)).await.fetched();
    assert_eq!(bytes.len(), frames.concat().len());
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_loads_wait_for_the_disk_than_are_allowed() {
    let (harness, gate, _) = start_cold(6, 2).await;
    gate.set(|gate| gate.held = true);
    let mut sessions = Vec::new();
    for offset in 0..6 {
        let mut session = Session::open(&harness).await;
        let cold = session.send(&one_frame(offset)).await;
        // Once this is answered the fetch has come as far as it can.
        let ping = session.send(&Request::Ping).await;
        assert_eq!(session.receive().await.id, ping);
        sessions.push((session, cold, offset));
    }
    gate.until_loading(2).await;
    // Whatever was given to a blocking thread has one by now.
    tokio::task::spawn_blocking(|| ()).await.unwrap();
    assert_eq!(gate.state.lock().loading, 2);
    gate.set(|gate| gate.held = false);
    for (session, cold, offset) in &mut sessions {
        let response = session.receive().await;
        assert_eq!(response.id, *cold);
        assert_eq!(offsets(&response.fetched().1), [*offset]);
    }
    assert_eq!(gate.state.lock().most_loading, 2);
    drop(sessions);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_take_turns_at_the_disk_however_much_one_asks_for() {
    let (harness, gate, frames) = start_cold(12, 1).await;
    gate.set(|gate| gate.held = true);
    let mut greedy = Session::open(&harness).await;
    for offset in 0..10 {
        greedy.send(&one_frame(offset)).await;
    }
    // Once this is answered all of them wait.
    let ping = greedy.send(&Request::Ping).await;
    assert_eq!(greedy.receive().await.id, ping);
    gate.until_loading(1).await;
    let mut modest = Session::open(&harness).await;
    let cold = modest.send(&one_frame(11)).await;
    let ping = modest.send(&Request::Ping).await;
    assert_eq!(modest.receive().await.id, ping);
    gate.set(|gate| gate.held = false);
    assert_eq!(modest.receive().await.id, cold);
    for _ in 0..10 {
        greedy.receive().await;
    }
    let positions = gate.state.lock().positions.clone();
    let frame_bytes = frames[0].len() as u64;
    let turn = positions.iter().position(|at| *at >= 11 * frame_bytes);
    assert_eq!(turn, Some(1), "{positions:?}");
    drop((greedy, modest));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_is_loaded_while_a_sequential_reader_is_sent_to() {
    let (harness, gate, frames) = start_cold(30, 4).await;
    let all_bytes = frames.concat().len() as u64;
    let mut session = Session::open(&harness).await;
    let (header, bytes) = session.ask(&fetch(OLD, Start::Earliest)).await.fetched();
    assert_eq!(offsets(&bytes)[0], 0);
    harness
        .until("the rest is loaded", |count| {
            count.bytes_read_ahead >= all_bytes
        })
        .await;
    gate.set(|gate| gate.held = true);
    let mut next = header.next_offset;
    while next < header.high_watermark {
        let (header, _) = session
            .ask(&fetch(OLD, Start::Offset(next)))
            .await
            .fetched();
        next = header.next_offset;
    }
    assert_eq!(
        harness.count().bytes_read_ahead,
        all_bytes,
        "each byte once"
    );
    gate.set(|gate| gate.held = false);
    drop(session);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_fetch_of_what_is_cold_is_answered_by_a_part() {
    let (harness, _gate, frames) = start_cold(60, 4).await;
    let mut session = Session::open(&harness).await;
    let large = |start| {
        Request::Fetch(FetchRequest {
            topic: topic(OLD),
            partition: PartitionId(0),
            start,
            max_bytes: 16 << 20,
            min_bytes: 5 << 20,
            max_wait_ms: 60_000,
            end_offset: NO_END_OFFSET,
        })
    };
    let (header, bytes) = session.ask(&large(Start::Earliest)).await.fetched();
    assert!((1..=4 << 20).contains(&bytes.len()), "{}", bytes.len());
    let mut all = offsets(&bytes);
    let (_, bytes) = session
        .ask(&fetch(OLD, Start::Offset(header.next_offset)))
        .await
        .fetched();
    all.extend(offsets(&bytes));
    assert_eq!(all[..], (0..all.len() as u64).collect::<Vec<_>>()[..]);
    // Now that it is in memory it comes whole.
    let mut next = Offset(0);
    while next < Offset(60) {
        let (header, _) = session
            .ask(&fetch(OLD, Start::Offset(next)))
            .await
            .fetched();
        next = header.next_offset;
    }
    let (_, bytes) = session.ask(&large(Start::Earliest)).await.fetched();
    assert_eq!(bytes.len(), frames.concat().len());
    drop(session);
    harness.stop().await;
}

/// What is about to be sent must be loaded once more, while the next request waits for its turn at the disk: that request is
/// not polled until the answer is sent, so that the answer must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_bytes_were_evicted_does_not_wait_for_the_requests_behind_it() {
    let (harness, gate, frames) = start_cold(3, 4).await;
    gate.set(|gate| {
        gate.evicting = true;
        gate.held = true;
    });
    let mut session = Session::open(&harness).await;
    let mut waiting = BTreeSet::new();
    for _ in 0..4 {
        waiting.insert(session.send(&fetch(OLD, Start::Earliest)).await);
    }
    // Once this is answered one of them loads, and the others wait for the turn.
    let ping = session.send(&Request::Ping).await;
    assert_eq!(session.receive().await.id, ping);
    gate.until_loading(1).await;
    gate.set(|gate| gate.held = false);
    while !waiting.is_empty() {
        let response = session.receive().await;
        assert!(waiting.remove(&response.id));
        assert_eq!(response.fetched().1.len(), frames.concat().len());
    }
    drop(session);
    harness.stop().await;
}
