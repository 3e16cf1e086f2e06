//! The Kafka protocol, over the same log: requests in order, answers in the order of their requests.
//!
//! Two halves of one task share the socket. The reading half takes requests and does what they ask, one after the other,
//! so that records keep the order in which they were sent. Its answers, and those that have to be waited for (a group
//! commit, a long poll), are written by the answering half, each in its turn: a request behind a long poll is done at
//! once and answered after it, as Kafka's clients expect. What is stored of a produce request are its record batches as
//! they came, each as one batch frame; what is sent of a log are its batches from the file, and record frames made into
//! batches (see [`basalt_proto::batch`]).
//!
//! Requests and answers are structs of the `kafka-protocol` crate but for produce and fetch, whose records it would copy.
//! Its decoders reserve what a count claims, so a request is walked over before ([`wire`], [`api`]).
//!
//! One server is a cluster of one node. There are no leader epochs: -1 everywhere, which clients take for "unknown".
//!
//! Invariants:
//! - **KAF-1**: answers leave in the order of their requests; a produce request with acks 0 has none. ING-1 holds: a
//!   batch is acknowledged once it is as durable as its topic's level promises.
//! - **KAF-2** (`wire`): what a request claims is checked before memory is reserved for it.
//! - **KAF-3** (`api`): what is announced is served, and nothing else is.
//! - **KAF-4** (`produce`): a batch is stored byte for byte but for base offset and leader epoch, which its checksum
//!   leaves out, or not at all.
//! - **KAF-5** (`fetch`): a fetch answers with whole batches, the first of which holds the offset asked for or is the
//!   next behind it, and at least one if there is any.
//! - **KAF-6** (`node`): a topic's id is the log's own in other clothes; a topic made anew has another.
//! - **KAF-7** (`sasl`): where users are known, nothing is served before a client has proved to be one.
//!
//! A request that cannot be understood ends the connection with one line in the log.

mod api;
mod configs;
mod consumer_protocol;
pub(crate) mod coordinator;
mod delete_records;
mod error;
mod fetch;
mod group_admin;
mod groups;
mod membership;
mod metadata;
mod node;
mod offsets;
mod produce;
pub(crate) mod producers;
mod records;
mod request;
mod response;
mod sasl;
mod stored;
mod timestamps;
mod topics;
mod transactional;
pub(crate) mod transactions;
mod versions;
mod wire;

use basalt_proto::ErrorKind;
use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_protocol::messages::ApiKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::connection::Connection;
use crate::error::{ConnectionError, Refusal};
use crate::input::{Filled, Input};
use crate::output::{Output, Then};
use crate::read_ahead::Lane;
use crate::shared::MemoryBudget;
use crate::{Counters, ShutdownSignal, ShutdownTrigger};
use node::Node;
use request::{Front, MIN_REQUEST_BYTES, Parsed, Request, front, parse};

/// Small answers that are ready together leave in one write of about so many bytes.
const MAX_COALESCED_BYTES: usize = 64 << 10;

/// What one partition takes of an answer that is waited for, about.
const PARTITION_BYTES: usize = 256;
/// Answers that hold less draw on no budget but that of requests in flight.
const MIN_SHARE_BYTES: usize = 4096;

/// What the reading half leaves to be written.
enum Answer<'a> {
    /// A whole answer.
    Message(Vec<u8>),
    /// Batches that are appended and may not be on the disk yet.
    Produced(produce::Produced),
    /// What is read when its turn has come.
    Fetch(Box<fetch::Fetch>),
    /// What depends on others: members of a group, or the disk.
    Waiting(Waiting<'a>),
}

/// An answer that is not known yet, or is to be as things stand when those before it have left.
struct Waiting<'a> {
    answer: BoxFuture<'a, Result<Vec<u8>, Refusal>>,
    /// What is answered if the server stops, or the peer, before it is known; `None` where that is soon in any case.
    instead: Option<Vec<u8>>,
}

impl<'a> Waiting<'a> {
    fn new(
        answer: impl Future<Output = Result<Vec<u8>, Refusal>> + Send + 'a,
        instead: Option<Vec<u8>>,
    ) -> Self {
        let answer = answer.boxed();
        Self { answer, instead }
    }

    fn done(answer: Vec<u8>) -> Self {
        Self::new(std::future::ready(Ok(answer)), None)
    }
}

/// An answer and its share of the connection's memory.
struct Work<'a> {
    answer: Answer<'a>,
    _memory: Option<OwnedSemaphorePermit>,
}

