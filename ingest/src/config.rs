//! What a server can be told: addresses, time limits and size limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use basalt_proto::{FRAME_HEADER_BYTES, FrameLimits};

use crate::input::LARGE_ITEM_BYTES;

/// Bytes a request may hold beside one whole frame: names, counts and the like.
const REQUEST_OVERHEAD_BYTES: u64 = 4096;

/// Bytes of acknowledgements that may wait on one connection for their fsync or for their peer to read them.
pub(crate) const ACK_BUDGET_BYTES: usize = 1 << 20;

/// Limits and addresses of a [`crate::Server`]. Every limit holds for each connection by itself unless it says "server".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Addresses to listen on; port 0 picks a free one. Default `127.0.0.1:9092`.
    pub listen: Vec<SocketAddr>,
    /// The largest key and payload taken from a producer, inclusive. Default 1 MiB and 50 MiB.
    pub limits: FrameLimits,
    /// From accept to the last byte of the opening. Longer lets slower clients in; shorter frees descriptors sooner.
    /// Default 10 s, safe from 1 s.
    pub handshake_timeout: Duration,
    /// A frame or request once begun must bring its next MiB (or its end) within this time. A peer between frames may
    /// stay idle for ever. Default 30 s, safe from 1 s.
    pub frame_timeout: Duration,
    /// A reader that has data waiting and takes none of it for this long is cut off; also how long unacknowledged TCP
    /// data may wait for a peer that vanished. An idle consumer at the tail is never cut off. Default 120 s; shorter
    /// frees descriptors sooner but cuts consumers that pause between reads.
    pub send_timeout: Duration,
    /// Connections the whole server holds at a time, lowered at start to what the descriptor limit allows. When it is
    /// reached, the peer that has kept silent longest makes room. Default 10,000.
    pub max_connections: usize,
    /// The most one connection may hold of what its peer sent and is owed: the frame or request being read, and what
    /// waits to be answered. Must hold the largest frame or request and 1 MiB; what is left beside those is for requests
    /// being worked on, and a session that has used it up is read no further. Default 64 MiB.
    pub connection_memory_bytes: u64,
    /// The most that frames and requests of more than 1 MiB may hold on the whole server while they arrive; further
    /// ones wait, and are refused as busy after `frame_timeout`. Must hold the largest request. Default 1 GiB.
    pub large_frame_memory_bytes: u64,
    /// Requests a session or Kafka connection may have unanswered, long polls included; more wait in the socket.
    /// Default 64.
    pub max_in_flight_requests: usize,
    /// The longest request of a session or a Kafka connection. Must hold the largest frame and 4 KiB. Default 56 MiB.
    pub max_request_bytes: u32,
    /// The most frames one fetch returns, however much it asks for; a single larger frame is still delivered.
    /// Default 16 MiB.
    pub max_fetch_bytes: u32,
    /// The longest a fetch may wait for data, however long it asks for. Default 5 min.
    pub max_fetch_wait: Duration,
    /// Reads of what is not in memory that wait for the disk at a time, on the whole server; each is of at most 4 MiB, and
    /// further ones take turns by connection. More may help a disk that needs many requests to be fast; fewer leave more of
    /// it to fsyncs. Default 4.
    pub cold_reads: usize,
    /// How long what is in flight may take to finish at shutdown before it is cut off. Default 10 s.
    pub shutdown_grace: Duration,
    /// Where Kafka's clients are told to connect. None unless set: then each is told the address its connection came in
    /// at, which is wrong only behind a proxy or a translated address.
    pub advertised: Option<Advertised>,
    /// What bounds groups of consumers.
    pub groups: GroupLimits,
    /// The longest that a producer may have a transaction be open. Until it ends, whoever reads what is committed sees nothing behind
    /// its first record, and its segments are not cooled. Default 15 min.
    pub max_transaction: Duration,
}

/// What bounds groups of consumers and the sessions of their members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLimits {
    /// How long the first members of a group wait for others: longer, and a group that starts as a whole agrees once; shorter, and
    /// the first record comes sooner. Default 3 s.
    pub initial_rebalance_delay: Duration,
    /// The shortest session a member may ask for. Default 6 s.
    pub min_session: Duration,
    /// The longest. Default 30 min.
    pub max_session: Duration,
    /// How long a member of the consumer protocol may be silent. Default 45 s.
    pub consumer_session: Duration,
    /// How often it is to be heard of. Default 5 s.
    pub consumer_heartbeat: Duration,
    /// Members a group has at most. Default 10,000.
    pub max_members: usize,
    /// Bytes of the text that goes with a committed offset, at most. Default 4,096.
    pub max_metadata_bytes: usize,
    /// How long a group that nobody uses keeps its offsets; for ever unless set.
    pub retention: Option<Duration>,
}

impl Default for GroupLimits {
    fn default() -> Self {
        Self {
            initial_rebalance_delay: Duration::from_secs(3),
            min_session: Duration::from_secs(6),
            max_session: Duration::from_secs(1800),
            consumer_session: Duration::from_secs(45),
            consumer_heartbeat: Duration::from_secs(5),
            max_members: 10_000,
            max_metadata_bytes: 4096,
            retention: None,
        }
    }
}

