//! A client of the protocol that HermitMQ's clients speak, written from the byte layout alone: it shares no code with
//! the product, so that a mistake there cannot hide here.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// A frame as read from a consumer's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) timestamp: u64,
    pub(crate) offset: u64,
    pub(crate) record_count: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(timestamp: u64, key: &[u8], payload: &[u8]) -> Self {
        Self {
            timestamp,
            offset: 0,
            record_count: 1,
            key: key.to_vec(),
            payload: payload.to_vec(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_be_bytes();
        let mut out = vec![0x01];
        out.extend(self.timestamp.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        out.extend(length(&self.key));
        out.extend(length(&self.payload));
        out.extend(self.record_count.to_be_bytes());
        out.extend(&self.key);
        out.extend(&self.payload);
        out
    }
}

fn name(out: &mut Vec<u8>, name: &str) {
    out.push(u8::try_from(name.len()).expect("short"));
    out.extend(name.as_bytes());
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection that produces to one partition.
pub(crate) struct Producer {
    stream: TcpStream,
}

impl Producer {
    pub(crate) fn open(address: &str, topic: &str, partition: u32) -> io::Result<Self> {
        let mut stream = connect(address)?;
        let mut opening = vec![0x01];
        name(&mut opening, topic);
        opening.extend(partition.to_be_bytes());
        stream.write_all(&opening)?;
        Ok(Self { stream })
    }

    pub(crate) fn send(&mut self, frames: &[Frame]) -> io::Result<()> {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        self.stream.write_all(&bytes)
    }

    /// The next acknowledgement: the offset, or the eight bytes of a refusal.
    pub(crate) fn ack(&mut self) -> io::Result<Result<u64, [u8; 8]>> {
        let mut ack = [0; 9];
        self.stream.read_exact(&mut ack)?;
        let mut rest = [0; 8];
        rest.copy_from_slice(&ack[1..]);
        match ack[0] {
            0x00 => Ok(Ok(u64::from_be_bytes(rest))),
            0xff => Ok(Err(rest)),
            other => Err(io::Error::other(format!("status {other:#x}"))),
        }
    }
}

/// A connection that consumes one partition for a group.
pub(crate) struct Consumer {
    stream: BufReader<TcpStream>,
}

impl Consumer {
    pub(crate) fn open(
        address: &str,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> io::Result<Self> {
        let mut stream = connect(address)?;
        let mut opening = vec![0x02];
        name(&mut opening, group);
        name(&mut opening, topic);
        opening.extend(partition.to_be_bytes());
        stream.write_all(&opening)?;
        Ok(Self {
            stream: BufReader::with_capacity(1 << 20, stream),
        })
    }

    pub(crate) fn next(&mut self) -> io::Result<Frame> {
        let mut header = [0; 29];
        self.stream.read_exact(&mut header)?;
        assert_eq!(header[0], 0x01, "a lean frame");
        let u64_at = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("8"));
        let u32_at = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4"));
        let mut key = vec![0; u32_at(17) as usize];
        let mut payload = vec![0; u32_at(21) as usize];
        self.stream.read_exact(&mut key)?;
        self.stream.read_exact(&mut payload)?;
        Ok(Frame {
            timestamp: u64_at(1),
            offset: u64_at(9),
            record_count: u32_at(25),
            key,
            payload,
        })
    }
}

/// Commits an offset; true once the broker has answered `01`.
pub(crate) fn commit(
    address: &str,
    group: &str,
    topic: &str,
    partition: u32,
    offset: u64,
) -> io::Result<bool> {
    let mut stream = connect(address)?;
    let mut opening = vec![0x03];
    name(&mut opening, group);
    name(&mut opening, topic);
    opening.extend(partition.to_be_bytes());
    opening.extend(offset.to_be_bytes());
    stream.write_all(&opening)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(answer[0] == 0x01)
}
