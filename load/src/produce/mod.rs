//! One connection that sends: one thread, few and large system calls, no byte of a record touched.
//!
//! The thread writes without waiting as much as the socket takes, and reads acknowledgements in bulk. It waits in one
//! place: for acknowledgements when the pipeline is full (a plain blocking read), for room in the socket when that is
//! full, and in an open loop for the next record that is due, whichever comes first.
//!
//! In an open loop a record's latency begins when it was due, not when the thread got around to sending it: a server that
//! stalls delays the records behind the stall, and they are measured with it.

mod lane;
mod outbox;

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::Duration;

use basalt_proto::session::{
    ErrorResponse, ProduceResponse, RESPONSE_HEADER_BYTES, ResponseBody as _, ResponseHeader,
    STATUS_OK,
};
use basalt_proto::{ACK_BYTES, Ack, ErrorKind};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

pub(crate) use lane::{Lane, head};
use outbox::Outbox;

use crate::args::{AckArg, Protocol};
use crate::clock::{sleep_for, wake_precisely};
use crate::error::LoadError;
use crate::session::{LOOK_UP, ping};
use crate::shared::Shared;
use crate::stats::{Counter, Latencies};

/// Bytes that are gathered for one write, give or take a request.
const GATHER_BYTES: usize = 1 << 20;
/// Acknowledgements read at once.
const ACKS_BYTES: usize = 64 << 10;
/// The answer to a produce request is small, also when it is a refusal.
const MAX_ANSWER_BYTES: u32 = 64 << 10;

/// A request that waits for its answer.
#[derive(Debug)]
struct InFlight {
    lane: usize,
    first: u64,
    count: u32,
    /// Records not yet answered; 0 once all are.
    left: u32,
    frame_bytes: usize,
    at_ns: u64,
    /// Where it was stored, and how many offsets it took. Answers may overtake each other; offsets do not.
    stored: Option<(u64, u64)>,
}

/// What one connection has done.
#[derive(Debug, Default)]
pub(crate) struct Produced {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    /// Acknowledged with offsets that were not the next ones.
    pub(crate) misplaced: u64,
    pub(crate) refused: BTreeMap<ErrorKind, u64>,
    pub(crate) latencies: Latencies,
    pub(crate) lanes: Vec<Lane>,
    /// When the last acknowledgement came.
    pub(crate) ended_ns: u64,
}

/// One connection that sends.
#[derive(Debug)]
pub(crate) struct Producer<'a> {
    pub(crate) shared: &'a Shared<'a>,
    pub(crate) counter: &'a Counter,
    pub(crate) stream: TcpStream,
    pub(crate) protocol: Protocol,
    pub(crate) ack: AckArg,
    pub(crate) batch: u32,
    pub(crate) pipeline: u32,
    pub(crate) lanes: Vec<Lane>,
}

impl Producer<'_> {
    /// Sends all there is to send, and waits for the answers.
    ///
    /// # Errors
    /// The connection failed, or bytes came that mean nothing. A refusal is counted, and is no error here.
    pub(crate) fn run(self) -> Result<Produced, LoadError> {
        self.stream
            .set_read_timeout(Some(LOOK_UP))
            .map_err(LoadError::io("set up a connection"))?;
        let open_loop = self.lanes.iter().any(|lane| lane.schedule.is_some());
        if open_loop {
            wake_precisely();
        }
        let sender = Sender {
            open_loop,
            turn: 0,
            outbox: Outbox::default(),
            in_flight: VecDeque::new(),
            front_id: 0,
            answers: vec![0; ACKS_BYTES],
            filled: 0,
            heard_ns: 0,
            produced: Produced::default(),
            of: self,
        };
        sender.run()
    }
}

struct Sender<'a> {
    of: Producer<'a>,
    open_loop: bool,
    /// The lane whose turn it is.
    turn: usize,
    outbox: Outbox,
    in_flight: VecDeque<InFlight>,
    /// Correlation id of the request in front.
    front_id: u32,
    answers: Vec<u8>,
    filled: usize,
    heard_ns: u64,
    produced: Produced,
}

