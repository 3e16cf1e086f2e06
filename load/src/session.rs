//! A session connection used for one request at a time: what happens around a run, and never during it.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use basalt_proto::session::{
    EmptyResponse, ErrorResponse, MetadataResponse, PartitionMetadata, RESPONSE_HEADER_BYTES,
    Request, ResponseBody, ResponseHeader, SESSION_VERSION, STATUS_OK,
};
use basalt_proto::{ErrorKind, Opening, TopicName};

use crate::error::LoadError;

/// No answer that is read whole is larger.
const MAX_ANSWER_BYTES: u32 = 64 << 20;
/// A blocked read looks up this often, to see whether the run was stopped.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(500);

/// Connects, to a connection on which nothing waits for company.
pub(crate) fn connect(address: &str, timeout: Duration) -> Result<TcpStream, LoadError> {
    let failed = |source| LoadError::Connect {
        address: address.to_owned(),
        source,
    };
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for candidate in address.to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&candidate, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Opens a session on a new connection.
pub(crate) fn connect_session(address: &str, timeout: Duration) -> Result<TcpStream, LoadError> {
    let mut stream = connect(address, timeout)?;
    stream
        .set_read_timeout(Some(timeout))
        .map_err(LoadError::io("set up a connection"))?;
    let mut opening = Vec::new();
    Opening::Session {
        version: SESSION_VERSION,
    }
    .encode_into(&mut opening);
    stream
        .write_all(&opening)
        .map_err(LoadError::io("open a session"))?;
    let mut answer = [0];
    stream
        .read_exact(&mut answer)
        .map_err(LoadError::io("open a session"))?;
    if answer != [SESSION_VERSION] {
        return Err(LoadError::NoSession { found: answer[0] });
    }
    Ok(stream)
}

/// Asks and waits for the answer.
#[derive(Debug)]
pub(crate) struct Admin {
    stream: TcpStream,
    next_id: u32,
}

impl Admin {
    pub(crate) fn connect(address: &str, timeout: Duration) -> Result<Self, LoadError> {
        Ok(Self {
            stream: connect_session(address, timeout)?,
            next_id: 0,
        })
    }

    /// Sends one request and reads its answer.
    pub(crate) fn call<R: ResponseBody>(
        &mut self,
        what: &'static str,
        request: &Request<'_>,
    ) -> Result<R, LoadError> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        call(&mut self.stream, what, id, request)
    }

    /// The partitions of a topic; `None` if there is no such topic.
    pub(crate) fn partitions(
        &mut self,
        topic: &TopicName,
    ) -> Result<Option<Vec<PartitionMetadata>>, LoadError> {
        let request = Request::Metadata {
            topics: vec![topic.clone()],
        };
        match self.call::<MetadataResponse>("ask for the topic's partitions", &request) {
            Ok(answer) => Ok(answer
                .topics
                .into_iter()
                .find(|found| found.topic == *topic)
                .map(|topic| topic.partitions)),
            Err(error) if error.kind() == Some(ErrorKind::UnknownTopic) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn create_topic(
        &mut self,
        topic: &TopicName,
        partitions: u32,
        durability: Option<&str>,
    ) -> Result<(), LoadError> {
        let config = durability.map(|level| ("durability".to_owned(), level.to_owned()));
        let request = Request::CreateTopic {
            topic: topic.clone(),
            partitions,
            config: config.into_iter().collect(),
        };
        self.call::<EmptyResponse>("create the topic", &request)
            .map(|_| ())
    }

    pub(crate) fn delete_topic(&mut self, topic: &TopicName) -> Result<(), LoadError> {
        let request = Request::DeleteTopic {
            topic: topic.clone(),
        };
        self.call::<EmptyResponse>("delete the topic", &request)
            .map(|_| ())
    }
}

/// Waits until the server has read all that was sent on a connection on which nothing waits for an answer.
pub(crate) fn ping(stream: &mut TcpStream) -> Result<(), LoadError> {
    call::<EmptyResponse>(stream, "end the connection", u32::MAX, &Request::Ping).map(|_| ())
}

fn call<R: ResponseBody>(
    stream: &mut TcpStream,
    what: &'static str,
    id: u32,
    request: &Request<'_>,
) -> Result<R, LoadError> {
    let mut message = Vec::new();
    request.encode_into(id, &mut message);
    stream.write_all(&message).map_err(LoadError::io(what))?;
    let mut head = [0; RESPONSE_HEADER_BYTES];
    stream.read_exact(&mut head).map_err(LoadError::io(what))?;
    let header = ResponseHeader::decode(&head, MAX_ANSWER_BYTES)?;
    let mut body = vec![0; header.body_bytes as usize];
    stream.read_exact(&mut body).map_err(LoadError::io(what))?;
    if header.correlation_id != id {
        return Err(LoadError::UnknownRequest {
            found: header.correlation_id,
        });
    }
    if header.status != STATUS_OK {
        return Err(LoadError::refused(
            what,
            ErrorResponse::decode(header.status, &body)?,
        ));
    }
    Ok(R::decode(&body)?)
}