/// An address to be told to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 9092))],
            limits: FrameLimits::default(),
            handshake_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(120),
            max_connections: 10_000,
            connection_memory_bytes: 64 << 20,
            large_frame_memory_bytes: 1 << 30,
            max_in_flight_requests: 64,
            max_request_bytes: 56 << 20,
            max_fetch_bytes: 16 << 20,
            max_fetch_wait: Duration::from_secs(300),
            cold_reads: 4,
            shutdown_grace: Duration::from_secs(10),
            advertised: None,
            groups: GroupLimits::default(),
            max_transaction: Duration::from_secs(900),
        }
    }
}

/// Why a [`ServerConfig`] cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is nothing to listen on.
    #[error("no address to listen on")]
    NoAddress,
    /// A limit or time is zero, which would refuse everybody.
    #[error("{name} is zero")]
    Zero {
        /// The field.
        name: &'static str,
    },
    /// A limit is too small for the largest frame.
    #[error("{name} is {found}, but a frame of the largest key and payload needs {needed}")]
    TooSmall {
        /// The field.
        name: &'static str,
        /// Its value.
        found: u64,
        /// The least that works.
        needed: u64,
    },
}

impl ServerConfig {
    /// Bytes of the largest frame the limits allow.
    #[must_use]
    pub fn max_frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64
            + u64::from(self.limits.max_key_bytes)
            + u64::from(self.limits.max_payload_bytes)
    }

    /// The most that is read before it is worked on: the largest frame or request, or the buffer that is kept for all others.
    fn max_input_bytes(&self) -> u64 {
        self.max_frame_bytes()
            .max(u64::from(self.max_request_bytes))
            .max(LARGE_ITEM_BYTES as u64)
    }

    /// What [`Self::connection_memory_bytes`] leaves for what has been read and is not answered yet. At least
    /// [`ACK_BUDGET_BYTES`] in a valid configuration.
    pub(crate) fn waiting_memory_bytes(&self) -> u64 {
        self.connection_memory_bytes
            .saturating_sub(self.max_input_bytes())
    }

    /// Checks the fields against each other.
    ///
    /// # Errors
    /// [`ConfigError`] names the field that cannot work and what it needs.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        let zeros = [
            ("handshake_timeout", self.handshake_timeout.is_zero()),
            ("frame_timeout", self.frame_timeout.is_zero()),
            ("send_timeout", self.send_timeout.is_zero()),
            ("max_connections", self.max_connections == 0),
            ("max_in_flight_requests", self.max_in_flight_requests == 0),
            ("max_fetch_bytes", self.max_fetch_bytes == 0),
            ("cold_reads", self.cold_reads == 0),
        ];
        if let Some((name, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::Zero { name });
        }
        let frame = self.max_frame_bytes();
        let request = u64::from(self.max_request_bytes);
        let floors = [
            (
                "connection_memory_bytes",
                self.connection_memory_bytes,
                self.max_input_bytes() + ACK_BUDGET_BYTES as u64,
            ),
            ("max_request_bytes", request, frame + REQUEST_OVERHEAD_BYTES),
            (
                "large_frame_memory_bytes",
                self.large_frame_memory_bytes,
                frame.max(request) + REQUEST_OVERHEAD_BYTES,
            ),
        ];
        match floors.into_iter().find(|(_, found, needed)| found < needed) {
            Some((name, found, needed)) => Err(ConfigError::TooSmall {
                name,
                found,
                needed,
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_config_is_valid() {
        assert_eq!(ServerConfig::default().validate(), Ok(()));
    }

    #[test]
    fn connection_memory_holds_the_largest_request_and_what_waits() {
        let with_memory = |connection_memory_bytes| ServerConfig {
            connection_memory_bytes,
            ..ServerConfig::default()
        };
        assert_eq!(
            with_memory(56 << 20).validate(),
            Err(ConfigError::TooSmall {
                name: "connection_memory_bytes",
                found: 56 << 20,
                needed: 57 << 20,
            })
        );
        assert_eq!(with_memory(57 << 20).validate(), Ok(()));
        assert_eq!(with_memory(57 << 20).waiting_memory_bytes(), 1 << 20);
        assert_eq!(with_memory(64 << 20).waiting_memory_bytes(), 8 << 20);
    }

    #[test]
    fn limit_below_the_largest_frame_is_named() {
        let config = ServerConfig {
            max_request_bytes: 50 << 20,
            ..ServerConfig::default()
        };
        assert_eq!(
            config.validate(),
            Err(ConfigError::TooSmall {
                name: "max_request_bytes",
                found: 52_428_800,
                needed: 52_428_800 + (1 << 20) + 29 + 4096,
            })
        );
        let config = ServerConfig {
            frame_timeout: Duration::ZERO,
            ..ServerConfig::default()
        };
        assert_eq!(
            config.validate(),
            Err(ConfigError::Zero {
                name: "frame_timeout"
            })
        );
    }
}
