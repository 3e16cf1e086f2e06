//! One connection that reads: one thread, one buffer, as few and as large reads as the socket gives.
//!
//! Frames are checked where they lie in the buffer. A session's next fetch is sent as soon as the head of an answer says
//! where it must begin, so that the server prepares the next answer while this one is on its way: it never waits for the
//! client. With several partitions on a connection each has a fetch of its own under way.

use std::io::{ErrorKind as IoErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use basalt_proto::session::{
    ErrorResponse, FETCH_RESPONSE_HEADER_BYTES, FetchRequest, FetchResponseHeader,
    RESPONSE_HEADER_BYTES, Request, ResponseHeader, STATUS_OK, Start,
};
use basalt_proto::{Offset, PartitionId, TopicName};

use crate::args::Protocol;
use crate::error::LoadError;
use crate::schedule::Schedule;
use crate::session::LOOK_UP;
use crate::shared::{SentAt, Shared};
use crate::stats::{Counter, Latencies};
use crate::verify::{Run, Tally, Verifier, Verify};

/// Bytes asked of the socket at once: as many as a second-level cache holds, between the copy of the kernel and the check.
const RECEIVE_BYTES: usize = 1 << 20;
/// A fetch at the tail is answered at least as often, so that a reader sees when the end was decided.
const FETCH_WAIT_MS: u32 = 500;
/// No answer is larger than the largest fetch, whose frames may be 50 MiB each.
const MAX_ANSWER_BYTES: u32 = u32::MAX;

/// When the records of a stream were due, or sent.
#[derive(Clone, Debug)]
pub(crate) enum Begun {
    Due(Schedule),
    Sent(Arc<SentAt>),
}

/// The records of one partition.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) partition: u32,
    pub(crate) verifier: Verifier,
    /// Where to go on when everything was read once and there is time left.
    pub(crate) again: Option<Verifier>,
    /// The end, where it is decided during the run; `u64::MAX` until then.
    pub(crate) end: Option<Arc<AtomicU64>>,
    /// By stream, where latencies are measured.
    pub(crate) begun: Vec<Begun>,
    /// Where the next fetch begins.
    pub(crate) next_fetch: u64,
    /// Distinguishes a fetch from the one before.
    pub(crate) turn: bool,
}

impl Chain {
    fn learn_end(&mut self) {
        if let Some(end) = &self.end {
            self.verifier.set_end_offset(end.load(Ordering::Acquire));
        }
    }
}

/// What one connection has read.
#[derive(Debug, Default)]
pub(crate) struct Consumed {
    pub(crate) tally: Tally,
    /// Offsets that were read over, whether their records came or not.
    pub(crate) covered: u64,
    pub(crate) latencies: Latencies,
    /// When the last records came.
    pub(crate) ended_ns: u64,
    /// The server stopped sending before the end.
    pub(crate) silent: bool,
}

/// One connection that reads.
#[derive(Debug)]
pub(crate) struct Consumer<'a> {
    pub(crate) shared: &'a Shared<'a>,
    pub(crate) counter: &'a Counter,
    pub(crate) stream: TcpStream,
    pub(crate) protocol: Protocol,
    pub(crate) topic: TopicName,
    pub(crate) fetch_bytes: u32,
    pub(crate) level: Verify,
    /// With hermitmq exactly one.
    pub(crate) chains: Vec<Chain>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    Answer,
    Frames {
        chain: usize,
        left: usize,
        next_offset: u64,
    },
}

