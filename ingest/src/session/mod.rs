//! Sessions: requests with correlation ids, many in flight, each answered when it is ready.
//!
//! Two halves of one task share the socket. The reading half takes requests in order; a produce is appended right there,
//! so that the frames of a connection keep their order. If the page cache is enough it is answered there too, together
//! with those around it (see [`ready`]). Everything else becomes a future. The answering half polls those futures and
//! writes each answer as it is ready: a long poll never holds up what came after it.
//!
//! ING-2: at most `max_in_flight_requests` are unanswered, and one is being read; further ones wait in the socket. What
//! they hold of what the peer sent is bounded by `connection_memory_bytes`: produce and fetch hold next to nothing once
//! they are under way; all others draw, by their length, on what is left beside the request being read, and so do answers
//! that the peer does not take.
//! ING-5: when the peer has closed its side, or the server stops, long polls end with what there is.

mod authenticate;
mod fetch;
mod front;
mod handlers;
mod reader;
mod ready;

use std::sync::Arc;

use basalt_log::FrameSlice;
use basalt_proto::ErrorKind;
use basalt_proto::session::{
    ErrorResponse, ResponseBody, SESSION_REFUSED, SESSION_VERSION, encode_error, encode_response,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::ShutdownTrigger;
use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::input::Input;
use crate::output::{Output, Then};
use crate::read_ahead::Lane;
use crate::shared::MemoryBudget;
use reader::Reader;
use ready::{Ready, Turn};

/// Small answers that are ready together leave in one write of up to so many bytes.
const MAX_COALESCED_BYTES: usize = 64 << 10;

/// What goes back for one request.
#[derive(Debug)]
enum Answer {
    /// Nothing more than what the reading half has begun to write.
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
        let mut out = Vec::new();
        put_refusal(correlation_id, refusal, &mut out);
        Self::Message(out)
    }
}

fn put_refusal(correlation_id: u32, refusal: &Refusal, out: &mut Vec<u8>) {
    let error = ErrorResponse {
        retry_after_ms: refusal.retry_after_ms(),
        log_start_offset: refusal.log_start_offset,
        high_watermark: refusal.high_watermark,
        ..ErrorResponse::new(refusal.kind, refusal.message.as_str())
    };
    encode_error(correlation_id, &error, out);
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
    mut input: Input,
) -> Result<(), ConnectionError> {
    // Turns of its own: a request that has a turn of the connection's, or is next, is not polled while an answer is sent.
    let sending = Lane::new(&connection.shared.read_ahead);
    let output = Output {
        lane: &sending,
        ..connection.output()
    };
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
    if let Some(authenticator) = &connection.shared.authenticator {
        let proving = authenticate::authenticate(connection, authenticator, &output, &mut input);
        if !connection.before_it_is_late(proving).await? {
            return Ok(());
        }
    }
    let max_in_flight = connection
        .shared
        .config
        .max_in_flight_requests
        .min(Semaphore::MAX_PERMITS);
    let (sender, receiver) = mpsc::channel(max_in_flight);
    let ending = ShutdownTrigger::new();
    let turn = Turn::default();
    let reader = Reader {
        connection,
        work: sender,
        places: Arc::new(Semaphore::new(max_in_flight)),
        memory: MemoryBudget::new(connection.shared.config.waiting_memory_bytes()),
        ending: ending.signal(),
        ready: Ready::new(turn.clone()),
        max_queue_wait: None,
        readers_first: false,
    };
    let reading = async {
        let ended = reader.run(input).await;
        ending.trigger();
        ended
    };
    let mut reading = std::pin::pin!(reading);
    let mut answering = std::pin::pin!(answer_all(output, turn, receiver));
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

/// Polls what is worked on and writes each answer as it is ready, until no more work comes and all is answered.
async fn answer_all(
    output: Output<'_>,
    turn: Turn,
    mut work: mpsc::Receiver<Work<'_>>,
) -> Result<(), ConnectionError> {
    let mut working = FuturesUnordered::new();
    let mut writer = Writer {
        output,
        turn,
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
    turn: Turn,
    out: Vec<u8>,
    /// Places of the answers in `out`, free again once they are written.
    places: Vec<Place>,
}

impl Writer<'_> {
    async fn put(&mut self, (answer, place): (Answer, Place)) -> Result<(), ConnectionError> {
        match answer {
            Answer::Nothing => self.places.push(place),
            Answer::Message(message) => {
                self.out.extend_from_slice(&message);
                self.places.push(place);
            }
            Answer::Frames { head, frames } => {
                self.out.extend_from_slice(&head);
                self.places.push(place);
                // A head alone would leave as a packet of its own.
                self.flush(Then::More).await?;
                self.turn.begin();
                self.output.send_file(&frames).await?;
                self.turn.end();
            }
        }
        Ok(())
    }

    async fn flush(&mut self, then: Then) -> Result<(), ConnectionError> {
        let begun = self.turn.begin();
        self.output.send(&begun, Then::More).await?;
        self.output.send(&self.out, then).await?;
        self.turn.end();
        self.out.clear();
        self.out.shrink_to(MAX_COALESCED_BYTES);
        self.places.clear();
        Ok(())
    }
}
