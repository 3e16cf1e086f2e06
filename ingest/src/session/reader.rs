//! The reading half of a session: takes requests in order, appends what is produced, and leaves the rest to be answered.

use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::TieredPartition;
use basalt_proto::session::{
    AckLevel, EmptyResponse, NO_MAX_QUEUE_WAIT, ProduceRequest, REQUEST_HEADER_BYTES, Request,
    SessionError, encode_response,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::front::{Front, front, front_ack, front_id};
use super::ready::Ready;
use super::{Answer, Place, Work, fetch, handlers, put_refusal};
use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::shared::MemoryBudget;
use crate::verify::whole_at_once;
use crate::{Counters, ShutdownSignal};

/// The most that a byte of a request may take once it is decoded: a name of one byte is two on the wire, and a pointer
/// and an allocation in memory.
const DECODED_BYTES: usize = 32;
/// So many readers who wait for what a request appends are served before it is answered.
const FIRST_READERS: usize = 4;

pub(super) struct Reader<'a> {
    pub(super) connection: &'a Connection<'a>,
    pub(super) work: mpsc::Sender<Work<'a>>,
    pub(super) places: Arc<Semaphore>,
    /// For requests that keep what they were sent until they are answered, and for answers that are not taken.
    pub(super) memory: MemoryBudget,
    /// Triggered when no more requests will come.
    pub(super) ending: ShutdownSignal,
    /// Answers to requests that had nothing to wait for.
    pub(super) ready: Ready,
    /// How long a produce request may wait for its turn; `None` waits as long as it takes.
    pub(super) max_queue_wait: Option<Duration>,
    /// What was appended has woken few readers.
    pub(super) readers_first: bool,
}

impl<'a> Reader<'a> {
    pub(super) async fn run(mut self, mut input: Input) -> Result<(), ConnectionError> {
        let ended = self.take_all(&mut input).await;
        // What is answered is told, however it ended; if it cannot be, the answering half has failed and says why.
        let _ = self.flush().await;
        ended
    }

    /// Takes requests until no more come. `Ok` too when the answering half has ended, which says why.
    async fn take_all(&mut self, input: &mut Input) -> Result<(), ConnectionError> {
        let Connection {
            stream,
            shared,
            shutdown,
            ..
        } = self.connection;
        loop {
            let needed_bytes = match front(input, shared.config.max_request_bytes) {
                Front::Whole { header, bytes } => {
                    let body = input.unread().get(REQUEST_HEADER_BYTES..bytes);
                    let request = Request::decode(header.kind, body.unwrap_or_default());
                    let taken = self.take(header.correlation_id, request, bytes).await;
                    Counters::increment(&shared.counters.requests);
                    input.consume(bytes);
                    input.max_share_wait = self.max_queue_wait.unwrap_or(Duration::MAX);
                    if taken.is_none() {
                        return Ok(());
                    }
                    continue;
                }
                Front::Part { needed_bytes } => needed_bytes,
                Front::Refused {
                    correlation_id,
                    refusal,
                } => return Err(self.refuse(correlation_id, refusal)),
            };
            // An answer wakes a client, which then competes with this thread for a core: by then they have what they wait for.
            if std::mem::take(&mut self.readers_first) {
                tokio::task::yield_now().await;
            }
            if self.flush().await.is_none() {
                return Ok(());
            }
            let filled = match input.fill(stream, needed_bytes, shared, shutdown).await {
                Err(ConnectionError::Refused(refusal)) => {
                    self.pass_over(input, needed_bytes, refusal).await?
                }
                filled => filled?,
            };
            if filled != Filled::More {
                return Ok(());
            }
        }
    }