pub(crate) async fn serve(
    connection: &Connection<'_>,
    mut input: Input,
) -> Result<(), ConnectionError> {
    let config = &connection.shared.config;
    let node = Node::of(connection)?;
    // What is read and sent for fetches takes turns of its own at the disk.
    let lane = Lane::new(&connection.shared.read_ahead);
    let output = Output {
        lane: &lane,
        ..connection.output()
    };
    if let Some(authenticator) = &connection.shared.authenticator {
        let proving = sasl::authenticate(connection, authenticator, &output, &mut input);
        if !connection.before_it_is_late(proving).await? {
            return Ok(());
        }
    }
    // A place in the channel is a place in flight; one more is being waited for.
    let in_flight = config.max_in_flight_requests.min(Semaphore::MAX_PERMITS);
    let (sender, receiver) = mpsc::channel(in_flight);
    let ending = ShutdownTrigger::new();
    let reader = Reader {
        connection,
        node: &node,
        work: sender,
        memory: MemoryBudget::new(config.waiting_memory_bytes()),
    };
    let mut answerer = Answerer {
        connection,
        output,
        ending: ending.signal(),
        out: Vec::new(),
        fetches: fetch::Memory::default(),
    };
    let reading = async {
        let ended = reader.run(input).await;
        ending.trigger();
        ended
    };
    let mut reading = std::pin::pin!(reading);
    let mut answering = std::pin::pin!(answerer.run(receiver));
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
    node: &'a Node,
    work: mpsc::Sender<Work<'a>>,
    /// For answers that are not taken.
    memory: MemoryBudget,
}

impl<'a> Reader<'a> {
    /// Takes requests until no more come. `Ok` too when the answering half has ended, which says why.
    async fn run(self, mut input: Input) -> Result<(), ConnectionError> {
        let shared = self.connection.shared;
        loop {
            let front = front(&input, MIN_REQUEST_BYTES..=shared.config.max_request_bytes);
            let needed_bytes = match front.map_err(|refusal| self.refused(refusal))? {
                Front::Part { needed_bytes } => needed_bytes,
                Front::Whole { bytes } => {
                    let request = &input.unread()[request::LENGTH_BYTES..bytes];
                    let answered = self.take(request).await;
                    Counters::increment(&shared.counters.requests);
                    let answer = answered.map_err(|refusal| self.refused(refusal))?;
                    input.consume(bytes);
                    if let Some(answer) = answer
                        && self.leave(answer).await.is_none()
                    {
                        return Ok(());
                    }
                    continue;
                }
            };
            let filled = input
                .fill(
                    self.connection.stream,
                    needed_bytes,
                    shared,
                    self.connection.shutdown,
                )
                .await?;
            if filled != Filled::More {
                return Ok(());
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> Refusal {
        self.connection.shared.counters.refuse(refusal.kind, 1);
        refusal
    }

    /// Does what is asked; `None` where nothing is answered.
    ///
    /// # Errors
    /// A [`Refusal`], with which the connection ends.
    async fn take(&self, request: &[u8]) -> Result<Option<Answer<'a>>, Refusal> {
        let request = match parse(request)? {
            Parsed::Request(request) => request,
            Parsed::UnknownApiVersions { correlation_id } => {
                return versions::answer_unknown(correlation_id).map(|m| Some(Answer::Message(m)));
            }
        };
        let connection = self.connection;
        let shared = connection.shared;
        let waiting = match request.head.api.key {
            ApiKey::Produce => {
                let produced = produce::take(shared, &request).await?;
                return Ok(produced.map(Answer::Produced));
            }
            ApiKey::Fetch => {
                let fetch = fetch::Fetch::of(&request)?;
                return Ok(Some(Answer::Fetch(Box::new(fetch))));
            }
            ApiKey::JoinGroup => membership::join(connection, &request)?,
            ApiKey::SyncGroup => membership::sync(shared, &request)?,
            ApiKey::ConsumerGroupHeartbeat => consumer_protocol::heartbeat(connection, &request)?,
            ApiKey::ConsumerGroupDescribe => consumer_protocol::describe(shared, &request)?,
            ApiKey::OffsetCommit => groups::commit(shared, &request)?,
            ApiKey::OffsetFetch => groups::fetch(shared, &request)?,
            ApiKey::ListGroups => group_admin::list(shared, &request)?,
            ApiKey::DescribeGroups => group_admin::describe(shared, &request)?,
            ApiKey::DeleteGroups => group_admin::delete(shared, &request)?,
            ApiKey::OffsetDelete => group_admin::delete_offsets(shared, &request)?,
            _ => return Ok(Some(Answer::Message(self.answer(&request).await?))),
        };
        Ok(Some(Answer::Waiting(waiting)))
    }

    /// The answer to a request that is done here and now.
    async fn answer(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        let (connection, node) = (self.connection, self.node);
        let shared = connection.shared;
        match request.head.api.key {
            ApiKey::ApiVersions => versions::answer(request),
            ApiKey::Metadata => metadata::answer(shared, node, request).await,
            ApiKey::DescribeCluster => metadata::describe_cluster(node, request),
            ApiKey::AddPartitionsToTxn => transactional::add_partitions(shared, request).await,
            ApiKey::AddOffsetsToTxn => transactional::add_offsets(shared, request).await,
            ApiKey::TxnOffsetCommit => transactional::commit_offsets(shared, request).await,
            ApiKey::EndTxn => transactional::end(shared, request).await,
            ApiKey::DescribeTransactions => transactional::describe(shared, request).await,
            ApiKey::ListTransactions => transactional::list(shared, request).await,
            ApiKey::DescribeProducers => transactional::describe_producers(shared, request),
            ApiKey::InitProducerId => producers::init(shared, request).await,
            ApiKey::ListOffsets => offsets::answer(connection, request).await,
            ApiKey::CreateTopics => topics::create(shared, request).await,
            ApiKey::DeleteTopics => topics::delete(shared, request).await,
            ApiKey::DeleteRecords => delete_records::answer(shared, request).await,
            ApiKey::DescribeConfigs => configs::describe(shared, node, request),
            ApiKey::IncrementalAlterConfigs => configs::alter(shared, request).await,
            ApiKey::AlterConfigs => configs::alter_all(shared, request).await,
            ApiKey::CreatePartitions => topics::add_partitions(shared, request).await,
            ApiKey::FindCoordinator => groups::find_coordinator(node, request),
            ApiKey::Heartbeat => membership::heartbeat(shared, request),
            ApiKey::LeaveGroup => membership::leave(shared, request),
            ApiKey::SaslHandshake | ApiKey::SaslAuthenticate => sasl::out_of_place(request),
            key => Err(Refusal::new(
                ErrorKind::Internal,
                format!("{key:?} is announced and not served"),
            )),
        }
    }

    /// Leaves an answer to the answering half, once there is a place and memory for it. `None` when that half has ended, or the
    /// server stops.
    async fn leave(&self, answer: Answer<'a>) -> Option<()> {
        let held_bytes = match &answer {
            Answer::Message(message) => message.len(),
            Answer::Produced(produced) => produced.held_bytes(),
            Answer::Fetch(fetch) => fetch.held_bytes(),
            Answer::Waiting(_) => MIN_SHARE_BYTES,
        };
        let memory = match held_bytes {
            ..MIN_SHARE_BYTES => None,
            _ => {
                let bytes = held_bytes.min(self.memory.bytes());
                self.unless_stopped(self.memory.take(bytes)).await?
            }
        };
        let work = Work {
            answer,
            _memory: memory,
        };
        self.unless_stopped(self.work.send(work)).await?.ok()
    }

    /// What `wait` comes to; `None` when the server stops before that.
    async fn unless_stopped<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = wait => Some(done),
            () = self.connection.shutdown.wait() => None,
        }
    }
}

