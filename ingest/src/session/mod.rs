//! Sessions: requests with correlation ids, many in flight, each answered when it is ready.
//!
//! Two halves of one task share the socket. The reading half takes requests in order; a produce is appended right there,
//! so that the frames of a connection keep their order, and everything else becomes a future. The answering half polls
//! those futures and writes each answer as it is ready: a long poll never holds up what came after it.
//!
//! ING-2: at most `max_in_flight_requests` are unanswered, and one is being read; further ones wait in the socket. What
//! they hold of what the peer sent is bounded by `connection_memory_bytes`: produce and fetch hold next to nothing once
//! they are under way; all others draw, by their length, on what is left beside the request being read.
//! ING-5: when the peer has closed its side, or the server stops, long polls end with what there is.

mod fetch;
mod handlers;

use std::sync::Arc;

use basalt_log::FrameSlice;
use basalt_proto::ErrorKind;
use basalt_proto::session::{
    ErrorResponse, REQUEST_HEADER_BYTES, Request, RequestHeader, ResponseBody, SESSION_REFUSED,
    SESSION_VERSION, SessionError, encode_error, encode_response,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::output::{Output, Then};
use crate::shared::MemoryBudget;
use crate::{Counters, ShutdownSignal, ShutdownTrigger};

/// Small answers that are ready together leave in one write of up to so many bytes.
const MAX_COALESCED_BYTES: usize = 64 << 10;

/// The most that a byte of a request may take once it is decoded: a name of one byte is two on the wire, and a pointer
/// and an allocation in memory.
const DECODED_BYTES: usize = 32;

/// What goes back for one request.
#[derive(Debug)]
enum Answer {
    /// Nothing: the request asked for no answer.
    Nothing,
    /// A whole message.
    Message(Vec<u8>),
    /// A message that ends with frames, which go from their file to the socket.
    Frames { head: Vec<u8>, frames: FrameSlice },
}

impl Answer {
    fn ok(correlation_id: u32, body: &impl ResponseBody) -> Self {
        let mut out = Vec::new();
        encode_response(correlation_id, body, &mut out);
        Self::Message(out)
    }

    fn refused(correlation_id: u32, refusal: &Refusal) -> Self {
        let error = ErrorResponse {
            retry_after_ms: refusal.retry_after_ms(),
            log_start_offset: refusal.log_start_offset,
            high_watermark: refusal.high_watermark,
            ..ErrorResponse::new(refusal.kind, refusal.message.as_str())
        };
        let mut out = Vec::new();
        encode_error(correlation_id, &error, &mut out);
        Self::Message(out)
    }
}

/// A request being worked on, and its place among those in flight.
struct Work<'a> {
    answer: BoxFuture<'a, Answer>,
    place: Place,
}

/// What a request holds until it is answered.
#[derive(Debug)]
struct Place {
    _in_flight: OwnedSemaphorePermit,
    _memory: Option<OwnedSemaphorePermit>,
}

pub(crate) async fn serve(
    connection: &Connection<'_>,
    version: u8,
    input: Input,
) -> Result<(), ConnectionError> {
    let output = connection.output();
    if version != SESSION_VERSION {
        connection
            .shared
            .counters
            .refuse(ErrorKind::UnsupportedVersion, 1);
        output.send(&[SESSION_REFUSED], Then::Nothing).await?;
        let message = format!(
            "the session asks for version {version}, version {SESSION_VERSION} is spoken here"
        );
        return Err(Refusal::new(ErrorKind::UnsupportedVersion, message).into());
    }
    output.send(&[SESSION_VERSION], Then::Nothing).await?;
    let max_in_flight = connection
        .shared
        .config
        .max_in_flight_requests
        .min(Semaphore::MAX_PERMITS);
    let (sender, receiver) = mpsc::channel(max_in_flight);
    let ending = ShutdownTrigger::new();
    let reader = Reader {
        connection,
        input,
        work: sender,
        places: Arc::new(Semaphore::new(max_in_flight)),
        memory: MemoryBudget::new(connection.shared.config.waiting_memory_bytes()),
        ending: ending.signal(),
    };
    let reading = async {
        let ended = reader.run().await;
        ending.trigger();
        ended
    };
    let mut reading = std::pin::pin!(reading);
    let mut answering = std::pin::pin!(answer_all(output, receiver));
    tokio::select! {
        biased;
        // Answering ends first only by failing.
        answered = &mut answering => answered,
        read = &mut reading => {
            answering.await?;
            read
        }
    }
}