impl Consumer<'_> {
    /// Reads until the end of every chain, or of the time.
    ///
    /// # Errors
    /// The connection failed, the server refused, or bytes came that mean nothing.
    pub(crate) fn run(self) -> Result<Consumed, LoadError> {
        self.stream
            .set_read_timeout(Some(LOOK_UP))
            .map_err(LoadError::io("set up a connection"))?;
        let state = match self.protocol {
            Protocol::Session => State::Answer,
            // A stream of frames without end.
            Protocol::Hermitmq => State::Frames {
                chain: 0,
                left: usize::MAX,
                next_offset: u64::MAX,
            },
        };
        let reader = Reader {
            state,
            buffer: vec![0; RECEIVE_BYTES],
            from: 0,
            to: 0,
            consumed: Consumed::default(),
            of: self,
        };
        reader.run()
    }

    /// Asks for the next frames of a chain.
    fn fetch(&mut self, number: usize) -> Result<(), LoadError> {
        let chain = &mut self.chains[number];
        let request = Request::Fetch(FetchRequest {
            topic: self.topic.clone(),
            partition: PartitionId(chain.partition),
            start: Start::Offset(Offset(chain.next_fetch)),
            max_bytes: self.fetch_bytes,
            min_bytes: 1,
            max_wait_ms: FETCH_WAIT_MS,
            end_offset: Offset(chain.verifier.end_offset()),
        });
        chain.turn = !chain.turn;
        // There are at most as many chains as partitions.
        let id = u32::try_from(number).unwrap_or(0) << 1 | u32::from(chain.turn);
        let mut message = Vec::new();
        request.encode_into(id, &mut message);
        self.stream
            .write_all(&message)
            .map_err(LoadError::io("ask for records"))
    }
}

struct Reader<'a> {
    of: Consumer<'a>,
    state: State,
    buffer: Vec<u8>,
    /// What is read and not yet understood.
    from: usize,
    to: usize,
    consumed: Consumed,
}