    /// Refuses the request at the front, for which there is no memory, and drops it as it comes: whoever asked not to wait
    /// goes on with the next one. For all others it is the end: they have waited long.
    ///
    /// # Errors
    /// The refusal, when the connection ends with it, and those of [`Input::fill`].
    async fn pass_over(
        &mut self,
        input: &mut Input,
        bytes: usize,
        refusal: Refusal,
    ) -> Result<Filled, ConnectionError> {
        let Connection {
            stream,
            shared,
            shutdown,
            ..
        } = self.connection;
        let id = front_id(input);
        // Of a produce request all but its frames is enough to go by.
        let ack = match front(input, shared.config.max_request_bytes) {
            Front::Part { .. } if self.max_queue_wait.is_some() => front_ack(input),
            _ => None,
        };
        match ack {
            None => return Err(self.refuse(id, refusal)),
            Some(AckLevel::None) => shared.counters.refuse(refusal.kind, 1),
            Some(_) => self.put_refusal(id, &refusal),
        }
        // An answering half that has ended says why itself, and this one ends with it.
        let _ = self.flush().await;
        input.discard(stream, bytes, shared, shutdown).await
    }

    /// Does what is asked, or has it done. `None` when the server stops or nobody answers any more.
    async fn take(
        &mut self,
        id: u32,
        request: Result<Request<'_>, SessionError>,
        bytes: usize,
    ) -> Option<()> {
        match request {
            Ok(Request::Produce(request)) => self.produce(id, request).await?,
            Ok(Request::Options { max_queue_wait_ms }) => {
                self.max_queue_wait = (max_queue_wait_ms != NO_MAX_QUEUE_WAIT)
                    .then(|| Duration::from_millis(u64::from(max_queue_wait_ms)));
                encode_response(id, &EmptyResponse, self.ready.out());
            }
            Err(error) => {
                let refusal = Refusal::new(error.kind(), error.to_string());
                self.put_refusal(id, &refusal);
            }
            Ok(request) => {
                let share = self.memory_share(&request, bytes);
                let place = self.place(share).await?;
                let answer = self.dispatch(id, request);
                self.work.send(Work { answer, place }).await.ok()?;
                // It may hold more than its share, which is all there is: nothing is read beside it.
                if share >= self.memory.bytes() {
                    drop(self.memory(share).await?);
                }
            }
        }
        if self.ready.is_full() {
            self.flush().await?;
        }
        Some(())
    }