struct Reader<'a> {
    connection: &'a Connection<'a>,
    input: Input,
    work: mpsc::Sender<Work<'a>>,
    places: Arc<Semaphore>,
    /// For requests that keep what they were sent until they are answered.
    memory: MemoryBudget,
    /// Triggered when no more requests will come.
    ending: ShutdownSignal,
}

impl<'a> Reader<'a> {
    async fn run(mut self) -> Result<(), ConnectionError> {
        let Connection {
            stream,
            shared,
            shutdown,
            ..
        } = self.connection;
        loop {
            let needed_bytes = match self.front()? {
                Front::Whole { header, bytes } => {
                    let body = self.input.unread().get(REQUEST_HEADER_BYTES..bytes);
                    let request = Request::decode(header.kind, body.unwrap_or_default());
                    let share = self.memory_share(&request, bytes);
                    let Some(place) = self.place(share).await else {
                        return Ok(());
                    };
                    let answer = self.dispatch(header.correlation_id, request).await;
                    Counters::increment(&shared.counters.requests);
                    self.input.consume(bytes);
                    if self.work.send(Work { answer, place }).await.is_err() {
                        return Ok(());
                    }
                    // It may hold more than its share, which is all there is: nothing is read beside it.
                    if share >= self.memory.bytes() && self.memory(share).await.is_none() {
                        return Ok(());
                    }
                    continue;
                }
                Front::Part { needed_bytes } => needed_bytes,
                Front::Refused {
                    correlation_id,
                    refusal,
                } => return self.refuse(correlation_id, refusal).await,
            };
            match self
                .input
                .fill(stream, needed_bytes, shared, shutdown)
                .await
            {
                Ok(Filled::More) => {}
                Ok(Filled::Eof | Filled::Stopping) => return Ok(()),
                Err(ConnectionError::Refused(refusal)) => {
                    return self.refuse(self.front_id(), refusal).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What stands at the front of the input.
    fn front(&self) -> Result<Front, ConnectionError> {
        let unread = self.input.unread();
        let Some(head) = unread.first_chunk::<REQUEST_HEADER_BYTES>() else {
            return Ok(Front::Part {
                needed_bytes: REQUEST_HEADER_BYTES,
            });
        };
        match RequestHeader::decode(head, self.connection.shared.config.max_request_bytes) {
            Err(error) => Ok(Front::Refused {
                correlation_id: self.front_id(),
                refusal: Refusal::new(error.kind(), error.to_string()),
            }),
            Ok(header) => {
                let bytes = REQUEST_HEADER_BYTES.saturating_add(header.body_bytes as usize);
                let whole = unread.len() >= bytes;
                Ok(if whole {
                    Front::Whole { header, bytes }
                } else {
                    Front::Part {
                        needed_bytes: bytes,
                    }
                })
            }
        }
    }

    /// The correlation id of the request at the front, which need not be whole; 0 when it is not even that far.
    fn front_id(&self) -> u32 {
        let id = self
            .input
            .unread()
            .get(5..)
            .and_then(|rest| rest.first_chunk());
        id.map_or(0, |id| u32::from_be_bytes(*id))
    }

    /// A place among the requests in flight with that share of the memory; `None` when the server stops first.
    async fn place(&self, share_bytes: usize) -> Option<Place> {
        let in_flight = tokio::select! {
            place = Arc::clone(&self.places).acquire_owned() => place.ok()?,
            () = self.connection.shutdown.wait() => return None,
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
    fn memory_share(&self, request: &Result<Request<'_>, SessionError>, bytes: usize) -> usize {
        match request {
            // A fetch is a few names and numbers, and may stay for minutes: others must not wait for it.
            Ok(Request::Produce(_) | Request::Fetch(_)) | Err(_) => 0,
            Ok(_) => bytes.saturating_mul(DECODED_BYTES).min(self.memory.bytes()),
        }
    }

    /// Answers a request behind which nothing can be found, and ends the connection.
    async fn refuse(&self, correlation_id: u32, refusal: Refusal) -> Result<(), ConnectionError> {
        self.connection.shared.counters.refuse(refusal.kind, 1);
        if let Some(place) = self.place(0).await {
            let answer = std::future::ready(Answer::refused(correlation_id, &refusal)).boxed();
            // Nobody left to tell is no reason not to log what was wrong.
            let _ = self.work.send(Work { answer, place }).await;
        }
        Err(refusal.into())
    }

    async fn dispatch(
        &self,
        id: u32,
        request: Result<Request<'_>, SessionError>,
    ) -> BoxFuture<'a, Answer> {
        let shared = self.connection.shared;
        match request {
            Ok(Request::Produce(request)) => handlers::produce(shared, id, request).await,
            Ok(Request::Fetch(request)) => {
                fetch::answer(self.connection, id, request, self.ending.clone()).boxed()
            }
            Ok(other) => handlers::answer(shared, id, other),
            Err(error) => {
                let refusal = Refusal::new(error.kind(), error.to_string());
                shared.counters.refuse(refusal.kind, 1);
                std::future::ready(Answer::refused(id, &refusal)).boxed()
            }
        }
    }
}

enum Front {
    Whole {
        header: RequestHeader,
        bytes: usize,
    },
    Part {
        needed_bytes: usize,
    },
    Refused {
        correlation_id: u32,
        refusal: Refusal,
    },
}

/// Polls what is worked on and writes each answer as it is ready, until no more work comes and all is answered.
async fn answer_all(
    output: Output<'_>,
    mut work: mpsc::Receiver<Work<'_>>,
) -> Result<(), ConnectionError> {
    let mut working = FuturesUnordered::new();
    let mut writer = Writer {
        output,
        out: Vec::new(),
        places: Vec::new(),
    };
    let mut more = true;
    loop {
        let ready = tokio::select! {
            biased;
            Some(ready) = working.next() => ready,
            next = work.recv(), if more => {
                match next {
                    Some(Work { answer, place }) => working.push(answer.map(|answer| (answer, place))),
                    None => more = false,
                }
                continue;
            }
            else => return Ok(()),
        };
        writer.put(ready).await?;
        // What else is ready leaves together with it.
        while writer.out.len() < MAX_COALESCED_BYTES {
            let Some(Some(ready)) = working.next().now_or_never() else {
                break;
            };
            writer.put(ready).await?;
        }
        writer.flush(Then::Nothing).await?;
    }
}

struct Writer<'a> {
    output: Output<'a>,
    out: Vec<u8>,
    /// Places of the answers in `out`, free again once they are written.
    places: Vec<Place>,
}

impl Writer<'_> {
    async fn put(&mut self, (answer, place): (Answer, Place)) -> Result<(), ConnectionError> {
        match answer {
            Answer::Nothing => {}
            Answer::Message(message) => {
                self.out.extend_from_slice(&message);
                self.places.push(place);
            }
            Answer::Frames { head, frames } => {
                self.out.extend_from_slice(&head);
                self.places.push(place);
                // A head alone would leave as a packet of its own.
                self.flush(Then::More).await?;
                self.output.send_file(&frames).await?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self, then: Then) -> Result<(), ConnectionError> {
        self.output.send(&self.out, then).await?;
        self.out.clear();
        self.out.shrink_to(MAX_COALESCED_BYTES);
        self.places.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use basalt_proto::session::{FetchRequest, NO_END_OFFSET, Start};
    use basalt_proto::{PartitionId, TopicName};

    use super::*;
    use crate::read_ahead::Lane;
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
    ) -> (Reader<'a>, mpsc::Receiver<Work<'a>>) {
        let (sender, work) = mpsc::channel(64);
        let reader = Reader {
            connection,
            input: Input::new(input, 0),
            work: sender,
            places: Arc::new(Semaphore::new(64)),
            memory: MemoryBudget::new(connection.shared.config.waiting_memory_bytes()),
            ending: connection.shutdown.clone(),
        };
        (reader, work)
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
        let (reader, mut work) = reader(&connection, input);
        let mut reading = std::pin::pin!(reader.run());
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
        let (reader, mut work) = reader(&connection, input);
        let mut reading = std::pin::pin!(reader.run());
        assert!(matches!(futures::poll!(&mut reading), Poll::Pending));
        let fetching = work.try_recv();
        assert!(
            work.try_recv().is_ok(),
            "the large request waits for a long poll"
        );
        drop((fetching, peer));
    }
}