impl Sender<'_> {
    fn run(mut self) -> Result<Produced, LoadError> {
        loop {
            self.of.shared.go_on()?;
            let now_ns = self.of.shared.timeline.now_ns();
            if self.outbox.is_empty() {
                self.settle_unanswered();
                self.fill(now_ns);
            }
            self.outbox
                .write(&self.of.stream, &self.of.lanes)
                .map_err(LoadError::io("send records"))?;
            let done = |lane: &Lane| lane.is_done(now_ns, &self.of.shared.window);
            if self.outbox.is_empty() && self.in_flight.is_empty() && self.of.lanes.iter().all(done)
            {
                break;
            }
            self.wait(now_ns)?;
        }
        self.settle_unanswered();
        if self.of.ack == AckArg::None {
            self.of
                .stream
                .set_read_timeout(Some(self.of.shared.timeout))
                .map_err(LoadError::io("end a connection"))?;
            ping(&mut self.of.stream)?;
            self.produced.ended_ns = self.of.shared.timeline.now_ns();
        }
        self.produced.sent = self.of.lanes.iter().map(|lane| lane.sent).sum();
        self.produced.lanes = self.of.lanes;
        Ok(self.produced)
    }

    /// What is never answered counts once it is written.
    fn settle_unanswered(&mut self) {
        if self.of.ack == AckArg::None {
            for request in self.in_flight.drain(..) {
                self.of
                    .counter
                    .add(u64::from(request.count), request.frame_bytes as u64);
            }
        }
    }

    /// Puts as many requests into the outbox as are ready and may be in flight.
    fn fill(&mut self, now_ns: u64) {
        self.outbox.clear();
        let mut without = 0;
        while self.in_flight.len() < self.of.pipeline as usize
            && self.outbox.bytes() < GATHER_BYTES
            && without < self.of.lanes.len()
        {
            let number = self.turn;
            self.turn = (self.turn + 1) % self.of.lanes.len();
            let lane = &mut self.of.lanes[number];
            let count = lane.ready(now_ns, self.of.batch, &self.of.shared.window);
            if count == 0 {
                without += 1;
                continue;
            }
            without = 0;
            // There are never 2^32 requests in flight.
            let id = self
                .front_id
                .wrapping_add(u32::try_from(self.in_flight.len()).unwrap_or(0));
            let frame_bytes = self.outbox.push(number, lane, count as usize, id);
            if self.in_flight.is_empty() {
                self.heard_ns = now_ns;
            }
            let first = lane.sent;
            self.in_flight.push_back(InFlight {
                lane: number,
                first,
                count,
                left: count,
                frame_bytes,
                at_ns: now_ns,
                stored: None,
            });
            lane.advance(count, now_ns);
        }
    }

    fn wait(&mut self, now_ns: u64) -> Result<(), LoadError> {
        let waits_for_answers = !self.in_flight.is_empty() && self.of.ack != AckArg::None;
        if !self.open_loop && self.outbox.is_empty() {
            // The pipeline is full, or all is sent. Without answers there is nothing to wait for.
            return if waits_for_answers {
                self.read(true)
            } else {
                Ok(())
            };
        }
        let mut timeout = LOOK_UP;
        let mut events = PollFlags::POLLIN;
        if !self.outbox.is_empty() {
            events |= PollFlags::POLLOUT;
        } else if self.in_flight.len() < self.of.pipeline as usize {
            let due = self
                .of
                .lanes
                .iter()
                .filter_map(|lane| lane.next_due_ns(&self.of.shared.window))
                .min();
            if let Some(due_ns) = due {
                let interval = self
                    .of
                    .lanes
                    .iter()
                    .filter_map(|lane| lane.schedule)
                    .map(|schedule| schedule.interval_ns())
                    .min();
                let interval =
                    Duration::from_nanos(interval.unwrap_or(0) / self.of.lanes.len() as u64);
                let early =
                    Duration::from_nanos(due_ns.saturating_sub(self.of.shared.timeline.now_ns()));
                timeout = sleep_for(early, interval).min(LOOK_UP);
            }
        }
        let mut sockets = [PollFd::new(self.of.stream.as_fd(), events)];
        let ready = match ppoll(&mut sockets, Some(TimeSpec::from_duration(timeout)), None) {
            Ok(ready) => ready,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(LoadError::io("wait for a connection")(error.into())),
        };
        let answered = sockets[0]
            .revents()
            .is_some_and(|events| events.intersects(!PollFlags::POLLOUT));
        if ready > 0 && answered {
            self.read(false)
        } else if waits_for_answers {
            self.of
                .shared
                .still_heard(self.heard_ns, now_ns, "while answers were awaited")
        } else {
            Ok(())
        }
    }

    /// Reads answers: those that are there, or with `wait` the next ones.
    fn read(&mut self, wait: bool) -> Result<(), LoadError> {
        let flags = if wait {
            RecvFlags::empty()
        } else {
            RecvFlags::DONTWAIT
        };
        let room = &mut self.answers[self.filled..];
        let read = match recv(&self.of.stream, room, flags) {
            Ok((0, _)) => {
                return Err(LoadError::Closed {
                    when: "while answers were awaited",
                });
            }
            Ok((read, _)) => read,
            Err(Errno::AGAIN | Errno::INTR) => {
                let now_ns = self.of.shared.timeline.now_ns();
                return self.of.shared.still_heard(
                    self.heard_ns,
                    now_ns,
                    "while answers were awaited",
                );
            }
            Err(error) => return Err(LoadError::io("read answers")(error.into())),
        };
        self.filled += read;
        let now_ns = self.of.shared.timeline.now_ns();
        self.heard_ns = now_ns;
        self.produced.ended_ns = now_ns;
        let answers = std::mem::take(&mut self.answers);
        let parsed = match self.of.protocol {
            Protocol::Session => self.answers_of_session(&answers[..self.filled], now_ns),
            Protocol::Hermitmq => self.answers_of_hermitmq(&answers[..self.filled], now_ns),
        };
        self.answers = answers;
        let parsed = parsed?;
        self.answers.copy_within(parsed..self.filled, 0);
        self.filled -= parsed;
        if self.filled == self.answers.len() {
            self.answers.resize(self.filled * 2, 0);
        }
        Ok(())
    }

    fn answers_of_session(&mut self, bytes: &[u8], now_ns: u64) -> Result<usize, LoadError> {
        let mut position = 0;
        while let Some(head) = bytes[position..].first_chunk::<RESPONSE_HEADER_BYTES>() {
            let header = ResponseHeader::decode(head, MAX_ANSWER_BYTES)?;
            let from = position + RESPONSE_HEADER_BYTES;
            let Some(body) = bytes[from..].get(..header.body_bytes as usize) else {
                break;
            };
            position = from + body.len();
            let unknown = LoadError::UnknownRequest {
                found: header.correlation_id,
            };
            let number = header.correlation_id.wrapping_sub(self.front_id) as usize;
            let Some(request) = self
                .in_flight
                .get_mut(number)
                .filter(|request| request.left > 0)
            else {
                return Err(unknown);
            };
            request.left = 0;
            if header.status == STATUS_OK {
                let stored = ProduceResponse::decode(body)?;
                let span = stored.end_offset.distance_from(stored.base_offset);
                request.stored = Some((stored.base_offset.0, span));
                self.acknowledge(number, now_ns);
            } else {
                let error = ErrorResponse::decode(header.status, body)?;
                *self.produced.refused.entry(error.kind).or_default() += u64::from(request.count);
            }
            while let Some(request) = self.in_flight.pop_front_if(|request| request.left == 0) {
                self.front_id = self.front_id.wrapping_add(1);
                self.check_place(&request);
            }
        }
        Ok(position)
    }

    /// Whether a request was stored right behind the one before it.
    fn check_place(&mut self, request: &InFlight) {
        if let Some((base, span)) = request.stored {
            let count = u64::from(request.count);
            let follows = self.of.lanes[request.lane].follows(base, count);
            if !follows || span != count {
                self.produced.misplaced += count;
            }
        }
    }

    fn answers_of_hermitmq(&mut self, bytes: &[u8], now_ns: u64) -> Result<usize, LoadError> {
        let (answers, _) = bytes.as_chunks::<ACK_BYTES>();
        for answer in answers {
            let Some(request) = self.in_flight.front_mut() else {
                return Err(LoadError::UnknownRequest { found: 0 });
            };
            match Ack::decode(*answer)? {
                Ack::Stored(offset) => {
                    if !self.of.lanes[request.lane].follows(offset.0, 1) {
                        self.produced.misplaced += 1;
                    }
                }
                Ack::Refused { kind, .. } => {
                    *self.produced.refused.entry(kind).or_default() += 1;
                    // One less to be counted as acknowledged with the others of its request.
                    request.count -= 1;
                }
            }
            request.left -= 1;
            if request.left == 0 {
                self.acknowledge(0, now_ns);
                self.in_flight.pop_front();
            }
        }
        Ok(answers.len() * ACK_BYTES)
    }

    /// Counts a request that is stored.
    fn acknowledge(&mut self, number: usize, now_ns: u64) {
        let request = &self.in_flight[number];
        let count = u64::from(request.count);
        self.produced.acknowledged += count;
        self.of.counter.add(count, request.frame_bytes as u64);
        let from_ns = self.of.shared.window.from_ns;
        match &self.of.lanes[request.lane].schedule {
            Some(schedule) => {
                for record in request.first..request.first + count {
                    let due_ns = schedule.due_ns(record);
                    if due_ns >= from_ns {
                        self.produced
                            .latencies
                            .record(now_ns.saturating_sub(due_ns), 1);
                    }
                }
            }
            None if request.at_ns >= from_ns => {
                self.produced
                    .latencies
                    .record(now_ns.saturating_sub(request.at_ns), count);
            }
            None => {}
        }
    }
}
