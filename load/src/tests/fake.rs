//! A small server in memory that speaks both protocols and can be told to do wrong.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use basalt_proto::session::{
    AckLevel, EmptyResponse, ErrorResponse, FetchRequest, FetchResponseHeader, MetadataResponse,
    PartitionMetadata, ProduceResponse, REQUEST_HEADER_BYTES, Request, RequestHeader, Start,
    TopicMetadata, encode_error, encode_fetch_header, encode_response,
};
use basalt_proto::{
    Ack, ErrorKind, FRAME_HEADER_BYTES, FrameHeader, FrameLimits, FrameWalk, Offset, Opening,
    PartitionId, TopicName, patch_offset,
};

/// What goes wrong with the record that is sent as number [`WRONG`] to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Acknowledged and forgotten; its offset is skipped.
    Lose,
    /// Acknowledged and forgotten; its offset is given to the next one.
    LoseAndReuse,
    /// Stored twice.
    Double,
    /// Stored with another last byte.
    Change,
    /// Stored before the one before it.
    Swap,
    /// The request with it is refused.
    Refuse,
    /// It is stored, and no reader is ever sent it.
    Withhold,
    /// It is stored where it belongs, and acknowledged one further on.
    Misplace,
    /// The server does nothing for [`STALL`] before it stores it. No record is lost.
    Stall,
}

pub(super) const WRONG: u64 = 70;
pub(super) const STALL: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
struct Partition {
    /// Frames with their offsets.
    frames: Vec<Vec<u8>>,
    next_offset: u64,
    received: u64,
}

impl Partition {
    fn append(&mut self, frame: &[u8], fault: Fault) {
        let wrong = self.received == WRONG;
        self.received += 1;
        let fault = if wrong { fault } else { Fault::None };
        let mut frame = frame.to_vec();
        match fault {
            Fault::Lose => {
                self.next_offset += 1;
                return;
            }
            Fault::LoseAndReuse => return,
            Fault::Change => frame.last_mut().into_iter().for_each(|byte| *byte ^= 1),
            Fault::Double => self.store(frame.clone()),
            Fault::Swap => {
                let before = self.frames.pop().expect("one before it");
                self.next_offset -= 1;
                self.store(frame);
                frame = before;
            }
            Fault::None | Fault::Refuse | Fault::Withhold | Fault::Misplace | Fault::Stall => {}
        }
        self.store(frame);
    }

    fn store(&mut self, mut frame: Vec<u8>) {
        patch_offset(&mut frame, Offset(self.next_offset));
        self.next_offset += 1;
        self.frames.push(frame);
    }

    /// Whole frames from an offset on, at most `max_bytes` but one at least.
    fn read(&self, from: u64, max_bytes: usize, fault: Fault) -> (Vec<u8>, u64) {
        let (mut bytes, mut next) = (Vec::new(), from);
        for frame in &self.frames {
            let offset = offset_of(frame);
            if offset < from {
                continue;
            }
            if !bytes.is_empty() && bytes.len() + frame.len() > max_bytes
                || fault == Fault::Withhold && offset >= WRONG
            {
                break;
            }
            bytes.extend_from_slice(frame);
            next = offset + 1;
        }
        (bytes, next)
    }
}

fn offset_of(frame: &[u8]) -> u64 {
    let head = frame.first_chunk::<FRAME_HEADER_BYTES>().expect("a header");
    FrameHeader::decode(head).expect("a frame").offset.0
}

#[derive(Debug, Default)]
struct State {
    topics: HashMap<TopicName, Vec<Partition>>,
    deleted: Vec<TopicName>,
}