struct Answerer<'a> {
    connection: &'a Connection<'a>,
    output: Output<'a>,
    /// Triggered when no more requests will come.
    ending: ShutdownSignal,
    /// Whole answers that are due.
    out: Vec<u8>,
    fetches: fetch::Memory,
}

impl Answerer<'_> {
    /// Writes answers in order until no more work comes.
    async fn run(&mut self, mut work: mpsc::Receiver<Work<'_>>) -> Result<(), ConnectionError> {
        while let Some(Work { answer, _memory }) = work.recv().await {
            match answer {
                Answer::Message(message) => self.out.extend_from_slice(&message),
                Answer::Produced(produced) => self.produced(produced).await?,
                Answer::Waiting(waiting) => self.waiting(waiting).await?,
                Answer::Fetch(fetch) => {
                    self.flush().await?;
                    let (memory, ending) = (&mut self.fetches, &self.ending);
                    fetch
                        .answer(self.connection, &self.output, memory, ending)
                        .await?;
                }
            }
            if work.is_empty() || self.out.len() >= MAX_COALESCED_BYTES {
                self.flush().await?;
            }
        }
        self.flush().await
    }

    async fn produced(&mut self, produced: produce::Produced) -> Result<(), ConnectionError> {
        let mut settling = std::pin::pin!(produced.settle(self.connection.shared));
        let message = match settling.as_mut().now_or_never() {
            Some(message) => message,
            None => {
                // It has to be waited for, and what is due does not.
                self.flush().await?;
                settling.await
            }
        };
        self.out.extend_from_slice(&message?);
        Ok(())
    }

    async fn waiting(&mut self, waiting: Waiting<'_>) -> Result<(), ConnectionError> {
        let Waiting {
            mut answer,
            instead,
        } = waiting;
        let message = match (&mut answer).now_or_never() {
            Some(message) => message?,
            None => {
                self.flush().await?;
                match instead {
                    None => answer.await?,
                    Some(instead) => tokio::select! {
                        biased;
                        message = answer => message?,
                        () = self.ending.wait() => instead,
                    },
                }
            }
        };
        self.out.extend_from_slice(&message);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), ConnectionError> {
        if !self.out.is_empty() {
            self.output.send(&self.out, Then::Nothing).await?;
            self.out.clear();
            self.out.shrink_to(MAX_COALESCED_BYTES);
        }
        Ok(())
    }
}