    /// Appends at once, in the order of the connection's requests. An answer that waits for a group commit is left to the
    /// answering half (ING-1).
    async fn produce(&mut self, id: u32, request: ProduceRequest<'_>) -> Option<()> {
        let shared = self.connection.shared;
        // A topic that is not there yet has the defaults.
        let topic = shared.log.log().topic(&request.topic);
        let config = match topic {
            Some(topic) => topic.config(),
            None => shared.log.log().config().topic_defaults.clone(),
        };
        let check = shared.check_for(request.frames, &config);
        let batch = match whole_at_once(check) {
            Ok(checked) => checked,
            Err(check) => {
                self.flush().await?;
                shared.verifier.whole(check).await
            }
        };
        let admitted = match batch {
            Ok(batch) => handlers::admit(shared, &request, batch).await,
            Err(error) => Err(error.into()),
        };
        let stored = match admitted {
            Ok(admitted) if admitted.waits() => {
                match self.commit_place(&admitted.partition).await? {
                    Ok(place) => {
                        let wait = shared.commits.enter(&admitted.partition);
                        match admitted.append(shared) {
                            Ok(stored) => {
                                let partition = admitted.partition;
                                let answer =
                                    handlers::acknowledge(shared, id, partition, stored, wait);
                                let answer = answer.boxed();
                                return self.work.send(Work { answer, place }).await.ok();
                            }
                            Err(refusal) => Err(refusal),
                        }
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            Ok(admitted) => {
                let readers = admitted.partition.watcher_count();
                self.readers_first |= (1..=FIRST_READERS).contains(&readers);
                admitted.append(shared)
            }
            Err(refusal) => Err(refusal),
        };
        match stored {
            _ if request.ack == AckLevel::None => {
                if let Err(refusal) = stored {
                    shared.counters.refuse(refusal.kind, 1);
                }
            }
            Ok(stored) => encode_response(id, &stored, self.ready.out()),
            Err(refusal) => self.put_refusal(id, &refusal),
        }
        Some(())
    }

    /// A place for a request that will wait for a group commit; a refusal when that would take longer than the peer
    /// wants to wait. `None` when the server stops.
    async fn commit_place(
        &mut self,
        partition: &TieredPartition,
    ) -> Option<Result<Place, Refusal>> {
        let Some(limit) = self.max_queue_wait else {
            return self.place(0).await.map(Ok);
        };
        let free = self.places.available_permits() > 0;
        let began = Instant::now();
        let Ok(place) = timeout(limit, self.place(0)).await else {
            return Some(Err(Refusal::queue_wait(limit, began.elapsed())));
        };
        let place = place?;
        // What came first among those that wait shows how long it takes now: to wait behind it takes longer.
        let for_place = if free {
            Duration::ZERO
        } else {
            began.elapsed()
        };
        let waited = for_place + self.connection.shared.commits.oldest(partition);
        if waited > limit {
            return Some(Err(Refusal::queue_wait(limit, waited)));
        }
        Some(Ok(place))
    }

    fn put_refusal(&mut self, id: u32, refusal: &Refusal) {
        self.connection.shared.counters.refuse(refusal.kind, 1);
        put_refusal(id, refusal, self.ready.out());
    }

    /// Writes the answers that are ready, or what of them the socket does not take now, through the answering half.
    /// `None` when that has ended.
    async fn flush(&mut self) -> Option<()> {
        let Some(left) = self.ready.send(self.connection) else {
            return Some(());
        };
        let share = left.bytes().min(self.memory.bytes());
        let in_flight = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let place = Place {
            _in_flight: in_flight,
            _memory: self.memory.take(share).await,
        };
        let answer = std::future::ready(left.into_answer()).boxed();
        self.work.send(Work { answer, place }).await.ok()
    }

    /// A place among the requests in flight with that share of the memory; `None` when the server stops first.
    async fn place(&mut self, share_bytes: usize) -> Option<Place> {
        let in_flight = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                // What is ready does not wait with this one.
                self.flush().await?;
                tokio::select! {
                    place = Arc::clone(&self.places).acquire_owned() => place.ok()?,
                    () = self.connection.shutdown.wait() => return None,
                }
            }
        };
        let memory = match share_bytes {
            0 => None,
            _ => Some(self.memory(share_bytes).await?),
        };
        Some(Place {
            _in_flight: in_flight,
            _memory: memory,
        })
    }

    /// A share of the memory; `None` when the server stops first.
    async fn memory(&self, share_bytes: usize) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            share = self.memory.take(share_bytes) => share,
            () = self.connection.shutdown.wait() => None,
        }
    }

    /// How much memory a request may hold until it is answered, at most all there is.
    fn memory_share(&self, request: &Request<'_>, bytes: usize) -> usize {
        match request {
            // A fetch is a few names and numbers, and may stay for minutes: others must not wait for it.
            Request::Produce(_) | Request::Fetch(_) => 0,
            _ => bytes.saturating_mul(DECODED_BYTES).min(self.memory.bytes()),
        }
    }

    /// Answers a request behind which nothing can be found; the error that ends the connection.
    fn refuse(&mut self, correlation_id: u32, refusal: Refusal) -> ConnectionError {
        self.put_refusal(correlation_id, &refusal);
        refusal.into()
    }

    /// The future that answers anything but a produce request.
    fn dispatch(&self, id: u32, request: Request<'_>) -> BoxFuture<'a, Answer> {
        let shared = self.connection.shared;
        match request {
            Request::Fetch(request) => {
                fetch::answer(self.connection, id, request, self.ending.clone()).boxed()
            }
            other => handlers::answer(shared, id, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use basalt_proto::session::{FetchRequest, NO_END_OFFSET, Start};
    use basalt_proto::{PartitionId, TopicName};

    use super::*;
    use crate::ShutdownTrigger;
    use crate::read_ahead::Lane;
    use crate::session::ready::Turn;
    use crate::tests::{shared, stream_pair};

    fn request(id: u32, request: &Request<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        request.encode_into(id, &mut out);
        out
    }

    fn metadata(id: u32, name_count: usize) -> Vec<u8> {
        let topics = (0..name_count)
            .map(|number| TopicName::new(&format!("topic-{number}")).unwrap())
            .collect();
        request(id, &Request::Metadata { topics })
    }

    /// A reader of a session on which `input` has come, and what it leaves to be answered.
    fn reader<'a>(
        connection: &'a Connection<'a>,
        input: Vec<u8>,
    ) -> (Reader<'a>, Input, mpsc::Receiver<Work<'a>>) {
        let (sender, work) = mpsc::channel(64);
        let reader = Reader {
            connection,
            work: sender,
            places: Arc::new(Semaphore::new(64)),
            memory: MemoryBudget::new(connection.shared.config.waiting_memory_bytes()),
            ending: connection.shutdown.clone(),
            ready: Ready::new(Turn::default()),
            max_queue_wait: None,
            readers_first: false,
        };
        (reader, Input::new(input, 0), work)
    }

    /// Nobody answers here, so that what was read stays in flight until the test drops it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn session_is_read_no_further_than_its_memory_allows() {
        let (_dir, shared) = shared(|config| config.connection_memory_bytes = 57 << 20).await;
        let (peer, stream) = stream_pair().await;
        let trigger = ShutdownTrigger::new();
        let shutdown = trigger.signal();
        let connection = Connection {
            stream: &stream,
            peer: peer.local_addr().unwrap(),
            shared: &shared,
            shutdown: &shutdown,
            lane: Lane::new(&shared.read_ahead),
        };
        let half = metadata(1, 2000);
        let bytes = usize::try_from(shared.config.waiting_memory_bytes()).unwrap();
        assert!((bytes / 2..bytes).contains(&(half.len() * DECODED_BYTES)));
        let input = [half, metadata(2, 2000), metadata(3, 50_000), metadata(4, 1)].concat();
        let (reader, input, mut work) = reader(&connection, input);
        let mut reading = std::pin::pin!(reader.run(input));
        for number in 1..=4 {
            assert!(matches!(futures::poll!(&mut reading), Poll::Pending));
            let read = work.try_recv();
            assert!(read.is_ok(), "request {number} is not read");
            assert!(
                work.try_recv().is_err(),
                "more is read beside request {number}"
            );
        }
        drop(peer);
        assert!(matches!(reading.await, Ok(())));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn long_polls_and_produce_requests_leave_the_memory_to_others() {
        let (_dir, shared) = shared(|_| {}).await;
        let topic = TopicName::new("t").unwrap();
        let (peer, stream) = stream_pair().await;
        let trigger = ShutdownTrigger::new();
        let shutdown = trigger.signal();
        let connection = Connection {
            stream: &stream,
            peer: peer.local_addr().unwrap(),
            shared: &shared,
            shutdown: &shutdown,
            lane: Lane::new(&shared.read_ahead),
        };
        let fetch = Request::Fetch(FetchRequest {
            topic,
            partition: PartitionId(0),
            start: Start::Latest,
            max_bytes: 1,
            min_bytes: 1,
            max_wait_ms: 300_000,
            end_offset: NO_END_OFFSET,
        });
        let input = [request(1, &fetch), metadata(2, 50_000)].concat();
        let (reader, input, mut work) = reader(&connection, input);
        let mut reading = std::pin::pin!(reader.run(input));
        assert!(matches!(futures::poll!(&mut reading), Poll::Pending));
        let fetching = work.try_recv();
        assert!(
            work.try_recv().is_ok(),
            "the large request waits for a long poll"
        );
        drop((fetching, peer));
    }
}