/// The server; its threads end with their connections.
#[derive(Clone, Debug)]
pub(super) struct FakeServer {
    pub(super) address: String,
    fault: Fault,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl FakeServer {
    pub(super) fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = Self {
            address,
            fault,
            state: Arc::default(),
        };
        let accepting = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (server, stream) = (accepting.clone(), stream.expect("a connection"));
                // An end of the connection in the middle of anything is the client's business.
                thread::spawn(move || drop(server.serve(stream)));
            }
        });
        server
    }

    pub(super) fn topics(&self) -> usize {
        self.lock().topics.len()
    }

    pub(super) fn deleted(&self) -> usize {
        self.lock().deleted.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut input = BufReader::new(stream.try_clone()?);
        let mut opening = Vec::new();
        let opening = loop {
            let mut byte = [0];
            input.read_exact(&mut byte)?;
            opening.push(byte[0]);
            if let Some((opening, _)) = Opening::parse(&opening).map_err(io::Error::other)? {
                break opening;
            }
        };
        match opening {
            Opening::Session { version } => self.session(version, input, stream),
            Opening::Produce { topic, partition } => {
                self.hermitmq_produce(&topic, partition, input, stream)
            }
            Opening::Consume {
                topic, partition, ..
            } => self.hermitmq_consume(&topic, partition, stream),
            Opening::Commit { .. } => Ok(()),
        }
    }

    fn with<T>(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        f: impl FnOnce(&mut Partition) -> T,
    ) -> T {
        let mut state = self.lock();
        let partitions = state.topics.entry(topic.clone()).or_default();
        let number = partition.0 as usize;
        while partitions.len() <= number {
            partitions.push(Partition::default());
        }
        let result = f(&mut partitions[number]);
        self.state.1.notify_all();
        result
    }

    /// Waits for frames at an offset.
    fn read(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        from: u64,
        max_bytes: usize,
        wait: Duration,
    ) -> (Vec<u8>, u64, u64) {
        let guard = self.lock();
        let read = |state: &State| {
            let partition = state
                .topics
                .get(topic)
                .and_then(|partitions| partitions.get(partition.0 as usize));
            partition.map(|partition| {
                let (bytes, next) = partition.read(from, max_bytes, self.fault);
                (bytes, next, partition.next_offset)
            })
        };
        let empty = |state: &mut State| read(state).is_none_or(|(bytes, ..)| bytes.is_empty());
        let (guard, _) = self
            .state
            .1
            .wait_timeout_while(guard, wait, empty)
            .unwrap_or_else(PoisonError::into_inner);
        read(&guard).unwrap_or((Vec::new(), from, 0))
    }

    fn hermitmq_produce(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        mut input: impl Read,
        mut output: TcpStream,
    ) -> io::Result<()> {
        loop {
            let mut head = [0; FRAME_HEADER_BYTES];
            input.read_exact(&mut head)?;
            let header = FrameHeader::decode(&head).map_err(io::Error::other)?;
            let mut frame = head.to_vec();
            frame.resize(usize::try_from(header.frame_bytes()).expect("short"), 0);
            input.read_exact(&mut frame[FRAME_HEADER_BYTES..])?;
            let ack = self.with(topic, partition, |stored| {
                if self.fault == Fault::Refuse && stored.received == WRONG {
                    stored.received += 1;
                    return Ack::Refused {
                        kind: ErrorKind::Busy,
                        retry_after_ms: 1,
                    };
                }
                let misplaced = self.fault == Fault::Misplace && stored.received == WRONG;
                let offset = stored.next_offset + u64::from(misplaced);
                stored.append(&frame, self.fault);
                Ack::Stored(Offset(offset))
            });
            output.write_all(&ack.encode())?;
        }
    }

    fn hermitmq_consume(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        mut output: TcpStream,
    ) -> io::Result<()> {
        let mut from = 0;
        loop {
            let (bytes, next, _) =
                self.read(topic, partition, from, 10_000, Duration::from_secs(60));
            output.write_all(&bytes)?;
            from = next;
        }
    }

    /// Lets an answer overtake the one before it whenever two requests are there, as the protocol permits.
    fn session(
        &self,
        version: u8,
        mut input: BufReader<TcpStream>,
        mut output: TcpStream,
    ) -> io::Result<()> {
        output.write_all(&[version])?;
        let mut held = Vec::new();
        loop {
            let mut head = [0; REQUEST_HEADER_BYTES];
            input.read_exact(&mut head)?;
            let header = RequestHeader::decode(&head, 64 << 20).map_err(io::Error::other)?;
            let mut body = vec![0; header.body_bytes as usize];
            input.read_exact(&mut body)?;
            let request = Request::decode(header.kind, &body).map_err(io::Error::other)?;
            let mut answer = Vec::new();
            self.answer(header.correlation_id, request, &mut answer);
            if held.is_empty() && input.buffer().len() >= REQUEST_HEADER_BYTES {
                held = answer;
                continue;
            }
            answer.append(&mut held);
            output.write_all(&answer)?;
        }
    }

    fn answer(&self, id: u32, request: Request<'_>, out: &mut Vec<u8>) {
        match request {
            Request::Produce(request) => {
                let count = FrameWalk::new(request.frames, FrameLimits::default()).count() as u64;
                let wrong = self.with(&request.topic, request.partition, |partition| {
                    (partition.received..partition.received + count).contains(&WRONG)
                });
                if wrong && self.fault == Fault::Stall {
                    thread::sleep(STALL);
                }
                let misplaced = u64::from(wrong && self.fault == Fault::Misplace);
                let mut answer = Vec::new();
                self.with(&request.topic, request.partition, |partition| {
                    let frames = || FrameWalk::new(request.frames, FrameLimits::default());
                    let base = partition.next_offset + misplaced;
                    if wrong && self.fault == Fault::Refuse {
                        partition.received += count;
                        return encode_error(
                            id,
                            &ErrorResponse::new(ErrorKind::Busy, "not now"),
                            &mut answer,
                        );
                    }
                    let mut rest = request.frames;
                    for frame in frames() {
                        let length = usize::try_from(frame.expect("sound").header.frame_bytes())
                            .expect("short");
                        partition.append(&rest[..length], self.fault);
                        rest = &rest[length..];
                    }
                    // A server that does wrong does not say so.
                    let stored = ProduceResponse {
                        base_offset: Offset(base),
                        end_offset: Offset(base + count),
                    };
                    encode_response(id, &stored, &mut answer);
                });
                if request.ack != AckLevel::None {
                    out.extend_from_slice(&answer);
                }
            }
            Request::Fetch(request) => self.fetch(id, &request, out),
            Request::Metadata { topics } => {
                let state = self.lock();
                let found = topics.iter().filter_map(|topic| {
                    let partitions = state.topics.get(topic)?;
                    Some(TopicMetadata {
                        topic: topic.clone(),
                        topic_id: 1,
                        config: Vec::new(),
                        partitions: (0..).zip(partitions).map(metadata).collect(),
                    })
                });
                encode_response(
                    id,
                    &MetadataResponse {
                        topics: found.collect(),
                    },
                    out,
                );
            }
            Request::CreateTopic {
                topic, partitions, ..
            } => {
                let partitions = (0..partitions).map(|_| Partition::default()).collect();
                self.lock().topics.insert(topic, partitions);
                encode_response(id, &EmptyResponse, out);
            }
            Request::DeleteTopic { topic } => {
                let mut state = self.lock();
                state.topics.remove(&topic);
                state.deleted.push(topic);
                encode_response(id, &EmptyResponse, out);
            }
            Request::Ping => encode_response(id, &EmptyResponse, out),
            other => panic!("a load has no need of {other:?}"),
        }
    }

    fn fetch(&self, id: u32, request: &FetchRequest, out: &mut Vec<u8>) {
        let Start::Offset(Offset(from)) = request.start else {
            panic!("a load says where it is");
        };
        // Short waits keep the tests short.
        let wait =
            Duration::from_millis(u64::from(request.max_wait_ms)).min(Duration::from_millis(20));
        let (bytes, next, end) = self.read(
            &request.topic,
            request.partition,
            from,
            request.max_bytes as usize,
            wait,
        );
        let header = FetchResponseHeader {
            log_start_offset: Offset(0),
            high_watermark: Offset(end),
            next_offset: Offset(next),
            end_reached: next >= request.end_offset.0,
        };
        encode_fetch_header(id, &header, u32::try_from(bytes.len()).expect("short"), out);
        out.extend_from_slice(&bytes);
    }
}

fn metadata((number, partition): (u32, &Partition)) -> PartitionMetadata {
    PartitionMetadata {
        partition: PartitionId(number),
        log_start_offset: Offset(0),
        cold_end_offset: Offset(0),
        high_watermark: Offset(partition.next_offset),
        log_end_offset: Offset(partition.next_offset),
        hot_bytes: 0,
        cold_bytes: 0,
    }
}