impl Reader<'_> {
    fn run(mut self) -> Result<Consumed, LoadError> {
        if self.of.protocol == Protocol::Session {
            for number in 0..self.of.chains.len() {
                if !self.of.chains[number].verifier.is_done() {
                    self.of.fetch(number)?;
                }
            }
        }
        let mut heard_ns = self.of.shared.timeline.now_ns();
        while !self.is_over() {
            self.of.shared.go_on()?;
            let before = self.tally();
            let read = self.read()?;
            let now_ns = self.of.shared.timeline.now_ns();
            if read > 0 {
                self.understand(now_ns)?;
            }
            let tally = self.tally();
            let frame_bytes = tally.frame_bytes - before.frame_bytes;
            if frame_bytes > 0 {
                heard_ns = now_ns;
                self.consumed.ended_ns = now_ns;
                self.of.counter.add(tally.seen - before.seen, frame_bytes);
            } else if self.of.shared.still_heard(heard_ns, now_ns, "").is_err() {
                self.consumed.silent = true;
                break;
            }
            if self.of.shared.window.is_over(now_ns)
                && self.of.chains.iter().all(|chain| chain.again.is_some())
            {
                break;
            }
        }
        for number in 0..self.of.chains.len() {
            self.close_pass(number);
        }
        Ok(self.consumed)
    }

    /// Whether every chain is at its end.
    fn is_over(&mut self) -> bool {
        self.of.chains.iter_mut().all(|chain| {
            chain.learn_end();
            chain.verifier.is_done() && chain.again.is_none()
        })
    }

    /// Everything found so far, in finished passes and in those under way.
    fn tally(&self) -> Tally {
        let mut tally = self.consumed.tally;
        self.of
            .chains
            .iter()
            .for_each(|chain| tally.add(&chain.verifier.tally));
        tally
    }

    /// Adds what a chain has found to the result.
    fn close_pass(&mut self, number: usize) {
        let verifier = &mut self.of.chains[number].verifier;
        self.consumed.covered += verifier.covered();
        self.consumed.tally.add(&verifier.tally);
        verifier.tally = Tally::default();
    }

    /// One read from the socket; 0 if nothing came for a while.
    fn read(&mut self) -> Result<usize, LoadError> {
        if self.from > 0 {
            // What is left is a part of one frame or head.
            self.buffer.copy_within(self.from..self.to, 0);
            self.to -= self.from;
            self.from = 0;
        }
        if self.to == self.buffer.len() {
            self.buffer.resize(self.to * 2, 0);
        }
        match (&self.of.stream).read(&mut self.buffer[self.to..]) {
            Ok(0) => Err(LoadError::Closed {
                when: "while records were awaited",
            }),
            Ok(read) => {
                self.to += read;
                Ok(read)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    IoErrorKind::WouldBlock | IoErrorKind::TimedOut | IoErrorKind::Interrupted
                ) =>
            {
                Ok(0)
            }
            Err(error) => Err(LoadError::io("read records")(error)),
        }
    }

    /// Works on what is in the buffer as far as it goes.
    fn understand(&mut self, now_ns: u64) -> Result<(), LoadError> {
        loop {
            let progress = match self.state {
                State::Answer => self.answer()?,
                State::Frames {
                    chain,
                    left,
                    next_offset,
                } => self.frames(chain, left, next_offset, now_ns)?,
            };
            if !progress {
                return Ok(());
            }
        }
    }

    /// The head of an answer.
    fn answer(&mut self) -> Result<bool, LoadError> {
        let bytes = &self.buffer[self.from..self.to];
        let Some(head) = bytes.first_chunk::<RESPONSE_HEADER_BYTES>() else {
            return Ok(false);
        };
        let header = ResponseHeader::decode(head, MAX_ANSWER_BYTES)?;
        let body = &bytes[RESPONSE_HEADER_BYTES..];
        if header.status != STATUS_OK {
            let Some(body) = body.get(..header.body_bytes as usize) else {
                return Ok(false);
            };
            return Err(LoadError::refused(
                "read records",
                ErrorResponse::decode(header.status, body)?,
            ));
        }
        let head_bytes = FETCH_RESPONSE_HEADER_BYTES.min(header.body_bytes as usize);
        let Some(fetched) = body.get(..head_bytes) else {
            return Ok(false);
        };
        let (fetched, _) = FetchResponseHeader::decode_prefix(fetched)?;
        let number = (header.correlation_id >> 1) as usize;
        let Some(chain) = self.of.chains.get_mut(number) else {
            return Err(LoadError::UnknownRequest {
                found: header.correlation_id,
            });
        };
        self.from += RESPONSE_HEADER_BYTES + head_bytes;
        let left = header.body_bytes as usize - head_bytes;
        let next_offset = fetched.next_offset.0;
        chain.learn_end();
        chain.next_fetch = next_offset;
        if next_offset >= chain.verifier.end_offset()
            && let Some(again) = &chain.again
        {
            chain.next_fetch = again.next_offset();
        }
        self.state = State::Frames {
            chain: number,
            left,
            next_offset,
        };
        if chain.next_fetch < chain.verifier.end_offset() {
            self.of.fetch(number)?;
        }
        Ok(true)
    }

    /// Frames of an answer, or of the stream.
    fn frames(
        &mut self,
        number: usize,
        left: usize,
        next_offset: u64,
        now_ns: u64,
    ) -> Result<bool, LoadError> {
        let chain = &mut self.of.chains[number];
        let here = left.min(self.to - self.from);
        let bytes = &self.buffer[self.from..self.from + here];
        let in_requests = self.of.protocol == Protocol::Session;
        let checked = if in_requests && self.of.level == Verify::Count {
            chain.verifier.count_bytes(here as u64);
            here
        } else {
            let from_ns = self.of.shared.window.from_ns;
            let (begun, latencies) = (&chain.begun, &mut self.consumed.latencies);
            chain.verifier.check(bytes, |run| {
                if let Some(begun) = begun.get(run.stream) {
                    measure(begun, run, from_ns, now_ns, latencies);
                }
            })?
        };
        self.from += checked;
        let left = left - checked;
        self.state = State::Frames {
            chain: number,
            left,
            next_offset,
        };
        if left > 0 || !in_requests {
            // Whole frames that are not checked lie behind the end.
            return Ok(false);
        }
        chain.verifier.pass_to(next_offset, self.of.level);
        if chain.verifier.is_done()
            && let Some(again) = chain.again.clone()
        {
            self.close_pass(number);
            self.of.chains[number].verifier = again;
        }
        self.state = State::Answer;
        Ok(true)
    }
}

/// Records the latencies of a run of records that has just come.
fn measure(begun: &Begun, run: Run, from_ns: u64, now_ns: u64, latencies: &mut Latencies) {
    let end = run.first + run.count;
    let mut record = run.first;
    while record < end {
        let (begun_ns, count) = match begun {
            Begun::Due(schedule) => (Some(schedule.due_ns(record)), 1),
            Begun::Sent(sent) => sent.get(record),
        };
        let count = count.min(end - record);
        if let Some(begun_ns) = begun_ns.filter(|begun_ns| *begun_ns >= from_ns) {
            latencies.record(now_ns.saturating_sub(begun_ns), count);
        }
        record += count;
    }
}
